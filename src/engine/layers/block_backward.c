/* block_backward.c - one transformer layer backward; see block.h.
 *
 * Stages run in the reverse order of block.c.  dx holds the gradient of the residual
 * stream throughout; each branch adds its part. */
#include "engine/layers/block.h"

#include "engine/kernels/vec.h"
#include "engine/layers/cutter.h"
#include "engine/layers/mlp.h"
#include "engine/layers/norm.h"
#include "engine/layers/self_attention.h"

enum { ELEMENT_GRAIN = 4096 };

/* The gradient buffer has the layout of the parameters: same offset. */
float *grads_lora(const struct grads *g, const float *factor)
{
    return factor ? g->g + (factor - g->w) : NULL;
}

float *grads_param(const struct grads *g, int index)
{
    return g->lora || index == PARAM_NONE ? NULL : g->g + g->params->list[index].offset;
}

/* Whether the gradient of a branch differs from that of the residual stream. */
static bool has_own_branch(const struct model_config *c)
{
    return c->post_norm || c->residual_scale != 1;
}

/* Sizes (mem NULL) and pointers from one description. */
static size_t lay_out_back(struct back *s, const struct model_config *c, size_t rows, size_t rank,
                           float *mem)
{
    struct cutter p = { mem, 0 };
    size_t hidden = rows * c->hidden, q = rows * c->heads * c->head_dim;
    size_t kv = rows * c->kv_heads * c->head_dim, inner = rows * model_mlp_width(c);
    size_t shared = c->shared ? rows * c->shared_size : 0;
    s->dn = cutter_take(&p, hidden);
    s->dbranch = cutter_take(&p, has_own_branch(c) ? hidden : 0);
    s->dq = cutter_take(&p, q);
    s->datt = cutter_take(&p, q);
    s->dq_wide = cutter_take(&p, c->gate ? 2 * q : 0);
    s->dk = cutter_take(&p, kv);
    s->dv = cutter_take(&p, kv);
    delta_back_init(&s->delta, c, rows, &p);
    s->dgate = cutter_take(&p, inner);
    s->dup = cutter_take(&p, inner);
    s->shared_dgate = cutter_take(&p, shared);
    s->shared_dup = cutter_take(&p, shared);
    s->shared_dout = cutter_take(&p, shared ? hidden : 0);
    s->shared_dx = cutter_take(&p, shared ? hidden : 0);
    s->shared_dmix = cutter_take(&p, shared ? rows : 0);
    for (size_t i = 0; i < LINEAR_SET; i++)
        s->dxa[i] = cutter_take(&p, rows * rank);
    float *moe = cutter_take(&p, moe_back_floats(c, rows, rank));
    if (mem)
        moe_back_init(&s->moe, c, rows, rank, moe);
    return p.used;
}

size_t back_floats(const struct model_config *c, size_t rows, size_t rank)
{
    struct back s;
    return lay_out_back(&s, c, rows, rank, NULL);
}

void back_init(struct back *s, const struct model_config *c, size_t rows, size_t rank, float *mem)
{
    lay_out_back(s, c, rows, rank, mem);
}

/* One norm of a layer in the backward. */
struct norm_place {
    const float *x, *w, *rstd; /* its input, weights and statistic */
    int param;                 /* of its weights with rank 0 */
};

/* Gradient of a norm's own weights, which only rank 0 trains. */
static void add_block_norm_grads(const struct block *b, const struct norm_place *n, const float *dy,
                                 const struct grads *g)
{
    size_t hidden = b->model->config.hidden;
    if (!g->lora)
        norm_gradient(b->threads, grads_param(g, n->param), dy, n->x, hidden, n->rstd, b->batch->n,
                      hidden);
}

struct branch_job {
    float *y;
    const float *x;
    float scale;
};

static void scale_slice(void *arg, size_t begin, size_t end)
{
    const struct branch_job *j = arg;
    for (size_t i = begin; i < end; i++)
        j->y[i] = j->x[i] * j->scale;
}

static void add_branch_slice(void *arg, size_t begin, size_t end)
{
    const struct branch_job *j = arg;
    vec_ops()->add(j->y + begin, j->x + begin, end - begin);
}

/* The gradient of a branch's output, from that of the sum it was added to. */
static float *begin_branch(const struct block *b, const struct norm_place *post, float *dx,
                           const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    if (!has_own_branch(c))
        return dx;
    struct branch_job job = { .y = s->dbranch, .x = dx, .scale = c->residual_scale };
    threads_run(b->threads, rows * c->hidden, ELEMENT_GRAIN, scale_slice, &job);
    if (!c->post_norm)
        return s->dbranch;
    add_block_norm_grads(b, post, s->dbranch, g);
    norm_backward_in_place(b->threads, s->dbranch, post->x, post->w, post->rstd, rows, c->hidden);
    return s->dbranch;
}

/* dx += s->dn, the gradient of the branch's input, through the norm before it. */
static void end_branch(const struct block *b, const struct norm_place *pre, float *dx,
                       const struct grads *g, const struct back *s)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    if (c->pre_norm) {
        add_block_norm_grads(b, pre, s->dn, g);
        norm_backward(b->threads, dx, s->dn, pre->x, pre->w, pre->rstd, rows, c->hidden);
        return;
    }
    struct branch_job job = { .y = dx, .x = s->dn };
    threads_run(b->threads, rows * c->hidden, ELEMENT_GRAIN, add_branch_slice, &job);
}

void block_backward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                    const struct acts *a, float *dx, const struct grads *grads, struct back *s)
{
    static const struct layer_params none;
    const struct model_config *c = &b->model->config;
    const struct layer *l = &b->model->layers[layer];
    const struct layer_params *p = grads->lora ? &none : &grads->params->layers[layer];
    const struct norm_place norm1 = { x, l->norm1, a->rstd1, p->norm1 };
    const struct norm_place post1 = { a->branch1, l->post_norm1, a->post_rstd1, p->post_norm1 };
    const struct norm_place norm2 = { a->x_mid, l->norm2, a->rstd2, p->norm2 };
    const struct norm_place post2 = { a->branch2, l->post_norm2, a->post_rstd2, p->post_norm2 };
    const float *in1 = c->pre_norm ? a->n1 : x, *in2 = c->pre_norm ? a->n2 : a->x_mid;
    float *dy = begin_branch(b, &post2, dx, grads, s);
    if (l->experts)
        moe_backward(b, layer, in2, a, dy, grads, s);
    else
        mlp_backward(b, layer, in2, a, dy, s->dn, grads, s);
    if (l->experts && c->shared)
        mlp_shared_backward(b, layer, in2, a, dy, s->dn, grads, s);
    end_branch(b, &norm2, dx, grads, s); /* dx becomes the gradient of x_mid */
    dy = begin_branch(b, &post1, dx, grads, s);
    if (model_layer_is(c, layer, LAYER_DELTA))
        delta_backward(b, layer, in1, a, dy, s->dn, grads, s);
    else
        self_attention_backward(b, layer, kv_offset, in1, a, dy, s->dn, grads, s);
    end_branch(b, &norm1, dx, grads, s);
}
