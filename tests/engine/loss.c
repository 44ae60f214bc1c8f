/* loss.c - the formulas, worked out by hand. */
#include "engine/train/loss.h"
#include "support/tap.h"

static float weights[1], logprobs[1], advantages[1], low[1], high[1];

static struct loss_datum datum(double w, double q, double A)
{
    weights[0] = (float)w;
    logprobs[0] = (float)q;
    advantages[0] = (float)A;
    return (struct loss_datum){
        .n = 1, .k = 1, .weights = weights, .logprobs = logprobs, .advantages = advantages
    };
}

static void expect(const char *name, const tinker_named_number *config, size_t n,
                   const struct loss_datum *d, double lp, double value, double slope)
{
    tinker_loss in = { name, config, n };
    struct loss l;
    tinker_error err = { 0 };
    float loss, grad;
    CHECK_INT(loss_parse(&l, &in, &err), TINKER_OK);
    loss_element(&l, d, 0, (float)lp, &loss, &grad);
    if (fabs((double)loss - value) > 1e-5 * (1 + fabs(value)) ||
        fabs((double)grad - slope) > 1e-5 * (1 + fabs(slope)))
        TAP_FAIL("%s: loss %g (want %g), slope %g (want %g)", name, (double)loss, value,
                 (double)grad, slope);
}

static void test_cross_entropy(void)
{
    struct loss_datum d = datum(0.5, 0, 0);
    expect("cross_entropy", NULL, 0, &d, -2, 1, -0.5);
    d = datum(-3, 0, 0);
    expect("cross_entropy", NULL, 0, &d, -2, -6, 3);
    d.weights = NULL;
    expect("cross_entropy", NULL, 0, &d, -2, 2, -1);
}

static void test_importance_sampling(void)
{
    struct loss_datum d = datum(2, -1.5, 3);
    double r = exp(0.5);
    expect("importance_sampling", NULL, 0, &d, -1, -2 * r * 3, -2 * r * 3);
    d = datum(1, -1e5, 0);
    expect("importance_sampling", NULL, 0, &d, -1, 0, 0); /* 0 * inf is 0 here */
    d = datum(0, -1e5, 1);
    expect("importance_sampling", NULL, 0, &d, -1, 0, 0);
}

static void test_ppo_clips_on_the_side_that_matters(void)
{
    struct loss_datum d = datum(1, -1.5, 2);
    expect("ppo", NULL, 0, &d, -1, -1.2 * 2, 0); /* ratio 1.65 and A > 0: flat */
    d = datum(1, -1.5, -2);
    expect("ppo", NULL, 0, &d, -1, 2 * exp(0.5), 2 * exp(0.5)); /* A < 0: not clipped above */
    d = datum(1, -0.5, -2);
    expect("ppo", NULL, 0, &d, -1, 0.8 * 2, 0); /* ratio 0.61 and A < 0: flat */
    d = datum(1, -0.5, 2);
    expect("ppo", NULL, 0, &d, -1, -2 * exp(-0.5), -2 * exp(-0.5));
    d = datum(1, -1.1, 2);
    expect("ppo", NULL, 0, &d, -1, -2 * exp(0.1), -2 * exp(0.1)); /* inside */
    tinker_named_number wide[] = { { "clip_low_threshold", 0.1 }, { "clip_high_threshold", 5 } };
    d = datum(1, -1.5, 2);
    expect("ppo", wide, 2, &d, -1, -2 * exp(0.5), -2 * exp(0.5));
    d.clip_high = high;
    high[0] = 1.5f; /* per-token values win over the settings */
    expect("ppo", wide, 2, &d, -1, -2 * 1.5, 0);
}

static void test_cispo_keeps_the_gradient(void)
{
    struct loss_datum d = datum(1, -3, 2);
    expect("cispo", NULL, 0, &d, -1, 4 * 2, -4 * 2); /* ratio 7.4 clips at 4 */
    d = datum(1, -1, 2);
    expect("cispo", NULL, 0, &d, -1.5, exp(-0.5) * 1.5 * 2, -exp(-0.5) * 2);
    d.clip_low = low;
    low[0] = 0.9f;
    expect("cispo", NULL, 0, &d, -1.5, 0.9 * 1.5 * 2, -0.9 * 2);
}

static void test_dro(void)
{
    struct loss_datum d = datum(1, -1, 2);
    expect("dro", NULL, 0, &d, -3, -(-6 - 0.025 * 4), -(2 - 0.05 * -2));
    tinker_named_number beta = { "beta", 1 };
    expect("dro", &beta, 1, &d, -3, -(-6 - 0.5 * 4), -(2 + 2));
    d = datum(1, -1, 0); /* no advantage: the pull towards q remains */
    expect("dro", &beta, 1, &d, -3, 2, -2);
}

static void test_settings(void)
{
    struct loss l;
    tinker_error err = { 0 };
    tinker_named_number unknown = { "epsilon", 0.2 }, nan_value = { "beta", NAN };
    tinker_loss a = { "ppo", &unknown, 1 }, b = { "dro", &nan_value, 1 }, c = { "mse", NULL, 0 };
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "clip_low_threshold, clip_high_threshold") != NULL);
    CHECK_INT(loss_parse(&l, &b, &err), TINKER_EINVAL);
    CHECK_INT(loss_parse(&l, &c, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "unknown loss \"mse\" (cross_entropy, importance_sampling, ppo, cispo, "
                           "dro are known)");
    c.name = NULL;
    CHECK_INT(loss_parse(&l, &c, &err), TINKER_EINVAL);
    a.name = "cross_entropy"; /* has no settings to list */
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "loss cross_entropy does not know the setting \"epsilon\"");
    tinker_named_number crossed = { "clip_low_threshold", 1.3 };
    tinker_loss d = { "ppo", &crossed, 1 };
    CHECK_INT(loss_parse(&l, &d, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "is above clip_high_threshold") != NULL);
    a.config = NULL; /* of one setting */
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    a.name = "cispo";
    a.n_config = 0;
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_OK);
    CHECK_NEAR(l.clip_low, 0, 0);
    CHECK_NEAR(l.clip_high, 4, 0);
}

static void test_ratio_counts_what_is_trained(void)
{
    tinker_loss in = { "ppo", NULL, 0 };
    struct loss l;
    double ratio;
    bool clipped;
    loss_parse(&l, &in, NULL);
    struct loss_datum d = datum(1, -1.5, 2);
    CHECK(loss_ratio(&l, &d, 0, -1, &ratio, &clipped));
    CHECK_NEAR(ratio, exp(0.5), 1e-6);
    CHECK(clipped);
    d = datum(1, -1.5, 0);
    CHECK(!loss_ratio(&l, &d, 0, -1, &ratio, &clipped));
    d = datum(0, -1.5, 1);
    CHECK(!loss_ratio(&l, &d, 0, -1, &ratio, &clipped));
}

int main(void)
{
    RUN(test_cross_entropy);
    RUN(test_importance_sampling);
    RUN(test_ppo_clips_on_the_side_that_matters);
    RUN(test_cispo_keeps_the_gradient);
    RUN(test_dro);
    RUN(test_settings);
    RUN(test_ratio_counts_what_is_trained);
    return tap_done();
}
