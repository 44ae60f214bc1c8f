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
#include "engine/train/budget.h"

/* Operations of one step, after which a server can sample. */
static const double step_flops = 5e9;

/* The request's arena is full although malloc did not fail: its data alone exceed the
 * engine's limit, or what other passes leave of it. */
static void refuse_data(const tinker_engine *e, tinker_error *err)
{
    unsigned long long limit = e->memory_limit, others = budget_promised(e);
    if (!others) {
        err_set(err, TINKER_ENOMEM,
                "the data of this batch need more than the limit of %llu bytes of memory", limit);
        return;
    }
    err_set(err, TINKER_ENOMEM,
            "the data of this batch need more memory than is left of the limit of %llu bytes, of "
            "which other passes and samples hold %llu",
            limit, others);
    if (err)
        err->retryable = 1; /* once the others are done */
}

/* Both ways to make a pass: with a loss of the table or, with fn, of the caller. */
static tinker_pass *make_pass(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                              size_t n, const tinker_loss *loss, tinker_datum_loss_fn *fn,
                              void *state, int forward_only, tinker_error *err)
{
    /* nothing to train */
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
    p->custom = fn;
    p->custom_state = state;
    p->backward = !forward_only;
    p->adapter_steps = a ? a->steps : 0;
    /* a small sparse tensor can expand to any size, so the data count against the limit, too */
    arena_init(&p->arena, budget_room(e));
    tinker_status status = pass_read(p, data, n, loss, err);
    if (status == TINKER_ENOMEM && !p->arena.failed)
        refuse_data(e, err);
    if (status == TINKER_OK)
        status = pass_allocate(p, err);
    if (status != TINKER_OK) {
        tinker_pass_free(p);
        return NULL;
    }
    return p;
}

tinker_pass *tinker_pass_new(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                             size_t n, const tinker_loss *loss, int forward_only, tinker_error *err)
{
    return make_pass(e, a, data, n, loss, NULL, NULL, forward_only, err);
}

tinker_pass *tinker_pass_new_custom(tinker_engine *e, tinker_adapter *a, const tinker_datum *data,
                                    size_t n, tinker_datum_loss_fn *fn, void *state,
                                    int forward_only, tinker_error *err)
{
    return make_pass(e, a, data, n, NULL, fn, state, forward_only, err);
}

/* The bytes of the results count until here. */
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
    /* rows and pages are numbered through the whole micro-batch */
    size_t page_floats = 2 * kv_half(&p->model->config), row = 0, page = 0;
    for (size_t i = 0; i < b->n; i++) {
        size_t datum = b->first + i, n = p->data[datum].n;
        p->segments[i] = (struct segment){ .row = row,
                                           .n = n,
                                           .lora = lora,
                                           .pages = &p->pages[page],
                                           .is_long = model_is_long(&p->model->config, n) };
        memcpy(p->row_tokens + row, p->tokens[datum], n * sizeof(*p->row_tokens));
        for (size_t k = 0; k < n; k++, row++)
            p->rows[row] = (struct lm_head_row){
                .datum = &p->data[datum],
                .position = k,
                .logprobs = p->logprobs[datum],
                .losses = p->losses[datum],
                .grads = p->loss_grads[datum],
            };
        for (size_t k = 0; k * KV_BLOCK < n; k++, page++)
            p->pages[page] = p->kv + page * page_floats;
    }
    p->batch = (struct batch){
        .n = b->rows, .tokens = p->row_tokens, .segments = p->segments, .n_segments = b->n
    };
    batch_prepare(p->model, &p->batch, p->segment_of, p->cs);
    p->layer = p->row = 0;
}

static struct block make_block(const tinker_pass *p)
{
    return (struct block){
        .model = p->model,
        .threads = p->engine->threads,
        .batch = &p->batch,
        .segment_of = p->segment_of,
        .cs = p->cs,
        .rank = p->adapter ? (size_t)p->adapter->desc.rank : 0,
    };
}

/* Input (rows, hidden) of a layer; that of layer `layers` is the network's output.  The
 * backward needs all of them, without it two take turns. */
static float *layer_input(const tinker_pass *p, size_t layer)
{
    size_t stride = p->rows_max * p->model->config.hidden;
    stride = (stride + 15) / 16 * 16;
    return p->x + (p->backward ? layer : layer % 2) * stride;
}

/* Index of the memory that holds a layer's activations, keys and values: its own, or one for
 * all layers when nothing is kept. */
static size_t kept_index(const tinker_pass *p, size_t layer)
{
    return p->backward && !p->recompute ? layer : 0;
}

/* Where the keys of a layer begin in its page 0: layers that are kept follow each other. */
static size_t layer_kv(const tinker_pass *p, size_t layer)
{
    const struct model_config *c = &p->model->config;
    return kept_index(p, layer) ? kv_offset(c, layer) * p->pages_max : 0;
}

static void run_layer(tinker_pass *p, size_t layer, float *y)
{
    struct block block = make_block(p);
    struct acts *acts = &p->acts[kept_index(p, layer)];
    if (kept_index(p, layer) == 0) /* layers of different kinds share the memory */
        acts_init(acts, &p->model->config, layer, &p->acts_size, p->acts_memory);
    block_forward(&block, layer, layer_kv(p, layer), layer_input(p, layer), acts, y);
}

/* PASS_FORWARD: one layer, after the last one the final norm. */
static void step_forward(tinker_pass *p)
{
    const struct model_config *c = &p->model->config;
    size_t layer = p->layer++;
    if (layer == 0)
        forward_embed(p->model, p->row_tokens, p->batch.n, layer_input(p, 0));
    run_layer(p, layer, layer_input(p, layer + 1));
    if (p->model->layers[layer].experts) { /* for the metrics */
        const uint32_t *start = p->acts[kept_index(p, layer)].moe.start;
        for (size_t e = 0; e < c->experts; e++)
            p->expert_rows[layer * c->experts + e] += start[e + 1] - start[e];
    }
    if (p->layer < c->layers)
        return;
    norm_forward(p->engine->threads, p->h, p->rstd, layer_input(p, c->layers), p->model->norm,
                 p->batch.n, c->hidden, c->norm_eps);
    p->stage = PASS_HEAD;
}

/* Micro-batch p->at is done; when it was the last one, only the commit is left. */
static void next_batch(tinker_pass *p)
{
    p->at++;
    p->stage = PASS_FORWARD;
    if (p->at < p->n_batches)
        begin_batch(p);
}

/* The loss of a datum whose logprobs are known, and its derivatives. */
static tinker_status evaluate_datum(tinker_pass *p, size_t datum, tinker_error *err)
{
    struct loss_datum *d = &p->data[datum];
    if (!p->custom) {
        loss_sequence(&p->loss, d, p->logprobs[datum], p->losses[datum], p->loss_grads[datum]);
        return TINKER_OK;
    }
    double loss = 0;
    tinker_status status =
        p->custom(datum, p->logprobs[datum], d->n * d->k, &loss,
                  p->backward ? p->loss_grads[datum] : NULL, err, p->custom_state);
    p->custom_loss += loss;
    return status;
}

/* Rows [row, row + n) of the micro-batch through one half of the head, or both. */
static void score_rows(tinker_pass *p, size_t row, size_t n)
{
    lm_head_score(&p->head, p->h + row * p->model->config.hidden, p->rows + row, n);
}
static void backward_rows(tinker_pass *p, size_t row, size_t n)
{
    size_t hidden = p->model->config.hidden;
    if (p->backward)
        lm_head_gradient(&p->head, p->h + row * hidden, p->rows + row, n, p->dh + row * hidden);
}

/* One unit of the head for a loss of whole datums: as many of them as fit a chunk, whose logits
 * are there for both halves.  A datum longer than a chunk is scored chunk by chunk first, and
 * again before the gradient of each.  Returns how many rows are done. */
static size_t step_whole_datums(tinker_pass *p, size_t chunk, tinker_error *err)
{
    const struct loss_datum *first = p->rows[p->row].datum;
    size_t datum = (size_t)(first - p->data), n = 0;
    if (first->n <= chunk) {
        size_t last = p->batches[p->at].first + p->batches[p->at].n, end = datum;
        for (; end < last && n + p->data[end].n <= chunk; end++)
            n += p->data[end].n;
        score_rows(p, p->row, n);
        for (; p->stage != PASS_FAILED && datum < end; datum++)
            if (evaluate_datum(p, datum, err) != TINKER_OK)
                p->stage = PASS_FAILED;
        if (p->stage != PASS_FAILED)
            backward_rows(p, p->row, n);
        return n;
    }
    size_t start = p->row - p->rows[p->row].position;
    if (p->scored < first->n) {
        n = first->n - p->scored < chunk ? first->n - p->scored : chunk;
        score_rows(p, start + p->scored, n);
        p->scored += n;
        if (p->scored == first->n && evaluate_datum(p, datum, err) != TINKER_OK)
            p->stage = PASS_FAILED;
        if (p->scored < first->n || p->backward)
            return 0;
        p->scored = 0;
        return first->n;
    }
    size_t left = start + first->n - p->row;
    n = left < chunk ? left : chunk;
    score_rows(p, p->row, n);
    backward_rows(p, p->row, n);
    if (n == left)
        p->scored = 0;
    return n;
}

/* PASS_HEAD: one chunk of rows; after the last one, begin the backward with the final norm
 * or go on to the next micro-batch. */
static void step_head(tinker_pass *p, tinker_error *err)
{
    const struct model_config *c = &p->model->config;
    size_t rows = p->batch.n, chunk = lm_head_chunk(c);
    size_t n = rows - p->row < chunk ? rows - p->row : chunk;
    p->head.model = p->model;
    p->head.threads = p->engine->threads;
    p->head.lora = adapter_lora(p->adapter);
    p->head.loss = &p->loss;
    p->head.grads = p->backward ? &p->grads : NULL;
    if (p->loss.type->whole_datum)
        n = step_whole_datums(p, chunk, err);
    else
        lm_head_rows(&p->head, p->h + p->row * c->hidden, p->rows + p->row, n,
                     p->backward ? p->dh + p->row * c->hidden : NULL);
    if (p->stage == PASS_FAILED)
        return;
    p->row += n;
    if (p->row < rows)
        return;
    if (!p->backward) {
        next_batch(p);
        return;
    }
    /* dx, the gradient of the residual stream, starts as that of the final norm's input */
    const float *x = layer_input(p, c->layers);
    memset(p->dx, 0, rows * c->hidden * sizeof(float));
    if (!p->grads.lora)
        norm_gradient(p->engine->threads, grads_param(&p->grads, p->grads.params->norm), p->dh, x,
                      c->hidden, p->rstd, rows, c->hidden);
    norm_backward(p->engine->threads, p->dx, p->dh, x, p->model->norm, p->rstd, rows, c->hidden);
    p->layer = c->layers;
    p->stage = PASS_BACKWARD;
}

/* Gradient of the embedding, cut along its columns. */
struct embed_job {
    const tinker_pass *p;
    float *grad;
};

/* Rows in ascending order, so that repeated tokens add up the same way always. */
static void embed_slice(void *arg, size_t begin, size_t end)
{
    const struct embed_job *j = arg;
    size_t hidden = j->p->model->config.hidden;
    float scale = j->p->model->config.embed_scale;
    for (size_t row = 0; row < j->p->batch.n; row++) {
        float *g = j->grad + (size_t)j->p->row_tokens[row] * hidden;
        for (size_t i = begin; i < end; i++)
            g[i] += scale * j->p->dx[row * hidden + i];
    }
}

/* PASS_BACKWARD: one layer, computed again first where its activations were not kept; after
 * layer 0 the embedding, which only rank 0 trains. */
static void step_backward(tinker_pass *p)
{
    struct block block = make_block(p);
    size_t layer = --p->layer, kept = kept_index(p, layer);
    if (p->recompute)
        run_layer(p, layer, p->h); /* its output is not needed again */
    block_backward(&block, layer, layer_kv(p, layer), layer_input(p, layer), &p->acts[kept], p->dx,
                   &p->grads, &p->back);
    if (layer > 0)
        return;
    if (!p->grads.lora) {
        struct embed_job job = { p, grads_param(&p->grads, p->grads.params->embed) };
        threads_run(p->engine->threads, p->model->config.hidden, 64, embed_slice, &job);
    }
    next_batch(p);
}

/* Adds a pass's gradient to that of earlier passes. */
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

/* One unit of work.  Returns roughly its number of operations: 2 per weight and row forward,
 * twice that backward. */
static double run_unit(tinker_pass *p, tinker_error *err)
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
        step_head(p, err);
        return 4 * (double)lm_head_chunk(c) * hidden * (double)c->vocab;
    default:
        step_backward(p);
        return p->recompute ? 3 * layer : 2 * layer;
    }
}

int tinker_pass_step(tinker_pass *p, tinker_error *err)
{
    if (p->stage == PASS_DONE)
        return 0;
    if (p->adapter && p->adapter->steps != p->adapter_steps) {
        p->stage = PASS_FAILED;
        err_set(err, TINKER_ESTATE, "the adapter took an optimizer step while a pass was running");
    } else if (p->stage == PASS_FAILED) {
        err_set(err, TINKER_ESTATE, "this pass has failed already");
    } else if (!p->model) {
        /* the first step: rank 0 may have to pack its weights, which tinker_pass_new() does not
         * wait for */
        p->model = adapter_model(p->engine, p->adapter);
        if (!p->model) {
            p->stage = PASS_FAILED;
            err_nomem(err, "packed weights");
        } else {
            if (p->backward)
                p->grads = (struct grads){ .params = &p->adapter->params,
                                           .lora = adapter_lora(p->adapter),
                                           .w = p->adapter->w,
                                           .g = p->grad };
            begin_batch(p);
        }
    }
    if (p->stage == PASS_FAILED) {
        pass_release(p);
        return -1;
    }
    double done = 0;
    while (p->at < p->n_batches && done < step_flops && p->stage != PASS_FAILED)
        done += run_unit(p, err);
    if (p->stage == PASS_FAILED) { /* the caller's loss */
        pass_release(p);
        return -1;
    }
    if (p->at < p->n_batches)
        return 1;
    /* everything is computed: the gradient reaches the adapter as a whole */
    tinker_adapter *a = p->adapter;
    if (p->backward && a->grad) {
        struct add_job job = { a->grad, p->grad };
        threads_run(p->engine->threads, a->params.total, 1 << 14, add_slice, &job);
    } else if (p->backward) {
        a->grad = p->grad; /* the first one since the last step: no need to copy */
        p->grad = NULL;
    }
    pass_metrics(p);
    pass_release(p);
    p->stage = PASS_DONE;
    return 0;
}
