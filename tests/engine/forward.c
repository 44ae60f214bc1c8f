/* forward.c - a row's numbers depend on its own sequence alone: not on how the sequence
 * was cut into batches, not on its neighbors, their adapters, or the threads. */
#include <tinker/engine.h>
#include "engine/layers/delta.h"
#include "engine/model/adapter.h"
#include "engine/train/forward.h"
#include "support/tap.h"
#include "support/tiny_model.h"

enum { T = 75, PAGES = (T + KV_BLOCK - 1) / KV_BLOCK };

struct sequence {
    int32_t tokens[T];
    const struct lora *lora;
    float *kv, *state;
    float *pages[PAGES];
    size_t done;
    float *logits; /* (T, vocab) */
};

static void options(struct init_model *o, const char *arch)
{
    init_model_defaults(o);
    init_model_arch(o, arch);
    o->noise = 0.2;
    o->embed_std = 0.5;
    o->config.hidden = 48;
    o->config.vocab = 70;
    if (o->config.experts)
        o->config.experts = 16; /* as in real models, a multiple of what memory is aligned to */
}

static void sequence_init(struct sequence *s, const tinker_engine *e, const struct lora *lora,
                          uint64_t seed)
{
    const struct model_config *c = &e->model->config;
    *s = (struct sequence){ .lora = lora };
    s->kv = malloc(PAGES * kv_page_floats(c) * sizeof(float));
    s->state = malloc((delta_state_floats(c) + 1) * sizeof(float));
    memset(s->state, 0xff, delta_state_floats(c) * sizeof(float)); /* nor this */
    s->logits = calloc(T * c->vocab, sizeof(float));
    /* what a page holds beyond the sequence must not matter */
    memset(s->kv, 0xff, PAGES * kv_page_floats(c) * sizeof(float));
    for (size_t i = 0; i < T; i++)
        s->tokens[i] = (int32_t)(tiny_uniform(seed, 0, i) * (double)c->vocab);
    for (size_t i = 0; i < PAGES; i++)
        s->pages[i] = s->kv + i * kv_page_floats(c);
}

static void sequence_clear(struct sequence *s)
{
    free(s->kv);
    free(s->state);
    free(s->logits);
}

/* Advance each sequence by take[i] tokens in one batch. */
static void advance(tinker_engine *e, struct forward_space *space, struct sequence **s,
                    const size_t *take, size_t n)
{
    const struct model *m = e->model;
    struct segment segments[8];
    int32_t tokens[8 * T];
    const struct lora *lora[8 * T];
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        segments[i] = (struct segment){ .row = rows,
                                        .n = take[i],
                                        .pos = s[i]->done,
                                        .lora = s[i]->lora,
                                        .pages = s[i]->pages,
                                        .state = s[i]->state };
        for (size_t k = 0; k < take[i]; k++, rows++) {
            tokens[rows] = s[i]->tokens[s[i]->done + k];
            lora[rows] = s[i]->lora;
        }
    }
    float *h = malloc(rows * m->config.hidden * sizeof(float));
    float *logits = malloc(rows * m->config.vocab * sizeof(float));
    struct batch batch = { .n = rows, .tokens = tokens, .segments = segments, .n_segments = n };
    forward_rows(m, e->threads, space, &batch, h);
    forward_logits(m, e->threads, space, h, rows, lora, logits);
    rows = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(s[i]->logits + s[i]->done * m->config.vocab, logits + rows * m->config.vocab,
               take[i] * m->config.vocab * sizeof(float));
        s[i]->done += take[i];
        rows += take[i];
    }
    free(h);
    free(logits);
}

static tinker_adapter *random_adapter(tinker_engine *e, int64_t rank, int64_t seed)
{
    tinker_adapter *a = tiny_adapter(e, rank, seed);
    for (size_t i = 0; i < a->params.n; i++) {
        const struct param *p = &a->params.list[i];
        for (size_t k = 0; strstr(p->name, "lora_B") && k < param_count(p); k++)
            a->w[p->offset + k] = (float)(0.1 * (tiny_uniform((uint64_t)seed, i, k) - 0.5));
    }
    return a;
}

static void check_arch(const char *arch, int threads, tinker_weights_dtype dtype)
{
    struct init_model o;
    tinker_error err;
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.threads = threads;
    opts.dtype = dtype;
    options(&o, arch);
    tinker_engine *e = tiny_open(&o, &opts);
    tinker_adapter *a[2] = { random_adapter(e, 4, 1), random_adapter(e, 9, 2) };
    const struct lora *loras[3] = { NULL, adapter_lora(a[0]), adapter_lora(a[1]) };
    struct forward_space *space = forward_space_new(&e->model->config, 8 * T, 9, &err);
    struct sequence whole[3], cut[3], mixed[3];
    size_t bytes = T * o.config.vocab * sizeof(float);
    for (int i = 0; i < 3; i++) {
        struct sequence *one = &whole[i];
        sequence_init(&whole[i], e, loras[i], (uint64_t)i);
        sequence_init(&cut[i], e, loras[i], (uint64_t)i);
        sequence_init(&mixed[i], e, loras[i], (uint64_t)i);
        advance(e, space, &one, (size_t[]){ T }, 1);
        one = &cut[i]; /* a prompt, a slice that ends inside a page, then token by token */
        advance(e, space, &one, (size_t[]){ 20 }, 1);
        advance(e, space, &one, (size_t[]){ 29 }, 1);
        while (one->done < T)
            advance(e, space, &one, (size_t[]){ 1 }, 1);
        CHECK_MEM(cut[i].logits, bytes, whole[i].logits, bytes);
        CHECK(i == 0 || memcmp(whole[i].logits, whole[0].logits, bytes) != 0);
    }
    struct sequence *all[3] = { &mixed[2], &mixed[0], &mixed[1] };
    advance(e, space, all, (size_t[]){ 33, 1, 7 }, 3);
    advance(e, space, all, (size_t[]){ 1, 64, 1 }, 3);
    while (mixed[2].done < T)
        advance(e, space, all, (size_t[]){ 1 }, 1);
    advance(e, space, all + 1, (size_t[]){ T - 65, T - 8 }, 2);
    for (int i = 0; i < 3; i++) {
        CHECK_MEM(mixed[i].logits, bytes, whole[i].logits, bytes);
        sequence_clear(&whole[i]);
        sequence_clear(&cut[i]);
        sequence_clear(&mixed[i]);
    }
    forward_space_free(space);
    tinker_adapter_free(a[0]);
    tinker_adapter_free(a[1]);
    tinker_engine_close(e);
}

static void test_qwen3(void)
{
    check_arch("qwen3", 1, TINKER_WEIGHTS_F32);
    check_arch("qwen3", 2, TINKER_WEIGHTS_F32);
}

static void test_qwen2_and_llama(void)
{
    check_arch("qwen2", 2, TINKER_WEIGHTS_F32);
    check_arch("llama", 3, TINKER_WEIGHTS_F32);
}

static void test_qwen3_moe(void)
{
    check_arch("qwen3_moe", 1, TINKER_WEIGHTS_F32);
    check_arch("qwen3_moe", 3, TINKER_WEIGHTS_F32);
}

/* Windows that end inside a page, caps, sinks, norms over whole rows, states across chunks. */
static void test_families(void)
{
    static const char *const names[] = { "mistral", "gemma2",  "gemma3_text",  "phi3",
                                         "olmo3",   "gpt_oss", "qwen3_5_text", "qwen3_5_moe_text" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        check_arch(names[i], 1 + (int)i % 3, TINKER_WEIGHTS_F32);
}

static void test_bf16_weights(void)
{
    check_arch("qwen3", 2, TINKER_WEIGHTS_BF16);
    check_arch("qwen3_moe", 2, TINKER_WEIGHTS_BF16);
}

/* The pass gives the logprobs that the logits of forward_rows() say, bit for bit. */
static void check_pass(const char *arch)
{
    struct init_model o;
    tinker_error err = { 0 };
    options(&o, arch);
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = random_adapter(e, 4, 1);
    struct forward_space *space = forward_space_new(&e->model->config, T, 4, &err);
    struct sequence s, *one = &s;
    sequence_init(&s, e, adapter_lora(a), 3);
    while (s.done < T)
        advance(e, space, &one, (size_t[]){ s.done % 3 + 1 < T - s.done ? s.done % 3 + 1 : 1 }, 1);
    const size_t lengths[] = { 30, T, 5 };
    struct tiny_data *d = tiny_data(lengths, 3, o.config.vocab, "cross_entropy", 3);
    memcpy(d->tokens[1], s.tokens, sizeof(s.tokens));
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p = tiny_pass(e, a, d, &loss, 0, &err);
    REQUIRE(p);
    const float *lp = tinker_pass_result(p)->outputs[1].tensors[0].tensor.data;
    for (size_t t = 0; t < T; t++) {
        const float *z = s.logits + t * o.config.vocab;
        struct logits_norm norm = logits_normalize(z, o.config.vocab, 1);
        float want = logits_logprob(&norm, z[d->targets[1][t]]);
        CHECK_MEM(&lp[t], 4, &want, 4);
    }
    tinker_pass_free(p);
    free(d);
    sequence_clear(&s);
    forward_space_free(space);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void test_pass_equals_forward(void)
{
    check_pass("qwen3");
    check_pass("gemma2");
    check_pass("qwen3_5_text");
}

/* A token that is almost certain: its logprob is tiny and keeps its digits, wherever the
 * token stands. */
static void test_certain_token_keeps_its_digits(void)
{
    float z[70];
    for (size_t at = 0; at < 70; at += 23) {
        double others = 0;
        for (size_t i = 0; i < 70; i++) {
            z[i] = (float)(37.25 - 13 - (double)i / 7);
            others += i == at ? 0 : exp((double)z[i] - 37.25);
        }
        z[at] = 37.25f;
        struct logits_norm n = logits_normalize(z, 70, 1);
        CHECK_NEAR(logits_logprob(&n, z[at]) / -log1p(others), 1, 1e-6);
        CHECK_NEAR(logits_logprob(&n, z[1]), (double)z[1] - 37.25 - log1p(others), 1e-5);
        n = logits_normalize(z, 70, 0.5f);
        CHECK(logits_logprob(&n, z[at]) < -1e-3f);
    }
    for (size_t i = 0; i < 70; i++)
        z[i] = -3;
    struct logits_norm flat = logits_normalize(z, 70, 1);
    CHECK_NEAR(logits_logprob(&flat, z[9]), -log(70), 1e-6);
    flat = logits_normalize(z, 1, 1);
    CHECK_NEAR(logits_logprob(&flat, z[0]), 0, 0);
}

int main(void)
{
    RUN(test_certain_token_keeps_its_digits);
    RUN(test_qwen3);
    RUN(test_qwen2_and_llama);
    RUN(test_qwen3_moe);
    RUN(test_families);
    RUN(test_bf16_weights);
    RUN(test_pass_equals_forward);
    tiny_done();
    return tap_done();
}
