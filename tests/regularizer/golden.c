/* The built-in regularizers and the losses of the guide: values, norms and gradients
 * computed elsewhere in double precision, and central differences. */
#include <tinker/custom_loss.h>
#include <tinker/extra/regularizer.h>
#include "support/tap.h"

static const int64_t two_three[2] = { 2, 3 };
static double x6[6], y6[6]; /* logarithms of the probabilities below */
static tinker_tensor x_tensor = { TINKER_FLOAT64, x6, 6, two_three, 2, NULL, NULL };
static tinker_tensor y_tensor = { TINKER_FLOAT64, y6, 6, two_three, 2, NULL, NULL };

static void set_up(void)
{
    const double p[6] = { 0.5, 0.3, 0.2, 0.1, 0.6, 0.3 };
    const double q[6] = { 0.4, 0.4, 0.2, 0.25, 0.25, 0.5 };
    for (int i = 0; i < 6; i++) {
        x6[i] = log(p[i]);
        y6[i] = log(q[i]);
    }
}

/* Evaluate as the loss itself and compare with the golden line. */
static void check_golden(const char *name, tinker_loss_fn *fn, void *state, double value,
                         double norm, const double gradient[6])
{
    tinker_error err = { 0 };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.track_grad_norms = 1;
    o.allow_unused = 1;
    tinker_loss_report *r = tinker_loss_evaluate(fn, state, NULL, &x_tensor, 1, &o, &err);
    if (!r) {
        TAP_FAIL("%s: %s", name, err.message);
        return;
    }
    if (fabs(r->loss_total - value) > 1e-9 || fabs(r->total_grad_norm - norm) > 2e-9)
        TAP_FAIL("%s: value %.9f norm %.9f, want %.9f and %.9f", name, r->loss_total,
                 r->total_grad_norm, value, norm);
    for (int i = 0; i < 6; i++) {
        double g = ((const double *)r->gradients[0].data)[i];
        if (fabs(g - gradient[i]) > 6e-7)
            TAP_FAIL("%s: gradient[%d] is %.6f, want %.6f", name, i, g, gradient[i]);
    }
    if (tinker_loss_gradcheck(fn, state, NULL, &x_tensor, 1, 1e-5, 1e-7, NULL, &err) != TINKER_OK)
        TAP_FAIL("%s: %s", name, err.message);
    tinker_loss_report_free(r);
}

#define G(...) ((const double[6]){ __VA_ARGS__ })

static void test_size(void)
{
    tinker_reg_norm_options o = TINKER_REG_NORM_OPTIONS_INIT;
    check_golden("l1 sum", tinker_reg_l1, NULL, 7.523941418, 2.449489743,
                 G(-1, -1, -1, -1, -1, -1));
    o.reduction = TINKER_REG_MEAN;
    double m = -1.0 / 6;
    check_golden("l1 mean", tinker_reg_l1, &o, 1.253990236, 0.408248290, G(m, m, m, m, m, m));
    o = (tinker_reg_norm_options)TINKER_REG_NORM_OPTIONS_INIT;
    o.target = TINKER_TARGET_PROBS;
    check_golden("l1 probs", tinker_reg_l1, &o, 2.0, 0.916515139, G(0.5, 0.3, 0.2, 0.1, 0.6, 0.3));
    check_golden("l2 sum", tinker_reg_l2, NULL, 11.532685363, 6.791961532,
                 G(-1.386294, -2.407946, -3.218876, -4.605170, -1.021651, -2.407946));
    o = (tinker_reg_norm_options)TINKER_REG_NORM_OPTIONS_INIT;
    o.center = TINKER_CENTER_MEAN;
    check_golden("l2 centered", tinker_reg_l2, &o, 2.097736285, 2.896712817,
                 G(1.121686, 0.100035, -0.710895, -2.097190, 1.486329, 0.100035));
    o.clip = 0.5;
    check_golden("l2 centered, clipped", tinker_reg_l2, &o, 0.881346537, 0.694187064,
                 G(0.085138, 0.185172, -0.625758, 0.085138, 0.085138, 0.185172));
    o.center = TINKER_CENTER_NONE;
    o.clip = 1;
    check_golden("l2 clipped", tinker_reg_l2, &o, 4.741395832, 1.722086910,
                 G(-1.386294, 0, 0, 0, -1.021651, 0));
    check_golden("elastic net", tinker_reg_elastic_net, NULL, 9.528313391, 4.533941639,
                 G(-1.193147, -1.703973, -2.109438, -2.802585, -1.010826, -1.703973));
}

static void test_entropy(void)
{
    tinker_reg_entropy_options o = TINKER_REG_ENTROPY_OPTIONS_INIT;
    check_golden("entropy", tinker_reg_entropy, NULL, 0.963799369, 0.193000890,
                 G(-0.076713, 0.030596, 0.060944, 0.065129, -0.146752, 0.030596));
    o.maximize = 1;
    check_golden("entropy maximized", tinker_reg_entropy, &o, -0.963799369, 0.193000890,
                 G(0.076713, -0.030596, -0.060944, -0.065129, 0.146752, -0.030596));
    o.maximize = 0;
    o.normalize = 1;
    check_golden("entropy normalized", tinker_reg_entropy, &o, 0.877287993, 0.175676980,
                 G(-0.069827, 0.027850, 0.055473, 0.059283, -0.133580, 0.027850));
    o.normalize = 0;
    o.temperature = 0.5;
    check_golden("entropy T=0.5", tinker_reg_entropy, &o, 0.723920114, 0.493551282,
                 G(-0.286101, 0.138974, 0.147127, 0.070313, -0.273235, 0.202923));
    o.temperature = 2;
    check_golden("entropy T=2", tinker_reg_entropy, &o, 1.059472484, 0.052806565,
                 G(-0.021039, 0.004251, 0.016788, 0.029293, -0.034125, 0.004832));
}

static tinker_var *compute_reference(tinker_tape *tape, const tinker_datum *data, size_t i,
                                     void *state)
{
    (void)data, (void)i;
    return tinker_tape_tensor(tape, state);
}

static void test_references(void)
{
    tinker_reg_reference_options o = TINKER_REG_REFERENCE_OPTIONS_INIT;
    o.tensors = &y_tensor;
    o.n_tensors = 1;
    check_golden("kl forward", tinker_reg_kl, &o, 0.152835818, 0.660974648,
                 G(0.305786, 0.106848, 0.1, 0.004185, 0.562641, 0.073376));
    o.reverse = 1;
    check_golden("kl reverse", tinker_reg_kl, &o, 0.145716859, 0.428660705,
                 G(-0.2, -0.2, -0.1, -0.125, -0.125, -0.25));
    o.symmetric = 1;
    check_golden("kl symmetric", tinker_reg_kl, &o, 0.149276339, 0.253569248,
                 G(0.052893, -0.046576, 0, -0.060407, 0.218820, -0.088312));
    check_golden("consistency mse", tinker_reg_consistency, &o, 0.333255175, 0.471349252,
                 G(0.074381, -0.095894, 0, -0.305430, 0.291823, -0.170275));
    o.distance = TINKER_DISTANCE_COSINE;
    check_golden("consistency cosine", tinker_reg_consistency, &o, 0.089589337, 0.121822163,
                 G(0.037323, -0.003003, 0.034616, -0.042517, 0.098927, -0.025417));
    o.distance = TINKER_DISTANCE_KL; /* nothing is clamped here, so it is the symmetric KL */
    check_golden("consistency kl", tinker_reg_consistency, &o, 0.149276339, 0.253569248,
                 G(0.052893, -0.046576, 0, -0.060407, 0.218820, -0.088312));
    o = (tinker_reg_reference_options)TINKER_REG_REFERENCE_OPTIONS_INIT;
    o.compute = compute_reference;
    o.compute_state = &y_tensor;
    check_golden("kl of a computed reference", tinker_reg_kl, &o, 0.152835818, 0.660974648,
                 G(0.305786, 0.106848, 0.1, 0.004185, 0.562641, 0.073376));
    /* 0.5 * p * (x - log M), halved by the mean over two rows */
    double js[6], value = 0, squares = 0;
    for (int i = 0; i < 6; i++) {
        double p = exp(x6[i]), q = exp(y6[i]), m = log((p + q) / 2);
        js[i] = 0.25 * p * (x6[i] - m);
        value += 0.25 * (p * (x6[i] - m) + q * (y6[i] - m));
        squares += js[i] * js[i];
    }
    check_golden("jensen shannon", tinker_reg_jensen_shannon, &o, value, sqrt(squares), js);
}

static void test_orthogonality(void)
{
    tinker_reg_orthogonality_options o = TINKER_REG_ORTHOGONALITY_OPTIONS_INIT;
    for (int i = 0; i < 3; i++) {
        o.gram = (tinker_reg_gram)i;
        check_golden("orthogonality normalized", tinker_reg_orthogonality, &o, 1.086015161,
                     1.201894214, G(-0.872424, 0.311081, 0.143022, 0.350319, -0.472099, -0.469678));
    }
    o.raw = 1;
    o.gram = TINKER_GRAM_SOFT;
    check_golden("orthogonality soft raw", tinker_reg_orthogonality, &o, 34.424585039, 56.356572502,
                 G(-38.211584, -8.477192, -19.980025, -11.502833, -19.980025, -26.708751));
    o.gram = TINKER_GRAM_HARD;
    check_golden("orthogonality hard raw", tinker_reg_orthogonality, &o, 82.965905183,
                 115.666429904,
                 G(-47.971911, -25.430545, -42.642803, -66.879005, -32.265159, -55.663774));
    o.gram = TINKER_GRAM_SPECTRAL;
    check_golden("orthogonality spectral raw", tinker_reg_orthogonality, &o, 125.296675276,
                 174.485330268,
                 G(-64.641800, -54.385568, -81.349086, -99.302110, -39.458185, -72.617127));
}

static tinker_var *half_square(tinker_tape *tape, tinker_var *x, void *state)
{
    (void)tape, (void)state;
    return tinker_var_scale(tinker_var_dot(x, x), 0.5);
}

static tinker_var *plain_sum(tinker_tape *tape, tinker_var *x, void *state)
{
    (void)tape, (void)state;
    return tinker_var_sum(x, TINKER_ALL, 0);
}

static void test_gradient_penalty(void)
{
    tinker_reg_gradient_options o = TINKER_REG_GRADIENT_OPTIONS_INIT;
    o.f = half_square;
    check_golden("gradient penalty", tinker_reg_gradient_penalty, &o, 5.740723831, 4.791961532,
                 G(-0.978078, -1.698888, -2.271027, -3.249105, -0.720810, -1.698888));
    o.f = plain_sum;
    check_golden("gradient penalty of a sum", tinker_reg_gradient_penalty, &o, 2.101020514, 0,
                 G(0, 0, 0, 0, 0, 0));
    /* between x and y: the same draw for value and gradient */
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    ref.tensors = &y_tensor;
    ref.n_tensors = 1;
    o.f = half_square;
    o.interpolated = 1;
    o.reference = &ref;
    o.seed = 7;
    tinker_error err;
    CHECK_INT(tinker_loss_gradcheck(tinker_reg_gradient_penalty, &o, NULL, &x_tensor, 1, 1e-5, 1e-7,
                                    NULL, &err),
              TINKER_OK);
}

static tinker_var *minus_mean(tinker_tape *tape, const tinker_datum *data, tinker_var *const *lp,
                              size_t n, void *state)
{
    (void)tape, (void)data, (void)n, (void)state;
    return tinker_var_neg(tinker_var_mean(lp[0], TINKER_ALL, 0));
}

static void test_total(void)
{
    tinker_regularizer regs[2] = { { .name = "l1", .weight = 0.01, .fn = tinker_reg_l1 },
                                   { .name = "entropy", .weight = 0.1, .fn = tinker_reg_entropy } };
    tinker_custom_options o = TINKER_CUSTOM_OPTIONS_INIT;
    o.track_grad_norms = 1;
    o.regularizers = regs;
    o.n_regularizers = 2;
    const double want[6] = { -0.184338, -0.173607, -0.170572, -0.170154, -0.191342, -0.173607 };
    for (o.sequential = 0; o.sequential < 2; o.sequential++) {
        tinker_loss_report *r =
            tinker_loss_evaluate(minus_mean, NULL, NULL, &x_tensor, 1, &o, NULL);
        REQUIRE(r);
        CHECK_NEAR(r->loss_total, 1.425609588, 1e-9);
        CHECK_NEAR(r->total_grad_norm, 0.434647270, 1e-9);
        CHECK_NEAR(r->base.grad_norm, 0.408248290, 1e-9);
        CHECK_NEAR(r->regularizers[1].grad_norm, 0.193000890, 1e-9);
        CHECK_NEAR(r->regularizers[1].grad_norm_weighted, 0.0193000890, 1e-9);
        for (int i = 0; i < 6; i++)
            CHECK_NEAR(((const double *)r->gradients[0].data)[i], want[i], 6e-7);
        tinker_loss_report_free(r);
    }
}

/* ---- losses of the guide ----------------------------------------------------------------- */

struct side {
    double values[2][4];
    double advantages[4];
    int kind;
};

static tinker_var *dpo_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                            size_t n, void *state)
{
    (void)data, (void)n;
    const struct side *s = state;
    tinker_var *w = tinker_tape_const(t, (double[]){ 0, 1, 1 }, 3, NULL, 0);
    tinker_var *ref[2], *gain[2];
    for (int i = 0; i < 2; i++) {
        ref[i] = tinker_tape_const(t, s->values[i], 3, NULL, 0);
        gain[i] = tinker_var_dot(tinker_var_sub(lp[i], ref[i]), w);
    }
    tinker_var *z = tinker_var_scale(tinker_var_sub(gain[0], gain[1]), 0.1);
    tinker_tape_metric(t, "margin", tinker_var_item(z));
    return tinker_var_neg(tinker_var_mean(tinker_var_logsigmoid(z), TINKER_ALL, 0));
}

static void test_dpo(void)
{
    const double chosen[3] = { -1, -0.5, -0.7 }, rejected[3] = { -1, -0.9, -0.4 };
    struct side s = { .values = { { -1, -0.6, -0.8 }, { -1, -0.8, -0.5 } } };
    tinker_tensor lp[2] = { { .dtype = TINKER_FLOAT64, .data = chosen, .n = 3 },
                            { .dtype = TINKER_FLOAT64, .data = rejected, .n = 3 } };
    tinker_loss_report *r = tinker_loss_evaluate(dpo_loss, &s, NULL, lp, 2, NULL, NULL);
    REQUIRE(r);
    CHECK_NEAR(r->loss_total, 0.683197180, 1e-9);
    CHECK_NEAR(r->base.custom[0].value, 0.02, 1e-12);
    const double *c = r->gradients[0].data, *j = r->gradients[1].data;
    CHECK_NEAR(c[0], 0, 0);
    CHECK_NEAR(c[1], -0.049500, 1e-6);
    CHECK_NEAR(j[2], 0.049500, 1e-6);
    tinker_loss_report_free(r);
}

static tinker_var *policy_loss(tinker_tape *t, const tinker_datum *data, tinker_var *const *lp,
                               size_t n, void *state)
{
    (void)data, (void)n;
    const struct side *s = state;
    tinker_var *old = tinker_tape_const(t, s->values[0], 4, NULL, 0);
    tinker_var *adv = tinker_tape_const(t, s->advantages, 4, NULL, 0);
    tinker_var *ratio = tinker_var_ratio(lp[0], old);
    tinker_var *clipped = tinker_var_clamp(ratio, 0.8, 1.2);
    tinker_var *d = tinker_var_sub(old, lp[0]);
    switch (s->kind) {
    case 0:
        return tinker_var_neg(tinker_var_sum(
            tinker_var_minimum(tinker_var_mul(ratio, adv), tinker_var_mul(clipped, adv)),
            TINKER_ALL, 0));
    case 1:
        return tinker_var_neg(tinker_var_dot(ratio, adv));
    case 2:
        return tinker_var_neg(
            tinker_var_dot(tinker_var_mul(tinker_var_detach(clipped), lp[0]), adv));
    }
    return tinker_var_mean(tinker_var_sub(tinker_var_expm1(d), d), TINKER_ALL, 0);
}

static void test_policy_losses(void)
{
    const double lp[4] = { -0.2, -1, -2, -0.5 };
    struct side s = { .values = { { -0.5, -1, -1, -0.9 } }, .advantages = { 1, -1, 0.5, -2 } };
    tinker_tensor x = { .dtype = TINKER_FLOAT64, .data = lp, .n = 4 };
    const double value[4] = { 2.599709675, 2.449850867, -1.16, 0.207355024 };
    const double gradient[4][4] = { { 0, 1, -0.183940, 2.983649 },
                                    { -1.349859, 1, -0.183940, 2.983649 },
                                    { -1.2, 1, -0.4, 2.4 },
                                    { 0.064795, 0, -0.429570, 0.082420 } };
    for (s.kind = 0; s.kind < 4; s.kind++) {
        tinker_loss_report *r = tinker_loss_evaluate(policy_loss, &s, NULL, &x, 1, NULL, NULL);
        REQUIRE(r);
        CHECK_NEAR(r->loss_total, value[s.kind], 1e-9);
        for (int i = 0; i < 4; i++)
            CHECK_NEAR(((const double *)r->gradients[0].data)[i], gradient[s.kind][i], 6e-7);
        tinker_loss_report_free(r);
    }
}

int main(void)
{
    set_up();
    RUN(test_size);
    RUN(test_entropy);
    RUN(test_references);
    RUN(test_orthogonality);
    RUN(test_gradient_penalty);
    RUN(test_total);
    RUN(test_dpo);
    RUN(test_policy_losses);
    return tap_done();
}
