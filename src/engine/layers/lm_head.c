/* lm_head.c - see head.h.
 *
 * dL/dz = sum over k of g_k (onehot(y_k) - softmax(z)).  Rows whose g are all zero
 * (a prompt in fine-tuning) are left out of the backward products. */
#include "engine/layers/lm_head.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"

enum { CHUNK_BYTES = 128 << 20, CHUNK_MIN = 16, CHUNK_MAX = 192, ALIGN_FLOATS = 16 };

static size_t pad_head_floats(size_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

size_t lm_head_chunk(const struct model_config *c)
{
    size_t rows = CHUNK_BYTES / (c->vocab * sizeof(float)) / CHUNK_MIN * CHUNK_MIN;
    return rows < CHUNK_MIN ? CHUNK_MIN : rows > CHUNK_MAX ? CHUNK_MAX : rows;
}

size_t lm_head_floats(const struct model_config *c, size_t rank)
{
    size_t n = lm_head_chunk(c);
    return pad_head_floats(n * c->vocab) + 3 * pad_head_floats(n * rank) +
           2 * pad_head_floats(n * c->hidden) + pad_head_floats(n);
}

void lm_head_init(struct lm_head *h, const struct model_config *c, size_t rank, float *mem)
{
    size_t n = lm_head_chunk(c);
    h->logits = mem;
    h->xa = h->logits + pad_head_floats(n * c->vocab);
    h->dxa = h->xa + pad_head_floats(n * rank);
    h->xac = h->dxa + pad_head_floats(n * rank);
    h->hc = h->xac + pad_head_floats(n * rank);
    h->dhc = h->hc + pad_head_floats(n * c->hidden);
    h->live = (unsigned char *)(h->dhc + pad_head_floats(n * c->hidden));
}

struct rows_job {
    struct lm_head *head;
    const struct lm_head_row *rows;
};

/* dL/dz of one row, in place of z.  The target's own entry is g (1 - p), which would
 * lose its digits for p near 1 if it were a difference. */
static void row_gradient(const struct logits_norm *norm, const struct loss_datum *d, size_t first,
                         const float *logprobs, const float *grads, float total, float *z,
                         size_t vocab)
{
    float top = d->k == 1 ? -grads[0] * expm1f(logprobs[first]) : 0;
    vec_ops()->softmax(z, vocab, norm->max, norm->inv_temperature, norm->log_sum, -total);
    if (d->k == 1)
        z[d->targets[first]] = top;
    else
        for (size_t k = 0; k < d->k; k++)
            z[d->targets[first + k]] += grads[k];
}

/* Logprobs and losses of one row; with gradients, z becomes dL/dz. */
static void score_row(struct lm_head *head, const struct lm_head_row *row, float *z, float *grads,
                      unsigned char *live)
{
    const struct loss_datum *d = row->datum;
    size_t vocab = head->model->config.vocab, first = row->position * d->k;
    struct logits_norm norm = logits_normalize(z, vocab, 1.0f);
    float total = 0;
    bool any = false;
    for (size_t k = 0; k < d->k; k++) {
        size_t i = first + k;
        row->logprobs[i] = logits_logprob(&norm, z[d->targets[i]]);
        loss_element(head->loss, d, i, row->logprobs[i], &row->losses[i], &grads[i]);
        total += grads[i];
        any = any || grads[i] != 0;
    }
    *live = any;
    if (head->grads && any)
        row_gradient(&norm, d, first, row->logprobs, grads + first, total, z, vocab);
}

static void score_slice(void *arg, size_t begin, size_t end)
{
    const struct rows_job *j = arg;
    size_t vocab = j->head->model->config.vocab;
    for (size_t i = begin; i < end; i++)
        score_row(j->head, &j->rows[i], j->head->logits + i * vocab, j->rows[i].grads,
                  &j->head->live[i]);
}

/* Move the live rows of logits, h and xa to the front of their compact copies. */
static size_t compact_rows(struct lm_head *head, const float *h, size_t n)
{
    const struct model_config *c = &head->model->config;
    size_t rank = head->lora ? head->lora->rank : 0, live = 0;
    for (size_t i = 0; i < n; i++) {
        if (!head->live[i])
            continue;
        if (live != i)
            memcpy(head->logits + live * c->vocab, head->logits + i * c->vocab,
                   c->vocab * sizeof(float));
        memcpy(head->hc + live * c->hidden, h + i * c->hidden, c->hidden * sizeof(float));
        if (rank)
            memcpy(head->xac + live * rank, head->xa + i * rank, rank * sizeof(float));
        live++;
    }
    return live;
}

static void head_gradient(struct lm_head *head, size_t live)
{
    const struct model_config *c = &head->model->config;
    const struct grads *g = head->grads;
    struct linear_set set = { 1, { &head->model->head }, { head->logits } };
    linear_backward(head->threads, &set, head->dhc, live);
    if (g->lora) {
        const struct lora_pair *p = lora_head(g->lora, c->layers);
        lora_backward(head->threads, g->lora, p, grads_lora(g, p->a), grads_lora(g, p->b),
                      head->dhc, head->dxa, head->logits, head->hc, head->xac, live, c->vocab,
                      c->hidden);
    } else {
        int index = c->tied ? g->params->embed : g->params->head;
        linear_gradient(head->threads, grads_param(g, index), NULL, head->logits, head->hc, live,
                        c->vocab, c->hidden);
    }
}

void lm_head_rows(struct lm_head *head, const float *h, const struct lm_head_row *rows, size_t n,
                  float *dh)
{
    const struct model_config *c = &head->model->config;
    struct linear_set set = { 1, { &head->model->head }, { head->logits } };
    linear_forward(head->threads, &set, h, n);
    if (head->lora)
        lora_forward(head->threads, head->lora, lora_head(head->lora, c->layers), head->logits,
                     head->xa, h, n, c->vocab, c->hidden);
    struct rows_job job = { head, rows };
    threads_run(head->threads, n, 1, score_slice, &job);
    if (!dh)
        return;
    memset(dh, 0, n * c->hidden * sizeof(float));
    size_t live = compact_rows(head, h, n);
    if (live == 0)
        return;
    head_gradient(head, live);
    for (size_t i = 0, at = 0; i < n; i++)
        if (head->live[i])
            memcpy(dh + i * c->hidden, head->dhc + at++ * c->hidden, c->hidden * sizeof(float));
}
