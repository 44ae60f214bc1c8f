/* var_shape.c - rearranging: reshape, permute, pick, join.
 *
 * Slices, flips, rolls and gathers are all index_select, whose gradient is index_add;
 * each is the gradient rule of the other: what is read several times gets several gradients, which
 * add up where it came from. */
#include <string.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/tape.h"

/* ---- the same elements in another shape -------------------------------------------------- */

static void back_reshape(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_reshape(g, &y->parents[0]->shape));
}

static const struct rule reshape_rule = { "reshape", back_reshape };

/* Row-major data is the same in both shapes, so the node shares it with its parent. */
tinker_var *var_reshape(tinker_var *a, const struct shape *s)
{
    char ta[96], ts[96];
    if (!tape_usable(a, a, "reshape"))
        return tape_broken(a, a);
    if (a->shape.n != s->n)
        return tape_error(a->tape, TINKER_EINVAL, "reshape: %s does not fit %s",
                          shape_text(&a->shape, ta), shape_text(s, ts));
    return shape_equal(&a->shape, s) ? a : tape_view(&reshape_rule, s, a);
}

tinker_var *tinker_var_reshape(tinker_var *a, const int64_t *shape, size_t ndim)
{
    struct shape s;
    if (!tape_usable(a, a, "reshape"))
        return tape_broken(a, a);
    if (!shape_set(&s, shape, ndim))
        return tape_error(a->tape, TINKER_EINVAL, "reshape: not a shape of at most %d dimensions",
                          RANK_MAX);
    return var_reshape(a, &s);
}

/* One dimension, in the order of memory. */
tinker_var *tinker_var_flatten(tinker_var *a)
{
    if (!tape_usable(a, a, "flatten"))
        return tape_broken(a, a);
    return var_reshape(a, &(struct shape){ .ndim = 1, .n = a->shape.n, .dim = { a->shape.n } });
}

static bool find_axis(tinker_var *a, int axis, const char *op, size_t *out)
{
    char text[96];
    if (!tape_usable(a, a, op))
        return false;
    if (shape_axis(&a->shape, axis, out))
        return true;
    tape_error(a->tape, TINKER_EINVAL, "%s: shape %s has no axis %d", op,
               shape_text(&a->shape, text), axis);
    return false;
}

tinker_var *tinker_var_squeeze(tinker_var *a, int axis)
{
    size_t k;
    if (!find_axis(a, axis, "squeeze", &k))
        return tape_broken(a, a);
    struct shape s = a->shape;
    if (s.dim[k] != 1)
        return tape_error(a->tape, TINKER_EINVAL, "squeeze: axis %d has %zu elements, not 1", axis,
                          s.dim[k]);
    s.ndim--;
    /* The axes behind it move down by one. */
    memmove(s.dim + k, s.dim + k + 1, (s.ndim - k) * sizeof(*s.dim));
    return var_reshape(a, &s);
}

/* axis may be one past the last, which appends; -1 means there, too. */
tinker_var *tinker_var_unsqueeze(tinker_var *a, int axis)
{
    if (!tape_usable(a, a, "unsqueeze"))
        return tape_broken(a, a);
    struct shape s = a->shape;
    int last = (int)s.ndim;
    if (s.ndim == RANK_MAX || axis < -last - 1 || axis > last)
        return tape_error(a->tape, TINKER_EINVAL, "unsqueeze: no room for axis %d", axis);
    size_t k = (size_t)(axis < 0 ? axis + last + 1 : axis);
    memmove(s.dim + k + 1, s.dim + k, (s.ndim - k) * sizeof(*s.dim));
    s.dim[k] = 1;
    s.ndim++;
    return var_reshape(a, &s);
}

/* Broadcasting in one direction: the result must have exactly the shape that was asked for. */
tinker_var *tinker_var_expand(tinker_var *a, const int64_t *shape, size_t ndim)
{
    struct shape s, both;
    char text[96];
    if (!tape_usable(a, a, "expand"))
        return tape_broken(a, a);
    if (!shape_set(&s, shape, ndim) || !shape_broadcast(&a->shape, &s, &both) ||
        !shape_equal(&both, &s))
        return tape_error(a->tape, TINKER_EINVAL, "expand: %s does not repeat to that shape",
                          shape_text(&a->shape, text));
    return var_broadcast_to(a, &s);
}

/* ---- permute ----------------------------------------------------------------------------- */

/* The gradient goes back through the inverse order. */
static void back_permute(tinker_var *y, tinker_var *g)
{
    int inverse[RANK_MAX];
    for (size_t i = 0; i < y->shape.ndim; i++)
        inverse[y->axes[i]] = (int)i;
    grad_push(y->parents[0], tinker_var_permute(g, inverse, y->shape.ndim));
}

static const struct rule permute_rule = { "permute", back_permute };

/* The shape with its axes in another order; false: an axis is missing or there twice. */
static bool permute_shape(const struct shape *a, const int *axes, size_t n, struct shape *out)
{
    unsigned seen = 0;
    *out = *a;
    for (size_t i = 0; i < n && n == a->ndim; i++) {
        if (axes[i] < 0 || (size_t)axes[i] >= n)
            return false;
        out->dim[i] = a->dim[axes[i]];
        seen |= 1u << axes[i];
    }
    return n == a->ndim && seen == (1u << n) - 1;
}

tinker_var *tinker_var_permute(tinker_var *a, const int *axes, size_t n)
{
    struct shape s;
    double *d;
    if (!tape_usable(a, a, "permute"))
        return tape_broken(a, a);
    if (!permute_shape(&a->shape, axes, n, &s))
        return tape_error(a->tape, TINKER_EINVAL, "permute: not an order of the %zu axes",
                          a->shape.ndim);
    int *kept = arena_memdup(&a->tape->arena, axes, n * sizeof(*axes));
    if (!kept)
        return tape_error(a->tape, TINKER_ENOMEM, "out of memory in permute");
    tinker_var *y = tape_node1(&permute_rule, &s, a, &d);
    if (!d)
        return y;
    y->axes = kept;
    /* Count through the output in order, and compute where each element lies in the input;
     * stride[i] is the distance of neighbors along axis i of the input. */
    size_t stride[RANK_MAX] = { 0 }, count[RANK_MAX] = { 0 }, run = 1;
    for (size_t i = a->shape.ndim; i-- > 0; run *= a->shape.dim[i])
        stride[i] = run;
    for (size_t i = 0; i < s.n; i++) {
        size_t at = 0;
        for (size_t k = 0; k < n; k++)
            at += count[k] * stride[axes[k]];
        d[i] = a->data[at];
        /* An odometer: the last axis counts fastest, and a full one carries into the axis before
         * it. */
        for (size_t k = n; k-- > 0 && ++count[k] == s.dim[k];)
            count[k] = 0;
    }
    return y;
}

/* Of a matrix; permute() is for more dimensions. */
tinker_var *tinker_var_transpose(tinker_var *a)
{
    return tinker_var_permute(a, (int[]){ 1, 0 }, 2);
}

/* ---- picking ----------------------------------------------------------------------------- */

static tinker_var *pick_index(tinker_var *a, size_t axis, const int64_t *index, size_t n);
static tinker_var *add_at(tinker_var *a, size_t axis, const int64_t *index, size_t n);

/* out[index[k]] += a[k], in an axis of n. */
static void scatter_add(double *out, const tinker_var *a, size_t axis, const int64_t *index,
                        size_t n)
{
    struct span p = shape_span(&a->shape, axis);
    /* outer x n x inner: the axis lies between those before and those behind it. */
    for (size_t o = 0; o < p.outer; o++)
        for (size_t k = 0; k < p.n; k++)
            for (size_t i = 0; i < p.inner; i++)
                out[(o * n + (size_t)index[k]) * p.inner + i] +=
                    a->data[(o * p.n + k) * p.inner + i];
}

/* y[k] = a[index[k]]: g[k] is added at index[k]. */
static void back_pick(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0];
    double *sum = grad_sum(a);
    /* A sum that exists is added to in place, which saves a value as large as a. */
    if (sum)
        scatter_add(sum, g, (size_t)y->axis, y->index, a->shape.dim[y->axis]);
    else
        grad_push(a, add_at(g, (size_t)y->axis, y->index, a->shape.dim[y->axis]));
}

/* y[index[k]] += a[k]: a[k] gets the gradient of its place. */
static void back_add_at(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0];
    grad_push(a, pick_index(g, (size_t)y->axis, y->index, a->shape.dim[y->axis]));
}

static const struct rule pick_rule = { "index_select", back_pick },
                         add_at_rule = { "index_add", back_add_at };

/* out[k] = a[index[k]] for k < n; index belongs to the tape. */
static tinker_var *pick_index(tinker_var *a, size_t axis, const int64_t *index, size_t n)
{
    struct span p = shape_span(&a->shape, axis);
    struct shape s;
    double *d;
    if (!shape_resize(&a->shape, axis, n, &s))
        return tape_error(a->tape, TINKER_ENOMEM, "index: the result is too large");
    tinker_var *y = tape_node1(&pick_rule, &s, a, &d);
    if (!d)
        return y;
    y->axis = (int)axis;
    y->index = index;
    for (size_t o = 0; o < p.outer; o++)
        for (size_t k = 0; k < n; k++)
            memcpy(d + (o * n + k) * p.inner, a->data + (o * p.n + (size_t)index[k]) * p.inner,
                   p.inner * sizeof(*d));
    return y;
}

/* A value with an axis of n, all 0 but for a[k] added at index[k]; index belongs to the tape. */
static tinker_var *add_at(tinker_var *a, size_t axis, const int64_t *index, size_t n)
{
    if (!tape_usable(a, a, "index_add"))
        return tape_broken(a, a);
    struct shape s;
    double *d;
    if (!shape_resize(&a->shape, axis, n, &s))
        return tape_error(a->tape, TINKER_ENOMEM, "index: the result is too large");
    tinker_var *y = tape_node1(&add_at_rule, &s, a, &d);
    if (!d)
        return y;
    y->axis = (int)axis;
    y->index = index;
    scatter_add(d, a, axis, index, n);
    return y;
}

/* Lives on the tape, because gradient rules read it later. */
static int64_t *new_index(tinker_var *a, size_t n)
{
    int64_t *index = arena_array(&a->tape->arena, n, sizeof(*index));
    if (!index)
        tape_error(a->tape, TINKER_ENOMEM, "out of memory for an index");
    return index;
}

/* The caller's index is copied: the gradient rule reads it long after this call. */
tinker_var *tinker_var_index_select(tinker_var *a, int axis, const int64_t *index, size_t n)
{
    size_t k;
    int64_t *kept = find_axis(a, axis, "index_select", &k) ? new_index(a, n) : NULL;
    if (!kept)
        return tape_broken(a, a);
    for (size_t i = 0; i < n; i++) {
        kept[i] = index[i];
        if (index[i] < 0 || (uint64_t)index[i] >= a->shape.dim[k])
            return tape_error(a->tape, TINKER_EINVAL,
                              "index_select: index[%zu] is %lld, the axis has %zu elements", i,
                              (long long)index[i], a->shape.dim[k]);
    }
    return pick_index(a, k, kept, n);
}

tinker_var *tinker_var_slice(tinker_var *a, int axis, size_t start, size_t len, size_t step)
{
    size_t k;
    if (!find_axis(a, axis, "slice", &k))
        return tape_broken(a, a);
    size_t dim = a->shape.dim[k];
    /* The last element is start + (len - 1) * step; divided instead of multiplied, which could
     * overflow. */
    if (step == 0 || start > dim || (len && (start == dim || len - 1 > (dim - 1 - start) / step)))
        return tape_error(a->tape, TINKER_EINVAL,
                          "slice: %zu elements from %zu by %zu of an axis of %zu", len, start, step,
                          dim);
    int64_t *index = new_index(a, len);
    if (!index)
        return tape_broken(a, a);
    for (size_t i = 0; i < len; i++)
        index[i] = (int64_t)(start + i * step);
    return pick_index(a, k, index, len);
}

/* A slice of length 1 without its axis: the rank drops by one. */
tinker_var *tinker_var_select(tinker_var *a, int axis, size_t i)
{
    size_t k;
    if (!find_axis(a, axis, "select", &k))
        return tape_broken(a, a);
    return tinker_var_squeeze(tinker_var_slice(a, (int)k, i, 1, 1), (int)k);
}

tinker_var *tinker_var_flip(tinker_var *a, int axis)
{
    size_t k;
    int64_t *index = find_axis(a, axis, "flip", &k) ? new_index(a, a->shape.dim[k]) : NULL;
    if (!index)
        return tape_broken(a, a);
    size_t n = a->shape.dim[k];
    for (size_t i = 0; i < n; i++)
        index[i] = (int64_t)(n - 1 - i);
    return pick_index(a, k, index, n);
}

tinker_var *tinker_var_roll(tinker_var *a, int axis, int64_t by)
{
    size_t k;
    int64_t *index = find_axis(a, axis, "roll", &k) ? new_index(a, a->shape.dim[k]) : NULL;
    if (!index)
        return tape_broken(a, a);
    int64_t n = (int64_t)a->shape.dim[k];
    /* Element i comes from i - by, modulo n; % of C keeps the sign, hence twice. */
    for (int64_t i = 0; i < n; i++)
        index[i] = ((i - by % n) % n + n) % n;
    return pick_index(a, k, index, (size_t)n);
}

/* Zeros on both sides: every element is added to its place in a longer axis of zeros. */
tinker_var *tinker_var_pad(tinker_var *a, int axis, size_t before, size_t after)
{
    size_t k;
    int64_t *index = find_axis(a, axis, "pad", &k) ? new_index(a, a->shape.dim[k]) : NULL;
    if (!index)
        return tape_broken(a, a);
    size_t n = a->shape.dim[k];
    /* Far below what could overflow in the sum that follows. */
    if (before > SIZE_MAX / 1024 || after > SIZE_MAX / 1024)
        return tape_error(a->tape, TINKER_EINVAL, "pad: %zu and %zu are too many", before, after);
    for (size_t i = 0; i < n; i++)
        index[i] = (int64_t)(before + i);
    return add_at(a, k, index, before + n + after);
}

/* torch.gather() along the last axis: index has k numbers for each row. Done as one pick from the
 * flattened value, so it needs no gradient rule of its own. */
tinker_var *tinker_var_gather(tinker_var *a, const int64_t *index, size_t k)
{
    size_t last;
    if (!find_axis(a, -1, "gather", &last))
        return tape_broken(a, a);
    size_t dim = a->shape.dim[last];
    struct shape s;
    if (!shape_resize(&a->shape, last, k, &s))
        return tape_error(a->tape, TINKER_ENOMEM, "gather: the result is too large");
    if (dim == 0 && k > 0)
        return tape_error(a->tape, TINKER_EINVAL, "gather: from rows of no elements");
    int64_t *flat = new_index(a, s.n);
    for (size_t i = 0; flat && i < s.n; i++) {
        if (index[i] < 0 || (uint64_t)index[i] >= dim)
            return tape_error(a->tape, TINKER_EINVAL,
                              "gather: index[%zu] is %lld, the axis has %zu elements", i,
                              (long long)index[i], dim);
        /* Row i / k of the flattened value begins at i / k * dim. */
        flat[i] = (int64_t)(i / k * dim) + index[i];
    }
    return flat ? var_reshape(pick_index(tinker_var_flatten(a), 0, flat, s.n), &s)
                : tape_broken(a, a);
}

/* ---- joining ----------------------------------------------------------------------------- */

/* Each operand gets its own part of the gradient. */
static void back_concat(tinker_var *y, tinker_var *g)
{
    size_t start = 0;
    for (size_t i = 0; i < y->n_parents; i++) {
        size_t len = y->parents[i]->shape.dim[y->axis];
        if (y->parents[i]->needs_grad)
            grad_push(y->parents[i], tinker_var_slice(g, y->axis, start, len, 1));
        start += len;
    }
}

static const struct rule concat_rule = { "concat", back_concat };

/* The shape of the joined values; an error says which does not fit. */
static bool join_shapes(tinker_var *const *v, size_t n, size_t axis, struct shape *s)
{
    char a[96], b[96];
    *s = v[0]->shape;
    for (size_t i = 1; i < n; i++) {
        struct shape like = v[i]->shape;
        if (!tape_usable(v[0], v[i], "concat"))
            return false;
        /* Equal but for the axis along which they are joined. */
        if (like.ndim == s->ndim)
            like.dim[axis] = s->dim[axis];
        if (!shape_equal(&like, s)) {
            tape_error(v[0]->tape, TINKER_EINVAL, "concat: shapes %s and %s do not fit",
                       shape_text(&v[0]->shape, a), shape_text(&v[i]->shape, b));
            return false;
        }
        s->dim[axis] += v[i]->shape.dim[axis];
        s->n += v[i]->shape.n;
    }
    return true;
}

tinker_var *tinker_var_concat(tinker_var *const *v, size_t n, int axis)
{
    struct shape s;
    size_t k, start = 0;
    double *d;
    if (n == 0 || !v[0])
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!v[i])
            return tape_error(v[0]->tape, TINKER_EINVAL, "concat: an operand is NULL");
    if (!find_axis(v[0], axis, "concat", &k) || !join_shapes(v, n, k, &s))
        return tape_broken(v[0], v[0]);
    tinker_var *y = tape_node(v[0]->tape, &concat_rule, &s, v, n, &d);
    if (!d)
        return y;
    y->axis = (int)k;
    /* Along the axis, operand i fills [start, start + p.n) of every outer block. */
    for (size_t i = 0; i < n; i++) {
        struct span p = shape_span(&v[i]->shape, k);
        for (size_t o = 0; o < p.outer; o++)
            memcpy(d + (o * s.dim[k] + start) * p.inner, v[i]->data + o * p.n * p.inner,
                   p.n * p.inner * sizeof(*d));
        start += p.n;
    }
    return y;
}

/* A new axis; concat() joins along one that is there. */
tinker_var *tinker_var_stack(tinker_var *const *v, size_t n, int axis)
{
    if (n == 0 || !v[0])
        return NULL;
    tinker_var **up = arena_array(&v[0]->tape->arena, n, sizeof(*up));
    if (!up)
        return tape_error(v[0]->tape, TINKER_ENOMEM, "out of memory in stack");
    /* A new axis of length 1 in each, then joined along it. */
    for (size_t i = 0; i < n; i++)
        up[i] = tinker_var_unsqueeze(v[i], axis);
    return tinker_var_concat(up, n, axis);
}

/* ---- cutting the tape -------------------------------------------------------------------- */

static const struct rule detach_rule = { "detach", NULL };

/* The same numbers without a gradient: what is computed from it is constant for the walk back. */
tinker_var *tinker_var_detach(tinker_var *a)
{
    if (!tape_usable(a, a, "detach"))
        return tape_broken(a, a);
    /* A rule without `back` makes a node that no walk passes. */
    return a->needs_grad ? tape_view(&detach_rule, &a->shape, a) : a;
}
