/* op_shape.c - shapes, their looking at, and joining. */
#include <string.h>

#include "graph/graph_impl.h"

/* A list of the lengths of all axes. */
static struct value list_shape(struct call *c, const tinker_var *a)
{
    struct value *items = arena_array(c->arena, a->shape.ndim, sizeof(*items));
    if (!items && a->shape.ndim)
        return call_fail(c, "out of memory");
    for (size_t i = 0; i < a->shape.ndim; i++)
        items[i] = value_number(VALUE_INT, (double)a->shape.dim[i]);
    return (struct value){ .kind = VALUE_LIST, .items = items, .n = a->shape.ndim };
}

/* x.shape, x.T, x.dtype, x.values, x.ndim.  fx records a property as getattr, so this is one
 * operation with a name as its argument. */
struct value op_getattr(struct call *c)
{
    const struct value *v = call_arg(c, 0, NULL);
    const char *name = call_text(c, 1, NULL, "");
    /* The named tuple of max(dim): .values is its first item, .indices is not supported. */
    if (v && v->kind == VALUE_LIST && v->n == 2 && strcmp(name, "values") == 0)
        return v->items[0];
    if (!v || v->kind != VALUE_TENSOR)
        return call_fail(c, "%.40s is not supported here", name);
    if (strcmp(name, "shape") == 0)
        return list_shape(c, v->var);
    if (strcmp(name, "dtype") == 0)
        return (struct value){ .kind = VALUE_DTYPE, .element = v->element };
    if (strcmp(name, "device") == 0)
        /* Compared with nothing and passed to to(), which ignores it. */
        return (struct value){ .kind = VALUE_OTHER };
    if (strcmp(name, "ndim") == 0)
        return value_number(VALUE_INT, (double)v->var->shape.ndim);
    /* .T of more than two axes reverses them all, which torch itself deprecates. */
    if (strcmp(name, "T") == 0 && v->var->shape.ndim <= 2)
        return value_tensor(v->var->shape.ndim == 2 ? tinker_var_transpose(v->var) : v->var,
                            v->element);
    return call_fail(c, "%.40s is not supported here (shape, T, dtype, ndim, values are)", name);
}

struct value op_size(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, NULL);
    size_t k;
    if (!a)
        return call_fail(c, "no operand");
    /* size() is x.shape; size(dim) one length of it. */
    if (!call_arg(c, 1, "dim"))
        return list_shape(c, a);
    if (!shape_axis(&a->shape, (int)call_int(c, 1, "dim", 0), &k))
        return call_fail(c, "no such axis");
    return value_number(VALUE_INT, (double)a->shape.dim[k]);
}

struct value op_numel(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_number(VALUE_INT, (double)a->shape.n) : call_fail(c, "no operand");
}

struct value op_dim(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, NULL);
    return a ? value_number(VALUE_INT, (double)a->shape.ndim) : call_fail(c, "no operand");
}

/* view() and reshape(); one length may be -1: what is left. */
struct value op_view(struct call *c)
{
    int64_t shape[RANK_MAX];
    size_t n, at = RANK_MAX;
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a || !call_ints(c, 1, "shape", shape, &n))
        return call_fail(c, "a shape is needed");
    /* Checked before the multiplication: lengths come from a request. */
    size_t known = 1;
    for (size_t i = 0; i < n; i++) {
        if (shape[i] == -1 && at == RANK_MAX)
            at = i;
        else if (shape[i] < 0)
            return call_fail(c, "a length is negative");
        else if (shape[i] && known > SIZE_MAX / (size_t)shape[i])
            return call_fail(c, "the shape is too large");
        else
            known *= (size_t)shape[i];
    }
    /* Exactly one -1; a second one was refused above as negative. */
    if (at < RANK_MAX) {
        if (known == 0 || a->shape.n % known)
            return call_fail(c, "%zu elements do not fit the shape", a->shape.n);
        shape[at] = (int64_t)(a->shape.n / known);
    }
    return value_tensor(tinker_var_reshape(a, shape, n), call_element(c, 0, "input"));
}

struct value op_flatten(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    /* A range of axes would be a view(); no loss that we know flattens a part. */
    if (!a || call_int(c, 1, "start_dim", 0) != 0 || call_int(c, 2, "end_dim", -1) != -1)
        return call_fail(c, "only of all axes");
    return value_tensor(tinker_var_flatten(a), call_element(c, 0, "input"));
}

struct value op_squeeze(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a)
        return call_fail(c, "no operand");
    enum element element = call_element(c, 0, "input");
    size_t k;
    if (call_arg(c, 1, "dim")) { /* an axis that is longer stays */
        int dim = (int)call_int(c, 1, "dim", 0);
        /* Without axes there is nothing to squeeze; torch allows dim 0 and -1 there. */
        if (a->shape.ndim && !shape_axis(&a->shape, dim, &k))
            return call_fail(c, "no such axis");
        bool drop = a->shape.ndim && a->shape.dim[k] == 1;
        return value_tensor(drop ? tinker_var_squeeze(a, dim) : a, element);
    }
    struct shape s = { .n = a->shape.n };
    for (size_t i = 0; i < a->shape.ndim; i++)
        if (a->shape.dim[i] != 1)
            s.dim[s.ndim++] = a->shape.dim[i];
    return value_tensor(var_reshape(a, &s), element);
}

struct value op_unsqueeze(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_tensor(tinker_var_unsqueeze(a, (int)call_int(c, 1, "dim", 0)),
                            call_element(c, 0, "input"))
             : call_fail(c, "no operand");
}

/* -1: the length stays.  Only for an axis that the tensor has: a new one in front needs a length. */
struct value op_expand(struct call *c)
{
    int64_t shape[RANK_MAX];
    size_t n;
    tinker_var *a = call_tensor(c, 0, NULL);
    if (!a || !call_ints(c, 1, "size", shape, &n) || n < a->shape.ndim)
        return call_fail(c, "a shape is needed");
    for (size_t i = 0; i < n; i++)
        if (shape[i] == -1 && i >= n - a->shape.ndim)
            shape[i] = (int64_t)a->shape.dim[i - (n - a->shape.ndim)];
    return value_tensor(tinker_var_expand(a, shape, n), call_element(c, 0, NULL));
}

/* t(), or transpose() of the two axes of a matrix in either order */
struct value op_transpose(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a)
        return call_fail(c, "no operand");
    enum element element = call_element(c, 0, "input");
    /* t() is transpose(0, 1). */
    size_t i = 0, k = 1;
    bool named = strcmp(c->node->op->name, "transpose") == 0;
    if (named && (!shape_axis(&a->shape, (int)call_int(c, 1, "dim0", 0), &i) ||
                  !shape_axis(&a->shape, (int)call_int(c, 2, "dim1", 1), &k)))
        return call_fail(c, "no such axis");
    /* t() of a vector is the vector. */
    if (a->shape.ndim < 2 || i == k)
        return value_tensor(a, element);
    int axes[RANK_MAX];
    for (size_t j = 0; j < a->shape.ndim; j++)
        axes[j] = (int)(j == i ? k : j == k ? i : j);
    return value_tensor(tinker_var_permute(a, axes, a->shape.ndim), element);
}

struct value op_permute(struct call *c)
{
    int64_t list[RANK_MAX];
    /* The bounds keep the cast to int defined; the tape checks the rest and repeated axes. */
    int axes[RANK_MAX];
    size_t n;
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a || !call_ints(c, 1, "dims", list, &n) || n != a->shape.ndim)
        return call_fail(c, "every axis must be named");
    for (size_t i = 0; i < n; i++) {
        if (list[i] < -RANK_MAX || list[i] >= RANK_MAX)
            return call_fail(c, "no such axis");
        axes[i] = (int)(list[i] < 0 ? list[i] + (int64_t)n : list[i]);
    }
    return value_tensor(tinker_var_permute(a, axes, n), call_element(c, 0, "input"));
}

/* cat() and stack() */
struct value op_join(struct call *c)
{
    const struct value *list = call_arg(c, 0, "tensors");
    int axis = (int)call_int(c, 1, "dim", 0);
    if (!list || list->kind != VALUE_LIST || !list->n)
        return call_fail(c, "a list of tensors is needed");
    tinker_var **v = arena_array(c->arena, list->n, sizeof(*v));
    enum element element = ELEMENT_BOOL;
    if (!v)
        return call_fail(c, "out of memory");
    /* The result promotes over all items, so one float makes it float. */
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].kind != VALUE_TENSOR)
            return call_fail(c, "item %zu is not a tensor", i);
        v[i] = list->items[i].var;
        element = list->items[i].element > element ? list->items[i].element : element;
    }
    return value_tensor(c->node->op->choice ? tinker_var_stack(v, list->n, axis)
                                            : tinker_var_concat(v, list->n, axis),
                        element);
}

struct value op_flip(struct call *c)
{
    int64_t axes[RANK_MAX];
    size_t n;
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a || !call_ints(c, 1, "dims", axes, &n))
        return call_fail(c, "axes are needed");
    /* One axis after the other; flips of different axes do not disturb each other. */
    for (size_t i = 0; i < n; i++)
        a = tinker_var_flip(a, (int)axes[i]);
    return value_tensor(a, call_element(c, 0, "input"));
}

/* Without an axis the elements are rolled as one row. */
struct value op_roll(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    const struct value *by = call_arg(c, 1, "shifts"), *dims = call_arg(c, 2, "dims");
    if (!a || !by)
        return call_fail(c, "shifts are needed");
    if ((by->kind == VALUE_LIST && by->n != 1) ||
        (dims && dims->kind == VALUE_LIST && dims->n != 1))
        return call_fail(c, "it is supported along one axis");
    const struct value *n = by->kind == VALUE_LIST ? by->items : by;
    const struct value *axis = dims && dims->kind == VALUE_LIST ? dims->items : dims;
    /* Bounds keep the casts defined; the tape checks the axis and reduces the shift modulo its
     * length. */
    if (!value_is_number(n) || n->number > 1e15 || n->number < -1e15 ||
        (axis && (!value_is_number(axis) || axis->number < -9 || axis->number > 9)))
        return call_fail(c, "shifts and dims must be integers");
    tinker_var *y = tinker_var_roll(axis ? a : tinker_var_flatten(a), axis ? (int)axis->number : 0,
                                    (int64_t)n->number);
    return value_tensor(axis ? y : var_reshape(y, &a->shape), call_element(c, 0, "input"));
}
