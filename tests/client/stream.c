/* samples that arrive token by token, only where the service offers it. */
#include <poll.h>
#include <pthread.h>
#include <tinker/extra/http.h>
#include <tinker/extra/metrics.h>
#include <tinker/extra/stream.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define STREAM API "stream_sample"

static const char offered[] = "{\"stream_sample\":true}";

static void answer(struct world *w, const char *events, enum fake_fault fault)
{
    fake_script(
        w->server, STREAM,
        (struct fake_reply){ .body = events, .content_type = "text/event-stream", .fault = fault });
}

static tinker_stream *open_stream(struct world *w, tinker_sampler **s, size_t n)
{
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.num_samples = n;
    *s = tinker_service_create_sampler(w->service, "tiny", NULL, 5000, &w->err);
    return *s ? tinker_sampler_stream(*s, fake_prompt(5), NULL, &o, &w->err) : NULL;
}

static void close_stream(struct world *w, tinker_stream *st, tinker_sampler *s)
{
    tinker_stream_free(st);
    tinker_sampler_free(s);
    world_close(w);
}

/* Without the capability: an error at once, and no request. */
static void test_not_offered(void)
{
    struct world w;
    tinker_sampler *s;
    world_open_real(&w, NULL);
    CHECK(!open_stream(&w, &s, 1));
    CHECK_INT(w.err.status, TINKER_ESTATE);
    CHECK(strstr(w.err.message, "does not offer") != NULL);
    CHECK_INT(fake_count(w.server, STREAM), 0);
    close_stream(&w, NULL, s);
}

static void test_what_no_stream_carries(void)
{
    struct world w;
    world_open_real(&w, offered);
    tinker_sampler *s = tinker_service_create_sampler(w.service, "tiny", NULL, 20000, &w.err);
    REQUIRE(s != NULL);
    static const char *const names[] = { "prompt_logprobs", "topk_prompt_logprobs",
                                         "prompt_alt_tokens_k" };
    for (int i = 0; i < 3; i++) {
        tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
        o.prompt_logprobs = i == 0;
        o.topk_prompt_logprobs = i == 1;
        o.prompt_alt_tokens_k = i == 2;
        CHECK(tinker_sampler_stream(s, fake_prompt(5), NULL, &o, &w.err) == NULL);
        CHECK_INT(w.err.status, TINKER_EINVAL);
        CHECK(strncmp(w.err.message, names[i], strlen(names[i])) == 0);
    }
    tinker_sampler_free(s);
    world_close(&w);
}

static void test_tokens(void)
{
    struct world w;
    tinker_sampler *s;
    world_open_real(&w, offered);
    answer(&w,
           "data: {\"token_id\":7,\"sequence\":0,\"logprob\":-0.5}\n\n: still here\n\n"
           "data: {\"token_id\":8,\"sequence\":1}\n\n"
           "data: {\"sequence\":1,\"finish_reason\":\"length\"}\n\n"
           "data: {\"token_id\":9,\"sequence\":0,\"logprob\":-1}\n\n"
           "data: {\"sequence\":0,\"finish_reason\":\"stop\"}\n\ndata: [DONE]\n\n",
           FAKE_NO_LENGTH);
    tinker_stream *st = open_stream(&w, &s, 2);
    REQUIRE(st != NULL);
    static const tinker_stream_event want[] = {
        { .kind = TINKER_STREAM_TOKEN, .sequence = 0, .token = 7, .logprob = -0.5F },
        { .kind = TINKER_STREAM_TOKEN, .sequence = 1, .token = 8, .logprob = NAN },
        { .kind = TINKER_STREAM_FINISHED, .sequence = 1, .stop_reason = TINKER_STOP_LENGTH },
        { .kind = TINKER_STREAM_TOKEN, .sequence = 0, .token = 9, .logprob = -1 },
        { .kind = TINKER_STREAM_FINISHED, .sequence = 0, .stop_reason = TINKER_STOP_STOP },
        { .kind = TINKER_STREAM_END },
        { .kind = TINKER_STREAM_END }, /* and again */
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        tinker_stream_event e;
        CHECK_INT(tinker_stream_next(st, 60000, &e, &w.err), TINKER_OK);
        CHECK_INT(e.kind, want[i].kind);
        CHECK_INT(e.sequence, want[i].sequence);
        if (e.kind == TINKER_STREAM_TOKEN) {
            CHECK_INT(e.token, want[i].token);
            CHECK(isnan(want[i].logprob) ? isnan(e.logprob) : e.logprob == want[i].logprob);
        } else if (e.kind == TINKER_STREAM_FINISHED) {
            CHECK_INT(e.stop_reason, want[i].stop_reason);
        }
    }
    const struct fake_request *r = fake_get(w.server, STREAM, 0);
    char v[512];
    CHECK_STR(fake_header(r, "Accept", v), "text/event-stream");
    CHECK_INT(fake_json_int(r, "num_samples"), 2);
    CHECK_INT(fake_json_int(r, "seq_id"), -1);
    CHECK(strstr(r->body, "\"sampling_session_id\":\"sess:sample:0\"") != NULL);
    close_stream(&w, st, s);
}

/* Not tried again; what came before the break is read first, then the reason. */
static void test_breaks(void)
{
    static const struct {
        const char *events;
        tinker_status status;
        const char *says;
    } breaks[] = {
        { "data: {\"token_id\":7}\n\n", TINKER_EPROTOCOL, "in the middle" },
        { "data: {\"token_id\":7}\n\ndata: {\"error\":\"no adapter\"}\n\n", TINKER_EREQUEST,
          "no adapter" },
        { "data: {\"token_id\":7}\n\ndata: {\"token_id\":\"x\"}\n\n", TINKER_EPROTOCOL, "chunk" },
        { "data: {\"token_id\":7}\n\ndata: {\"token_id\":1,\"sequence\":1}\n\n", TINKER_EPROTOCOL,
          "sequence" },
    };
    for (size_t i = 0; i < sizeof(breaks) / sizeof(*breaks); i++) {
        struct world w;
        tinker_sampler *s;
        tinker_stream_event e;
        world_open_real(&w, offered);
        answer(&w, breaks[i].events, FAKE_NONE);
        tinker_stream *st = open_stream(&w, &s, 1);
        REQUIRE(st != NULL);
        CHECK_INT(tinker_stream_next(st, 60000, &e, &w.err), TINKER_OK);
        CHECK_INT(e.token, 7);
        for (int again = 0; again < 2; again++) {
            CHECK_INT(tinker_stream_next(st, 60000, &e, &w.err), breaks[i].status);
            CHECK(strstr(w.err.message, breaks[i].says) != NULL);
        }
        CHECK_INT(fake_count(w.server, STREAM), 1);
        close_stream(&w, st, s);
    }
}

static const char two_tokens[] = "data: {\"token_id\":7}\n\ndata: {\"token_id\":8}\n\n"
                                 "data: {\"sequence\":0,\"finish_reason\":\"stop\"}\n\n"
                                 "data: [DONE]\n\n";

/* Let time pass until it has ended, and read it: how it ended, and how many tokens. */
static tinker_status read_all(struct world *w, tinker_stream *st, int *tokens)
{
    tinker_stream_event e;
    tinker_status s;
    world_finish(w, stream_future(st), 1000000);
    *tokens = 0;
    while ((s = tinker_stream_next(st, 0, &e, &w->err)) == TINKER_OK && e.kind != TINKER_STREAM_END)
        *tokens += e.kind == TINKER_STREAM_TOKEN;
    return s;
}

/* All of it was there: how the connection ends does not matter. */
static void test_complete_though_cut(void)
{
    struct world w;
    tinker_sampler *s;
    int tokens;
    world_open_real(&w, offered);
    answer(&w, two_tokens, FAKE_TRUNCATE);
    tinker_stream *st = open_stream(&w, &s, 1);
    REQUIRE(st != NULL);
    CHECK_INT(tinker_future_wait(stream_future(st), 60000, &w.err), TINKER_OK);
    CHECK_INT(read_all(&w, st, &tokens), TINKER_OK);
    CHECK_INT(tokens, 2);
    close_stream(&w, st, s);
}

static int64_t successes(void)
{
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    int64_t n = tinker_metrics_counter(m, "tinker_requests_success");
    tinker_metrics_free(m);
    return n;
}

/* [DONE] is the end, though the connection stays open; that is dropped in the background. */
static void test_over_at_its_last_event(void)
{
    struct world w;
    int n;
    world_open(&w, offered, NULL);
    answer(&w, two_tokens, FAKE_OPEN);
    tinker_sampler *s = world_sampler(&w);
    int64_t before = successes();
    tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    REQUIRE(st != NULL);
    world_settle(&w); /* no time passes */
    CHECK_INT(tinker_future_wait(stream_future(st), 0, &w.err), TINKER_OK);
    CHECK_INT(tinker_future_response(stream_future(st))->status, 200);
    CHECK_INT(read_all(&w, st, &n), TINKER_OK);
    CHECK_INT(n, 2);
    CHECK_INT(fake_held_on(w.server, STREAM), 1);
    world_advance(&w, 2000);
    CHECK_INT(fake_held_on(w.server, STREAM), 0);
    CHECK_INT(fake_count(w.server, STREAM), 1);
    CHECK_INT(successes(), before + 1);
    tinker_stream_free(st);
    answer(&w, two_tokens, FAKE_OPEN); /* and the service may end meanwhile */
    st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    world_settle(&w);
    CHECK_INT(tinker_future_wait(stream_future(st), 0, &w.err), TINKER_OK);
    close_stream(&w, st, s);
}

/* Before the first event everything is tried again that a sample is. */
static void test_retries(void)
{
    struct world w;
    tinker_sampler *s;
    int n;
    world_open(&w, offered, NULL);
    say(&w, STREAM, 503, "{}", 1);
    fake_script(w.server, STREAM, (struct fake_reply){ .fault = FAKE_DROP });
    answer(&w, "", FAKE_NONE);
    answer(&w, ": only a comment\n\n", FAKE_NONE);
    answer(&w, two_tokens, FAKE_NONE);
    s = world_sampler(&w);
    tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    REQUIRE(st != NULL);
    CHECK_INT(read_all(&w, st, &n), TINKER_OK);
    CHECK_INT(n, 2);
    CHECK_INT(fake_count(w.server, STREAM), 5);
    char a[512], b[512];
    CHECK(strcmp(fake_header(fake_get(w.server, STREAM, 0), "X-Idempotency-Key", a),
                 fake_header(fake_get(w.server, STREAM, 4), "X-Idempotency-Key", b)) != 0);
    int64_t waited = world_at(&w, STREAM, 4) - world_at(&w, STREAM, 0);
    /* 0.5 + 1 + 2 s, a quarter more or less; curl itself sends again what a kept connection
     * lost */
    CHECK(waited >= 2600 && waited <= 4400);
    close_stream(&w, st, s);
}

static void test_final_errors(void)
{
    static const struct {
        int status;
        const char *events;
        enum fake_fault fault;
        tinker_status want;
        int tokens;
    } cases[] = {
        { 400, "{}", FAKE_NONE, TINKER_EHTTP, 0 },
        { 404, "", FAKE_NONE, TINKER_EHTTP, 0 },
        { 200, "data: {\"error\":\"no adapter\"}\n\n", FAKE_NONE, TINKER_EREQUEST, 0 },
        { 200, "data: {\"token_id\":7}\n\ndata: {\"token_id\":8}\n\n: more\n\n: and more\n\n",
          FAKE_TRUNCATE, TINKER_ECONNECT, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct world w;
        tinker_sampler *s;
        int n;
        world_open(&w, offered, NULL);
        fake_script(w.server, STREAM,
                    (struct fake_reply){ .status = cases[i].status,
                                         .body = cases[i].events,
                                         .fault = cases[i].fault,
                                         .content_type = "text/event-stream" });
        s = world_sampler(&w);
        tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
        REQUIRE(st != NULL);
        CHECK_INT(read_all(&w, st, &n), cases[i].want);
        CHECK(cases[i].tokens ? n >= 1 : n == 0);
        world_advance(&w, 60000);
        CHECK_INT(fake_count(w.server, STREAM), 1);
        close_stream(&w, st, s);
    }
}

static void test_bounded_retries(void)
{
    struct world w;
    tinker_sampler *s;
    int n;
    world_open(&w, offered, NULL);
    say(&w, STREAM, 503, "{\"detail\":\"busy\"}", -1);
    s = world_sampler(&w);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.max_retries = 2;
    tinker_sampler_set_retry(s, &o, &w.err);
    tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    REQUIRE(st != NULL);
    CHECK_INT(read_all(&w, st, &n), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 503);
    CHECK_INT(fake_count(w.server, STREAM), 3);
    CHECK_STR(tinker_future_error_body(stream_future(st)), "{\"detail\":\"busy\"}");
    CHECK_INT(tinker_future_response(stream_future(st))->status, 503);
    tinker_stream_free(st);
    tinker_call_options call = TINKER_CALL_OPTIONS_INIT;
    call.max_retries = -1;
    tinker_sampler *derived = tinker_sampler_with(s, &call, &w.err);
    REQUIRE(derived);
    st = tinker_sampler_stream(derived, fake_prompt(5), NULL, NULL, &w.err);
    tinker_sampler_free(derived);
    CHECK_INT(read_all(&w, st, &n), TINKER_EHTTP);
    CHECK_INT(fake_count(w.server, STREAM), 4);
    close_stream(&w, st, s);
}

/* 429: the account pauses, for samples too; then the same request again. */
static void test_backpressure(void)
{
    struct world w;
    tinker_sampler *s;
    int n;
    char v[512];
    world_open(&w, offered, NULL);
    say(&w, STREAM, 429, "{}", 1);
    answer(&w, two_tokens, FAKE_NONE);
    s = world_sampler(&w);
    tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    REQUIRE(st != NULL);
    while (fake_count(w.server, STREAM) == 0)
        world_step(&w, 1);
    world_settle(&w);
    tinker_future *f = tinker_sampler_sample(s, fake_prompt(5), NULL, NULL, &w.err);
    CHECK_INT(read_all(&w, st, &n), TINKER_OK);
    CHECK_INT(n, 2);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK(world_at(&w, STREAM, 1) - world_at(&w, STREAM, 0) >= 1000);
    CHECK(world_at(&w, API "asample", 0) - world_at(&w, STREAM, 0) >= 1000);
    CHECK_STR(fake_header(fake_get(w.server, STREAM, 0), "X-Tinker-Sampling-Backpressure", v), "1");
    tinker_future_free(f);
    close_stream(&w, st, s);
}

/* 400 at a time are sent, and the first event of one lets the next one go. */
static void test_permits(void)
{
    enum { N = 403 };
    struct world w;
    tinker_sampler *s;
    static tinker_stream *st[N];
    world_open(&w, offered, NULL);
    fake_script(w.server, STREAM, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    s = world_sampler(&w);
    for (int i = 0; i < N; i++)
        st[i] = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    world_settle(&w);
    CHECK_INT(fake_count(w.server, STREAM), 400);
    tinker_stream_free(st[0]); /* one gives up */
    world_settle(&w);
    CHECK_INT(fake_count(w.server, STREAM), 401);
    for (int i = 1; i < N; i++)
        tinker_stream_free(st[i]);
    tinker_sampler_free(s);
    world_close(&w);
}

/* A handler permit covers the stream to its end. */
static void test_few_connections(void)
{
    struct world w;
    tinker_sampler *s;
    int n;
    world_open(&w, offered, NULL);
    fake_script(w.server, STREAM,
                (struct fake_reply){ .body = two_tokens,
                                     .content_type = "text/event-stream",
                                     .delay_ms = 5000,
                                     .times = -1 });
    s = world_sampler(&w);
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    o.max_connections = 1;
    tinker_sampler_set_retry(s, &o, &w.err);
    tinker_stream *st[2];
    for (int i = 0; i < 2; i++)
        st[i] = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(read_all(&w, st[i], &n), TINKER_OK);
        CHECK_INT(n, 2);
    }
    CHECK(world_at(&w, STREAM, 1) - world_at(&w, STREAM, 0) >= 5000);
    tinker_stream_free(st[0]);
    close_stream(&w, st[1], s);
}

static void test_deadline_and_cancel(void)
{
    for (int cancel = 0; cancel < 2; cancel++) {
        struct world w;
        tinker_sampler *s;
        int n;
        world_open(&w, offered, NULL);
        fake_script(w.server, STREAM, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
        s = world_sampler(&w);
        tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
        REQUIRE(st != NULL);
        world_settle(&w);
        int64_t start = world_ms(&w);
        if (cancel)
            tinker_stream_cancel(st);
        else
            tinker_stream_set_deadline(st, 3000);
        world_settle(&w);
        CHECK_INT(read_all(&w, st, &n), cancel ? TINKER_ECANCELED : TINKER_ETIMEDOUT);
        CHECK_INT(world_ms(&w) - start, cancel ? 0 : 3000);
        CHECK(strstr(w.err.message, cancel ? "cancel" : "deadline") != NULL);
        close_stream(&w, st, s);
    }
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, timeout_ms) == 1;
}

/* One poll loop for tokens and for the end. */
static void *cancel_soon(void *arg)
{
    tinker_stream_cancel(arg);
    return NULL;
}

/* Whoever waits while another cancels is told that, not that the stream goes on. */
static void test_cancelled_by_another(void)
{
    struct world w;
    tinker_sampler *s;
    world_open_real(&w, offered);
    fake_script(w.server, STREAM, (struct fake_reply){ .fault = FAKE_HANG, .times = -1 });
    tinker_stream_free(open_stream(&w, &s, 1));
    int wrong = 0;
    for (int i = 0; i < 500; i++) {
        pthread_t thread;
        tinker_stream_event e;
        tinker_stream *st = tinker_sampler_stream(s, fake_prompt(5), NULL, NULL, &w.err);
        REQUIRE(st != NULL);
        pthread_create(&thread, NULL, cancel_soon, st);
        while (!tinker_future_done(stream_future(st)))
            continue;
        wrong += tinker_stream_next(st, -1, &e, &w.err) != TINKER_ECANCELED;
        pthread_join(thread, NULL);
        tinker_stream_free(st);
    }
    CHECK_INT(wrong, 0);
    close_stream(&w, NULL, s);
}

static void test_descriptors(void)
{
    struct world w;
    tinker_sampler *s;
    tinker_stream_event e;
    world_open_real(&w, offered);
    fake_script(w.server, STREAM,
                (struct fake_reply){
                    .body = two_tokens, .content_type = "text/event-stream", .delay_ms = 100 });
    tinker_stream *st = open_stream(&w, &s, 1);
    REQUIRE(st != NULL);
    tinker_queue *q = tinker_queue_new(&w.err);
    int fd = tinker_stream_fd(st, &w.err), mark = 0;
    void *tag = NULL;
    REQUIRE(fd >= 0);
    CHECK_INT(tinker_stream_fd(st, &w.err), fd);
    CHECK(!readable(fd, 0));
    CHECK_INT(tinker_queue_add(q, stream_future(st), &mark, &w.err), TINKER_OK);
    for (int i = 0; i < 4; i++) { /* two tokens, finished, end */
        CHECK(readable(fd, 5000));
        tinker_status status;
        while ((status = tinker_stream_next(st, 0, &e, &w.err)) == TINKER_ETIMEDOUT)
            CHECK(readable(fd, 5000)); /* a spurious wake-up */
        CHECK_INT(status, TINKER_OK);
    }
    CHECK_INT(e.kind, TINKER_STREAM_END);
    CHECK(readable(fd, 0)); /* next does not wait */
    CHECK(readable(tinker_queue_fd(q), 5000));
    CHECK(tinker_queue_next(q, 0, &tag) == stream_future(st) && tag == &mark);
    tinker_queue_free(q);
    close_stream(&w, st, s);
}

/* A stream that is silent: a look, a short wait, then it is given up, or the service goes. */
static void test_giving_up(void)
{
    for (int by_service = 0; by_service < 2; by_service++) {
        struct world w;
        tinker_sampler *s;
        tinker_stream_event e;
        world_open_real(&w, offered);
        answer(&w, "", FAKE_HANG);
        tinker_stream *st = open_stream(&w, &s, 1);
        REQUIRE(st != NULL);
        CHECK(fake_await(w.server, STREAM, 1));
        CHECK_INT(tinker_stream_next(st, 0, &e, &w.err), TINKER_ETIMEDOUT);
        CHECK_INT(tinker_stream_next(st, 20, &e, &w.err), TINKER_ETIMEDOUT);
        if (!by_service) {
            close_stream(&w, st, s);
            continue;
        }
        tinker_sampler_free(s);
        world_close(&w);
        CHECK_INT(tinker_stream_next(st, 60000, &e, &w.err), TINKER_ECANCELED);
        tinker_stream_free(st);
    }
}

int main(void)
{
    RUN(test_not_offered);
    RUN(test_what_no_stream_carries);
    RUN(test_tokens);
    RUN(test_breaks);
    RUN(test_complete_though_cut);
    RUN(test_over_at_its_last_event);
    RUN(test_retries);
    RUN(test_final_errors);
    RUN(test_bounded_retries);
    RUN(test_backpressure);
    RUN(test_permits);
    RUN(test_few_connections);
    RUN(test_deadline_and_cancel);
    RUN(test_cancelled_by_another);
    RUN(test_descriptors);
    RUN(test_giving_up);
    return tap_done();
}
