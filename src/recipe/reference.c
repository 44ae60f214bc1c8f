/* reference.c - what another model says of the same tokens: logprobs, and its likeliest tokens.
 *
 * One request per sequence, all submitted before the first is awaited; the library bounds how many
 * are under way. */
#include "recipe/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/err.h"
#include "recipe/score.h"

/* The whole sequence of a datum: its input and the last target. A datum holds input x[0..n) and
 * targets x[1..n]; a reference scores x[0..n]. */
static tinker_input *whole_sequence(const tinker_datum *d, tinker_error *err)
{
    tinker_input *in = tinker_input_new(err);
    const tinker_tensor *t = score_input(d, "target_tokens");
    size_t n = score_length(d);
    bool ok = in && t && t->dtype == TINKER_INT64 && n > 0;
    for (size_t i = 0; ok && i < d->model_input.n_chunks; i++)
        ok = tinker_input_append(in, &d->model_input.chunks[i], err) == TINKER_OK;
    if (ok) {
        int32_t last = (int32_t)((const int64_t *)t->data)[t->n - 1];
        ok = tinker_input_append_tokens(in, &last, 1, err) == TINKER_OK;
    } else if (in && (!t || n == 0)) {
        err_set(err, TINKER_EINVAL, "a datum has no target_tokens");
    }
    if (ok)
        return in;
    tinker_input_free(in);
    return NULL;
}

/* compute_logprobs has no top-k, so that goes through a sample of one token, whose only use is
 * its prompt. */
tinker_future **reference_request(tinker_sampler *s, const tinker_datum *data, size_t n,
                                  size_t topk, tinker_error *err)
{
    tinker_future **f = calloc(n + 1, sizeof(tinker_future *));
    if (!f) {
        err_nomem(err, "requests");
        return NULL;
    }
    tinker_sample_options o = TINKER_SAMPLE_OPTIONS_INIT;
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    o.prompt_logprobs = 1;
    o.topk_prompt_logprobs = topk;
    params.max_tokens = 1;
    for (size_t i = 0; i < n; i++) {
        tinker_input *in = whole_sequence(&data[i], err);
        const tinker_model_input *view = in ? tinker_input_view(in) : NULL;
        if (view)
            f[i] = topk ? tinker_sampler_sample(s, view, &params, &o, err)
                        : tinker_sampler_compute_logprobs(s, view, err);
        tinker_input_free(in);
        if (!f[i]) {
            reference_free(f, n);
            return NULL;
        }
    }
    return f;
}

void reference_free(tinker_future **f, size_t n)
{
    for (size_t i = 0; f && i < n; i++)
        tinker_future_free(f[i]);
    free(f);
}

/* A service may or may not send a value for the first token, which nothing predicts. At least
 * `length` must be there; callers count from the end. */
tinker_status reference_await(tinker_future *f, size_t length, int64_t timeout_ms,
                              const tinker_sample **out, tinker_error *err)
{
    tinker_status status = tinker_future_wait(f, timeout_ms, err);
    if (status != TINKER_OK)
        return status;
    *out = tinker_future_sample(f);
    if ((*out)->prompt_logprobs && (*out)->n_prompt >= length)
        return TINKER_OK;
    return err_set(err, TINKER_EPROTOCOL, "%zu logprobs came for a sequence of %zu targets",
                   (*out)->n_prompt, length);
}

/* The last N of the logprobs belong to the N targets. One block: n + 1 pointers, then all
 * floats, so that one free() releases everything. */
float **reference_collect(tinker_future **f, const tinker_datum *data, size_t n, int64_t timeout_ms,
                          tinker_error *err)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total += score_length(&data[i]);
    float **out = malloc((n + 1) * sizeof(float *) + total * sizeof(float));
    float *values = out ? (float *)(void *)(out + n + 1) : NULL;
    if (!out) {
        err_nomem(err, "logprobs");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const tinker_sample *s;
        size_t length = score_length(&data[i]);
        if (reference_await(f[i], length, timeout_ms, &s, err) != TINKER_OK) {
            free(out);
            return NULL;
        }
        out[i] = values + at;
        memcpy(out[i], s->prompt_logprobs + s->n_prompt - length, length * sizeof(float));
        at += length;
    }
    return out;
}

float **tinker_reference_logprobs(tinker_sampler *s, const tinker_datum *data, size_t n,
                                  int64_t timeout_ms, tinker_error *err)
{
    tinker_future **f = reference_request(s, data, n, 0, err);
    float **out = f ? reference_collect(f, data, n, timeout_ms, err) : NULL;
    reference_free(f, n);
    return out;
}

/* ---- the likeliest tokens ---- */

struct tinker_topk_data {
    struct arena arena;
    tinker_datum *data;
    size_t n;
    double entropy;
};

void tinker_topk_free(tinker_topk_data *x)
{
    if (!x)
        return;
    arena_clear(&x->arena);
    free(x);
}

const tinker_datum *tinker_topk_datums(const tinker_topk_data *x, size_t *n)
{
    *n = x->n;
    return x->data;
}

double tinker_topk_entropy(const tinker_topk_data *x)
{
    return x->entropy;
}

/* Softmax over the K logprobs of a position; a cell that is not used has the first token and no
 * weight.  Returns the entropy. The service marks cells without a token by a logprob of -99999.
 * The maximum is subtracted first, as always with softmax, so that exp() cannot overflow. */
static double fill_position(const int32_t *tokens, const float *logprobs, size_t have, size_t k,
                            int64_t *targets, float *weights)
{
    enum { UNUSED = -99998 };
    double most = -INFINITY, sum = 0, entropy = 0;
    for (size_t j = 0; j < have; j++)
        if (logprobs[j] > UNUSED)
            most = fmax(most, logprobs[j]);
    for (size_t j = 0; j < k; j++) {
        bool used = j < have && logprobs[j] > UNUSED;
        targets[j] = used ? tokens[j] : have ? tokens[0] : 0;
        weights[j] = used ? expf(logprobs[j] - (float)most) : 0;
        sum += weights[j];
    }
    for (size_t j = 0; j < k && sum > 0; j++) {
        weights[j] = (float)(weights[j] / sum);
        if (weights[j] > 0)
            entropy -= weights[j] * log(weights[j]);
    }
    return entropy;
}

/* Targets and weights become (n, k): at each position a distribution over k tokens instead of
 * one token. Positions that the data does not train keep weight 0 and are not in the mean of the
 * entropy. */
static bool fill_datum(tinker_topk_data *x, size_t i, const tinker_datum *from,
                       const tinker_sample *s, size_t k, double *entropy, double *count)
{
    size_t n = score_length(from);
    const float *mask = score_floats(from, "weights");
    int64_t *targets = arena_array(&x->arena, n * k + 1, sizeof(*targets));
    float *weights = arena_array(&x->arena, n * k + 1, sizeof(*weights));
    int64_t *shape = arena_array(&x->arena, 2, sizeof(*shape));
    tinker_named_tensor *inputs = arena_array(&x->arena, 2, sizeof(*inputs));
    if (!targets || !weights || !shape || !inputs)
        return false;
    shape[0] = (int64_t)n;
    shape[1] = (int64_t)k;
    for (size_t t = 0; t < n; t++) {
        size_t row = s->n_prompt - n + t;
        double e = fill_position(s->topk_tokens + row * s->topk, s->topk_logprobs + row * s->topk,
                                 s->topk, k, targets + t * k, weights + t * k);
        if (mask && mask[t] == 0) {
            memset(weights + t * k, 0, k * sizeof(*weights));
        } else {
            *entropy += e;
            ++*count;
        }
    }
    inputs[0] = (tinker_named_tensor){
        "target_tokens",
        { .dtype = TINKER_INT64, .data = targets, .n = n * k, .shape = shape, .ndim = 2 }
    };
    inputs[1] = (tinker_named_tensor){
        "weights",
        { .dtype = TINKER_FLOAT32, .data = weights, .n = n * k, .shape = shape, .ndim = 2 }
    };
    x->data[i] =
        (tinker_datum){ .model_input = from->model_input, .inputs = inputs, .n_inputs = 2 };
    return true;
}

/* Inputs are borrowed from data, which must live as long as the result. Results are read in
 * order while later requests are still under way. */
tinker_topk_data *tinker_topk_targets(tinker_sampler *teacher, const tinker_datum *data, size_t n,
                                      size_t k, int64_t timeout_ms, tinker_error *err)
{
    tinker_future **f = reference_request(teacher, data, n, k, err);
    tinker_topk_data *x = f ? calloc(1, sizeof(*x)) : NULL;
    double entropy = 0, count = 0;
    bool ok = x != NULL;
    if (x) {
        arena_init(&x->arena, SIZE_MAX);
        x->n = n;
        x->data = arena_array(&x->arena, n + 1, sizeof(*x->data));
        ok = x->data != NULL;
    }
    if (f && !ok)
        err_nomem(err, "targets");
    for (size_t i = 0; ok && i < n; i++) {
        const tinker_sample *s;
        ok = reference_await(f[i], score_length(&data[i]), timeout_ms, &s, err) == TINKER_OK;
        if (ok && !s->topk_tokens)
            ok =
                err_set(err, TINKER_EPROTOCOL, "the service sent no likeliest tokens") == TINKER_OK;
        if (ok && !fill_datum(x, i, &data[i], s, k, &entropy, &count))
            ok = err_nomem(err, "targets") == TINKER_OK;
    }
    reference_free(f, n);
    if (ok) {
        x->entropy = count ? entropy / count : NAN;
        return x;
    }
    tinker_topk_free(x);
    return NULL;
}
