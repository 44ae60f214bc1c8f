/* Samples told token by token, from services with streams and from those without. */
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <tinker/extra/http.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define STREAM  API "stream_sample"
#define ASAMPLE API "asample"
enum { WAIT_MS = 20000 };

static const char offered[] = "{\"stream_sample\":true}";
static const char events[] = "data: {\"token_id\":11,\"sequence\":0,\"logprob\":-0.5}\n\n"
                             "data: {\"token_id\":21,\"sequence\":1,\"logprob\":-1}\n\n"
                             "data: {\"sequence\":1,\"finish_reason\":\"length\"}\n\n"
                             "data: {\"token_id\":12,\"sequence\":0,\"logprob\":-0.25}\n\n"
                             "data: {\"sequence\":0,\"finish_reason\":\"stop\"}\n\n";

struct listener {
    char text[512];
    char rivals[512];
    atomic_int n;
    int stop_at, free_at;
    tinker_future *_Atomic future;
};

static int hear(const tinker_stream_event *e, void *state)
{
    struct listener *l = state;
    size_t at = strlen(l->text);
    snprintf(l->text + at, sizeof(l->text) - at,
             e->kind == TINKER_STREAM_TOKEN ? "%zu:%d " : "%zu!%d ", e->sequence,
             e->kind == TINKER_STREAM_TOKEN ? e->token : (int)e->stop_reason);
    for (size_t i = 0; i < e->topk; i++) {
        at = strlen(l->rivals);
        snprintf(l->rivals + at, sizeof(l->rivals) - at, "%d:%d=%g ", e->token, e->topk_tokens[i],
                 (double)e->topk_logprobs[i]);
    }
    int n = atomic_fetch_add(&l->n, 1) + 1;
    if (n == l->free_at) {
        while (!atomic_load(&l->future))
            sched_yield();
        tinker_future_free(atomic_load(&l->future));
    }
    return n == l->stop_at;
}

static tinker_sampler *open_world(struct world *w, const char *config)
{
    world_open_real(w, config);
    return tinker_service_create_sampler(w->service, "tiny", NULL, WAIT_MS, &w->err);
}

static void close_world(struct world *w, tinker_sampler *s)
{
    tinker_sampler_free(s);
    world_close(w);
}

static void script(struct world *w, const char *body, bool ends)
{
    char all[2048];
    snprintf(all, sizeof(all), "%s%s", body, ends ? "data: [DONE]\n\n" : "");
    fake_script(w->server, STREAM,
                (struct fake_reply){
                    .body = all, .content_type = "text/event-stream", .fault = FAKE_NO_LENGTH });
}

static tinker_future *ask(struct world *w, tinker_sampler *s, struct listener *l, size_t n)
{
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.num_samples = n;
    tinker_future *f = tinker_sampler_sample_stream(s, fake_prompt(5), NULL, &o, hear, l, &w->err);
    if (!f)
        TAP_FAIL("sample_stream: %s", w->err.message);
    return f;
}

static void test_streamed(void)
{
    struct world w;
    tinker_sampler *s = open_world(&w, offered);
    struct listener l = { 0 };
    script(&w, events, true);
    tinker_future *f = ask(&w, s, &l, 2);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_STR(l.text, "0:11 1:21 1!1 0:12 0!0 ");
    const tinker_sample *all = tinker_future_sample(f);
    REQUIRE(all && all->n_sequences == 2);
    CHECK_INT(all->sequences[0].n, 2);
    CHECK_INT(all->sequences[0].tokens[1], 12);
    CHECK_NEAR(all->sequences[0].logprobs[1], -0.25, 0);
    CHECK_INT(all->sequences[0].stop_reason, TINKER_STOP_STOP);
    CHECK_INT(all->sequences[1].stop_reason, TINKER_STOP_LENGTH);
    CHECK_INT(tinker_future_response(f)->status, 200);
    CHECK_INT(fake_count(w.server, ASAMPLE), 0);
    tinker_future_free(f);
    close_world(&w, s);
}

/* The likeliest tokens come with each, and all of them with the result: a matrix whose unused cells
 * say so, whether the service told some of them or only one. */
static void test_rivals(void)
{
    static const char rivalled[] =
        "data: {\"token_id\":11,\"sequence\":0}\n\n"
        "data: {\"token_id\":12,\"sequence\":0,\"topk_logprobs\":[[12,-0.5],[7,-1.5]]}\n\n"
        "data: {\"token_id\":13,\"sequence\":0,\"topk_logprobs\":[[13,-0.25]]}\n\n"
        "data: {\"token_id\":21,\"sequence\":1}\n\n";
    struct world w;
    tinker_sampler *s = open_world(&w, offered);
    struct listener l = { 0 };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.num_samples = 2;
    o.topk_sample_logprobs = 2;
    script(&w, rivalled, true);
    tinker_future *f = tinker_sampler_sample_stream(s, fake_prompt(5), NULL, &o, hear, &l, &w.err);
    f = tinker_future_await(f, WAIT_MS, &w.err);
    REQUIRE(f);
    CHECK_INT(fake_json_int(fake_get(w.server, STREAM, 0), "topk_sample_logprobs"), 2);
    CHECK_STR(l.rivals, "12:12=-0.5 12:7=-1.5 13:13=-0.25 ");
    const tinker_sequence *q = tinker_future_sample(f)->sequences;
    static const int32_t tokens[] = { 0, 0, 12, 7, 13, 0 };
    static const float logprobs[] = { -99999, -99999, -0.5F, -1.5F, -0.25F, -99999 };
    REQUIRE(q[0].topk == 2 && q[0].n == 3);
    CHECK(memcmp(q[0].topk_tokens, tokens, sizeof(tokens)) == 0);
    CHECK(memcmp(q[0].topk_logprobs, logprobs, sizeof(logprobs)) == 0);
    CHECK(q[1].n == 1 && q[1].topk == 0 && q[1].topk_tokens == NULL);
    tinker_future_free(f);
    close_world(&w, s);
}

/* The same from a sample that is told when it is there. */
static void test_rivals_of_a_sample(void)
{
    struct world w;
    tinker_sampler *s = open_world(&w, "{}");
    struct listener l = { 0 };
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    o.topk_sample_logprobs = 2;
    say(&w, API "retrieve_future", 200,
        "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[5,6],"
        "\"topk_logprobs\":[[[5,-0.5],[4,-1]],[[6,-2]]]}]}",
        1);
    tinker_future *f = tinker_sampler_sample_stream(s, fake_prompt(5), NULL, &o, hear, &l, &w.err);
    f = tinker_future_await(f, WAIT_MS, &w.err);
    REQUIRE(f);
    CHECK_STR(l.rivals, "5:5=-0.5 5:4=-1 6:6=-2 ");
    CHECK_INT(tinker_future_sample(f)->sequences[0].topk, 2);
    tinker_future_free(f);
    close_world(&w, s);
}

/* Without streams, and for what no stream carries: a sample, told when it is there. */
static void test_falls_back(void)
{
    static const int64_t token = 3, shape[] = { 4, 1 }, crow[] = { 0, 1, 1, 1, 1 }, col = 0;
    const tinker_tensor targets = { TINKER_INT64, &token, 1, shape, 2, crow, &col };
    for (int i = 0; i < 5; i++) {
        struct world w;
        tinker_sampler *s = open_world(&w, i >= 2 ? offered
                                           : i    ? "{\"stream_sample\":false}"
                                                  : "{}");
        struct listener l = { 0 };
        tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
        o.prompt_logprobs = i == 2;
        o.prompt_alt_tokens_k = i == 3;
        o.target_prompt_logprobs = i == 4 ? &targets : NULL;
        tinker_future *f =
            tinker_sampler_sample_stream(s, fake_prompt(5), NULL, &o, hear, &l, &w.err);
        f = tinker_future_await(f, WAIT_MS, &w.err);
        REQUIRE(f);
        CHECK_STR(l.text, "0:11 0:12 0:13 0!1 ");
        CHECK_INT(tinker_future_sample(f)->sequences[0].tokens[2], 13);
        CHECK_STR(tinker_future_request_type(f), "Sample");
        CHECK_INT(fake_count(w.server, ASAMPLE), 1);
        CHECK_INT(fake_count(w.server, STREAM), 0);
        tinker_future_free(f);
        close_world(&w, s);
    }
}

/* What came is told, and then why there is no more: once, and with its place once. */
static void test_failures(void)
{
    struct world w;
    tinker_sampler *s = open_world(&w, offered);
    struct listener l = { 0 };
    script(&w, events, false);
    tinker_future *f = ask(&w, s, &l, 2);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_EPROTOCOL);
    CHECK_STR(l.text, "0:11 1:21 1!1 0:12 0!0 ");
    CHECK_STR(w.err.message, "stream_sample: the stream ended in the middle");
    CHECK(tinker_future_sample(f) == NULL);
    tinker_future_free(f);
    say(&w, STREAM, 422, "{\"detail\":\"no\"}", 1);
    f = ask(&w, s, &l, 1);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 422);
    CHECK_STR(tinker_future_error_body(f), "{\"detail\":\"no\"}");
    tinker_future_free(f);
    CHECK(!tinker_sampler_sample_stream(s, fake_prompt(5), NULL, NULL, NULL, NULL, &w.err));
    CHECK_INT(w.err.status, TINKER_EINVAL);
    CHECK(!tinker_sampler_sample_stream(s, NULL, NULL, NULL, hear, &l, &w.err));
    close_world(&w, s);
}

static void test_ends(void)
{
    for (int stream = 0; stream < 2; stream++) {
        struct world w;
        tinker_sampler *s = open_world(&w, stream ? offered : "{}");
        struct listener l = { .stop_at = 2 };
        script(&w, events, true);
        tinker_future *f = ask(&w, s, &l, 2);
        CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ECANCELED);
        CHECK(strstr(w.err.message, "callback") != NULL);
        CHECK_INT(atomic_load(&l.n), 2);
        tinker_future_free(f);
        struct listener own = { .free_at = 2 }; /* by the callback itself */
        script(&w, events, true);
        atomic_store(&own.future, ask(&w, s, &own, 2));
        while (atomic_load(&own.n) < 2)
            sched_yield();
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        CHECK_INT(atomic_load(&own.n), 2);
        fake_script(w.server, stream ? STREAM : ASAMPLE, (struct fake_reply){ .fault = FAKE_HANG });
        f = ask(&w, s, &l, 2);
        CHECK_INT(tinker_future_wait(f, 20, &w.err), TINKER_ETIMEDOUT);
        tinker_future_cancel(f);
        CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ECANCELED);
        tinker_future_free(f);
        close_world(&w, s);
    }
}

static void count(const tinker_response *r, void *state)
{
    (void)r;
    atomic_fetch_add((atomic_int *)state, 1);
}

/* Options hold for the request below, once. */
static void test_options(void)
{
    struct world w;
    char v[512];
    tinker_sampler *s = open_world(&w, offered);
    struct listener l = { 0 };
    atomic_int answers = 0;
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.idempotency_key = "mine";
    o.on_response = count;
    o.on_response_state = &answers;
    o.keep_response = 1;
    script(&w, events, true);
    tinker_sampler *derived = tinker_sampler_with(s, &o, &w.err);
    REQUIRE(derived);
    tinker_future *f = ask(&w, derived, &l, 2);
    tinker_sampler_free(derived);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_OK);
    CHECK_STR(fake_header(fake_get(w.server, STREAM, 0), "X-Idempotency-Key", v), "mine");
    CHECK(strstr(tinker_future_response(f)->url, STREAM) != NULL);
    tinker_future_free(f);
    CHECK(atomic_load(&answers) <= 1);
    o.deadline_ms = 50;
    o.on_response = NULL;
    fake_script(w.server, STREAM, (struct fake_reply){ .fault = FAKE_HANG });
    derived = tinker_sampler_with(s, &o, &w.err);
    REQUIRE(derived);
    f = ask(&w, derived, &l, 2);
    tinker_sampler_free(derived);
    CHECK_INT(tinker_future_wait(f, WAIT_MS, &w.err), TINKER_ETIMEDOUT);
    CHECK(strstr(w.err.message, "deadline") != NULL);
    tinker_future_free(f);
    close_world(&w, s);
}

int main(void)
{
    RUN(test_streamed);
    RUN(test_rivals);
    RUN(test_rivals_of_a_sample);
    RUN(test_falls_back);
    RUN(test_failures);
    RUN(test_ends);
    RUN(test_options);
    return tap_done();
}
