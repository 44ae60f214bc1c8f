/* vec.h - element-wise functions and reductions of the engine outside its products.
 *
 * Element-wise results depend on the element alone, wherever it stands in the vector.
 * Reductions take the elements in a fixed order that depends on n alone: index modulo
 * 16 first, then the sixteen sums in pairs.  The plain functions are the twins of the
 * vector ones; all are exact to a few units in the last place. */
#ifndef ENGINE_KERNELS_VEC_H
#define ENGINE_KERNELS_VEC_H

#include <stddef.h>

struct vec_ops {
    /* y = silu(gate) * up */
    void (*silu)(float *y, const float *gate, const float *up, size_t n);
    /* dup holds the gradient of silu(gate) * up: dgate and dup receive those of gate, up. */
    void (*silu_backward)(float *dgate, float *dup, const float *gate, const float *up, size_t n);
    float (*largest)(const float *z, size_t n); /* n > 0; -infinity is fine, NaN is not */
    int (*has_nan)(const float *z, size_t n);
    /* sum of exp((z - max) * scale), blocks of floats summed in double */
    double (*sum_exp)(const float *z, size_t n, float max, float scale);
    /* z = factor * exp((z - max) * scale - shift) */
    void (*softmax)(float *z, size_t n, float max, float scale, float shift, float factor);
    float (*dot)(const float *a, const float *b, size_t n);
    float (*dot3)(const float *a, const float *b, const float *c, size_t n); /* of a*b*c */
    /* y = x * s * w */
    void (*scale_by)(float *y, const float *x, const float *w, float s, size_t n);
    void (*add)(float *y, const float *x, size_t n); /* y += x */
    /* y = s * x, which y may be; y += s * x; y += a * b: each product is rounded */
    void (*scale)(float *y, const float *x, float s, size_t n);
    void (*add_scaled)(float *y, const float *x, float s, size_t n);
    void (*add_products)(float *y, const float *a, const float *b, size_t n);
};

extern const struct vec_ops vec_plain;

const struct vec_ops *vec_ops(void); /* of the kernels that dispatch.c chose */

/* The index of the largest of n > 0 values, the first one of equals; no NaN. */
size_t vec_argmax(const float *z, size_t n);

#endif
