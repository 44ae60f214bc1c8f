/* samples that arrive token by token, only where the service offers it. */
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
        { TINKER_STREAM_TOKEN, 0, 7, -0.5F, 0 },
        { TINKER_STREAM_TOKEN, 1, 8, NAN, 0 },
        { TINKER_STREAM_FINISHED, 1, 0, NAN, TINKER_STOP_LENGTH },
        { TINKER_STREAM_TOKEN, 0, 9, -1, 0 },
        { TINKER_STREAM_FINISHED, 0, 0, NAN, TINKER_STOP_STOP },
        { TINKER_STREAM_END, 0, 0, 0, 0 },
        { TINKER_STREAM_END, 0, 0, 0, 0 }, /* and again */
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        tinker_stream_event e;
        CHECK_INT(tinker_stream_next(st, 5000, &e, &w.err), TINKER_OK);
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

/* One attempt; what came before the break is read first, then the reason. */
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
        CHECK_INT(tinker_stream_next(st, 5000, &e, &w.err), TINKER_OK);
        CHECK_INT(e.token, 7);
        for (int again = 0; again < 2; again++) {
            CHECK_INT(tinker_stream_next(st, 5000, &e, &w.err), breaks[i].status);
            CHECK(strstr(w.err.message, breaks[i].says) != NULL);
        }
        CHECK_INT(fake_count(w.server, STREAM), 1);
        close_stream(&w, st, s);
    }
}

static void test_statuses(void)
{
    struct world w;
    tinker_sampler *s;
    tinker_stream_event e;
    world_open_real(&w, offered);
    say(&w, STREAM, 503, "{\"detail\":\"busy\"}", -1);
    tinker_stream *st = open_stream(&w, &s, 1);
    REQUIRE(st != NULL);
    CHECK_INT(tinker_stream_next(st, 5000, &e, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 503);
    CHECK_INT(fake_count(w.server, STREAM), 1);
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
        CHECK_INT(tinker_stream_next(st, 5000, &e, &w.err), TINKER_ECANCELED);
        tinker_stream_free(st);
    }
}

int main(void)
{
    RUN(test_not_offered);
    RUN(test_tokens);
    RUN(test_breaks);
    RUN(test_statuses);
    RUN(test_giving_up);
    return tap_done();
}
