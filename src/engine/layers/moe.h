/* moe.h - a mixture of experts in the place of a layer's MLP, forward and backward.
 *
 *   p = softmax(router x);  the experts_used largest p are kept, ties to the lower index;
 *   w = p, or p / sum of the kept p when the model renormalizes (the same as a softmax over the
 *   kept logits alone);
 *   y = sum over the kept experts e of w_e down_e(activation(gate_e x, up_e x))
 *
 * A row that goes to an expert is an entry.  Entries lie grouped by expert, rows ascending
 * within a group.  Parts of groups are what runs in parallel: what a row computes does not
 * depend on the other rows of its group, and an expert that many rows want is not left to one
 * thread.  Sums over a group, the gradients of its parameters, are not split. */
#ifndef ENGINE_MOE_H
#define ENGINE_MOE_H

#include "engine/model/model.h"

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
    uint32_t *part;   /* (see moe_parts()): first entry of each part of a group, ascending */
    uint32_t *owner;  /* its expert */
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

/* y (rows, hidden) from x (rows, hidden). */
void moe_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y);
/* s->dn (rows, hidden), the gradient of x, from dy (rows, hidden), that of y.  Adds to the
 * gradients of the parameters. */
void moe_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                  const float *dy, const struct grads *g, struct back *s);

/* ---- for moe_backward.c ------------------------------------------------------------------ */

/* How many parts there are: at most MOE_PART entries of one expert each, whole tiles of them. */
enum { MOE_PART = 96 };
size_t moe_parts(const struct model_config *c, const struct moe_acts *m);

struct moe_part {
    size_t expert, first, n; /* entries [first, first + n) */
    int leads;               /* is the first one of its expert */
};

static inline struct moe_part moe_part(const struct moe_acts *m, size_t i)
{
    size_t expert = m->owner[i], first = m->part[i], left = m->start[expert + 1] - first;
    return (struct moe_part){ .expert = expert,
                              .first = first,
                              .n = left < MOE_PART ? left : MOE_PART,
                              .leads = first == m->start[expert] };
}

static inline const struct linear *moe_linear(const struct layer *l, size_t expert,
                                              enum linear_id id)
{
    return &l->experts[expert * EXPERT_LINEARS + (size_t)(id - LINEAR_GATE)];
}

#endif
