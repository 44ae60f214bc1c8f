/* vec_avx2.c - the functions of vec.h for one instruction set; the body is vec_simd.h. */
#include "engine/kernels/x86/simd_avx2.h"
#include "engine/kernels/vec_simd.h"
#include "engine/kernels/x86/sets.h"

/* A reduction keeps sixteen sums on every set, here two registers; only this table leaves the
 * file, all functions of the body are static. */
const struct vec_ops vec_avx2 = {
    .silu = simd_silu,
    .silu_backward = simd_silu_backward,
    .largest = simd_largest,
    .has_nan = simd_has_nan,
    .sum_exp = simd_sum_exp,
    .softmax = simd_softmax,
    .dot = simd_dot,
    .dot3 = simd_dot3,
    .scale_by = simd_scale_by,
    .add = simd_add,
    .scale = simd_scale,
    .add_scaled = simd_add_scaled,
    .add_products = simd_add_products,
};
