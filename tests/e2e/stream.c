/* stream.c - the tokens of a stream are those of the same sample without one.
 * Usage: stream BASE_MODEL; the server is named by the environment. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tinker/tinker.h>
#include <tinker/extra/stream.h>

enum { SAMPLES = 3, TOKENS = 24, RIVALS = 4 };

static int fail(const char *what, const tinker_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    return 1;
}

struct collected {
    int32_t tokens[SAMPLES][TOKENS];
    float logprobs[SAMPLES][TOKENS];
    int32_t top_tokens[SAMPLES][TOKENS][RIVALS];
    float top_logprobs[SAMPLES][TOKENS][RIVALS];
    size_t n[SAMPLES];
    int finished[SAMPLES], stop[SAMPLES];
};

static int collect(tinker_stream *st, struct collected *c)
{
    tinker_error err;
    for (;;) {
        tinker_stream_event e;
        if (tinker_stream_next(st, 60000, &e, &err) != TINKER_OK)
            return fail("stream", &err);
        if (e.kind == TINKER_STREAM_END)
            return 0;
        if (e.kind == TINKER_STREAM_FINISHED) {
            c->finished[e.sequence]++;
            c->stop[e.sequence] = (int)e.stop_reason;
        } else if (c->n[e.sequence] < TOKENS && e.topk == RIVALS) {
            size_t at = c->n[e.sequence]++;
            c->logprobs[e.sequence][at] = e.logprob;
            c->tokens[e.sequence][at] = e.token;
            memcpy(c->top_tokens[e.sequence][at], e.topk_tokens, sizeof(c->top_tokens[0][0]));
            memcpy(c->top_logprobs[e.sequence][at], e.topk_logprobs, sizeof(c->top_logprobs[0][0]));
        } else {
            fprintf(stderr, "more than %d tokens, or not %d rivals\n", TOKENS, RIVALS);
            return 1;
        }
    }
}

static int compare(const struct collected *c, const tinker_sample *r)
{
    for (size_t i = 0; i < SAMPLES; i++) {
        const tinker_sequence *q = &r->sequences[i];
        if (c->n[i] != q->n || memcmp(c->tokens[i], q->tokens, q->n * sizeof(*q->tokens)) != 0 ||
            memcmp(c->logprobs[i], q->logprobs, q->n * sizeof(*q->logprobs)) != 0 ||
            q->topk != RIVALS ||
            memcmp(c->top_tokens[i], q->topk_tokens, q->n * sizeof(c->top_tokens[0][0])) != 0 ||
            memcmp(c->top_logprobs[i], q->topk_logprobs, q->n * sizeof(c->top_logprobs[0][0])) !=
                0 ||
            c->finished[i] != 1 || c->stop[i] != (int)q->stop_reason) {
            fprintf(stderr, "sequence %zu: %zu tokens in the stream, %zu without\n", i, c->n[i],
                    q->n);
            return 1;
        }
        printf("sequence %zu: %zu tokens, equal\n", i, q->n);
    }
    return 0;
}

int main(int argc, char **argv)
{
    tinker_error err;
    const char *model = argc > 1 ? argv[1] : "tinker/tiny";
    const int32_t tokens[4] = { 5, 9, 17, 33 };
    const tinker_chunk chunk = { .tokens = tokens, .n_tokens = 4 };
    const tinker_model_input prompt = { &chunk, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    p.max_tokens = TOKENS;
    p.has_seed = 1;
    p.seed = 42;
    o.num_samples = SAMPLES;
    o.topk_sample_logprobs = RIVALS;
    tinker_service *service = tinker_service_new(NULL, &err);
    if (!service)
        return fail("service", &err);
    tinker_sampler *s = tinker_service_create_sampler(service, model, NULL, 60000, &err);
    if (!s)
        return fail("sampler", &err);
    static struct collected c;
    tinker_stream *st = tinker_sampler_stream(s, &prompt, &p, &o, &err);
    if (!st)
        return fail("stream", &err);
    int bad = collect(st, &c);
    tinker_stream_free(st);
    tinker_future *f = tinker_sampler_sample(s, &prompt, &p, &o, &err);
    if (!f || tinker_future_wait(f, 60000, &err) != TINKER_OK)
        return fail("sample", &err);
    bad = bad || compare(&c, tinker_future_sample(f));
    tinker_future_free(f);
    /* a stream that is given up leaves the server in order */
    p.max_tokens = 200;
    st = tinker_sampler_stream(s, &prompt, &p, &o, &err);
    tinker_stream_event e;
    if (!st || tinker_stream_next(st, 60000, &e, &err) != TINKER_OK)
        return fail("second stream", &err);
    tinker_stream_free(st);
    f = tinker_sampler_compute_logprobs(s, &prompt, &err);
    if (!f || tinker_future_wait(f, 60000, &err) != TINKER_OK)
        return fail("after the stream", &err);
    tinker_future_free(f);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return bad;
}
