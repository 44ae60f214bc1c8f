/* Who gets the machine: models among themselves, sessions, users, training against sampling.
 *
 * Bounds are in slices of work done meanwhile, not in time. */
#include "server/store/timers.h"
#include "server/harness.h"

static void test_a_huge_batch_does_not_stop_another_model(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    char session[64], big[96], small[96], big_id[128], small_id[128];
    make_session(s, session);
    make_model(s, session, 0, big);
    make_model(s, session, 1, small);
    atomic_store(&fake_step_us, 3000);
    struct reply r = long_pass(s, big, 1, 200);
    snprintf(big_id, sizeof(big_id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    nap_ms(20);
    r = long_pass(s, small, 1, 4);
    snprintf(small_id, sizeof(small_id), "%s", find_member(&r, "request_id"));
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
    char session[64], model[96], pass[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    atomic_store(&fake_step_us, 2000);
    struct reply r = long_pass(s, model, 1, 200);
    snprintf(pass, sizeof(pass), "%s", find_member(&r, "request_id"));
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

/* Optimizer steps are short, but there may be many. */
static void test_many_steps_do_not_stop_sampling(void)
{
    enum { STEPS = 400 };
    char session[64], model[96], sample[128], last[128];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    for (int i = 2; i <= STEPS; i++) {
        struct reply r = optim_step(s, model, i, 1);
        reply_clear(&r);
    }
    snprintf(last, sizeof(last), "%s:%d", model, STEPS);
    struct reply r = optim_step(s, model, 1, 1); /* now they all can run */
    reply_clear(&r);
    r = post(s, "/api/v1/asample",
             "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{\"max_tokens\":1},"
             "\"base_model\":\"test/model\"}");
    snprintf(sample, sizeof(sample), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, sample);
    CHECK(is_done(s, sample) && !is_done(s, last));
    server_close(s);
}

static void small_batch(struct server_options *o)
{
    o->max_batch = 1;
}

static void test_sessions_take_turns(void)
{
    struct server *s = start_fresh(small_batch);
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
        snprintf(i < 40 ? last_a : first_b, sizeof(last_a), "%s", find_member(&r, "request_id"));
        reply_clear(&r);
    }
    wait_done(s, first_b);
    CHECK(is_done(s, first_b) && !is_done(s, last_a));
    atomic_store(&fake_step_us, 0);
    wait_done(s, last_a);
    CHECK(is_done(s, last_a));
    server_close(s);
}

/* Start a pass of n slices; its future's id. */
static void start_pass(struct server *s, const char *model, int seq, int n, char id[128])
{
    struct reply r = long_pass(s, model, seq, n);
    CHECK_STATUS(r, 200);
    snprintf(id, 128, "%s", find_member(&r, "request_id"));
    reply_clear(&r);
}

static void wait_slices(atomic_int *counter, int n)
{
    for (int i = 0; i < 20000 && atomic_load(counter) < n; i++)
        nap_ms(1);
}

static void test_many_huge_batches_do_not_stop_another_session(void)
{
    enum { MODELS = 6, HUGE_PASS = 300, SMALL = 5 };
    struct server *s = start_server();
    REQUIRE(s);
    char hog[64], guest[64], model[96], last[128] = "", small[128];
    make_session(s, hog);
    make_session(s, guest);
    for (int i = 0; i < MODELS; i++)
        make_model(s, hog, i, model);
    make_model(s, guest, 0, model);
    atomic_store(&fake_step_us, 1000);
    atomic_store(&fake_pass_steps, 0);
    for (int i = 0; i < MODELS; i++) {
        char of_hog[96];
        snprintf(of_hog, sizeof(of_hog), "%s:train:%d", hog, i);
        start_pass(s, of_hog, 1, HUGE_PASS, last);
    }
    wait_slices(&fake_pass_steps, 20);
    int before = atomic_load(&fake_pass_steps);
    start_pass(s, model, 1, SMALL, small);
    wait_done(s, small);
    int meanwhile = atomic_load(&fake_pass_steps) - before;
    CHECK(is_done(s, small));
    /* One slice of the others for each of its own, and what ran until it was queued. */
    if (meanwhile > 8 * SMALL)
        TAP_FAIL("%d slices for a pass of %d", meanwhile, SMALL);
    atomic_store(&fake_step_us, 0);
    wait_done(s, last);
    CHECK(is_done(s, last));
    server_close(s);
}

static void test_more_models_are_not_more_time(void)
{
    enum { N = 120, MODELS = 3 };
    struct server *s = start_server();
    REQUIRE(s);
    char many[64], one[64], model[96], id[128], last[128] = "";
    make_session(s, many);
    make_session(s, one);
    for (int i = 0; i < MODELS; i++)
        make_model(s, many, i, model);
    make_model(s, one, 0, model);
    atomic_store(&fake_step_us, 1000);
    atomic_store(&fake_pass_steps, 0);
    for (int i = 0; i < MODELS; i++) {
        char of_many[96];
        snprintf(of_many, sizeof(of_many), "%s:train:%d", many, i);
        start_pass(s, of_many, 1, N, last);
    }
    int alone = atomic_load(&fake_pass_steps); /* before there was anybody to share with */
    start_pass(s, model, 1, N, id);
    wait_done(s, id);
    int others = atomic_load(&fake_pass_steps) - alone - N;
    if (others < N / 2 || others > 2 * N)
        TAP_FAIL("%d slices of three models beside %d of one", others, N);
    atomic_store(&fake_step_us, 0);
    wait_done(s, last);
    server_close(s);
}

static void batch_of_four(struct server_options *o)
{
    o->max_batch = 4;
}

static void submit_sample_in(struct server *s, const char *session, int seq, int tokens,
                             char id[128])
{
    struct reply r = post(s, "/api/v1/asample",
                          "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{"
                          "\"max_tokens\":%d},\"sampling_session_id\":\"%s:sample:0\","
                          "\"seq_id\":%d}",
                          tokens, session, seq);
    CHECK_STATUS(r, 200);
    snprintf(id, 128, "%s", find_member(&r, "request_id"));
    reply_clear(&r);
}

static void make_sampler(struct server *s, const char *session)
{
    struct reply r = post(s, "/api/v1/create_sampling_session",
                          "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                          "\"base_model\":\"test/model\"}",
                          session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
}

static void test_a_full_batch_takes_in_a_guest(void)
{
    struct server *s = start_fresh(batch_of_four);
    REQUIRE(s);
    char hog[64], guest[64], last[128] = "", id[128];
    make_session(s, hog);
    make_session(s, guest);
    make_sampler(s, hog);
    make_sampler(s, guest);
    atomic_store(&fake_step_us, 1000);
    atomic_store(&fake_token_steps, 0);
    for (int i = 0; i < 12; i++)
        submit_sample_in(s, hog, i, 200, last);
    wait_slices(&fake_token_steps, 5);
    int before = atomic_load(&fake_token_steps);
    submit_sample_in(s, guest, 0, 3, id);
    wait_done(s, id);
    int meanwhile = atomic_load(&fake_token_steps) - before;
    CHECK(is_done(s, id) && !is_done(s, last));
    if (meanwhile > 30)
        TAP_FAIL("%d tokens passed for a sample of 3", meanwhile);
    atomic_store(&fake_step_us, 0);
    wait_done(s, last);
    server_close(s);
}

/* ---- users ------------------------------------------------------------------------------- */

static void two_users_short_queue(struct server_options *o)
{
    two_keys(o);
    o->max_batch = 1;
    o->max_queued_samples = 8;
    o->max_queued_bytes = 64 << 10;
}

static int sample_as(struct server *s, const char *key, int tokens)
{
    char body[300];
    snprintf(body, sizeof(body),
             "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{\"max_tokens\":%d},"
             "\"base_model\":\"test/model\"}",
             tokens);
    struct ask a = { .method = "POST", .path = "/api/v1/asample", .body = body, .key = key };
    struct reply r = send_ask(s, &a);
    int status = r.status;
    reply_clear(&r);
    return status;
}

static void test_a_user_cannot_take_the_whole_queue(void)
{
    struct server *s = start_fresh(two_users_short_queue);
    REQUIRE(s);
    atomic_store(&fake_step_us, 5000);
    int accepted = 0, status = 200;
    while (accepted < 100 && (status = sample_as(s, ALICE, 100)) == 200)
        accepted++;
    CHECK_INT(status, 429);
    CHECK(accepted >= 8 && accepted <= 10);
    /* Two of the eight are the other one's, whatever the first does. */
    CHECK_INT(sample_as(s, BOB, 1), 200);
    CHECK_INT(sample_as(s, BOB, 1), 200);
    CHECK_INT(sample_as(s, ALICE, 1), 429);
    atomic_store(&fake_step_us, 0);
    server_close(s);
}

static void short_queue(struct server_options *o)
{
    o->max_queued_bytes = 8 << 10;
}

/* What waits behind a number can only go when that number is let in. */
static void test_a_full_queue_lets_in_what_it_waits_for(void)
{
    char session[64], model[96];
    struct server *s = start_model(short_queue, session, model);
    REQUIRE(s);
    int last = 3, status = 200;
    while (last < 100 && status == 200) {
        struct reply r = long_pass(s, model, last, 10);
        status = r.status;
        last += status == 200;
        reply_clear(&r);
    }
    CHECK_INT(status, 429);
    for (int i = 2; i >= 1; i--) { /* only the first of the two is the next */
        struct reply r = long_pass(s, model, i, 10);
        CHECK_STATUS(r, i == 1 ? 200 : 429);
        reply_clear(&r);
    }
    char id[128];
    snprintf(id, sizeof(id), "%s:1", model);
    wait_done(s, id);
    struct reply r = result_of(s, long_pass(s, model, 2, 10));
    CHECK(strstr(r.body, "loss:sum"));
    reply_clear(&r);
    snprintf(id, sizeof(id), "%s:%d", model, last - 1);
    wait_done(s, id);
    CHECK(is_done(s, id));
    server_close(s);
}

static struct fake_clock fake;
static void few_results(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    o->max_result_bytes = 16 << 10;
}

static struct reply big_sample(struct server *s)
{
    return post(
        s, "/api/v1/asample",
        "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{\"max_tokens\":200},"
        "\"num_samples\":16,\"base_model\":\"test/model\"}");
}

static void test_results_that_nobody_fetches(void)
{
    enum { MOST = 40 };
    struct server *s = start_fresh(few_results);
    REQUIRE(s);
    char ids[MOST][64];
    int n = 0, status = 200;
    while (n < MOST && status == 200) { /* 16 sequences of 200 tokens: 26 KB each */
        struct reply r = big_sample(s);
        status = r.status;
        if (status == 200) {
            snprintf(ids[n], sizeof(ids[n]), "%s", find_member(&r, "request_id"));
            wait_done(s, ids[n++]);
        }
        reply_clear(&r);
    }
    CHECK_INT(status, 429);
    CHECK(n >= 2 && n <= 6);
    for (int i = 0; i < n; i++) {
        struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", ids[i]);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    fake_clock_advance_ms(&fake, 6000);
    timers_run_once(s, true);
    struct reply r = big_sample(s);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    server_close(s);
}

/* ---- sessions that ended ------------------------------------------------------------------ */

static void fake_time(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    o->session_timeout_s = 60;
}

/* The client was told the size and comes back for the sample when it has room. */
static void test_what_was_only_announced_is_not_fetched(void)
{
    char id[64];
    struct server *s = start_fresh(few_results);
    REQUIRE(s);
    struct reply r =
        post(s, "/api/v1/asample",
             "{\"prompt\":{\"chunks\":[{\"tokens\":[1]}]},\"sampling_params\":{\"max_tokens\":200},"
             "\"num_samples\":1000,\"base_model\":\"test/model\"}");
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\",\"allow_metadata_only\":true}",
             id);
    CHECK_STR(find_member(&r, "status"), "complete_metadata");
    reply_clear(&r);
    fake_clock_advance_ms(&fake, 6000);
    timers_run_once(s, true);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
    CHECK_STATUS(r, 200);
    CHECK(strstr(r.body, "\"sequences\""));
    reply_clear(&r);
    server_close(s);
}

static void test_the_work_of_an_expired_session_ends(void)
{
    char session[64], model[96], pass[128], sample[128];
    struct server *s = start_model(fake_time, session, model);
    REQUIRE(s);
    make_sampler(s, session);
    atomic_store(&fake_step_us, 2000);
    atomic_store(&fake_pass_steps, 0);
    start_pass(s, model, 1, 300, pass);
    submit_sample_in(s, session, 0, 200, sample);
    wait_slices(&fake_pass_steps, 3);
    fake_clock_advance_ms(&fake, 61000);
    int before = atomic_load(&fake_pass_steps);
    timers_run_once(s, true);
    wait_done(s, pass);
    wait_done(s, sample);
    CHECK(atomic_load(&fake_pass_steps) - before < 50);
    struct reply r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", pass);
    CHECK(strstr(find_member(&r, "error"), "expired"));
    reply_clear(&r);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", sample);
    CHECK(strstr(find_member(&r, "error"), "expired"));
    reply_clear(&r);
    for (int i = 0; i < 2000 && atomic_load(&fake_adapters); i++)
        nap_ms(1);
    CHECK_INT(atomic_load(&fake_adapters), 0);
    atomic_store(&fake_step_us, 0);
    server_close(s);
}

/* ---- memory --------------------------------------------------------------------------------- */

static void test_a_pass_waits_for_memory(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    char session[64], a[96], b[96], first[128], second[128], body[200];
    make_session(s, session);
    make_model(s, session, 0, a);
    make_model(s, session, 1, b);
    atomic_store(&fake_step_us, 2000);
    atomic_store(&fake_pass_steps, 0);
    start_pass(s, a, 1, 100, first);
    wait_slices(&fake_pass_steps, 2);
    atomic_store(&fake_no_memory, true);
    start_pass(s, b, 1, 2, second);
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", second);
    struct ask poll = {
        .method = "POST", .path = "/api/v1/retrieve_future", .body = body, .no_wait = true
    };
    struct reply r = { .fd = -1 };
    for (int i = 0; i < 1000 && !strstr(r.body ? r.body : "", "paused_capacity"); i++) {
        reply_clear(&r);
        nap_ms(1);
        r = send_ask(s, &poll);
    }
    CHECK_STATUS(r, 408);
    CHECK_STR(find_member(&r, "queue_state"), "paused_capacity");
    CHECK(strstr(find_member(&r, "queue_state_reason"), "memory"));
    reply_clear(&r);
    CHECK(!is_done(s, first));
    atomic_store(&fake_no_memory, false);
    wait_done(s, second);
    r = send_ask(s, &poll);
    CHECK(strstr(r.body, "\"loss:sum\":2.0"));
    reply_clear(&r);
    /* With nobody to wait for, no memory is a failure. */
    atomic_store(&fake_no_memory, true);
    start_pass(s, b, 2, 2, second);
    wait_done(s, second);
    snprintf(body, sizeof(body), "{\"request_id\":\"%s\"}", second);
    r = send_ask(s, &poll);
    CHECK_STR(find_member(&r, "category"), "server");
    reply_clear(&r);
    atomic_store(&fake_no_memory, false);
    atomic_store(&fake_step_us, 0);
    server_close(s);
}

int main(void)
{
    harness_init();
    RUN(test_a_huge_batch_does_not_stop_another_model);
    RUN(test_sampling_goes_on_beside_training);
    RUN(test_many_steps_do_not_stop_sampling);
    RUN(test_sessions_take_turns);
    RUN(test_many_huge_batches_do_not_stop_another_session);
    RUN(test_more_models_are_not_more_time);
    RUN(test_a_full_batch_takes_in_a_guest);
    RUN(test_a_user_cannot_take_the_whole_queue);
    RUN(test_a_full_queue_lets_in_what_it_waits_for);
    RUN(test_results_that_nobody_fetches);
    RUN(test_what_was_only_announced_is_not_fetched);
    RUN(test_the_work_of_an_expired_session_ends);
    RUN(test_a_pass_waits_for_memory);
    harness_clear();
    return tap_done();
}
