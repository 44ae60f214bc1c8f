/* block_linear.c - see block_linear.h.
 *
 * LoRA parts are added per run of rows that share an adapter, so neighbors in a batch never
 * meet. */
#include "engine/layers/block_linear.h"

/* Add the LoRA parts of linears that read x to their y.  Consecutive segments with one adapter are
 * one product.  Those of few rows are collected, so that a batch of many adapters costs two runs of
 * the threads, as one adapter does. */
static void add_layer_lora(const struct block *b, size_t layer, const struct linear_set *set,
                           const enum linear_id *ids, const struct acts *a, const float *x)
{
    const struct segment *s = b->batch->segments, *end = s + b->batch->n_segments;
    struct lora_group groups[LINEAR_GROUPS];
    size_t in = set->linear[0]->in, n_groups = 0;
    while (s < end) {
        const struct segment *first = s;
        struct lora_part parts[LINEAR_SET];
        size_t rows = 0;
        for (; s < end && s->lora == first->lora; s++)
            rows += s->n;
        if (!first->lora)
            continue;
        for (size_t i = 0; i < set->n; i++)
            parts[i] =
                (struct lora_part){ lora_pair(first->lora, layer, ids[i]),
                                    set->y[i] + first->row * set->linear[i]->out,
                                    a->xa[ids[i]] + first->row * b->rank, set->linear[i]->out };
        if (rows > LORA_FEW_ROWS) {
            lora_forward_set(b->threads, first->lora, parts, set->n, x + first->row * in, rows, in);
            continue;
        }
        if (n_groups + set->n > LINEAR_GROUPS) {
            lora_forward_groups(b->threads, groups, n_groups);
            n_groups = 0;
        }
        for (size_t i = 0; i < set->n; i++)
            groups[n_groups++] =
                (struct lora_group){ first->lora, parts[i], x + first->row * in, rows, in };
    }
    lora_forward_groups(b->threads, groups, n_groups);
}

/* The adapter of all rows of the batch, as in training; NULL: there is none, or there are several. */
static const struct lora *find_only_lora(const struct batch *batch)
{
    for (size_t i = 1; i < batch->n_segments; i++)
        if (batch->segments[i].lora != batch->segments[0].lora)
            return NULL;
    return batch->n_segments ? batch->segments[0].lora : NULL;
}

void block_linears(const struct block *b, size_t layer, size_t n, const enum linear_id *ids,
                   float *const *y, const struct acts *a, const float *x)
{
    struct linear_set set = { .n = n };
    for (size_t i = 0; i < n; i++) {
        set.linear[i] = &b->model->layers[layer].linear[ids[i]];
        set.y[i] = y[i];
    }
    const struct lora *only = find_only_lora(b->batch);
    if (!only || b->batch->n <= LORA_FEW_ROWS) {
        linear_forward(b->threads, &set, x, b->batch->n);
        add_layer_lora(b, layer, &set, ids, a, x);
        return;
    }
    struct lora_part parts[LINEAR_SET];
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct lora_part){ lora_pair(only, layer, ids[i]), y[i], a->xa[ids[i]],
                                       set.linear[i]->out };
    lora_forward_down(b->threads, only, parts, n, x, b->batch->n, set.linear[0]->in, set.low);
    linear_forward(b->threads, &set, x, b->batch->n);
}

/* Where a parameter's gradient goes for the linear's own rows of it, or elements of a vector. */
static float *grads_rows(const struct grads *g, int index, size_t first, size_t cols)
{
    float *at = grads_param(g, index);
    return at ? at + first * cols : NULL;
}

/* Parameter gradients of one linear: with a rank its pair alone is trained, with rank 0 weight and
 * bias. */
static void add_linear_grads(const struct block *b, size_t layer, enum linear_id id,
                             const struct grads *g, const float *dy, const float *x,
                             const float *xa, const float *dxa)
{
    const struct linear *l = &b->model->layers[layer].linear[id];
    if (g->lora) {
        const struct lora_pair *p = lora_pair(g->lora, layer, id);
        lora_backward_factors(b->threads, g->lora, p, grads_lora(g, p->a), grads_lora(g, p->b), dxa,
                              dy, x, xa, b->batch->n, l->out, l->in);
    } else {
        const struct layer_params *p = &g->params->layers[layer];
        size_t first, rows;
        model_module(&b->model->config, id, &first, &rows);
        linear_gradient(b->threads, linear_factors(l), grads_rows(g, p->weight[id], first, l->in),
                        grads_rows(g, p->bias[id], first, 1), dy, x, b->batch->n, l->out, l->in);
    }
}

void block_linears_backward(const struct block *b, size_t layer, size_t n,
                            const enum linear_id *ids, float *const *dy, const struct acts *a,
                            const float *x, float *dx, const struct grads *g, struct back *s)
{
    struct linear_set set = { .n = n };
    for (size_t i = 0; i < n; i++) {
        set.linear[i] = &b->model->layers[layer].linear[ids[i]];
        set.y[i] = dy[i];
        if (g->lora)
            set.low[i] = lora_backward_down(b->threads, g->lora, lora_pair(g->lora, layer, ids[i]),
                                            s->dxa[i], dy[i], b->batch->n, set.linear[i]->out);
    }
    linear_backward(b->threads, &set, dx, b->batch->n);
    for (size_t i = 0; i < n; i++)
        add_linear_grads(b, layer, ids[i], g, dy[i], x, a->xa[ids[i]], s->dxa[i]);
}
