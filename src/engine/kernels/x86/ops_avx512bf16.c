/* ops_avx512bf16.c - products of bfloat16 weights with VDPBF16PS, forward and backward.
 *
 * The left operand is rounded to bfloat16 once per block and a pair of products is
 * summed per step, so the bits differ from the widening kernels (half the time, and
 * the tolerance of the bfloat16 mode).  Everything else is that of AVX-512. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/tile_simd.h"
#include "engine/kernels/x86/pack_avx2.h"
#include "engine/kernels/x86/sets.h"

/* float32 to bfloat16, to nearest, ties to even. */
TILE void avx512_narrow(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        vec_store_bf16(dst + i, vec_load(src + i));
}

/* Even inputs of a square are the lower halves of its words, odd ones the upper.  Taken apart, an
 * input's row is 8 pairs of outputs; 16 such rows, transposed as 32-bit words, are the result. */
TILE void avx512_transpose_pairs(uint16_t *dst, const uint16_t *src)
{
    _Alignas(LINE) float rows[NR][NR / 2];
    for (size_t c = 0; c < NR; c += 2) {
        ivec words = ivec_load(src + c * NR);
        ivec_store_low16(rows[c], words);
        ivec_store_low16(rows[c + 1], ivec_shift(words, 16));
    }
    transpose8((float *)(void *)dst, NR, rows[0], NR / 2);
    transpose8((float *)(void *)dst + NR / 2, NR, rows[NR / 2], NR / 2);
}

/* Rows of 16 numbers, of which two become the halves of 16 words. */
TILE void avx512_pair_rows(uint16_t *dst, const float *src, size_t ld, size_t K)
{
    for (size_t k = 0; k < K; k += 2, src += 2 * ld, dst += 2 * NR)
        ivec_store_pairs(dst, vec_load(src), vec_load(src + ld));
}

/* VDPBF16PS adds two products of neighboring k to each sum, so k runs in steps of two. */
TILE_PART void tile_run_pairs(size_t mr, size_t nv, size_t K, const uint16_t *a, const uint16_t *b,
                              const struct tile_out *out)
{
    vec acc[16 * 4];
    const char *fetch = out->fetch;
    tile_begin(mr, nv, acc, out);
    /* The second panel begins behind K rows, rounded up to pairs. */
    size_t next = (K + (K & 1)) * NR;
    for (size_t k = 0; k < K; k += 2, b += 2 * NR) {
        ivec row[4];
        if (k % STEPS == 0)
            /* A little of the next panel per step, so that its lines arrive before they are read. */
            fetch = tile_fetch(fetch, out->lines);
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            row[v] = ivec_load(b + v * next);
#pragma GCC unroll 16
        for (size_t m = 0; m < mr; m++) {
            /* Two neighboring bfloat16 of row m, repeated in every lane. */
            ivec x = ivec_set1(a + m * KC + k);
#pragma GCC unroll 4
            for (size_t v = 0; v < nv; v++)
                acc[m * nv + v] = vec_dot_bf16(acc[m * nv + v], x, row[v]);
        }
    }
    tile_store(mr, nv, acc, out);
}

TILE_PART void avx512_rows_pairs(size_t mr, size_t np, size_t K, const uint16_t *a,
                                 const uint16_t *b, const struct tile_out *out)
{
    if (np == 2)
        tile_run_pairs(mr, 2, K, a, b, out);
    else
        tile_run_pairs(mr, 1, K, a, b, out);
}

/* As in ops_avx512.c, a case per number of rows makes it a constant. */
TILE void avx512_tile_pairs(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                            const void *b, const struct tile_out *out)
{
    (void)type;
    switch (mr) {
    case 1:
        avx512_rows_pairs(1, np, K, a, b, out);
        break;
    case 2:
        avx512_rows_pairs(2, np, K, a, b, out);
        break;
    case 3:
        avx512_rows_pairs(3, np, K, a, b, out);
        break;
    case 4:
        avx512_rows_pairs(4, np, K, a, b, out);
        break;
    case 5:
        avx512_rows_pairs(5, np, K, a, b, out);
        break;
    case 6:
        avx512_rows_pairs(6, np, K, a, b, out);
        break;
    case 7:
        avx512_rows_pairs(7, np, K, a, b, out);
        break;
    case 8:
        avx512_rows_pairs(8, np, K, a, b, out);
        break;
    case 9:
        avx512_rows_pairs(9, np, K, a, b, out);
        break;
    case 10:
        avx512_rows_pairs(10, np, K, a, b, out);
        break;
    case 11:
        avx512_rows_pairs(11, np, K, a, b, out);
        break;
    default:
        avx512_rows_pairs(12, np, K, a, b, out);
        break;
    }
}

/* ops is a copy of kernels_avx512.  Only products with these weights change; all other
 * functions stay those of AVX-512. */
void kernels_avx512bf16_fill(struct kernel_ops *ops)
{
    ops->name = "avx512bf16";
    ops->attn = &attn_avx512bf16;
    ops->weights[PACKED_BF16_PAIRS].narrow = avx512_narrow;
    ops->weights[PACKED_BF16_PAIRS].transpose_pairs = avx512_transpose_pairs;
    ops->weights[PACKED_BF16_PAIRS].pair_rows = avx512_pair_rows;
    ops->weights[PACKED_BF16_PAIRS].tile = avx512_tile_pairs;
}
