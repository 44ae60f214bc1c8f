/* The two retry layers around every call, and the pause for an unpaid bill. */
#include "client/call/retry_policy.h"
#include "client/call/call.h"
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

static double always_zero(struct runtime *rt)
{
    (void)rt;
    return 0;
}

static double almost_one(struct runtime *rt)
{
    (void)rt;
    return 0.999999;
}

/* A world with a training client, jitter at its upper bound. */
static tinker_training *open_training(struct world *w)
{
    world_open(w, NULL, NULL);
    runtime_current()->uniform = always_zero;
    return world_training(w);
}

static int64_t gap(struct world *w, const char *path, size_t i)
{
    return world_at(w, path, i + 1) - world_at(w, path, i);
}

static void test_layer_1_attempts_and_delays(void) /* R-048 R-050 R-058 */
{
    struct world w;
    world_open(&w, NULL, NULL);
    runtime_current()->uniform = always_zero;
    say(&w, API "create_model", 503, "{}", -1);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 503);
    CHECK_INT(w.err.retryable, 1);
    CHECK_INT(fake_count(w.server, API "create_model"), 11); /* not wrapped in layer 2 */
    static const int64_t want[] = { 500, 1000, 2000, 4000, 8000, 10000, 10000 };
    for (size_t i = 0; i < 7; i++)
        CHECK_INT(gap(&w, API "create_model", i), want[i]);
    tinker_future_free(f);
    world_close(&w);
}

static void test_layer_1_jitter_shortens(void) /* R-050 R-182 */
{
    CHECK_INT(retry_delay_ms(RETRY_DELAY_ATTEMPT, 1, 0), 500);
    CHECK_INT(retry_delay_ms(RETRY_DELAY_ATTEMPT, 1, 1), 375);
    CHECK_INT(retry_delay_ms(RETRY_DELAY_ATTEMPT, 6, 0), 10000);
    CHECK_INT(retry_delay_ms(RETRY_DELAY_ATTEMPT, 5000, 1), 7500);
    struct world w;
    tinker_training *t = open_training(&w);
    runtime_current()->uniform = almost_one;
    say(&w, API "optim_step", 503, "{}", 1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK(gap(&w, API "optim_step", 0) >= 375 && gap(&w, API "optim_step", 0) <= 377);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

/* create_model has no layer 2 that could hide what layer 1 does. */
static void test_statuses_of_layer_1(void) /* */
{
    static const int again[] = { 408, 409, 429, 500, 502, 599 };
    static const int final[] = { 300, 400, 401, 402, 403, 404, 405, 407, 410, 418, 422, 428, 430 };
    struct world w;
    world_open(&w, NULL, NULL);
    runtime_current()->uniform = always_zero;
    size_t sent = 0;
    for (size_t i = 0; i < sizeof(again) / sizeof(*again); i++) {
        say(&w, API "create_model", again[i], "{}", 1);
        tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
        CHECK_INT(fake_count(w.server, API "create_model"), sent += 2);
        CHECK_INT(gap(&w, API "create_model", sent - 2), 500);
        tinker_future_free(f);
    }
    for (size_t i = 0; i < sizeof(final) / sizeof(*final); i++) {
        say(&w, API "create_model", final[i], "{}", 1);
        tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
        CHECK_INT(w.err.http_status, final[i]);
        CHECK_INT(fake_count(w.server, API "create_model"), ++sent);
        tinker_future_free(f);
    }
    world_close(&w);
}

static void test_x_should_retry(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    fake_script(
        w.server, API "optim_step",
        (struct fake_reply){ .status = 422, .body = "{}", .headers = "x-should-retry: true\r\n" });
    fake_script(
        w.server, API "optim_step",
        (struct fake_reply){ .status = 418, .body = "{}", .headers = "x-should-retry: True\r\n" });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 418);
    CHECK_INT(fake_count(w.server, API "optim_step"), 2);
    tinker_future_free(f);
    fake_script(
        w.server, API "create_model",
        (struct fake_reply){ .status = 503, .body = "{}", .headers = "x-should-retry: false\r\n" });
    f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 503);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_retry_after(void) /* */
{
    static const struct {
        const char *headers;
        int64_t gap;
    } cases[] = {
        { "retry-after-ms: 1500\r\nretry-after: 9\r\n", 1500 },
        { "Retry-After: 2.5\r\n", 2500 },
        { "retry-after: 120\r\n", 500 },
        { "retry-after: 60\r\n", 60000 },
        { "retry-after: 60.01\r\n", 500 },
        { "retry-after-ms: 60001\r\n", 500 },
        { "retry-after: -1\r\n", 500 },
        { "retry-after: 0\r\n", 500 },
        { "retry-after-ms: junk\r\n", 500 },
        { "Retry-After: Thu, 01 Jan 2026 00:00:08 GMT\r\n", 8000 }, /* the wall says 00:00:00 */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world w;
        tinker_training *t = open_training(&w);
        fake_script(
            w.server, API "optim_step",
            (struct fake_reply){ .status = 500, .body = "{}", .headers = cases[i].headers });
        tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
        CHECK_INT(world_finish(&w, f, 70000), TINKER_OK);
        CHECK_INT(gap(&w, API "optim_step", 0), cases[i].gap);
        tinker_future_free(f);
        tinker_training_free(t);
        world_close(&w);
    }
}

/* What the service asked for is the caller's to know, when the library does not try again. */
static void test_the_wait_that_was_asked_for(void)
{
    static const struct {
        const char *headers;
        int64_t want;
    } cases[] = { { "retry-after: 2.5\r\nx-should-retry: false\r\n", 2500 },
                  { "retry-after-ms: 750\r\nx-should-retry: false\r\n", 750 },
                  { "x-should-retry: false\r\n", -1 } };
    struct world w;
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        fake_script(
            w.server, API "healthz",
            (struct fake_reply){ .status = 404, .body = "{}", .headers = cases[i].headers });
        tinker_future *f = tinker_service_check_health(w.service, NULL);
        CHECK_INT(tinker_future_retry_after_ms(f), -1); /* nothing is known yet */
        CHECK_INT(world_finish(&w, f, 5000), TINKER_EHTTP);
        CHECK_INT(tinker_future_retry_after_ms(f), cases[i].want);
        tinker_future_free(f);
    }
    world_close(&w);
}

static void test_layer_2_delays_and_new_keys(void) /* R-052 R-057 R-111 R-103 */
{
    struct world w;
    tinker_training *t = open_training(&w);
    say(&w, API "save_weights", 503, "{}", -1); /* layer 1 does not repeat saves */
    tinker_future *f = tinker_training_save_state(t, "x", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 400000), TINKER_EHTTP);
    static const int64_t want[] = { 1000, 2000, 4000, 8000, 16000, 30000, 30000 };
    for (size_t i = 0; i < 7; i++)
        CHECK_INT(gap(&w, API "save_weights", i), want[i]);
    size_t n = fake_count(w.server, API "save_weights");
    CHECK_INT(world_at(&w, API "save_weights", n - 1) - world_at(&w, API "save_weights", 0),
              300000);
    char a[512], b[512];
    fake_header(fake_get(w.server, API "save_weights", 0), "X-Idempotency-Key", a);
    fake_header(fake_get(w.server, API "save_weights", 1), "X-Idempotency-Key", b);
    CHECK(strcmp(a, b) != 0);
    for (size_t i = 0; i < n; i++)
        CHECK_INT(fake_json_int(fake_get(w.server, API "save_weights", i), "seq_id"), 1);
    tinker_future_free(f);
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_OK);
    CHECK_INT(fake_json_int(fake_get(w.server, API "optim_step", 0), "seq_id"), 2);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_layers_multiply(void) /* R-058 R-059 */
{
    struct world w;
    tinker_training *t = open_training(&w);
    say(&w, API "optim_step", 503, "{}", 15);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 300000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "optim_step"), 16);
    CHECK_INT(gap(&w, API "optim_step", 10), 1000); /* attempt 11 ended the first try */
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, API "optim_step", 11), "x-stainless-retry-count", v),
              "0");
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_409(void) /* R-059 R-112 */
{
    struct world w;
    tinker_training *t = open_training(&w);
    say(&w, API "save_weights", 409, "{\"detail\":\"exists\"}", -1);
    tinker_future *f = tinker_training_save_state(t, "x", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP); /* the name exists: final at once */
    CHECK_INT(w.err.http_status, 409);
    CHECK(strstr(w.err.message, "exists") != NULL);
    CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"exists\"}");
    CHECK_INT(fake_count(w.server, API "save_weights"), 1);
    CHECK(tinker_future_saved_path(f) == NULL);
    tinker_future_free(f);
    say(&w, API "optim_step", 409, "{}", 2); /* elsewhere it is retried */
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "optim_step"), 3);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_billing_pause(void) /* */
{
    struct world w;
    world_open(&w, "{\"billing_exception_max_pause_duration_sec\":12}", NULL);
    tinker_training *t = world_training(&w);
    say(&w, API "optim_step", 402, "{\"detail\":\"top up\"}", -1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 402);
    CHECK_INT(fake_count(w.server, API "optim_step"), 4); /* 0, 5, 10, 15 s: 15 > 12 */
    CHECK_INT(gap(&w, API "optim_step", 0), 5000);
    CHECK_INT(world_log_count(&w, "billing: paused"), 1); /* at most once a minute */
    CHECK_INT(world_log_count(&w, "billing: gave up"), 1);
    tinker_future_free(f);
    world_advance(&w, 400000); /* a new incident */
    fake_unscript(w.server, API "optim_step");
    say(&w, API "optim_step", 402, "{}", 1);
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(world_log_count(&w, "billing: paused"), 2);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_endless_billing_pause(void) /* */
{
    struct world w;
    world_open(&w, "{\"billing_exception_max_pause_duration_sec\":9223372036854775807}", NULL);
    tinker_training *t = world_training(&w);
    say(&w, API "optim_step", 402, "{}", 3);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "optim_step"), 4);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_401_is_final(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    say(&w, API "optim_step", 401, "{\"detail\":\"who\"}", -1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 401);
    CHECK_INT(w.err.retryable, 0);
    CHECK_INT(fake_count(w.server, API "optim_step"), 1);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_messages_of_error_bodies(void) /* R-054 R-173 */
{
    static const struct {
        const char *body, *part;
    } cases[] = { { "{\"detail\":\"bad rank\"}", "Error code: 422 - bad rank" },
                  { "  plain text \n", "plain text" },
                  { "", "Error code: 422" } };
    for (size_t i = 0; i < 3; i++) {
        struct world w;
        tinker_training *t = open_training(&w);
        say(&w, API "optim_step", 422, cases[i].body, 1);
        tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
        CHECK(strstr(w.err.message, cases[i].part) != NULL);
        CHECK(strstr(w.err.message, "optim_step on model sess:train:0") != NULL);
        tinker_future_free(f);
        tinker_training_free(t);
        world_close(&w);
    }
}

static void test_answers_that_are_no_json(void) /* R-055 R-083 */
{
    struct world w;
    tinker_training *t = open_training(&w);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .body = "<html>", .content_type = "text/html" });
    fake_script(
        w.server, API "optim_step",
        (struct fake_reply){ .body = "{\"request_id\":\"req-0\"}", .content_type = "text/plain" });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EPROTOCOL);
    CHECK_INT(fake_count(w.server, API "optim_step"), 1);
    tinker_future_free(f);
    f = tinker_training_optim_step(t, NULL, NULL);
    world_finish(&w, f, 1000);
    CHECK_INT(fake_count(w.server, API "optim_step"), 2);
    CHECK_STR(tinker_future_request_id(f), "req-0");
    tinker_future_free(f);
    say(&w, API "optim_step", 200, "{\"request_id\":7}", 1); /* a number is no id */
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EPROTOCOL);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_headers_without_end(void)
{
    enum { MUCH = 90000 };
    struct world w;
    char *headers = calloc(1, MUCH + 16);
    memset(headers, 'a', MUCH);
    memcpy(headers, "X-Much: ", 8);
    memcpy(headers + MUCH, "\r\n", 3);
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .body = "{}", .headers = headers, .times = -1 });
    tinker_future *f = tinker_training_optim_step(t, NULL, &w.err);
    CHECK_INT(world_finish(&w, f, 600000), TINKER_EPROTOCOL);
    CHECK(strstr(w.err.message, "headers of more than 65536 bytes") != NULL);
    CHECK_INT(fake_count(w.server, API "optim_step"), 1); /* the next would be no better */
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
    free(headers);
}

static void test_timeouts_by_phase(void) /* R-011 R-048 R-170 */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    fake_script(w.server, API "create_session", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_ETIMEDOUT);
    CHECK_INT(world_ms(&w), 60000);
    CHECK_INT(w.err.retryable, 1);
    CHECK(strstr(w.err.message, "waiting for the response") != NULL);
    tinker_future_free(f);
    world_close(&w);
}

static void test_dropped_and_truncated_answers(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .fault = FAKE_TRUNCATE, .body = "{}" });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "optim_step"), 2);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_refused_connections(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    /* Nobody listens there.  It is this machine, too, but not by a loopback name, which would make
     * the first refusal final. */
    o.base_url = "http://0.0.0.0:1";
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_future *f = tinker_service_request_lora(w.service, "tiny", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 400000), TINKER_ECONNECT);
    CHECK_INT(world_ms(&w), 300000); /* layer 2 around client/config gave up */
    CHECK_INT(w.err.http_status, 0);
    tinker_future_free(f);
    world_close(&w);
}

static void test_empty_400(void) /* */
{
    struct world w;
    tinker_training *t = open_training(&w);
    fake_script(w.server, API "optim_step", (struct fake_reply){ .status = 400 });
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(fake_count(w.server, API "optim_step"), 2);
    CHECK(fake_get(w.server, API "optim_step", 0)->conn !=
          fake_get(w.server, API "optim_step", 1)->conn);
    tinker_future_free(f);
    fake_script(w.server, API "optim_step",
                (struct fake_reply){
                    .status = 400, .body = "no length", .fault = FAKE_NO_LENGTH, .times = 40 });
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 400000), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 400);
    CHECK_INT(fake_count(w.server, API "optim_step"), 2 + 17); /* a budget of 16 */
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
}

static void test_redirects_keep_secrets(void) /* */
{
    struct world w, other;
    world_open_real(&other, NULL);
    tinker_service_options o;
    world_options(&w, &o);
    w.real_time = true;
    tinker_named_string header = { "CF-Access-Client-Secret", "cloudy-secret" };
    o.network.headers = &header;
    o.network.n_headers = 1;
    world_open(&w, NULL, &o);
    tinker_error err;
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    REQUIRE(t);
    char location[128];
    snprintf(location, sizeof(location), "Location: %s/api/v1/optim_step\r\n",
             fake_server_url(other.server));
    fake_script(w.server, API "optim_step",
                (struct fake_reply){ .status = 307, .headers = location });
    tinker_future *f = tinker_training_optim_step(t, NULL, &err);
    CHECK(fake_await(other.server, API "optim_step", 1));
    const struct fake_request *here = fake_get(w.server, API "optim_step", 0);
    const struct fake_request *there = fake_get(other.server, API "optim_step", 0);
    char v[512];
    REQUIRE(here && there);
    CHECK_STR(fake_header(here, "X-API-Key", v), "tml-0123456789abcdef");
    CHECK_STR(fake_header(here, "CF-Access-Client-Secret", v), "cloudy-secret");
    CHECK(fake_header(there, "X-API-Key", v) == NULL);
    CHECK(fake_header(there, "CF-Access-Client-Secret", v) == NULL);
    CHECK_STR(there->method, "POST");
    CHECK_STR(there->body, here->body);
    tinker_future_free(f);
    tinker_training_free(t);
    world_close(&w);
    world_close(&other);
}

int main(void)
{
    RUN(test_layer_1_attempts_and_delays);
    RUN(test_layer_1_jitter_shortens);
    RUN(test_statuses_of_layer_1);
    RUN(test_x_should_retry);
    RUN(test_retry_after);
    RUN(test_the_wait_that_was_asked_for);
    RUN(test_layer_2_delays_and_new_keys);
    RUN(test_layers_multiply);
    RUN(test_409);
    RUN(test_billing_pause);
    RUN(test_endless_billing_pause);
    RUN(test_401_is_final);
    RUN(test_messages_of_error_bodies);
    RUN(test_answers_that_are_no_json);
    RUN(test_headers_without_end);
    RUN(test_timeouts_by_phase);
    RUN(test_dropped_and_truncated_answers);
    RUN(test_refused_connections);
    RUN(test_empty_400);
    RUN(test_redirects_keep_secrets);
    return tap_done();
}
