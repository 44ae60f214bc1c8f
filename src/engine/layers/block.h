/* block.h - one transformer layer, forward and backward.
 *
 *   x' = x  + r post1(mixer(norm1(x)))
 *   y  = x' + r post2(mlp(norm2(x')))
 *
 * The mixer is attention (self_attention.h) or the gated delta rule (delta.h); the MLP dense
 * (mlp.h) or a mixture of experts (moe.h).  Models have the norms before the branches, those after
 * them, or both; r is 1 but for Granite.
 *
 * struct acts holds what the forward computes and the backward reads.  Training keeps
 * one per layer, or one in all when activations are recomputed; sampling keeps one. */
#ifndef ENGINE_BLOCK_H
#define ENGINE_BLOCK_H

#include "engine/layers/attention.h"
#include "engine/layers/delta.h"
#include "engine/layers/moe.h"
#include "engine/model/params.h"

struct acts {
    float *n1, *n2, *x_mid;         /* (rows, hidden); n1 and n2 with norms before the branches */
    float *branch1, *branch2;       /* (rows, hidden): before the norms after the branches */
    float *rstd1, *rstd2;           /* (rows) */
    float *post_rstd1, *post_rstd2; /* (rows) */
    /* attention; q_raw as q_proj gives it, where norm or gate need it */
    float *q_raw, *q, *att; /* (rows, heads * hd); q_raw twice as wide with a gate */
    float *gated;           /* (rows, heads * hd) */
    float *k_raw, *k, *v;   /* (rows, kv_heads * hd); k: normed as a whole */
    float *q_rstd, *k_rstd; /* (rows, heads), (rows, kv_heads), or (rows) as a whole */
    float *lse;             /* (rows, heads) */
    struct delta_acts delta;
    float *gate, *up, *act; /* (rows, intermediate), or (entries, expert_size) */
    float *shared_gate, *shared_up, *shared_act; /* (rows, shared_size) */
    float *shared_out, *shared_mix;              /* (rows, hidden), (rows) */
    float *xa[LINEARS];                          /* (rows, rank), or (entries, rank) */
    struct moe_acts moe;
};

/* Floats that acts of so many rows of a layer need, and their layout in memory.  chunks: how many
 * states of the delta rule they keep, see delta_chunks(). */
struct acts_size {
    size_t rows, rank, chunks;
};
size_t acts_floats(const struct model_config *c, size_t layer, const struct acts_size *size);
/* The most of any layer. */
size_t acts_floats_most(const struct model_config *c, const struct acts_size *size);
void acts_init(struct acts *a, const struct model_config *c, size_t layer,
               const struct acts_size *size, float *mem);

/* What stays the same for all layers of one batch. */
struct block {
    const struct model *model;
    struct threads *threads;
    const struct batch *batch;
    const uint32_t *segment_of; /* (rows) */
    const float *cs;            /* (ropes, rows, rotary): rope_table() of every row */
    size_t rank;                /* row length of acts.xa: the largest rank of the batch */
};

/* y (rows, hidden) from x (rows, hidden); y must not be x.  Keys and values go to the
 * pages at the given offset, see kv_offset(). */
void block_forward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                   struct acts *a, float *y);

/* Where gradients go: the layout of the adapter's parameters. */
struct grads {
    const struct params *params;
    const struct lora *lora; /* NULL: rank 0, every weight */
    const float *w;          /* the parameters the lora points into */
    float *g;
};

/* Scratch of the backward pass, shared by all layers. */
struct back {
    float *dn;        /* (rows, hidden) */
    float *dbranch;   /* (rows, hidden): the gradient of a branch where it is not dx itself */
    float *dq, *datt; /* (rows, heads * hd) */
    float *dq_wide;   /* (rows, heads, 2 * hd), with a gate */
    struct delta_back delta;
    float *dk, *dv;     /* (rows, kv_heads * hd) */
    float *dgate, *dup; /* (rows, intermediate), or (entries, expert_size) */
    float *shared_dgate, *shared_dup, *shared_dout; /* (rows, shared_size), (rows, hidden) */
    float *shared_dx, *shared_dmix;                 /* (rows, hidden), (rows) */
    float *dxa[LINEAR_SET];                         /* (rows, rank) */
    struct moe_back moe;
};
size_t back_floats(const struct model_config *c, size_t rows, size_t rank);
void back_init(struct back *s, const struct model_config *c, size_t rows, size_t rank, float *mem);

/* dx (rows, hidden): in, the gradient of y; out, that of x.  Adds to grads. */
void block_backward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                    const struct acts *a, float *dx, const struct grads *grads, struct back *s);

/* Gradient of a LoRA factor, and of parameter `index` of a rank-0 adapter (NULL when it
 * has none). */
float *grads_lora(const struct grads *g, const float *factor);
float *grads_param(const struct grads *g, int index);

#endif
