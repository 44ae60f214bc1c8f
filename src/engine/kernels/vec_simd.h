/* vec_simd.h - the functions of vec.h in the words of simd_*.h.
 *
 * Not a header to share: vec_avx2.c and vec_avx512.c include it after the vocabulary
 * of their instruction set.  A reduction keeps sixteen sums whatever the width. */
#ifndef ENGINE_KERNELS_VEC_SIMD_H
#define ENGINE_KERNELS_VEC_SIMD_H

#include <math.h>
#include "engine/kernels/vec.h"
#include "engine/kernels/exp_simd.h"

enum { WIDTH = 16, PARTS = WIDTH / LANES };

/* 1 / (1 + e^-x) */
INLINE vec simd_sigmoid(vec x)
{
    vec one = vec_set1(1.0f);
    return vec_div(one, vec_add(one, vec_exp(vec_sub(vec_zero(), x))));
}

static void simd_silu(float *y, const float *gate, const float *up, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec g = vec_load(gate + i);
        vec_store(y + i, vec_mul(vec_mul(g, simd_sigmoid(g)), vec_load(up + i)));
    }
    if (i < n) {
        vec g = vec_load_part(gate + i, n - i);
        vec_store_part(y + i, vec_mul(vec_mul(g, simd_sigmoid(g)), vec_load_part(up + i, n - i)),
                       n - i);
    }
}

/* d/dg simd_silu(g) = s (1 + g (1 - s)) with s = simd_sigmoid(g) */
INLINE void simd_silu_gradient(vec d, vec g, vec u, vec *dg, vec *du)
{
    vec s = simd_sigmoid(g), one = vec_set1(1.0f);
    *du = vec_mul(vec_mul(d, g), s);
    *dg = vec_mul(vec_mul(vec_mul(d, u), s), vec_fma(g, vec_sub(one, s), one));
}

static void simd_silu_backward(float *dgate, float *dup, const float *gate, const float *up,
                               size_t n)
{
    size_t i = 0;
    vec dg, du;
    for (; i + LANES <= n; i += LANES) {
        simd_silu_gradient(vec_load(dup + i), vec_load(gate + i), vec_load(up + i), &dg, &du);
        vec_store(dup + i, du);
        vec_store(dgate + i, dg);
    }
    if (i < n) {
        size_t k = n - i;
        simd_silu_gradient(vec_load_part(dup + i, k), vec_load_part(gate + i, k),
                           vec_load_part(up + i, k), &dg, &du);
        vec_store_part(dup + i, du, k);
        vec_store_part(dgate + i, dg, k);
    }
}

static float simd_largest(const float *z, size_t n)
{
    float max = -INFINITY, t[LANES];
    vec m = vec_set1(-INFINITY);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        m = vec_max(m, vec_load(z + i));
    vec_store(t, m);
    for (size_t k = 0; k < LANES; k++)
        max = t[k] > max ? t[k] : max;
    for (; i < n; i++)
        max = z[i] > max ? z[i] : max;
    return max;
}

static int simd_has_nan(const float *z, size_t n)
{
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        if (vec_nan(vec_load(z + i), vec_load(z + i + LANES)))
            return 1;
    while (i < n && z[i] == z[i])
        i++;
    return i < n;
}

/* The sixteen sums in pairs. */
INLINE float sum_lanes(const vec *sum)
{
    float t[WIDTH];
    for (size_t p = 0; p < PARTS; p++)
        vec_store(t + p * LANES, sum[p]);
    for (size_t width = WIDTH / 2; width > 0; width /= 2)
        for (size_t k = 0; k < width; k++)
            t[k] += t[k + width];
    return t[0];
}

static double simd_sum_exp(const float *z, size_t n, float max, float scale)
{
    enum { BLOCK = 16 * WIDTH };
    double sum = 0;
    float last[WIDTH];
    vec m = vec_set1(max), s = vec_set1(scale);
    for (size_t begin = 0; begin < n; begin += BLOCK) {
        vec part[PARTS];
        for (size_t p = 0; p < PARTS; p++)
            part[p] = vec_zero();
        for (size_t i = begin; i < n && i < begin + BLOCK; i += WIDTH) {
            const float *from = z + i;
            if (n - i < WIDTH) { /* what is missing adds exactly 0 */
                for (size_t k = 0; k < WIDTH; k++)
                    last[k] = k < n - i ? z[i + k] : -INFINITY;
                from = last;
            }
            for (size_t p = 0; p < PARTS; p++) {
                vec x = vec_mul(vec_sub(vec_load(from + p * LANES), m), s);
                part[p] = vec_add(part[p], vec_exp(x));
            }
        }
        sum += (double)sum_lanes(part);
    }
    return sum;
}

static void simd_softmax(float *z, size_t n, float max, float scale, float shift, float factor)
{
    vec m = vec_set1(max), s = vec_set1(scale), l = vec_set1(shift), f = vec_set1(factor);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec x = vec_sub(vec_mul(vec_sub(vec_load(z + i), m), s), l);
        vec_store(z + i, vec_mul(f, vec_exp(x)));
    }
    if (i < n) {
        vec x = vec_sub(vec_mul(vec_sub(vec_load_part(z + i, n - i), m), s), l);
        vec_store_part(z + i, vec_mul(f, vec_exp(x)), n - i);
    }
}

static float simd_dot(const float *a, const float *b, size_t n)
{
    vec sum[PARTS];
    size_t i = 0;
    for (size_t p = 0; p < PARTS; p++)
        sum[p] = vec_zero();
    for (; i + WIDTH <= n; i += WIDTH)
        for (size_t p = 0; p < PARTS; p++)
            sum[p] = vec_fma(vec_load(a + i + p * LANES), vec_load(b + i + p * LANES), sum[p]);
    float result = sum_lanes(sum);
    for (; i < n; i++)
        result = fmaf(a[i], b[i], result);
    return result;
}

static float simd_dot3(const float *a, const float *b, const float *c, size_t n)
{
    vec sum[PARTS];
    size_t i = 0;
    for (size_t p = 0; p < PARTS; p++)
        sum[p] = vec_zero();
    for (; i + WIDTH <= n; i += WIDTH)
        for (size_t p = 0; p < PARTS; p++) {
            size_t k = i + p * LANES;
            sum[p] = vec_fma(vec_mul(vec_load(a + k), vec_load(b + k)), vec_load(c + k), sum[p]);
        }
    float result = sum_lanes(sum);
    for (; i < n; i++)
        result = fmaf(a[i] * b[i], c[i], result);
    return result;
}

static void simd_scale_by(float *y, const float *x, const float *w, float s, size_t n)
{
    vec f = vec_set1(s);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_mul(vec_mul(vec_load(x + i), f), vec_load(w + i)));
    for (; i < n; i++)
        y[i] = x[i] * s * w[i];
}

static void simd_add(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_add(vec_load(y + i), vec_load(x + i)));
    for (; i < n; i++)
        y[i] += x[i];
}

static void simd_scale(float *y, const float *x, float s, size_t n)
{
    vec f = vec_set1(s);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_mul(vec_load(x + i), f));
    for (; i < n; i++)
        y[i] = x[i] * s;
}

static void simd_add_scaled(float *y, const float *x, float s, size_t n)
{
    vec f = vec_set1(s);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_add(vec_load(y + i), vec_mul(vec_load(x + i), f)));
    for (; i < n; i++)
        y[i] += x[i] * s;
}

static void simd_add_products(float *y, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_add(vec_load(y + i), vec_mul(vec_load(a + i), vec_load(b + i))));
    for (; i < n; i++)
        y[i] += a[i] * b[i];
}

#endif
