/* self_attention.c - the attention branch forward and backward; see self_attention.h. */
#include "engine/layers/self_attention.h"

#include <math.h>
#include <string.h>
#include "engine/layers/block_linear.h"
#include "engine/lanes.h"
#include "engine/layers/norm.h"
#include "engine/layers/rope.h"

enum { ROW_GRAIN = 8 };
static const enum linear_id qkv_ids[] = { LINEAR_Q, LINEAR_K, LINEAR_V };
static const enum linear_id o_id[] = { LINEAR_O };

/* One layer's heads; attention calls place_rows() for each task. */
struct heads_job {
    const struct block *b;
    const struct layer *layer;
    const struct acts *a;
    const float *cs; /* NULL: the layer has no rope */
    struct back *s;  /* of the backward */
    struct attention attention;
};

static struct heads_job make_heads_job(const struct block *b, size_t layer, size_t kv_offset,
                                       const struct acts *a)
{
    const struct model_config *c = &b->model->config;
    /* Layers with and without a window may have tables of their own. */
    size_t rope = rope_of_layer(c, layer) * b->batch->n * c->rotary;
    return (struct heads_job){
        .b = b,
        .layer = &b->model->layers[layer],
        .a = a,
        .cs = model_layer_is(c, layer, LAYER_NO_ROPE) ? NULL : b->cs + rope,
        .attention = {
            .config = c,
            .batch = b->batch,
            .segment_of = b->segment_of,
            .k_offset = kv_offset,
            .v_offset = kv_offset + kv_half(c),
            .window = model_layer_is(c, layer, LAYER_SLIDES) ? c->window : 0,
            .sinks = b->model->layers[layer].sinks,
        },
    };
}

/* Where the position of a row lies in its sequence. */
static size_t row_position(const struct block *b, size_t row)
{
    /* A segment is a run of rows of one sequence, which begins at position pos. */
    const struct segment *seg = &b->batch->segments[b->segment_of[row]];
    return seg->pos + row - seg->row;
}

/* The norm of each head, where there is one, and the rotation: y from raw. */
static void turn_head(const struct heads_job *j, float *y, float *rstd, const float *raw,
                      const float *norm, const float *cs)
{
    const struct model_config *c = &j->b->model->config;
    /* The norm comes before the rotation, as in Qwen3. */
    if (c->qk_norm == QK_NORM_HEAD)
        *rstd = norm_row(y, raw, norm, c->head_dim, c->norm_eps);
    else if (y != raw)
        memcpy(y, raw, c->head_dim * sizeof(*y));
    if (cs)
        rope_rotate(y, cs, c->rotary);
}

/* Floats from one raw query head to the next: with a gate they alternate. */
static size_t raw_stride(const struct model_config *c)
{
    return c->gate ? 2 * c->head_dim : c->head_dim;
}

/* Where the projection of q stands, if not in the place of q itself. */
static bool has_raw_q(const struct model_config *c)
{
    return c->qk_norm == QK_NORM_HEAD || c->gate;
}

/* Query heads of kv head `kv` in rows [row, end), normed and rotated in place; its key and value
 * into the page of the row's position. */
static void place_rows(const void *arg, size_t kv, size_t row, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct acts *a = j->a;
    size_t hd = c->head_dim, group = c->heads / c->kv_heads;
    /* Where one norm spans all heads, k holds its result already. */
    const float *keys = c->qk_norm == QK_NORM_WHOLE ? a->k : a->k_raw;
    for (; row < end; row++) {
        const struct segment *seg = &j->b->batch->segments[j->b->segment_of[row]];
        const float *cs = j->cs ? j->cs + row * c->rotary : NULL;
        size_t pos = row_position(j->b, row);
        size_t at = row * c->kv_heads + kv;
        float k[MODEL_MAX_HEAD_DIM];
        float heat = rope_temperature(c, pos);
        for (size_t i = at * group; i < (at + 1) * group; i++) {
            float *q = a->q + i * hd;
            turn_head(j, q, &a->q_rstd[i], has_raw_q(c) ? a->q_raw + i * raw_stride(c) : q,
                      j->layer->q_norm, cs);
            /* Ministral's temperature scales the query alone, and so the score. */
            if (heat != 1)
                lanes_scale(q, heat, hd);
        }
        turn_head(j, k, &a->k_rstd[at], keys + at * hd, j->layer->k_norm, cs);
        attention_store(&j->attention, seg->pages[pos / KV_BLOCK], kv, pos % KV_BLOCK, k,
                        a->v + at * hd);
    }
}

/* gated = att * sigma(gate), row by row. */
static void gate_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t i = begin * c->heads; i < end * c->heads; i++) {
        const float *gate = j->a->q_raw + i * 2 * hd + hd;
        for (size_t d = 0; d < hd; d++)
            j->a->gated[i * hd + d] = j->a->att[i * hd + d] / (1 + expf(-gate[d]));
    }
}

void self_attention_forward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                            struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    bool whole = c->qk_norm == QK_NORM_WHOLE;
    size_t rows = b->batch->n;
    struct heads_job heads = make_heads_job(b, layer, kv_offset, a);
    /* without norms q is rotated where it was computed */
    float *q = has_raw_q(c) || whole ? a->q_raw : a->q;
    block_linears(b, layer, 3, qkv_ids, (float *[]){ q, a->k_raw, a->v }, a, x);
    if (whole) { /* one statistic over all heads: before they are spread over the threads */
        norm_forward(b->threads, a->q, a->q_rstd, q, l->q_norm, rows, c->heads * c->head_dim,
                     c->norm_eps);
        norm_forward(b->threads, a->k, a->k_rstd, a->k_raw, l->k_norm, rows,
                     c->kv_heads * c->head_dim, c->norm_eps);
    }
    attention_forward(b->threads, &heads.attention, place_rows, &heads, a->q, a->att, a->lse);
    if (c->gate)
        threads_run(b->threads, rows, ROW_GRAIN, gate_slice, &heads);
    block_linears(b, layer, 1, o_id, &y, a, c->gate ? a->gated : a->att);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* datt from the gradient of the gated output, which it holds; the gate's own goes to dq_wide. */
static void ungate_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t i = begin * c->heads; i < end * c->heads; i++) {
        const float *gate = j->a->q_raw + i * 2 * hd + hd, *att = j->a->att + i * hd;
        float *d = j->s->datt + i * hd, *dgate = j->s->dq_wide + i * 2 * hd + hd;
        for (size_t k = 0; k < hd; k++) {
            /* Recomputed, since a sigmoid costs less than the memory that keeps it. */
            float sigma = 1 / (1 + expf(-gate[k]));
            dgate[k] = d[k] * att[k] * sigma * (1 - sigma);
            d[k] *= sigma;
        }
    }
}

/* Undo temperature and rotation of dq and dk in place; rows are independent. */
static void unrotate_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t row = begin; row < end; row++) {
        float heat = rope_temperature(c, row_position(j->b, row));
        const float *cs = j->cs ? j->cs + row * c->rotary : NULL;
        if (heat != 1)
            lanes_scale(j->s->dq + row * c->heads * hd, heat, c->heads * hd);
        for (size_t h = 0; cs && h < c->heads; h++)
            rope_rotate_back(j->s->dq + (row * c->heads + h) * hd, cs, c->rotary);
        for (size_t h = 0; cs && h < c->kv_heads; h++)
            rope_rotate_back(j->s->dk + (row * c->kv_heads + h) * hd, cs, c->rotary);
    }
}

/* Through the norms of the heads of q and k, in place of dq and dk. */
static void head_norms_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    const struct acts *a = j->a;
    size_t hd = c->head_dim;
    for (size_t i = begin * c->heads; i < end * c->heads; i++) {
        float *d = j->s->dq + i * hd;
        /* In place: norm_row_backward() reads an element before it writes it. */
        norm_row_backward(d, d, a->q_raw + i * raw_stride(c), j->layer->q_norm, a->q_rstd[i], hd,
                          0);
    }
    for (size_t i = begin * c->kv_heads; i < end * c->kv_heads; i++) {
        float *d = j->s->dk + i * hd;
        norm_row_backward(d, d, a->k_raw + i * hd, j->layer->k_norm, a->k_rstd[i], hd, 0);
    }
}

/* The same where one norm spans all heads of a row. */
static void whole_norms_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    for (size_t i = begin; i < end; i++) {
        float *dq = j->s->dq + i * q, *dk = j->s->dk + i * k;
        norm_row_backward(dq, dq, j->a->q_raw + i * q, j->layer->q_norm, j->a->q_rstd[i], q, 0);
        norm_row_backward(dk, dk, j->a->k_raw + i * k, j->layer->k_norm, j->a->k_rstd[i], k, 0);
    }
}

/* Gradients of the norms' own weights, which read dq and dk before they change. */
static void add_head_norm_grads(const struct heads_job *j, const struct layer_params *p,
                                const struct grads *g)
{
    const struct model_config *c = &j->b->model->config;
    bool whole = c->qk_norm == QK_NORM_WHOLE;
    size_t rows = j->b->batch->n, q = whole ? 1 : c->heads, k = whole ? 1 : c->kv_heads;
    size_t q_dim = c->heads * c->head_dim / q, k_dim = c->kv_heads * c->head_dim / k;
    norm_gradient(j->b->threads, grads_param(g, p->q_norm), j->s->dq, j->a->q_raw,
                  whole ? q_dim : raw_stride(c), j->a->q_rstd, rows * q, q_dim);
    norm_gradient(j->b->threads, grads_param(g, p->k_norm), j->s->dk, j->a->k_raw, k_dim,
                  j->a->k_rstd, rows * k, k_dim);
}

/* dsink = -sum over rows of P_sink D, with D = dO . O: the sink takes part in the softmax only. */
static void add_sink_grads(const struct heads_job *j, float *dsinks)
{
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t row = 0; row < j->b->batch->n; row++) {
        for (size_t h = 0; h < c->heads; h++) {
            size_t at = row * c->heads + h;
            float delta = lanes_dot(j->s->datt + at * hd, j->a->att + at * hd, hd);
            /* exp(sink - lse) is the probability that the softmax gave to the sink. */
            dsinks[h] -= expf(j->layer->sinks[h] - j->a->lse[at]) * delta;
        }
    }
}

/* dq beside the gates in dq_wide, as q_proj has them. */
static void widen_slice(void *arg, size_t begin, size_t end)
{
    const struct heads_job *j = arg;
    const struct model_config *c = &j->b->model->config;
    size_t hd = c->head_dim;
    for (size_t i = begin * c->heads; i < end * c->heads; i++)
        memcpy(j->s->dq_wide + i * 2 * hd, j->s->dq + i * hd, hd * sizeof(float));
}

void self_attention_backward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                             const struct acts *a, float *dy, float *dx, const struct grads *g,
                             struct back *s)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    struct heads_job heads = make_heads_job(b, layer, kv_offset, a);
    heads.s = s;
    block_linears_backward(b, layer, 1, o_id, &dy, a, c->gate ? a->gated : a->att, s->datt, g, s);
    if (c->gate)
        threads_run(b->threads, rows, ROW_GRAIN, ungate_slice, &heads);
    attention_backward(b->threads, &heads.attention, a->q, a->att, a->lse, s->datt, s->dq, s->dk,
                       s->dv);
    if (c->sinks && !g->lora)
        add_sink_grads(&heads, grads_param(g, g->params->layers[layer].sinks));
    threads_run(b->threads, rows, ROW_GRAIN, unrotate_slice, &heads);
    /* With LoRA the norms are not trained. */
    if (c->qk_norm && !g->lora)
        add_head_norm_grads(&heads, &g->params->layers[layer], g);
    if (c->qk_norm)
        threads_run(b->threads, rows, ROW_GRAIN,
                    c->qk_norm == QK_NORM_WHOLE ? whole_norms_slice : head_norms_slice, &heads);
    if (c->gate)
        threads_run(b->threads, rows, ROW_GRAIN, widen_slice, &heads);
    /* dx = dq Wq + dk Wk + dv Wv, then each LoRA part on top */
    block_linears_backward(b, layer, 3, qkv_ids,
                           (float *[]){ c->gate ? s->dq_wide : s->dq, s->dk, s->dv }, a, x, dx, g,
                           s);
}
