/* reg.c - see reg.h. */
#include "regularizer/reg.h"
#include <tinker/extra/regularizer.h>

#include "base/err.h"

bool reg_copy_options(tinker_tape *t, void *ours, size_t size, const void *state, const char *type)
{
    tinker_error err;
    /* Of the caller's version, as all options: see opts_copy(). */
    if (!state || opts_copy(ours, size, state, type, &err) == TINKER_OK)
        return true;
    tape_error(t, err.status, "%s", err.message);
    return false;
}

tinker_var **reg_new_array(const struct reg_call *c)
{
    tinker_var **v = arena_array(&c->tape->arena, c->n, sizeof(tinker_var *));
    if (!v)
        tape_error(c->tape, TINKER_ENOMEM, "out of memory for %zu datums", c->n);
    else if (c->n == 0)
        tape_error(c->tape, TINKER_EINVAL, "no data");
    return c->n ? v : NULL;
}

/* ---- elements ---------------------------------------------------------------------------- */

/* The "weights" of datum i, one for each of its n logprobs. */
static tinker_var *weights_of(const struct reg_call *c, size_t i, size_t n)
{
    if (!c->data)
        return tape_error(c->tape, TINKER_EINVAL, "mask_weights needs data");
    tinker_var *w = tinker_tape_input(c->tape, &c->data[i], "weights");
    if (c->tape->err.status == TINKER_OK && w->shape.n != n)
        return tape_error(c->tape, TINKER_EINVAL, "datum %zu has %zu weights for %zu logprobs", i,
                          w->shape.n, n);
    return w;
}

/* The elements, or rows, of v whose weight is not 0.  What is masked is taken out rather than
 * multiplied by 0: -inf and NaN in an unused slot must not reach the sum. */
static tinker_var *pick_kept(tinker_var *v, const tinker_var *weights)
{
    size_t n = 0;
    int64_t *at = arena_array(&v->tape->arena, weights->shape.n, sizeof(*at));
    if (!at)
        return tape_error(v->tape, TINKER_ENOMEM, "out of memory for a mask");
    for (size_t k = 0; k < weights->shape.n; k++)
        if (tinker_var_data(weights)[k] != 0)
            at[n++] = (int64_t)k;
    return tinker_var_index_select(v, 0, at, n);
}

tinker_var *reg_flatten(const struct reg_call *c, size_t i, tinker_var *v, bool masked)
{
    tinker_var *flat = tinker_var_flatten(v);
    if (!masked || c->tape->err.status != TINKER_OK)
        return flat;
    tinker_var *w = weights_of(c, i, flat->shape.n);
    return c->tape->err.status == TINKER_OK ? pick_kept(flat, w) : w;
}

tinker_var *reg_join_data(const struct reg_call *c, tinker_var **v)
{
    return c->n == 1 ? v[0] : tinker_var_concat(v, c->n, 0);
}

/* ---- rows -------------------------------------------------------------------------------- */

/* A value as rows of its last axis; a vector is one row. */
static tinker_var *as_matrix(tinker_var *v)
{
    size_t cols = tinker_var_dim(v, -1), rows = cols ? v->shape.n / cols : 0;
    return tinker_var_reshape(v, (int64_t[]){ (int64_t)rows, (int64_t)cols }, 2);
}

/* Drop the rows without any weight; what is left is marked by keep. */
static bool mask_matrix(const struct reg_call *c, size_t i, struct reg_rows *r)
{
    tinker_var *w = weights_of(c, i, r->x->shape.n);
    if (c->tape->err.status != TINKER_OK)
        return false;
    /* not(not(w)) is 1 for every weight but 0, so the sum of a row is how many count. */
    w = var_reshape(tinker_var_not(tinker_var_not(w)), &r->x->shape);
    tinker_var *rows = tinker_var_sum(w, -1, 0);
    r->x = pick_kept(r->x, rows);
    r->y = r->y ? pick_kept(r->y, rows) : NULL;
    r->keep = pick_kept(w, rows);
    return c->tape->err.status == TINKER_OK;
}

bool reg_take_rows(const struct reg_call *c, size_t i, tinker_var *y, bool masked,
                   struct reg_rows *out)
{
    tinker_var *x = c->logprobs[i];
    *out = (struct reg_rows){ .x = x, .y = y };
    if (c->tape->err.status != TINKER_OK)
        return false;
    /* A sequence of log-probabilities is one row; masking makes it shorter. */
    bool row = x->shape.ndim < 2;
    if (row && masked) { /* a vector just gets shorter */
        out->x = reg_flatten(c, i, x, true);
        out->y = y ? reg_flatten(c, i, y, true) : NULL;
    }
    if (c->tape->err.status != TINKER_OK)
        return false;
    out->x = as_matrix(out->x);
    out->y = out->y ? as_matrix(out->y) : NULL;
    /* Rows of a matrix must stay equally long, so what is masked in them is marked instead. */
    return row || !masked ? c->tape->err.status == TINKER_OK : mask_matrix(c, i, out);
}

/* ---- references -------------------------------------------------------------------------- */

tinker_var *reg_find_reference(const struct reg_call *c, const tinker_reg_reference_options *o,
                               size_t i, const char *default_field)
{
    char a[96], b[96];
    tinker_var *y = NULL;
    if (o->tensors && o->n_tensors != c->n)
        return tape_error(c->tape, TINKER_EINVAL, "%zu reference tensors for %zu datums",
                          o->n_tensors, c->n);
    if (o->tensors)
        y = tinker_tape_tensor(c->tape, &o->tensors[i]);
    else if (!o->field && o->compute)
        y = o->compute(c->tape, c->data, i, o->compute_state);
    else if (!c->data)
        return tape_error(c->tape, TINKER_EINVAL, "there is no reference");
    else
        y = tinker_tape_input(c->tape, &c->data[i], o->field ? o->field : default_field);
    if (!y)
        return tape_error(c->tape, TINKER_EINVAL, "the reference of datum %zu is missing", i);
    if (c->tape->err.status == TINKER_OK && !shape_equal(&y->shape, &c->logprobs[i]->shape))
        return tape_error(c->tape, TINKER_EINVAL,
                          "datum %zu: reference of shape %s for logprobs of shape %s", i,
                          shape_text(&y->shape, a), shape_text(&c->logprobs[i]->shape, b));
    /* The reference is a fixed point: no gradient by it, even if it was computed from leaves. */
    return tinker_var_detach(y);
}

/* ---- reductions -------------------------------------------------------------------------- */

/* NONE leaves several elements, which a term may only return with sum_nonscalar. */
tinker_var *reg_reduce(tinker_var *v, tinker_reg_reduction r, tinker_reg_reduction otherwise)
{
    switch (r == TINKER_REG_DEFAULT ? otherwise : r) {
    case TINKER_REG_SUM:
        return tinker_var_sum(v, TINKER_ALL, 0);
    case TINKER_REG_MEAN:
        return tinker_var_mean(v, TINKER_ALL, 0);
    case TINKER_REG_NONE:
    case TINKER_REG_DEFAULT:
        return v;
    }
    return tape_error(v->tape, TINKER_EINVAL, "unknown reduction %d", (int)r);
}

tinker_var *reg_combine_data(const struct reg_call *c, tinker_var **v, bool sum)
{
    tinker_var *all = tinker_var_stack(v, c->n, 0);
    return sum ? tinker_var_sum(all, TINKER_ALL, 0) : tinker_var_mean(all, TINKER_ALL, 0);
}
