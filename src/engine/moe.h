/* moe.h - a mixture of experts in the place of a layer's MLP, forward and backward.
 *
 *   p = softmax(router n2);  the experts_used largest p are kept, ties to the lower index;
 *   w = p, or p / sum of the kept p when the model renormalises;
 *   y = sum over the kept experts e of w_e down_e(silu(gate_e n2) * up_e n2)
 *
 * A row that goes to an expert is an entry.  Entries lie grouped by expert, rows ascending
 * within a group; an expert works on its group alone, on one thread, so experts are what
 * runs in parallel.  What a row computes does not depend on the other rows of a group. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/model.h"

struct acts;
struct back;
struct block;
struct grads;

/* What the forward leaves, beside gate, up, act and xa of struct acts, whose rows are
 * entries in a sparse layer. */
struct moe_acts {
    float *probs;     /* (rows, experts) */
    float *weight;    /* (rows, used) */
    uint32_t *expert; /* (rows, used), most probable first */
    uint32_t *entry;  /* (rows, used): where the row lies in the group of that expert */
    uint32_t *row;    /* (entries): the way back */
    uint32_t *start;  /* (experts + 1): first entry of each group */
    uint32_t *active; /* (experts): those with entries, ascending; see moe_active() */
    float *x, *y;     /* (entries, hidden): inputs and outputs of the experts */
};

/* Scratch of the backward. */
struct moe_back {
    float *dx, *dy;             /* (entries, hidden) */
    float *dlogits;             /* (rows, experts) */
    float *dxa[EXPERT_LINEARS]; /* (entries, rank) */
};

/* Floats that each needs, 0 for a model without experts, and their layout in mem. */
size_t moe_acts_floats(const struct model_config *c, size_t rows);
void moe_acts_init(struct moe_acts *m, const struct model_config *c, size_t rows, float *mem);
size_t moe_back_floats(const struct model_config *c, size_t rows, size_t rank);
void moe_back_init(struct moe_back *m, const struct model_config *c, size_t rows, size_t rank,
                   float *mem);

/* y (rows, hidden) from a->n2. */
void moe_forward(const struct block *b, size_t layer, struct acts *a, float *y);
/* s->dn (rows, hidden), the gradient of n2, from dy (rows, hidden), that of y.  Adds to the
 * gradients of the parameters. */
void moe_backward(const struct block *b, size_t layer, const struct acts *a, const float *dy,
                  const struct grads *g, struct back *s);

/* ---- for moe_backward.c ------------------------------------------------------------------ */

/* How many experts have entries: few of many when a token is decoded, so that slices of all
 * experts would give one thread most of the work. */
size_t moe_active(const struct model_config *c, const struct moe_acts *m);

static inline const struct linear *moe_linear(const struct layer *l, size_t expert,
                                              enum linear_id id)
{
    return &l->experts[expert * EXPERT_LINEARS + (size_t)(id - LINEAR_GATE)];
}

#endif
