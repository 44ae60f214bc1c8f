/* mlp.c - see mlp.h. */
#include "engine/layers/mlp.h"

#include <math.h>
#include "engine/kernels/vec.h"
#include "engine/lanes.h"
#include "engine/layers/activation.h"
#include "engine/layers/block_linear.h"

enum { ROW_GRAIN = 8, ELEMENT_GRAIN = 4096 };
/* Two products of one x: computed in one run. */
static const enum linear_id gate_up_ids[] = { LINEAR_GATE, LINEAR_UP };
static const enum linear_id down_id[] = { LINEAR_DOWN };
static const enum linear_id shared_gate_up_ids[] = { LINEAR_SHARED_GATE, LINEAR_SHARED_UP };
static const enum linear_id shared_down_id[] = { LINEAR_SHARED_DOWN };
static const enum linear_id shared_router_id[] = { LINEAR_SHARED_ROUTER };

/* Elementwise work on whole activations. */
struct activation_job {
    const struct model_config *c;
    float *y, *dgate, *dup;
    const float *gate, *up;
};

static void activation_slice(void *arg, size_t begin, size_t end)
{
    const struct activation_job *j = arg;
    activation_forward(j->c, j->y + begin, j->gate + begin, j->up + begin, end - begin);
}

static void activation_backward_slice(void *arg, size_t begin, size_t end)
{
    const struct activation_job *j = arg;
    activation_backward(j->c, j->dgate + begin, j->dup + begin, j->gate + begin, j->up + begin,
                        end - begin);
}

void mlp_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y)
{
    const struct model_config *c = &b->model->config;
    struct activation_job job = { .c = c, .y = a->act, .gate = a->gate, .up = a->up };
    block_linears(b, layer, 2, gate_up_ids, (float *[]){ a->gate, a->up }, a, x);
    threads_run(b->threads, b->batch->n * c->intermediate, ELEMENT_GRAIN, activation_slice, &job);
    block_linears(b, layer, 1, down_id, &y, a, a->act);
}

void mlp_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                  float *dy, float *dx, const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    struct activation_job job = {
        .c = c, .gate = a->gate, .up = a->up, .dgate = s->dgate, .dup = s->dup
    };
    /* The order is that of the chain: down first, then the activation, then gate and up
     * together. */
    block_linears_backward(b, layer, 1, down_id, &dy, a, a->act, s->dup, g, s);
    threads_run(b->threads, b->batch->n * c->intermediate, ELEMENT_GRAIN, activation_backward_slice,
                &job);
    block_linears_backward(b, layer, 2, gate_up_ids, (float *[]){ s->dgate, s->dup }, a, x, dx, g,
                           s);
}

/* ---- the shared expert ----------------------------------------------------------------------- */

struct shared_job {
    const struct model_config *c;
    const struct acts *a;
    const struct back *s;
    float *y;
    const float *dy;
};

/* How much of a row's shared expert is added. */
static float shared_weight(const struct shared_job *j, size_t row)
{
    return j->c->shared == SHARED_GATED ? 1 / (1 + expf(-j->a->shared_mix[row])) : 1;
}

static void add_shared_slice(void *arg, size_t begin, size_t end)
{
    const struct shared_job *j = arg;
    size_t n = j->c->hidden;
    for (size_t row = begin; row < end; row++) {
        float w = shared_weight(j, row);
        for (size_t i = row * n; i < (row + 1) * n; i++)
            j->y[i] += w * j->a->shared_out[i];
    }
}

void mlp_shared_forward(const struct block *b, size_t layer, const float *x, struct acts *a,
                        float *y)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    struct activation_job job = {
        .c = c, .y = a->shared_act, .gate = a->shared_gate, .up = a->shared_up
    };
    struct shared_job shared = { .c = c, .a = a, .y = y };
    block_linears(b, layer, 2, shared_gate_up_ids, (float *[]){ a->shared_gate, a->shared_up }, a,
                  x);
    threads_run(b->threads, rows * c->shared_size, ELEMENT_GRAIN, activation_slice, &job);
    block_linears(b, layer, 1, shared_down_id, &a->shared_out, a, a->shared_act);
    if (c->shared == SHARED_GATED)
        block_linears(b, layer, 1, shared_router_id, &a->shared_mix, a, x);
    threads_run(b->threads, rows, ROW_GRAIN, add_shared_slice, &shared);
}

/* With w = sigma(m):  dout = w dy,  dm = (dy . out) w (1 - w). */
static void split_shared_slice(void *arg, size_t begin, size_t end)
{
    const struct shared_job *j = arg;
    size_t n = j->c->hidden;
    for (size_t row = begin; row < end; row++) {
        float w = shared_weight(j, row);
        j->s->shared_dmix[row] =
            lanes_dot(j->dy + row * n, j->a->shared_out + row * n, n) * w * (1 - w);
        for (size_t i = row * n; i < (row + 1) * n; i++)
            j->s->shared_dout[i] = w * j->dy[i];
    }
}

struct sum_job {
    float *y;
    const float *x;
};

static void sum_slice(void *arg, size_t begin, size_t end)
{
    const struct sum_job *j = arg;
    vec_ops()->add(j->y + begin, j->x + begin, end - begin);
}

static void add_gradient(const struct block *b, float *dx, const float *part)
{
    struct sum_job job = { dx, part };
    threads_run(b->threads, b->batch->n * b->model->config.hidden, ELEMENT_GRAIN, sum_slice, &job);
}

void mlp_shared_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                         const float *dy, float *dx, const struct grads *g, struct back *s)
{
    const struct model_config *c = &b->model->config;
    size_t rows = b->batch->n;
    struct shared_job shared = { .c = c, .a = a, .s = s, .dy = dy };
    struct activation_job job = { .c = c,
                                  .gate = a->shared_gate,
                                  .up = a->shared_up,
                                  .dgate = s->shared_dgate,
                                  .dup = s->shared_dup };
    threads_run(b->threads, rows, ROW_GRAIN, split_shared_slice, &shared);
    /* Three parts of dx come from x: router, gate and up; each is added where it was computed. */
    if (c->shared == SHARED_GATED) {
        block_linears_backward(b, layer, 1, shared_router_id, &s->shared_dmix, a, x, s->shared_dx,
                               g, s);
        add_gradient(b, dx, s->shared_dx);
    }
    block_linears_backward(b, layer, 1, shared_down_id, &s->shared_dout, a, a->shared_act,
                           s->shared_dup, g, s);
    threads_run(b->threads, rows * c->shared_size, ELEMENT_GRAIN, activation_backward_slice, &job);
    block_linears_backward(b, layer, 2, shared_gate_up_ids,
                           (float *[]){ s->shared_dgate, s->shared_dup }, a, x, s->shared_dx, g, s);
    add_gradient(b, dx, s->shared_dx);
}
