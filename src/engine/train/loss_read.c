/* loss_read.c - the tensors of a datum: names, shapes, types, values, all checked.
 *
 * Sparse tensors are expanded each by itself: token 0 and "absent" look the same in
 * a sparse target, and the weights decide what counts. */
#include "engine/train/loss.h"

#include <math.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "engine/kernels/kernels.h"

/* One tensor being read; the fields are for messages and memory. */
struct reading {
    size_t index;     /* of the datum */
    const char *name; /* of the tensor */
    struct arena *arena;
    tinker_error *err;
};

/* Names the place as clients know it: datum and tensor. */
static tinker_status refuse_tensor(const struct reading *r, const char *why)
{
    return err_set(r->err, TINKER_EINVAL, "datum %zu: %.60s: %s", r->index, r->name, why);
}

/* Element i of a dense or sparse value list as a double; integers below 2^53 exactly. */
static double read_element(const tinker_tensor *t, size_t i)
{
    switch (t->dtype) {
    case TINKER_FLOAT32:
        return (double)((const float *)t->data)[i];
    case TINKER_INT64:
        return (double)((const int64_t *)t->data)[i];
    case TINKER_INT32:
        return (double)((const int32_t *)t->data)[i];
    case TINKER_BFLOAT16:
        return (double)f32_from_bf16(((const uint16_t *)t->data)[i]);
    case TINKER_FLOAT64:
        return ((const double *)t->data)[i];
    case TINKER_UINT32:
        return (double)((const uint32_t *)t->data)[i];
    case TINKER_UINT64:
        return (double)((const uint64_t *)t->data)[i];
    }
    return NAN;
}

const char *loss_sparse_problem(const tinker_tensor *t)
{
    if (!t->shape || t->ndim != 2 || t->shape[0] < 0 || t->shape[1] < 0)
        return "a sparse tensor needs a shape of two dimensions";
    /* crow[i] to crow[i + 1] are the values of row i (CSR) */
    if (t->crow[0] != 0 || (uint64_t)t->crow[t->shape[0]] != t->n)
        return "crow_indices do not match the number of values";
    for (int64_t i = 0; i < t->shape[0]; i++)
        if (t->crow[i + 1] < t->crow[i])
            return "crow_indices are not ascending";
    for (size_t i = 0; i < t->n; i++)
        if (t->col[i] < 0 || t->col[i] >= t->shape[1])
            return "col_indices beyond the shape";
    return NULL;
}

/* Shape must be (n) or (n, k); gives k, and whether it was a matrix. */
static tinker_status check_shape(const struct reading *r, const tinker_tensor *t, size_t n,
                                 size_t *k, bool *matrix)
{
    size_t ndim = t->shape ? t->ndim : 1;
    if (t->dtype < TINKER_FLOAT32 || t->dtype > TINKER_UINT64)
        return refuse_tensor(r, "unknown dtype");
    *k = 1;
    *matrix = ndim == 2;
    if (t->shape && (ndim == 0 || ndim > 2))
        return refuse_tensor(r, "must have one or two dimensions");
    /* a tensor without a shape has one dimension */
    uint64_t rows = t->shape ? (uint64_t)t->shape[0] : (uint64_t)t->n;
    if (rows != n)
        return err_set(r->err, TINKER_EINVAL,
                       "datum %zu: %.60s has %lld positions, the model input has %zu tokens",
                       r->index, r->name, (long long)rows, n);
    if (*matrix) {
        if (t->shape[1] < 1 || t->shape[1] > 1 << 20)
            return refuse_tensor(r, "the second dimension must be 1 to 2^20");
        *k = (size_t)t->shape[1];
    }
    /* what a sparse tensor must satisfy follows below */
    if (!t->crow && t->n != n * *k)
        return refuse_tensor(r, "the number of values does not match the shape");
    if (t->n && !t->data)
        return refuse_tensor(r, "no data");
    if (!t->crow)
        return TINKER_OK;
    const char *why = t->col || t->n == 0 ? loss_sparse_problem(t) : "no col_indices";
    return why ? refuse_tensor(r, why) : TINKER_OK;
}

/* Where value i of t goes in the dense matrix.  Values come in ascending order, so
 * *row only moves on. */
static size_t dense_index(const tinker_tensor *t, size_t i, size_t k, int64_t *row)
{
    if (!t->crow)
        return i;
    while ((uint64_t)t->crow[*row + 1] <= i)
        (*row)++;
    return (size_t)*row * k + (size_t)t->col[i];
}

/* Integers in the vocabulary; positions that a sparse tensor leaves out get token 0. */
static tinker_status read_targets(const struct reading *r, const tinker_tensor *t, size_t vocab,
                                  struct loss_datum *d)
{
    int64_t row = 0;
    d->targets = arena_array(r->arena, d->n * d->k, sizeof(*d->targets));
    if (!d->targets)
        return err_nomem(r->err, r->name);
    for (size_t i = 0; i < t->n; i++) {
        double v = read_element(t, i);
        /* written so that NAN is refused, too */
        if (!(v >= 0 && v < (double)vocab) || v != floor(v))
            return err_set(r->err, TINKER_EINVAL,
                           "datum %zu: %s[%zu] is not a token id of this model (0 to %zu)",
                           r->index, r->name, i, vocab - 1);
        d->targets[dense_index(t, i, d->k, &row)] = (int32_t)v;
    }
    return TINKER_OK;
}

/* Finite numbers; positions that a sparse tensor leaves out get 0. */
static tinker_status read_floats(const struct reading *r, const tinker_tensor *t, size_t count,
                                 size_t k, float **out)
{
    int64_t row = 0;
    float *values = arena_array(r->arena, count, sizeof(*values));
    if (!values)
        return err_nomem(r->err, r->name);
    for (size_t i = 0; i < t->n; i++) {
        /* 1e39 is finite as a double, but not here */
        float v = (float)read_element(t, i);
        if (!isfinite(v))
            return err_set(r->err, TINKER_EINVAL, "datum %zu: %s[%zu] is not a finite number",
                           r->index, r->name, i);
        values[dense_index(t, i, k, &row)] = v;
    }
    *out = values;
    return TINKER_OK;
}

/* Everything but the targets, whose shape all other tensors must have. */
static tinker_status read_inputs(struct loss_datum *d, const struct loss *l, const tinker_datum *in,
                                 struct reading *r)
{
    const struct {
        const char *name;
        enum loss_input input;
        float **slot;
    } slots[] = {
        { "weights", LOSS_WEIGHTS, &d->weights },
        { "logprobs", LOSS_LOGPROBS, &d->logprobs },
        { "advantages", LOSS_ADVANTAGES, &d->advantages },
        { "clip_low_threshold", LOSS_CLIP_LOW, &d->clip_low },
        { "clip_high_threshold", LOSS_CLIP_HIGH, &d->clip_high },
        { "sequence_ratio_mask", LOSS_RATIO_MASK, &d->ratio_mask },
    };
    for (size_t i = 0; i < in->n_inputs; i++) {
        const tinker_tensor *t = &in->inputs[i].tensor;
        size_t k, at = 0;
        bool matrix;
        r->name = in->inputs[i].name ? in->inputs[i].name : "(no name)";
        if (strcmp(r->name, "target_tokens") == 0)
            continue;
        while (at < ARRAY_LEN(slots) && strcmp(slots[at].name, r->name) != 0)
            at++;
        if (at == ARRAY_LEN(slots) || !loss_takes(l, slots[at].input))
            return refuse_tensor(r, "this loss knows no such input");
        tinker_status status = check_shape(r, t, d->n, &k, &matrix);
        if (status != TINKER_OK)
            return status;
        /* (n, k) as the targets, or (n) when k is 1 */
        if (k != d->k)
            return refuse_tensor(r, "must have the shape of target_tokens");
        status = read_floats(r, t, d->n * d->k, d->k, slots[at].slot);
        if (status != TINKER_OK)
            return status;
    }
    for (size_t i = 0; i < ARRAY_LEN(slots); i++) {
        r->name = slots[i].name;
        if (l->type->required & slots[i].input && !*slots[i].slot)
            return refuse_tensor(r, "is missing");
    }
    return TINKER_OK;
}

tinker_status loss_read(struct loss_datum *d, const struct loss *l, const tinker_datum *in,
                        size_t index, size_t n, size_t vocab, struct arena *arena,
                        tinker_error *err)
{
    struct reading r = { .index = index, .name = "target_tokens", .arena = arena, .err = err };
    /* first: the shape of all others depends on them */
    const tinker_tensor *targets = NULL;
    for (size_t i = 0; i < in->n_inputs && !targets; i++)
        if (in->inputs[i].name && strcmp(in->inputs[i].name, r.name) == 0)
            targets = &in->inputs[i].tensor;
    *d = (struct loss_datum){ .n = n };
    if (!targets)
        return refuse_tensor(&r, "is missing");
    if (targets->dtype == TINKER_FLOAT32 || targets->dtype == TINKER_FLOAT64 ||
        targets->dtype == TINKER_BFLOAT16)
        return refuse_tensor(&r, "must be integers");
    tinker_status status = check_shape(&r, targets, n, &d->k, &d->matrix);
    if (status == TINKER_OK && d->matrix && !l->type->many_targets)
        return err_set(err, TINKER_EINVAL,
                       "datum %zu: target_tokens: loss %s takes one target per position", index,
                       l->type->name);
    if (status == TINKER_OK)
        status = read_targets(&r, targets, vocab, d);
    /* a function of the caller reads its inputs itself */
    if (status == TINKER_OK && !l->type->by_caller)
        status = read_inputs(d, l, in, &r);
    if (status != TINKER_OK)
        return status;
    /* s is a mean over the marked positions: a mask that marks none is a mistake */
    bool marked = !d->ratio_mask;
    for (size_t i = 0; i < d->n && !marked; i++)
        marked = d->ratio_mask[i] != 0;
    r.name = "sequence_ratio_mask";
    if (!marked)
        return refuse_tensor(&r, "marks no position");
    /* as loss_parse() checks the settings; elements that do not count may hold anything, such as
     * zeros where only one of the two thresholds was given for each token */
    for (size_t i = 0; (d->clip_low || d->clip_high) && i < d->n; i++) {
        double low = d->clip_low ? (double)d->clip_low[i] : l->clip_low;
        double high = d->clip_high ? (double)d->clip_high[i] : l->clip_high;
        bool counts = d->advantages[i] != 0 && !(d->weights && d->weights[i] == 0);
        if (counts && low > high)
            return err_set(err, TINKER_EINVAL,
                           "datum %zu: clip_low_threshold is above clip_high_threshold at "
                           "position %zu",
                           index, i);
    }
    return TINKER_OK;
}
