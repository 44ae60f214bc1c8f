/* pass_data.c - what goes into a pass and what comes out of it.
 *
 * Everything is checked and copied before any work, so that a pass can only fail for
 * want of memory later.  Micro-batches are cut by token count alone: neither threads
 * nor memory change the cut, because it decides the order in which gradients add. */
#include "engine/train/pass.h"

#include <math.h>
#include <string.h>
#include "base/err.h"

/* MICRO_ROWS is part of the contract of equal bits: it decides how gradients are grouped. */
enum { MICRO_ROWS = 512, METRICS_MAX = 16 };

/* Tokens of all chunks of datum `index` in one array; *count receives how many. */
static tinker_status read_tokens(tinker_pass *p, size_t index, const tinker_datum *d, size_t *count,
                                 tinker_error *err)
{
    size_t vocab = p->engine->model->config.vocab, n = 0;
    /* count first: the arena gives exactly what is needed */
    for (size_t i = 0; i < d->model_input.n_chunks; i++) {
        const tinker_chunk *c = &d->model_input.chunks[i];
        if (c->kind != TINKER_CHUNK_TEXT)
            return err_set(err, TINKER_EINVAL,
                           "datum %zu: only encoded_text inputs are supported, chunk %zu is not",
                           index, i);
        n += c->n_tokens;
    }
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "datum %zu: the model input has no tokens", index);
    if (n > (size_t)p->engine->info.context)
        return err_set(err, TINKER_EINVAL,
                       "datum %zu: %zu tokens are more than the context of %lld", index, n,
                       (long long)p->engine->info.context);
    int32_t *tokens = arena_array(&p->arena, n, sizeof(*tokens));
    if (!tokens)
        return err_nomem(err, "tokens");
    n = 0;
    for (size_t i = 0; i < d->model_input.n_chunks; i++) {
        const tinker_chunk *c = &d->model_input.chunks[i];
        for (size_t k = 0; k < c->n_tokens; k++, n++) {
            if (c->tokens[k] < 0 || (size_t)c->tokens[k] >= vocab)
                return err_set(err, TINKER_EINVAL,
                               "datum %zu: token %d at position %zu is not in the vocabulary of "
                               "%zu",
                               index, (int)c->tokens[k], n, vocab);
            tokens[n] = c->tokens[k];
        }
    }
    p->tokens[index] = tokens;
    *count = n;
    return TINKER_OK;
}

/* The tensors of a datum's result, which show the arrays that the head will fill. */
static tinker_status make_output(tinker_pass *p, size_t index, tinker_loss_output *out,
                                 tinker_error *err)
{
    const struct loss_datum *d = &p->data[index];
    size_t count = d->n * d->k;
    tinker_named_tensor *tensors = arena_array(&p->arena, 2, sizeof(*tensors));
    int64_t *shape = arena_array(&p->arena, 2, sizeof(*shape));
    p->logprobs[index] = arena_array(&p->arena, count, sizeof(float));
    p->losses[index] = arena_array(&p->arena, count, sizeof(float));
    p->loss_grads[index] = arena_array(&p->arena, count, sizeof(float));
    if (!tensors || !shape || !p->logprobs[index] || !p->losses[index] || !p->loss_grads[index])
        return err_nomem(err, "results");
    /* results have the shape of the targets */
    shape[0] = (int64_t)d->n;
    shape[1] = (int64_t)d->k;
    for (int i = 0; i < 2; i++) {
        tensors[i].name = i ? "elementwise_loss" : "logprobs";
        tensors[i].tensor = (tinker_tensor){
            .dtype = TINKER_FLOAT32,
            .data = i ? p->losses[index] : p->logprobs[index],
            .n = count,
            .shape = shape,
            .ndim = d->matrix ? 2 : 1,
        };
    }
    /* a caller's function has one loss per datum, none per position */
    *out = (tinker_loss_output){ tensors, p->custom ? 1 : 2 };
    return TINKER_OK;
}

tinker_status pass_read(tinker_pass *p, const tinker_datum *data, size_t n, const tinker_loss *loss,
                        tinker_error *err)
{
    /* the loss first: it decides which tensors a datum must have */
    tinker_status status = TINKER_OK;
    if (p->custom)
        loss_by_caller(&p->loss);
    else
        status = loss_parse(&p->loss, loss, err);
    if (status != TINKER_OK)
        return status;
    if (n == 0)
        return err_set(err, TINKER_EINVAL, "no data");
    p->n = n;
    p->data = arena_array(&p->arena, n, sizeof(*p->data));
    p->tokens = arena_array(&p->arena, n, sizeof(*p->tokens));
    p->logprobs = arena_array(&p->arena, n, sizeof(*p->logprobs));
    p->losses = arena_array(&p->arena, n, sizeof(*p->losses));
    p->loss_grads = arena_array(&p->arena, n, sizeof(*p->loss_grads));
    tinker_loss_output *outputs = arena_array(&p->arena, n, sizeof(*outputs));
    if (!p->data || !p->tokens || !p->logprobs || !p->losses || !p->loss_grads || !outputs)
        return err_nomem(err, "data");
    /* in the order of the request: an error names the first wrong datum */
    for (size_t i = 0; i < n; i++) {
        size_t tokens = 0;
        status = read_tokens(p, i, &data[i], &tokens, err);
        if (status == TINKER_OK)
            status = loss_read(&p->data[i], &p->loss, &data[i], i, tokens,
                               p->engine->model->config.vocab, &p->arena, err);
        if (status == TINKER_OK)
            status = make_output(p, i, &outputs[i], err);
        if (status != TINKER_OK)
            return status;
    }
    tinker_named_number *metrics = arena_array(&p->arena, METRICS_MAX, sizeof(*metrics));
    const struct model_config *c = &p->engine->model->config;
    if (c->experts)
        p->expert_rows = arena_array(&p->arena, c->layers * c->experts, sizeof(*p->expert_rows));
    if (!metrics || (c->experts && !p->expert_rows))
        return err_nomem(err, "metrics");
    p->result = (tinker_forward_backward){
        .output_type = "scalar", .outputs = outputs, .n_outputs = n, .metrics = metrics
    };
    /* micro-batches of consecutive datums, at most MICRO_ROWS rows or one longer datum */
    p->batches = arena_array(&p->arena, n, sizeof(*p->batches));
    if (!p->batches)
        return err_nomem(err, "micro-batches");
    for (size_t i = 0; i < n; i++) {
        size_t rows = p->data[i].n;
        struct micro_batch *b = p->n_batches ? &p->batches[p->n_batches - 1] : NULL;
        if (!b || b->rows + rows > MICRO_ROWS) {
            b = &p->batches[p->n_batches++];
            b->first = i;
        }
        b->n++;
        b->rows += rows;
        b->pages += (rows + KV_BLOCK - 1) / KV_BLOCK; /* sequences share no page */
        b->chunks += delta_chunks(rows);
        p->chunks_max = b->chunks > p->chunks_max ? b->chunks : p->chunks_max;
        p->rows_max = b->rows > p->rows_max ? b->rows : p->rows_max;
        p->pages_max = b->pages > p->pages_max ? b->pages : p->pages_max;
    }
    return TINKER_OK;
}

static void put_metric(tinker_pass *p, const char *name, double value)
{
    /* the array belongs to the pass; the result only shows it as const */
    tinker_named_number *metrics = (tinker_named_number *)p->result.metrics;
    metrics[p->result.n_metrics++] = (tinker_named_number){ name, value };
}

/* How evenly the router spreads the tokens: the mean over sparse layers, where `fair` is how
 * often each expert is chosen when all are chosen equally often. */
static void put_expert_metrics(tinker_pass *p, double tokens)
{
    const struct model_config *c = &p->engine->model->config;
    double experts = (double)c->experts, fair = tokens * (double)c->experts_used / experts;
    double layers = (double)model_sparse_layers(c), busy = 0, over = 0, most = 0, worst = 0,
           least = 0;
    for (size_t layer = 0; layer < c->layers; layer++) {
        /* tokens per expert of this layer */
        const uint64_t *n = p->expert_rows + layer * c->experts;
        uint64_t max = n[0], min = n[0];
        for (size_t e = 0; model_sparse(c, layer) && e < c->experts; e++) {
            busy += n[e] > 0;
            over += (double)n[e] > fair;
            max = n[e] > max ? n[e] : max;
            min = n[e] < min ? n[e] : min;
        }
        if (!model_sparse(c, layer))
            continue;
        /* violation: how far the busiest, or idlest, expert is from a fair share */
        most += (double)max / fair - 1;
        worst = fmax(worst, (double)max / fair - 1);
        least += (double)min / fair - 1;
    }
    put_metric(p, "e_frac_with_tokens:mean", busy / experts / layers);
    put_metric(p, "e_frac_oversubscribed:mean", over / experts / layers);
    put_metric(p, "e_max_violation:mean", most / layers);
    put_metric(p, "e_max_violation:max", worst);
    put_metric(p, "e_min_violation:mean", least / layers);
}

void pass_metrics(tinker_pass *p)
{
    double loss = p->custom_loss, tokens = 0, ratios = 0, clips = 0, kl = 0, counted = 0,
           datums = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct loss_datum *d = &p->data[i];
        tokens += (double)d->n;
        if (p->custom)
            continue; /* its losses are in the sum */
        /* one ratio for the sequence */
        if (p->loss.type->whole_datum) {
            ratios += d->ratio;
            clips += d->clipped;
            datums++;
        }
        for (size_t e = 0; e < d->n * d->k; e++) {
            double ratio;
            bool clipped;
            loss += (double)p->losses[i][e];
            if (!loss_ratio(&p->loss, d, e, p->logprobs[i][e], &ratio, &clipped))
                continue;
            if (!p->loss.type->whole_datum) {
                ratios += ratio;
                clips += clipped;
            }
            /* the first-order estimate of KL(sampler || trainer): mean of q - l over sampled tokens */
            kl += (double)d->logprobs[e] - (double)p->logprobs[i][e];
            counted++;
        }
    }
    /* the part after the colon says how the client joins the metrics of a split batch */
    put_metric(p, "loss:sum", loss);
    put_metric(p, "num_tokens:sum", tokens);
    put_metric(p, "num_datums:sum", (double)p->n);
    if (model_sparse_layers(&p->engine->model->config))
        put_expert_metrics(p, tokens);
    if (!loss_takes(&p->loss, LOSS_LOGPROBS))
        return; /* no ratios to report */
    double terms = p->loss.type->whole_datum ? datums : counted;
    put_metric(p, "ratio:mean", terms > 0 ? ratios / terms : 1);
    put_metric(p, "clip_frac:mean", terms > 0 ? clips / terms : 0);
    put_metric(p, "kl_sample_train:mean", counted ? kl / counted : 0);
}
