/* vec.c - the functions of vec.h in portable C, and the choice among the sets.
 * vec_simd.h is the vector form; both keep the order of sums that vec.h states. */
#include "engine/kernels/vec.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/ops.h"

enum { WIDTH = 16 }; /* partial sums of a reduction, on every instruction set */

/* silu(g) = g / (1 + e^-g) */
static void plain_silu(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

/* With s = 1 / (1 + e^-g): d silu / dg = s * (1 + g * (1 - s)). */
static void plain_silu_backward(float *dgate, float *dup, const float *gate, const float *up,
                                size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float d = dup[i], s = 1.0f / (1.0f + expf(-gate[i]));
        dup[i] = d * gate[i] * s;
        dgate[i] = d * up[i] * s * (1.0f + gate[i] * (1.0f - s));
    }
}

static float plain_largest(const float *z, size_t n)
{
    float max = z[0];
    for (size_t i = 1; i < n; i++)
        max = z[i] > max ? z[i] : max;
    return max;
}

/* Only a NaN differs from itself. */
static int plain_has_nan(const float *z, size_t n)
{
    size_t i = 0;
    while (i < n && z[i] == z[i])
        i++;
    return i < n;
}

/* In double, which a vocabulary of 10^5 terms needs; callers subtract the maximum, so that no
 * term exceeds 1. */
static double plain_sum_exp(const float *z, size_t n, float max, float scale)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)expf((z[i] - max) * scale);
    return sum;
}

/* shift is the logarithm of the sum, so this is e^(z - max) / sum without a division per term. */
static void plain_softmax(float *z, size_t n, float max, float scale, float shift, float factor)
{
    for (size_t i = 0; i < n; i++)
        z[i] = factor * expf((z[i] - max) * scale - shift);
}

/* Sixteen sums to one: 0+8, 1+9, ..., then 0+4, ...: the fixed order of every reduction. */
static float add_pairs(float *t)
{
    for (size_t width = WIDTH / 2; width > 0; width /= 2)
        for (size_t k = 0; k < width; k++)
            t[k] += t[k + width];
    return t[0];
}

static float plain_dot(const float *a, const float *b, size_t n)
{
    float t[WIDTH] = { 0 };
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        for (size_t k = 0; k < WIDTH; k++)
            t[k] += a[i + k] * b[i + k];
    float result = add_pairs(t);
    for (; i < n; i++)
        result += a[i] * b[i];
    return result;
}

static float plain_dot3(const float *a, const float *b, const float *c, size_t n)
{
    float t[WIDTH] = { 0 };
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        for (size_t k = 0; k < WIDTH; k++)
            t[k] += a[i + k] * b[i + k] * c[i + k];
    float result = add_pairs(t);
    for (; i < n; i++)
        result += a[i] * b[i] * c[i];
    return result;
}

static void plain_scale_by(float *y, const float *x, const float *w, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static void plain_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void plain_scale(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

static void plain_add_scaled(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i] * s;
}

static void plain_add_products(float *y, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a[i] * b[i];
}

const struct vec_ops vec_plain = {
    .silu = plain_silu,
    .silu_backward = plain_silu_backward,
    .largest = plain_largest,
    .has_nan = plain_has_nan,
    .sum_exp = plain_sum_exp,
    .softmax = plain_softmax,
    .dot = plain_dot,
    .dot3 = plain_dot3,
    .scale_by = plain_scale_by,
    .add = plain_add,
    .scale = plain_scale,
    .add_scaled = plain_add_scaled,
    .add_products = plain_add_products,
};

const struct vec_ops *vec_ops(void)
{
    return kernels_ops()->vec;
}

/* Find the maximum, then the first block that has it, and search only that one element by
 * element: two vector passes are faster than one scalar pass. */
size_t vec_argmax(const float *z, size_t n)
{
    enum { BLOCK = 1024 };
    const struct vec_ops *ops = vec_ops();
    float max = ops->largest(z, n);
    size_t i = 0;
    while (i + BLOCK < n && ops->largest(z + i, BLOCK) != max)
        i += BLOCK;
    while (i + 1 < n && z[i] != max)
        i++;
    return i;
}
