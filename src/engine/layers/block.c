/* block.c - one transformer layer forward.
 *
 * Each stage is one parallel run over outputs. */
#include "engine/layers/block.h"

#include "engine/kernels/vec.h"
#include "engine/layers/cutter.h"
#include "engine/layers/mlp.h"
#include "engine/layers/norm.h"
#include "engine/layers/self_attention.h"

enum { ELEMENT_GRAIN = 4096 };

static void lay_out_attention(struct acts *a, const struct model_config *c, size_t rows,
                              struct cutter *p)
{
    size_t q = rows * c->heads * c->head_dim, kv = rows * c->kv_heads * c->head_dim;
    a->q_raw = c->qk_norm || c->gate ? cutter_take(p, c->gate ? 2 * q : q) : NULL;
    a->q = cutter_take(p, q);
    a->att = cutter_take(p, q);
    a->gated = c->gate ? cutter_take(p, q) : NULL;
    a->k_raw = cutter_take(p, kv);
    a->k = c->qk_norm == QK_NORM_WHOLE ? cutter_take(p, kv) : NULL;
    a->v = cutter_take(p, kv);
    a->q_rstd = cutter_take(p, rows * c->heads);
    a->k_rstd = cutter_take(p, rows * c->kv_heads);
    a->lse = cutter_take(p, rows * c->heads);
}

/* The one place that knows the layout: sizes (mem NULL) and pointers cannot differ. */
static size_t lay_out_acts(struct acts *a, const struct model_config *c, size_t layer,
                           const struct acts_size *size, float *mem)
{
    struct cutter p = { mem, 0 };
    bool sparse = model_sparse(c, layer);
    size_t rows = size->rows, hidden = rows * c->hidden;
    /* a sparse layer computes a row once for each of its experts */
    size_t entries = rows * (sparse ? c->experts_used : 1);
    size_t inner = entries * (sparse ? c->expert_size : c->intermediate);
    size_t shared = sparse && c->shared ? rows * c->shared_size : 0;
    a->n1 = c->pre_norm ? cutter_take(&p, hidden) : NULL;
    a->n2 = c->pre_norm ? cutter_take(&p, hidden) : NULL;
    a->x_mid = cutter_take(&p, hidden);
    a->branch1 = c->post_norm ? cutter_take(&p, hidden) : NULL;
    a->branch2 = c->post_norm ? cutter_take(&p, hidden) : NULL;
    a->rstd1 = cutter_take(&p, rows);
    a->rstd2 = cutter_take(&p, rows);
    a->post_rstd1 = cutter_take(&p, rows);
    a->post_rstd2 = cutter_take(&p, rows);
    if (model_layer_is(c, layer, LAYER_DELTA))
        delta_acts_init(&a->delta, c, rows, size->chunks, &p);
    else
        lay_out_attention(a, c, rows, &p);
    a->gate = cutter_take(&p, inner);
    a->up = cutter_take(&p, inner);
    a->act = cutter_take(&p, inner);
    a->shared_gate = cutter_take(&p, shared);
    a->shared_up = cutter_take(&p, shared);
    a->shared_act = cutter_take(&p, shared);
    a->shared_out = cutter_take(&p, shared ? hidden : 0);
    a->shared_mix = cutter_take(&p, shared ? rows : 0);
    for (enum linear_id id = 0; id < LINEARS; id++) {
        bool expert = sparse && id >= LINEAR_GATE && id <= LINEAR_DOWN;
        size_t n = expert ? entries : model_has_linear(c, layer, id) ? rows : 0;
        a->xa[id] = cutter_take(&p, n * size->rank);
    }
    float *moe = cutter_take(&p, sparse ? moe_acts_floats(c, rows) : 0);
    if (mem && sparse)
        moe_acts_init(&a->moe, c, rows, moe);
    return p.used;
}

size_t acts_floats(const struct model_config *c, size_t layer, const struct acts_size *size)
{
    struct acts a;
    return lay_out_acts(&a, c, layer, size, NULL);
}

size_t acts_floats_most(const struct model_config *c, const struct acts_size *size)
{
    size_t most = 0;
    for (size_t i = 0; i < c->layers; i++) {
        size_t n = acts_floats(c, i, size);
        most = n > most ? n : most;
    }
    return most;
}

void acts_init(struct acts *a, const struct model_config *c, size_t layer,
               const struct acts_size *size, float *mem)
{
    lay_out_acts(a, c, layer, size, mem);
}

/* The residual sum. */
struct mix_job {
    float *y;
    const float *x;
    float scale;
};

/* y = x + scale y */
static void add_residual_slice(void *arg, size_t begin, size_t end)
{
    const struct mix_job *j = arg;
    for (size_t i = begin; j->scale != 1 && i < end; i++)
        j->y[i] *= j->scale;
    vec_ops()->add(j->y + begin, j->x + begin, end - begin);
}

/* y = x + scale norm(branch), or without a norm of a branch that is in y already. */
static void add_branch(const struct block *b, const float *x, const float *branch,
                       const float *norm, float *rstd, float *y)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    if (c->post_norm)
        norm_forward(b->threads, y, rstd, branch, norm, rows, c->hidden, c->norm_eps);
    struct mix_job add = { .y = y, .x = x, .scale = c->residual_scale };
    threads_run(b->threads, rows * c->hidden, ELEMENT_GRAIN, add_residual_slice, &add);
}

void block_forward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                   struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    size_t rows = b->batch->n;
    float *branch1 = c->post_norm ? a->branch1 : a->x_mid, *branch2 = c->post_norm ? a->branch2 : y;
    const float *in1 = c->pre_norm ? a->n1 : x, *in2 = c->pre_norm ? a->n2 : a->x_mid;
    if (c->pre_norm)
        norm_forward(b->threads, a->n1, a->rstd1, x, l->norm1, rows, c->hidden, c->norm_eps);
    if (model_layer_is(c, layer, LAYER_DELTA))
        delta_forward(b, layer, in1, a, branch1);
    else
        self_attention_forward(b, layer, kv_offset, in1, a, branch1);
    add_branch(b, x, branch1, l->post_norm1, a->post_rstd1, a->x_mid);
    if (c->pre_norm)
        norm_forward(b->threads, a->n2, a->rstd2, a->x_mid, l->norm2, rows, c->hidden, c->norm_eps);
    if (l->experts)
        moe_forward(b, layer, in2, a, branch2);
    else
        mlp_forward(b, layer, in2, a, branch2);
    if (l->experts && c->shared)
        mlp_shared_forward(b, layer, in2, a, branch2);
    add_branch(b, a->x_mid, branch2, l->post_norm2, a->post_rstd2, y);
}
