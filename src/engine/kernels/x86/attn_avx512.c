/* attn_avx512.c - the attention kernels for one instruction set; the body is attn_simd.h. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/attn_simd.h"
#include "engine/kernels/x86/sets.h"

/* As attn_avx2.c, with the sixteen lanes of simd_avx512.h. */
const struct attn_ops attn_avx512 = {
    .scores = simd_scores,
    .accumulate = simd_accumulate,
    .accumulate_turned = simd_accumulate_turned,
    .fold = simd_fold,
    .gradient = simd_gradient,
};
