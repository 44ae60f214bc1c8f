/* op_index.c - x[…]: integers, slices, masks, indices, new axes and the ellipsis. */
#include <string.h>

#include "graph/graph_impl.h"

/* Where a slice begins and ends, as Python counts: from the end when negative, never outside. */
static int64_t slice_bound(const struct value *v, int64_t n, int64_t dflt)
{
    if (v->kind == VALUE_NONE)
        return dflt;
    double x = v->number < 0 ? v->number + (double)n : v->number;
    return x < 0 ? 0 : x > (double)n ? n : (int64_t)x;
}

/* Negative steps are refused by torch as well; only Python lists have them. */
static tinker_var *take_slice(struct call *c, tinker_var *a, size_t axis, const struct value *s)
{
    int64_t n = (int64_t)a->shape.dim[axis];
    for (size_t i = 0; i < 3; i++)
        /* Bounds that are tensors would make the shape depend on values of the datum. */
        if (s->items[i].kind != VALUE_NONE && !value_is_number(&s->items[i])) {
            call_fail(c, "bounds of a slice must be integers");
            return NULL;
        }
    double step = s->items[2].kind == VALUE_NONE ? 1 : s->items[2].number;
    if (!(step >= 1) || step > 1e15) {
        call_fail(c, "the step of a slice must be positive");
        return NULL;
    }
    /* The number of elements is rounded up: x[0:5:2] has three. */
    int64_t from = slice_bound(&s->items[0], n, 0), to = slice_bound(&s->items[1], n, n);
    int64_t by = (int64_t)step, len = to > from ? (to - from - 1) / by + 1 : 0;
    /* An empty slice may begin at the end of the axis, where the tape would refuse a start. */
    return tinker_var_slice(a, (int)axis, (size_t)(len ? from : 0), (size_t)len, (size_t)by);
}

/* The elements, or rows, where the mask is not 0.  How many there are depends on its values.  Its
 * elements are read now, so gradients go to what was chosen and not to the mask. */
static tinker_var *take_masked(struct call *c, tinker_var *a, size_t axis, const tinker_var *mask)
{
    /* A mask of the whole tensor flattens it, as in torch: the result is a row of unknown
     * length. */
    bool whole = axis == 0 && mask->shape.ndim > 1 && shape_equal(&mask->shape, &a->shape);
    if (!whole && (mask->shape.ndim != 1 || mask->shape.n != a->shape.dim[axis])) {
        call_fail(c, "a mask must have the length of its axis, or the shape of the tensor");
        return NULL;
    }
    int64_t *index = arena_array(c->arena, mask->shape.n, sizeof(*index));
    size_t n = 0;
    if (!index && mask->shape.n) {
        call_fail(c, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < mask->shape.n; i++)
        if (mask->data[i] != 0)
            index[n++] = (int64_t)i;
    return tinker_var_index_select(whole ? tinker_var_flatten(a) : a, whole ? 0 : (int)axis, index,
                                   n);
}

static tinker_var *take_indexed(struct call *c, tinker_var *a, size_t axis, const tinker_var *at)
{
    double n = (double)a->shape.dim[axis];
    int64_t *index = arena_array(c->arena, at->shape.n, sizeof(*index));
    /* Indices of rank 2 would need a gather, and no loss that we know uses them. */
    if (at->shape.ndim > 1 || (!index && at->shape.n)) {
        call_fail(c, "indices must have rank 1");
        return NULL;
    }
    for (size_t i = 0; i < at->shape.n; i++) {
        double k = at->data[i] < 0 ? at->data[i] + n : at->data[i];
        /* Not a comparison of integers: NaN must be refused as well. */
        if (!(k >= 0 && k < n)) {
            call_fail(c, "index %.0f of an axis of %.0f", at->data[i], n);
            return NULL;
        }
        index[i] = (int64_t)k;
    }
    tinker_var *y = tinker_var_index_select(a, (int)axis, index, at->shape.n);
    /* A tensor without axes chooses one element and drops the axis, as an integer does. */
    return at->shape.ndim == 0 ? tinker_var_squeeze(y, (int)axis) : y;
}

static tinker_var *index_tensor(struct call *c, tinker_var *a, const struct value *items, size_t n)
{
    size_t axis = 0, used = 0, arrays = 0;
    for (size_t i = 0; i < n; i++) {
        /* None adds an axis and an ellipsis takes what is left; a mask uses as many as it has. */
        const struct value *v = &items[i];
        bool mask = v->kind == VALUE_TENSOR && v->element == ELEMENT_BOOL;
        if (v->kind != VALUE_NONE && v->kind != VALUE_ELLIPSIS)
            used += mask ? v->var->shape.ndim : 1;
        /* Two index tensors are paired element by element in torch. */
        arrays += v->kind == VALUE_TENSOR;
    }
    if (used > a->shape.ndim || arrays > 1) {
        call_fail(c, used > a->shape.ndim ? "more indices than axes"
                                          : "more than one tensor in an index");
        return NULL;
    }
    /* What an ellipsis stands for: the axes that no other item uses. */
    size_t skipped = a->shape.ndim - used;
    for (size_t i = 0; i < n && a; i++) {
        const struct value *v = &items[i];
        if (v->kind == VALUE_ELLIPSIS) {
            axis += skipped;
            skipped = 0;
        } else if (v->kind == VALUE_NONE) {
            a = tinker_var_unsqueeze(a, (int)axis++);
        } else if (v->kind == VALUE_SLICE) {
            a = take_slice(c, a, axis++, v);
        } else if (v->kind == VALUE_INT) {
            /* axis stays where it is: the axis that was there is gone, the next one took its
             * place. */
            double len = (double)a->shape.dim[axis], at = v->number;
            if (at < -len || at >= len) {
                call_fail(c, "index %.0f of an axis of %.0f", at, len);
                return NULL;
            }
            a = tinker_var_select(a, (int)axis, (size_t)(at < 0 ? at + len : at));
        } else if (v->kind == VALUE_TENSOR && v->element == ELEMENT_BOOL) {
            a = take_masked(c, a, axis++, v->var);
        } else if (v->kind == VALUE_TENSOR && v->element == ELEMENT_INT) {
            a = take_indexed(c, a, axis, v->var);
            axis += v->var->shape.ndim;
        } else {
            call_fail(c, "an index must be an integer, a slice, a mask or None");
            return NULL;
        }
        /* After an error of the tape its values have no shape to index. */
        if (a && c->tape->err.status != TINKER_OK)
            return a;
    }
    return a;
}

struct value op_getitem(struct call *c)
{
    const struct value *of = call_arg(c, 0, NULL);
    static const struct value none = { .kind = VALUE_NONE };
    const struct value *at = call_arg(c, 1, NULL);
    /* x[None] comes as null, which call_arg() takes for an argument that was not given. */
    at = at ? at : &none;
    if (of && of->kind == VALUE_LIST) { /* of a shape, or of max(dim) */
        double n = (double)of->n;
        double i = at->kind == VALUE_INT && at->number < 0 ? at->number + n : at->number;
        if (at->kind != VALUE_INT || !(i >= 0 && i < n))
            return call_fail(c, "no such item");
        if (of->items[(size_t)i].kind == VALUE_NONE)
            /* max(dim) and min(dim) give a pair, but an index has no gradient and no use in a
             * loss. */
            return call_fail(c, "indices of max() and min() are not supported here");
        return of->items[(size_t)i];
    }
    if (!of || of->kind != VALUE_TENSOR)
        return call_fail(c, "only tensors and shapes have items");
    bool list = at->kind == VALUE_LIST;
    tinker_var *y = index_tensor(c, of->var, list ? at->items : at, list ? at->n : 1);
    return y ? value_tensor(y, of->element) : call_fail(c, "it cannot be indexed so");
}
