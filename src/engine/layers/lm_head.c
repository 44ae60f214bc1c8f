/* lm_head.c - logits, losses and their gradient, chunk by chunk; see lm_head.h.
 *
 * dL/dz = sum over k of g_k (onehot(y_k) - softmax(z)).  Rows whose g are all zero
 * (a prompt in fine-tuning) are left out of the backward products. */
#include "engine/layers/lm_head.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/vec.h"
#include "engine/layers/linear.h"

/* Logits of a chunk take at most CHUNK_BYTES unless the vocabulary is enormous.  CHUNK_MAX: beyond
 * it the products do not get faster, only their memory grows. */
enum { CHUNK_BYTES = 128 << 20, CHUNK_MIN = 16, CHUNK_MAX = 192, ALIGN_FLOATS = 16, BLOCK = 1024 };

static size_t pad_head_floats(size_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* Multiples of CHUNK_MIN rows, which the kernels take whole. */
size_t lm_head_chunk(const struct model_config *c)
{
    size_t rows = CHUNK_BYTES / (c->vocab * sizeof(float)) / CHUNK_MIN * CHUNK_MIN;
    return rows < CHUNK_MIN ? CHUNK_MIN : rows > CHUNK_MAX ? CHUNK_MAX : rows;
}

/* Must count what lm_head_init() lays out. */
size_t lm_head_floats(const struct model_config *c, size_t rank)
{
    size_t n = lm_head_chunk(c);
    /* 3 ranks: xa, dxa and the compacted xac. */
    return pad_head_floats(n * c->vocab) + 3 * pad_head_floats(n * rank) +
           2 * pad_head_floats(n * c->hidden) + pad_head_floats(n) +
           pad_head_floats(n * sizeof(struct logits_norm) / sizeof(float));
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
    h->norms = (struct logits_norm *)(h->dhc + pad_head_floats(n * c->hidden));
    size_t norms = pad_head_floats(n * sizeof(*h->norms) / sizeof(float));
    h->live = (unsigned char *)((float *)h->norms + norms);
}

struct rows_job {
    struct lm_head *head;
    const struct lm_head_row *rows;
};

/* Logits z [at, at + n) of a row become dL/dz = sum over k of g_k (onehot(y_k) - p), and then the
 * gradient of what the head computed.  With one target its own entry is g (1 - p) = -g expm1(log p),
 * which would lose its digits for p near 1 as a difference. */
static void logits_gradient(const struct lm_head *head, const struct lm_head_row *row,
                            const struct logits_norm *norm, float *z, size_t at, size_t n,
                            const float *grads, float total)
{
    const struct model_config *c = &head->model->config;
    const struct loss_datum *d = row->datum;
    size_t first = row->position * d->k;
    /* BLOCK elements at a time, so that the copy fits the cache and the stack. */
    float capped[BLOCK];
    memcpy(capped, z + at, n * sizeof(*z));
    vec_ops()->softmax(z + at, n, norm->max, norm->inv_temperature, norm->log_sum, -total);
    for (size_t k = first; k < first + d->k; k++) {
        size_t target = (size_t)d->targets[k];
        /* A target outside of this block is handled when its block comes. */
        if (target < at || target >= at + n)
            continue;
        if (d->k == 1)
            z[target] = -grads[k] * expm1f(row->logprobs[k]);
        else
            z[target] += grads[k];
    }
    /* through z = cap tanh(raw / divisor / cap) */
    for (size_t i = 0; c->logit_cap > 0 && i < n; i++)
        z[at + i] *= 1 - capped[i] / c->logit_cap * (capped[i] / c->logit_cap);
    for (size_t i = at; c->logit_divisor != 1 && i < at + n; i++)
        z[i] /= c->logit_divisor;
}

/* The logits z of a row become dL/dz, block by block. */
static void spread_gradient(const struct lm_head *head, const struct lm_head_row *row,
                            const struct logits_norm *norm, float *z)
{
    const struct loss_datum *d = row->datum;
    size_t vocab = head->model->config.vocab, first = row->position * d->k;
    float total = 0;
    for (size_t k = 0; k < d->k; k++)
        total += row->grads[first + k];
    for (size_t i = 0; i < vocab; i += BLOCK)
        logits_gradient(head, row, norm, z, i, vocab - i < BLOCK ? vocab - i : BLOCK, row->grads,
                        total);
}

/* Whether any target of the row has a derivative. */
static bool row_live(const struct lm_head_row *row)
{
    size_t k = row->datum->k, first = row->position * k;
    for (size_t i = first; i < first + k; i++)
        if (row->grads[i] != 0)
            return true;
    return false;
}

/* Rows are independent: each has its own logits and results.  Logprobs and losses of each; with
 * gradients, its logits become dL/dz. */
static void score_slice(void *arg, size_t begin, size_t end)
{
    const struct rows_job *j = arg;
    struct lm_head *head = j->head;
    size_t vocab = head->model->config.vocab;
    for (size_t r = begin; r < end; r++) {
        const struct lm_head_row *row = &j->rows[r];
        const struct loss_datum *d = row->datum;
        float *z = head->logits + r * vocab;
        head->norms[r] = logits_normalize(z, vocab, 1.0f);
        size_t first = row->position * d->k;
        for (size_t i = first; i < first + d->k; i++) {
            row->logprobs[i] = logits_logprob(&head->norms[r], z[d->targets[i]]);
            /* A loss of a whole datum needs all logprobs of it first; see gradient_slice(). */
            if (!head->loss->type->whole_datum)
                loss_element(head->loss, d, i, row->logprobs[i], &row->losses[i], &row->grads[i]);
        }
        if (head->loss->type->whole_datum)
            continue;
        head->live[r] = row_live(row);
        if (head->grads && head->live[r])
            spread_gradient(head, row, &head->norms[r], z);
    }
}

/* The second half of score_slice() for losses of a whole datum. */
static void gradient_slice(void *arg, size_t begin, size_t end)
{
    const struct rows_job *j = arg;
    struct lm_head *head = j->head;
    for (size_t r = begin; r < end; r++) {
        head->live[r] = row_live(&j->rows[r]);
        if (head->live[r])
            spread_gradient(head, &j->rows[r], &head->norms[r],
                            head->logits + r * head->model->config.vocab);
    }
}

/* Copies the live rows of h and xa, and moves those of the logits, to the front; returns how
 * many there are. */
static size_t compact_rows(struct lm_head *head, const float *h, size_t n)
{
    const struct model_config *c = &head->model->config;
    size_t rank = head->lora ? head->lora->rank : 0, live = 0;
    for (size_t i = 0; i < n; i++) {
        if (!head->live[i])
            continue;
        /* Rows only move to the front, so none is overwritten before it was moved. */
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

/* dhc and the gradients of the head's parameters, from dL/dz of the live rows in logits. */
static void head_gradient(struct lm_head *head, size_t live)
{
    const struct model_config *c = &head->model->config;
    const struct grads *g = head->grads;
    struct linear_set set = { 1, { &head->model->head }, { head->logits }, { { 0 } } };
    const struct lora_pair *p = g->lora ? lora_head(g->lora, c->layers) : NULL;
    if (p)
        set.low[0] =
            lora_backward_down(head->threads, g->lora, p, head->dxa, head->logits, live, c->vocab);
    linear_backward(head->threads, &set, head->dhc, live);
    if (p) {
        lora_backward_factors(head->threads, g->lora, p, grads_lora(g, p->a), grads_lora(g, p->b),
                              head->dxa, head->logits, head->hc, head->xac, live, c->vocab,
                              c->hidden);
    } else {
        /* a tied head adds to the gradient of the embedding */
        int index = c->tied ? g->params->embed : g->params->head;
        linear_gradient(head->threads, linear_factors(&head->model->head), grads_param(g, index),
                        NULL, head->logits, head->hc, live, c->vocab, c->hidden);
    }
}

/* From dL/dz of the rows to dh and the gradients of parameters. */
static void rows_backward(struct lm_head *head, const float *h, size_t n, float *dh)
{
    const struct model_config *c = &head->model->config;
    memset(dh, 0, n * c->hidden * sizeof(float));
    /* rows without a gradient, such as a prompt's, are left out of the backward products */
    size_t live = compact_rows(head, h, n);
    if (live == 0)
        return;
    head_gradient(head, live);
    /* back to the places of the rows; those left out stay zero */
    for (size_t i = 0, at = 0; i < n; i++)
        if (head->live[i])
            memcpy(dh + i * c->hidden, head->dhc + at++ * c->hidden, c->hidden * sizeof(float));
}

void lm_head_score(struct lm_head *head, const float *h, const struct lm_head_row *rows, size_t n)
{
    const struct model_config *c = &head->model->config;
    struct linear_set set = { 1, { &head->model->head }, { head->logits }, { { 0 } } };
    if (head->lora) {
        struct lora_part part = { lora_head(head->lora, c->layers), head->logits, head->xa,
                                  c->vocab };
        lora_forward_down(head->threads, head->lora, &part, 1, h, n, c->hidden, set.low);
    }
    linear_forward(head->threads, &set, h, n);
    /* Divisor and cap, which the gradient goes back through. */
    forward_finish_logits(head->model, head->threads, head->logits, n);
    struct rows_job job = { head, rows };
    threads_run(head->threads, n, 1, score_slice, &job);
}

void lm_head_gradient(struct lm_head *head, const float *h, const struct lm_head_row *rows,
                      size_t n, float *dh)
{
    struct rows_job job = { head, rows };
    threads_run(head->threads, n, 1, gradient_slice, &job);
    rows_backward(head, h, n, dh);
}

void lm_head_rows(struct lm_head *head, const float *h, const struct lm_head_row *rows, size_t n,
                  float *dh)
{
    lm_head_score(head, h, rows, n);
    if (dh)
        rows_backward(head, h, n, dh);
}
