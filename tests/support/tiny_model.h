/* tiny_model.h - tiny random models and training data for tests of the engine. */
#ifndef SUPPORT_TINY_MODEL_H
#define SUPPORT_TINY_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/engine.h>
#include "base/os.h"
#include "base/rand.h"
#include "engine/model/init_model.h"

/* A directory of this test, removed by tiny_done(). */
static char tiny_dir[64];

static inline const char *tiny_path(const char *name)
{
    static char paths[8][160];
    static int next;
    if (!tiny_dir[0]) {
        snprintf(tiny_dir, sizeof(tiny_dir), "/tmp/tinker-test-XXXXXX");
        if (!mkdtemp(tiny_dir))
            abort();
    }
    char *out = paths[next++ % 8];
    snprintf(out, sizeof(paths[0]), "%s/%s", tiny_dir, name);
    return out;
}

static inline void tiny_done(void)
{
    if (tiny_dir[0])
        os_remove_tree(tiny_dir, NULL);
}

/* Small enough for finite differences, odd enough to catch swapped dimensions. */
static inline void tiny_options(struct init_model *o, const char *arch)
{
    init_model_defaults(o);
    init_model_arch(o, arch);
    o->config.vocab = 13;
    o->config.hidden = 10;
    o->config.layers = 2;
    o->config.heads = 4;
    o->config.kv_heads = 2;
    o->config.head_dim = 6;
    o->config.intermediate = 14;
    o->config.context = 256;
    if (o->config.experts) {
        o->config.experts = 5;
        o->config.expert_size = 6;
    }
    if (o->config.rotary)
        o->config.rotary = 2;
    if (o->config.shared)
        o->config.shared_size = 7;
    if (o->config.delta_conv) {
        o->config.delta_k_dim = 3;
        o->config.delta_v_dim = 4;
    }
    o->config.tied = strcmp(arch, "qwen2") != 0;
    if (strcmp(arch, "llama") == 0)
        o->config.rope = (struct rope_config){ .type = ROPE_LLAMA3,
                                               .theta = 500,
                                               .factor = 4,
                                               .low_freq_factor = 1,
                                               .high_freq_factor = 4,
                                               .original_context = 32 };
    o->embed_std = 0.7;
    o->noise = 0.3;
    o->seed = 17;
}

/* Larger, and data of lengths that make several micro-batches. */
static inline void tiny_longer_options(struct init_model *o, const char *arch)
{
    init_model_defaults(o);
    init_model_arch(o, arch);
    o->noise = 0.2;
    o->embed_std = 0.5;
    o->seed = 4;
    o->config.context = 512;
    o->config.layers = 3;
    o->config.vocab = 96;
    o->config.hidden = 32;
    o->config.heads = 2;
    o->config.kv_heads = 1;
    o->config.intermediate = 48;
}
static const size_t tiny_lengths[] = { 60, 33, 1, 200, 7, 300, 90 };
enum { TINY_LENGTHS = sizeof(tiny_lengths) / sizeof(tiny_lengths[0]) };

/* Write the model and open it.  Prints and aborts when that fails: nothing to test. */
static inline tinker_engine *tiny_open(const struct init_model *o,
                                       const tinker_engine_options *opts)
{
    static int serial;
    char name[32];
    tinker_error err = { 0 };
    snprintf(name, sizeof(name), "model-%d", serial++);
    const char *dir = tiny_path(name);
    tinker_engine *e = NULL;
    if (init_model_write(o, dir, &err) == TINKER_OK)
        e = tinker_engine_open(dir, opts, &err);
    if (!e) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return e;
}

/* An adapter that is the same for the same seed; NULL after its error was printed. */
static inline tinker_adapter *tiny_adapter(tinker_engine *e, int64_t rank, int64_t seed)
{
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = rank;
    lora.has_seed = 1;
    lora.seed = seed;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (!a)
        printf("# %s\n", err.message);
    return a;
}

/* n datums with the inputs a loss needs; values depend on (seed, position) only. */
enum { TINY_DATA = 8, TINY_TOKENS = 600 };
struct tiny_data {
    tinker_datum data[TINY_DATA];
    tinker_chunk chunks[TINY_DATA];
    tinker_named_tensor inputs[TINY_DATA][4];
    int32_t tokens[TINY_DATA][TINY_TOKENS];
    int64_t targets[TINY_DATA][TINY_TOKENS];
    float weights[TINY_DATA][TINY_TOKENS], logprobs[TINY_DATA][TINY_TOKENS];
    float advantages[TINY_DATA][TINY_TOKENS];
    size_t n;
};

static inline double tiny_uniform(uint64_t seed, size_t a, size_t b)
{
    return philox_uniform(seed, (uint64_t)a << 32 | b);
}

static inline struct tiny_data *tiny_data(const size_t *lengths, size_t n, size_t vocab,
                                          const char *loss, uint64_t seed)
{
    struct tiny_data *d = calloc(1, sizeof(*d));
    bool rl = strcmp(loss, "cross_entropy") != 0;
    d->n = n;
    for (size_t i = 0; i < n; i++) {
        for (size_t t = 0; t < lengths[i]; t++) {
            d->tokens[i][t] = (int32_t)(tiny_uniform(seed, i, t) * (double)vocab);
            d->targets[i][t] = (int64_t)(tiny_uniform(seed + 1, i, t) * (double)vocab);
            d->weights[i][t] = (float)(2 * tiny_uniform(seed + 2, i, t) - 0.4);
            d->logprobs[i][t] = (float)(-2.5 + 2 * tiny_uniform(seed + 3, i, t));
            d->advantages[i][t] = (float)(2 * tiny_uniform(seed + 4, i, t) - 1);
        }
        d->weights[i][0] = 0;
        d->chunks[i] = (tinker_chunk){ .tokens = d->tokens[i], .n_tokens = lengths[i] };
        tinker_tensor t = { TINKER_INT64, d->targets[i], lengths[i], NULL, 0, NULL, NULL };
        d->inputs[i][0] = (tinker_named_tensor){ "target_tokens", t };
        t.dtype = TINKER_FLOAT32;
        t.data = d->weights[i];
        d->inputs[i][1] = (tinker_named_tensor){ "weights", t };
        t.data = d->logprobs[i];
        d->inputs[i][2] = (tinker_named_tensor){ "logprobs", t };
        t.data = d->advantages[i];
        d->inputs[i][3] = (tinker_named_tensor){ "advantages", t };
        d->data[i] = (tinker_datum){ .model_input = { &d->chunks[i], 1 },
                                     .inputs = d->inputs[i],
                                     .n_inputs = rl ? 4 : 2 };
    }
    return d;
}

/* Run a pass to its end; NULL with *err set when it fails. */
static inline tinker_pass *tiny_pass(tinker_engine *e, tinker_adapter *a, const struct tiny_data *d,
                                     const tinker_loss *loss, int forward_only, tinker_error *err)
{
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, loss, forward_only, err);
    int more = p ? 1 : -1;
    while (more > 0)
        more = tinker_pass_step(p, err);
    if (more == 0)
        return p;
    tinker_pass_free(p);
    return NULL;
}

/* The same, for its effect on the gradient alone; the summed loss. */
static inline double tiny_train(tinker_engine *e, tinker_adapter *a, const struct tiny_data *d,
                                const char *loss)
{
    tinker_error err = { 0 };
    tinker_loss l = { .name = loss };
    tinker_pass *p = tiny_pass(e, a, d, &l, 0, &err);
    if (!p) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    const tinker_forward_backward *r = tinker_pass_result(p);
    double sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    tinker_pass_free(p);
    return sum;
}

#endif
