/* How a service starts, what keeps a session alive, and how it ends. */
#include "support/fake_tinker.h"
#include "support/tap.h"

static void test_nothing_is_sent_before_it_is_needed(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    REQUIRE(w.service);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    world_settle(&w);
    world_advance(&w, 30000);
    CHECK_INT(fake_count(w.server, NULL), 0);
    CHECK_STR(tinker_service_session_id(w.service), "");
    tinker_rest_free(r);
    world_close(&w);
}

static void test_order_of_the_start(void) /* R-004 R-005 R-014 R-032 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    static const char *const want[] = { "client/config", "client/dynamic_config", "create_session",
                                        "create_model", "retrieve_future" };
    for (size_t i = 0; i < 5; i++) {
        const struct fake_request *r = fake_get(w.server, NULL, i);
        REQUIRE(r);
        CHECK_STR(r->path + strlen(API), want[i]);
        CHECK_STR(r->method, "POST");
    }
    CHECK_STR(fake_get(w.server, API "client/config", 0)->body, "{\"sdk_version\":\"0.25.0\"}");
    CHECK_STR(fake_get(w.server, API "create_session", 0)->body,
              "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_"
              "session\"}");
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, NULL, 0), "User-Agent", v), "libtinker/0.1.0");
    CHECK_STR(fake_header(fake_get(w.server, NULL, 1), "x-stainless-read-timeout", v), "10");
    CHECK_STR(tinker_service_session_id(w.service), "sess");
    tinker_training_free(t);
    world_close(&w);
}

static void test_rest_programs_have_no_session(void) /* R-002 R-003 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "checkpoints",
                (struct fake_reply){ .body = "{\"checkpoints\":[]}", .times = -1 });
    tinker_rest *a = tinker_service_create_rest(w.service, NULL);
    tinker_rest *b = tinker_service_create_rest(w.service, NULL);
    tinker_future *f[2] = { tinker_rest_list_user_checkpoints(a, NULL, NULL),
                            tinker_rest_list_user_checkpoints(b, NULL, NULL) };
    for (int i = 0; i < 2; i++) {
        CHECK_INT(world_finish(&w, f[i], 1000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK_INT(fake_count(w.server, API "client/config"), 1);
    CHECK_INT(fake_count(w.server, API "create_session"), 0);
    world_advance(&w, 700000);
    CHECK_INT(fake_count(w.server, API "session_heartbeat"), 0);
    CHECK_INT(fake_count(w.server, API "client/dynamic_config"), 1);
    tinker_sampler *s = world_sampler(&w), *s2 = world_sampler(&w);
    CHECK(s && s2);
    CHECK_INT(fake_count(w.server, API "client/config"), 2);
    CHECK_INT(fake_count(w.server, API "create_session"), 1);
    tinker_sampler_free(s);
    tinker_sampler_free(s2);
    tinker_rest_free(a);
    tinker_rest_free(b);
    world_close(&w);
}

static void test_402_during_the_start_pauses(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "client/config",
                (struct fake_reply){ .status = 402, .body = "{\"detail\":\"pay\"}" });
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(world_at(&w, API "client/config", 1), 5000);
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    world_close(&w);
}

static void test_failed_start_fails_and_may_be_repeated(void) /* R-014 R-032 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .status = 403, .body = "{\"detail\":\"no\"}" });
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 403);
    CHECK(strstr(w.err.message, "client/dynamic_config") != NULL);
    tinker_future_free(f);
    CHECK_INT(fake_count(w.server, API "create_session"), 0);
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .status = 404, .body = "{}" });
    tinker_training *t = world_training(&w);
    CHECK(t != NULL);
    CHECK_INT(fake_count(w.server, API "client/config"), 2);
    tinker_training_free(t);
    world_close(&w);
}

static void test_client_config_defaults_and_unknown_flags(void) /* R-012 R-016 */
{
    struct world w;
    world_open(&w, "{\"brand_new_flag\":{\"a\":[1]},\"fwdbwd_max_chunk_len\":2}", NULL);
    tinker_training *t = world_training(&w);
    REQUIRE(t);
    tinker_datum *data = fake_data(3, 4);
    tinker_future *f = tinker_training_forward(t, data, 3, &fake_loss, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "forward_backward"), 2);
    tinker_future_free(f);
    fake_data_free(data, 3);
    tinker_training_free(t);
    world_close(&w);
}

static void test_config_has_a_connection_of_its_own(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    int config = fake_get(w.server, API "client/config", 0)->conn;
    for (size_t i = 1; i < fake_count(w.server, NULL); i++)
        CHECK(fake_get(w.server, NULL, i)->conn != config);
    tinker_training_free(t);
    world_close(&w);
}

/* A number that nobody should give is not taken for a very small one. */
static void test_endless_refresh_interval(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .body = "{\"refresh_interval_sec\":9223372036854775807}" });
    tinker_training *t = world_training(&w);
    world_advance(&w, 60000);
    CHECK_INT(fake_count(w.server, API "client/dynamic_config"), 1);
    tinker_training_free(t);
    world_close(&w);
}

/* Layer 1 does not repeat it, layer 2 does; a refresh is not repeated at all. */
static void test_dynamic_config_without_an_answer(void) /* R-014 R-015 */
{
    static const char path[] = API "client/dynamic_config";
    struct world w;
    char v[512];
    world_open(&w, NULL, NULL);
    say(&w, path, 503, "{}", 2);
    fake_script(w.server, path, (struct fake_reply){ .fault = FAKE_HANG });
    fake_script(w.server, path, (struct fake_reply){ .by_handler = true });
    fake_script(w.server, path, (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 60000), TINKER_OK);
    tinker_future_free(f);
    static const int64_t at[] = { 0, 1000, 3000, 17000 }; /* 10 s without an answer, and 4 */
    for (size_t i = 0; i < 4; i++) {
        CHECK_INT(world_at(&w, path, i), at[i]);
        const struct fake_request *r = fake_get(w.server, path, i);
        REQUIRE(r);
        CHECK_STR(fake_header(r, "x-stainless-retry-count", v), "0");
        CHECK_STR(fake_header(r, "x-stainless-read-timeout", v), "10");
    }
    world_advance(&w, 700000);
    CHECK_INT(world_at(&w, path, 4), 317000);
    CHECK_INT(world_at(&w, path, 5), 627000); /* 10 s later: 300 s after the last attempt ended */
    world_close(&w);
}

static void test_dynamic_config_is_refreshed(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .body = "{\"refresh_interval_sec\":1}" });
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .status = 500, .body = "{}" });
    fake_script(w.server, API "client/dynamic_config",
                (struct fake_reply){ .body = "{\"refresh_interval_sec\":40}" });
    tinker_training *t = world_training(&w);
    world_advance(&w, 70000);
    CHECK_INT(world_at(&w, API "client/dynamic_config", 1), 10000);
    CHECK_INT(world_at(&w, API "client/dynamic_config", 2), 20000);
    CHECK_INT(world_at(&w, API "client/dynamic_config", 3), 60000);
    CHECK_INT(fake_count(w.server, API "client/dynamic_config"), 4);
    tinker_training_free(t);
    world_close(&w);
}

static void test_heartbeats(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "session_heartbeat",
                (struct fake_reply){ .body = "{}", .delay_ms = 2000 });
    tinker_training *t = world_training(&w);
    world_advance(&w, 45000);
    CHECK_INT(world_at(&w, API "session_heartbeat", 0), 10000);
    CHECK_INT(world_at(&w, API "session_heartbeat", 1), 22000); /* 10 s after the answer */
    CHECK_INT(world_at(&w, API "session_heartbeat", 2), 32000);
    CHECK_INT(world_at(&w, API "session_heartbeat", 3), 42000);
    const struct fake_request *r = fake_get(w.server, API "session_heartbeat", 0);
    CHECK_STR(r->body, "{\"session_id\":\"sess\",\"type\":\"session_heartbeat\"}");
    tinker_training_free(t);
    world_close(&w);
}

static void trickle(struct world *w, const char *path)
{
    fake_script(w->server, path, (struct fake_reply){ .fault = FAKE_DRIP });
}

/* A byte each second is no silence, but no heartbeat either. */
static void test_heartbeats_that_trickle(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    trickle(&w, API "session_heartbeat");
    tinker_training *t = world_training(&w);
    world_advance(&w, 45000);
    CHECK_INT(world_at(&w, API "session_heartbeat", 0), 10000);
    CHECK_INT(world_at(&w, API "session_heartbeat", 1), 40000); /* 20 s in all, 10 s later */
    tinker_training_free(t);
    world_close(&w);
}

/* Each request of the start has an end, whoever answers it. */
static void test_starts_that_trickle(void)
{
    static const char *const steps[] = { API "client/config", API "client/dynamic_config",
                                         API "create_session", API "create_sampling_session" };
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        struct world w;
        world_open(&w, NULL, NULL);
        trickle(&w, steps[i]);
        tinker_future *f = tinker_service_request_sampler(w.service, "tiny", NULL, &w.err);
        CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
        CHECK_INT(fake_count(w.server, steps[i]), 2);
        tinker_future_free(f);
        world_close(&w);
    }
}

static void test_heartbeat_failures_are_survived(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "session_heartbeat",
                (struct fake_reply){ .status = 500, .body = "{}", .times = -1 });
    tinker_training *t = world_training(&w);
    world_advance(&w, 120000);
    CHECK_INT(world_log_count(&w, "may be terminated"), 0);
    world_advance(&w, 10000);
    CHECK_INT(world_log_count(&w, "may be terminated"), 1);
    CHECK_INT(world_log_count(&w, "for 130 s"), 1);
    CHECK_INT(fake_count(w.server, API "session_heartbeat"), 13); /* none was retried */
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    tinker_future_free(f);
    fake_unscript(w.server, API "session_heartbeat");
    world_advance(&w, 60000);
    CHECK_INT(world_log_count(&w, "may be terminated"), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_heartbeats_may_be_limited(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.limits.heartbeat_max_failures = 3;
    world_open(&w, NULL, &o);
    fake_script(w.server, API "session_heartbeat",
                (struct fake_reply){ .status = 500, .body = "{}", .times = -1 });
    tinker_training *t = world_training(&w);
    world_advance(&w, 200000);
    CHECK_INT(fake_count(w.server, API "session_heartbeat"), 4);
    CHECK_INT(world_log_count(&w, "heartbeats of session sess stop"), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_heartbeats_are_on_time_beside_stalled_samples(void) /* R-036 R-042 R-185 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_sampler *s = world_sampler(&w);
    REQUIRE(s);
    fake_script(w.server, API "asample", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[420];
    for (int i = 0; i < 420; i++)
        f[i] = tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, NULL);
    world_advance(&w, 59000);
    CHECK_INT(fake_count(w.server, API "asample"), 400); /* */
    for (size_t i = 0; i < 5; i++)
        CHECK_INT(world_at(&w, API "session_heartbeat", i), 10000 * (int64_t)(i + 1));
    for (int i = 0; i < 420; i++) {
        tinker_future_cancel(f[i]);
        tinker_future_free(f[i]);
    }
    world_settle(&w);
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_session_messages_are_logged(void) /* R-033 R-168 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "create_session",
                (struct fake_reply){ .body = "{\"session_id\":\"s9\",\"info_message\":\"hello-i\","
                                             "\"warning_message\":\"hello-w\",\"error_message\":"
                                             "\"hello-e\",\"new\":null}" });
    tinker_training *t = world_training(&w);
    CHECK(t != NULL);
    CHECK_INT(world_log_count(&w, "hello-"), 3);
    CHECK_INT(world_log_count(&w, "session s9 initialized"), 1);
    CHECK_INT(world_log_count(&w, "training client initialized"), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_the_end_of_a_session(void)
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.display_name = "night run";
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    CHECK(strstr(fake_get(w.server, API "create_session", 0)->body,
                 "\"display_name\":\"night run\"") != NULL);
    CHECK(tinker_service_finish(w.service, (tinker_finish)3, NULL, &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_EINVAL);
    say(&w, API "sessions/sess/finish", 503, "{}", 1);
    say(&w, API "sessions/sess/finish", 204, "", 1);
    tinker_future *f = tinker_service_finish(w.service, TINKER_FINISH_ERRORED, "loss is NaN", NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    tinker_future_free(f);
    CHECK_STR(fake_get(w.server, API "sessions/sess/finish", 1)->body,
              "{\"reason\":{\"type\":\"errored\"},\"detail\":\"loss is NaN\"}");
    CHECK_STR(fake_get(w.server, API "sessions/sess/finish", 1)->method, "POST");
    size_t beats = fake_count(w.server, API "session_heartbeat");
    world_advance(&w, 60000);
    CHECK_INT(fake_count(w.server, API "session_heartbeat"), beats);
    CHECK(tinker_service_request_lora(w.service, "tiny", NULL, &w.err) == NULL);
    CHECK_INT(w.err.status, TINKER_ESTATE);
    f = tinker_service_check_health(w.service, NULL); /* what needs no session goes on */
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    tinker_future_free(f);
    /* The first end counts: a conflict is an answer. */
    say(&w, API "sessions/sess/finish", 409, "{\"detail\":\"finished\"}", -1);
    f = tinker_service_finish(w.service, TINKER_FINISH_SUCCESS, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 409);
    tinker_future_free(f);
    CHECK_STR(fake_get(w.server, API "sessions/sess/finish", 2)->body,
              "{\"reason\":{\"type\":\"success\"},\"detail\":null}");
    tinker_training_free(t);
    world_close(&w);
}

static void test_the_end_without_a_session(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_future *f = tinker_service_finish(w.service, TINKER_FINISH_SUCCESS, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(fake_count(w.server, NULL), 0);
    world_close(&w);
    /* One that is being opened is waited for; one that could not be opened is none. */
    for (int fails = 0; fails < 2; fails++) {
        world_open(&w, NULL, NULL);
        say(&w, API "create_session", fails ? 401 : 503, "{}", 1);
        say(&w, API "sessions/sess/finish", 204, "", 1);
        tinker_future *lora = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
        f = tinker_service_finish(w.service, TINKER_FINISH_INTERRUPTED, NULL, NULL);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
        CHECK_INT(fake_count(w.server, API "sessions/sess/finish"), !fails);
        tinker_future_free(f);
        tinker_future_free(lora);
        world_close(&w);
    }
}

static void test_nothing_is_sent_after_close(void) /* R-038 R-181 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    fake_script(w.server, API "optim_step", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *f[100];
    for (int i = 0; i < 100; i++)
        f[i] = tinker_training_optim_step(t, NULL, NULL);
    world_settle(&w);
    tinker_training_free(t);
    tinker_service_free(w.service);
    w.service = NULL;
    size_t n = fake_count(w.server, NULL);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(tinker_future_wait(f[i], 0, NULL), TINKER_ECANCELED);
        tinker_future_free(f[i]);
    }
    world_advance(&w, 100000);
    CHECK_INT(fake_count(w.server, NULL), n);
    world_close(&w);
}

static void test_counters_of_a_session(void) /* R-039 R-040 R-117 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_sampler *a = world_sampler(&w), *b = world_sampler(&w);
    tinker_training *t = world_training(&w), *t2 = world_training(&w);
    tinker_future *f = tinker_training_request_sampler(t, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    const char *path = API "create_sampling_session";
    CHECK_INT(fake_json_int(fake_get(w.server, path, 0), "sampling_session_seq_id"), 0);
    CHECK_INT(fake_json_int(fake_get(w.server, path, 1), "sampling_session_seq_id"), 1);
    CHECK_INT(fake_json_int(fake_get(w.server, API "save_weights_for_sampler", 0),
                            "sampling_session_seq_id"),
              2);
    CHECK_INT(fake_json_int(fake_get(w.server, API "create_model", 0), "model_seq_id"), 0);
    CHECK_INT(fake_json_int(fake_get(w.server, API "create_model", 1), "model_seq_id"), 1);
    tinker_error err;
    CHECK(tinker_service_request_sampler(w.service, NULL, "foo", &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    CHECK(tinker_service_request_sampler(w.service, NULL, NULL, &err) == NULL);
    CHECK(tinker_service_request_sampler(w.service, NULL, "tinker://r:train:0/weights/x", &err) ==
          NULL);
    CHECK(strstr(err.message, "save_for_sampler") != NULL);
    CHECK_INT(fake_count(w.server, path), 2);
    tinker_future *g = tinker_service_request_sampler(w.service, NULL,
                                                      "tinker://r:train:0/sampler_weights/x", &err);
    CHECK_INT(world_finish(&w, g, 1000), TINKER_OK);
    CHECK(strstr(fake_get(w.server, path, 2)->body,
                 "\"model_path\":\"tinker://r:train:0/sampler_weights/x\"") != NULL);
    CHECK_INT(fake_json_int(fake_get(w.server, path, 2), "sampling_session_seq_id"), 3);
    tinker_future_free(g);
    tinker_future_free(f);
    tinker_sampler_free(a);
    tinker_sampler_free(b);
    tinker_training_free(t);
    tinker_training_free(t2);
    world_close(&w);
}

static void test_500_on_create_session_keeps_its_key(void) /* R-032 R-052 R-053 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, API "create_session",
                (struct fake_reply){ .status = 500, .body = "{}", .times = 3 });
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 20000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "create_session"), 4);
    char first[512], v[512], count[8];
    fake_header(fake_get(w.server, API "create_session", 0), "X-Idempotency-Key", first);
    CHECK(strncmp(first, "stainless-python-retry-", 23) == 0 && strlen(first) == 23 + 36);
    for (size_t i = 0; i < 4; i++) {
        const struct fake_request *r = fake_get(w.server, API "create_session", i);
        CHECK_STR(fake_header(r, "X-Idempotency-Key", v), first);
        snprintf(count, sizeof(count), "%zu", i);
        CHECK_STR(fake_header(r, "x-stainless-retry-count", v), count);
    }
    tinker_training_free(tinker_future_take_training(f));
    tinker_future_free(f);
    world_close(&w);
}

static void test_two_services_do_not_share(void) /* R-041 R-175 */
{
    struct world a, b;
    world_open_real(&a, NULL);
    world_open_real(&b, NULL);
    tinker_error err;
    tinker_training *ta = tinker_service_create_lora(a.service, "tiny", NULL, 60000, &err);
    tinker_training *tb = tinker_service_create_lora(b.service, "tiny", NULL, 60000, &err);
    REQUIRE(ta && tb);
    fake_script(a.server, API "optim_step", (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_future *fa = tinker_training_optim_step(ta, NULL, &err);
    tinker_future *fb = tinker_training_optim_step(tb, NULL, &err);
    CHECK_INT(tinker_future_wait(fb, 60000, &err), TINKER_OK);
    CHECK_INT(tinker_future_wait(fa, 0, &err), TINKER_ETIMEDOUT);
    tinker_future_free(fa);
    tinker_future_free(fb);
    tinker_training_free(ta);
    tinker_training_free(tb);
    world_close(&a);
    world_close(&b);
}

int main(void)
{
    RUN(test_nothing_is_sent_before_it_is_needed);
    RUN(test_order_of_the_start);
    RUN(test_rest_programs_have_no_session);
    RUN(test_402_during_the_start_pauses);
    RUN(test_failed_start_fails_and_may_be_repeated);
    RUN(test_client_config_defaults_and_unknown_flags);
    RUN(test_config_has_a_connection_of_its_own);
    RUN(test_dynamic_config_without_an_answer);
    RUN(test_dynamic_config_is_refreshed);
    RUN(test_endless_refresh_interval);
    RUN(test_heartbeats);
    RUN(test_heartbeats_that_trickle);
    RUN(test_starts_that_trickle);
    RUN(test_heartbeat_failures_are_survived);
    RUN(test_heartbeats_may_be_limited);
    RUN(test_heartbeats_are_on_time_beside_stalled_samples);
    RUN(test_session_messages_are_logged);
    RUN(test_the_end_of_a_session);
    RUN(test_the_end_without_a_session);
    RUN(test_nothing_is_sent_after_close);
    RUN(test_counters_of_a_session);
    RUN(test_500_on_create_session_keeps_its_key);
    RUN(test_two_services_do_not_share);
    return tap_done();
}
