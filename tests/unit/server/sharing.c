/* Who gets the machine: models among themselves, sessions, training against sampling. */
#include "unit/server/harness.h"

static void nap_ms(int n)
{
    struct timespec t = { n / 1000, (n % 1000) * 1000000L };
    nanosleep(&t, NULL);
}

/* A pass over n datums is n slices of the fake engine. */
static struct reply long_pass(struct server *s, const char *model, int seq, int n)
{
    static char body[65536];
    int k = snprintf(body, sizeof(body),
                     "{\"model_id\":\"%s\",\"seq_id\":%d,\"forward_backward_input\":{\"loss_fn\":"
                     "\"cross_entropy\",\"data\":[",
                     model, seq);
    for (int i = 0; i < n; i++)
        k += snprintf(body + k, sizeof(body) - (size_t)k, "%s" DATUM("1"), i ? "," : "");
    snprintf(body + k, sizeof(body) - (size_t)k, "]}}");
    struct ask a = { .method = "POST", .path = "/api/v1/forward_backward", .body = body };
    return send_ask(s, &a);
}

static bool is_done(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = core_future_locked(s, id);
    bool done = f && (f->state == FUTURE_DONE || f->state == FUTURE_FAILED);
    pthread_mutex_unlock(&s->lock);
    return done;
}

static void wait_done(struct server *s, const char *id)
{
    for (int i = 0; i < 10000 && !is_done(s, id); i++)
        nap_ms(1);
}

static void test_a_huge_batch_does_not_stop_another_model(void)
{
    struct server *s = start();
    REQUIRE(s);
    char session[64], big[96], small[96], big_id[128], small_id[128];
    make_session(s, session);
    make_model(s, session, 0, big);
    make_model(s, session, 1, small);
    atomic_store(&fake_step_us, 3000);
    struct reply r = long_pass(s, big, 1, 200);
    snprintf(big_id, sizeof(big_id), "%s", member(&r, "request_id"));
    reply_clear(&r);
    nap_ms(20);
    r = long_pass(s, small, 1, 4);
    snprintf(small_id, sizeof(small_id), "%s", member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, small_id);
    CHECK(is_done(s, small_id) && !is_done(s, big_id));
    atomic_store(&fake_step_us, 0);
    wait_done(s, big_id);
    CHECK(is_done(s, big_id));
    server_close(s);
}

static void test_sampling_goes_on_beside_training(void)
{
    struct server *s = start();
    REQUIRE(s);
    char session[64], model[96], pass[128];
    make_session(s, session);
    make_model(s, session, 0, model);
    atomic_store(&fake_step_us, 2000);
    struct reply r = long_pass(s, model, 1, 200);
    snprintf(pass, sizeof(pass), "%s", member(&r, "request_id"));
    reply_clear(&r);
    nap_ms(20);
    r = result_of(s, post(s, "/api/v1/asample",
                          "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{"
                          "\"max_tokens\":20},\"base_model\":\"test/model\"}"));
    CHECK(strstr(r.body, "\"sequences\""));
    CHECK(!is_done(s, pass));
    reply_clear(&r);
    /* Both had work, so both had about half of the time. */
    uint64_t train = atomic_load(&s->counters.train_ns),
             sample = atomic_load(&s->counters.sample_ns);
    CHECK(sample > 0 && train < 12 * sample);
    atomic_store(&fake_step_us, 0);
    wait_done(s, pass);
    server_close(s);
}

static void small_batch(struct server_options *o)
{
    o->max_batch = 1;
}

static void test_sessions_take_turns(void)
{
    os_remove_tree(test_data, NULL);
    struct server *s = start_with(small_batch);
    REQUIRE(s);
    char a[64], b[64], first_b[128] = "", last_a[128] = "";
    make_session(s, a);
    make_session(s, b);
    for (int i = 0; i < 2; i++) {
        struct reply r = post(s, "/api/v1/create_sampling_session",
                              "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                              "\"base_model\":\"test/model\"}",
                              i ? b : a);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    atomic_store(&fake_step_us, 2000);
    for (int i = 0; i < 41; i++) {
        struct reply r = post(s, "/api/v1/asample",
                              "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{"
                              "\"max_tokens\":2},\"sampling_session_id\":\"%s:sample:0\","
                              "\"seq_id\":%d}",
                              i < 40 ? a : b, i);
        snprintf(i < 40 ? last_a : first_b, sizeof(last_a), "%s", member(&r, "request_id"));
        reply_clear(&r);
    }
    wait_done(s, first_b);
    CHECK(is_done(s, first_b) && !is_done(s, last_a));
    atomic_store(&fake_step_us, 0);
    wait_done(s, last_a);
    CHECK(is_done(s, last_a));
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_huge_batch_does_not_stop_another_model);
    RUN(test_sampling_goes_on_beside_training);
    RUN(test_sessions_take_turns);
    harness_clear();
    return tap_done();
}
