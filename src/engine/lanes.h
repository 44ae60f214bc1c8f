/* lanes.h - sums over vectors in a fixed order: sixteen lanes, then the lanes in pairs.
 *
 * The order depends on n alone, so a result is the same wherever it is computed. */
#ifndef ENGINE_LANES_H
#define ENGINE_LANES_H

#include <stddef.h>
#include <string.h>

enum { LANES = 16 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static inline void lanes_load(lanes *v, const float *p)
{
    memcpy(v, p, sizeof(*v)); /* p need not be aligned */
}

/* Lanes in pairs: 0+8, 1+9, ..., then 0+4, ..., down to one. */
static inline float lanes_sum(const lanes *v)
{
    float s[LANES];
    memcpy(s, v, sizeof(s));
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] += s[i + width];
    return s[0];
}

/* Lane i sums the products of the indices i modulo 16; the tail is added last, in order. */
static inline float lanes_dot(const float *a, const float *b, size_t n)
{
    lanes sum = { 0 }, x, y;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_load(&x, a + i);
        lanes_load(&y, b + i);
        sum += x * y;
    }
    float total = lanes_sum(&sum);
    for (; i < n; i++)
        total += a[i] * b[i];
    return total;
}

static inline void lanes_scale(float *y, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= s;
}

#endif
