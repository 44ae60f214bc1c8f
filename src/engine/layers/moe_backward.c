/* moe_backward.c - the experts and their router backward; see moe.h.
 *
 * With d the gradient of y and f_e the output of a kept expert:
 *   df_e = w_e d,  dw_e = d . f_e
 *   dp_e = (dw_e - sum of w dw) / (sum of the kept p)  renormalized,  dw_e otherwise
 *   dlogits = p * (dp - sum of p dp), with dp 0 where nothing was kept
 * Factors that all experts share get their gradient after the experts, over all entries in
 * their order: no sum is split between threads. */
#include "engine/layers/moe.h"

#include <string.h>
#include "engine/layers/activation.h"
#include "engine/layers/block.h"
#include "engine/kernels/vec.h"
#include "engine/lanes.h"
#include "engine/layers/linear.h"

enum { ROW_GRAIN = 8 };

/* One sparse layer backward. */
struct moe_job {
    const struct block *b;
    size_t layer;
    const struct acts *a;
    const float *dy; /* of the mixture */
    const struct grads *g;
    struct back *s;
};

/* dlogits of one row from dw, the gradients of its kept experts' weights. */
static void router_row(const struct model_config *c, const float *p, const uint32_t *expert,
                       const float *weight, float *dw, float *dlogits)
{
    double kept = 0, mean = 0, all = 0; /* sums of kept p, of w dw, of p dp */
    for (size_t k = 0; k < c->experts_used; k++) {
        kept += (double)p[expert[k]];
        mean += (double)weight[k] * (double)dw[k];
    }
    for (size_t k = 0; k < c->experts_used; k++) {
        if (c->renormalize)
            dw[k] = (float)(((double)dw[k] - mean) / kept);
        all += (double)p[expert[k]] * (double)dw[k];
    }
    for (size_t e = 0; e < c->experts; e++)
        dlogits[e] = (float)(-(double)p[e] * all);
    for (size_t k = 0; k < c->experts_used; k++)
        dlogits[expert[k]] = (float)((double)p[expert[k]] * ((double)dw[k] - all));
}

/* Rows to entries: df_e, and the router's gradient. */
static void spread_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct moe_acts *m = &j->a->moe;
    const struct moe_back *s = &j->s->moe;
    size_t hidden = c->hidden;
    for (size_t row = begin; row < end; row++) {
        const float *d = j->dy + row * hidden;
        size_t first = row * c->experts_used;
        float dw[MODEL_MAX_USED];
        for (size_t k = 0; k < c->experts_used; k++) {
            float *to = s->dy + m->entry[first + k] * hidden, w = m->weight[first + k];
            for (size_t i = 0; i < hidden; i++)
                to[i] = w * d[i];
            dw[k] = lanes_dot(d, m->y + m->entry[first + k] * hidden, hidden);
        }
        router_row(c, m->probs + row * c->experts, m->expert + first, m->weight + first, dw,
                   s->dlogits + row * c->experts);
    }
}

/* The pair of one linear of one expert. */
static struct lora_pair expert_factors(const struct moe_job *j, size_t expert, enum linear_id id)
{
    return lora_expert(lora_pair(j->g->lora, j->layer, id), expert);
}

/* dxa of one linear from entry `first` on. */
static float *dxa_of(const struct moe_job *j, enum linear_id id, size_t first)
{
    return j->s->moe.dxa[id - LINEAR_GATE] + first * j->b->rank;
}

/* dx (+)= dy W over the entries of one part. */
static void part_base(const struct moe_job *j, const struct moe_part *p, enum linear_id id,
                      const float *dy, float *dx, int accumulate)
{
    const struct linear *l = moe_linear(&j->b->model->layers[j->layer], p->expert, id);
    gemm_backward(dx + p->first * l->in, dy + p->first * l->out, l->w, p->n, accumulate, 0, l->in);
}

/* The LoRA part of dx, which holds the base part already, and dxa. */
static void part_lora(const struct moe_job *j, const struct moe_part *p, enum linear_id id,
                      const float *dy, float *dx)
{
    const struct linear *l = moe_linear(&j->b->model->layers[j->layer], p->expert, id);
    if (!j->g->lora)
        return;
    struct lora_pair pair = expert_factors(j, p->expert, id);
    lora_backward_input(NULL, j->g->lora, &pair, dx + p->first * l->in, dxa_of(j, id, p->first),
                        dy + p->first * l->out, p->n, l->out, l->in);
}

/* Parts: dy of the expert back to dx of its gathered rows, in the order of the forward undone.
 * Gradients of parameters come later: they are sums over all parts of an expert. */
static void experts_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct acts *a = j->a;
    struct back *s = j->s;
    size_t size = j->b->model->config.expert_size;
    for (size_t at = begin; at < end; at++) {
        struct moe_part p = moe_part(&a->moe, at);
        size_t first = p.first * size;
        part_base(j, &p, LINEAR_DOWN, s->moe.dy, s->dup, 0);
        part_lora(j, &p, LINEAR_DOWN, s->moe.dy, s->dup);
        activation_backward(&j->b->model->config, s->dgate + first, s->dup + first, a->gate + first,
                            a->up + first, p.n * size);
        part_base(j, &p, LINEAR_GATE, s->dgate, s->moe.dx, 0);
        part_base(j, &p, LINEAR_UP, s->dup, s->moe.dx, 1);
        part_lora(j, &p, LINEAR_GATE, s->dgate, s->moe.dx);
        part_lora(j, &p, LINEAR_UP, s->dup, s->moe.dx);
    }
}

/* Gradients of one linear of an expert over all its entries.  Factors that other experts share
 * are left out. */
static void expert_gradient(const struct moe_job *j, size_t expert, enum linear_id id)
{
    const struct linear *l = moe_linear(&j->b->model->layers[j->layer], expert, id);
    const struct grads *g = j->g;
    const struct back *s = j->s;
    size_t first = j->a->moe.start[expert], n = j->a->moe.start[expert + 1] - first;
    const float *x = (id == LINEAR_DOWN ? j->a->act : j->a->moe.x) + first * l->in;
    const float *dy = (id == LINEAR_DOWN   ? s->moe.dy
                       : id == LINEAR_GATE ? s->dgate
                                           : s->dup) +
                      first * l->out;
    if (!g->lora) {
        const struct layer_params *p = &g->params->layers[j->layer];
        int at = (int)(expert * EXPERT_LINEARS) + (id - LINEAR_GATE);
        float *db = l->bias ? grads_param(g, p->expert_biases + at) : NULL;
        linear_gradient(NULL, linear_factors(l), grads_param(g, p->experts + at), db, dy, x, n,
                        l->out, l->in);
        return;
    }
    struct lora_pair p = expert_factors(j, expert, id);
    lora_backward_factors(NULL, g->lora, &p, id == LINEAR_DOWN ? grads_lora(g, p.a) : NULL,
                          id == LINEAR_DOWN ? NULL : grads_lora(g, p.b), dxa_of(j, id, first), dy,
                          x, j->a->xa[id] + first * j->b->rank, n, l->out, l->in);
}

/* A unit is one linear of a part's expert.  The first part of an expert does the work for all
 * its entries, so that no sum is split. */
static void experts_gradient_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    for (size_t i = begin; i < end; i++) {
        struct moe_part p = moe_part(&j->a->moe, i / EXPERT_LINEARS);
        if (p.leads)
            expert_gradient(j, p.expert, (enum linear_id)(LINEAR_GATE + i % EXPERT_LINEARS));
    }
}

/* Entries back to rows; dn holds the router's part. */
static void collect_slice(void *arg, size_t begin, size_t end)
{
    const struct moe_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    for (size_t row = begin; row < end; row++)
        for (size_t k = row * c->experts_used; k < (row + 1) * c->experts_used; k++)
            vec_ops()->add(j->s->dn + row * c->hidden,
                           j->s->moe.dx + j->a->moe.entry[k] * c->hidden, c->hidden);
}

/* Gradients of the factors that all experts share: A of gate and up, B of down. */
static void shared_factors(const struct moe_job *j, size_t entries)
{
    const struct block *b = j->b;
    const struct model_config *c = &b->model->config;
    const struct lora *l = j->g->lora;
    for (int id = LINEAR_GATE; id < LINEAR_DOWN; id++) {
        const struct lora_pair *p = lora_pair(l, j->layer, (enum linear_id)id);
        if (p->a)
            linear_tn(b->threads, l->gradients, grads_lora(j->g, p->a),
                      j->s->moe.dxa[id - LINEAR_GATE], j->a->moe.x, entries, l->rank, c->hidden, 1,
                      1);
    }
    const struct lora_pair *down = lora_pair(l, j->layer, LINEAR_DOWN);
    if (down->a)
        linear_tn(b->threads, l->gradients, grads_lora(j->g, down->b), j->s->moe.dy,
                  j->a->xa[LINEAR_DOWN], entries, c->hidden, l->rank, l->scale, 1);
}

void moe_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                  const float *dy, const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    struct moe_job job = { .b = b, .layer = layer, .a = a, .dy = dy, .g = g, .s = s };
    size_t rows = b->batch->n;
    threads_run(b->threads, rows, ROW_GRAIN, spread_slice, &job);
    size_t parts = moe_parts(c, &a->moe);
    threads_run(b->threads, parts, 1, experts_backward_slice, &job);
    threads_run(b->threads, parts * EXPERT_LINEARS, 1, experts_gradient_slice, &job);
    /* dn = the router's part, to which collect_slice() adds the experts' */
    struct linear_set router = {
        1, { &b->model->layers[layer].router }, { s->moe.dlogits }, { { 0 } }
    };
    linear_backward(b->threads, &router, s->dn, rows);
    threads_run(b->threads, rows, ROW_GRAIN, collect_slice, &job);
    if (g->lora)
        shared_factors(&job, rows * c->experts_used);
    else
        linear_gradient(b->threads, FACTORS_EXACT, grads_param(g, g->params->layers[layer].router),
                        grads_param(g, g->params->layers[layer].router_bias), s->moe.dlogits, x,
                        rows, c->experts, c->hidden);
}
