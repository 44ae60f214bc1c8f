/* generate.h - a tiny model and sampling requests for tests of the generator. */
#ifndef SUPPORT_GENERATE_H
#define SUPPORT_GENERATE_H

#include <stdint.h>
#include <stdlib.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "base/os.h"
#include "base/rand.h"
#include "engine/model/init_model.h"
#include "support/tap.h"
#include "support/tiny_model.h"

enum { VOCAB = 300, CONTEXT = 256 };

static char dir[64];
static tinker_weights_dtype weights_dtype = TINKER_WEIGHTS_F32; /* of the engines */

static inline tinker_engine *open_engine(int threads, uint64_t memory)
{
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    tinker_error err = { 0 };
    o.threads = threads;
    o.memory_limit = memory;
    o.max_context = CONTEXT;
    o.dtype = weights_dtype;
    tinker_engine *e = tinker_engine_open(dir, &o, &err);
    if (e == NULL) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return e;
}

static inline void write_model_of(const char *arch)
{
    struct init_model m;
    tinker_error err = { 0 };
    init_model_defaults(&m);
    init_model_arch(&m, arch);
    m.config.context = 512;
    m.embed_std = 0.1; /* flat enough that draws vary, far from uniform */
    m.seed = 5;
    snprintf(dir, sizeof dir, "/tmp/tinker-generator-%ld", (long)getpid());
    if (init_model_write(&m, dir, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
}

static inline void write_model(void)
{
    write_model_of("qwen3");
}

/* A copy of a result that outlives it. */
struct outcome {
    int32_t tokens[CONTEXT];
    float logprobs[CONTEXT];
    size_t n;
    tinker_stop_reason reason;
    int64_t hits;
};

static inline void copy_sequence(struct outcome *o, const tinker_sample *s, size_t i)
{
    const tinker_sequence *q = &s->sequences[i];
    memset(o, 0, sizeof *o);
    o->n = q->n;
    o->reason = q->stop_reason;
    o->hits = s->prompt_cache_hit_tokens;
    memcpy(o->tokens, q->tokens, q->n * sizeof *q->tokens);
    memcpy(o->logprobs, q->logprobs, q->n * sizeof *q->logprobs);
}

static inline int same(const struct outcome *a, const struct outcome *b)
{
    return a->n == b->n && a->reason == b->reason &&
           memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

static inline void prompt_of(int32_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (int32_t)(philox_uniform(seed, i) * VOCAB);
}

static inline tinker_sampling_params params(int64_t max_tokens, int64_t seed, double temperature)
{
    static const int32_t none[1];
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = max_tokens;
    p.has_seed = 1;
    p.seed = seed;
    p.temperature = temperature;
    p.stop_tokens = none;
    return p;
}

static inline void run(tinker_generator *g)
{
    tinker_error err = { 0 };
    int left;
    while ((left = tinker_generator_step(g, &err)) > 0)
        ;
    if (left < 0)
        TAP_FAIL("step: %s", err.message);
}

/* The result of one request, borrowed from the generator; NULL: it failed. */
static inline const tinker_sample *run_one(tinker_generator *g, const tinker_generate *q)
{
    const tinker_sample *s = NULL;
    tinker_error err = { 0 };
    if (tinker_generator_add(g, q, &err) != TINKER_OK) {
        printf("# %s\n", err.message);
        return NULL;
    }
    run(g);
    return tinker_generator_next(g, NULL, &s, &err) == 1 ? s : NULL;
}

/* Add one request to a new generator, run it, copy sample `index`. */
static inline void alone(tinker_engine *e, const tinker_generate *q, size_t index,
                         struct outcome *out)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    const tinker_sample *sample = NULL;
    memset(out, 0, sizeof *out);
    CHECK(tinker_generator_add(g, q, &err) == TINKER_OK);
    run(g);
    CHECK(tinker_generator_next(g, NULL, &sample, &err) == 1);
    if (sample != NULL)
        copy_sequence(out, sample, index);
    else
        TAP_FAIL("no sample: %s", err.message);
    tinker_generator_free(g);
}

/* One optimizer step towards token 7, so that B is not zero. */
static inline void train_a_little(tinker_engine *e, tinker_adapter *a)
{
    int32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    int64_t targets[8] = { 7, 7, 7, 7, 7, 7, 7, 7 };
    float weights[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 8 };
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = 8 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = 8 } },
    };
    tinker_datum d = { .model_input = { &chunk, 1 }, .inputs = in, .n_inputs = 2 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics metrics;
    tinker_error err = { 0 };
    adam.learning_rate = 0.01;
    tinker_pass *p = tinker_pass_new(e, a, &d, 1, &loss, 0, &err);
    while (p != NULL && tinker_pass_step(p, &err) > 0)
        ;
    tinker_pass_free(p);
    CHECK(tinker_adapter_step(a, &adam, &metrics, &err) == TINKER_OK);
}

/* Logprobs of tokens[from..n) given what precedes them, by the training forward. */
static inline void forward_logprobs(tinker_engine *e, tinker_adapter *a, const int32_t *tokens,
                                    size_t n, size_t from, float *out)
{
    int64_t targets[2 * CONTEXT];
    float weights[2 * CONTEXT];
    for (size_t i = 0; i + 1 < n; i++) {
        targets[i] = tokens[i + 1];
        weights[i] = 1;
    }
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = n - 1 };
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = n - 1 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = n - 1 } },
    };
    tinker_datum d = { .model_input = { &chunk, 1 }, .inputs = in, .n_inputs = 2 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_error err = { 0 };
    tinker_pass *p = tinker_pass_new(e, a, &d, 1, &loss, 1, &err);
    if (p == NULL) {
        TAP_FAIL("pass: %s", err.message);
        return;
    }
    while (tinker_pass_step(p, &err) > 0)
        ;
    const tinker_forward_backward *r = tinker_pass_result(p);
    for (size_t i = 0; r != NULL && i < r->outputs[0].n_tensors; i++)
        if (strcmp(r->outputs[0].tensors[i].name, "logprobs") == 0)
            memcpy(out, (const float *)r->outputs[0].tensors[i].tensor.data + from - 1,
                   (n - from) * sizeof *out);
    tinker_pass_free(p);
}

#endif
