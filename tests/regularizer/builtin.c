/* every built-in term with every option: its value as the formula says, written down
 * here a second time with plain loops, and its gradient against central differences. */
#include <stdbool.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>
#include "support/tap.h"

enum { ROWS = 3, COLS = 4, N = ROWS * COLS };

static const int64_t matrix[2] = { ROWS, COLS };
static const double x[N] = { -0.4, -1.9, -2.6, -0.9, -3.1, -0.2, -1.1, -2.2, -0.7, -1.3, -0.5, -4 };
static const double y[N] = { -0.9, -1.2, -2.1, -1.0, -2.0, -0.4, -1.6, -1.7, -1.1, -0.8, -0.6, -3 };
static tinker_tensor xt = { TINKER_FLOAT64, x, N, matrix, 2, NULL, NULL };
static tinker_tensor yt = { TINKER_FLOAT64, y, N, matrix, 2, NULL, NULL };

static tinker_loss_report *last;

static double find_metric(const char *name)
{
    for (size_t i = 0; last && i < last->base.n_custom; i++)
        if (strcmp(last->base.custom[i].name, name) == 0)
            return last->base.custom[i].value;
    return NAN;
}

static const char *find_note(const char *name)
{
    for (size_t i = 0; last && i < last->base.n_custom; i++)
        if (strcmp(last->base.custom[i].name, name) == 0 && last->base.custom[i].text)
            return last->base.custom[i].text;
    return "none of that name";
}

/* Evaluate fn as the loss, compare its value, check its gradient numerically. */
static void check_on(const char *what, tinker_loss_fn *fn, void *state, const tinker_datum *data,
                     const tinker_tensor *lp, size_t n, double want)
{
    tinker_error err = { 0 };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.allow_unused = 1;
    tinker_loss_report_free(last);
    last = tinker_loss_evaluate(fn, state, data, lp, n, &o, &err);
    if (!last) {
        TAP_FAIL("%s: %s", what, err.message);
        return;
    }
    if (!(fabs(last->loss_total - want) <= 1e-12 * fmax(1, fabs(want))))
        TAP_FAIL("%s: value %.12g, want %.12g", what, last->loss_total, want);
    if (tinker_loss_gradcheck(fn, state, data, lp, n, 1e-5, 1e-7, NULL, &err) != TINKER_OK)
        TAP_FAIL("%s: %s", what, err.message);
}

static void check_term(const char *what, tinker_loss_fn *fn, void *state, double want)
{
    check_on(what, fn, state, NULL, &xt, 1, want);
}

static void check_refused(const char *what, tinker_loss_fn *fn, void *state, const char *says)
{
    tinker_error err = { 0 };
    tinker_loss_report *r = tinker_loss_evaluate(fn, state, NULL, &xt, 1, NULL, &err);
    if (r || !strstr(err.message, says))
        TAP_FAIL("%s: want \"%s\", got \"%s\"", what, says, r ? "a value" : err.message);
    tinker_loss_report_free(r);
}

/* ---- size -------------------------------------------------------------------------------- */

static void expected_norms(double lambda, double center, double clip, double *l1, double *l2)
{
    *l1 = *l2 = 0;
    for (int i = 0; i < N; i++) {
        double v = fmin(fmax(x[i] - center, -clip), clip);
        *l1 += lambda * fabs(x[i]);
        *l2 += lambda * v * v;
    }
}

/* l1_sparsity, l2_weight_decay, elastic_net: reduction sum unless told, lambda 1. */
static void test_sizes(void)
{
    tinker_reg_norm_options o = TINKER_REG_NORM_OPTIONS_INIT;
    double l1, l2;
    expected_norms(1, 0, INFINITY, &l1, &l2);
    check_term("l1", tinker_reg_l1, NULL, l1);
    CHECK_NEAR(find_metric("l1_raw"), l1, 1e-12);
    CHECK_NEAR(find_metric("l1_mean"), l1 / N, 1e-12);
    check_term("l2", tinker_reg_l2, NULL, l2);
    CHECK_NEAR(find_metric("l2_raw"), l2, 1e-12);
    CHECK_NEAR(find_metric("l2_mean"), l2 / N, 1e-12);
    CHECK_STR(find_note("center"), "none");
    check_term("elastic net", tinker_reg_elastic_net, NULL, 0.5 * l1 + 0.5 * l2);
    CHECK_NEAR(find_metric("elastic_net"), 0.5 * l1 + 0.5 * l2, 1e-12);
    CHECK_NEAR(find_metric("l1_ratio"), 0.5, 0);
    o.lambda = 3;
    o.l1_ratio = 0.2;
    check_term("l1, lambda", tinker_reg_l1, &o, 3 * l1);
    CHECK_NEAR(find_metric("l1_mean"), l1 / N, 1e-12); /* without lambda */
    check_term("elastic net, ratio", tinker_reg_elastic_net, &o, 3 * (0.2 * l1 + 0.8 * l2));
    o.reduction = TINKER_REG_MEAN;
    check_term("elastic net, mean", tinker_reg_elastic_net, &o, 3 * (0.2 * l1 + 0.8 * l2) / N);
    check_term("l2, mean", tinker_reg_l2, &o, 3 * l2 / N);
    o.center = TINKER_CENTER_NUMBER; /* first the center, then the clip */
    o.center_number = -1.5;
    o.clip = 0.75;
    expected_norms(3, -1.5, 0.75, &l1, &l2);
    check_term("l2, center and clip", tinker_reg_l2, &o, l2 / N);
    CHECK_NEAR(find_metric("center"), -1.5, 0);
    o.clip = -1;
    check_refused("l2, clip", tinker_reg_l2, &o, "clip");
}

/* The target may be a named input of each datum; then there is a value and no gradient. */
static void test_targets(void)
{
    tinker_named_tensor in = { "advantages", yt };
    tinker_datum d = { .inputs = &in, .n_inputs = 1 };
    tinker_reg_norm_options o = TINKER_REG_NORM_OPTIONS_INIT;
    double sum = 0, probs = 0;
    for (int i = 0; i < N; i++) {
        sum += fabs(y[i]);
        probs += exp(2 * x[i]);
    }
    o.target = TINKER_TARGET_PROBS;
    check_term("l2 of probabilities", tinker_reg_l2, &o, probs);
    o.target = TINKER_TARGET_FIELD;
    o.field = "advantages";
    check_on("l1 of a field", tinker_reg_l1, &o, &d, &xt, 1, sum);
    CHECK_NEAR(((const double *)last->gradients[0].data)[0], 0, 0);
    check_refused("no data", tinker_reg_l1, &o, "field");
}

/* ---- rows -------------------------------------------------------------------------------- */

static double entropy_row(const double *l, double t)
{
    double sum = 0, h = 0;
    for (int k = 0; k < COLS; k++)
        sum += exp(l[k] / t);
    for (int k = 0; k < COLS; k++) {
        double v = t == 1 ? l[k] : l[k] / t - log(sum);
        h -= v > -50 ? exp(v) * v : 0;
    }
    return h;
}

static void test_entropy(void)
{
    tinker_reg_entropy_options o = TINKER_REG_ENTROPY_OPTIONS_INIT;
    double h = 0, warm = 0;
    for (int r = 0; r < ROWS; r++) {
        h += entropy_row(x + r * COLS, 1);
        warm += entropy_row(x + r * COLS, 1.7);
    }
    check_term("entropy", tinker_reg_entropy, NULL, h / ROWS);
    CHECK_STR(find_note("mode"), "minimize");
    CHECK_NEAR(find_metric("temperature"), 1, 0);
    o.reduction = TINKER_REG_SUM;
    check_term("entropy, sum", tinker_reg_entropy, &o, h);
    o.maximize = 1;
    check_term("entropy, maximize", tinker_reg_entropy, &o, -h);
    CHECK_NEAR(find_metric("entropy"), -h, 1e-12); /* signed */
    CHECK_STR(find_note("mode"), "maximize");
    o.temperature = 1.7;
    check_term("entropy, temperature", tinker_reg_entropy, &o, -warm);
    o.normalize = 1;
    check_term("entropy, normalized", tinker_reg_entropy, &o, -warm / log(COLS));
    o.temperature = 0;
    check_refused("temperature 0", tinker_reg_entropy, &o, "temperature");
    /* what is as good as impossible counts 0, and leaves no gradient */
    const double far[COLS] = { -0.5, -51, -INFINITY, -1 };
    tinker_tensor t = { .dtype = TINKER_FLOAT64, .data = far, .n = COLS };
    tinker_custom_options opts = TINKER_CUSTOM_OPTIONS_INIT;
    tinker_loss_report_free(last);
    last = tinker_loss_evaluate(tinker_reg_entropy, NULL, NULL, &t, 1, &opts, NULL);
    REQUIRE(last);
    CHECK_NEAR(last->loss_total, 0.5 * exp(-0.5) + exp(-1), 1e-15);
    CHECK_NEAR(((const double *)last->gradients[0].data)[1], 0, 0);
    CHECK_NEAR(((const double *)last->gradients[0].data)[2], 0, 0);
    const double one = -0.1;
    tinker_tensor single = { .dtype = TINKER_FLOAT64, .data = &one, .n = 1 };
    tinker_reg_entropy_options norm = TINKER_REG_ENTROPY_OPTIONS_INIT;
    norm.normalize = 1;
    CHECK(!tinker_loss_evaluate(tinker_reg_entropy, &norm, NULL, &single, 1, NULL, NULL));
}

/* TINKER_REG_NONE: one value for each row, for a loss that goes on with them. */
static tinker_var *third_row(tinker_tape *tape, const tinker_datum *data, tinker_var *const *lp,
                             size_t n, void *state)
{
    tinker_var *rows = tinker_reg_entropy(tape, data, lp, n, state);
    CHECK_INT(tinker_var_size(rows), ROWS);
    return tinker_var_select(rows, 0, 2);
}

static void test_unreduced(void)
{
    tinker_reg_entropy_options o = TINKER_REG_ENTROPY_OPTIONS_INIT;
    o.reduction = TINKER_REG_NONE;
    check_term("third row", third_row, &o, entropy_row(x + 2 * COLS, 1));
}

static double kl_row(const double *a, const double *b)
{
    double k = 0;
    for (int i = 0; i < COLS; i++)
        k += exp(a[i]) > 1e-10 ? exp(a[i]) * fmin(fmax(a[i] - b[i], -100), 100) : 0;
    return k;
}

static void test_kl(void)
{
    tinker_reg_reference_options o = TINKER_REG_REFERENCE_OPTIONS_INIT;
    double fwd = 0, rev = 0, most = -INFINITY, least = INFINITY;
    o.tensors = &yt;
    o.n_tensors = 1;
    for (int r = 0; r < ROWS; r++) {
        double k = kl_row(x + r * COLS, y + r * COLS);
        fwd += k;
        rev += kl_row(y + r * COLS, x + r * COLS);
        most = fmax(most, k);
        least = fmin(least, k);
    }
    check_term("kl", tinker_reg_kl, &o, fwd / ROWS);
    CHECK_NEAR(find_metric("kl_divergence"), fwd / ROWS, 1e-12);
    CHECK_NEAR(find_metric("kl_max"), most, 1e-12);
    CHECK_NEAR(find_metric("kl_min"), least, 1e-12);
    CHECK_STR(find_note("kl_direction"), "forward");
    CHECK_NEAR(find_metric("kl_symmetric"), 0, 0);
    o.reduction = TINKER_REG_SUM;
    check_term("kl, sum", tinker_reg_kl, &o, fwd);
    o.reverse = 1;
    check_term("kl, reverse", tinker_reg_kl, &o, rev);
    CHECK_STR(find_note("kl_direction"), "reverse");
    o.symmetric = 1; /* direction no longer matters */
    check_term("kl, symmetric", tinker_reg_kl, &o, (fwd + rev) / 2);
    CHECK_NEAR(find_metric("kl_symmetric"), 1, 0);
    tinker_reg_reference_options none = TINKER_REG_REFERENCE_OPTIONS_INIT;
    check_refused("kl without reference", tinker_reg_kl, &none, "no reference");
}

/* Beyond +-100 only exp(x) differentiates; below 1e-10 nothing does. */
static void test_kl_ends(void)
{
    const double a[COLS] = { -0.5, -1, -30, -0.2 }, b[COLS] = { -200, -1.5, -1, 150 };
    tinker_tensor at = { .dtype = TINKER_FLOAT64, .data = a, .n = COLS };
    tinker_tensor bt = { .dtype = TINKER_FLOAT64, .data = b, .n = COLS };
    tinker_reg_reference_options o = TINKER_REG_REFERENCE_OPTIONS_INIT;
    o.tensors = &bt;
    o.n_tensors = 1;
    double want = 100 * exp(-0.5) + 0.5 * exp(-1) - 100 * exp(-0.2);
    check_on("kl, clamped", tinker_reg_kl, &o, NULL, &at, 1, want);
    const double *g = last->gradients[0].data;
    CHECK_NEAR(g[0], 100 * exp(-0.5), 1e-12);
    CHECK_NEAR(g[1], 1.5 * exp(-1), 1e-12);
    CHECK_NEAR(g[2], 0, 0);
    CHECK_NEAR(g[3], -100 * exp(-0.2), 1e-12);
    o.reverse = 1; /* -exp(y) inside, 0 when clamped or masked */
    const double c[COLS] = { -0.6, -1.5, -31, 120 };
    bt.data = c;
    tinker_loss_report_free(last);
    last = tinker_loss_evaluate(tinker_reg_kl, &o, NULL, &at, 1, NULL, NULL);
    REQUIRE(last);
    g = last->gradients[0].data;
    CHECK_NEAR(g[0], -exp(-0.6), 1e-12);
    CHECK_NEAR(g[2], 0, 0);
    CHECK_NEAR(g[3], 0, 0);
}

static double expected_distance(tinker_reg_distance d)
{
    double sum = 0, xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < N; i++) {
        double e = x[i] - y[i];
        xy += x[i] * y[i];
        xx += x[i] * x[i];
        yy += y[i] * y[i];
        sum += d == TINKER_DISTANCE_MSE  ? e * e
               : d == TINKER_DISTANCE_L1 ? fabs(e)
                                         : 0.5 * (exp(x[i]) - exp(y[i])) * e;
    }
    return d == TINKER_DISTANCE_COSINE ? 1 - xy / sqrt(xx) / sqrt(yy)
           : d == TINKER_DISTANCE_KL   ? sum / ROWS
                                       : sum / N;
}

static void test_consistency(void)
{
    static const char *const name[] = { "mse", "l1", "cosine", "kl" };
    tinker_named_tensor in = { "original_logprobs", yt }; /* the default field */
    tinker_datum d = { .inputs = &in, .n_inputs = 1 };
    tinker_reg_reference_options o = TINKER_REG_REFERENCE_OPTIONS_INIT;
    for (int i = 0; i < 4; i++) {
        o.distance = (tinker_reg_distance)i;
        check_on(name[i], tinker_reg_consistency, &o, &d, &xt, 1, expected_distance(o.distance));
        CHECK_STR(find_note("consistency_metric"), name[i]);
        CHECK_NEAR(find_metric("consistency"), expected_distance(o.distance), 1e-12);
    }
    /* norms from 1e-8: nothing is divided by 0, and a vector of zeros has no direction */
    const double zero[2] = { 0, 0 }, far[2] = { 3, 4 };
    tinker_tensor z = { .dtype = TINKER_FLOAT64, .data = zero, .n = 2 };
    in.tensor = (tinker_tensor){ .dtype = TINKER_FLOAT64, .data = far, .n = 2 };
    o.distance = TINKER_DISTANCE_COSINE;
    tinker_loss_report_free(last);
    last = tinker_loss_evaluate(tinker_reg_consistency, &o, &d, &z, 1, NULL, NULL);
    REQUIRE(last);
    CHECK_NEAR(last->loss_total, 1, 0);
    CHECK_NEAR(((const double *)last->gradients[0].data)[0], -0.6e8, 1);
}

/* ---- matrices ---------------------------------------------------------------------------- */

/* Off-diagonal squares, squares of M M^T - I, and the trace's, of n rows of length m. */
static double expected_gram(const double *v, int n, int m, bool raw, tinker_reg_gram mode)
{
    double off = 0, diagonal = 0, trace = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double g = 0, a = 0, b = 0;
            for (int k = 0; k < m; k++) {
                g += v[i * m + k] * v[j * m + k];
                a += v[i * m + k] * v[i * m + k];
                b += v[j * m + k] * v[j * m + k];
            }
            g /= raw ? 1 : sqrt(a) * sqrt(b);
            off += i == j ? 0 : g * g;
            diagonal += i == j ? (g - 1) * (g - 1) : 0;
            trace += i == j ? g : 0;
        }
    return mode == TINKER_GRAM_SOFT   ? off
           : mode == TINKER_GRAM_HARD ? off + diagonal
                                      : off + (trace - n) * (trace - n);
}

static void test_orthogonality(void)
{
    tinker_reg_orthogonality_options o = TINKER_REG_ORTHOGONALITY_OPTIONS_INIT;
    double turned[N];
    for (int i = 0; i < N; i++)
        turned[i % COLS * ROWS + i / COLS] = x[i];
    for (int mode = 0; mode < 3; mode++)
        for (o.raw = 0; o.raw < 2; o.raw++) {
            o.gram = (tinker_reg_gram)mode;
            o.axis = TINKER_AXIS_ROWS;
            check_term("rows", tinker_reg_orthogonality, &o,
                       expected_gram(x, ROWS, COLS, o.raw, o.gram));
            CHECK_NEAR(find_metric("orthogonality"), last->loss_total, 0);
            o.axis = TINKER_AXIS_VOCABULARY;
            check_term("columns", tinker_reg_orthogonality, &o,
                       expected_gram(turned, COLS, ROWS, o.raw, o.gram));
        }
    /* a vector is one row, so nothing is off its diagonal */
    tinker_tensor flat = { .dtype = TINKER_FLOAT64, .data = x, .n = N };
    check_on("a vector", tinker_reg_orthogonality, NULL, NULL, &flat, 1, 0);
    /* [b, s, v]: positions of the sequence as rows of length b * v */
    const int64_t cube[3] = { 2, 3, 2 };
    tinker_tensor c = { TINKER_FLOAT64, x, N, cube, 3, NULL, NULL };
    double by_position[N];
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 3; s++)
            for (int v = 0; v < 2; v++)
                by_position[s * 4 + b * 2 + v] = x[b * 6 + s * 2 + v];
    o = (tinker_reg_orthogonality_options)TINKER_REG_ORTHOGONALITY_OPTIONS_INIT;
    o.axis = TINKER_AXIS_SEQUENCE;
    check_on("sequence", tinker_reg_orthogonality, &o, NULL, &c, 1,
             expected_gram(by_position, 3, 4, false, TINKER_GRAM_SOFT));
    o.max_rows = 2;
    o.axis = TINKER_AXIS_ROWS;
    check_refused("too many rows", tinker_reg_orthogonality, &o, "max_rows");
}

static tinker_var *sum_of_cubes(tinker_tape *tape, tinker_var *v, void *state)
{
    (void)tape, (void)state;
    return tinker_var_sum(tinker_var_power(tinker_var_neg(v), 3), TINKER_ALL, 0);
}

/* (|gradient of f| - target)^2, here of f = sum of (-x)^3, whose gradient is -3 x^2. */
static void test_gradient_penalty(void)
{
    tinker_reg_gradient_options o = TINKER_REG_GRADIENT_OPTIONS_INIT;
    double squares = 0;
    for (int i = 0; i < N; i++)
        squares += 9 * pow(x[i], 4);
    o.f = sum_of_cubes;
    check_term("gradient penalty", tinker_reg_gradient_penalty, &o, pow(sqrt(squares) - 1, 2));
    o.target_norm = 40;
    check_term("another target", tinker_reg_gradient_penalty, &o, pow(sqrt(squares) - 40, 2));
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = &xt; /* the point between x and itself is x, wherever it is drawn */
    ref.n_tensors = 1;
    o.interpolated = 1;
    o.reference = &ref;
    tinker_error err = { 0 };
    tinker_loss_report *r =
        tinker_loss_evaluate(tinker_reg_gradient_penalty, &o, NULL, &xt, 1, NULL, &err);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, pow(sqrt(squares) - 40, 2), 1e-9);
    tinker_loss_report_free(r);
    ref.tensors = &yt;
    double seen[2];
    for (int i = 0; i < 2; i++) { /* the draw is the seed's */
        o.seed = 3;
        r = tinker_loss_evaluate(tinker_reg_gradient_penalty, &o, NULL, &xt, 1, NULL, &err);
        REQUIRE(r);
        seen[i] = r->loss_total;
        tinker_loss_report_free(r);
    }
    CHECK_NEAR(seen[0], seen[1], 0);
    CHECK_INT(tinker_loss_gradcheck(tinker_reg_gradient_penalty, &o, NULL, &xt, 1, 1e-5, 1e-6, NULL,
                                    &err),
              TINKER_OK);
    ref.size = 0; /* checked like other options */
    check_refused("reference not initialized", tinker_reg_gradient_penalty, &o,
                  "tinker_reg_reference_options");
    ref.size = sizeof(ref);
    o.f = NULL;
    check_refused("no function", tinker_reg_gradient_penalty, &o, "function");
}

static void test_magnitude_and_js(void)
{
    tinker_reg_magnitude_options o = TINKER_REG_MAGNITUDE_OPTIONS_INIT;
    double squares = 0, js = 0;
    for (int i = 0; i < N; i++) {
        double p = exp(x[i]), q = exp(y[i]), m = log((p + q) / 2);
        squares += x[i] * x[i];
        js += (p * (x[i] - m) + q * (y[i] - m)) / 2;
    }
    check_term("magnitude", tinker_reg_magnitude, NULL, pow(sqrt(squares / N) - 1, 2));
    o.reduction = TINKER_REG_SUM;
    o.target = 2;
    check_term("magnitude of the sum", tinker_reg_magnitude, &o, pow(sqrt(squares) - 2, 2));
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = &yt;
    ref.n_tensors = 1;
    check_term("jensen shannon", tinker_reg_jensen_shannon, &ref, js / ROWS);
}

/* Several datums of different length: elements and rows are pooled, matrices averaged. */
static void test_ragged(void)
{
    const int64_t two[2] = { 2, 2 };
    const double a[4] = { -0.3, -1.4, -0.8, -0.6 }, b[3] = { -0.9, -2, -0.1 };
    tinker_tensor lp[2] = { { TINKER_FLOAT64, a, 4, two, 2, NULL, NULL },
                            { .dtype = TINKER_FLOAT64, .data = b, .n = 3 } };
    tinker_reg_norm_options o = TINKER_REG_NORM_OPTIONS_INIT;
    o.reduction = TINKER_REG_MEAN;
    check_on("seven elements", tinker_reg_l1, &o, NULL, lp, 2, (3.1 + 3.0) / 7);
    double h = 0; /* three rows */
    for (int i = 0; i < 4; i++)
        h -= a[i] * exp(a[i]);
    for (int i = 0; i < 3; i++)
        h -= b[i] * exp(b[i]);
    check_on("three rows", tinker_reg_entropy, NULL, NULL, lp, 2, h / 3);
    double first = expected_gram(a, 2, 2, false, TINKER_GRAM_SOFT);
    check_on("two matrices", tinker_reg_orthogonality, NULL, NULL, lp, 2, first / 2);
    tinker_reg_orthogonality_options sum = TINKER_REG_ORTHOGONALITY_OPTIONS_INIT;
    sum.sum = 1;
    check_on("their sum", tinker_reg_orthogonality, &sum, NULL, lp, 2, first);
}

/* ---- masks ------------------------------------------------------------------------------- */

/* The gradient and the value of fn, whose options mask, on lp and reference. */
static tinker_loss_report *evaluate_masked(tinker_loss_fn *fn, void *state, const tinker_tensor *lp,
                                           const tinker_tensor *reference,
                                           const tinker_tensor *weights)
{
    tinker_named_tensor in[] = { { "weights", *weights },
                                 { "reference_logprobs", *reference },
                                 { "original_logprobs", *reference } };
    tinker_datum d = { .inputs = in, .n_inputs = 3 };
    tinker_error err = { 0 };
    tinker_loss_report *r = tinker_loss_evaluate(fn, state, &d, lp, 1, NULL, &err);
    if (!r)
        TAP_FAIL("%s", err.message);
    return r;
}

/* What has weight 0 may hold anything: value and gradient are those of any other content. */
static void test_masked_elements_may_be_anything(void)
{
    static const double weights[N] = { 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1 };
    static const double junk[] = { NAN, -INFINITY, INFINITY, 800 };
    tinker_reg_norm_options size = TINKER_REG_NORM_OPTIONS_INIT,
                            probs = TINKER_REG_NORM_OPTIONS_INIT;
    tinker_reg_entropy_options flat = TINKER_REG_ENTROPY_OPTIONS_INIT,
                               warm = TINKER_REG_ENTROPY_OPTIONS_INIT;
    tinker_reg_reference_options kl = TINKER_REG_REFERENCE_OPTIONS_INIT, reverse, pairs[4];
    size.mask_weights = probs.mask_weights = flat.mask_weights = warm.mask_weights = 1;
    probs.target = TINKER_TARGET_PROBS;
    warm.temperature = 1.7;
    kl.mask_weights = 1;
    reverse = kl;
    reverse.reverse = 1;
    for (int i = 0; i < 4; i++) {
        pairs[i] = kl;
        pairs[i].distance = (tinker_reg_distance)i;
    }
    const struct {
        tinker_loss_fn *fn;
        void *state;
    } terms[] = {
        { tinker_reg_l1, &size },
        { tinker_reg_l1, &probs },
        { tinker_reg_l2, &probs },
        { tinker_reg_elastic_net, &probs },
        { tinker_reg_entropy, &flat },
        { tinker_reg_entropy, &warm },
        { tinker_reg_kl, &kl },
        { tinker_reg_kl, &reverse },
        { tinker_reg_jensen_shannon, &kl },
        { tinker_reg_consistency, &pairs[0] },
        { tinker_reg_consistency, &pairs[1] },
        { tinker_reg_consistency, &pairs[2] },
        { tinker_reg_consistency, &pairs[3] },
    };
    double dirty[N], other[N];
    for (int i = 0; i < N; i++) {
        dirty[i] = weights[i] != 0 ? x[i] : junk[i % 4];
        other[i] = weights[i] != 0 ? y[i] : junk[(i + 1) % 4];
    }
    for (size_t k = 0; k < 2 * sizeof(terms) / sizeof(*terms); k++) {
        size_t ndim = 1 + k % 2; /* a vector, and rows */
        const int64_t *shape = ndim == 2 ? matrix : (int64_t[]){ N };
        tinker_tensor w = { TINKER_FLOAT64, weights, N, shape, ndim, NULL, NULL };
        tinker_tensor a = { TINKER_FLOAT64, x, N, shape, ndim, NULL, NULL }, b = a, c = a, d = a;
        b.data = y;
        c.data = dirty;
        d.data = other;
        tinker_loss_report *clean =
            evaluate_masked(terms[k / 2].fn, terms[k / 2].state, &a, &b, &w);
        tinker_loss_report *dirt = evaluate_masked(terms[k / 2].fn, terms[k / 2].state, &c, &d, &w);
        REQUIRE(clean && dirt);
        CHECK_NEAR(dirt->loss_total, clean->loss_total, 0);
        for (int i = 0; i < N; i++) {
            double g = ((const double *)dirt->gradients[0].data)[i];
            if (g != ((const double *)clean->gradients[0].data)[i] || (weights[i] == 0 && g != 0))
                TAP_FAIL("term %zu, element %d: gradient %g", k / 2, i, g);
        }
        tinker_loss_report_free(clean);
        tinker_loss_report_free(dirt);
    }
}

int main(void)
{
    RUN(test_sizes);
    RUN(test_targets);
    RUN(test_entropy);
    RUN(test_unreduced);
    RUN(test_kl);
    RUN(test_kl_ends);
    RUN(test_consistency);
    RUN(test_orthogonality);
    RUN(test_gradient_penalty);
    RUN(test_magnitude_and_js);
    RUN(test_ragged);
    RUN(test_masked_elements_may_be_anything);
    tinker_loss_report_free(last);
    return tap_done();
}
