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
    tinker_loss in = { .name = name, .config = config, .n_config = n };
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

static void test_stable_reinforce(void)
{
    /* r = e^-0.5 below 1: the weight is r; the KL term is off by default */
    struct loss_datum d = datum(2, -1, 3);
    double r = exp(-0.5);
    expect("stable_reinforce", NULL, 0, &d, -1.5, 2 * r * 3 * 1.5, -2 * r * 3);
    d = datum(1, -2, 3); /* r above 1: the weight stays 1 */
    expect("stable_reinforce", NULL, 0, &d, -1.5, 3 * 1.5, -3);
    tinker_named_number kl = { "kl_coeff", 0.5 };
    r = exp(0.5);
    expect("stable_reinforce", &kl, 1, &d, -1.5, 3 * 1.5 + 0.5 * (r - 1 - 0.5), -3 + 0.5 * (r - 1));
}

/* The sum over a sequence of the loss with the ratio's gradient as gspo defines it: s stopped, times
 * p / sg[p] of each token. */
static double gspo_by_hand(const struct loss_datum *d, const double *lp, const double *frozen,
                           double lo, double hi)
{
    double sum = 0, n = 0, loss = 0;
    for (size_t i = 0; i < d->n; i++)
        if (d->ratio_mask[i] != 0) {
            sum += frozen[i] - (double)d->logprobs[i];
            n++;
        }
    for (size_t i = 0; i < d->n; i++) {
        double s = exp(sum / n) * exp(lp[i] - frozen[i]), A = (double)d->advantages[i];
        loss -= fmin(s * A, fmin(fmax(s, lo), hi) * A);
    }
    return loss;
}

/* Clipped on both sides and inside, a mask with gaps, a mask of one position: loss and gradient
 * against finite differences. */
static void test_gspo(void)
{
    enum { N = 6 };
    float q[N] = { -1, -2, -0.5f, -1.5f, -3, -1 }, A[N] = { 0, 1, -2, 1.5f, -0.5f, 2 };
    const struct {
        float mask[N];
        double low, high;
        bool clipped;
    } cases[] = {
        { { 0, 1, 1, 0, 1, 1 }, 0.5, 2, false },    /* inside */
        { { 0, 1, 1, 0, 1, 1 }, 0.01, 0.02, true }, /* above: good tokens are flat */
        { { 0, 1, 1, 0, 1, 1 }, 50, 60, true },     /* below: bad tokens are flat */
        { { 0, 0, 0, 1, 0, 0 }, 0.5, 2, false },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        float mask[N], logps[N], losses_of[N], grads[N];
        double lp[N], total = 0;
        memcpy(mask, cases[c].mask, sizeof(mask));
        tinker_named_number set[] = { { "clip_low_threshold", cases[c].low },
                                      { "clip_high_threshold", cases[c].high } };
        tinker_loss in = { .name = "gspo", .config = set, .n_config = 2 };
        struct loss_datum d = {
            .n = N, .k = 1, .logprobs = q, .advantages = A, .ratio_mask = mask
        };
        struct loss l;
        REQUIRE(loss_parse(&l, &in, NULL) == TINKER_OK);
        for (int i = 0; i < N; i++) {
            logps[i] = q[i] + 0.1f * (float)(i - 2);
            lp[i] = (double)logps[i];
        }
        loss_sequence(&l, &d, logps, losses_of, grads);
        CHECK_INT(d.clipped, cases[c].clipped);
        for (int i = 0; i < N; i++)
            total += (double)losses_of[i];
        CHECK_NEAR(total, gspo_by_hand(&d, lp, lp, cases[c].low, cases[c].high), 1e-5);
        for (int i = 0; i < N; i++) {
            double up[N], down[N], h = 1e-6;
            memcpy(up, lp, sizeof(up));
            memcpy(down, lp, sizeof(down));
            up[i] += h;
            down[i] -= h;
            double slope = (gspo_by_hand(&d, up, lp, cases[c].low, cases[c].high) -
                            gspo_by_hand(&d, down, lp, cases[c].low, cases[c].high)) /
                           (2 * h);
            CHECK_NEAR((double)grads[i], slope, 1e-5);
        }
    }
    /* without a mask the ratio is of the tokens that have an advantage; of none it is 1 */
    tinker_loss in = { .name = "gspo" };
    struct loss l;
    float zero[N] = { 0 }, logps[N] = { 0 }, losses_of[N], grads[N];
    REQUIRE(loss_parse(&l, &in, NULL) == TINKER_OK);
    struct loss_datum d = { .n = N, .k = 1, .logprobs = q, .advantages = A };
    loss_sequence(&l, &d, q, losses_of, grads);
    CHECK_NEAR(d.ratio, 1, 0);
    d.advantages = zero;
    loss_sequence(&l, &d, logps, losses_of, grads);
    CHECK_NEAR(d.ratio, 1, 0);
    CHECK_NEAR((double)losses_of[3], 0, 0);
}

static void test_settings(void)
{
    struct loss l;
    tinker_error err = { 0 };
    tinker_named_number unknown = { "epsilon", 0.2 }, nan_value = { "beta", NAN };
    tinker_loss a = { .name = "ppo", .config = &unknown, .n_config = 1 },
                b = { .name = "dro", .config = &nan_value, .n_config = 1 }, c = { .name = "mse" };
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "clip_low_threshold, clip_high_threshold") != NULL);
    CHECK_INT(loss_parse(&l, &b, &err), TINKER_EINVAL);
    CHECK_INT(loss_parse(&l, &c, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "unknown loss \"mse\" (cross_entropy, importance_sampling, ppo, cispo, "
                           "dro, gspo, stable_reinforce are known)");
    c.name = NULL;
    CHECK_INT(loss_parse(&l, &c, &err), TINKER_EINVAL);
    a.name = "cross_entropy"; /* has no settings to list */
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    CHECK_STR(err.message, "loss cross_entropy does not know the setting \"epsilon\"");
    tinker_named_number crossed = { "clip_low_threshold", 1.3 };
    tinker_loss d = { .name = "ppo", .config = &crossed, .n_config = 1 };
    CHECK_INT(loss_parse(&l, &d, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "is above clip_high_threshold") != NULL);
    a.config = NULL; /* of one setting */
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_EINVAL);
    tinker_named_string text = { "clip_low_threshold", "0.8" };
    tinker_loss t = { .name = "ppo", .texts = &text, .n_texts = 1 };
    CHECK_INT(loss_parse(&l, &t, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "clip_low_threshold is a text") != NULL);
    c.name = "custom"; /* only with a function */
    CHECK_INT(loss_parse(&l, &c, &err), TINKER_EINVAL);
    a.name = "cispo";
    a.n_config = 0;
    CHECK_INT(loss_parse(&l, &a, &err), TINKER_OK);
    CHECK_NEAR(l.clip_low, 0, 0);
    CHECK_NEAR(l.clip_high, 4, 0);
}

static void test_ratio_counts_what_is_trained(void)
{
    tinker_loss in = { .name = "ppo" };
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
    RUN(test_stable_reinforce);
    RUN(test_gspo);
    RUN(test_dro);
    RUN(test_settings);
    RUN(test_ratio_counts_what_is_trained);
    return tap_done();
}
