/* Options of single calls, and the answers behind results: see <tinker/extra/http.h>. */
#include <pthread.h>
#include <stdatomic.h>
#include <tinker/extra/events.h>
#include <tinker/extra/http.h>
#include <tinker/extra/stream.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define HEALTH   API "healthz"
#define SESSIONS API "sessions"

/* Let w->service be a handle with options, until without_options(). */
static tinker_service *plain;

static void with_options(struct world *w, const tinker_call_options *o)
{
    plain = w->service;
    w->service = tinker_service_with(plain, o, &w->err);
    if (!w->service)
        TAP_FAIL("tinker_service_with: %s", w->err.message);
}

static void without_options(struct world *w)
{
    tinker_service_free(w->service);
    w->service = plain;
}

static tinker_status ask(struct world *w)
{
    tinker_future *f = tinker_service_check_health(w->service, &w->err);
    tinker_status s = world_finish(w, f, 1000000);
    tinker_future_free(f);
    return s;
}

static const struct fake_request *last(struct world *w, const char *path)
{
    return fake_get(w->server, path, fake_count(w->server, path) - 1);
}

/* ---- what is refused -------------------------------------------------------------------- */

static tinker_status check(tinker_service *s, const tinker_call_options *o, tinker_error *err)
{
    tinker_service *derived = tinker_service_with(s, o, err);
    tinker_service_free(derived);
    return derived ? TINKER_OK : err->status;
}

static tinker_status refusal(tinker_service *s, tinker_error *err, const char *name,
                             const char *value)
{
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    tinker_named_string h = { name, value };
    o.headers = &h;
    o.n_headers = 1;
    return check(s, &o, err);
}

static void test_headers_are_checked(void)
{
    static const char *const bad_names[] = {
        "",        "X Mine",    "X-Mine:",        "X\r\nY",        "X-\x01",
        "Host",    "host",      "Content-Length", "content-type",  "Transfer-Encoding",
        "Expect",  "X-API-Key", "Connection",     "X-Tinker-Any",  "x-stainless-retry-count",
        "Upgrade", "Accept",    "User-Agent",     "X-\xc3\xa4rger"
    };
    static const char *const bad_values[] = { "a\r\nX-API-Key: mine", "a\nb", "a\rb", "\x01",
                                              "\x7f" };
    tinker_error err;
    struct world w;
    world_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof(bad_names) / sizeof(*bad_names); i++)
        if (refusal(w.service, &err, bad_names[i], "1") != TINKER_EINVAL)
            TAP_FAIL("header \"%s\" is taken", bad_names[i]);
    for (size_t i = 0; i < sizeof(bad_values) / sizeof(*bad_values); i++) {
        CHECK_INT(refusal(w.service, &err, "X-Mine", bad_values[i]), TINKER_EINVAL);
        CHECK(strstr(err.message, "X-Mine") && !strstr(err.message, "mine"));
    }
    CHECK_INT(refusal(w.service, &err, "X-Idempotency-Key", "k"), TINKER_EINVAL);
    CHECK(strstr(err.message, "idempotency_key") != NULL);
    CHECK_INT(refusal(w.service, &err, "X-Mine", NULL), TINKER_EINVAL);
    CHECK_INT(refusal(w.service, &err, "X-Mine", ""), TINKER_OK);
    CHECK_INT(refusal(w.service, &err, "traceparent", "00-\t-"), TINKER_OK);
    CHECK_INT(refusal(w.service, &err, "Authorization", "Bearer x"), TINKER_OK);
    world_close(&w);
}

static void test_other_options_are_checked(void)
{
    tinker_error err;
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    tinker_named_string two[] = { { "X-A", "1" }, { "x-a", "2" } }, nameless = { "", "v" };
    o.headers = two;
    o.n_headers = 2;
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "twice") != NULL);
    static const char *const bodies[] = { "", "[1]", "{\"a\":1", "{\"a\":1}}", "{a:1}", "1" };
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        o = (tinker_call_options)TINKER_CALL_OPTIONS_INIT;
        o.extra_body = bodies[i];
        CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    }
    o = (tinker_call_options)TINKER_CALL_OPTIONS_INIT;
    o.query = &nameless;
    o.n_query = 1;
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    o.query = NULL;
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "query is NULL") != NULL);
    o = (tinker_call_options)TINKER_CALL_OPTIONS_INIT;
    o.timeout_ms = -1;
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    o.timeout_ms = 0;
    o.idempotency_key = "a\nb";
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    o.idempotency_key = "";
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    o.size = 0;
    CHECK_INT(check(w.service, &o, &err), TINKER_EINVAL);
    CHECK_INT(check(w.service, NULL, &err), TINKER_OK);
    world_close(&w);
}

/* ---- what is sent ------------------------------------------------------------------------ */

static void test_headers_and_query(void)
{
    struct world w;
    tinker_service_options so;
    world_options(&w, &so);
    tinker_named_string theirs[] = { { "X-Tenant", "service" }, { "X-Kept", "service" } };
    tinker_named_string common = { "a", "1" };
    so.network.headers = theirs;
    so.network.n_headers = 2;
    so.network.query = &common;
    so.network.n_query = 1;
    world_open(&w, NULL, &so);
    char name[] = "x-tenant", value[] = "call";
    tinker_named_string mine = { name, value }, query[] = { { "b c", "d&e" }, { "f", "g" } };
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.headers = &mine;
    o.n_headers = 1;
    o.query = query;
    o.n_query = 2;
    with_options(&w, &o);
    memset(name, 'z', sizeof(name) - 1); /* they were copied */
    memset(value, 'z', sizeof(value) - 1);
    CHECK_INT(ask(&w), TINKER_OK);
    char v[512];
    CHECK_STR(last(&w, HEALTH)->path, HEALTH "?a=1&b+c=d%26e&f=g");
    CHECK_STR(fake_header(last(&w, HEALTH), "x-tenant", v), "call");
    CHECK_STR(fake_header(last(&w, HEALTH), "x-kept", v), "service");
    CHECK(!strstr(strstr(last(&w, HEALTH)->headers, "service") + 1, "service"));
    tinker_service *derived = w.service;
    w.service = tinker_service_with(derived, NULL, &w.err); /* these options hold, alone */
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_STR(last(&w, HEALTH)->path, HEALTH "?a=1");
    CHECK_STR(fake_header(last(&w, HEALTH), "x-tenant", v), "service");
    tinker_service_free(w.service);
    w.service = derived;
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_STR(fake_header(last(&w, HEALTH), "x-tenant", v), "call");
    without_options(&w);
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK_STR(last(&w, HEALTH)->path, HEALTH "?a=1");
    CHECK_STR(fake_header(last(&w, HEALTH), "x-tenant", v), "service");
    world_close(&w);
}

/* Clients made from a derived service have its options; the original service has not, and does not
 * notice that the derived one is freed. */
static void test_clients_carry_options(void)
{
    struct world w;
    char v[512];
    world_open(&w, NULL, NULL);
    tinker_named_string mine = { "X-Mine", "1" };
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.headers = &mine;
    o.n_headers = 1;
    with_options(&w, &o);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    tinker_rest *r = tinker_service_create_rest(w.service, &w.err);
    without_options(&w);
    REQUIRE(t && s);
    tinker_future *f[2] = { tinker_training_optim_step(t, NULL, &w.err),
                            tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &w.err) };
    for (int i = 0; i < 2; i++) {
        CHECK_INT(world_finish(&w, f[i], 100000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    static const char *const paths[] = { API "create_model", API "optim_step", API "asample" };
    for (size_t i = 0; i < 3; i++)
        CHECK_STR(fake_header(last(&w, paths[i]), "X-Mine", v), "1");
    CHECK_INT(ask(&w), TINKER_OK);
    CHECK(fake_header(last(&w, HEALTH), "X-Mine", v) == NULL);
    tinker_rest_free(r);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

/* A derived client shares the numbers of its original, and may go first or last. */
static void test_derived_clients_share_state(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w), *derived = tinker_training_with(t, NULL, &w.err);
    tinker_sampler *s = world_sampler(&w), *other = tinker_sampler_with(s, NULL, &w.err);
    REQUIRE(derived && other);
    CHECK_STR(tinker_training_model_id(derived), tinker_training_model_id(t));
    CHECK_STR(tinker_sampler_id(other), tinker_sampler_id(s));
    tinker_future *f[4] = { tinker_training_optim_step(t, NULL, &w.err),
                            tinker_training_optim_step(derived, NULL, &w.err),
                            tinker_sampler_sample(s, fake_prompt(3), NULL, NULL, &w.err),
                            tinker_sampler_sample(other, fake_prompt(3), NULL, NULL, &w.err) };
    tinker_training_free(t); /* the derived ones keep what they share */
    tinker_sampler_free(s);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(world_finish(&w, f[i], 100000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    CHECK(strstr(fake_get(w.server, API "optim_step", 0)->body, "\"seq_id\":1") != NULL);
    CHECK(strstr(fake_get(w.server, API "optim_step", 1)->body, "\"seq_id\":2") != NULL);
    CHECK(strcmp(fake_get(w.server, API "asample", 0)->body,
                 fake_get(w.server, API "asample", 1)->body) != 0);
    tinker_training_free(derived);
    tinker_sampler_free(other);
    world_close(&w);
}

static void test_keys_and_bodies(void)
{
    struct world w;
    world_open(&w, "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}", NULL);
    tinker_training *t = world_training(&w);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.idempotency_key = "mine";
    o.extra_body = " {\"note\":[1,{\"x\":2}]} ";
    tinker_training *derived = tinker_training_with(t, &o, &w.err);
    tinker_datum *data = fake_data(2, 3);
    tinker_future *f[2] = { tinker_training_forward_backward(derived, data, 2, &fake_loss, &w.err),
                            tinker_training_optim_step(derived, NULL, &w.err) };
    tinker_training_free(derived);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(world_finish(&w, f[i], 10000), TINKER_OK);
        tinker_future_free(f[i]);
    }
    char v[512];
    CHECK_STR(fake_header(fake_get(w.server, API "forward_backward", 0), "X-Idempotency-Key", v),
              "mine");
    CHECK_STR(fake_header(fake_get(w.server, API "forward_backward", 1), "X-Idempotency-Key", v),
              "mine-0.1");
    const struct fake_request *step = last(&w, API "optim_step");
    CHECK_STR(fake_header(step, "X-Idempotency-Key", v), "mine-1.0");
    CHECK(strstr(step->body, ",\"note\":[1,{\"x\":2}]}") != NULL);
    CHECK_STR(strrchr(step->body, ']'), "]}");
    const struct fake_request *poll = last(&w, API "retrieve_future");
    CHECK(strncmp(fake_header(poll, "X-Idempotency-Key", v), "stainless-", 10) == 0);
    CHECK(strstr(poll->body, "note") == NULL);
    fake_data_free(data, 2);
    tinker_training_free(t);
    world_close(&w);
}

/* A body of the program's own may have blanks anywhere. */
static void test_bodies_with_blanks(void)
{
    static const char *const bodies[][2] = { { "{ }", "{ \"b\":2}" },
                                             { "{}\n", "{\"b\":2}" },
                                             { " {\"a\":1 } \r\n", " {\"a\":1 ,\"b\":2}" },
                                             { "[{}]", "[{}]" },
                                             { "", "" } };
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.extra_body = "{\"b\":2}";
    with_options(&w, &o);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        tinker_future *f = tinker_service_call(w.service, "POST", HEALTH, bodies[i][0],
                                               strlen(bodies[i][0]), NULL, &w.err);
        CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
        CHECK_STR(last(&w, HEALTH)->body, bodies[i][1]);
        tinker_future_free(f);
    }
    without_options(&w);
    world_close(&w);
}

/* ---- time and retries --------------------------------------------------------------------- */

static void test_max_retries(void)
{
    for (int max = -1; max <= 3; max += 2) {
        struct world w;
        world_open(&w, NULL, NULL);
        tinker_sampler *s = world_sampler(&w);
        say(&w, HEALTH, 503, "{}", -1);
        say(&w, API "asample", 503, "{}", -1);
        tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
        o.max_retries = max;
        int want = max < 0 ? 1 : max + 1;
        with_options(&w, &o);
        CHECK_INT(ask(&w), TINKER_EHTTP);
        CHECK_INT(w.err.http_status, 503);
        CHECK_INT(fake_count(w.server, HEALTH), want);
        without_options(&w);
        tinker_sampler *derived = tinker_sampler_with(s, &o, &w.err);
        tinker_future *f = tinker_sampler_sample(derived, fake_prompt(3), NULL, NULL, &w.err);
        tinker_sampler_free(derived);
        CHECK_INT(world_finish(&w, f, 1000000), TINKER_EHTTP);
        CHECK_INT(fake_count(w.server, API "asample"), want);
        tinker_future_free(f);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

/* Pauses that the service asks for are no way around the number. */
static void test_max_retries_in_pauses(void)
{
    static const int statuses[] = { 429, 402 };
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = -1;
    for (size_t i = 0; i < 2; i++) {
        struct world w;
        world_open(&w, "{\"stream_sample\":true}", NULL);
        tinker_sampler *s = world_sampler(&w);
        say(&w, HEALTH, statuses[i], "{}", -1);
        say(&w, API "asample", statuses[i], "{}", -1);
        say(&w, API "stream_sample", statuses[i], "{}", -1);
        with_options(&w, &o);
        tinker_future *f = tinker_service_call(w.service, "GET", HEALTH, NULL, 0, NULL, &w.err);
        CHECK_INT(world_finish(&w, f, 1000000), TINKER_EHTTP);
        tinker_future_free(f);
        without_options(&w);
        tinker_sampler *derived = tinker_sampler_with(s, &o, &w.err);
        f = tinker_sampler_sample(derived, fake_prompt(3), NULL, NULL, &w.err);
        tinker_stream *st = tinker_sampler_stream(derived, fake_prompt(3), NULL, NULL, &w.err);
        tinker_sampler_free(derived);
        CHECK_INT(world_finish(&w, f, 1000000), TINKER_EHTTP);
        CHECK_INT(w.err.http_status, statuses[i]);
        CHECK_INT(world_finish(&w, stream_future(st), 1000000), TINKER_EHTTP);
        CHECK_INT(fake_count(w.server, HEALTH), 1);
        CHECK_INT(fake_count(w.server, API "asample"), 1);
        CHECK_INT(fake_count(w.server, API "stream_sample"), 1);
        tinker_future_free(f);
        tinker_stream_free(st);
        tinker_sampler_free(s);
        world_close(&w);
    }
}

/* The service makes an archive for as long as it says 503; not for who wants no second try. */
static void test_max_retries_of_an_archive(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    tinker_rest *r = tinker_service_create_rest(w.service, &w.err);
    const char *path = API "training_runs/r/checkpoints/weights/c/archive";
    say(&w, path, 503, "{}", -1);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = -1;
    tinker_rest *once = tinker_rest_with(r, &o, &w.err);
    tinker_future *f = tinker_rest_get_checkpoint_archive(once, "tinker://r/weights/c", &w.err);
    tinker_rest_free(once);
    CHECK_INT(world_finish(&w, f, 1000000), TINKER_EHTTP);
    CHECK_INT(fake_count(w.server, path), 1);
    tinker_future_free(f);
    tinker_rest_free(r);
    world_close(&w);
}

static void test_timeout_and_deadline(void)
{
    struct world w;
    char v[512];
    world_open(&w, NULL, NULL);
    CHECK_INT(ask(&w), TINKER_OK); /* the service has started */
    fake_script(w.server, HEALTH, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.timeout_ms = 2500;
    o.max_retries = -1;
    with_options(&w, &o);
    int64_t start = world_ms(&w);
    CHECK_INT(ask(&w), TINKER_ETIMEDOUT);
    CHECK_INT(world_ms(&w) - start, 2500);
    CHECK_STR(fake_header(last(&w, HEALTH), "x-stainless-read-timeout", v), "2.5");
    without_options(&w);
    o = (tinker_call_options)TINKER_CALL_OPTIONS_INIT;
    o.deadline_ms = 1500;
    with_options(&w, &o);
    start = world_ms(&w);
    CHECK_INT(ask(&w), TINKER_ETIMEDOUT);
    CHECK_INT(world_ms(&w) - start, 1500);
    CHECK(strstr(w.err.message, "deadline") != NULL);
    without_options(&w);
    world_close(&w);
}

/* ---- events -------------------------------------------------------------------------------- */

struct tally {
    int events, tagged, polls;
    char clash[64];
};

static int count_tags(const tinker_event *e, void *state)
{
    struct tally *t = state;
    const char *tag = tinker_event_text(e, "experiment");
    t->events++;
    if (tag && strcmp(tag, "seven") == 0) {
        t->tagged++;
        const char *op = tinker_event_text(e, "operation");
        t->polls += op && strcmp(op, "retrieve_future") == 0;
        snprintf(t->clash, sizeof(t->clash), "%s", op ? op : "");
    }
    return 0;
}

static void test_metadata_of_events(void)
{
    struct world w;
    struct tally t = { 0 };
    world_open(&w, NULL, NULL);
    tinker_training *training = world_training(&w);
    tinker_service_attach(w.service, "tally", "http.request.stop", count_tags, &t, NULL);
    tinker_named_string tags[] = { { "operation", "not mine to say" }, { "experiment", "seven" } };
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.metadata = tags;
    o.n_metadata = 2;
    tinker_training *derived = tinker_training_with(training, &o, &w.err);
    tinker_future *f = tinker_training_optim_step(derived, NULL, &w.err);
    tinker_training_free(derived);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_INT(ask(&w), TINKER_OK);
    world_settle(&w);
    tinker_service_detach(w.service, "tally");
    CHECK(t.tagged >= 2 && t.tagged < t.events);
    CHECK(t.polls >= 1);
    CHECK_STR(t.clash, "retrieve_future");
    tinker_future_free(f);
    tinker_training_free(training);
    world_close(&w);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void test_notes_without_options(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    say(&w, HEALTH, 503, "{}", 2);
    fake_script(w.server, HEALTH,
                (struct fake_reply){ .body = "{\"status\":\"ok\"}", .delay_ms = 700 });
    tinker_future *f = tinker_service_check_health(w.service, NULL);
    CHECK(tinker_future_response(f) == NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    const tinker_response *r = tinker_future_response(f);
    REQUIRE(r);
    CHECK(r == tinker_future_response(f));
    CHECK_STR(r->operation, "healthz");
    CHECK_STR(r->method, "GET");
    CHECK_INT(r->status, 200);
    CHECK_INT(r->retries, 2);
    CHECK_INT(r->elapsed_ms, 700);
    CHECK(!r->url && !r->headers && !r->body && r->n_headers == 0 && r->n_body == 0);
    CHECK(tinker_response_header(r, "content-type") == NULL);
    tinker_future_free(f);
    world_close(&w);
}

static void test_failures_keep_their_answer(void)
{
    struct world w;
    world_open(&w, NULL, NULL);
    fake_script(w.server, HEALTH,
                (struct fake_reply){ .status = 404,
                                     .body = "{\"detail\":\"gone\"}",
                                     .headers = "X-Request-Id: req-7\r\nX-Two:  b \r\n" });
    tinker_future *f = tinker_service_check_health(w.service, NULL);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_EHTTP);
    const tinker_response *r = tinker_future_response(f);
    REQUIRE(r && r->url && r->body);
    CHECK_INT(r->status, 404);
    CHECK(strstr(r->url, HEALTH) && strncmp(r->url, "http://", 7) == 0);
    CHECK_STR(tinker_response_header(r, "X-REQUEST-ID"), "req-7");
    CHECK_STR(w.err.request_id, "req-7");
    CHECK_STR(r->body, "{\"detail\":\"gone\"}");
    CHECK_INT(r->n_body, 17);
    for (size_t i = 0; i < r->n_headers; i++)
        for (const char *c = r->headers[i].name; *c; c++)
            CHECK(*c < 'A' || *c > 'Z');
    tinker_future_free(f);
    fake_script(w.server, HEALTH, (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = 1;
    with_options(&w, &o);
    f = tinker_service_check_health(w.service, NULL);
    without_options(&w);
    CHECK_INT(world_finish(&w, f, 1000000), TINKER_ECONNECT);
    r = tinker_future_response(f);
    REQUIRE(r);
    CHECK_INT(r->status, 0);
    CHECK_INT(r->retries, 1);
    CHECK(r->body == NULL);
    tinker_future_free(f);
    world_close(&w);
}

/* Kept or not, failed or not: the address is the one that was asked, query and all. */
static void test_address_of_answers(void)
{
    struct world w;
    tinker_service_options so;
    tinker_named_string common = { "a", "1" }, own = { "b", "2" };
    world_options(&w, &so);
    so.network.query = &common;
    so.network.n_query = 1;
    world_open(&w, NULL, &so);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.query = &own;
    o.n_query = 1;
    for (int i = 0; i < 3; i++) {
        o.keep_response = i == 0;
        if (i == 2)
            say(&w, HEALTH, 404, "{}", 1);
        with_options(&w, &o);
        tinker_future *f = tinker_service_call(w.service, "GET", HEALTH, NULL, 0, NULL, &w.err);
        without_options(&w);
        CHECK_INT(world_finish(&w, f, 10000), i == 2 ? TINKER_EHTTP : TINKER_OK);
        const tinker_response *r = tinker_future_response(f);
        REQUIRE(r && r->url);
        CHECK_STR(strstr(r->url, "/api"), HEALTH "?a=1&b=2");
        tinker_future_free(f);
    }
    world_close(&w);
}

struct seen {
    int n, polls, last_status;
    char bodies[2048];
    atomic_bool stop, in;
};

static void see(const tinker_response *r, void *state)
{
    struct seen *s = state;
    size_t at = strlen(s->bodies);
    s->n++;
    s->polls += strcmp(r->operation, "retrieve_future") == 0;
    s->last_status = r->status;
    if (r->status)
        snprintf(s->bodies + at, sizeof(s->bodies) - at, "%d %s|", r->status,
                 r->n_body < 200 ? (const char *)r->body : "");
    CHECK(r->url && (r->status == 0 || tinker_response_header(r, "content-length")));
    CHECK_INT(strlen(r->body ? r->body : ""), r->n_body);
}

static void test_raw_answers(void)
{
    struct world w;
    struct seen s = { 0 };
    world_open(&w, NULL, NULL);
    tinker_training *t = world_training(&w);
    say(&w, API "optim_step", 500, "{\"detail\":\"oops\"}", 1);
    say(&w, API "retrieve_future", 408, "{\"queue_state\":\"active\"}", 1);
    say(&w, API "retrieve_future", 200, "{\"metrics\":{\"a\":1.5},\"unknown_field\":[1]}", 1);
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.keep_response = 1;
    o.on_response = see;
    o.on_response_state = &s;
    tinker_training *derived = tinker_training_with(t, &o, &w.err);
    tinker_future *f = tinker_training_optim_step(derived, NULL, &w.err);
    tinker_training_free(derived);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    world_settle(&w);
    const tinker_response *r = tinker_future_response(f);
    REQUIRE(r && r->body);
    CHECK_STR(r->operation, "retrieve_future");
    CHECK_STR(r->body, "{\"metrics\":{\"a\":1.5},\"unknown_field\":[1]}");
    CHECK_STR(tinker_response_header(r, "content-type"), "application/json");
    size_t n;
    const tinker_named_number *m = tinker_future_metrics(f, &n);
    CHECK(m && n == 1 && m[0].value == 1.5);
    tinker_future_free(f);
    CHECK_INT(s.n, 4);
    CHECK_INT(s.polls, 2);
    CHECK_INT(s.last_status, 200);
    CHECK(strncmp(s.bodies, "500 {\"detail\":\"oops\"}|200 {", 27) == 0);
    CHECK(strstr(s.bodies, "|408 {\"queue_state\":\"active\"}|200 {\"metrics\"") != NULL);
    tinker_training_free(t);
    world_close(&w);
}

static void block(const tinker_response *r, void *state)
{
    struct seen *s = state;
    (void)r;
    s->n++;
    atomic_store(&s->in, true);
    while (!atomic_load(&s->stop))
        sched_yield();
}

static void *stop_soon(void *arg)
{
    struct seen *s = arg;
    atomic_store(&s->stop, true);
    return NULL;
}

/* Freeing waits for a callback under way, and none comes after it. */
static void test_no_callback_after_free(void)
{
    struct world w;
    struct seen s = { 0 };
    pthread_t thread;
    world_open_real(&w, NULL);
    say(&w, HEALTH, 503, "{}", 1); /* and then a second answer, half a second later */
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.on_response = block;
    o.on_response_state = &s;
    with_options(&w, &o);
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    without_options(&w);
    REQUIRE(f);
    while (!atomic_load(&s.in))
        sched_yield();
    pthread_create(&thread, NULL, stop_soon, &s);
    tinker_future_free(f);
    CHECK(atomic_load(&s.stop));
    pthread_join(thread, NULL);
    CHECK(fake_await(w.server, HEALTH, 2));
    f = tinker_service_check_health(w.service, &w.err);
    CHECK_INT(tinker_future_wait(f, 60000, &w.err), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(s.n, 1);
    world_close(&w);
}

/* ---- any request ------------------------------------------------------------------------------ */

static void test_any_call(void)
{
    struct world w;
    char v[512];
    world_open(&w, NULL, NULL);
    say(&w, API "future_feature", 503, "{}", 1);
    say(&w, API "future_feature", 201, "{\"made\":true}", 1);
    tinker_future *f = tinker_service_call(w.service, "PATCH", API "future_feature?x=1",
                                           "{\"a\":1}", 7, NULL, &w.err);
    REQUIRE(f);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    const tinker_response *r = tinker_future_response(f);
    REQUIRE(r && r->body);
    CHECK_INT(r->status, 201);
    CHECK_STR(r->method, "PATCH");
    CHECK_STR(r->body, "{\"made\":true}");
    const struct fake_request *q = last(&w, API "future_feature");
    CHECK_STR(q->method, "PATCH");
    CHECK_STR(q->path, API "future_feature?x=1");
    CHECK_STR(q->body, "{\"a\":1}");
    CHECK_STR(fake_header(q, "Content-Type", v), "application/json");
    CHECK(fake_header(q, "X-API-Key", v) != NULL);
    tinker_future_free(f);
    say(&w, API "future_feature", 422, "{\"detail\":\"no\"}", 1);
    f = tinker_service_call(w.service, "POST", API "future_feature", "a=1", 3,
                            "application/x-www-form-urlencoded", &w.err);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_EHTTP);
    CHECK_STR(tinker_future_response(f)->body, "{\"detail\":\"no\"}");
    CHECK_STR(fake_header(last(&w, API "future_feature"), "Content-Type", v),
              "application/x-www-form-urlencoded");
    tinker_future_free(f);
    fake_script(w.server, API "future_feature",
                (struct fake_reply){ .fault = FAKE_DROP, .times = -1 });
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.max_retries = -1;
    with_options(&w, &o);
    f = tinker_service_call(w.service, "GET", API "future_feature", NULL, 0, NULL, &w.err);
    without_options(&w);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_ECONNECT);
    CHECK_STR(tinker_future_response(f)->method, "GET");
    tinker_future_free(f);
    static const char *const bad[] = { "", "x", "//evil/", "/a b", "/a\r\nX: y", "/a#b", "/\x80" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (tinker_service_call(w.service, "GET", bad[i], NULL, 0, NULL, &w.err))
            TAP_FAIL("path \"%s\" is taken", bad[i]);
    CHECK(!tinker_service_call(w.service, "TRACE", "/x", NULL, 0, NULL, &w.err));
    CHECK(!tinker_service_call(w.service, "POST", "/x", "1", 1, "a\r\nb", &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    world_close(&w);
}

int main(void)
{
    RUN(test_headers_are_checked);
    RUN(test_other_options_are_checked);
    RUN(test_headers_and_query);
    RUN(test_clients_carry_options);
    RUN(test_derived_clients_share_state);
    RUN(test_keys_and_bodies);
    RUN(test_bodies_with_blanks);
    RUN(test_max_retries);
    RUN(test_max_retries_in_pauses);
    RUN(test_max_retries_of_an_archive);
    RUN(test_timeout_and_deadline);
    RUN(test_metadata_of_events);
    RUN(test_notes_without_options);
    RUN(test_failures_keep_their_answer);
    RUN(test_address_of_answers);
    RUN(test_raw_answers);
    RUN(test_no_callback_after_free);
    RUN(test_any_call);
    return tap_done();
}
