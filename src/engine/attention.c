/* attention.c - the plain blocked implementation; see attention.h.
 *
 * Forward: one task per (kv head, row).  Backward: one task per (segment, kv head),
 * because dk and dv of a head are sums over all its rows; they are taken in
 * ascending row order. */
#include "engine/attention.h"

#include <math.h>
#include <string.h>
#include "engine/lanes.h"

struct job {
    const struct attention *a;
    const float *q, *out, *lse, *dout;
    float *y, *y_lse, *dq, *dk, *dv;
    size_t rows, group, hd;
    float scale;
};

static struct job job_init(const struct attention *a)
{
    const struct model_config *c = a->config;
    return (struct job){
        .a = a,
        .rows = a->batch->n,
        .group = c->heads / c->kv_heads,
        .hd = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
    };
}

/* Fold one page of `n` keys into a row's running softmax (max, sum, acc). */
static void fold_page(const struct job *j, const float *q, const float *k, const float *v, size_t n,
                      float *max, float *sum, float *acc)
{
    float s[KV_BLOCK];
    float top = *max;
    for (size_t i = 0; i < n; i++) {
        s[i] = lanes_dot(q, k + i * j->hd, j->hd) * j->scale;
        top = s[i] > top ? s[i] : top;
    }
    if (top > *max) {
        float shrink = expf(*max - top); /* 0 for the first page */
        *sum *= shrink;
        lanes_scale(acc, shrink, j->hd);
        *max = top;
    }
    for (size_t i = 0; i < n; i++) {
        float p = expf(s[i] - top);
        *sum += p;
        lanes_axpy(acc, p, v + i * j->hd, j->hd);
    }
}

static void forward_row(const struct job *j, size_t kv, size_t row)
{
    const struct segment *seg = &j->a->batch->segments[j->a->segment_of[row]];
    size_t keys = seg->pos + (row - seg->row) + 1;
    size_t heads = j->a->config->heads;
    for (size_t g = 0; g < j->group; g++) {
        size_t head = kv * j->group + g;
        const float *q = j->q + (row * heads + head) * j->hd;
        float *acc = j->y + (row * heads + head) * j->hd;
        float max = -INFINITY, sum = 0;
        memset(acc, 0, j->hd * sizeof(*acc));
        for (size_t b = 0; b * KV_BLOCK < keys; b++) {
            size_t left = keys - b * KV_BLOCK;
            const float *page = seg->pages[b] + kv * KV_BLOCK * j->hd;
            fold_page(j, q, page + j->a->k_offset, page + j->a->v_offset,
                      left < KV_BLOCK ? left : KV_BLOCK, &max, &sum, acc);
        }
        lanes_scale(acc, 1.0f / sum, j->hd);
        j->y_lse[row * heads + head] = max + logf(sum);
    }
}

static void forward_slice(void *arg, size_t begin, size_t end)
{
    const struct job *j = arg;
    for (size_t i = begin; i < end; i++)
        forward_row(j, i / j->rows, i % j->rows);
}

void attention_forward(struct threads *t, const struct attention *a, const float *q, float *out,
                       float *lse)
{
    struct job j = job_init(a);
    j.q = q;
    j.y = out;
    j.y_lse = lse;
    threads_run(t, j.rows * a->config->kv_heads, 1, forward_slice, &j);
}

/* One row and head against its keys: adds to dq of the row, dk and dv of the keys. */
static void backward_row(const struct job *j, const struct segment *seg, size_t kv, size_t head,
                         size_t row)
{
    size_t hd = j->hd, heads = j->a->config->heads, kv_heads = j->a->config->kv_heads;
    size_t at = (row * heads + head) * hd;
    const float *q = j->q + at, *dout = j->dout + at;
    float *dq = j->dq + at;
    float lse = j->lse[row * heads + head];
    float delta = lanes_dot(dout, j->out + at, hd);
    size_t keys = row - seg->row + 1;
    memset(dq, 0, hd * sizeof(*dq));
    for (size_t i = 0; i < keys; i++) {
        const float *page = seg->pages[i / KV_BLOCK] + (kv * KV_BLOCK + i % KV_BLOCK) * hd;
        const float *k = page + j->a->k_offset, *v = page + j->a->v_offset;
        size_t key_at = ((seg->row + i) * kv_heads + kv) * hd;
        float p = expf(lanes_dot(q, k, hd) * j->scale - lse);
        float ds = p * (lanes_dot(dout, v, hd) - delta) * j->scale;
        lanes_axpy(dq, ds, k, hd);
        lanes_axpy(j->dk + key_at, ds, q, hd);
        lanes_axpy(j->dv + key_at, p, dout, hd);
    }
}

static void backward_slice(void *arg, size_t begin, size_t end)
{
    const struct job *j = arg;
    size_t kv_heads = j->a->config->kv_heads;
    for (size_t i = begin; i < end; i++) {
        const struct segment *seg = &j->a->batch->segments[i / kv_heads];
        size_t kv = i % kv_heads;
        for (size_t row = seg->row; row < seg->row + seg->n; row++) {
            memset(j->dk + (row * kv_heads + kv) * j->hd, 0, j->hd * sizeof(float));
            memset(j->dv + (row * kv_heads + kv) * j->hd, 0, j->hd * sizeof(float));
        }
        for (size_t row = seg->row; row < seg->row + seg->n; row++)
            for (size_t g = 0; g < j->group; g++)
                backward_row(j, seg, kv, kv * j->group + g, row);
    }
}

void attention_backward(struct threads *t, const struct attention *a, const float *q,
                        const float *out, const float *lse, const float *dout, float *dq, float *dk,
                        float *dv)
{
    struct job j = job_init(a);
    j.q = q;
    j.out = out;
    j.lse = lse;
    j.dout = dout;
    j.dq = dq;
    j.dk = dk;
    j.dv = dv;
    threads_run(t, a->batch->n_segments * a->config->kv_heads, 1, backward_slice, &j);
}
