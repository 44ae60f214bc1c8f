/* var_map.c - operations on each element of one value.
 *
 * Each is a function of a number, ending in _f, and a rule for its gradient; a table joins
 * them with their name.  Rules use y where the derivative is a function of it: that saves computing
 * exp or tanh again. */
#include <math.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/tape.h"

/* A rule without `back` is a step function: its derivative is 0 wherever it exists. */
struct map_op {
    struct rule rule;
    double (*f)(double x, const double *p);
};

/* y = f(a; p0, p1, p2), element by element; the parameters stay in y for its rule. */
static tinker_var *map_with_params(tinker_var *a, const struct map_op *op, double p0, double p1,
                                   double p2)
{
    /* d is where to write; NULL when the tape is broken or out of memory. */
    double *d;
    if (!tape_usable(a, a, op->rule.name))
        return tape_broken(a, a);
    tinker_var *y = tape_node1(&op->rule, &a->shape, a, &d);
    if (!d)
        return y;
    y->p[0] = p0, y->p[1] = p1, y->p[2] = p2;
    for (size_t i = 0; i < a->shape.n; i++)
        d[i] = op->f(a->data[i], y->p);
    return y;
}

/* For operations without parameters. */
static tinker_var *map_elements(tinker_var *a, const struct map_op *op)
{
    return map_with_params(a, op, 0, 0, 0);
}

/* ---- the gradient rules: g times the derivative ------------------------------------------ */

/* The chain rule: dL/dx = g dy/dx. */
static void push_times(tinker_var *y, tinker_var *g, tinker_var *factor)
{
    grad_push(y->parents[0], tinker_var_mul(g, factor));
}

/* y = x + s: y' = 1 */
static void back_shift(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], g);
}

/* y = s x: y' = s */
static void back_scale(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], tinker_var_scale(g, y->p[0]));
}

/* y = -x: y' = -1 */
static void back_neg(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], tinker_var_neg(g));
}

/* y = x^p: y' = p x^(p-1) */
static void back_power(tinker_var *y, tinker_var *g)
{
    double p = y->p[0];
    if (p == 0) /* x^0 is constant, also at 0 where x^-1 is not finite */
        push_times(y, g, tinker_var_scale(y->parents[0], 0));
    else
        push_times(y, g, tinker_var_scale(tinker_var_power(y->parents[0], p - 1), p));
}

/* y = |x|: y' = sign(x), 0 at 0 */
static void back_abs(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_sign(y->parents[0]));
}

/* y = x^2: y' = 2 x */
static void back_square(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_scale(y->parents[0], 2));
}

/* y = sqrt(x): y' = 1 / (2 y), 0 at 0 */
static void back_sqrt(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_scale(var_recip(y), 0.5));
}

/* y = x^(-1/2): y' = -y^3 / 2 */
static void back_rsqrt(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_scale(tinker_var_power(y, 3), -0.5));
}

/* y = 1 / x: y' = -y^2 */
static void back_recip(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_neg(tinker_var_square(y)));
}

/* y = exp(x): y' = y */
static void back_exp(tinker_var *y, tinker_var *g)
{
    push_times(y, g, y);
}

/* y = exp(x) - 1: y' = y + 1 */
static void back_expm1(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_shift(y, 1));
}

/* y = log(x): y' = 1 / x */
static void back_log(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], tinker_var_div(g, y->parents[0]));
}

/* y = log(1 + x): y' = 1 / (1 + x) */
static void back_log1p(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], tinker_var_div(g, tinker_var_shift(y->parents[0], 1)));
}

/* y = 1 / (1 + exp(-x)): y' = y - y^2 */
static void back_sigmoid(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_sub(y, tinker_var_square(y)));
}

/* y = erf(x): y' = 2 / sqrt(pi) exp(-x^2) */
static void back_erf(tinker_var *y, tinker_var *g)
{
    tinker_var *bell = tinker_var_exp(tinker_var_neg(tinker_var_square(y->parents[0])));
    push_times(y, g, tinker_var_scale(bell, 2 / sqrt(acos(-1))));
}

/* y = log(sigmoid(x)): y' = sigmoid(-x) */
static void back_logsigmoid(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_sigmoid(tinker_var_neg(y->parents[0])));
}

/* y = log(1 + exp(x)): y' = sigmoid(x) */
static void back_softplus(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_sigmoid(y->parents[0]));
}

/* y = tanh(x): y' = 1 - y^2 */
static void back_tanh(tinker_var *y, tinker_var *g)
{
    push_times(y, g, tinker_var_shift(tinker_var_neg(tinker_var_square(y)), 1));
}

/* Masks of 0 and 1 for the rules below. */
static double inside_f(double x, const double *p)
{
    return x >= p[0] && x <= p[1];
}

/* 1 or 0, as all comparisons here: masks are numbers. */
static double positive_f(double x, const double *p)
{
    (void)p;
    return x > 0;
}

static double isfinite_f(double x, const double *p)
{
    (void)p;
    return isfinite(x) != 0;
}

static const struct map_op inside_op = { { "inside", NULL }, inside_f },
                           positive_op = { { "positive", NULL }, positive_f },
                           isfinite_op = { { "isfinite", NULL }, isfinite_f };

/* y = max(x, 0): y' = 1 for x > 0 */
static void back_relu(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_keep(g, map_elements(y->parents[0], &positive_op)));
}

/* y' = 1 inside the bounds, which count as inside */
static void back_clamp(tinker_var *y, tinker_var *g)
{
    tinker_var *inside = map_with_params(y->parents[0], &inside_op, y->p[0], y->p[1], 0);
    grad_push(y->parents[0], var_keep(g, inside));
}

/* y' = 1 where x was left as it is */
static void back_nan_to_num(tinker_var *y, tinker_var *g)
{
    grad_push(y->parents[0], var_keep(g, map_elements(y->parents[0], &isfinite_op)));
}

/* ---- the functions ----------------------------------------------------------------------- */

/* Functions with a number of their own take it from p, which the node keeps. */
static double shift_f(double x, const double *p)
{
    return x + p[0];
}

static double scale_f(double x, const double *p)
{
    return x * p[0];
}

static double power_f(double x, const double *p)
{
    return pow(x, p[0]);
}

static double neg_f(double x, const double *p)
{
    (void)p;
    return -x;
}

static double abs_f(double x, const double *p)
{
    (void)p;
    return fabs(x);
}

static double square_f(double x, const double *p)
{
    (void)p;
    return x * x;
}

static double sqrt_f(double x, const double *p)
{
    (void)p;
    return sqrt(x);
}

static double rsqrt_f(double x, const double *p)
{
    (void)p;
    return 1 / sqrt(x);
}

/* 1 / x, but 0 at 0: gradients of sqrt and means of nothing must not become infinite. */
static double recip_f(double x, const double *p)
{
    (void)p;
    return x == 0 ? 0 : 1 / x;
}

static double exp_f(double x, const double *p)
{
    (void)p;
    return exp(x);
}

static double expm1_f(double x, const double *p)
{
    (void)p;
    return expm1(x);
}

static double log_f(double x, const double *p)
{
    (void)p;
    return log(x);
}

static double log1p_f(double x, const double *p)
{
    (void)p;
    return log1p(x);
}

static double sigmoid_f(double x, const double *p)
{
    (void)p;
    /* exp() of something negative only, which cannot overflow. */
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/* min(x, 0) - log(1 + exp(-|x|)): log(sigmoid(x)) itself would be -infinity below -745. */
static double logsigmoid_f(double x, const double *p)
{
    (void)p;
    return (x < 0 ? x : 0) - log1p(exp(-fabs(x)));
}

/* max(x, 0) + log(1 + exp(-|x|)): neither overflows for large x nor is 0 for small. */
static double softplus_f(double x, const double *p)
{
    (void)p;
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double erf_f(double x, const double *p)
{
    (void)p;
    return erf(x);
}

static double tanh_f(double x, const double *p)
{
    (void)p;
    return tanh(x);
}

static double relu_f(double x, const double *p)
{
    (void)p;
    return x < 0 ? 0 : x; /* NaN passes */
}

/* p[0] is the lower bound, p[1] the upper. */
static double clamp_f(double x, const double *p)
{
    return x < p[0] ? p[0] : x > p[1] ? p[1] : x;
}

/* p: what to put for NaN, for -infinity and for infinity. */
static double nan_to_num_f(double x, const double *p)
{
    return isnan(x) ? p[0] : isfinite(x) ? x : x < 0 ? p[1] : p[2];
}

static double sign_f(double x, const double *p)
{
    (void)p;
    return isnan(x) ? x : (x > 0) - (x < 0);
}

static double floor_f(double x, const double *p)
{
    (void)p;
    return floor(x);
}

/* To even, as torch.round() does, in the default rounding mode. */
static double round_f(double x, const double *p)
{
    (void)p;
    return nearbyint(x);
}

/* 0 becomes 1 and everything else 0, as Python's "not". */
static double not_f(double x, const double *p)
{
    (void)p;
    return x == 0;
}

static const struct map_op shift_op = { { "shift", back_shift }, shift_f },
                           scale_op = { { "scale", back_scale }, scale_f },
                           power_op = { { "power", back_power }, power_f },
                           neg_op = { { "neg", back_neg }, neg_f },
                           abs_op = { { "abs", back_abs }, abs_f },
                           square_op = { { "square", back_square }, square_f },
                           sqrt_op = { { "sqrt", back_sqrt }, sqrt_f },
                           rsqrt_op = { { "rsqrt", back_rsqrt }, rsqrt_f },
                           recip_op = { { "recip", back_recip }, recip_f },
                           exp_op = { { "exp", back_exp }, exp_f },
                           expm1_op = { { "expm1", back_expm1 }, expm1_f },
                           log_op = { { "log", back_log }, log_f },
                           log1p_op = { { "log1p", back_log1p }, log1p_f },
                           sigmoid_op = { { "sigmoid", back_sigmoid }, sigmoid_f },
                           logsigmoid_op = { { "logsigmoid", back_logsigmoid }, logsigmoid_f },
                           softplus_op = { { "softplus", back_softplus }, softplus_f },
                           erf_op = { { "erf", back_erf }, erf_f },
                           tanh_op = { { "tanh", back_tanh }, tanh_f },
                           relu_op = { { "relu", back_relu }, relu_f },
                           clamp_op = { { "clamp", back_clamp }, clamp_f },
                           nan_to_num_op = { { "nan_to_num", back_nan_to_num }, nan_to_num_f },
                           sign_op = { { "sign", NULL }, sign_f },
                           floor_op = { { "floor", NULL }, floor_f },
                           round_op = { { "round", NULL }, round_f },
                           not_op = { { "not", NULL }, not_f };

/* ---- public ------------------------------------------------------------------------------ */

/* Internal: tinker_var_div() is the public division, which gives infinity at 0. */
tinker_var *var_recip(tinker_var *a)
{
    return map_elements(a, &recip_op);
}

tinker_var *tinker_var_shift(tinker_var *a, double s)
{
    return map_with_params(a, &shift_op, s, 0, 0);
}

tinker_var *tinker_var_scale(tinker_var *a, double s)
{
    return map_with_params(a, &scale_op, s, 0, 0);
}

tinker_var *tinker_var_power(tinker_var *a, double p)
{
    return map_with_params(a, &power_op, p, 0, 0);
}

tinker_var *tinker_var_clamp(tinker_var *a, double lo, double hi)
{
    return map_with_params(a, &clamp_op, lo, hi, 0);
}

tinker_var *tinker_var_nan_to_num(tinker_var *a, double nan, double neg_inf, double pos_inf)
{
    return map_with_params(a, &nan_to_num_op, nan, neg_inf, pos_inf);
}

tinker_var *tinker_var_neg(tinker_var *a)
{
    return map_elements(a, &neg_op);
}

tinker_var *tinker_var_abs(tinker_var *a)
{
    return map_elements(a, &abs_op);
}

tinker_var *tinker_var_square(tinker_var *a)
{
    return map_elements(a, &square_op);
}

tinker_var *tinker_var_sqrt(tinker_var *a)
{
    return map_elements(a, &sqrt_op);
}

tinker_var *tinker_var_rsqrt(tinker_var *a)
{
    return map_elements(a, &rsqrt_op);
}

tinker_var *tinker_var_exp(tinker_var *a)
{
    return map_elements(a, &exp_op);
}

tinker_var *tinker_var_expm1(tinker_var *a)
{
    return map_elements(a, &expm1_op);
}

tinker_var *tinker_var_log(tinker_var *a)
{
    return map_elements(a, &log_op);
}

tinker_var *tinker_var_log1p(tinker_var *a)
{
    return map_elements(a, &log1p_op);
}

tinker_var *tinker_var_sigmoid(tinker_var *a)
{
    return map_elements(a, &sigmoid_op);
}

tinker_var *tinker_var_logsigmoid(tinker_var *a)
{
    return map_elements(a, &logsigmoid_op);
}

tinker_var *tinker_var_softplus(tinker_var *a)
{
    return map_elements(a, &softplus_op);
}

tinker_var *var_erf(tinker_var *a)
{
    return map_elements(a, &erf_op);
}

tinker_var *tinker_var_tanh(tinker_var *a)
{
    return map_elements(a, &tanh_op);
}

tinker_var *tinker_var_relu(tinker_var *a)
{
    return map_elements(a, &relu_op);
}

tinker_var *tinker_var_isfinite(tinker_var *a)
{
    return map_elements(a, &isfinite_op);
}

tinker_var *tinker_var_sign(tinker_var *a)
{
    return map_elements(a, &sign_op);
}

tinker_var *tinker_var_floor(tinker_var *a)
{
    return map_elements(a, &floor_op);
}

tinker_var *tinker_var_round(tinker_var *a)
{
    return map_elements(a, &round_op);
}

tinker_var *tinker_var_not(tinker_var *a)
{
    return map_elements(a, &not_op);
}
