/* Telemetry: batches, order, failures, what is in the events and what must not be. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "client/session/user_agent.h"
#include "client/io/runtime.h"
#include "client/observe/telemetry.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

#define TEL API "telemetry"

static void open_on(struct world *w, const char *config)
{
    tinker_service_options o;
    world_options(w, &o);
    o.telemetry.enabled = 1;
    world_open(w, config, &o);
}

static int count(const struct fake_request *r, const char *part)
{
    int n = 0;
    for (const char *p = r ? r->body : ""; (p = strstr(p, part)) != NULL; p++)
        n++;
    return n;
}

static void test_first_batch(void) /* R-152 R-153 R-155 */
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    CHECK_INT(fake_count(w.server, TEL), 0);
    world_advance(&w, 10000);
    const struct fake_request *r = fake_get(w.server, TEL, 0);
    REQUIRE(r);
    CHECK_INT(world_at(&w, TEL, 0), 10000);
    char v[512], want[128];
    CHECK_STR(fake_header(r, "x-stainless-read-timeout", v), "5.0");
    CHECK_INT(count(r, "\"event\":\"SESSION_START\""), 1);
    CHECK_INT(fake_json_int(r, "event_session_index"), 0);
    CHECK(strstr(r->body, "\"severity\":\"INFO\",\"timestamp\":\"2026-01-01T00:00:0") != NULL);
    char uuid[37];
    user_agent_process_uuid(uuid);
    snprintf(want, sizeof(want),
             "\"platform\":\"Linux\",\"sdk_version\":\"0.25.0\",\"session_id\":\"sess\",\"process_"
             "uuid\":\"%s\"}",
             uuid);
    CHECK(strstr(r->body, want) != NULL);
    world_advance(&w, 60000);
    CHECK_INT(fake_count(w.server, TEL), 1); /* nothing new, nothing sent */
    tinker_training_free(t);
    world_close(&w);
}

static void test_sending_that_trickles(void)
{
    struct world w;
    open_on(&w, NULL);
    fake_script(w.server, TEL, (struct fake_reply){ .fault = FAKE_DRIP });
    tinker_training *t = world_training(&w);
    world_advance(&w, 25000);
    CHECK_INT(world_at(&w, TEL, 0), 10000);
    int64_t again = world_at(&w, TEL, 1); /* 10 s, and a delay of layer 1 */
    CHECK(again > 20000 && again < 21000);
    tinker_training_free(t);
    world_close(&w);
}

static void test_off(void) /* R-009 R-151 R-166 */
{
    struct world w;
    world_open(&w, NULL, NULL); /* telemetry -1 */
    tinker_training *t = world_training(&w);
    CHECK_INT(tinker_service_log_event(w.service, "x", NULL, TINKER_SEVERITY_INFO), 0);
    world_advance(&w, 60000);
    CHECK_INT(fake_count(w.server, TEL), 0);
    tinker_training_free(t);
    world_close(&w);
    CHECK_INT(fake_count == NULL, 0);
}

static void test_batches(void) /* R-152 R-157 R-220 */
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    for (int i = 0; i < 99; i++) /* with SESSION_START: 100 */
        CHECK(tinker_service_log_event(w.service, "mine", "{\"a\":null}", TINKER_SEVERITY_DEBUG));
    world_settle(&w);
    CHECK_INT(fake_count(w.server, TEL), 1); /* a full batch leaves at once */
    CHECK_INT(count(fake_get(w.server, TEL, 0), "\"event_id\""), 100);
    fake_script(w.server, TEL,
                (struct fake_reply){ .by_handler = true, .delay_ms = 100, .times = -1 });
    for (int i = 0; i < 255; i++)
        tinker_service_log_event(w.service, "mine", NULL, TINKER_SEVERITY_INFO);
    world_advance(&w, 5000);
    CHECK_INT(fake_count(w.server, TEL), 4);
    CHECK_INT(count(fake_get(w.server, TEL, 1), "\"event_id\"") +
                  count(fake_get(w.server, TEL, 2), "\"event_id\"") +
                  count(fake_get(w.server, TEL, 3), "\"event_id\""),
              255);
    CHECK_INT(fake_json_int(fake_get(w.server, TEL, 1), "event_session_index"), 100); /* in order */
    CHECK(strstr(fake_get(w.server, TEL, 0)->body, "\"event\":\"GENERIC_EVENT\"") != NULL);
    CHECK(strstr(fake_get(w.server, TEL, 0)->body, "\"event_data\":{\"a\":null}") != NULL);
    CHECK(!tinker_service_log_event(w.service, "mine", "[1]", TINKER_SEVERITY_INFO));
    tinker_training_free(t);
    fake_unscript(w.server, TEL);
    world_close(&w);
}

static void test_full_queue(void) /* */
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    fake_script(w.server, TEL, (struct fake_reply){ .fault = FAKE_HANG });
    int queued = 0;
    for (int i = 0; i < 10100; i++)
        queued += tinker_service_log_event(w.service, "e", NULL, TINKER_SEVERITY_INFO);
    CHECK_INT(queued, 9999); /* and SESSION_START */
    world_settle(&w);
    CHECK(world_log_count(&w, "queue is full") > 0);
    CHECK_INT(fake_json_int(fake_get(w.server, TEL, 0), "event_session_index"), 0);
    fake_release(w.server, TEL);
    world_advance(&w, 1000);
    tinker_training_free(t);
    world_close(&w);
}

static void test_failures_are_repeated(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.telemetry.enabled = 1;
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    say(&w, TEL, 500, "{}", 3);
    say(&w, TEL, 401, "{}", 1);
    say(&w, TEL, 200, "{\"status\":\"lost\"}", 1);
    world_advance(&w, 20000);
    CHECK_INT(fake_count(w.server, TEL), 6);
    for (size_t i = 0; i < 5; i++) {
        CHECK_INT(world_at(&w, TEL, i), 10000 + 1000 * (int64_t)i);
        CHECK_STR(fake_get(w.server, TEL, i)->body, fake_get(w.server, TEL, 5)->body);
    }
    CHECK_INT(world_log_count(&w, "telemetry not delivered"), 5);
    tinker_training_free(t);
    world_close(&w);
    world_options(&w, &o);
    o.telemetry.enabled = 1;
    o.network.max_retries = -1;
    o.telemetry.max_retries = 2;
    world_open(&w, NULL, &o);
    t = world_training(&w);
    say(&w, TEL, 500, "{}", 3);
    world_advance(&w, 20000);
    CHECK_INT(fake_count(w.server, TEL), 3); /* then dropped */
    CHECK_INT(world_log_count(&w, "given up"), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_errors_are_captured(void) /* R-160 R-161 R-162 */
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    fake_script(w.server, TEL, (struct fake_reply){ .fault = FAKE_HANG });
    say(&w, API "optim_step", 422, "{\"detail\":\"bad\"}", 1);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100), TINKER_EHTTP); /* at once, although telemetry stalls */
    CHECK_INT(world_ms(&w), 0);
    tinker_future_free(f);
    world_settle(&w);
    const struct fake_request *r = fake_get(w.server, TEL, 0);
    REQUIRE(r);
    CHECK_INT(count(r, "\"event_name\":\"user_error\""), 1);
    CHECK(strstr(r->body, "\"error_type\":\"UnprocessableEntityError\"") != NULL);
    CHECK(strstr(r->body, "\"status_code\":422") != NULL);
    CHECK_INT(count(r, "\"event\":\"SESSION_END\""), 1);
    int64_t next = 0;
    for (const char *p = r->body; (p = strstr(p, "\"event_session_index\":")) != NULL; next++) {
        p += strlen("\"event_session_index\":");
        CHECK_INT(strtoll(p, NULL, 10), next); /* dense, the end of the session too */
    }
    CHECK(next >= 3);
    CHECK_INT(world_log_count(&w, "Exception logged for session ID: sess"), 1);
    fake_release(w.server, TEL);
    say(&w, API "retrieve_future", 200, "{\"error\":\"boom\",\"category\":\"server\"}", 1);
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100), TINKER_EREQUEST);
    tinker_future_free(f);
    world_advance(&w, 11000);
    size_t last = fake_count(w.server, TEL) - 1;
    CHECK_INT(count(fake_get(w.server, TEL, last), "\"event\":\"UNHANDLED_EXCEPTION\""), 1);
    CHECK(strstr(fake_get(w.server, TEL, last)->body, "\"error_type\":\"RequestFailedError\"") !=
          NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void test_what_the_program_says_is_redacted(void)
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_error mine = { .status = TINKER_ESTATE,
                          .message = "no answer for tml-0123456789 in Oslo" };
    CHECK(tinker_service_log_error(w.service, &mine, 0));
    CHECK_STR(mine.message, "no answer for tml-0123456789 in Oslo"); /* the caller's stays */
    CHECK(tinker_service_log_event(w.service, "e", "{\"k\":\"tml-x\",\"n\":[1,\"tml-y\"]}",
                                   TINKER_SEVERITY_INFO));
    CHECK(tinker_service_log_event(w.service, "long", "{\"url\":\"http://h/?sig=abcdef&x=1\"}",
                                   TINKER_SEVERITY_INFO));
    world_advance(&w, 11000);
    size_t n = fake_count(w.server, TEL), redacted = 0;
    for (size_t i = 0; i < n; i++) {
        const struct fake_request *r = fake_get(w.server, TEL, i);
        CHECK_INT(count(r, "tml-") + count(r, "abcdef"), 0);
        redacted += (size_t)count(r, "answer for [REDACTED] in Oslo") +
                    (size_t)count(r, "{\"k\":\"[REDACTED]\",\"n\":[1,\"[REDACTED]\"]}") +
                    (size_t)count(r, "sig=[REDACTED]&x=1\"}");
    }
    CHECK_INT(redacted, 3);
    tinker_training_free(t);
    world_close(&w);
}

static void test_user_errors(void) /* R-162 R-172 */
{
    static const struct {
        int status, http, category, want;
    } cases[] = { { TINKER_EHTTP, 400, 0, 1 },
                  { TINKER_EHTTP, 402, 0, 1 },
                  { TINKER_EHTTP, 409, 0, 1 },
                  { TINKER_EHTTP, 429, 0, 1 },
                  { TINKER_EHTTP, 408, 0, 0 },
                  { TINKER_EHTTP, 500, 0, 0 },
                  { TINKER_ECONNECT, 0, 0, 0 },
                  { TINKER_EREQUEST, 0, TINKER_CATEGORY_USER, 1 },
                  { TINKER_EREQUEST, 0, TINKER_CATEGORY_SERVER, 0 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_error e = { .status = (tinker_status)cases[i].status,
                           .http_status = cases[i].http,
                           .category = cases[i].category };
        CHECK_INT(telemetry_is_user_error(&e), cases[i].want);
    }
    tinker_error e = { .status = TINKER_EHTTP, .http_status = 429 };
    CHECK(!tinker_error_is_user(&e)); /* the callers' predicate differs */
    e.http_status = 404;
    CHECK(tinker_error_is_user(&e));
    e.http_status = 410;
    CHECK(!tinker_error_is_user(&e));
    e = (tinker_error){ .status = TINKER_EREQUEST, .category = TINKER_CATEGORY_USER };
    CHECK(tinker_error_is_user(&e));
    e = (tinker_error){ .status = TINKER_ECONNECT };
    CHECK(!tinker_error_is_user(&e));
}

static void test_names_of_errors(void) /* R-161 R-170 */
{
    static const struct {
        tinker_status status;
        int http;
        const char *want;
    } cases[] = {
        { TINKER_EHTTP, 400, "BadRequestError" },
        { TINKER_EHTTP, 401, "AuthenticationError" },
        { TINKER_EHTTP, 402, "APIStatusError" },
        { TINKER_EHTTP, 403, "PermissionDeniedError" },
        { TINKER_EHTTP, 404, "NotFoundError" },
        { TINKER_EHTTP, 408, "APIStatusError" },
        { TINKER_EHTTP, 409, "ConflictError" },
        { TINKER_EHTTP, 422, "UnprocessableEntityError" },
        { TINKER_EHTTP, 429, "RateLimitError" },
        { TINKER_EHTTP, 500, "InternalServerError" },
        { TINKER_EHTTP, 503, "InternalServerError" },
        { TINKER_ECONNECT, 0, "APIConnectionError" },
        { TINKER_ETIMEDOUT, 0, "APITimeoutError" },
        { TINKER_EPROTOCOL, 0, "APIResponseValidationError" },
        { TINKER_EREQUEST, 0, "RequestFailedError" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tinker_error e = { .status = cases[i].status, .http_status = cases[i].http };
        CHECK_STR(telemetry_error_type(&e), cases[i].want);
    }
}

/* Does the first event of this name in the batches have the key in its data? */
static bool event_has(const char *batches, const char *name, const char *key)
{
    char text[128];
    snprintf(text, sizeof(text), "\"event_name\":\"%s\"", name);
    const char *from = strstr(batches, text),
               *data = from ? strstr(from, "\"event_data\":{") : NULL;
    if (!data)
        return false;
    const char *next = strstr(data, "\"event_id\""); /* of the next event */
    snprintf(text, sizeof(text), "\"%s\":", key);
    const char *at = strstr(data, text);
    return at && (!next || at < next);
}

static void check_keys(const char *batches)
{
    static const char call[] = "InternalClientHolder.execute_with_retries.exception",
                      sample[] = "RetryHandler.execute.exception",
                      status[] = "APIFuture.result_async.api_status_error",
                      broken[] = "APIFuture.result_async.connection_error";
    static const char *const tries[] = { "func",           "exception",    "exception_type",
                                         "status_code",    "start_time",   "is_user_error",
                                         "attempt_count",  "current_time", "elapsed_time",
                                         "exception_stack" };
    static const char *const polls[] = { "request_id",
                                         "request_type",
                                         "status_code",
                                         "detail",
                                         "kind",
                                         "should_retry",
                                         "is_user_error",
                                         "exception",
                                         "iteration",
                                         "exception_type",
                                         "elapsed_time",
                                         "bad_request_retries",
                                         "connection_error_retries" };
    for (size_t i = 0; i < sizeof(tries) / sizeof(*tries); i++)
        if (!event_has(batches, call, tries[i]) || !event_has(batches, sample, tries[i]))
            TAP_FAIL("an event of a try has no %s", tries[i]);
    CHECK(event_has(batches, call, "is_retryable") && event_has(batches, sample, "should_retry"));
    for (size_t i = 0; i < sizeof(polls) / sizeof(*polls); i++)
        if (!event_has(batches, status, polls[i]) || !event_has(batches, broken, polls[i]))
            TAP_FAIL("an event of a poll has no %s", polls[i]);
}

static void test_events_of_the_machines(void) /* R-057 R-064 R-163 */
{
    struct world w;
    open_on(&w, NULL);
    tinker_sampler *s = world_sampler(&w);
    tinker_training *t = world_training(&w);
    say(&w, API "save_weights", 503, "{}", 1);
    tinker_future *f = tinker_training_save_state(t, "x", NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    tinker_future_free(f);
    say(&w, API "retrieve_future", 410, "{}", 1);
    fake_script(w.server, API "retrieve_future",
                (struct fake_reply){ .fault = FAKE_TRUNCATE, .body = "{" });
    f = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_OK);
    tinker_future_free(f);
    say(&w, API "retrieve_future", 404, "{\"detail\":\"for tml-0123456789abcdef\"}", 1);
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_EHTTP);
    tinker_future_free(f);
    fake_script(w.server, API "retrieve_future",
                (struct fake_reply){
                    .body = "\x0a\xff\xff", .len = 3, .content_type = "application/x-protobuf" });
    f = tinker_sampler_sample(s, fake_prompt(2), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_EPROTOCOL);
    tinker_future_free(f);
    say(&w, API "retrieve_future", 200, "{\"metrics\":5}", 1);
    f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_EPROTOCOL);
    tinker_future_free(f);
    fake_script(w.server, API "retrieve_future", (struct fake_reply){ .fault = FAKE_HANG });
    f = tinker_training_optim_step(t, NULL, NULL);
    tinker_future_set_deadline(f, 1000);
    CHECK_INT(world_finish(&w, f, 5000), TINKER_ETIMEDOUT);
    tinker_future_free(f);
    world_advance(&w, 11000);
    static const char *const names[] = { "InternalClientHolder.execute_with_retries.exception",
                                         "RetryHandler.execute.exception",
                                         "APIFuture.result_async.api_status_error",
                                         "APIFuture.result_async.connection_error",
                                         "APIFuture.result_async.proto_deserialization_error",
                                         "APIFuture.result_async.validation_error",
                                         "APIFuture.result_async.timeout" };
    static const char *const keys[] = { "\"func\"",
                                        "\"is_retryable\"",
                                        "\"should_retry\"",
                                        "\"iteration\"",
                                        "\"elapsed_time\"",
                                        "\"bad_request_retries\"",
                                        "\"connection_error_retries\"",
                                        "\"kind\":\"fatal\"",
                                        "\"kind\":\"retryable_exception\"",
                                        "\"proto_bytes_len\":3",
                                        "\"response_headers\"",
                                        "\"request_headers\":\"[REDACTED]\"" };
    char *all = calloc(1, 1 << 20);
    for (size_t i = 0; i < fake_count(w.server, TEL); i++)
        strncat(all, fake_get(w.server, TEL, i)->body, (1 << 20) - strlen(all) - 1);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strstr(all, names[i]))
            TAP_FAIL("no event %s", names[i]);
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (!strstr(all, keys[i]))
            TAP_FAIL("no key %s", keys[i]);
    check_keys(all);
    CHECK(strstr(all, "0123456789abcdef") == NULL); /* the key, in no event */
    free(all);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* The reason of a failure is the service's: it may name a key or a signed address. */
static void test_failed_requests_without_secrets(void) /* R-072 R-163 */
{
    static const char *const categories[] = { "user", "server" };
    static const char *const severities[] = { "\"severity\":\"WARNING\"",
                                              "\"severity\":\"ERROR\"" };
    for (size_t i = 0; i < 2; i++) {
        struct world w;
        open_on(&w, NULL);
        tinker_training *t = world_training(&w);
        char body[256];
        snprintf(body, sizeof(body),
                 "{\"error\":\"tml-0123456789abcdef: http://h/a?sig=abcdef&x=1 is gone\","
                 "\"category\":\"%s\"}",
                 categories[i]);
        say(&w, API "retrieve_future", 200, body, 1);
        tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
        CHECK_INT(world_finish(&w, f, 1000), TINKER_EREQUEST);
        tinker_future_free(f);
        world_settle(&w);
        const struct fake_request *r = fake_get(w.server, TEL, 0);
        REQUIRE(r);
        const char *event = strstr(r->body, "\"APIFuture.result_async.application_error\"");
        REQUIRE(event);
        CHECK(strstr(event, "\"error\":\"[REDACTED]: http://h/a?sig=[REDACTED]&x=1 is gone\"") !=
              NULL);
        CHECK_INT(count(r, "0123456789abcdef") + count(r, "abcdef&"), 0);
        CHECK(count(r, severities[i]) > 0);
        tinker_training_free(t);
        world_close(&w);
    }
}

static void test_close_says_goodbye(void) /* R-038 R-165 */
{
    struct world w;
    open_on(&w, NULL);
    tinker_training *t = world_training(&w);
    tinker_training_free(t);
    tinker_service_free(w.service);
    w.service = NULL;
    CHECK_INT(fake_count(w.server, TEL), 1);
    const struct fake_request *r = fake_get(w.server, TEL, 0);
    CHECK_INT(count(r, "\"event\":\"SESSION_START\""), 1);
    CHECK_INT(count(r, "\"event\":\"SESSION_END\""), 1);
    CHECK(strstr(r->body, "\"duration\":\"0:00:00\"") != NULL);
    world_close(&w);
}

static void test_close_is_bounded(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    w.real_time = true;
    o.telemetry.enabled = 1;
    o.limits.close_ms = 200;
    world_open(&w, NULL, &o);
    tinker_error err;
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    REQUIRE(t);
    fake_script(w.server, TEL, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_training_free(t);
    int64_t before = clock_now_ms(clock_real());
    tinker_service_free(w.service);
    w.service = NULL;
    int64_t took = clock_now_ms(clock_real()) - before;
    CHECK(took >= 150 && took < 3000);
    world_close(&w);
}

static void test_rest_programs(void) /* */
{
    struct world w;
    open_on(&w, NULL);
    tinker_rest *r = tinker_service_create_rest(w.service, NULL);
    tinker_future *f = tinker_rest_get_training_run(r, "nope", TINKER_SCOPE_OWNED, NULL);
    CHECK_INT(world_finish(&w, f, 1000), TINKER_EHTTP);
    world_settle(&w);
    const struct fake_request *q = fake_get(w.server, TEL, 0);
    REQUIRE(q);
    CHECK(strstr(q->body, "\"session_id\":\"sessionless-") != NULL);
    CHECK_INT(count(q, "SESSION_START") + count(q, "SESSION_END"), 0);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

static void flush_twice(void *arg)
{
    for (int i = 0; i < 2; i++) /* the first has not begun when the second comes */
        tinker_service_flush_telemetry(arg, 0);
}

static void test_flushes_at_once(void) /* */
{
    struct world w;
    open_on(&w, NULL);
    CHECK_INT(tinker_service_flush_telemetry(w.service, 0), 1); /* nothing has begun */
    tinker_training *t = world_training(&w);
    tinker_service_flush_telemetry(w.service, 0); /* it may be done already when this looks */
    world_settle(&w);
    CHECK_INT(fake_count(w.server, TEL), 1);
    CHECK(tinker_service_log_event(w.service, "mine", NULL, TINKER_SEVERITY_INFO));
    runtime_sync(runtime_current(), flush_twice, w.service);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, TEL), 2);
    CHECK_INT(count(fake_get(w.server, TEL, 1), "\"event_id\""), 1);
    world_advance(&w, 30000); /* the timer goes on */
    CHECK_INT(fake_count(w.server, TEL), 2);
    CHECK(tinker_service_log_event(w.service, "mine", NULL, TINKER_SEVERITY_INFO));
    world_advance(&w, 10000);
    CHECK_INT(fake_count(w.server, TEL), 3);
    tinker_training_free(t);
    world_close(&w);
}

static void *log_some(void *arg)
{
    for (int i = 0; i < 50; i++)
        tinker_service_log_event(arg, "t", NULL, TINKER_SEVERITY_INFO);
    return NULL;
}

static void test_any_thread_may_log(void) /* R-164 R-220 */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    w.real_time = true;
    o.telemetry.enabled = 1;
    world_open(&w, NULL, &o);
    tinker_error err;
    tinker_training *t = tinker_service_create_lora(w.service, "tiny", NULL, 60000, &err);
    REQUIRE(t);
    pthread_t threads[16];
    for (int i = 0; i < 16; i++)
        pthread_create(&threads[i], NULL, log_some, w.service);
    for (int i = 0; i < 16; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(tinker_service_flush_telemetry(w.service, 10000), 1);
    static char seen[801];
    int64_t next = 0;
    for (size_t i = 0; i < fake_count(w.server, TEL); i++) {
        const char *p = fake_get(w.server, TEL, i)->body;
        while ((p = strstr(p, "\"event_session_index\":")) != NULL) {
            p += strlen("\"event_session_index\":");
            CHECK_INT(strtoll(p, NULL, 10), next++); /* dense, and in order */
        }
    }
    (void)seen;
    CHECK_INT(next, 801);
    CHECK(tinker_service_log_error(
        w.service, &(tinker_error){ .status = TINKER_ESTATE, .message = "mine" }, 0));
    CHECK_INT(tinker_service_flush_telemetry(w.service, 10000), 1);
    tinker_training_free(t);
    world_close(&w);
}

static void test_uuid_of_the_process(void) /* */
{
    char a[37], b[37];
    user_agent_process_uuid(a);
    user_agent_process_uuid(b);
    CHECK_STR(a, b);
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        user_agent_process_uuid(b);
        _exit(write(fd[1], b, 37) == 37 ? 0 : 1);
    }
    CHECK(read(fd[0], b, 37) == 37);
    waitpid(pid, NULL, 0);
    CHECK(strcmp(a, b) != 0);
    close(fd[0]);
    close(fd[1]);
}

int main(void)
{
    RUN(test_first_batch);
    RUN(test_sending_that_trickles);
    RUN(test_off);
    RUN(test_batches);
    RUN(test_full_queue);
    RUN(test_failures_are_repeated);
    RUN(test_errors_are_captured);
    RUN(test_what_the_program_says_is_redacted);
    RUN(test_user_errors);
    RUN(test_names_of_errors);
    RUN(test_events_of_the_machines);
    RUN(test_failed_requests_without_secrets);
    RUN(test_close_says_goodbye);
    RUN(test_close_is_bounded);
    RUN(test_rest_programs);
    RUN(test_flushes_at_once);
    RUN(test_any_thread_may_log);
    RUN(test_uuid_of_the_process);
    return tap_done();
}
