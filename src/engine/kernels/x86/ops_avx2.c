/* ops_avx2.c - tiles of up to 6 x 16 for AVX2 with FMA: 12 accumulators, 2 columns, 1 broadcast.
 * One or two rows take two panels at once, which hides the latency of their few chains. */
#include "engine/kernels/x86/simd_avx2.h"
#include "engine/kernels/tile_weights.h"
#include "engine/kernels/x86/pack_avx2.h"
#include "engine/kernels/x86/sets.h"

/* The number of rows must be a constant where a tile is inlined: its sums are registers. */
TILE void avx2_panel_f32(size_t mr, size_t K, const float *a, const float *b,
                         const struct tile_out *out)
{
    switch (mr) {
    case 1:
        tile_run_f32(1, 2, K, a, b, out);
        break;
    case 2:
        tile_run_f32(2, 2, K, a, b, out);
        break;
    case 3:
        tile_run_f32(3, 2, K, a, b, out);
        break;
    case 4:
        tile_run_f32(4, 2, K, a, b, out);
        break;
    case 5:
        tile_run_f32(5, 2, K, a, b, out);
        break;
    default:
        tile_run_f32(6, 2, K, a, b, out);
        break;
    }
}

/* One case per number of rows, so that mr is a constant and the sums stay in registers. */
TILE void avx2_panel_bf16(size_t mr, size_t K, const float *a, const uint16_t *b,
                          const struct tile_out *out)
{
    switch (mr) {
    case 1:
        tile_run_bf16(1, 2, K, a, b, out);
        break;
    case 2:
        tile_run_bf16(2, 2, K, a, b, out);
        break;
    case 3:
        tile_run_bf16(3, 2, K, a, b, out);
        break;
    case 4:
        tile_run_bf16(4, 2, K, a, b, out);
        break;
    case 5:
        tile_run_bf16(5, 2, K, a, b, out);
        break;
    default:
        tile_run_bf16(6, 2, K, a, b, out);
        break;
    }
}

/* Two panels of three rows would need 12 sums, 4 columns and a broadcast, more than the 16
 * registers: from three rows on, one panel after the other. */
TILE void avx2_tile_f32(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                        const void *b, const struct tile_out *out)
{
    (void)type;
    if (np == 1) {
        avx2_panel_f32(mr, K, a, b, out);
    } else if (mr == 1) {
        tile_run_f32(1, 4, K, a, b, out);
    } else if (mr == 2) {
        tile_run_f32(2, 4, K, a, b, out);
    } else {
        /* The second panel writes NR columns further on. */
        struct tile_out second = *out;
        second.y += NR;
        avx2_panel_f32(mr, K, a, b, out);
        avx2_panel_f32(mr, K, a, (const float *)b + K * NR, &second);
    }
}

/* A panel of pairs has an even number of rows: an odd K is padded with zeros. */
TILE void avx2_tile_bf16(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                         const void *b, const struct tile_out *out)
{
    (void)type;
    if (np == 1) {
        avx2_panel_bf16(mr, K, a, b, out);
    } else if (mr == 1) {
        tile_run_bf16(1, 4, K, a, b, out);
    } else if (mr == 2) {
        tile_run_bf16(2, 4, K, a, b, out);
    } else {
        struct tile_out second = *out;
        second.y += NR;
        avx2_panel_bf16(mr, K, a, b, out);
        /* Pairs of rows lie together, so an odd K takes one row more. */
        avx2_panel_bf16(mr, K, a, (const uint16_t *)b + (K + (K & 1)) * NR, &second);
    }
}

/* rows and cols are multiples of 8; blocks of 8 x 8 go through registers. */
TILE void avx2_transpose(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                         size_t cols)
{
    for (size_t c = 0; c < cols; c += 8)
        for (size_t r = 0; r < rows; r += 8)
            transpose8(dst + c * ldd + r, ldd, src + r * lds + c, lds);
}

/* The templates of pack_avx2.h under the names of this set. */
TILE void avx2_pack_rows(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    tile_pack_rows(dst, mr, src, lds, K);
}

TILE void avx2_pack_columns(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    tile_pack_columns(dst, mr, src, lds, K);
}

TILE void avx2_row(float *y, const float *x, const float *w, size_t ldw, size_t K, float alpha,
                   int add)
{
    tile_row(y, x, w, ldw, K, alpha, add);
}

/* mr: rows of a tile; wide: up to so many rows two panels run together. Quantized weights are
 * widened block by block, so they share one tile. */
const struct kernel_ops kernels_avx2 = {
    .name = "avx2",
    .mr = 6,
    .wide = 2,
    .weights = {
        [PACKED_F32] = { .rows = 6, .tile = avx2_tile_f32, .expand = tile_expand_f32 },
        [PACKED_BF16] = { .rows = 6, .tile = avx2_tile_bf16, .expand = tile_expand_bf16 },
        [PACKED_BF16_PAIRS] = { .rows = 6, .tile = avx2_tile_bf16, .expand = tile_expand_bf16 },
        [PACKED_Q8_0] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_0] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q5_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q6_K] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_MXFP4] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q8_0_INT8] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
        [PACKED_Q4_0_INT8] = { .rows = QUANT_ROWS, .tile = tile_quant, .expand = tile_expand_quant },
    },
    .transpose = avx2_transpose,
    .pack_rows = avx2_pack_rows,
    .pack_columns = avx2_pack_columns,
    .row = avx2_row,
    .attn = &attn_avx2,
    .vec = &vec_avx2,
};
