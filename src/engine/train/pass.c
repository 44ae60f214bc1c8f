/* pass.c - run a forward or forward_backward request in small steps.
 *
 * Micro-batches run one after the other; each goes forward layer by layer, through
 * the head in chunks, and backward.  The gradient grows in the pass's own buffer and
 * reaches the adapter only when everything is done.  A step ends when it has done
 * enough work that a caller may want to do something else. */
#include "engine/train/pass.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "engine/layers/norm.h"

static const double step_flops = 5e9;

/* The arena has no more: not the system, which would be err_nomem(), but the limit. */
static tinker_status refuse_data(const tinker_engine *e, tinker_error *err)
{
    unsigned long long limit = e->memory_limit, others = e->pass_bytes;
    if (!others)
        return err_set(err, TINKER_ENOMEM,
                       "the data of this batch need more than the limit of %llu bytes of memory",
                       limit);
    err_set(err, TINKER_ENOMEM,
            "the data of this batch need more memory than is left of the limit of %llu bytes, of "
            "which other passes hold %llu",
            limit, others);
    if (err)
        err->retryable = 1;
    return TINKER_ENOMEM;
}

static tinker_status read_data(tinker_pass *p, const tinker_datum *data, size_t n,
                               const tinker_loss *loss, tinker_error *err)
{
    tinker_status status = pass_read(p, data, n, loss, err);
    return status == TINKER_ENOMEM && !p->arena.failed ? refuse_data(p->engine, err) : status;
}

tinker_pass *tinker_pass_new(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                             size_t n, const tinker_loss *loss, int forward_only, tinker_error *err)
{
    if (!forward_only && (!a || a->snapshot)) {
        err_set(err, TINKER_EINVAL,
                a ? "this adapter is a snapshot and cannot be trained"
                  : "the base model cannot be trained, only an adapter");
        return NULL;
    }
    if (a && a->engine != e) {
        err_set(err, TINKER_EINVAL, "the adapter belongs to another engine");
        return NULL;
    }
    tinker_pass *p = calloc(1, sizeof(*p));
    if (!p) {
        err_nomem(err, "pass");
        return NULL;
    }
    p->engine = e;
    p->adapter = a;
    p->backward = !forward_only;
    p->adapter_steps = a ? a->steps : 0;
    /* sparse targets can expand to anything */
    arena_init(&p->arena, e->memory_limit > e->pass_bytes ? e->memory_limit - e->pass_bytes : 0);
    if (read_data(p, data, n, loss, err) != TINKER_OK || pass_allocate(p, err) != TINKER_OK) {
        tinker_pass_free(p);
        return NULL;
    }
    return p;
}

void tinker_pass_free(tinker_pass *p)
{
    if (!p)
        return;
    pass_release(p);
    p->engine->pass_bytes -= p->bytes;
    arena_clear(&p->arena);
    free(p);
}

const tinker_forward_backward *tinker_pass_result(const tinker_pass *p)
{
    return p->stage == PASS_DONE ? &p->result : NULL;
}

/* Segments, pages, tokens and rows of micro-batch p->at. */
static void begin_batch(tinker_pass *p)
{
    const struct micro_batch *b = &p->batches[p->at];
    const struct lora *lora = adapter_lora(p->adapter);
    size_t half = kv_half(&p->model->config), row = 0, page = 0;
    for (size_t i = 0; i < b->n; i++) {
        size_t datum = b->first + i, n = p->data[datum].n;
        p->segments[i] = (struct segment){ row, n, 0, lora, &p->pages[page] };
        memcpy(p->row_tokens + row, p->tokens[datum], n * sizeof(*p->row_tokens));
        for (size_t k = 0; k < n; k++, row++)
            p->rows[row] = (struct head_row){ &p->data[datum], k, p->logprobs[datum],
                                              p->losses[datum], p->loss_grads[datum] };
        for (size_t k = 0; k * KV_BLOCK < n; k++, page++)
            p->pages[page] = p->kv + page * 2 * half;
    }
    p->batch = (struct batch){ b->rows, p->row_tokens, p->segments, b->n };
    batch_prepare(p->model, &p->batch, p->segment_of, p->cs);
    p->layer = p->row = 0;
}

static struct block block_of(const tinker_pass *p)
{
    size_t rank = p->adapter ? (size_t)p->adapter->desc.rank : 0;
    return (struct block){ p->model, p->engine->threads, &p->batch, p->segment_of, p->cs, rank };
}

static float *input_of(const tinker_pass *p, size_t layer)
{
    size_t stride = p->rows_max * p->model->config.hidden;
    stride = (stride + 15) / 16 * 16;
    return p->x + (p->backward ? layer : layer % 2) * stride;
}

static struct acts *acts_of(const tinker_pass *p, size_t layer)
{
    return &p->acts[p->backward && !p->recompute ? layer : 0];
}

static void layer_forward(tinker_pass *p, size_t layer, float *y)
{
    struct block block = block_of(p);
    size_t half = kv_half(&p->model->config);
    size_t kept = p->backward && !p->recompute ? layer : 0;
    size_t offset = kept * p->pages_max * 2 * half;
    block_forward(&block, layer, offset, offset + half, input_of(p, layer), acts_of(p, layer), y);
}

static void count_experts(tinker_pass *p)
{
    size_t experts = p->model->config.experts;
    const uint32_t *start = acts_of(p, p->layer)->moe.start;
    for (size_t e = 0; p->model->layers[p->layer].experts && e < experts; e++)
        p->expert_rows[p->layer * experts + e] += start[e + 1] - start[e];
}

static void step_forward(tinker_pass *p)
{
    const struct model_config *c = &p->model->config;
    if (p->layer == 0)
        model_embed(p->model, p->row_tokens, p->batch.n, input_of(p, 0));
    layer_forward(p, p->layer, input_of(p, p->layer + 1));
    count_experts(p);
    p->layer++;
    if (p->layer < c->layers)
        return;
    norm_forward(p->engine->threads, p->h, p->rstd, input_of(p, c->layers), p->model->norm,
                 p->batch.n, c->hidden, c->norm_eps);
    p->stage = PASS_HEAD;
}

static void next_batch(tinker_pass *p)
{
    p->at++;
    p->stage = PASS_FORWARD;
    if (p->at < p->n_batches)
        begin_batch(p);
}

/* The final norm's gradient starts dx. */
static void begin_backward(tinker_pass *p)
{
    const struct model_config *c = &p->model->config;
    const float *x = input_of(p, c->layers);
    size_t rows = p->batch.n;
    memset(p->dx, 0, rows * c->hidden * sizeof(float));
    if (!p->grads.lora)
        norm_gradient(p->engine->threads, grads_param(&p->grads, p->grads.params->norm), p->dh, x,
                      p->rstd, rows, c->hidden);
    norm_backward(p->engine->threads, p->dx, p->dh, x, p->model->norm, p->rstd, rows, c->hidden);
    p->layer = c->layers;
    p->stage = PASS_BACKWARD;
}

static void step_head(tinker_pass *p)
{
    size_t hidden = p->model->config.hidden, chunk = head_chunk(&p->model->config);
    size_t left = p->batch.n - p->row, n = left < chunk ? left : chunk;
    p->head.model = p->model;
    p->head.threads = p->engine->threads;
    p->head.lora = adapter_lora(p->adapter);
    p->head.loss = &p->loss;
    p->head.grads = p->backward ? &p->grads : NULL;
    head_rows(&p->head, p->h + p->row * hidden, p->rows + p->row, n,
              p->backward ? p->dh + p->row * hidden : NULL);
    p->row += n;
    if (p->row < p->batch.n)
        return;
    if (p->backward)
        begin_backward(p);
    else
        next_batch(p);
}

struct embed_job {
    const tinker_pass *p;
    float *grad;
};

/* Rows in ascending order, so that repeated tokens add up the same way always. */
static void embed_slice(void *arg, size_t begin, size_t end)
{
    const struct embed_job *j = arg;
    size_t hidden = j->p->model->config.hidden;
    for (size_t row = 0; row < j->p->batch.n; row++) {
        float *g = j->grad + (size_t)j->p->row_tokens[row] * hidden;
        for (size_t i = begin; i < end; i++)
            g[i] += j->p->dx[row * hidden + i];
    }
}

static void step_backward(tinker_pass *p)
{
    struct block block = block_of(p);
    size_t half = kv_half(&p->model->config), layer = --p->layer;
    size_t kept = p->recompute ? 0 : layer;
    size_t offset = kept * p->pages_max * 2 * half;
    if (p->recompute)
        layer_forward(p, layer, p->h); /* its output is not needed again */
    block_backward(&block, layer, offset, offset + half, input_of(p, layer), acts_of(p, layer),
                   p->dx, &p->grads, &p->back);
    if (layer > 0)
        return;
    if (!p->grads.lora) {
        struct embed_job job = { p, grads_param(&p->grads, p->grads.params->embed) };
        threads_run(p->engine->threads, p->model->config.hidden, 64, embed_slice, &job);
    }
    next_batch(p);
}

struct add_job {
    float *to;
    const float *from;
};

static void add_slice(void *arg, size_t begin, size_t end)
{
    const struct add_job *j = arg;
    for (size_t i = begin; i < end; i++)
        j->to[i] += j->from[i];
}

static void commit(tinker_pass *p)
{
    tinker_adapter *a = p->adapter;
    if (p->backward && a->grad) {
        struct add_job job = { a->grad, p->grad };
        threads_run(p->engine->threads, a->params.total, 1 << 14, add_slice, &job);
    } else if (p->backward) {
        a->grad = p->grad;
        p->grad = NULL;
    }
    pass_metrics(p);
    pass_release(p);
    p->stage = PASS_DONE;
}

/* One unit of work; roughly its number of operations. */
static double run_unit(tinker_pass *p)
{
    const struct model_config *c = &p->model->config;
    double rows = (double)p->batch.n, hidden = (double)c->hidden;
    double layer =
        2 * rows * hidden *
        (2.0 * (double)((c->heads + c->kv_heads) * c->head_dim) + 3.0 * (double)model_mlp_width(c));
    switch (p->stage) {
    case PASS_FORWARD:
        step_forward(p);
        return layer;
    case PASS_HEAD:
        step_head(p);
        return 4 * (double)head_chunk(c) * hidden * (double)c->vocab;
    default:
        step_backward(p);
        return p->recompute ? 3 * layer : 2 * layer;
    }
}

static tinker_status start(tinker_pass *p, tinker_error *err)
{
    p->model = adapter_model(p->engine, p->adapter);
    if (!p->model)
        return err_nomem(err, "packed weights");
    if (p->backward)
        p->grads =
            (struct grads){ &p->adapter->params, adapter_lora(p->adapter), p->adapter->w, p->grad };
    begin_batch(p);
    return TINKER_OK;
}

int tinker_pass_step(tinker_pass *p, tinker_error *err)
{
    if (p->stage == PASS_DONE)
        return 0;
    if (p->adapter && p->adapter->steps != p->adapter_steps) {
        p->stage = PASS_FAILED;
        err_set(err, TINKER_ESTATE, "the adapter took an optimiser step while a pass was running");
    } else if (p->stage == PASS_FAILED) {
        err_set(err, TINKER_ESTATE, "this pass has failed already");
    } else if (!p->model && start(p, err) != TINKER_OK) {
        p->stage = PASS_FAILED;
    }
    if (p->stage == PASS_FAILED) {
        pass_release(p);
        return -1;
    }
    double done = 0;
    while (p->at < p->n_batches && done < step_flops)
        done += run_unit(p);
    if (p->at < p->n_batches)
        return 1;
    commit(p);
    return 0;
}
