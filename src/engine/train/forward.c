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
    float *cs;            /* (rows, head_dim): cosines and sines */
    float *rstd;          /* (rows) */
    float *xa;            /* (rows, rank) */
    uint32_t *segment_of; /* (rows) */
    float *memory;        /* of all the floats */
};

size_t kv_half(const struct model_config *c)
{
    return c->kv_heads * KV_BLOCK * c->head_dim;
}

size_t kv_page_floats(const struct model_config *c)
{
    return c->layers * 2 * kv_half(c);
}

struct forward_space *forward_space_new(const struct model_config *c, size_t rows, size_t rank,
                                        tinker_error *err)
{
    struct forward_space *s = calloc(1, sizeof(*s));
    /* x, y, cs, rstd and xa follow the activations */
    size_t floats =
        acts_floats(c, rows, rank) + rows * (2 * c->hidden + c->head_dim + 1 + rank) + 64;
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
    acts_init(&s->acts, c, rows, rank, s->memory);
    s->x = s->memory + acts_floats(c, rows, rank);
    s->y = s->x + rows * c->hidden;
    s->cs = s->y + rows * c->hidden;
    s->rstd = s->cs + rows * c->head_dim;
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

void batch_prepare(const struct model *m, const struct batch *b, uint32_t *segment_of, float *cs)
{
    for (size_t i = 0; i < b->n_segments; i++) {
        const struct segment *s = &b->segments[i];
        rope_table(m, s->pos, s->n, cs + s->row * m->config.head_dim);
        for (size_t k = 0; k < s->n; k++)
            segment_of[s->row + k] = (uint32_t)i;
    }
}

void forward_rows(const struct model *m, struct threads *t, struct forward_space *s,
                  const struct batch *b, float *h)
{
    const struct model_config *c = &m->config;
    size_t half = kv_half(c);
    float *x = s->x, *y = s->y;
    assert(b->n <= s->rows);
    batch_prepare(m, b, s->segment_of, s->cs);
    model_embed(m, b->tokens, b->n, x);
    struct block block = { .model = m,
                           .threads = t,
                           .batch = b,
                           .segment_of = s->segment_of,
                           .cs = s->cs,
                           .rank = s->rank };
    for (size_t layer = 0; layer < c->layers; layer++) {
        block_forward(&block, layer, layer * 2 * half, (layer * 2 + 1) * half, x, &s->acts, y);
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
    struct linear_set head = { 1, { &m->head }, { logits } };
    assert(n <= s->rows);
    linear_forward(t, &head, h, n);
    for (size_t i = 0; lora && i < n;) { /* runs of rows with one adapter */
        size_t first = i;
        while (i < n && lora[i] == lora[first])
            i++;
        if (lora[first])
            lora_forward(t, lora[first], lora_head(lora[first], c->layers),
                         logits + first * c->vocab, s->xa + first * s->rank, h + first * c->hidden,
                         i - first, c->vocab, c->hidden);
    }
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
