/* vec_avx512.c - the functions of vec.h for one instruction set; the body is vec_simd.h. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/vec_simd.h"
#include "engine/kernels/x86/sets.h"

const struct vec_ops vec_avx512 = {
    silu, silu_backward, largest, has_nan, sum_exp, softmax, dot, dot3, scale_by, add,
};
