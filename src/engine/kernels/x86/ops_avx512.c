/* ops_avx512.c - tiles of up to 12 x 32 for AVX-512: 24 accumulators, 2 columns, 1 broadcast.
 * The same templates as ops_avx2.c with twice the lanes. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/tile_weights.h"
#include "engine/kernels/x86/pack_avx2.h"
#include "engine/kernels/x86/sets.h"

/* mr and the number of vectors are constants in every call below: sums stay in registers. */
TILE_PART void avx512_rows_f32(size_t mr, size_t np, size_t K, const float *a, const float *b,
                               const struct tile_out *out)
{
    if (np == 2)
        tile_run_f32(mr, 2, K, a, b, out);
    else
        tile_run_f32(mr, 1, K, a, b, out);
}

/* np panels of one vector each: a panel of 16 columns is one register. */
TILE_PART void avx512_rows_bf16(size_t mr, size_t np, size_t K, const float *a, const uint16_t *b,
                                const struct tile_out *out)
{
    if (np == 2)
        tile_run_bf16(mr, 2, K, a, b, out);
    else
        tile_run_bf16(mr, 1, K, a, b, out);
}

/* One case per number of rows, each with code of its own; 12 rows by two panels take 24 of the 32
 * registers for sums. */
TILE void avx512_tile_f32(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                          const void *b, const struct tile_out *out)
{
    (void)type;
    switch (mr) {
    case 1:
        avx512_rows_f32(1, np, K, a, b, out);
        break;
    case 2:
        avx512_rows_f32(2, np, K, a, b, out);
        break;
    case 3:
        avx512_rows_f32(3, np, K, a, b, out);
        break;
    case 4:
        avx512_rows_f32(4, np, K, a, b, out);
        break;
    case 5:
        avx512_rows_f32(5, np, K, a, b, out);
        break;
    case 6:
        avx512_rows_f32(6, np, K, a, b, out);
        break;
    case 7:
        avx512_rows_f32(7, np, K, a, b, out);
        break;
    case 8:
        avx512_rows_f32(8, np, K, a, b, out);
        break;
    case 9:
        avx512_rows_f32(9, np, K, a, b, out);
        break;
    case 10:
        avx512_rows_f32(10, np, K, a, b, out);
        break;
    case 11:
        avx512_rows_f32(11, np, K, a, b, out);
        break;
    default:
        avx512_rows_f32(12, np, K, a, b, out);
        break;
    }
}

/* Weights widen to float32 exactly, so only the storage is bfloat16; sums are as in f32. */
TILE void avx512_tile_bf16(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                           const void *b, const struct tile_out *out)
{
    (void)type;
    switch (mr) {
    case 1:
        avx512_rows_bf16(1, np, K, a, b, out);
        break;
    case 2:
        avx512_rows_bf16(2, np, K, a, b, out);
        break;
    case 3:
        avx512_rows_bf16(3, np, K, a, b, out);
        break;
    case 4:
        avx512_rows_bf16(4, np, K, a, b, out);
        break;
    case 5:
        avx512_rows_bf16(5, np, K, a, b, out);
        break;
    case 6:
        avx512_rows_bf16(6, np, K, a, b, out);
        break;
    case 7:
        avx512_rows_bf16(7, np, K, a, b, out);
        break;
    case 8:
        avx512_rows_bf16(8, np, K, a, b, out);
        break;
    case 9:
        avx512_rows_bf16(9, np, K, a, b, out);
        break;
    case 10:
        avx512_rows_bf16(10, np, K, a, b, out);
        break;
    case 11:
        avx512_rows_bf16(11, np, K, a, b, out);
        break;
    default:
        avx512_rows_bf16(12, np, K, a, b, out);
        break;
    }
}

/* 8 x 8 at a time, as AVX2 does: rows and cols are multiples of 8 only. */
TILE void avx512_transpose(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                           size_t cols)
{
    for (size_t c = 0; c < cols; c += 8)
        for (size_t r = 0; r < rows; r += 8)
            transpose8(dst + c * ldd + r, ldd, src + r * lds + c, lds);
}

/* Packing uses the templates of AVX2. */
TILE void avx512_pack_rows(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    tile_pack_rows(dst, mr, src, lds, K);
}

TILE void avx512_pack_columns(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    tile_pack_columns(dst, mr, src, lds, K);
}

/* One row of x: a matrix-vector product is bound by reading the weights, so lanes matter less
 * here than a plain walk through memory. */
TILE void avx512_row(float *y, const float *x, const float *w, size_t ldw, size_t K, float alpha,
                     int add)
{
    tile_row(y, x, w, ldw, K, alpha, add);
}

/* What the products above this layer choose from: tile height, and a tile for each form in which
 * weights are packed.  Forms without an entry are expanded to float32 first. */
const struct kernel_ops kernels_avx512 = {
    .name = "avx512",
    .mr = 12,
    .wide = 12,
    .weights = {
        [PACKED_F32] = { .rows = 12, .tile = avx512_tile_f32, .expand = tile_expand_f32 },
        [PACKED_BF16] = { .rows = 12, .tile = avx512_tile_bf16, .expand = tile_expand_bf16 },
        [PACKED_BF16_PAIRS] = { .rows = 12, .tile = avx512_tile_bf16, .expand = tile_expand_bf16 },
        [PACKED_Q8_0] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_0] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q5_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q6_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_MXFP4] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q8_0_INT8] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_0_INT8] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
    },
    .transpose = avx512_transpose,
    .pack_rows = avx512_pack_rows,
    .pack_columns = avx512_pack_columns,
    .row = avx512_row,
    .attn = &attn_avx512,
    .vec = &vec_avx512,
};
