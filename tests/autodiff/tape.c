/* The tape: every operation against central differences, once and twice differentiated,
 * over broadcast pairs and small shapes; errors; tensors of every type. */
#include <tinker/custom_loss.h>
#include <tinker/extra/autodiff.h>
#include "autodiff/tape.h"
#include "support/tap.h"

typedef tinker_var *build_fn(tinker_var *a, tinker_var *b);

/* ---- what is differentiated -------------------------------------------------------------- */

#define UNARY(name)                                           \
    static tinker_var *u_##name(tinker_var *a, tinker_var *b) \
    {                                                         \
        (void)b;                                              \
        return tinker_var_##name(a);                          \
    }
UNARY(neg);
UNARY(abs);
UNARY(square);
UNARY(sqrt);
UNARY(rsqrt);
UNARY(exp);
UNARY(expm1);
UNARY(log);
UNARY(log1p);
UNARY(sigmoid);
UNARY(logsigmoid);
UNARY(softplus);
UNARY(tanh);
UNARY(relu);
UNARY(flatten);
UNARY(whiten);
UNARY(entropy_rows);

#define EXPRESSION(name, value)                           \
    static tinker_var *name(tinker_var *a, tinker_var *b) \
    {                                                     \
        (void)a, (void)b;                                 \
        return value;                                     \
    }
EXPRESSION(x_shift, tinker_var_shift(a, 3));
EXPRESSION(x_scale, tinker_var_scale(a, -1.5));
EXPRESSION(x_power, tinker_var_power(a, 2.5));
EXPRESSION(x_power0, tinker_var_power(a, 0));
EXPRESSION(x_clamp, tinker_var_clamp(a, 0.5, 1.2));
EXPRESSION(x_nan, tinker_var_nan_to_num(a, 0, 0, 0));
EXPRESSION(x_where, tinker_var_where(tinker_var_gt(a, b), tinker_var_square(a), tinker_var_exp(b)));
EXPRESSION(x_fill, tinker_var_masked_fill(a, tinker_var_lt(a, b), 7));
EXPRESSION(x_sum0, tinker_var_sum(a, 0, 0));
EXPRESSION(x_sum1, tinker_var_sum(a, -1, 1));
EXPRESSION(x_sum, tinker_var_sum(a, TINKER_ALL, 1));
EXPRESSION(x_mean, tinker_var_mean(a, -1, 0));
EXPRESSION(x_max, tinker_var_max(a, -1, 0));
EXPRESSION(x_max_all, tinker_var_max(a, TINKER_ALL, 0));
EXPRESSION(x_min, tinker_var_min(a, 0, 1));
EXPRESSION(x_variance, tinker_var_variance(a, TINKER_ALL, 0, 1));
EXPRESSION(x_std, tinker_var_std(a, TINKER_ALL, 0, 0));
EXPRESSION(x_norm, tinker_var_norm(a, -1, 0));
EXPRESSION(x_lse, tinker_var_logsumexp(a, -1, 0));
EXPRESSION(x_lse0, tinker_var_logsumexp(a, 0, 1));
EXPRESSION(x_lse_all, tinker_var_logsumexp(a, TINKER_ALL, 0));
EXPRESSION(x_softmax, tinker_var_softmax(a, -1));
EXPRESSION(x_softmax0, tinker_var_softmax(a, 0));
EXPRESSION(x_log_softmax, tinker_var_log_softmax(a, -1));
EXPRESSION(x_cumsum, tinker_var_cumsum(a, -1));
EXPRESSION(x_cumsum0, tinker_var_cumsum(a, 0));
EXPRESSION(x_dot, tinker_var_dot(tinker_var_exp(a), a));
EXPRESSION(x_gram, tinker_var_matmul(a, tinker_var_transpose(a)));
EXPRESSION(x_reshape, tinker_var_reshape(tinker_var_exp(a), (int64_t[]){ 3, 2 }, 2));
EXPRESSION(x_squeeze, tinker_var_squeeze(tinker_var_unsqueeze(tinker_var_exp(a), 1), 1));
EXPRESSION(x_expand, tinker_var_expand(tinker_var_unsqueeze(tinker_var_exp(a), 0),
                                       (int64_t[]){ 4, 2, 3 }, 3));
EXPRESSION(x_permute,
           tinker_var_permute(tinker_var_unsqueeze(tinker_var_exp(a), 1), (int[]){ 2, 0, 1 }, 3));
EXPRESSION(x_slice, tinker_var_slice(tinker_var_exp(a), -1, 0, 2, 2));
EXPRESSION(x_select, tinker_var_select(tinker_var_exp(a), 0, 1));
EXPRESSION(x_concat, tinker_var_concat((tinker_var *[]){ tinker_var_exp(a), a }, 2, -1));
EXPRESSION(x_stack, tinker_var_stack((tinker_var *[]){ a, tinker_var_exp(a) }, 2, 0));
EXPRESSION(x_index, tinker_var_index_select(tinker_var_exp(a), 1, (int64_t[]){ 2, 0, 2, 2 }, 4));
EXPRESSION(x_gather, tinker_var_gather(tinker_var_exp(a), (int64_t[]){ 2, 0, 1, 1 }, 2));
EXPRESSION(x_pad, tinker_var_pad(tinker_var_exp(a), 0, 1, 2));
EXPRESSION(x_flip, tinker_var_flip(tinker_var_exp(a), 1));
EXPRESSION(x_roll, tinker_var_roll(tinker_var_exp(a), 1, -4));
EXPRESSION(x_masked_sum, tinker_var_masked_sum(tinker_var_exp(a), tinker_var_gt(a, b)));
EXPRESSION(x_masked_mean, tinker_var_masked_mean(tinker_var_exp(a), tinker_var_gt(a, b)));
EXPRESSION(x_mse, tinker_var_mse(a, b));
EXPRESSION(x_huber, tinker_var_huber(a, b, 0.3));
EXPRESSION(x_cosine, tinker_var_cosine(a, tinker_var_flip(tinker_var_exp(a), 1)));
EXPRESSION(x_kl, tinker_var_kl_rows(a, b));
EXPRESSION(x_ratio, tinker_var_ratio(a, b));

static const struct {
    const char *name;
    build_fn *build;
} cases[] = {
    { "neg", u_neg },
    { "abs", u_abs },
    { "square", u_square },
    { "sqrt", u_sqrt },
    { "rsqrt", u_rsqrt },
    { "exp", u_exp },
    { "expm1", u_expm1 },
    { "log", u_log },
    { "log1p", u_log1p },
    { "sigmoid", u_sigmoid },
    { "logsigmoid", u_logsigmoid },
    { "softplus", u_softplus },
    { "tanh", u_tanh },
    { "relu", u_relu },
    { "flatten", u_flatten },
    { "whiten", u_whiten },
    { "entropy_rows", u_entropy_rows },
    { "add", tinker_var_add },
    { "sub", tinker_var_sub },
    { "mul", tinker_var_mul },
    { "div", tinker_var_div },
    { "pow", tinker_var_pow },
    { "minimum", tinker_var_minimum },
    { "maximum", tinker_var_maximum },
    { "shift", x_shift },
    { "scale", x_scale },
    { "power", x_power },
    { "power 0", x_power0 },
    { "clamp", x_clamp },
    { "nan_to_num", x_nan },
    { "where", x_where },
    { "masked_fill", x_fill },
    { "sum axis 0", x_sum0 },
    { "sum axis -1", x_sum1 },
    { "sum", x_sum },
    { "mean", x_mean },
    { "max", x_max },
    { "max all", x_max_all },
    { "min", x_min },
    { "variance", x_variance },
    { "std", x_std },
    { "norm", x_norm },
    { "logsumexp", x_lse },
    { "logsumexp axis 0", x_lse0 },
    { "logsumexp all", x_lse_all },
    { "softmax", x_softmax },
    { "softmax axis 0", x_softmax0 },
    { "log_softmax", x_log_softmax },
    { "cumsum", x_cumsum },
    { "cumsum axis 0", x_cumsum0 },
    { "dot", x_dot },
    { "matmul", x_gram },
    { "reshape", x_reshape },
    { "squeeze", x_squeeze },
    { "expand", x_expand },
    { "permute", x_permute },
    { "slice", x_slice },
    { "select", x_select },
    { "concat", x_concat },
    { "stack", x_stack },
    { "index_select", x_index },
    { "gather", x_gather },
    { "pad", x_pad },
    { "flip", x_flip },
    { "roll", x_roll },
    { "masked_sum", x_masked_sum },
    { "masked_mean", x_masked_mean },
    { "mse", x_mse },
    { "huber", x_huber },
    { "cosine", x_cosine },
    { "kl_rows", x_kl },
    { "ratio", x_ratio },
};

/* Elements count differently, so that a permuted gradient is seen. */
static tinker_var *uneven_sum(tinker_tape *t, tinker_var *v)
{
    size_t n = tinker_var_size(v);
    double *w = malloc((n + 1) * sizeof(*w));
    for (size_t i = 0; i < n; i++)
        w[i] = 0.7 + 0.37 * (double)i - 0.05 * (double)(i * i);
    tinker_var *c = tinker_tape_const(t, w, n, NULL, 0);
    free(w);
    return tinker_var_dot(tinker_var_flatten(v), c);
}

static tinker_var *first_order_loss(tinker_tape *t, const tinker_datum *d, tinker_var *const *x,
                                    size_t n, void *state)
{
    (void)d, (void)n;
    return uneven_sum(t, (*(build_fn *const *)state)(x[0], x[1]));
}

/* The gradient itself, differentiated again by both operands. */
static tinker_var *second_order_loss(tinker_tape *t, const tinker_datum *d, tinker_var *const *x,
                                     size_t n, void *state)
{
    tinker_var *y = first_order_loss(t, d, x, n, state);
    tinker_var *ga = tinker_var_gradient(y, x[0]);
    tinker_var *s = uneven_sum(t, tinker_var_square(ga));
    tinker_var *gb = tinker_var_gradient(y, x[1]);
    return tinker_var_add(s, uneven_sum(t, tinker_var_mul(gb, gb)));
}

static const double a6[6] = { 0.31, 1.7, 0.9, 1.13, 0.62, 2.2 };
static const double b6[6] = { 0.8, 1.1, 1.45, 0.4, 2.1, 1.3 };

static const double q6[6] = { 1.9, 0.71, 0.33, 1.62, 0.95, 1.21 };
static const double c2[2] = { 1.23, 0.57 };

static void check_all(tinker_loss_fn *fn, tinker_tensor x[2], double tolerance)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        build_fn *build = cases[i].build;
        tinker_error err = { 0 };
        tinker_status s =
            tinker_loss_gradcheck(fn, &build, NULL, x, 2, 1e-5, tolerance, NULL, &err);
        if (s != TINKER_OK)
            TAP_FAIL("%s: %s", cases[i].name, err.message);
    }
}

static const int64_t two_three[2] = { 2, 3 };

static void test_gradients(void)
{
    tinker_tensor x[2] = { { TINKER_FLOAT64, a6, 6, two_three, 2, NULL, NULL },
                           { TINKER_FLOAT64, b6, 6, two_three, 2, NULL, NULL } };
    check_all(first_order_loss, x, 1e-7);
}

static void test_gradients_of_gradients(void)
{
    tinker_tensor x[2] = { { TINKER_FLOAT64, a6, 6, two_three, 2, NULL, NULL },
                           { TINKER_FLOAT64, b6, 6, two_three, 2, NULL, NULL } };
    check_all(second_order_loss, x, 1e-6);
}

static void test_broadcast_gradients(void)
{
    const int64_t column[2] = { 2, 1 }, row[1] = { 3 }, cube[3] = { 2, 1, 3 }, one[2] = { 1, 1 };
    tinker_tensor m = { TINKER_FLOAT64, a6, 6, two_three, 2, NULL, NULL };
    tinker_tensor c = { TINKER_FLOAT64, c2, 2, column, 2, NULL, NULL };
    tinker_tensor r = { TINKER_FLOAT64, b6, 3, row, 1, NULL, NULL };
    tinker_tensor q = { TINKER_FLOAT64, q6, 6, cube, 3, NULL, NULL };
    tinker_tensor u = { TINKER_FLOAT64, b6, 1, one, 2, NULL, NULL };
    const tinker_tensor pairs[][2] = { { m, c }, { m, r }, { r, m }, { c, r },
                                       { m, q }, { q, r }, { u, m }, { c, u } };
    build_fn *const ops[] = { tinker_var_add, tinker_var_sub,     tinker_var_mul,
                              tinker_var_div, tinker_var_pow,     tinker_var_minimum,
                              x_where,        tinker_var_maximum, x_huber };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
        for (size_t k = 0; k < sizeof(ops) / sizeof(*ops); k++) {
            build_fn *build = ops[k];
            tinker_error err = { 0 };
            if (tinker_loss_gradcheck(first_order_loss, &build, NULL, pairs[i], 2, 1e-5, 1e-7, NULL,
                                      &err) ||
                tinker_loss_gradcheck(second_order_loss, &build, NULL, pairs[i], 2, 1e-5, 1e-6,
                                      NULL, &err))
                TAP_FAIL("pair %zu, operation %zu: %s", i, k, err.message);
        }
}

/* ---- values ------------------------------------------------------------------------------ */

static void test_values(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *m = tinker_tape_const(t, (double[]){ 1, 2, 3, 4, 5, 6 }, 6, two_three, 2);
    tinker_var *p = tinker_var_transpose(m);
    CHECK_NEAR(tinker_var_data(p)[1], 4, 0);
    CHECK_INT(tinker_var_dim(p, 0), 3);
    CHECK_INT(tinker_var_dim(p, -1), 2);
    tinker_var *g = tinker_var_matmul(m, p);
    CHECK_NEAR(tinker_var_data(g)[1], 32, 0);
    CHECK_NEAR(tinker_var_data(tinker_var_roll(m, 1, 1))[0], 3, 0);
    CHECK_NEAR(tinker_var_data(tinker_var_cumsum(m, 0))[5], 9, 0);
    CHECK_NEAR(tinker_var_data(tinker_var_pad(m, 1, 1, 0))[4], 0, 0);
    CHECK_NEAR(tinker_var_data(tinker_var_gather(m, (int64_t[]){ 2, 0 }, 1))[1], 4, 0);
    CHECK_NEAR(tinker_var_item(tinker_var_std(m, TINKER_ALL, 0, 1)), 1.8708286933869707, 1e-15);
    CHECK_NEAR(
        tinker_var_item(tinker_var_sum(tinker_var_round(tinker_var_scale(m, 0.5)), TINKER_ALL, 0)),
        0 + 1 + 2 + 2 + 2 + 3, 0);
    CHECK_INT(tinker_var_argmax(tinker_var_neg(m)), 0);
    CHECK_INT(tinker_var_argmin(tinker_var_neg(m)), 5);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_OK);
    tinker_tape_free(t);
}

/* Gradients agree with whatever is computed: here is what should be. */
static void test_values_of_functions(void)
{
    static const struct {
        build_fn *build;
        double want[3]; /* of 0.25, 1 and 2.5 */
    } functions[] = {
        { u_abs, { 0.25, 1.0, 2.5 } },
        { u_sqrt, { 0.5, 1.0, 1.5811388300841898 } },
        { u_rsqrt, { 2.0, 1.0, 0.6324555320336759 } },
        { u_log1p, { 0.22314355131420976, 0.6931471805599453, 1.252762968495368 } },
        { u_tanh, { 0.24491866240370913, 0.7615941559557649, 0.9866142981514303 } },
        { u_exp, { 1.2840254166877414, 2.718281828459045, 12.182493960703473 } },
        { u_expm1, { 0.2840254166877415, 1.718281828459045, 11.182493960703473 } },
        { u_log, { -1.3862943611198906, 0.0, 0.9162907318741551 } },
        { u_sigmoid, { 0.5621765008857981, 0.7310585786300049, 0.9241418199787566 } },
        { u_logsigmoid, { -0.5759394198788436, -0.31326168751822286, -0.07888973429254963 } },
        { u_softplus, { 0.8259394198788436, 1.3132616875182228, 2.5788897342925496 } },
        { u_square, { 0.0625, 1.0, 6.25 } },
        { u_neg, { -0.25, -1.0, -2.5 } },
        { u_relu, { 0.25, 1.0, 2.5 } },
    };
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *x = tinker_tape_const(t, (double[]){ 0.25, 1, 2.5 }, 3, NULL, 0);
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
        for (int k = 0; k < 3; k++)
            CHECK_NEAR(tinker_var_data(functions[i].build(x, NULL))[k], functions[i].want[k],
                       1e-15);
    tinker_tape_free(t);
}

/* Where a function has a corner: below zero, at zero, and what is no number. */
static void test_values_below_zero(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *x = tinker_tape_leaf(t, (double[]){ -1.5, 0, 0.5, INFINITY, NAN }, 5, NULL, 0);
    static const struct {
        tinker_var *(*of)(tinker_var *a);
        double want[3];
    } functions[] = {
        { tinker_var_abs, { 1.5, 0, 0.5 } },  { tinker_var_relu, { 0, 0, 0.5 } },
        { tinker_var_sign, { -1, 0, 1 } },    { tinker_var_floor, { -2, 0, 0 } },
        { tinker_var_isfinite, { 1, 1, 1 } }, { tinker_var_not, { 0, 1, 0 } },
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++)
        for (int k = 0; k < 3; k++)
            CHECK_NEAR(tinker_var_data(functions[i].of(x))[k], functions[i].want[k], 0);
    CHECK_NEAR(tinker_var_data(tinker_var_isfinite(x))[3], 0, 0);
    CHECK_NEAR(tinker_var_data(tinker_var_isfinite(x))[4], 0, 0);
    tinker_var *zero = tinker_tape_leaf(t, (double[]){ 0 }, 1, NULL, 0);
    tinker_var *flat[] = { tinker_var_abs(zero), tinker_var_sqrt(zero) };
    for (int i = 0; i < 2; i++) {
        CHECK_INT(tinker_tape_backward(t, flat[i], NULL), TINKER_OK);
        CHECK_NEAR(tinker_var_grad(zero)[0], 0, 0);
    }
    tinker_tape_free(t);
}

static void test_comparisons(void)
{
    static const struct {
        build_fn *build;
        double want[4];
    } operations[] = {
        { tinker_var_gt, { 0, 0, 1, 0 } },  { tinker_var_ge, { 1, 0, 1, 1 } },
        { tinker_var_lt, { 0, 1, 0, 0 } },  { tinker_var_le, { 1, 1, 0, 1 } },
        { tinker_var_eq, { 1, 0, 0, 1 } },  { tinker_var_ne, { 0, 1, 1, 0 } },
        { tinker_var_and, { 0, 0, 0, 1 } }, { tinker_var_or, { 0, 1, 1, 1 } },
    };
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_const(t, (double[]){ 0, 0, 2, 2 }, 4, NULL, 0);
    tinker_var *b = tinker_tape_const(t, (double[]){ 0, 2, 0, 2 }, 4, NULL, 0);
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        for (int k = 0; k < 4; k++)
            CHECK_NEAR(tinker_var_data(operations[i].build(a, b))[k], operations[i].want[k], 0);
    tinker_tape_free(t);
}

static void test_values_of_rows(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *full = tinker_tape_full(t, 2.5, two_three, 2);
    CHECK_INT(tinker_var_ndim(full), 2);
    CHECK_INT(tinker_var_ndim(tinker_var_unsqueeze(full, 0)), 3);
    CHECK_INT(tinker_var_ndim(tinker_tape_scalar(t, 1)), 0);
    CHECK_INT(tinker_var_size(full), 6);
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(tinker_var_data(full)[i], 2.5, 0);
    const double half = log(0.5);
    tinker_var *rows =
        tinker_tape_const(t, (double[]){ half, half, 0, -800 }, 4, (int64_t[]){ 2, 2 }, 2);
    tinker_var *entropy = tinker_var_entropy_rows(rows);
    CHECK_INT(tinker_var_size(entropy), 2);
    CHECK_NEAR(tinker_var_data(entropy)[0], -half, 1e-15); /* ln 2 */
    CHECK_NEAR(tinker_var_data(entropy)[1], 0, 0);         /* certain */
    tinker_var *w = tinker_var_whiten(tinker_tape_const(t, (double[]){ 1, 2, 3, 6 }, 4, NULL, 0));
    CHECK_NEAR(tinker_var_item(tinker_var_mean(w, TINKER_ALL, 0)), 0, 1e-15);
    CHECK_NEAR(tinker_var_data(w)[1] / tinker_var_data(w)[0], 0.5, 1e-12);
    CHECK(tinker_var_data(w)[0] < 0);
    CHECK_NEAR(tinker_var_item(tinker_var_std(w, TINKER_ALL, 0, 0)), 1, 1e-7);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_OK);
    tinker_tape_free(t);
}

static void test_stability(void)
{
    const double inf = INFINITY;
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *x = tinker_tape_leaf(t, (double[]){ 1000, 1001, -1000 }, 3, NULL, 0);
    CHECK_NEAR(tinker_var_item(tinker_var_logsumexp(x, 0, 0)), 1001.3132616875182, 1e-9);
    CHECK_NEAR(tinker_var_data(tinker_var_logsigmoid(x))[2], -1000, 1e-12);
    CHECK_NEAR(tinker_var_data(tinker_var_sigmoid(x))[2], 0, 1e-12);
    CHECK_NEAR(tinker_var_data(tinker_var_softplus(x))[0], 1000, 1e-12);
    /* a row of -inf, and slots of -inf: no NaN, no gradient */
    tinker_var *rows =
        tinker_tape_leaf(t, (double[]){ -inf, -inf, -1, -inf }, 4, (int64_t[]){ 2, 2 }, 2);
    tinker_var *l = tinker_var_nan_to_num(tinker_var_log_softmax(rows, -1), 0, 0, 0);
    tinker_var *y = tinker_var_sum(tinker_var_exp(l), TINKER_ALL, 0);
    CHECK_NEAR(tinker_var_item(y), 4, 1e-15);
    CHECK_INT(tinker_tape_backward(t, y, NULL), TINKER_OK);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(tinker_var_grad(rows)[i], 0, 0);
    /* what where() does not take leaves no NaN */
    tinker_var *z = tinker_tape_leaf(t, (double[]){ 0, 4 }, 2, NULL, 0);
    tinker_var *ok = tinker_var_gt(z, tinker_tape_scalar(t, 0));
    tinker_var *safe = tinker_var_where(ok, z, tinker_tape_scalar(t, 1));
    tinker_var *nan = tinker_tape_const(t, (double[]){ NAN, 1 }, 2, NULL, 0);
    tinker_var *w =
        tinker_var_where(ok, tinker_var_mul(tinker_var_log(safe), nan), tinker_tape_scalar(t, 0));
    CHECK_INT(tinker_tape_backward(t, tinker_var_sum(w, TINKER_ALL, 0), NULL), TINKER_OK);
    CHECK_NEAR(tinker_var_grad(z)[1], 0.25, 0);
    CHECK_NEAR(tinker_var_grad(z)[0], 0, 0);
    tinker_var *n = tinker_var_norm(tinker_var_scale(z, 0), TINKER_ALL, 0);
    CHECK_INT(tinker_tape_backward(t, n, NULL), TINKER_OK);
    CHECK_NEAR(tinker_var_grad(z)[1], 0, 0);
    tinker_tape_free(t);
}

static void test_ties_and_ends(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_leaf(t, (double[]){ 1, 5, 5 }, 3, NULL, 0);
    tinker_var *b = tinker_tape_leaf(t, (double[]){ 1, 2, 7 }, 3, NULL, 0);
    tinker_tape_backward(t, tinker_var_sum(tinker_var_minimum(a, b), TINKER_ALL, 0), NULL);
    CHECK_NEAR(tinker_var_grad(a)[0], 0.5, 0);
    CHECK_NEAR(tinker_var_grad(b)[0], 0.5, 0);
    CHECK_NEAR(tinker_var_grad(b)[1], 1, 0);
    CHECK_NEAR(tinker_var_grad(a)[2], 1, 0);
    tinker_tape_backward(t, tinker_var_nll(a, tinker_var_detach(b)), NULL);
    CHECK_NEAR(tinker_var_grad(a)[2], -7, 0);
    CHECK(tinker_var_grad(b) == NULL); /* detached */
    tinker_tape_backward(t, tinker_var_max(a, TINKER_ALL, 0), NULL);
    CHECK_NEAR(tinker_var_grad(a)[1], 1, 0);
    CHECK_NEAR(tinker_var_grad(a)[2], 0, 0);
    CHECK(tinker_var_grad(b) == NULL); /* unreached */
    /* bounds pass, as torch */
    tinker_var *c = tinker_var_clamp(a, 1, 4);
    tinker_tape_backward(t, tinker_var_sum(c, TINKER_ALL, 0), NULL);
    CHECK_NEAR(tinker_var_grad(a)[0], 1, 0);
    CHECK_NEAR(tinker_var_grad(a)[1], 0, 0);
    tinker_tape_free(t);
}

/* The mask may be the larger one: each of its elements counts once. */
static void test_masked_mean_of_a_larger_mask(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_leaf(t, (double[]){ 1, 2, 6 }, 3, NULL, 0);
    tinker_var *mask =
        tinker_tape_const(t, (double[]){ 0, 1, 0, 0, 1, 1 }, 6, (int64_t[]){ 2, 3 }, 2);
    tinker_var *mean = tinker_var_masked_mean(a, mask);
    CHECK_NEAR(tinker_var_item(mean), 10.0 / 3, 1e-12);
    CHECK_INT(tinker_tape_backward(t, mean, NULL), TINKER_OK);
    CHECK_NEAR(tinker_var_grad(a)[1], 2.0 / 3, 1e-12);
    tinker_tape_free(t);
}

/* A loss may look at one token after the other: each costs its own gradient, not that of all. */
static void test_one_element_at_a_time(void)
{
    enum { T = 2000 };
    double v[T];
    for (int i = 0; i < T; i++)
        v[i] = -0.001 * i;
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_leaf(t, v, T, NULL, 0);
    tinker_var *y = tinker_var_scale(tinker_var_sum(a, TINKER_ALL, 0), 0.5);
    for (size_t i = 0; i < T; i++)
        y = tinker_var_add(y, tinker_var_square(tinker_var_select(a, 0, i)));
    size_t before = t->arena.used;
    CHECK_INT(tinker_tape_backward(t, y, NULL), TINKER_OK);
    CHECK(t->arena.used - before < 4 << 20);
    for (int i = 0; i < T; i++)
        CHECK_NEAR(tinker_var_grad(a)[i], 0.5 + 2 * v[i], 1e-15);
    tinker_tape_free(t);
}

/* A gradient that several operations are given is added to for none of the others. */
static void test_shared_gradients(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_leaf(t, (double[]){ 1, 2 }, 2, NULL, 0);
    tinker_var *b = tinker_tape_leaf(t, (double[]){ 3, 4 }, 2, NULL, 0);
    tinker_var *both = tinker_var_add(a, b); /* passes the same gradient on to both */
    tinker_var *y =
        tinker_var_sum(tinker_var_add(both, tinker_var_slice(b, 0, 1, 1, 1)), TINKER_ALL, 0);
    y = tinker_var_add(y, tinker_var_sum(tinker_var_scale(a, 10), TINKER_ALL, 0));
    y = tinker_var_add(y, tinker_var_select(a, 0, 0));
    for (int again = 0; again < 2; again++) {
        CHECK_INT(tinker_tape_backward(t, y, NULL), TINKER_OK);
        CHECK_NEAR(tinker_var_grad(a)[0], 12, 0);
        CHECK_NEAR(tinker_var_grad(a)[1], 11, 0);
        CHECK_NEAR(tinker_var_grad(b)[0], 1, 0);
        CHECK_NEAR(tinker_var_grad(b)[1], 3, 0);
        CHECK_NEAR(tinker_var_grad(both)[0], 1, 0);
    }
    tinker_tape_free(t);
}

static void test_empty(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    tinker_var *e = tinker_tape_leaf(t, NULL, 0, NULL, 0);
    tinker_var *one = tinker_tape_leaf(t, (double[]){ 3 }, 1, NULL, 0);
    tinker_var *y = tinker_var_sum(tinker_var_exp(e), TINKER_ALL, 0);
    CHECK_NEAR(tinker_var_item(y), 0, 0);
    y = tinker_var_add(
        y, tinker_var_sum(tinker_var_concat((tinker_var *[]){ e, one }, 2, 0), TINKER_ALL, 0));
    CHECK_INT(tinker_tape_backward(t, y, NULL), TINKER_OK);
    CHECK(tinker_var_grad(e) != NULL);
    CHECK_NEAR(tinker_var_grad(one)[0], 1, 0);
    CHECK_NEAR(tinker_var_item(tinker_var_masked_mean(one, tinker_tape_scalar(t, 0))), 0, 0);
    tinker_error err;
    tinker_var_mean(e, TINKER_ALL, 0);
    CHECK_INT(tinker_tape_status(t, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "mean: of no elements");
    tinker_tape_free(t);
}

static void test_errors_stick(void)
{
    tinker_error err;
    tinker_tape *t = tinker_tape_new(NULL), *other = tinker_tape_new(NULL);
    tinker_var *a = tinker_tape_leaf(t, a6, 6, two_three, 2);
    tinker_var *b = tinker_tape_leaf(t, b6, 4, NULL, 0);
    tinker_var *bad = tinker_var_add(a, b);
    CHECK(isnan(tinker_var_item(bad)));
    tinker_var_sum(tinker_var_matmul(bad, a), 3, 0);
    CHECK_INT(tinker_tape_backward(t, bad, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "add: shapes [2, 3] and [4] do not fit");
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    a = tinker_tape_leaf(t, a6, 6, two_three, 2);
    CHECK_INT(tinker_tape_backward(t, a, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "[2, 3]") != NULL);
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    a = tinker_tape_leaf(t, a6, 6, two_three, 2);
    tinker_var_mul(a, tinker_tape_scalar(other, 1));
    CHECK_INT(tinker_tape_status(t, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "different tapes") != NULL);
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    tinker_var_add(tinker_tape_scalar(t, 1), NULL);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_EINVAL);
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    tinker_var_slice(tinker_tape_const(t, a6, 6, NULL, 0), 0, 4, 2, 2);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_EINVAL);
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    tinker_tape_const(t, a6, 6, (int64_t[]){ INT64_MAX, INT64_MAX }, 2);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_EINVAL);
    tinker_tape_free(t);
    t = tinker_tape_new(NULL);
    CHECK(tinker_tape_fail(t, "my reason") == NULL);
    CHECK_INT(tinker_tape_status(t, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "my reason");
    tinker_tape_free(t);
    tinker_tape_free(other);
}

/* ---- tensors ----------------------------------------------------------------------------- */

static void test_tensors(void)
{
    tinker_tape *t = tinker_tape_new(NULL);
    const float f[2] = { 1.5f, -2 };
    const int32_t i32[2] = { -7, 3 };
    const uint64_t u64[2] = { 1, 1u << 31 };
    const uint16_t bf[2] = { 0x3fc0, 0xc000 };
    tinker_tensor x = { .dtype = TINKER_FLOAT32, .data = f, .n = 2 };
    CHECK_NEAR(tinker_var_data(tinker_tape_tensor(t, &x))[0], 1.5, 0);
    x.dtype = TINKER_INT32, x.data = i32;
    CHECK_NEAR(tinker_var_data(tinker_tape_tensor(t, &x))[0], -7, 0);
    x.dtype = TINKER_UINT64, x.data = u64;
    CHECK_NEAR(tinker_var_data(tinker_tape_tensor(t, &x))[1], 2147483648.0, 0);
    x.dtype = TINKER_BFLOAT16, x.data = bf;
    CHECK_NEAR(tinker_var_data(tinker_tape_tensor(t, &x))[1], -2, 0);
    const int64_t crow[3] = { 0, 1, 2 }, col[2] = { 2, 0 };
    tinker_tensor s = { TINKER_FLOAT32, f, 2, two_three, 2, crow, col };
    tinker_var *m = tinker_tape_tensor(t, &s);
    CHECK_INT(tinker_var_size(m), 6);
    CHECK_NEAR(tinker_var_data(m)[2], 1.5, 0);
    CHECK_NEAR(tinker_var_data(m)[3], -2, 0);
    tinker_named_tensor in = { "weights", x };
    tinker_datum d = { .inputs = &in, .n_inputs = 1 };
    CHECK_NEAR(tinker_var_data(tinker_tape_input(t, &d, "weights"))[0], 1.5, 0);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_OK);
    const int64_t outside[2] = { 2, 3 };
    s.col = outside;
    tinker_tape_tensor(t, &s);
    CHECK_INT(tinker_tape_status(t, NULL), TINKER_EINVAL);
    tinker_tape_free(t);
}

/* ---- the checker itself, R-109 ----------------------------------------------------------- */

static tinker_var *quadratic_loss(tinker_tape *t, const tinker_datum *d, tinker_var *const *x,
                                  size_t n, void *wrong)
{
    (void)t, (void)d, (void)n;
    tinker_var *a = wrong ? tinker_var_detach(x[0]) : x[0]; /* half the gradient is lost */
    return tinker_var_dot(a, x[0]);
}

static tinker_var *sum_of_roots(tinker_tape *t, const tinker_datum *data, tinker_var *const *x,
                                size_t n, void *state)
{
    (void)t, (void)data, (void)n, (void)state;
    return tinker_var_sum(tinker_var_sqrt(x[0]), TINKER_ALL, 0);
}

/* What is no number is the worst of all and stays so. */
static void test_checker_keeps_nan(void)
{
    const double v[3] = { 1, 0, 2 }; /* the root of 0 - eps is NaN */
    tinker_tensor x = { .dtype = TINKER_FLOAT64, .data = v, .n = 3 };
    tinker_gradcheck report;
    tinker_error err;
    CHECK_INT(tinker_loss_gradcheck(sum_of_roots, NULL, NULL, &x, 1, 1e-5, 1, &report, &err),
              TINKER_EINVAL);
    CHECK_INT(report.index, 1);
    CHECK(isnan(report.worst));
}

static void test_checker(void)
{
    tinker_tensor x = { .dtype = TINKER_FLOAT64, .data = a6, .n = 6 };
    tinker_gradcheck report;
    tinker_error err;
    CHECK_INT(tinker_loss_gradcheck(quadratic_loss, NULL, NULL, &x, 1, 1e-5, 1e-8, &report, &err),
              TINKER_OK);
    CHECK(report.worst < 1e-8);
    int wrong = 1;
    CHECK_INT(tinker_loss_gradcheck(quadratic_loss, &wrong, NULL, &x, 1, 1e-5, 1e-3, &report, &err),
              TINKER_EINVAL);
    CHECK_NEAR(report.numeric, 2 * report.automatic, 1e-6);
}

int main(void)
{
    RUN(test_gradients);
    RUN(test_gradients_of_gradients);
    RUN(test_broadcast_gradients);
    RUN(test_values);
    RUN(test_values_of_functions);
    RUN(test_values_below_zero);
    RUN(test_comparisons);
    RUN(test_values_of_rows);
    RUN(test_stability);
    RUN(test_ties_and_ends);
    RUN(test_masked_mean_of_a_larger_mask);
    RUN(test_one_element_at_a_time);
    RUN(test_shared_gradients);
    RUN(test_empty);
    RUN(test_errors_stick);
    RUN(test_tensors);
    RUN(test_checker);
    RUN(test_checker_keeps_nan);
    return tap_done();
}
