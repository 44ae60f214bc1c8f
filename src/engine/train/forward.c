/* forward.c - a batch through all layers, and the head; see forward.h. */
#include "engine/train/forward.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include "base/err.h"
#include "engine/layers/block.h"
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"
#include "engine/layers/norm.h"
#include "engine/layers/rope.h"

struct forward_space {
    size_t rows, rank;    /* the most that it has memory for */
    struct acts acts;     /* of one layer at a time */
    float *x, *y;         /* (rows, hidden): input and output of a layer */
    float *cs;            /* (ropes, rows, rotary): cosines and sines */
    float *rstd;          /* (rows) */
    float *xa;            /* (rows, rank) */
    uint32_t *segment_of; /* (rows) */
    float *memory;        /* of all the floats */
};

/* Keys or values of one page and one layer; in bfloat16 two of them share a float's space. */
size_t kv_half(const struct model_config *c)
{
    size_t numbers = c->kv_heads * KV_BLOCK * c->head_dim;
    return c->rounded_attention ? numbers / 2 : numbers;
}

size_t kv_page_floats(const struct model_config *c)
{
    return kv_offset(c, c->layers);
}

size_t kv_offset(const struct model_config *c, size_t layer)
{
    return model_attention_layers(c, layer) * 2 * kv_half(c);
}

/* One allocation for all floats: a batch can then fail for lack of memory only here. */
struct forward_space *forward_space_new(const struct model_config *c, size_t rows, size_t rank,
                                        tinker_error *err)
{
    struct forward_space *s = calloc(1, sizeof(*s));
    struct acts_size size = { .rows = rows, .rank = rank };
    size_t acts = acts_floats_most(c, &size), cs = rope_count(c) * c->rotary;
    /* x, y, cs, rstd and xa follow the activations */
    size_t floats = acts + rows * (2 * c->hidden + cs + 1 + rank) + 64;
    size_t bytes = floats * sizeof(float);
    if (s) {
        s->memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        s->segment_of = calloc(rows, sizeof(*s->segment_of));
    }
    if (!s || !s->memory || !s->segment_of) {
        forward_space_free(s);
        err_set(err, TINKER_ENOMEM, "no memory for %zu bytes of activations", bytes);
        return NULL;
    }
    s->rows = rows;
    s->rank = rank;
    s->x = s->memory + acts;
    s->y = s->x + rows * c->hidden;
    s->cs = s->y + rows * c->hidden;
    s->rstd = s->cs + rows * cs;
    s->xa = s->rstd + rows;
    return s;
}

void forward_space_free(struct forward_space *s)
{
    if (!s)
        return;
    free(s->memory);
    free(s->segment_of);
    free(s);
}

/* The angles of a position are the same in all layers and heads, so they are computed once. */
void batch_prepare(const struct model *m, const struct batch *b, uint32_t *segment_of, float *cs)
{
    size_t rotary = m->config.rotary;
    for (size_t i = 0; i < b->n_segments; i++) {
        const struct segment *s = &b->segments[i];
        for (size_t r = 0; r < rope_count(&m->config); r++)
            rope_table(m, r, s->pos, s->n, s->is_long, cs + (r * b->n + s->row) * rotary);
        for (size_t k = 0; k < s->n; k++)
            segment_of[s->row + k] = (uint32_t)i;
    }
}

/* Gemma and Granite multiply the embedding. */
void forward_embed(const struct model *m, const int32_t *tokens, size_t n, float *x)
{
    float scale = m->config.embed_scale;
    model_embed(m, tokens, n, x);
    for (size_t i = 0; scale != 1 && i < n * m->config.hidden; i++)
        x[i] *= scale;
}

struct logits_job {
    const struct model_config *c;
    float *z;
};

/* z / divisor (Granite's logits_scaling), then cap tanh(z / cap) (Gemma 2's final_logit_softcapping). */
static void finish_logits_slice(void *arg, size_t begin, size_t end)
{
    const struct logits_job *j = arg;
    float divisor = j->c->logit_divisor, cap = j->c->logit_cap;
    for (size_t i = begin; divisor != 1 && i < end; i++)
        j->z[i] /= divisor;
    for (size_t i = begin; cap > 0 && i < end; i++)
        j->z[i] = cap * tanhf(j->z[i] / cap);
}

void forward_finish_logits(const struct model *m, struct threads *t, float *z, size_t n)
{
    struct logits_job job = { &m->config, z };
    if (m->config.logit_divisor != 1 || m->config.logit_cap > 0)
        threads_run(t, n * m->config.vocab, 4096, finish_logits_slice, &job);
}

void forward_rows(const struct model *m, struct threads *t, struct forward_space *s,
                  const struct batch *b, float *h)
{
    const struct model_config *c = &m->config;
    struct acts_size size = { .rows = s->rows, .rank = s->rank };
    float *x = s->x, *y = s->y;
    assert(b->n <= s->rows);
    batch_prepare(m, b, s->segment_of, s->cs);
    forward_embed(m, b->tokens, b->n, x);
    struct block block = { .model = m,
                           .threads = t,
                           .batch = b,
                           .segment_of = s->segment_of,
                           .cs = s->cs,
                           .rank = s->rank };
    for (size_t layer = 0; layer < c->layers; layer++) {
        acts_init(&s->acts, c, layer, &size, s->memory);
        block_forward(&block, layer, kv_offset(c, layer), x, &s->acts, y);
        float *swap = x; /* the output is the next layer's input */
        x = y;
        y = swap;
    }
    norm_forward(t, h, s->rstd, x, m->norm, b->n, c->hidden, c->norm_eps);
}

void forward_logits(const struct model *m, struct threads *t, struct forward_space *s,
                    const float *h, size_t n, const struct lora *const *lora, float *logits)
{
    const struct model_config *c = &m->config;
    struct linear_set head = { 1, { &m->head }, { logits }, { { 0 } } };
    assert(n <= s->rows);
    linear_forward(t, &head, h, n);
    struct lora_group groups[LINEAR_GROUPS];
    size_t n_groups = 0;
    for (size_t i = 0; lora && i < n;) { /* runs of rows with one adapter */
        size_t first = i;
        while (i < n && lora[i] == lora[first])
            i++;
        if (!lora[first])
            continue;
        struct lora_part part = { lora_head(lora[first], c->layers), logits + first * c->vocab,
                                  s->xa + first * s->rank, c->vocab };
        if (i - first > LORA_FEW_ROWS) {
            lora_forward_set(t, lora[first], &part, 1, h + first * c->hidden, i - first, c->hidden);
            continue;
        }
        if (n_groups == LINEAR_GROUPS) {
            lora_forward_groups(t, groups, n_groups);
            n_groups = 0;
        }
        groups[n_groups++] =
            (struct lora_group){ lora[first], part, h + first * c->hidden, i - first, c->hidden };
    }
    lora_forward_groups(t, groups, n_groups);
    forward_finish_logits(m, t, logits, n);
}

/* The largest term is exactly 1 and is added last, by log1p: next to it the sum of the
 * others, which is all that a certain token leaves, would lose its digits. */
struct logits_norm logits_normalize(const float *z, size_t vocab, float inv_temperature)
{
    const struct vec_ops *ops = vec_ops();
    size_t top = vec_argmax(z, vocab);
    float max = z[top];
    double others = ops->sum_exp(z, top, max, inv_temperature) +
                    ops->sum_exp(z + top + 1, vocab - top - 1, max, inv_temperature);
    return (struct logits_norm){ .max = max,
                                 .log_sum = (float)log1p(others),
                                 .inv_temperature = inv_temperature };
}
