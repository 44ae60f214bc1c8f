/* lora.c - the low-rank part of a linear layer, forward and backward.
 *
 * y += s (x A^T) B^T.  With dy given:
 *   dxa = s dy B        (rows, rank)
 *   dB += s dy^T xa     (out, rank)
 *   dA += dxa^T x       (rank, in)
 *   dx += dxa A         (rows, in) */
#include "engine/layers/lora.h"
#include "engine/layers/linear.h"

const struct lora_pair *lora_pair(const struct lora *l, size_t layer, enum linear_id id)
{
    return &l->pairs[layer * LINEARS + (size_t)id];
}

const struct lora_pair *lora_head(const struct lora *l, size_t layers)
{
    return &l->pairs[layers * LINEARS];
}

/* A step of 0 gives every expert the same factor. */
struct lora_pair lora_expert(const struct lora_pair *p, size_t expert)
{
    if (!p->a)
        return *p;
    return (struct lora_pair){ .a = p->a + expert * p->a_step, .b = p->b + expert * p->b_step };
}

void lora_forward(struct threads *t, const struct lora *l, const struct lora_pair *p, float *y,
                  float *xa, const float *x, size_t n, size_t out, size_t in)
{
    struct lora_part part = { .pair = p, .y = y, .xa = xa, .out = out };
    lora_forward_set(t, l, &part, 1, x, n, in);
}

void lora_forward_set(struct threads *t, const struct lora *l, const struct lora_part *parts,
                      size_t n_parts, const float *x, size_t n, size_t in)
{
    struct dense_product down[LINEAR_SET], up[LINEAR_SET];
    size_t count = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const struct lora_part *p = &parts[i];
        if (!p->pair->a)
            continue;
        down[count] = (struct dense_product){ .y = p->xa, .x = x, .w = p->pair->a, .O = l->rank };
        up[count++] = (struct dense_product){ .y = p->y, .x = p->xa, .w = p->pair->b, .O = p->out };
    }
    /* all x A^T first, then all B parts: with few rows the threads join twice, not 2 n_parts
     * times */
    linear_nt_set(t, down, count, n, in, 1, 0);
    linear_nt_set(t, up, count, n, l->rank, l->scale, 1);
}

void lora_forward_down(struct threads *t, const struct lora *l, const struct lora_part *parts,
                       size_t n_parts, const float *x, size_t n, size_t in, struct low_rank *low)
{
    struct dense_product down[LINEAR_SET];
    size_t count = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const struct lora_part *p = &parts[i];
        low[i] = (struct low_rank){ 0 };
        if (!p->pair->a)
            continue;
        down[count++] = (struct dense_product){ .y = p->xa, .x = x, .w = p->pair->a, .O = l->rank };
        low[i] =
            (struct low_rank){ .x = p->xa, .w = p->pair->b, .rank = l->rank, .alpha = l->scale };
    }
    linear_nt_set(t, down, count, n, in, 1, 0);
}

/* One run of all x A^T, one of all B parts, whatever the number of adapters. */
void lora_forward_groups(struct threads *t, const struct lora_group *groups, size_t n)
{
    struct dense_group down[LINEAR_GROUPS], up[LINEAR_GROUPS];
    for (size_t from = 0; from < n;) {
        size_t count = 0;
        for (; from < n && count < LINEAR_GROUPS; from++) {
            const struct lora_group *g = &groups[from];
            const struct lora_part *p = &g->part;
            if (!p->pair->a)
                continue;
            down[count] = (struct dense_group){
                .product = { .y = p->xa, .x = g->x, .w = p->pair->a, .O = g->lora->rank },
                .N = g->n,
                .C = g->in,
                .alpha = 1,
            };
            up[count++] = (struct dense_group){
                .product = { .y = p->y, .x = p->xa, .w = p->pair->b, .O = p->out },
                .N = g->n,
                .C = g->lora->rank,
                .alpha = g->lora->scale,
            };
        }
        linear_nt_groups(t, down, count, 0);
        linear_nt_groups(t, up, count, 1);
    }
}

struct low_rank lora_backward_down(struct threads *t, const struct lora *l,
                                   const struct lora_pair *p, float *dxa, const float *dy, size_t n,
                                   size_t out)
{
    if (!p->a)
        return (struct low_rank){ 0 };
    linear_nn(t, l->gradients, dxa, dy, p->b, n, l->rank, out, l->scale, 0);
    return (struct low_rank){
        .x = dxa, .w = p->a, .rank = l->rank, .alpha = 1, .factors = l->gradients
    };
}

/* dxa is kept for lora_backward_factors(), which may run over more rows at once. */
void lora_backward_input(struct threads *t, const struct lora *l, const struct lora_pair *p,
                         float *dx, float *dxa, const float *dy, size_t n, size_t out, size_t in)
{
    if (!p->a)
        return;
    linear_nn(t, l->gradients, dxa, dy, p->b, n, l->rank, out, l->scale, 0);
    if (dx)
        linear_nn(t, l->gradients, dx, dxa, p->a, n, in, l->rank, 1, 1);
}

/* Sums over rows; called once for all rows that share the factors. */
void lora_backward_factors(struct threads *t, const struct lora *l, const struct lora_pair *p,
                           float *da, float *db, const float *dxa, const float *dy, const float *x,
                           const float *xa, size_t n, size_t out, size_t in)
{
    if (p->a && db)
        linear_tn(t, l->gradients, db, dy, xa, n, out, l->rank, l->scale, 1);
    if (p->a && da)
        linear_tn(t, l->gradients, da, dxa, x, n, l->rank, in, 1, 1);
}

void lora_backward(struct threads *t, const struct lora *l, const struct lora_pair *p, float *da,
                   float *db, float *dx, float *dxa, const float *dy, const float *x,
                   const float *xa, size_t n, size_t out, size_t in)
{
    lora_backward_input(t, l, p, dx, dxa, dy, n, out, in);
    lora_backward_factors(t, l, p, da, db, dxa, dy, x, xa, n, out, in);
}
