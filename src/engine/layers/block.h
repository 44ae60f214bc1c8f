/* block.h - one transformer layer, forward and backward.
 *
 *   x' = x  + o(attention(rope(qknorm(q n1)), rope(qknorm(k n1)), v n1)),  n1 = norm1(x)
 *   y  = x' + down(silu(gate n2) * up n2),                                 n2 = norm2(x')
 *
 * or a mixture of experts in place of the MLP (moe.h).
 *
 * struct acts holds what the forward computes and the backward reads.  Training keeps
 * one per layer, or one in all when activations are recomputed; sampling keeps one. */
#ifndef ENGINE_BLOCK_H
#define ENGINE_BLOCK_H

#include "engine/layers/attention.h"
#include "engine/layers/moe.h"
#include "engine/model/params.h"

struct acts {
    float *n1, *n2, *x_mid; /* (rows, hidden) */
    float *rstd1, *rstd2;   /* (rows) */
    float *q_raw, *q, *att; /* (rows, heads * hd); q_raw before norm and rope */
    float *k_raw, *v;       /* (rows, kv_heads * hd) */
    float *q_rstd, *k_rstd; /* (rows, heads), (rows, kv_heads) */
    float *lse;             /* (rows, heads) */
    float *gate, *up, *act; /* (rows, intermediate), or (entries, expert_size) */
    float *xa[LINEARS];     /* (rows, rank), or (entries, rank) */
    struct moe_acts moe;
};

/* Floats that acts of so many rows need, and their layout in memory. */
size_t acts_floats(const struct model_config *c, size_t rows, size_t rank);
void acts_init(struct acts *a, const struct model_config *c, size_t rows, size_t rank, float *mem);

/* What stays the same for all layers of one batch. */
struct block {
    const struct model *model;
    struct threads *threads;
    const struct batch *batch;
    const uint32_t *segment_of; /* (rows) */
    const float *cs;            /* (rows, hd): rope_table() of every row */
    size_t rank;                /* row length of acts.xa: the largest rank of the batch */
};

/* y (rows, hidden) from x (rows, hidden); y must not be x.  Keys and values go to the
 * pages at the given offsets. */
void block_forward(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                   const float *x, struct acts *a, float *y);

/* Where gradients go: the layout of the adapter's parameters. */
struct grads {
    const struct params *params;
    const struct lora *lora; /* NULL: rank 0, every weight */
    const float *w;          /* the parameters the lora points into */
    float *g;
};

/* Scratch of the backward pass, shared by all layers. */
struct back {
    float *dn;          /* (rows, hidden) */
    float *dq, *datt;   /* (rows, heads * hd) */
    float *dk, *dv;     /* (rows, kv_heads * hd) */
    float *dgate, *dup; /* (rows, intermediate), or (entries, expert_size) */
    float *dxa;         /* (rows, rank) */
    struct moe_back moe;
};
size_t back_floats(const struct model_config *c, size_t rows, size_t rank);
void back_init(struct back *s, const struct model_config *c, size_t rows, size_t rank, float *mem);

/* dx (rows, hidden): in, the gradient of y; out, that of x.  Adds to grads. */
void block_backward(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                    const float *x, const struct acts *a, float *dx, const struct grads *grads,
                    struct back *s);

/* Gradient of a LoRA factor, and of parameter `index` of a rank-0 adapter (NULL when it
 * has none). */
float *grads_lora(const struct grads *g, const float *factor);
float *grads_param(const struct grads *g, int index);

#endif
