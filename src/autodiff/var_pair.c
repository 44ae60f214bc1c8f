/* var_pair.c - operations on the elements of two values, with broadcasting.
 *
 * The output has the shape both fit into.  A gradient has the output's shape and is added
 * up over the repeated axes on its way to an operand: grad_to(). */
#include <math.h>
#include <string.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/tape.h"

struct pair_op {
    struct rule rule;
    double (*f)(double a, double b);
};

/* Steps in a value of shape s for one step along each axis of `out`; 0 where it repeats. */
static void set_strides(const struct shape *s, const struct shape *out, size_t step[RANK_MAX])
{
    /* Shapes are aligned at the last axis; s may have fewer. */
    size_t run = 1, gap = out->ndim - s->ndim;
    for (size_t i = out->ndim; i-- > 0;) {
        size_t dim = i < gap ? 1 : s->dim[i - gap];
        step[i] = dim == 1 ? 0 : run;
        run *= dim;
    }
}

/* Walks the positions of a value while the output is counted up. */
struct cursor {
    size_t at, step[RANK_MAX];
};

/* One step of the output: like an odometer, the last axis counts fastest, and an axis that is full
 * goes back to 0 and lets the one before it count. */
static void advance_cursors(struct cursor *c, size_t n_cursors, const struct shape *out,
                            size_t count[RANK_MAX])
{
    for (size_t i = out->ndim; i-- > 0;) {
        for (size_t k = 0; k < n_cursors; k++)
            c[k].at += c[k].step[i];
        if (++count[i] < out->dim[i])
            return;
        for (size_t k = 0; k < n_cursors; k++)
            c[k].at -= c[k].step[i] * out->dim[i];
        count[i] = 0;
    }
}

/* y = f(a, b), element by element, in the shape both broadcast to. */
static tinker_var *combine_pair(tinker_var *a, tinker_var *b, const struct pair_op *op)
{
    struct shape s;
    char ta[96], tb[96];
    double *d;
    if (!tape_usable(a, b, op->rule.name))
        return tape_broken(a, b);
    if (!shape_broadcast(&a->shape, &b->shape, &s))
        return tape_error(a->tape, TINKER_EINVAL, "%s: shapes %s and %s do not fit", op->rule.name,
                          shape_text(&a->shape, ta), shape_text(&b->shape, tb));
    tinker_var *y = tape_node2(&op->rule, &s, a, b, &d);
    if (!d)
        return y;
    if (a->shape.n == s.n && b->shape.n == s.n) { /* nothing repeats: one plain loop */
        for (size_t i = 0; i < s.n; i++)
            d[i] = op->f(a->data[i], b->data[i]);
        return y;
    }
    /* One cursor per operand; a step of 0 along a repeated axis reads the same element again. */
    struct cursor c[2] = { { 0 } };
    size_t count[RANK_MAX] = { 0 };
    set_strides(&a->shape, &s, c[0].step);
    set_strides(&b->shape, &s, c[1].step);
    for (size_t i = 0; i < s.n; i++, advance_cursors(c, 2, &s, count))
        d[i] = op->f(a->data[c[0].at], b->data[c[1].at]);
    return y;
}

/* ---- repeating and adding up ------------------------------------------------------------- */

/* What was repeated counts once for each copy: the gradients of the copies add up. */
static void back_broadcast(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_sum_to(g, &y->parents[0]->shape));
}

/* Each summand counts fully: all get the gradient of the sum. */
static void back_sum_to(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_broadcast_to(g, &y->parents[0]->shape));
}

static const struct rule broadcast_rule = { "expand", back_broadcast },
                         sum_to_rule = { "sum_to", back_sum_to };

/* Repeat a to the shape s, which it must fit. */
tinker_var *var_broadcast_to(tinker_var *a, const struct shape *s)
{
    struct cursor c = { 0 };
    size_t count[RANK_MAX] = { 0 };
    double *d;
    if (!tape_usable(a, a, "expand"))
        return tape_broken(a, a);
    if (shape_equal(&a->shape, s))
        return a;
    tinker_var *y = tape_node1(&broadcast_rule, s, a, &d);
    if (!d)
        return y;
    set_strides(&a->shape, s, c.step);
    for (size_t i = 0; i < s->n; i++, advance_cursors(&c, 1, s, count))
        d[i] = a->data[c.at];
    return y;
}

/* The reverse: add up what a broadcast from s to a's shape has repeated. Sums run in the order of
 * a's elements, so results do not depend on how they were reached. */
tinker_var *var_sum_to(tinker_var *a, const struct shape *s)
{
    struct cursor c = { 0 };
    size_t count[RANK_MAX] = { 0 };
    double *d;
    if (!tape_usable(a, a, "sum_to"))
        return tape_broken(a, a);
    if (shape_equal(&a->shape, s))
        return a;
    tinker_var *y = tape_node1(&sum_to_rule, s, a, &d);
    if (!d)
        return y;
    set_strides(s, &a->shape, c.step);
    for (size_t i = 0; i < a->shape.n; i++, advance_cursors(&c, 1, &a->shape, count))
        d[c.at] += a->data[i];
    return y;
}

/* Push a gradient in the shape of the output to an operand that was perhaps repeated. */
static void grad_to(tinker_var *parent, tinker_var *g)
{
    if (parent->needs_grad)
        grad_push(parent, var_sum_to(g, &parent->shape));
}

/* ---- choosing ---------------------------------------------------------------------------- */

/* Each element goes back to where it came from.  The mask itself has no gradient: where() is
 * piecewise constant in it. */
static void back_where(tinker_var *y, tinker_var *g)
{
    tinker_var *mask = y->parents[2];
    grad_push(y->parents[0], var_keep(g, mask));
    if (y->parents[1]->needs_grad)
        grad_push(y->parents[1], var_keep(g, tinker_var_not(mask)));
}

static const struct rule where_rule = { "where", back_where };

tinker_var *tinker_var_where(tinker_var *mask, tinker_var *a, tinker_var *b)
{
    struct shape s, all;
    double *d;
    if (!tape_usable(a, b, "where") || !tape_usable(a, mask, "where"))
        return tape_broken(a, b);
    if (!shape_broadcast(&a->shape, &b->shape, &s) || !shape_broadcast(&s, &mask->shape, &all))
        return tape_error(a->tape, TINKER_EINVAL, "where: shapes do not fit");
    /* Repeated first, so that the rule need not care about shapes. */
    tinker_var *in[3] = { var_broadcast_to(a, &all), var_broadcast_to(b, &all),
                          var_broadcast_to(tinker_var_detach(mask), &all) };
    tinker_var *y = tape_node(a->tape, &where_rule, &all, in, 3, &d);
    for (size_t i = 0; d && i < all.n; i++)
        d[i] = in[2]->data[i] != 0 ? in[0]->data[i] : in[1]->data[i];
    return y;
}

/* g where the mask is not 0, else 0; unlike a product, it also turns NaN and infinity into 0. */
tinker_var *var_keep(tinker_var *g, tinker_var *mask)
{
    if (!tape_usable(g, mask, "where"))
        return tape_broken(g, mask);
    return tinker_var_where(mask, g, tinker_tape_scalar(g->tape, 0));
}

tinker_var *tinker_var_masked_fill(tinker_var *a, tinker_var *mask, double v)
{
    if (!tape_usable(a, mask, "masked_fill"))
        return tape_broken(a, mask);
    return tinker_var_where(mask, tinker_tape_scalar(a->tape, v), a);
}

/* ---- the gradient rules ------------------------------------------------------------------ */

/* y = a + b: dy/da = dy/db = 1 */
static void back_add(tinker_var *y, tinker_var *g)
{
    grad_to(y->parents[0], g);
    grad_to(y->parents[1], g);
}

/* y = a - b: dy/da = 1, dy/db = -1 */
static void back_sub(tinker_var *y, tinker_var *g)
{
    grad_to(y->parents[0], g);
    if (y->parents[1]->needs_grad)
        grad_to(y->parents[1], tinker_var_neg(g));
}

/* y = a b: dy/da = b, dy/db = a */
static void back_mul(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    if (a->needs_grad)
        grad_to(a, tinker_var_mul(g, b));
    if (b->needs_grad)
        grad_to(b, tinker_var_mul(g, a));
}

/* y = a / b: dy/da = 1 / b, dy/db = -a / b^2 = -y / b */
static void back_div(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    /* Both gradients have g / b in them. */
    tinker_var *q = tinker_var_div(g, b);
    grad_to(a, q);
    if (b->needs_grad)
        grad_to(b, tinker_var_neg(tinker_var_mul(q, y)));
}

/* y = a^b: dy/da = b a^(b-1), dy/db = y log a */
static void back_pow(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    if (a->needs_grad)
        grad_to(a,
                tinker_var_mul(g, tinker_var_mul(b, tinker_var_pow(a, tinker_var_shift(b, -1)))));
    if (b->needs_grad)
        grad_to(b, tinker_var_mul(g, tinker_var_mul(y, tinker_var_log(a))));
}

static double share_f(double a, double b) /* of the smaller one in a gradient */
{
    return a < b ? 1 : a == b ? 0.5 : 0;
}

static const struct pair_op share_op = { { "share", NULL }, share_f };

/* The smaller operand gets the gradient; equal ones share it, as a subgradient. */
static void back_minimum(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    if (a->needs_grad)
        grad_to(a, tinker_var_mul(g, combine_pair(a, b, &share_op)));
    if (b->needs_grad)
        grad_to(b, tinker_var_mul(g, combine_pair(b, a, &share_op)));
}

/* The larger operand gets it: the shares of the minimum, exchanged. */
static void back_maximum(tinker_var *y, tinker_var *g)
{
    tinker_var *a = y->parents[0], *b = y->parents[1];
    if (a->needs_grad)
        grad_to(a, tinker_var_mul(g, combine_pair(b, a, &share_op)));
    if (b->needs_grad)
        grad_to(b, tinker_var_mul(g, combine_pair(a, b, &share_op)));
}

/* ---- the functions ----------------------------------------------------------------------- */

static double add_f(double a, double b)
{
    return a + b;
}

static double sub_f(double a, double b)
{
    return a - b;
}

static double mul_f(double a, double b)
{
    return a * b;
}

static double div_f(double a, double b)
{
    return a / b;
}

/* NaN in either operand is the result: a NaN that vanished would hide a mistake. */
static double minimum_f(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

static double maximum_f(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* Comparisons give 1 or 0; with NaN all but ne are 0 (IEEE 754). */
static double gt_f(double a, double b)
{
    return a > b;
}

static double ge_f(double a, double b)
{
    return a >= b;
}

static double lt_f(double a, double b)
{
    return a < b;
}

static double le_f(double a, double b)
{
    return a <= b;
}

static double eq_f(double a, double b)
{
    return a == b;
}

static double ne_f(double a, double b)
{
    return a != b;
}

static double and_f(double a, double b)
{
    return a != 0 && b != 0;
}

static double or_f(double a, double b)
{
    return a != 0 || b != 0;
}

static const struct pair_op add_op = { { "add", back_add }, add_f },
                            sub_op = { { "sub", back_sub }, sub_f },
                            mul_op = { { "mul", back_mul }, mul_f },
                            div_op = { { "div", back_div }, div_f },
                            pow_op = { { "pow", back_pow }, pow },
                            minimum_op = { { "minimum", back_minimum }, minimum_f },
                            maximum_op = { { "maximum", back_maximum }, maximum_f },
                            gt_op = { { "gt", NULL }, gt_f }, ge_op = { { "ge", NULL }, ge_f },
                            lt_op = { { "lt", NULL }, lt_f }, le_op = { { "le", NULL }, le_f },
                            eq_op = { { "eq", NULL }, eq_f }, ne_op = { { "ne", NULL }, ne_f },
                            and_op = { { "and", NULL }, and_f }, or_op = { { "or", NULL }, or_f };

/* ---- public ------------------------------------------------------------------------------ */

tinker_var *tinker_var_add(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &add_op);
}

tinker_var *tinker_var_sub(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &sub_op);
}

tinker_var *tinker_var_mul(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &mul_op);
}

tinker_var *tinker_var_div(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &div_op);
}

tinker_var *tinker_var_pow(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &pow_op);
}

tinker_var *tinker_var_minimum(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &minimum_op);
}

tinker_var *tinker_var_maximum(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &maximum_op);
}

tinker_var *tinker_var_gt(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &gt_op);
}

tinker_var *tinker_var_ge(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &ge_op);
}

tinker_var *tinker_var_lt(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &lt_op);
}

tinker_var *tinker_var_le(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &le_op);
}

tinker_var *tinker_var_eq(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &eq_op);
}

tinker_var *tinker_var_ne(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &ne_op);
}

tinker_var *tinker_var_and(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &and_op);
}

tinker_var *tinker_var_or(tinker_var *a, tinker_var *b)
{
    return combine_pair(a, b, &or_op);
}
