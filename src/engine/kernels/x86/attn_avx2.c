/* attn_avx2.c - the attention kernels for one instruction set; the body is attn_simd.h. */
#include "engine/kernels/x86/simd_avx2.h"
#include "engine/kernels/attn_simd.h"
#include "engine/kernels/x86/sets.h"

/* The functions are static in the body and compiled again in attn_avx512.c with 16 lanes; this
 * table is all that the rest of the program sees. */
const struct attn_ops attn_avx2 = {
    .scores = simd_scores,
    .accumulate = simd_accumulate,
    .accumulate_turned = simd_accumulate_turned,
    .fold = simd_fold,
    .gradient = simd_gradient,
};
