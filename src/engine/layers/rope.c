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
        [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_DYNAMIC] = "dynamic",
        [ROPE_LLAMA3] = "llama3",   [ROPE_YARN] = "yarn",     [ROPE_LONGROPE] = "longrope",
    };
    return names[type];
}

/* "llama3": short wavelengths stay, long ones are stretched by `factor`, and those between are
 * interpolated by how often they turn within the original context. */
static double llama3_scaled(const struct rope_config *r, double inv)
{
    double wavelength = 2 * pi / inv;
    double low = r->original_context / r->low_freq_factor;
    /* A wavelength is compared with the original context divided by the two factors. */
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
static double yarn_dimension(const struct rope_config *r, double rotations, size_t rotary)
{
    return (double)rotary * log(r->original_context / (rotations * 2 * pi)) / (2 * log(r->theta));
}

/* YaRN (Peng et al. 2023): dimensions that turn more than beta_fast times within
 * the original context stay, those below beta_slow turns are stretched, a ramp between. */
static double yarn_scaled(const struct rope_config *r, double inv, size_t j, size_t rotary)
{
    double low = yarn_dimension(r, r->beta_fast, rotary);
    double high = yarn_dimension(r, r->beta_slow, rotary);
    /* transformers rounds the edges of the ramp outward unless `truncate` is false. */
    if (!r->keep_fraction) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)rotary - 1);
    if (low == high)
        high += 0.001; /* as the reference: no division by zero */
    double ramp = fmin(fmax(((double)j - low) / (high - low), 0), 1);
    return inv / r->factor * ramp + inv * (1 - ramp);
}

/* YaRN's m(k): 0.1 k ln(factor) + 1. */
static double yarn_mscale(double factor, double k)
{
    return factor <= 1 ? 1 : 0.1 * k * log(factor) + 1;
}

/* The temperature of the softmax as a factor of cos and sin. */
static float attention_factor(const struct rope_config *r)
{
    if (r->type != ROPE_YARN && r->type != ROPE_LONGROPE)
        return 1;
    /* A factor that the file states counts before any formula. */
    if (r->attention_factor > 0)
        return (float)r->attention_factor;
    if (r->type == ROPE_LONGROPE)
        return r->factor <= 1 ? 1.0f : (float)sqrt(1 + log(r->factor) / log(r->original_context));
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return (float)(yarn_mscale(r->factor, r->mscale) /
                       yarn_mscale(r->factor, r->mscale_all_dim));
    return (float)yarn_mscale(r->factor, 1);
}

float rope_init(const struct rope_config *r, size_t rotary, const float *divisors, float *inv_freq)
{
    for (size_t j = 0; j < rotary / 2; j++) {
        double exponent = 2.0 * (double)j / (double)rotary;
        /* theta^(-2j/d), rounded to float before it is scaled, as transformers does */
        double inv = (float)(1.0 / pow(r->theta, exponent));
        switch (r->type) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: /* within max_position_embeddings, which is all that we take */
        case ROPE_TYPES:
            break;
        case ROPE_LINEAR:
            inv /= r->factor;
            break;
        case ROPE_LLAMA3:
            inv = llama3_scaled(r, inv);
            break;
        case ROPE_YARN:
            inv = yarn_scaled(r, inv, j, rotary);
            break;
        case ROPE_LONGROPE:
            /* From theta once more: inv is already rounded, and transformers divides before it
             * rounds. */
            inv = 1.0 / ((double)divisors[j] * pow(r->theta, exponent));
            break;
        }
        inv_freq[j] = (float)inv;
    }
    return attention_factor(r);
}

size_t rope_count(const struct model_config *c)
{
    return c->local_rope.theta != 0 ? 2 : 1;
}

size_t rope_of_layer(const struct model_config *c, size_t layer)
{
    return rope_count(c) == 2 && model_layer_is(c, layer, LAYER_SLIDES) ? 1 : 0;
}

void rope_table(const struct model *m, size_t which, size_t pos, size_t n, bool is_long, float *cs)
{
    const struct rope *r = &m->ropes[which];
    const float *inv_freq = is_long && r->long_inv_freq ? r->long_inv_freq : r->inv_freq;
    size_t half = m->config.rotary / 2;
    for (size_t i = 0; i < n; i++, cs += 2 * half) {
        for (size_t j = 0; j < half; j++) {
            /* float on purpose: the references round it, and at long positions that shows */
            float angle = (float)(pos + i) * inv_freq[j];
            cs[j] = (float)cos((double)angle) * r->scale;
            cs[half + j] = (float)sin((double)angle) * r->scale;
        }
    }
}

/* 1 + beta ln(1 + floor(pos / original context)): Ministral's, after Llama 4. */
float rope_temperature(const struct model_config *c, size_t pos)
{
    if (c->temperature == 0)
        return 1;
    return (float)(1 + c->temperature * log(1 + floor((double)pos / c->rope.original_context)));
}

/* (a, b) -> (a cos - b sin, b cos + a sin) */
void rope_rotate(float *x, const float *cs, size_t rotary)
{
    size_t half = rotary / 2;
    const float *c = cs, *s = cs + half;
    for (size_t j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * c[j] - b * s[j];
        x[j + half] = b * c[j] + a * s[j];
    }
}

/* By the negative angle: the transposed matrix, times rope_scale as in the forward. */
void rope_rotate_back(float *dx, const float *cs, size_t rotary)
{
    size_t half = rotary / 2;
    const float *c = cs, *s = cs + half;
    for (size_t j = 0; j < half; j++) {
        float a = dx[j], b = dx[j + half];
        dx[j] = a * c[j] + b * s[j];
        dx[j + half] = b * c[j] - a * s[j];
    }
}
