/* advantage.c - what an answer was worth compared with others, and with a reference. */
#include <tinker/recipe.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "recipe/score.h"

/* The three estimators of KL(p || q) from tokens drawn from p, named as in J. Schulman,
 * "Approximating KL Divergence" (2020). k1 is unbiased and may be negative for a sample. */
double tinker_kl_k1(double p, double q)
{
    return p - q;
}

/* Biased, but of low variance and never negative: half the squared log-ratio. */
double tinker_kl_k2(double p, double q)
{
    return (p - q) * (p - q) / 2;
}

/* Unbiased and never negative: (r - 1) - log r with r = q / p. expm1() keeps the digits that
 * exp(x) - 1 loses where the two models nearly agree, which is most tokens. */
double tinker_kl_k3(double p, double q)
{
    return expm1(q - p) + p - q;
}

/* Rounded to float32, as the service gets them; the mean is one, too, since that is how the
 * rewards of a group are averaged in the cookbook. GRPO divides by the standard deviation of the
 * group (Shao et al. 2024; 1e-6 as in the cookbook). RLOO compares with the mean of the others:
 * r - (S - r) / (n - 1) = (r - mean) n / (n - 1). */
void tinker_group_advantages(const double *reward, size_t n, tinker_advantage how, double *out)
{
    float sum = 0;
    double square = 0;
    for (size_t i = 0; i < n; i++)
        sum += (float)reward[i];
    float mean = n ? sum / (float)n : 0;
    for (size_t i = 0; i < n; i++)
        square += ((double)(float)reward[i] - mean) * ((double)(float)reward[i] - mean);
    double deviation = n ? sqrt(square / (double)n) : 0;
    for (size_t i = 0; i < n; i++) {
        float centered = (float)reward[i] - mean;
        switch (how) {
        case TINKER_ADVANTAGE_GRPO:
            out[i] = (float)(centered / (deviation + 1e-6));
            break;
        case TINKER_ADVANTAGE_RLOO:
            out[i] = n > 1 ? (float)((double)centered * (double)n / (double)(n - 1)) : 0;
            break;
        case TINKER_ADVANTAGE_RAW:
            out[i] = (float)reward[i];
            break;
        default:
            out[i] = centered;
        }
    }
}

/* y[t] = x[t] + discount * y[t + 1] So a token is also charged for the divergence that later
 * tokens of its answer cause. */
static void carry_back(float *x, size_t n, double discount)
{
    for (size_t t = n; t-- > 1;)
        x[t - 1] = (float)(x[t - 1] + discount * x[t]);
}

/* The mean over all sampled tokens comes first, because a centered penalty needs it. The arrays of
 * advantages are those of tinker_rollouts_data(), which may be written. */
double tinker_add_kl(const tinker_datum *data, size_t n, float *const *reference, double coef,
                     double discount, int centered)
{
    double sum = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        const float *q = score_floats(&data[i], "logprobs"), *mask = score_floats(&data[i], "mask");
        for (size_t t = 0; q && mask && t < score_length(&data[i]); t++)
            if (mask[t] != 0) {
                sum += q[t] - reference[i][t];
                count++;
            }
    }
    float mean = count ? (float)(sum / count) : 0;
    for (size_t i = 0; i < n; i++) {
        const float *q = score_floats(&data[i], "logprobs"), *mask = score_floats(&data[i], "mask");
        float *advantage = (float *)score_floats(&data[i], "advantages");
        size_t length = score_length(&data[i]);
        float *added = calloc(length + 1, sizeof(*added));
        for (size_t t = 0; added && q && mask && t < length; t++)
            if (mask[t] != 0)
                added[t] = (float)(coef * ((centered ? mean : 0) - (q[t] - reference[i][t])));
        if (added && discount > 0)
            carry_back(added, length, discount);
        for (size_t t = 0; added && advantage && t < length; t++)
            advantage[t] += added[t];
        free(added);
    }
    return mean;
}

/* Computed as a product, so that no factorial overflows. The unbiased estimate of Chen et al.
 * 2021 (Codex): 1 - C(n - correct, k) / C(n, k), the chance that k answers drawn without
 * replacement hold a correct one. */
double tinker_pass_at_k(size_t n, size_t correct, size_t k)
{
    if (n - correct < k)
        return 1;
    double none = 1;
    for (size_t i = n - correct + 1; i <= n; i++)
        none *= 1 - (double)k / (double)i;
    return 1 - none;
}
