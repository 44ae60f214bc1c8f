/* A server that runs for long: what ended leaves memory and disk, and is still known. */
#include <malloc.h>
#include <sqlite3.h>

#include "server/work/submit.h"
#include "server/store/timers.h"
#include "server/harness.h"

static struct fake_clock fake;

static void short_results(struct server_options *o)
{
    fake_clock_init(&fake);
    o->clock = &fake.clock;
    o->result_ttl_s = 100;
    o->session_timeout_s = 1000000;
}

static size_t count_live(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->sessions.len + s->models.len + s->samplers.len + s->futures.len;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* Time passes until nothing is left to go; what the engine unloads takes a moment. */
static void run_timers(struct server *s)
{
    struct timespec t = { 0, 5000000 };
    for (int i = 0; i < 400 && count_live(s); i++) {
        fake_clock_advance_ms(&fake, 101000);
        timers_run_once(s, true);
        nanosleep(&t, NULL);
    }
}

static void finish_session(struct server *s, const char *session)
{
    char path[128];
    snprintf(path, sizeof(path), "/api/v1/sessions/%s/finish", session);
    struct reply r = post(s, path, "%s", "");
    CHECK_STATUS(r, 204);
    reply_clear(&r);
}

/* Train a step, make unnamed weights, sample from them, and go. */
static void live_a_life(struct server *s, char session[64], char model[96])
{
    make_session(s, session);
    snprintf(model, 96, "%s:train:0", session);
    struct reply r = post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":"
                          "\"test/model\",\"lora_config\":{\"rank\":8}}",
                          session);
    reply_clear(&r);
    fake_clock_advance_ms(&fake, 1);
    r = forward_backward(s, model, 1);
    reply_clear(&r);
    r = optim_step(s, model, 2, 1);
    reply_clear(&r);
    r = result_of(s,
                  post(s, "/api/v1/save_weights_for_sampler",
                       "{\"model_id\":\"%s\",\"seq_id\":3,\"sampling_session_seq_id\":1}", model));
    CHECK(strstr(r.body, ":sample:1"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/asample",
                          "{\"sampling_session_id\":\"%s:sample:1\",\"seq_id\":0,\"prompt\":{"
                          "\"chunks\":[{\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":2}}",
                          session));
    CHECK(strstr(r.body, "[306,307]"));
    reply_clear(&r);
    finish_session(s, session);
}

static void live_lives(struct server *s, int n)
{
    char session[64], model[96];
    for (int i = 0; i < n; i++) {
        live_a_life(s, session, model);
        if (i % 50 == 49)
            run_timers(s);
    }
}

/* What the store caches of its history has its own limit. */
static int64_t live_bytes(void)
{
    return (int64_t)mallinfo2().uordblks - sqlite3_memory_used();
}

static void test_memory_returns_to_what_it_was(void)
{
    struct server *s = start_fresh(short_results);
    REQUIRE(s);
    live_lives(s, 300); /* what is kept for the next ones grows first, ever more slowly */
    CHECK_INT(count_live(s), 0);
    CHECK_INT(history_flush(s->history, NULL), TINKER_OK); /* else it waits for its timer */
    int adapters = atomic_load(&fake_adapters);
    int64_t before = live_bytes();
    live_lives(s, 500);
    CHECK_INT(history_flush(s->history, NULL), TINKER_OK);
    int64_t after = live_bytes();
    CHECK_INT(count_live(s), 0);
    CHECK_INT(atomic_load(&fake_adapters), adapters); /* the kept ones of sampling */
    CHECK_INT(weights_on_disk(), 0);
    /* One life is some kilobytes: a leak of 200 bytes in each is seen. */
    printf("# %lld bytes live before, %lld after\n", (long long)before, (long long)after);
    if (after > before + 100000)
        TAP_FAIL("%lld bytes more after 500 sessions", (long long)(after - before));
    server_close(s);
}

static void test_what_left_memory_is_still_known(void)
{
    struct server *s = start_fresh(short_results);
    REQUIRE(s);
    char session[64], model[96];
    live_a_life(s, session, model);
    run_timers(s);
    CHECK_INT(count_live(s), 0);

    struct reply r = result_of(s, optim_step(s, model, 4, 1));
    CHECK(strstr(find_member(&r, "error"), "was unloaded because its session"));
    CHECK_STR(find_member(&r, "category"), "user");
    reply_clear(&r);
    r = post(s, "/api/v1/get_info", "{\"model_id\":\"%s\"}", model);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = post(s, "/api/v1/session_heartbeat", "{\"session_id\":\"%s\"}", session);
    CHECK_STATUS(r, 404);
    reply_clear(&r);
    r = post(s, "/api/v1/asample",
             "{\"sampling_session_id\":\"%s:sample:1\",\"seq_id\":7,\"prompt\":{\"chunks\":[{"
             "\"tokens\":[5]}]},\"sampling_params\":{\"max_tokens\":2}}",
             session);
    CHECK_STATUS(r, 404);
    CHECK(strstr(r.body, "expired"));
    reply_clear(&r);
    run_timers(s);
    CHECK_INT(count_live(s), 0); /* also what was called back for the answer */
    server_close(s);
}

/* A model that was unloaded leaves; a late retry of its creation does not make it anew. */
static void test_an_unloaded_model_is_not_made_again(void)
{
    char session[64], model[96];
    struct server *s = start_model(short_results, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    fake_clock_advance_ms(&fake, 101000);
    timers_run_once(s, true);
    timers_run_once(s, true);
    CHECK_INT(s->models.len, 0);
    r = post(s, "/api/v1/create_model",
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"test/model\","
             "\"lora_config\":{\"rank\":8}}",
             session);
    CHECK_STATUS(r, 200);
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 1, 1));
    CHECK(strstr(find_member(&r, "error"), "has been unloaded"));
    reply_clear(&r);
    CHECK_INT(atomic_load(&fake_adapters), 0);
    server_close(s);
}

/* A client that does not know of the end goes on with its next number. */
static void test_the_next_request_is_told_of_the_end(void)
{
    char session[64], ended[96], unloaded[96];
    struct server *s = start_model(short_results, session, ended);
    REQUIRE(s);
    make_model(s, session, 1, unloaded);
    struct reply r = result_of(s, optim_step(s, ended, 1, 1));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", unloaded));
    reply_clear(&r);
    r = result_of(s, optim_step(s, unloaded, 1, 1));
    CHECK(strstr(find_member(&r, "error"), "has been unloaded"));
    reply_clear(&r);
    finish_session(s, session);
    for (int i = 0; i < 2000 && atomic_load(&fake_adapters); i++)
        nap_ms(1);
    r = result_of(s, optim_step(s, ended, 2, 1));
    CHECK(strstr(find_member(&r, "error"), "was unloaded because its session was finished"));
    reply_clear(&r);
    server_close(s);
}

static struct session *session_of(struct server *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, id);
    pthread_mutex_unlock(&s->lock);
    return v;
}

/* Its client finishes it while its time is up; a pass that runs keeps the model busy. */
static void test_a_session_that_ends_twice_leaves_memory(void)
{
    char session[64], model[96];
    struct server *s = start_model(short_results, session, model);
    REQUIRE(s);
    atomic_store(&fake_step_us, 50000);
    atomic_store(&fake_pass_steps, 0);
    struct reply r = forward_backward(s, model, 1);
    reply_clear(&r);
    pthread_rwlock_rdlock(&s->evict_lock);
    struct session *v = session_of(s, session);
    timers_expire_session(s, v, "was unloaded because its session expired");
    timers_expire_session(s, v, "was unloaded because its session was finished");
    pthread_rwlock_unlock(&s->evict_lock);
    atomic_store(&fake_step_us, 0);
    run_timers(s);
    CHECK_INT(count_live(s), 0);
    server_close(s);
}

static void test_a_model_made_while_its_session_ends_is_unloaded(void)
{
    char session[64], model[96];
    struct server *s = start_fresh(short_results);
    REQUIRE(s);
    make_session(s, session);
    snprintf(model, sizeof(model), "%s:train:0", session);
    struct arena arena;
    arena_init(&arena, 1 << 20);
    struct store_model record = { .id = model,
                                  .session_id = session,
                                  .owner = "local",
                                  .base_model = "test/model",
                                  .lora = TINKER_LORA_INIT,
                                  .created_us = 1,
                                  .last_request_us = 1,
                                  .saved_seq = -1 };
    const char *id;
    /* create_model found the session alive; then it ended. */
    pthread_rwlock_rdlock(&s->evict_lock);
    struct session *v = session_of(s, session);
    timers_expire_session(s, v, "was unloaded because its session expired");
    CHECK_INT(
        submit_create(s, &record, v, &s->bases[0], job_new(JOB_CREATE), "{}", 2, &arena, &id, NULL),
        SUBMIT_OK);
    pthread_rwlock_unlock(&s->evict_lock);
    arena_clear(&arena);
    run_timers(s);
    CHECK_INT(count_live(s), 0);
    CHECK_INT(atomic_load(&fake_adapters), 0);
    server_close(s);
}

/* The answer to the first poll may get lost, however late that poll was. */
static void test_outcomes_stay_after_they_were_fetched(void)
{
    char session[64], id[128];
    struct server *s = start_fresh(short_results);
    REQUIRE(s);
    make_session(s, session);
    struct reply r =
        post(s, "/api/v1/asample",
             "{\"base_model\":\"test/model\",\"prompt\":{\"chunks\":[{\"tokens\":[5]}]},"
             "\"sampling_params\":{\"max_tokens\":2}}");
    snprintf(id, sizeof(id), "%s", find_member(&r, "request_id"));
    reply_clear(&r);
    wait_done(s, id);
    for (int i = 0; i < 2; i++) { /* fetched after 90 s and after 180 s; the limit is 100 s */
        fake_clock_advance_ms(&fake, 90000);
        timers_run_once(s, true);
        r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
        CHECK_STATUS(r, 200);
        reply_clear(&r);
    }
    fake_clock_advance_ms(&fake, 20000);
    timers_run_once(s, true);
    r = post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
    CHECK(r.status != 200);
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init_in_memory();
    RUN(test_memory_returns_to_what_it_was);
    RUN(test_what_left_memory_is_still_known);
    RUN(test_an_unloaded_model_is_not_made_again);
    RUN(test_the_next_request_is_told_of_the_end);
    RUN(test_a_session_that_ends_twice_leaves_memory);
    RUN(test_a_model_made_while_its_session_ends_is_unloaded);
    RUN(test_outcomes_stay_after_they_were_fetched);
    harness_clear();
    return tap_done();
}
