/* var_reduce.c - operations along an axis: sums, extremes, softmax, products of matrices.
 *
 * A reduction keeps its axis with length 1, so that its gradient broadcasts; the axis is
 * dropped by a reshape afterwards.  Sums run in a fixed order. */
#include <math.h>
#include <string.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/record.h"
#include "autodiff/tape.h"

/* What a reduction along an axis needs to know. */
struct along {
    tinker_var *a; /* flattened for TINKER_ALL */
    size_t axis;
    struct span span;
    struct shape kept, out; /* with the axis of length 1; as the caller wants it */
};

/* Every reduction sees its input as (outer, n, inner) with the axis in the middle, whatever the
 * shape was: element k of line (o, i) is at (o * n + k) * inner + i.  false: the error is on the
 * tape. */
static bool prepare_axis(struct along *w, tinker_var *a, int axis, int keep, const char *op)
{
    char text[96];
    if (!tape_usable(a, a, op))
        return false;
    w->a = axis == TINKER_ALL ? tinker_var_flatten(a) : a;
    if (!shape_axis(&w->a->shape, axis == TINKER_ALL ? 0 : axis, &w->axis)) {
        tape_error(a->tape, TINKER_EINVAL, "%s: shape %s has no axis %d", op,
                   shape_text(&a->shape, text), axis);
        return false;
    }
    w->span = shape_span(&w->a->shape, w->axis);
    w->kept = w->a->shape;
    w->kept.dim[w->axis] = 1;
    w->kept.n = w->span.outer * w->span.inner;
    /* Without keep the axis disappears; over all elements a scalar is left, or ones. */
    w->out = w->kept;
    if (axis == TINKER_ALL) {
        w->out.ndim = keep ? a->shape.ndim : 0;
        for (size_t i = 0; i < w->out.ndim; i++)
            w->out.dim[i] = 1;
    } else if (!keep) {
        w->out.ndim--;
        for (size_t i = w->axis; i < w->out.ndim; i++)
            w->out.dim[i] = w->kept.dim[i + 1];
    }
    return true;
}

/* ---- sum, mean, largest, smallest -------------------------------------------------------- */

/* y = sum a: every element counts once. */
static void back_sum(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_broadcast_to(g, &y->parents[0]->shape));
}

static const struct rule sum_rule = { "sum", back_sum };

/* The loops run in the order of the data. d begins as zeros: the arena clears. */
static tinker_var *sum_along(const struct along *w)
{
    const struct span s = w->span;
    double *d;
    tinker_var *y = tape_node1(&sum_rule, &w->kept, w->a, &d);
    if (!d)
        return y;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t k = 0; k < s.n; k++)
            for (size_t i = 0; i < s.inner; i++)
                d[o * s.inner + i] += w->a->data[(o * s.n + k) * s.inner + i];
    return var_reshape(y, &w->out);
}

static tinker_var *compute_sum(tinker_var *a, int axis, int keep)
{
    struct along w;
    return prepare_axis(&w, a, axis, keep, "sum") ? sum_along(&w) : tape_broken(a, a);
}

tinker_var *tinker_var_sum(tinker_var *a, int axis, int keep)
{
    bool began = record_begin(a);
    return record_end(began, "sum", a, compute_sum(a, axis, keep), axis, keep, 0);
}

/* A mean of nothing is an error, not NaN: it usually means that a mask or a batch is empty. */
static tinker_var *compute_mean(tinker_var *a, int axis, int keep)
{
    struct along w;
    if (!prepare_axis(&w, a, axis, keep, "mean"))
        return tape_broken(a, a);
    if (w.span.n == 0)
        return tape_error(a->tape, TINKER_EINVAL, "mean: of no elements");
    return tinker_var_scale(sum_along(&w), 1.0 / (double)w.span.n);
}

tinker_var *tinker_var_mean(tinker_var *a, int axis, int keep)
{
    bool began = record_begin(a);
    return record_end(began, "mean", a, compute_mean(a, axis, keep), axis, keep, 0);
}

/* Only the element that was chosen moves y. */
static void back_extreme(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0];
    struct span s = shape_span(&a->shape, (size_t)y->axis);
    double *mask;
    tinker_var *chosen = tape_constant(a->tape, &a->shape, &mask);
    if (!mask)
        return;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++)
            mask[(o * s.n + (size_t)y->index[o * s.inner + i]) * s.inner + i] = 1;
    grad_push(a, var_keep(var_broadcast_to(g, &a->shape), chosen));
}

static const struct rule max_rule = { "max", back_extreme }, min_rule = { "min", back_extreme };

/* The largest (sign 1) or smallest (sign -1) element along an axis, the first of equal ones; NaN
 * wins against everything.  y->index remembers which it was. */
static tinker_var *reduce_extreme(tinker_var *a, int axis, int keep, const struct rule *rule,
                                  double sign)
{
    struct along w;
    double *d;
    if (!prepare_axis(&w, a, axis, keep, rule->name))
        return tape_broken(a, a);
    const struct span s = w.span;
    if (s.n == 0)
        return tape_error(a->tape, TINKER_EINVAL, "%s: of no elements", rule->name);
    int64_t *at = arena_array(&a->tape->arena, w.kept.n, sizeof(*at));
    if (!at)
        return tape_error(a->tape, TINKER_ENOMEM, "out of memory in %s", rule->name);
    tinker_var *y = tape_node1(rule, &w.kept, w.a, &d);
    if (!d)
        return y;
    y->axis = (int)w.axis;
    y->index = at;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            const double *x = w.a->data + o * s.n * s.inner + i;
            size_t best = 0;
            for (size_t k = 1; k < s.n; k++)
                if (sign * x[k * s.inner] > sign * x[best * s.inner] || isnan(x[k * s.inner]))
                    best = k;
            d[o * s.inner + i] = x[best * s.inner];
            at[o * s.inner + i] = (int64_t)best;
        }
    return var_reshape(y, &w.out);
}

static tinker_var *compute_max(tinker_var *a, int axis, int keep)
{
    return reduce_extreme(a, axis, keep, &max_rule, 1);
}

tinker_var *tinker_var_max(tinker_var *a, int axis, int keep)
{
    bool began = record_begin(a);
    return record_end(began, "max", a, compute_max(a, axis, keep), axis, keep, 0);
}

static tinker_var *compute_min(tinker_var *a, int axis, int keep)
{
    return reduce_extreme(a, axis, keep, &min_rule, -1);
}

tinker_var *tinker_var_min(tinker_var *a, int axis, int keep)
{
    bool began = record_begin(a);
    return record_end(began, "min", a, compute_min(a, axis, keep), axis, keep, 0);
}

/* ---- softmax and its relatives ----------------------------------------------------------- */

/* log(sum(exp(x))) of n numbers at a distance of step; -inf when all are -inf.  With the largest
 * taken out, exp() neither overflows nor are all terms 0. */
static double log_sum_exp(const double *x, size_t n, size_t step)
{
    double top = -INFINITY, sum = 0;
    for (size_t k = 0; k < n; k++)
        top = x[k * step] > top || isnan(x[k * step]) ? x[k * step] : top;
    if (!isfinite(top))
        return top;
    for (size_t k = 0; k < n; k++)
        sum += exp(x[k * step] - top);
    return top + log(sum);
}

/* y = softmax(a): dL/da_i = y_i (g_i - sum_j g_j y_j) */
static void back_softmax(tinker_var *y, tinker_var *g)
{
    tinker_var *inner = tinker_var_sum(tinker_var_mul(g, y), y->axis, 1);
    grad_push(y->parents[0], tinker_var_mul(y, tinker_var_sub(g, inner)));
}

/* y = a - logsumexp(a): dL/da_i = g_i - p_i sum_j g_j, with p = softmax(a).  A row that is all -inf
 * has no softmax; its gradient is 0. */
static void back_log_softmax(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0];
    tinker_var *p = tinker_var_softmax(a, y->axis);
    tinker_var *alive = tinker_var_isfinite(tinker_var_max(a, y->axis, 1));
    tinker_var *d = tinker_var_sub(g, tinker_var_mul(p, tinker_var_sum(g, y->axis, 1)));
    grad_push(a, var_keep(d, alive));
}

/* y = logsumexp(a): dy/da = softmax(a) */
static void back_logsumexp(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0];
    grad_push(a, tinker_var_mul(g, tinker_var_softmax(a, y->axis)));
}

static const struct rule softmax_rule = { "softmax", back_softmax },
                         log_softmax_rule = { "log_softmax", back_log_softmax },
                         logsumexp_rule = { "logsumexp", back_logsumexp };

/* exp(a - logsumexp(a)) along an axis, or its log. */
static tinker_var *normalize_axis(tinker_var *a, int axis, const struct rule *rule, bool logs)
{
    struct along w;
    double *d;
    if (!prepare_axis(&w, a, axis, 1, rule->name))
        return tape_broken(a, a);
    const struct span s = w.span;
    tinker_var *y = tape_node1(rule, &w.a->shape, w.a, &d);
    if (!d)
        return y;
    y->axis = (int)w.axis;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++) {
            size_t at = o * s.n * s.inner + i;
            double all = log_sum_exp(w.a->data + at, s.n, s.inner);
            for (size_t k = 0; k < s.n; k++) {
                double x = w.a->data[at + k * s.inner];
                double l = x == -INFINITY ? x : x - all; /* -inf - -inf would be NaN */
                d[at + k * s.inner] = logs ? l : exp(l);
            }
        }
    return var_reshape(y, &a->shape);
}

static tinker_var *compute_softmax(tinker_var *a, int axis)
{
    return normalize_axis(a, axis, &softmax_rule, false);
}

tinker_var *tinker_var_softmax(tinker_var *a, int axis)
{
    bool began = record_begin(a);
    return record_end(began, "softmax", a, compute_softmax(a, axis), axis, 0, 0);
}

static tinker_var *compute_log_softmax(tinker_var *a, int axis)
{
    return normalize_axis(a, axis, &log_softmax_rule, true);
}

tinker_var *tinker_var_log_softmax(tinker_var *a, int axis)
{
    bool began = record_begin(a);
    return record_end(began, "log_softmax", a, compute_log_softmax(a, axis), axis, 0, 0);
}

/* log of a sum of exponentials, which overflow on their own: see log_sum_exp(). */
static tinker_var *compute_logsumexp(tinker_var *a, int axis, int keep)
{
    struct along w;
    double *d;
    if (!prepare_axis(&w, a, axis, keep, "logsumexp"))
        return tape_broken(a, a);
    const struct span s = w.span;
    tinker_var *y = tape_node1(&logsumexp_rule, &w.kept, w.a, &d);
    if (!d)
        return y;
    y->axis = (int)w.axis;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t i = 0; i < s.inner; i++)
            d[o * s.inner + i] = log_sum_exp(w.a->data + o * s.n * s.inner + i, s.n, s.inner);
    return var_reshape(y, &w.out);
}

tinker_var *tinker_var_logsumexp(tinker_var *a, int axis, int keep)
{
    bool began = record_begin(a);
    return record_end(began, "logsumexp", a, compute_logsumexp(a, axis, keep), axis, keep, 0);
}

/* ---- running sums ------------------------------------------------------------------------ */

/* y_k = a_0 + ... + a_k, so a_k is in y_k and all behind it: a running sum from the end. */
static void back_cumsum(tinker_var *y, tinker_var *g)
{
    tinker_var *backwards = tinker_var_cumsum(tinker_var_flip(g, y->axis), y->axis);
    grad_push(y->parents[0], tinker_var_flip(backwards, y->axis));
}

static const struct rule cumsum_rule = { "cumsum", back_cumsum };

tinker_var *tinker_var_cumsum(tinker_var *a, int axis)
{
    struct along w;
    double *d;
    if (!prepare_axis(&w, a, axis, 1, "cumsum"))
        return tape_broken(a, a);
    const struct span s = w.span;
    tinker_var *y = tape_node1(&cumsum_rule, &w.a->shape, w.a, &d);
    if (!d)
        return y;
    y->axis = (int)w.axis;
    for (size_t o = 0; o < s.outer; o++)
        for (size_t k = 0; k < s.n; k++)
            for (size_t i = 0; i < s.inner; i++) {
                size_t at = (o * s.n + k) * s.inner + i;
                d[at] = w.a->data[at] + (k ? d[at - s.inner] : 0);
            }
    return var_reshape(y, &a->shape);
}

/* ---- spread and length ------------------------------------------------------------------- */

/* Divided by n - correction: 1 is the estimate from a sample, 0 that of the population. */
static tinker_var *compute_variance(tinker_var *a, int axis, int keep, int correction)
{
    struct along w;
    if (!prepare_axis(&w, a, axis, keep, "variance"))
        return tape_broken(a, a);
    if ((double)w.span.n <= correction)
        return tape_error(a->tape, TINKER_EINVAL, "variance: of %zu elements with correction %d",
                          w.span.n, correction);
    /* From the mean: sum of squares minus square of sum would cancel. */
    tinker_var *off = tinker_var_sub(a, tinker_var_mean(a, axis, 1));
    tinker_var *sum = tinker_var_sum(tinker_var_square(off), axis, keep);
    return tinker_var_scale(sum, 1.0 / ((double)w.span.n - correction));
}

tinker_var *tinker_var_variance(tinker_var *a, int axis, int keep, int correction)
{
    bool began = record_begin(a);
    return record_end(began, "variance", a, compute_variance(a, axis, keep, correction), axis, keep,
                      correction);
}

tinker_var *tinker_var_std(tinker_var *a, int axis, int keep, int correction)
{
    return tinker_var_sqrt(tinker_var_variance(a, axis, keep, correction));
}

/* sqrt(sum x^2); its gradient at 0 is 0, see back_sqrt(). */
tinker_var *tinker_var_norm(tinker_var *a, int axis, int keep)
{
    return tinker_var_sqrt(tinker_var_sum(tinker_var_square(a), axis, keep));
}

/* ---- products ---------------------------------------------------------------------------- */

/* d += g * x, or = where d holds nothing yet */
static void add_scaled(double *d, const tinker_var *x, double g, bool first)
{
    size_t n = x->shape.n;
    for (size_t i = 0; first && x->data && i < n; i++)
        d[i] = g * x->data[i];
    for (size_t i = 0; first && !x->data && i < n; i++)
        d[i] = g * x->floats[i];
    for (size_t i = 0; !first && i < n; i++)
        d[i] += g * (x->data ? x->data[i] : x->floats[i]);
}

/* y = sum a b: dL/da = g b.  A final gradient is written in one pass over b. */
static void push_dot(tinker_var *to, tinker_var *other, tinker_var *g)
{
    tinker_tape *t = to->tape;
    double *d;
    if (!to->needs_grad)
        return;
    if (!t->constants_only) {
        grad_push(to, tinker_var_mul(var_broadcast_to(g, &other->shape), other));
    } else if (to->grad) {
        d = grad_sum(to);
        if (d)
            add_scaled(d, other, g->data[0], false);
    } else {
        tinker_var *own = tape_node_unfilled(t, NULL, &to->shape, NULL, 0, &d);
        if (d) {
            add_scaled(d, other, g->data[0], true);
            to->grad = own;
            to->sum = d;
        }
    }
}

static void back_dot(tinker_var *y, tinker_var *g)
{
    push_dot(y->parents[0], y->parents[1], g);
    push_dot(y->parents[1], y->parents[0], g);
}

static const struct rule dot_rule = { "dot", back_dot };

/* Four sums side by side: one alone would wait for each addition.  Their order is fixed. */
static double sum_products(const tinker_var *a, const tinker_var *b)
{
    const float *x = a->floats, *y = b->floats;
    double s[4] = { 0 };
    size_t n = a->shape.n, i = 0;
    bool both = !a->data && !b->data;
    for (; both && i + 4 <= n; i += 4) {
        s[0] += (double)x[i] * y[i];
        s[1] += (double)x[i + 1] * y[i + 1];
        s[2] += (double)x[i + 2] * y[i + 2];
        s[3] += (double)x[i + 3] * y[i + 3];
    }
    for (; i < n; i++)
        s[i % 4] += (a->data ? a->data[i] : x[i]) * (b->data ? b->data[i] : y[i]);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

tinker_var *tinker_var_dot(tinker_var *a, tinker_var *b)
{
    const struct shape scalar = { .n = 1 };
    char ta[96], tb[96];
    double *d;
    if (!tape_same(a, b, "dot"))
        return tape_broken(a, b);
    if (!shape_equal(&a->shape, &b->shape))
        return tape_error(a->tape, TINKER_EINVAL, "dot: shapes %s and %s differ",
                          shape_text(&a->shape, ta), shape_text(&b->shape, tb));
    tinker_var *y =
        tape_node_unfilled(a->tape, &dot_rule, &scalar, (tinker_var *[]){ a, b }, 2, &d);
    if (d)
        *d = sum_products(a, b);
    return y;
}

/* Y = A B: dL/dA = G B^T, dL/dB = A^T G */
static void back_matmul(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    if (a->needs_grad)
        grad_push(a, tinker_var_matmul(g, tinker_var_transpose(b)));
    if (b->needs_grad)
        grad_push(b, tinker_var_matmul(tinker_var_transpose(a), g));
}

static const struct rule matmul_rule = { "matmul", back_matmul };

tinker_var *tinker_var_matmul(tinker_var *a, tinker_var *b)
{
    char ta[96], tb[96];
    double *d;
    if (!tape_usable(a, b, "matmul"))
        return tape_broken(a, b);
    if (a->shape.ndim != 2 || b->shape.ndim != 2 || a->shape.dim[1] != b->shape.dim[0])
        return tape_error(a->tape, TINKER_EINVAL, "matmul: shapes %s and %s do not fit",
                          shape_text(&a->shape, ta), shape_text(&b->shape, tb));
    /* Y (n, c) = A (n, m) B (m, c) */
    size_t n = a->shape.dim[0], m = a->shape.dim[1], c = b->shape.dim[1];
    struct shape s;
    if (!shape_set(&s, (int64_t[]){ (int64_t)n, (int64_t)c }, 2))
        return tape_error(a->tape, TINKER_ENOMEM, "matmul: the product is too large");
    tinker_var *y = tape_node2(&matmul_rule, &s, a, b, &d);
    /* k before j: the inner loop runs along rows of B and Y. */
    for (size_t i = 0; d && i < n; i++)
        for (size_t k = 0; k < m; k++)
            for (size_t j = 0; j < c; j++)
                d[i * c + j] += a->data[i * m + k] * b->data[k * c + j];
    return y;
}
