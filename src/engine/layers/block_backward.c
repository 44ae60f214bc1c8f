/* block_backward.c - one transformer layer backward; see block.h.
 *
 * Stages run in the reverse order of block.c.  dx holds the gradient of the residual
 * stream throughout; each branch adds its part. */
#include "engine/layers/block.h"

#include <string.h>
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"
#include "engine/layers/norm.h"
#include "engine/layers/rope.h"

enum { ROW_GRAIN = 8, ALIGN_FLOATS = 16, ELEMENT_GRAIN = 4096 };

/* The gradient buffer has the layout of the parameters: same offset. */
float *grads_lora(const struct grads *g, const float *factor)
{
    return factor ? g->g + (factor - g->w) : NULL;
}

float *grads_param(const struct grads *g, int index)
{
    return g->lora || index == PARAM_NONE ? NULL : g->g + g->params->list[index].offset;
}

/* Pieces of the scratch memory begin at cache lines. */
static size_t pad_floats(size_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* Must count what back_init() lays out. */
size_t back_floats(const struct model_config *c, size_t rows, size_t rank)
{
    return pad_floats(rows * c->hidden) + 2 * pad_floats(rows * c->heads * c->head_dim) +
           2 * pad_floats(rows * c->kv_heads * c->head_dim) +
           2 * pad_floats(rows * model_mlp_width(c)) + pad_floats(rows * rank) +
           moe_back_floats(c, rows, rank);
}

void back_init(struct back *s, const struct model_config *c, size_t rows, size_t rank, float *mem)
{
    size_t q = pad_floats(rows * c->heads * c->head_dim);
    size_t kv = pad_floats(rows * c->kv_heads * c->head_dim),
           inner = pad_floats(rows * model_mlp_width(c));
    s->dn = mem;
    s->dq = s->dn + pad_floats(rows * c->hidden);
    s->datt = s->dq + q;
    s->dk = s->datt + q;
    s->dv = s->dk + kv;
    s->dgate = s->dv + kv;
    s->dup = s->dgate + inner;
    s->dxa = s->dup + inner;
    moe_back_init(&s->moe, c, rows, rank, s->dxa + pad_floats(rows * rank));
}

/* Parameter gradients of one linear, and its LoRA part of dx (NULL: none wanted).
 * dx must hold the base part already. */
static void add_linear_grads(const struct block *b, size_t layer, enum linear_id id,
                             const struct grads *g, const float *dy, const float *x,
                             const float *xa, float *dx, float *dxa)
{
    const struct linear *l = &b->model->layers[layer].linear[id];
    /* rank > 0 trains the pair alone, rank 0 weight and bias */
    if (g->lora) {
        const struct lora_pair *p = lora_pair(g->lora, layer, id);
        lora_backward(b->threads, g->lora, p, grads_lora(g, p->a), grads_lora(g, p->b), dx, dxa, dy,
                      x, xa, b->batch->n, l->out, l->in);
    } else {
        const struct layer_params *p = &g->params->layers[layer];
        linear_gradient(b->threads, grads_param(g, p->weight[id]), grads_param(g, p->bias[id]), dy,
                        x, b->batch->n, l->out, l->in);
    }
}

struct silu_job {
    const float *gate, *up;
    float *dgate, *dup; /* the gradient of silu(gate) * up comes in dup */
};

/* d silu(g) / dg = sigma(g) (1 + g (1 - sigma(g))), see docs/internals/engine.md. */
static void silu_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct silu_job *j = arg;
    vec_ops()->silu_backward(j->dgate + begin, j->dup + begin, j->gate + begin, j->up + begin,
                             end - begin);
}

/* s->dn, the gradient of norm2's output, from dx, that of the layer's output. */
static void backward_dense_mlp(const struct block *b, size_t layer, const struct acts *a,
                               const float *dx, const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    /* linear_backward() only reads its y */
    struct linear_set down = { 1, { &l->linear[LINEAR_DOWN] }, { (float *)dx } };
    linear_backward(b->threads, &down, s->dup, rows);
    add_linear_grads(b, layer, LINEAR_DOWN, g, dx, a->act, a->xa[LINEAR_DOWN], s->dup, s->dxa);
    struct silu_job silu = { .gate = a->gate, .up = a->up, .dgate = s->dgate, .dup = s->dup };
    threads_run(b->threads, rows * c->intermediate, ELEMENT_GRAIN, silu_backward_slice, &silu);
    struct linear_set gate_up = { 2,
                                  { &l->linear[LINEAR_GATE], &l->linear[LINEAR_UP] },
                                  { s->dgate, s->dup } };
    linear_backward(b->threads, &gate_up, s->dn, rows);
    add_linear_grads(b, layer, LINEAR_GATE, g, s->dgate, a->n2, a->xa[LINEAR_GATE], s->dn, s->dxa);
    add_linear_grads(b, layer, LINEAR_UP, g, s->dup, a->n2, a->xa[LINEAR_UP], s->dn, s->dxa);
}

struct heads_job {
    const struct block *b;
    const struct layer *layer;
    const struct acts *a;
    struct back *s;
};

/* Undo the rotation of dq and dk in place; rows are independent. */
static void unrotate_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t row = begin; row < end; row++) {
        const float *cs = j->b->cs + row * hd;
        for (size_t h = 0; h < c->heads; h++)
            rope_rotate_back(j->s->dq + (row * c->heads + h) * hd, cs, hd);
        for (size_t h = 0; h < c->kv_heads; h++)
            rope_rotate_back(j->s->dk + (row * c->kv_heads + h) * hd, cs, hd);
    }
}

/* Through the norms of q and k, in place of dq and dk. */
static void head_norms_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct acts *a = j->a;
    size_t hd = c->head_dim;
    for (size_t i = begin * c->heads; i < end * c->heads; i++) {
        float *d = j->s->dq + i * hd;
        norm_row_backward(d, d, a->q_raw + i * hd, j->layer->q_norm, a->q_rstd[i], hd, 0);
    }
    for (size_t i = begin * c->kv_heads; i < end * c->kv_heads; i++) {
        float *d = j->s->dk + i * hd;
        norm_row_backward(d, d, a->k_raw + i * hd, j->layer->k_norm, a->k_rstd[i], hd, 0);
    }
}

/* The attention branch: adds its part to dx, which holds that of the residual. */
static void backward_attention(const struct block *b, size_t layer, size_t k_offset,
                               size_t v_offset, const float *x, const struct acts *a, float *dx,
                               const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    struct linear_set o = { 1, { &l->linear[LINEAR_O] }, { dx } };
    linear_backward(b->threads, &o, s->datt, rows);
    add_linear_grads(b, layer, LINEAR_O, g, dx, a->att, a->xa[LINEAR_O], s->datt, s->dxa);
    struct attention attention = {
        .config = c,
        .batch = b->batch,
        .segment_of = b->segment_of,
        .k_offset = k_offset,
        .v_offset = v_offset,
    };
    attention_backward(b->threads, &attention, a->q, a->att, a->lse, s->datt, s->dq, s->dk, s->dv);
    struct heads_job heads = { .b = b, .layer = l, .a = a, .s = s };
    threads_run(b->threads, rows, ROW_GRAIN, unrotate_slice, &heads);
    if (c->qk_norm && !g->lora) { /* the norms' own weights read dq and dk before they change */
        const struct layer_params *p = &g->params->layers[layer];
        norm_gradient(b->threads, grads_param(g, p->q_norm), s->dq, a->q_raw, a->q_rstd,
                      rows * c->heads, c->head_dim);
        norm_gradient(b->threads, grads_param(g, p->k_norm), s->dk, a->k_raw, a->k_rstd,
                      rows * c->kv_heads, c->head_dim);
    }
    if (c->qk_norm)
        threads_run(b->threads, rows, ROW_GRAIN, head_norms_slice, &heads);
    /* dn = dq Wq + dk Wk + dv Wv, then each LoRA part on top */
    struct linear_set qkv = { 3,
                              { &l->linear[LINEAR_Q], &l->linear[LINEAR_K], &l->linear[LINEAR_V] },
                              { s->dq, s->dk, s->dv } };
    linear_backward(b->threads, &qkv, s->dn, rows);
    add_linear_grads(b, layer, LINEAR_Q, g, s->dq, a->n1, a->xa[LINEAR_Q], s->dn, s->dxa);
    add_linear_grads(b, layer, LINEAR_K, g, s->dk, a->n1, a->xa[LINEAR_K], s->dn, s->dxa);
    add_linear_grads(b, layer, LINEAR_V, g, s->dv, a->n1, a->xa[LINEAR_V], s->dn, s->dxa);
    if (!g->lora)
        norm_gradient(b->threads, grads_param(g, g->params->layers[layer].norm1), s->dn, x,
                      a->rstd1, rows, c->hidden);
    norm_backward(b->threads, dx, s->dn, x, l->norm1, a->rstd1, rows, c->hidden);
}

void block_backward(const struct block *b, size_t layer, size_t k_offset, size_t v_offset,
                    const float *x, const struct acts *a, float *dx, const struct grads *grads,
                    struct back *s)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    if (l->experts)
        moe_backward(b, layer, a, dx, grads, s);
    else
        backward_dense_mlp(b, layer, a, dx, grads, s);
    /* through norm2, whose own weights only rank 0 trains; dx becomes the gradient of x_mid */
    if (!grads->lora)
        norm_gradient(b->threads, grads_param(grads, grads->params->layers[layer].norm2), s->dn,
                      a->x_mid, a->rstd2, b->batch->n, c->hidden);
    norm_backward(b->threads, dx, s->dn, a->x_mid, l->norm2, a->rstd2, b->batch->n, c->hidden);
    backward_attention(b, layer, k_offset, v_offset, x, a, dx, grads, s);
}
