/* op_map.c - operations on each element, on pairs of elements, and on types. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "graph/graph_impl.h"

/* ---- pairs ----------------------------------------------------------------------- */

/* The order of the enum is the order of promotion in torch. */
static enum element promote_element(enum element a, enum element b)
{
    return a > b ? a : b;
}

/* Two numbers give a number, as in Python: x.shape[0] * 2 is one. */
static struct value give_pair(struct call *c, tinker_var *v, enum element element)
{
    /* Both arguments were read before; asking again only looks at their kind. */
    bool numbers =
        value_is_number(call_arg(c, 0, "input")) && value_is_number(call_arg(c, 1, "other"));
    if (!numbers)
        return value_tensor(v, element);
    return value_number(element == ELEMENT_FLOAT ? VALUE_FLOAT
                        : element == ELEMENT_INT ? VALUE_INT
                                                 : VALUE_BOOL,
                        tinker_var_item(v));
}

struct value op_pair(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "other");
    if (!a || !b)
        return call_fail(c, "two operands are needed");
    pair_fn *pair = c->node->op->pair;
    bool division = pair == tinker_var_div;
    enum element element =
        promote_element(call_element(c, 0, "input"), call_element(c, 1, "other"));
    /* True division of integers gives a float, in Python 3 as in torch. */
    if (division)
        element = ELEMENT_FLOAT;
    else if (element == ELEMENT_BOOL)
        element = ELEMENT_INT;
    /* torch.add(a, b, alpha=2) is a + 2 b.  Of sub() the same holds. */
    if (pair == tinker_var_add || pair == tinker_var_sub) {
        double alpha = call_number(c, 2, "alpha", 1);
        if (alpha != 1)
            b = tinker_var_scale(b, alpha);
    }
    const char *rounding = division ? call_text(c, 2, "rounding_mode", NULL) : NULL;
    /* "trunc" differs from "floor" for negative quotients only; no loss that we know asks for
     * it. */
    if (rounding && strcmp(rounding, "floor") != 0)
        return call_fail(c, "rounding_mode %.20s is not supported here", rounding);
    return give_pair(c, rounding ? pair_floor_div(a, b) : pair(a, b), element);
}

struct value op_compare(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "other");
    if (!a || !b)
        return call_fail(c, "two operands are needed");
    return give_pair(c, c->node->op->pair(a, b), ELEMENT_BOOL);
}

tinker_var *pair_floor_div(tinker_var *a, tinker_var *b)
{
    return tinker_var_floor(tinker_var_div(a, b));
}

/* a - b floor(a / b): the sign of b, as in Python.  C's fmod() has that of the dividend. */
tinker_var *pair_mod(tinker_var *a, tinker_var *b)
{
    return tinker_var_sub(a, tinker_var_mul(b, pair_floor_div(a, b)));
}

struct value op_pow(struct call *c)
{
    const struct value *exponent = call_arg(c, 1, "exponent");
    /* The exponent is read twice: as it was written, for the case below, and as a tensor. */
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "exponent");
    if (!a || !b)
        return call_fail(c, "two operands are needed");
    enum element element =
        promote_element(call_element(c, 0, "input"), call_element(c, 1, "exponent"));
    /* A power that is a number also has a derivative for negative bases. */
    tinker_var *y =
        value_is_number(exponent) ? tinker_var_power(a, exponent->number) : tinker_var_pow(a, b);
    return give_pair(c, y, element);
}

/* ---- one value ------------------------------------------------------------------- */

struct value op_map(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a)
        return call_fail(c, "an operand is needed");
    const struct value *in = call_arg(c, 0, "input");
    map_fn *map = c->node->op->map;
    /* These keep an integer an integer; all others give a float in torch, and so promote
     * differently later. */
    bool keeps = map == tinker_var_neg || map == tinker_var_abs || map == tinker_var_sign ||
                 map == tinker_var_square || map == tinker_var_relu || map == tinker_var_floor ||
                 map == tinker_var_round;
    enum element element = keeps ? call_element(c, 0, "input") : ELEMENT_FLOAT;
    if (value_is_number(in))
        return value_number(keeps ? in->kind : VALUE_FLOAT, tinker_var_item(map(a)));
    return value_tensor(map(a), element);
}

/* A step function has no gradient: its result is a bool, a constant to everything that follows. */
struct value op_step(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_tensor(c->node->op->map(a), ELEMENT_BOOL) : call_fail(c, "no operand");
}

/* ~x: of a bool; the bits of integers have no use in a loss. */
struct value op_invert(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a || call_element(c, 0, "input") != ELEMENT_BOOL)
        return call_fail(c, "only of bool values");
    return value_tensor(tinker_var_not(a), ELEMENT_BOOL);
}

/* math.exp() and its kin take numbers; what depends on logprobs would lose its gradient. */
struct value op_math(struct call *c)
/* By number only: call_number() refuses a tensor that needs a gradient. */
{
    double x = call_number(c, 0, NULL, 0);
    return value_number(VALUE_FLOAT,
                        tinker_var_item(c->node->op->map(tinker_tape_scalar(c->tape, x))));
}

tinker_var *map_erf(tinker_var *a)
{
    return var_erf(a);
}

tinker_var *map_log2(tinker_var *a)
{
    return tinker_var_scale(tinker_var_log(a), 1 / log(2));
}

/* 1 / a as a power, whose derivative the tape has. */
tinker_var *map_reciprocal(tinker_var *a)
{
    return tinker_var_power(a, -1);
}

/* log(1 + exp(beta x)) / beta; torch cuts it to x where beta x > threshold, which is the same to
 * the accuracy of a float. */
struct value op_softplus(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    double beta = call_number(c, 1, "beta", 1), threshold = call_number(c, 2, "threshold", 20);
    /* Below 15 the cut is visible in a float, and the result would not be that of torch. */
    if (!a || !(beta > 0) || threshold < 15)
        return call_fail(c, "beta must be positive, threshold at least 15");
    return value_tensor(tinker_var_scale(tinker_var_softplus(tinker_var_scale(a, beta)), 1 / beta),
                        ELEMENT_FLOAT);
}

/* x Phi(x), or with approximate="tanh" the formula of that name */
struct value op_gelu(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    const char *approximate = call_text(c, 1, "approximate", "none");
    if (!a)
        return call_fail(c, "no operand");
    tinker_var *inner;
    /* sqrt(2 / pi) (x + 0.044715 x^3): the constant is that of the paper (Hendrycks and Gimpel). */
    if (strcmp(approximate, "tanh") == 0) {
        tinker_var *cubic = tinker_var_scale(tinker_var_power(a, 3), 0.044715);
        inner = tinker_var_tanh(tinker_var_scale(tinker_var_add(a, cubic), sqrt(2 / acos(-1))));
    } else {
        inner = var_erf(tinker_var_scale(a, sqrt(0.5)));
    }
    tinker_var *half = tinker_var_scale(tinker_var_shift(inner, 1), 0.5);
    return value_tensor(tinker_var_mul(a, half), ELEMENT_FLOAT);
}

struct value op_silu(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_tensor(tinker_var_mul(a, tinker_var_sigmoid(a)), ELEMENT_FLOAT)
             : call_fail(c, "no operand");
}

/* ---- bounds and choices ---------------------------------------------------------- */

struct value op_clamp(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    const struct value *lo = call_arg(c, 1, "min"), *hi = call_arg(c, 2, "max");
    if (!a || (!lo && !hi))
        return call_fail(c, "min or max is needed");
    enum element element = call_element(c, 0, "input");
    if (lo)
        element = promote_element(element, call_element(c, 1, "min"));
    if (hi)
        element = promote_element(element, call_element(c, 2, "max"));
    /* Numbers clamp in one operation; a missing bound is infinite. */
    if ((!lo || value_is_number(lo)) && (!hi || value_is_number(hi)))
        return value_tensor(
            tinker_var_clamp(a, lo ? lo->number : -INFINITY, hi ? hi->number : INFINITY), element);
    /* Bounds for each element: those within them keep their gradient, as above. */
    tinker_var *y = a;
    if (lo) {
        tinker_var *bound = call_tensor(c, 1, "min");
        y = bound ? tinker_var_where(tinker_var_lt(a, bound), bound, y) : y;
    }
    if (hi) {
        tinker_var *bound = call_tensor(c, 2, "max");
        y = bound ? tinker_var_where(tinker_var_gt(y, bound), bound, y) : y;
    }
    return value_tensor(y, element);
}

struct value op_where(struct call *c)
{
    tinker_var *mask = call_tensor(c, 0, "condition"), *a = call_tensor(c, 1, "input"),
               *b = call_tensor(c, 2, "other");
    if (!mask || !a || !b)
        return call_fail(c, "a condition and two values are needed");
    return value_tensor(tinker_var_where(mask, a, b),
                        promote_element(call_element(c, 1, "input"), call_element(c, 2, "other")));
}

struct value op_masked_fill(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *mask = call_tensor(c, 1, "mask");
    /* Its gradient is 0 where the mask is set: the value is a constant. */
    double v = call_number(c, 2, "value", 0);
    if (!a || !mask)
        return call_fail(c, "a mask is needed");
    return value_tensor(tinker_var_masked_fill(a, mask, v), call_element(c, 0, "input"));
}

struct value op_nan_to_num(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    /* FLT_MAX, not DBL_MAX: torch replaces by the largest value of the tensor's type, which is
     * float32. */
    double nan = call_number(c, 1, "nan", 0), hi = call_number(c, 2, "posinf", FLT_MAX),
           lo = call_number(c, 3, "neginf", -FLT_MAX);
    return a ? value_tensor(tinker_var_nan_to_num(a, nan, lo, hi), call_element(c, 0, "input"))
             : call_fail(c, "no operand");
}

/* ---- types and copies ------------------------------------------------------------ */

/* clone() and contiguous(): values here are never changed in place, so no copy is needed. */
struct value op_same(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_tensor(a, call_element(c, 0, "input")) : call_fail(c, "no operand");
}

struct value op_detach(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    return a ? value_tensor(tinker_var_detach(a), call_element(c, 0, "input"))
             : call_fail(c, "no operand");
}

/* Which type a cast makes; false: none is named, the value stays as it is. */
static bool find_cast(struct call *c, enum element *to)
{
    const char *target = c->node->target;
    const struct value *v;
    if (strcmp(target, "float") == 0 || strcmp(target, "double") == 0)
        return *to = ELEMENT_FLOAT, true;
    if (strcmp(target, "long") == 0 || strcmp(target, "int") == 0)
        return *to = ELEMENT_INT, true;
    if (strcmp(target, "bool") == 0)
        return *to = ELEMENT_BOOL, true;
    /* to() takes device, dtype or another tensor in any place and in any number. */
    for (size_t i = 1; i < c->node->n_args; i++)
        if ((v = call_arg(c, i, NULL)) && (v->kind == VALUE_DTYPE || v->kind == VALUE_TENSOR))
            return *to = v->element, true;
    /* A place behind all arguments: only the keyword can match. */
    v = call_arg(c, c->node->n_args, "dtype");
    v = v ? v : call_arg(c, c->node->n_args, "other");
    if (v)
        *to = v->element;
    return v != NULL;
}

struct value op_cast(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    if (!a)
        return call_fail(c, "no operand");
    enum element from = call_element(c, 0, "input"), to = from;
    /* from is what it stays when to(device) names no type. */
    find_cast(c, &to);
    if (to == ELEMENT_BOOL && from != ELEMENT_BOOL)
        a = tinker_var_ne(a, tinker_tape_scalar(c->tape, 0));
    else if (to == ELEMENT_INT && from == ELEMENT_FLOAT) /* towards 0 */
        a = tinker_var_mul(tinker_var_sign(a), tinker_var_floor(tinker_var_abs(a)));
    /* Integers and bools have no derivative, so nothing must flow back through the cast. */
    return value_tensor(to == ELEMENT_FLOAT ? a : tinker_var_detach(a), to);
}

/* zeros_like() and ones_like() */
struct value op_like(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input");
    /* 99: never by place, in no version of torch. */
    const struct value *dtype = call_arg(c, 99, "dtype");
    if (!a)
        return call_fail(c, "no operand");
    double *d;
    /* A constant of the tape, not of the arena: it is an operand of later operations. */
    tinker_var *y = tape_constant(c->tape, &a->shape, &d);
    for (size_t i = 0; d && i < a->shape.n; i++)
        d[i] = c->node->op->choice;
    return value_tensor(y, dtype && dtype->kind == VALUE_DTYPE ? dtype->element
                                                               : call_element(c, 0, "input"));
}
