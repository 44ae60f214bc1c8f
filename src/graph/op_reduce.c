/* op_reduce.c - operations along axes.
 *
 * torch takes one axis, several or none, which means all.  Several are reduced one after the other,
 * the last first, so that the numbers of the others stay valid. */
#include <math.h>
#include <string.h>

#include "graph/graph_impl.h"

/* The axes that a call names: counted from 0, descending, without repetition. */
struct axes {
    int axis[RANK_MAX];
    size_t n;
    bool all, keep;
};

/* Shared by all reductions; dim_at and keep_at are the places of the two arguments, which
 * differ. */
static bool read_axes(struct call *c, const tinker_var *a, size_t dim_at, size_t keep_at,
                      struct axes *out)
{
    int64_t list[RANK_MAX];
    size_t n = 0, ndim = a->shape.ndim;
    const struct value *v = call_arg(c, dim_at, "dim");
    *out = (struct axes){ .keep = call_flag(c, keep_at, "keepdim", false) };
    if (v && v->kind != VALUE_LIST) {
        list[0] = call_int(c, dim_at, "dim", 0);
        n = 1;
    } else if (v && !call_ints(c, dim_at, "dim", list, &n)) {
        return false;
    }
    /* dim=[] means all axes in torch, as does no dim; a scalar has none to choose. */
    out->all = n == 0 || ndim == 0;
    for (size_t i = 0; !out->all && i < n; i++) {
        int64_t axis = list[i] < 0 ? list[i] + (int64_t)ndim : list[i];
        if (axis < 0 || axis >= (int64_t)ndim) {
            call_fail(c, "a tensor of rank %zu has no axis %lld", ndim, (long long)list[i]);
            return false;
        }
        /* Insertion in descending order: reducing axis 2 first leaves the number of axis 0
         * valid. */
        size_t at = out->n++;
        for (; at > 0 && out->axis[at - 1] < axis; at--)
            out->axis[at] = out->axis[at - 1];
        out->axis[at] = (int)axis;
        if (at > 0 && out->axis[at - 1] == axis) {
            call_fail(c, "axis %lld is named twice", (long long)list[i]);
            return false;
        }
    }
    /* All axes at once is one pass over the data instead of one per axis. */
    out->all = out->all || out->n == ndim;
    return true;
}

/* Products of halves: log n steps, and a gradient that is right where an element is 0.  The usual
 * gradient y / x_i would be 0 / 0 there. */
static tinker_var *reduce_product(tinker_var *a, int axis, int keep)
{
    tinker_var *y = axis == TINKER_ALL ? tinker_var_flatten(a) : a;
    int k = axis == TINKER_ALL ? 0 : axis;
    size_t n = y->shape.ndim > (size_t)k ? y->shape.dim[k] : 0;
    if (n == 0)
        return tape_error(a->tape, TINKER_EINVAL, "prod: of no elements");
    while (n > 1) {
        size_t half = n / 2;
        /* An odd element at the end waits for the next round. */
        tinker_var *rest = n % 2 ? tinker_var_slice(y, k, n - 1, 1, 1) : NULL;
        y = tinker_var_mul(tinker_var_slice(y, k, 0, half, 1),
                           tinker_var_slice(y, k, half, half, 1));
        if (rest)
            y = tinker_var_concat((tinker_var *[]){ y, rest }, 2, k);
        /* Without this, a slice of an invalid value would go on for ever: n would not shrink. */
        if (a->tape->err.status != TINKER_OK)
            return y;
        n = half + n % 2;
    }
    /* One element is left along the axis, which the sum drops. */
    return tinker_var_sum(y, k, axis != TINKER_ALL && keep);
}

typedef tinker_var *axis_fn(tinker_var *a, int axis, int keep);

static struct value reduce_axes(struct call *c, axis_fn *reduce, enum element element)
{
    struct axes x;
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a || !read_axes(c, a, 1, 2, &x))
        return call_fail(c, "no operand");
    if (x.all)
        return value_tensor(reduce(a, TINKER_ALL, x.keep), element);
    for (size_t i = 0; i < x.n; i++)
        a = reduce(a, x.axis[i], x.keep);
    return value_tensor(a, element);
}

struct value op_reduce(struct call *c)
{
    static axis_fn *const functions[] = { tinker_var_sum, tinker_var_mean, reduce_product,
                                          tinker_var_logsumexp };
    enum element element = call_element(c, 0, "input");
    const struct value *dtype = call_arg(c, 3, "dtype");
    if (dtype && dtype->kind != VALUE_DTYPE)
        return call_fail(c, "dtype must be a dtype");
    /* A sum of bools counts them. */
    if (element == ELEMENT_BOOL)
        element = ELEMENT_INT;
    return reduce_axes(c, functions[c->node->op->choice], dtype ? dtype->element : element);
}

/* max() and min(): of all elements, of two tensors, or along an axis; then with the indices. */
struct value op_extreme(struct call *c)
{
    bool max = c->node->op->choice > 0;
    axis_fn *extreme = max ? tinker_var_max : tinker_var_min;
    tinker_var *a = call_tensor(c, 0, "input");
    const struct value *second = call_arg(c, 1, "dim");
    enum element element = call_element(c, 0, "input");
    /* The second argument is an axis (dim) or a second tensor (other), by the type of what is
     * given. */
    second = second ? second : call_arg(c, 1, "other");
    if (!a)
        return call_fail(c, "no operand");
    if (!second) {
        /* Elements that are equally large share the gradient, as in torch; detach() keeps it from
         * also going through the comparison. */
        tinker_var *mask = tinker_var_eq(a, tinker_var_detach(extreme(a, TINKER_ALL, 0)));
        return value_tensor(
            tinker_var_div(tinker_var_masked_sum(a, mask), tinker_var_sum(mask, TINKER_ALL, 0)),
            element);
    }
    if (second->kind == VALUE_TENSOR)
        return value_tensor(
            max ? tinker_var_maximum(a, second->var) : tinker_var_minimum(a, second->var), element);
    int dim = (int)call_int(c, 1, "dim", 0);
    bool keep = call_flag(c, 2, "keepdim", false);
    /* torch gives (values, indices); the indices are left empty, and op_getitem() refuses them. */
    struct value *pair = arena_array(c->arena, 2, sizeof(*pair));
    if (!pair)
        return call_fail(c, "out of memory");
    pair[0] = value_tensor(extreme(a, dim, keep), element);
    return (struct value){ .kind = VALUE_LIST, .items = pair, .n = 2 };
}

/* std() and var(), with the correction of torch: 1 unless the call says otherwise */
struct value op_spread(struct call *c)
{
    bool variance = c->node->op->choice;
    tinker_var *a = call_tensor(c, 0, "input");
    const struct value *first = call_arg(c, 1, "dim");
    struct axes x = { .all = true };
    /* correction is keyword-only, hence a place that no call reaches. */
    int correction = (int)call_int(c, 99, "correction", 1);
    if (!a)
        return call_fail(c, "no operand");
    if (first && first->kind == VALUE_BOOL) /* std(unbiased) */
        correction = first->number != 0;
    else if (!read_axes(c, a, 1, 99, &x))
        return call_fail(c, "no axis");
    const struct value *unbiased = call_arg(c, 99, "unbiased");
    if (unbiased)
        correction = unbiased->number != 0;
    /* The tape computes one axis or all: two in a row would be a spread of spreads. */
    if (!x.all && x.n > 1)
        return call_fail(c, "one axis or all");
    int axis = x.all ? TINKER_ALL : x.axis[0];
    return value_tensor(variance ? tinker_var_variance(a, axis, x.keep, correction)
                                 : tinker_var_std(a, axis, x.keep, correction),
                        ELEMENT_FLOAT);
}

/* p 1, 2 ("fro") and infinity */
struct value op_norm(struct call *c)
{
    struct axes x;
    tinker_var *a = call_tensor(c, 0, "input");
    const struct value *p = call_arg(c, 1, "p");
    if (!a || !read_axes(c, a, 2, 3, &x))
        return call_fail(c, "no operand");
    if (!x.all && x.n > 1)
        return call_fail(c, "one axis or all");
    int axis = x.all ? TINKER_ALL : x.axis[0];
    /* p is a number or a name; both mean the root of the sum of squares. */
    bool fro = !p || (p->kind == VALUE_TEXT && strcmp(p->text, "fro") == 0) ||
               (value_is_number(p) && p->number == 2);
    if (fro)
        return value_tensor(tinker_var_norm(a, axis, x.keep), ELEMENT_FLOAT);
    if (value_is_number(p) && p->number == 1)
        return value_tensor(tinker_var_sum(tinker_var_abs(a), axis, x.keep), ELEMENT_FLOAT);
    if (value_is_number(p) && p->number == (double)INFINITY)
        return value_tensor(tinker_var_max(tinker_var_abs(a), axis, x.keep), ELEMENT_FLOAT);
    return call_fail(c, "p must be 1, 2, \"fro\" or infinity");
}

/* softmax() and log_softmax(); of F they have _stacklevel between dim and dtype. */
struct value op_normalize(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    /* Without dim torch guesses the axis from the rank, and warns: better to ask. */
    if (!a || !call_arg(c, 1, "dim"))
        return call_fail(c, "dim is needed");
    int axis = (int)call_int(c, 1, "dim", -1);
    /* Read and ignored: everything is double here, so no type loses precision. */
    call_arg(c, 99, "dtype");
    return value_tensor(c->node->op->choice ? tinker_var_log_softmax(a, axis)
                                            : tinker_var_softmax(a, axis),
                        ELEMENT_FLOAT);
}

struct value op_cumsum(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a)
        return call_fail(c, "no operand");
    return value_tensor(tinker_var_cumsum(a, (int)call_int(c, 1, "dim", 0)),
                        call_element(c, 0, "input"));
}

/* x[1:] - x[:-1] along the last axis or another */
struct value op_diff(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    int64_t times = call_int(c, 1, "n", 1);
    int axis = (int)call_int(c, 2, "dim", -1);
    size_t k;
    /* n > 1 is a difference of differences and can be written so. */
    if (!a || times != 1 || !shape_axis(&a->shape, axis, &k) || a->shape.dim[k] < 1)
        return call_fail(c, "it is supported once, along an axis that is not empty");
    size_t n = a->shape.dim[k] - 1;
    return value_tensor(
        tinker_var_sub(tinker_var_slice(a, axis, 1, n, 1), tinker_var_slice(a, axis, 0, n, 1)),
        call_element(c, 0, "input"));
}

/* Is any, or is every element other than 0? */
static tinker_var *reduce_any(tinker_var *a, int axis, int keep)
{
    /* 0 or 1 per element first: the largest element of [-1, 0] is 0, although one is set. */
    return tinker_var_max(tinker_var_ne(a, tinker_tape_scalar(a->tape, 0)), axis, keep);
}

static tinker_var *reduce_every(tinker_var *a, int axis, int keep)
{
    return tinker_var_min(tinker_var_ne(a, tinker_tape_scalar(a->tape, 0)), axis, keep);
}

struct value op_any_all(struct call *c)
{
    return reduce_axes(c, c->node->op->choice ? reduce_every : reduce_any, ELEMENT_BOOL);
}

/* ---- products -------------------------------------------------------------------- */

struct value op_dot(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "tensor");
    return a && b ? value_tensor(tinker_var_dot(a, b), ELEMENT_FLOAT)
                  : call_fail(c, "two operands are needed");
}

/* Vectors count as a row on the left and a column on the right, and that axis goes again. */
struct value op_matmul(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "other");
    if (!a || !b)
        return call_fail(c, "two operands are needed");
    bool row = a->shape.ndim == 1, column = b->shape.ndim == 1;
    if (a->shape.ndim < 1 || a->shape.ndim > 2 || b->shape.ndim < 1 || b->shape.ndim > 2)
        return call_fail(c, "operands of rank 1 or 2 are needed");
    /* The product takes rows times columns times what they share.  In double: the product of two
     * sizes may not fit a size_t. */
    double work = (double)a->shape.n * (double)(column ? 1 : b->shape.dim[1]);
    if (work > GRAPH_WORK_MAX)
        return call_fail(c, "the product is too large");
    /* The added axes are taken away again below, in reverse order. */
    tinker_var *y = tinker_var_matmul(row ? tinker_var_unsqueeze(a, 0) : a,
                                      column ? tinker_var_unsqueeze(b, 1) : b);
    if (column)
        y = tinker_var_squeeze(y, 1);
    return value_tensor(row ? tinker_var_squeeze(y, 0) : y, ELEMENT_FLOAT);
}
