/* reg_rows.c - regularizers of rows of log-probabilities: entropy, and distances from a
 * reference.  What is masked is taken out before exp and multiplication, so that -inf in
 * an unused slot becomes neither NaN nor gradient. */
#include <math.h>
#include <tinker/extra/regularizer.h>
#include "base/array.h"
#include "regularizer/reg.h"

/* ---- entropy ----------------------------------------------------------------------------- */

/* H = -sum p log p of each row, reduced over all rows of all datums. */
tinker_var *tinker_reg_entropy(tinker_tape *tape, const tinker_datum *data,
                               tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_entropy_options o = TINKER_REG_ENTROPY_OPTIONS_INIT;
    tinker_var **v = reg_copy_options(tape, &o, sizeof(o), state, "tinker_reg_entropy_options")
                         ? reg_new_array(&c)
                         : NULL;
    if (!v)
        return NULL;
    if (!(o.temperature > 0))
        return tape_error(tape, TINKER_EINVAL, "temperature is %g, expected more than 0",
                          o.temperature);
    for (size_t i = 0; i < n; i++) {
        struct reg_rows r;
        if (!reg_take_rows(&c, i, NULL, o.mask_weights, &r))
            return NULL;
        /* m: outcomes in a row. */
        size_t m = tinker_var_dim(r.x, -1);
        tinker_var *l = r.x;
        if (o.temperature != 1) { /* softmax(l / T), over what is not masked */
            l = tinker_var_scale(l, 1 / o.temperature);
            if (r.keep)
                l = tinker_var_masked_fill(l, tinker_var_not(r.keep), -INFINITY);
            l = tinker_var_log_softmax(l, -1);
        }
        /* p log p goes to 0 with p, but exp(-inf) * -inf is NaN: leave out what is below
         * e^-50.  A log-probability of 0 in its place adds exp(0) * 0 = 0. */
        tinker_var *counts = tinker_var_gt(l, tinker_tape_scalar(tape, -50));
        if (r.keep)
            counts = tinker_var_and(counts, r.keep);
        v[i] = tinker_var_entropy_rows(var_keep(l, counts));
        if (o.normalize && m < 2)
            return tape_error(tape, TINKER_EINVAL, "datum %zu: a row of %zu cannot be normalized",
                              i, m);
        if (o.normalize) /* the largest entropy of m outcomes is log m */
            v[i] = tinker_var_scale(v[i], 1 / log((double)m));
    }
    tinker_var *h = reg_reduce(reg_join_data(&c, v), o.reduction, TINKER_REG_MEAN);
    /* A loss is minimized, so more entropy is asked for by its negative. */
    tinker_var *signed_h = tinker_var_scale(h, o.maximize ? -1 : 1);
    tinker_tape_metric(tape, "entropy", tinker_var_item(signed_h));
    tinker_tape_note(tape, "mode", o.maximize ? "maximize" : "minimize");
    tinker_tape_metric(tape, "temperature", o.temperature);
    return signed_h;
}

/* ---- divergences ------------------------------------------------------------------------- */

/* K(a, b) = sum exp(a) * clamp(a - b) of each row, over the elements where exp(a) is worth counting.
 * The clamp bounds what one impossible token (b = -inf) can do to the whole batch. */
static tinker_var *row_divergence(tinker_var *a, tinker_var *b, tinker_var *keep)
{
    tinker_var *counts =
        tinker_var_gt(tinker_var_exp(tinker_var_detach(a)), tinker_tape_scalar(a->tape, 1e-10));
    if (keep)
        counts = tinker_var_and(counts, keep);
    /* 0 in both: then exp(0) * (0 - 0) adds nothing, and no gradient passes. */
    tinker_var *x = var_keep(a, counts), *y = var_keep(b, counts);
    tinker_var *d = tinker_var_clamp(tinker_var_sub(x, y), -100, 100);
    return tinker_var_sum(tinker_var_mul(tinker_var_exp(x), d), -1, 0);
}

static tinker_var *half_sum(tinker_var *a, tinker_var *b)
{
    return tinker_var_scale(tinker_var_add(a, b), 0.5);
}

/* Of the options reverse and symmetric. */
static tinker_var *kl_of(const struct reg_rows *r, const tinker_reg_reference_options *o)
{
    if (o->symmetric)
        return half_sum(row_divergence(r->x, r->y, r->keep), row_divergence(r->y, r->x, r->keep));
    return o->reverse ? row_divergence(r->y, r->x, r->keep) : row_divergence(r->x, r->y, r->keep);
}

/* v with 0 in place of what is left out, which may be anything. */
static tinker_var *zero_masked(const struct reg_rows *r, tinker_var *v)
{
    return r->keep ? var_keep(v, r->keep) : v;
}

/* K(x, log m) / 2 + K(y, log m) / 2 with m = (exp x + exp y) / 2 */
static tinker_var *js_of(const struct reg_rows *r, const tinker_reg_reference_options *o)
{
    (void)o;
    tinker_var *x = zero_masked(r, r->x), *y = zero_masked(r, r->y);
    tinker_var *m = half_sum(tinker_var_exp(x), tinker_var_exp(y));
    tinker_var *log_m = tinker_var_log(tinker_var_clamp(m, 1e-10, INFINITY));
    return half_sum(row_divergence(x, log_m, r->keep), row_divergence(y, log_m, r->keep));
}

/* Symmetric, without clamping and without a smallest probability. */
static tinker_var *plain_kl_of(const struct reg_rows *r, const tinker_reg_reference_options *o)
{
    (void)o;
    tinker_var *x = zero_masked(r, r->x), *y = zero_masked(r, r->y);
    return half_sum(tinker_var_kl_rows(x, y), tinker_var_kl_rows(y, x));
}

/* One number for each row, from x and the reference y. */
typedef tinker_var *row_distance(const struct reg_rows *r, const tinker_reg_reference_options *o);

/* One distance for each row of each datum; NULL after an error. */
static tinker_var *row_distances(const struct reg_call *c, const tinker_reg_reference_options *o,
                                 const char *field, row_distance *f)
{
    tinker_var **v = reg_new_array(c);
    for (size_t i = 0; v && i < c->n; i++) {
        struct reg_rows r;
        if (!reg_take_rows(c, i, reg_find_reference(c, o, i, field), o->mask_weights, &r))
            return NULL;
        v[i] = f(&r, o);
    }
    return v ? reg_join_data(c, v) : NULL;
}

static bool read_options(tinker_tape *t, void *state, tinker_reg_reference_options *o)
{
    *o = (tinker_reg_reference_options)TINKER_REG_REFERENCE_OPTIONS_INIT;
    return reg_copy_options(t, o, sizeof(*o), state, "tinker_reg_reference_options");
}

tinker_var *tinker_reg_kl(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                          size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_reference_options o;
    tinker_var *rows =
        read_options(tape, state, &o) ? row_distances(&c, &o, "reference_logprobs", kl_of) : NULL;
    if (!rows || tape->err.status != TINKER_OK)
        return NULL;
    tinker_var *r = reg_reduce(rows, o.reduction, TINKER_REG_MEAN);
    tinker_tape_metric(tape, "kl_divergence", tinker_var_item(r));
    tinker_tape_note(tape, "kl_direction", o.reverse ? "reverse" : "forward");
    tinker_tape_metric(tape, "kl_symmetric", o.symmetric != 0);
    /* Of no rows there is neither a largest nor a smallest. */
    if (rows->shape.n) {
        tinker_tape_metric(tape, "kl_max", tinker_var_data(rows)[tinker_var_argmax(rows)]);
        tinker_tape_metric(tape, "kl_min", rows->data[tinker_var_argmin(rows)]);
    }
    return r;
}

tinker_var *tinker_reg_jensen_shannon(tinker_tape *tape, const tinker_datum *data,
                                      tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_reference_options o;
    tinker_var *rows =
        read_options(tape, state, &o) ? row_distances(&c, &o, "reference_logprobs", js_of) : NULL;
    if (!rows)
        return NULL;
    tinker_var *r = reg_reduce(rows, o.reduction, TINKER_REG_MEAN);
    tinker_tape_metric(tape, "jensen_shannon", tinker_var_item(r));
    return r;
}

/* ---- consistency ------------------------------------------------------------------------- */

static const char *const field_of_pairs = "original_logprobs";

/* |x - y| or (x - y)^2 of every element */
static tinker_var *element_distance(const struct reg_call *c, const tinker_reg_reference_options *o)
{
    tinker_var **v = reg_new_array(c);
    for (size_t i = 0; v && i < c->n; i++) {
        tinker_var *y = reg_find_reference(c, o, i, field_of_pairs);
        tinker_var *d = tinker_var_sub(reg_flatten(c, i, c->logprobs[i], o->mask_weights),
                                       reg_flatten(c, i, y, o->mask_weights));
        v[i] = o->distance == TINKER_DISTANCE_L1 ? tinker_var_abs(d) : tinker_var_square(d);
    }
    return v ? reg_reduce(reg_join_data(c, v), o->reduction, TINKER_REG_MEAN) : NULL;
}

/* 1 - cos(x, y) of each datum, flattened */
static tinker_var *cosine_distance(const struct reg_call *c, const tinker_reg_reference_options *o)
{
    tinker_var **v = reg_new_array(c);
    for (size_t i = 0; v && i < c->n; i++) {
        tinker_var *y = reg_find_reference(c, o, i, field_of_pairs);
        tinker_var *cos = tinker_var_cosine(reg_flatten(c, i, c->logprobs[i], o->mask_weights),
                                            reg_flatten(c, i, y, o->mask_weights));
        v[i] = tinker_var_shift(tinker_var_neg(cos), 1);
    }
    return v ? reg_combine_data(c, v, false) : NULL;
}

static tinker_var *kl_of_pairs(const struct reg_call *c, const tinker_reg_reference_options *o)
{
    tinker_var *rows = row_distances(c, o, field_of_pairs, plain_kl_of);
    return rows ? reg_reduce(rows, o->reduction, TINKER_REG_MEAN) : NULL;
}

static const struct {
    const char *name;
    tinker_var *(*f)(const struct reg_call *c, const tinker_reg_reference_options *o);
} metrics[] = {
    [TINKER_DISTANCE_MSE] = { "mse", element_distance },
    [TINKER_DISTANCE_L1] = { "l1", element_distance },
    [TINKER_DISTANCE_COSINE] = { "cosine", cosine_distance },
    [TINKER_DISTANCE_KL] = { "kl", kl_of_pairs },
};

tinker_var *tinker_reg_consistency(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_reference_options o;
    if (!read_options(tape, state, &o))
        return NULL;
    if ((size_t)o.distance >= ARRAY_LEN(metrics))
        return tape_error(tape, TINKER_EINVAL, "unknown distance %d", (int)o.distance);
    tinker_var *r = metrics[o.distance].f(&c, &o);
    if (!r)
        return NULL;
    tinker_tape_note(tape, "consistency_metric", metrics[o.distance].name);
    tinker_tape_metric(tape, "consistency", tinker_var_item(r));
    return r;
}
