/* tape_input.c - where values come from and how they are looked at: numbers, tensors of any
 * element type, inputs of a datum. */
#include <math.h>
#include <string.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/tape.h"

/* A constant with a copy of the numbers; shape NULL: one dimension. */
static tinker_var *copy_numbers(tinker_tape *t, const double *v, size_t n, const int64_t *shape,
                                size_t ndim, const char *what)
{
    /* A failed check marks the whole tape as broken and returns its `broken` value: later
     * operations on it are no-ops, so a loss needs one test at its end. */
    const int64_t flat = (int64_t)n;
    struct shape s;
    double *d;
    if (!shape_set(&s, shape ? shape : &flat, shape ? ndim : 1))
        return tape_error(t, TINKER_EINVAL, "%s: not a shape of at most %d dimensions", what,
                          RANK_MAX);
    if (s.n != n)
        return tape_error(t, TINKER_EINVAL, "%s: %zu numbers for a shape of %zu", what, n, s.n);
    tinker_var *a = tape_constant(t, &s, &d);
    if (d && n)
        memcpy(d, v, n * sizeof(*d));
    return a;
}

tinker_var *tinker_tape_const(tinker_tape *tape, const double *v, size_t n, const int64_t *shape,
                              size_t ndim)
{
    return copy_numbers(tape, v, n, shape, ndim, "const");
}

/* Make a constant a variable to differentiate by: it joins the list that walks follow. */
static tinker_var *as_leaf(tinker_var *a)
{
    tinker_tape *t = a->tape;
    if (a == &t->broken)
        return a;
    a->needs_grad = true;
    a->earlier = t->last;
    t->last = a;
    return a;
}

tinker_var *tinker_tape_leaf(tinker_tape *tape, const double *v, size_t n, const int64_t *shape,
                             size_t ndim)
{
    return as_leaf(copy_numbers(tape, v, n, shape, ndim, "leaf"));
}

/* Rank 0 (shape NULL, ndim 0) has one element: that is how scalars are made. */
tinker_var *tinker_tape_full(tinker_tape *tape, double v, const int64_t *shape, size_t ndim)
{
    struct shape s;
    double *d;
    if (!shape_set(&s, shape, ndim))
        return tape_error(tape, TINKER_EINVAL, "full: not a shape of at most %d dimensions",
                          RANK_MAX);
    tinker_var *a = tape_constant(tape, &s, &d);
    for (size_t i = 0; d && i < s.n; i++)
        d[i] = v;
    return a;
}

tinker_var *tinker_tape_scalar(tinker_tape *tape, double v)
{
    return tinker_tape_full(tape, v, NULL, 0);
}

tinker_var *var_zeros(tinker_tape *t, const struct shape *s)
{
    double *d;
    return tape_constant(t, s, &d); /* the arena clears */
}

/* ---- tensors ----------------------------------------------------------------------------- */

/* Element i as a double; false: an unknown type.  Integers beyond 2^53 are rounded. */
static bool read_element(const tinker_tensor *x, size_t i, double *out)
{
    switch (x->dtype) {
    case TINKER_FLOAT32:
        *out = ((const float *)x->data)[i];
        return true;
    case TINKER_FLOAT64:
        *out = ((const double *)x->data)[i];
        return true;
    case TINKER_INT64:
        *out = (double)((const int64_t *)x->data)[i];
        return true;
    case TINKER_INT32:
        *out = ((const int32_t *)x->data)[i];
        return true;
    case TINKER_UINT32:
        *out = ((const uint32_t *)x->data)[i];
        return true;
    case TINKER_UINT64:
        *out = (double)((const uint64_t *)x->data)[i];
        return true;
    case TINKER_BFLOAT16: { /* the upper half of a float32 */
        uint16_t half;
        memcpy(&half, (const char *)x->data + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        float f;
        memcpy(&f, &bits, 4);
        *out = f;
        return true;
    }
    }
    return false;
}

/* Compressed sparse rows: the entries of row r are crow[r] .. crow[r + 1], in the columns col[k]; the
 * rest is 0.  false: an index is out of range. */
static bool fill_sparse(const tinker_tensor *x, const struct shape *s, double *d)
{
    size_t rows = s->dim[0], cols = s->dim[1];
    for (size_t r = 0; r < rows; r++) {
        int64_t from = x->crow[r], to = x->crow[r + 1];
        if (from < 0 || to < from || (uint64_t)to > x->n)
            return false;
        for (int64_t k = from; k < to; k++)
            if (x->col[k] < 0 || (uint64_t)x->col[k] >= cols ||
                !read_element(x, (size_t)k, &d[r * cols + (size_t)x->col[k]]))
                return false;
    }
    return true;
}

/* borrow: the tensor outlives the tape, so its numbers need no copy before they are asked for. */
static tinker_var *read_tensor(tinker_tape *tape, const tinker_tensor *x, bool borrow)
{
    /* Sparse values have fewer elements than their shape, so only a dense tensor is compared with
     * it. */
    const int64_t flat = (int64_t)x->n;
    bool sparse = x->crow && x->col;
    struct shape s;
    double *d;
    if (!shape_set(&s, x->shape ? x->shape : &flat, x->shape ? x->ndim : 1) ||
        (sparse ? s.ndim != 2 : s.n != x->n) || (x->n && !x->data))
        return tape_error(tape, TINKER_EINVAL, "tensor: its shape does not fit its %zu elements",
                          x->n);
    if (borrow && !sparse && x->dtype == TINKER_FLOAT32 && x->n > 0)
        return tape_floats(tape, &s, x->data);
    tinker_var *a = tape_constant(tape, &s, &d);
    /* d is NULL when the tape is broken: there is nothing to fill, and the error is kept
     * already. */
    bool ok = !d || !sparse || fill_sparse(x, &s, d);
    for (size_t i = 0; d && !sparse && ok && i < x->n; i++)
        ok = read_element(x, i, &d[i]);
    if (!ok)
        return tape_error(tape, TINKER_EINVAL, "tensor: malformed, or of unknown type");
    return a;
}

tinker_var *tinker_tape_tensor(tinker_tape *tape, const tinker_tensor *x)
{
    return read_tensor(tape, x, false);
}

tinker_var *tape_leaf_tensor(tinker_tape *t, const tinker_tensor *x)
{
    return as_leaf(read_tensor(t, x, true));
}

/* Inputs of a datum are constants: a loss is differentiated by the logprobs, not by its data. */
tinker_var *tinker_tape_input(tinker_tape *tape, const tinker_datum *datum, const char *name)
{
    for (size_t i = 0; datum && i < datum->n_inputs; i++)
        if (strcmp(datum->inputs[i].name, name) == 0)
            return read_tensor(tape, &datum->inputs[i].tensor, true);
    return tape_error(tape, TINKER_EINVAL, "the datum has no input \"%s\"", name);
}

/* ---- looking ----------------------------------------------------------------------------- */

size_t tinker_var_size(const tinker_var *v)
{
    return v->shape.n;
}

size_t tinker_var_ndim(const tinker_var *v)
{
    return v->shape.ndim;
}

/* Negative axes count from the last, as in NumPy. */
size_t tinker_var_dim(const tinker_var *v, int axis)
{
    size_t k;
    return shape_axis(&v->shape, axis, &k) ? v->shape.dim[k] : 1;
}

const double *tinker_var_data(const tinker_var *v)
{
    return tape_numbers((tinker_var *)v);
}

/* NaN instead of an error: the value is usually printed or compared, and NaN is seen. */
double tinker_var_item(const tinker_var *v)
{
    const double *d = v && v->shape.n == 1 ? tinker_var_data(v) : NULL;
    return d ? d[0] : NAN;
}

/* Not differentiable: the result is a plain index, the first of equal elements. */
size_t tinker_var_argmax(const tinker_var *v)
{
    const double *d = tinker_var_data(v);
    size_t best = 0;
    for (size_t i = 1; d && i < v->shape.n; i++)
        if (d[i] > d[best])
            best = i;
    return best;
}

size_t tinker_var_argmin(const tinker_var *v)
{
    const double *d = tinker_var_data(v);
    size_t best = 0;
    for (size_t i = 1; d && i < v->shape.n; i++)
        if (d[i] < d[best])
            best = i;
    return best;
}
