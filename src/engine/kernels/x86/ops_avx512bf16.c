/* ops_avx512bf16.c - forward products of bfloat16 weights with VDPBF16PS.
 *
 * The left operand is rounded to bfloat16 once per block and a pair of products is
 * summed per step, so the bits differ from the widening kernels (half the time, and
 * the tolerance of the bfloat16 mode).  Everything else is that of AVX-512. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/tile_simd.h"
#include "engine/kernels/x86/sets.h"

TILE void narrow(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        vec_store_bf16(dst + i, vec_load(src + i));
}

TILE_PART void run(size_t mr, size_t nv, size_t K, const uint16_t *a, const uint16_t *b,
                   const struct tile_out *out)
{
    vec acc[16 * 4];
    const char *fetch = out->fetch;
    tile_begin(mr, nv, acc, out);
    size_t next = (K + (K & 1)) * NR;
    for (size_t k = 0; k < K; k += 2, b += 2 * NR) {
        ivec row[4];
        if (k % STEPS == 0)
            fetch = tile_fetch(fetch, out->lines);
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            row[v] = ivec_load(b + v * next);
#pragma GCC unroll 16
        for (size_t m = 0; m < mr; m++) {
            ivec x = ivec_set1(a + m * KC + k);
#pragma GCC unroll 4
            for (size_t v = 0; v < nv; v++)
                acc[m * nv + v] = vec_dot_bf16(acc[m * nv + v], x, row[v]);
        }
    }
    tile_store(mr, nv, acc, out);
}

TILE_PART void rows(size_t mr, size_t np, size_t K, const uint16_t *a, const uint16_t *b,
                    const struct tile_out *out)
{
    if (np == 2)
        run(mr, 2, K, a, b, out);
    else
        run(mr, 1, K, a, b, out);
}

TILE void tile_pairs(size_t mr, size_t np, size_t K, const uint16_t *a, const uint16_t *b,
                     const struct tile_out *out)
{
    switch (mr) {
    case 1:
        rows(1, np, K, a, b, out);
        break;
    case 2:
        rows(2, np, K, a, b, out);
        break;
    case 3:
        rows(3, np, K, a, b, out);
        break;
    case 4:
        rows(4, np, K, a, b, out);
        break;
    case 5:
        rows(5, np, K, a, b, out);
        break;
    case 6:
        rows(6, np, K, a, b, out);
        break;
    case 7:
        rows(7, np, K, a, b, out);
        break;
    case 8:
        rows(8, np, K, a, b, out);
        break;
    case 9:
        rows(9, np, K, a, b, out);
        break;
    case 10:
        rows(10, np, K, a, b, out);
        break;
    case 11:
        rows(11, np, K, a, b, out);
        break;
    default:
        rows(12, np, K, a, b, out);
        break;
    }
}

void kernels_avx512bf16_fill(struct kernel_ops *ops)
{
    ops->name = "avx512bf16";
    ops->narrow = narrow;
    ops->tile_pairs = tile_pairs;
}
