/* rope.c - rotary position embedding.
 *
 * Frequencies and angles are computed in float as the reference implementations do,
 * so that long positions agree with them; sine and cosine of that angle in double. */
#include "engine/layers/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

const char *rope_type_name(enum rope_type type)
{
    static const char *const names[ROPE_TYPES] = {
        [ROPE_DEFAULT] = "default",
        [ROPE_LINEAR] = "linear",
        [ROPE_LLAMA3] = "llama3",
        [ROPE_YARN] = "yarn",
    };
    return names[type];
}

/* "llama3": short wavelengths stay, long ones are stretched by `factor`, and those between are
 * interpolated by how often they turn within the original context. */
static double llama3_scaled(const struct rope_config *r, double inv)
{
    double wavelength = 2 * pi / inv;
    double low = r->original_context / r->low_freq_factor;
    double high = r->original_context / r->high_freq_factor;
    if (wavelength < high)
        return inv;
    if (wavelength > low)
        return inv / r->factor;
    /* 0 at the long end, 1 at the short end */
    double s = (r->original_context / wavelength - r->low_freq_factor) /
               (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * inv / r->factor + s * inv;
}

/* Dimension at which `rotations` full turns happen over the original context. */
static double yarn_dimension(const struct rope_config *r, double rotations, size_t head_dim)
{
    return (double)head_dim * log(r->original_context / (rotations * 2 * pi)) / (2 * log(r->theta));
}

/* YaRN (Peng et al. 2023): dimensions that turn more than beta_fast times within
 * the original context stay, those below beta_slow turns are stretched, a ramp between. */
static double yarn_scaled(const struct rope_config *r, double inv, size_t j, size_t head_dim)
{
    double low = floor(yarn_dimension(r, r->beta_fast, head_dim));
    double high = ceil(yarn_dimension(r, r->beta_slow, head_dim));
    low = fmax(low, 0);
    high = fmin(high, (double)head_dim - 1);
    if (low == high)
        high += 0.001; /* as the reference: no division by zero */
    double ramp = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return inv / r->factor * ramp + inv * (1 - ramp);
}

/* YaRN's temperature of the softmax, as a factor of cos and sin: 0.1 ln(factor) + 1. */
static float attention_factor(const struct rope_config *r)
{
    if (r->type != ROPE_YARN)
        return 1;
    if (r->attention_factor > 0)
        return (float)r->attention_factor;
    return r->factor <= 1 ? 1.0f : (float)(0.1 * log(r->factor) + 1);
}

float rope_init(const struct rope_config *r, size_t head_dim, float *inv_freq)
{
    for (size_t j = 0; j < head_dim / 2; j++) {
        /* theta^(-2j/d), rounded to float before it is scaled, as transformers does */
        double inv = (float)(1.0 / pow(r->theta, 2.0 * (double)j / (double)head_dim));
        switch (r->type) {
        case ROPE_DEFAULT:
        case ROPE_TYPES:
            break;
        case ROPE_LINEAR:
            inv /= r->factor;
            break;
        case ROPE_LLAMA3:
            inv = llama3_scaled(r, inv);
            break;
        case ROPE_YARN:
            inv = yarn_scaled(r, inv, j, head_dim);
            break;
        }
        inv_freq[j] = (float)inv;
    }
    return attention_factor(r);
}

void rope_table(const struct model *m, size_t pos, size_t n, float *cs)
{
    size_t half = m->config.head_dim / 2;
    for (size_t i = 0; i < n; i++, cs += 2 * half) {
        for (size_t j = 0; j < half; j++) {
            /* float on purpose: the references round it, and at long positions that shows */
            float angle = (float)(pos + i) * m->inv_freq[j];
            cs[j] = (float)cos((double)angle) * m->rope_scale;
            cs[half + j] = (float)sin((double)angle) * m->rope_scale;
        }
    }
}

/* (a, b) -> (a cos - b sin, b cos + a sin) */
void rope_rotate(float *x, const float *cs, size_t head_dim)
{
    size_t half = head_dim / 2;
    const float *c = cs, *s = cs + half;
    for (size_t j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * c[j] - b * s[j];
        x[j + half] = b * c[j] + a * s[j];
    }
}

/* By the negative angle: the transposed matrix, times rope_scale as in the forward. */
void rope_rotate_back(float *dx, const float *cs, size_t head_dim)
{
    size_t half = head_dim / 2;
    const float *c = cs, *s = cs + half;
    for (size_t j = 0; j < half; j++) {
        float a = dx[j], b = dx[j + half];
        dx[j] = a * c[j] + b * s[j];
        dx[j + half] = b * c[j] - a * s[j];
    }
}
