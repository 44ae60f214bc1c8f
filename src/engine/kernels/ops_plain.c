/* ops_plain.c - the tiles in portable C, for machines without vector kernels.
 *
 * Also the model for a new set: same signatures, same order of sums.  One difference: products
 * and sums are rounded separately here (the engine is compiled with -ffp-contract=off), where
 * vector kernels fuse them, so the bits differ from those of the vector sets. */
#include "engine/kernels/ops.h"
#include "engine/kernels/attn.h"
#include "engine/kernels/packed.h"
#include "engine/kernels/vec.h"

#include <string.h>

/* Panels are taken one after the other: the plain tile has no use for two at once,
 * and leaves prefetching (out->fetch) to the hardware. */
static void plain_tile_f32(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *left,
                           const void *right, const struct tile_out *out)
{
    struct tile_out to = *out;
    const float *a = left, *b = right;
    (void)type;
    for (size_t p = 0; p < np; p++, b += K * NR, to.y += NR) {
        float acc[MR_MAX * NR] = { 0 };
        for (size_t k = 0; k < K; k++)
            for (size_t m = 0; m < mr; m++)
                for (size_t n = 0; n < NR; n++)
                    acc[m * NR + n] += a[k * mr + m] * b[k * NR + n];
        for (size_t m = 0; m < mr; m++)
            for (size_t n = 0; n < NR; n++) {
                float *y = &to.y[m * to.ldy + n], v = to.alpha * acc[m * NR + n];
                *y = to.add ? *y + v : v;
            }
    }
}

/* Float32 panels are what tiles read: only a part of one is copied. */
static void plain_expand_f32(float *dst, enum packed_dtype type, const void *panel, size_t K,
                             size_t k, size_t n)
{
    (void)type, (void)K;
    memcpy(dst, (const float *)panel + k * NR, n * NR * sizeof *dst);
}

/* Two k share a 32-bit word per column: [k/2][16][2]. */
static void plain_expand_bf16(float *dst, enum packed_dtype type, const void *panel, size_t K,
                              size_t first, size_t n)
{
    const uint16_t *b = (const uint16_t *)panel + first * NR;
    (void)type, (void)K;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < NR; i++)
            dst[k * NR + i] = f32_from_bf16(b[(k / 2 * NR + i) * 2 + (k & 1)]);
}

/* The scale of column i at input k of a quantized panel, and what is taken off. */
static float read_scale(struct quant_format f, const uint8_t *panel, size_t K, size_t k, size_t i,
                        float *min)
{
    uint16_t d, dmin;
    size_t subs = (K + QUANT_BLOCK - 1) / QUANT_BLOCK * (QUANT_BLOCK / f.block);
    const uint8_t *sub = panel + 4 * NR + k / f.block * NR + i;
    *min = 0;
    if (!f.super) {
        memcpy(&d, panel + 2 * (k / QUANT_BLOCK * NR + i), sizeof d);
        return f.brain ? f32_from_bf16(d) : f32_from_f16(d);
    }
    memcpy(&d, panel + 2 * i, sizeof d);
    memcpy(&dmin, panel + 2 * (NR + i), sizeof dmin);
    if (f.min)
        *min = f32_from_f16(dmin) * (float)panel[4 * NR + (subs + k / QUANT_BLOCK) * NR + i];
    return f32_from_f16(d) * (f.sub_signed ? (float)(int8_t)*sub : (float)*sub);
}

/* The oracle of the vector kernels: what the codes of packed.h mean, one after the other. */
static void plain_expand_quant(float *dst, enum packed_dtype type, const void *panel, size_t K,
                               size_t first, size_t n)
{
    struct quant_format f = quant_format(type);
    const uint8_t *codes = (const uint8_t *)panel + quant_scales(f, K);
    for (size_t k = first; k < first + n; k++)
        for (size_t i = 0; i < NR; i++, dst++) {
            float min, scale = read_scale(f, panel, K, k, i, &min), value;
            if (f.bits == 8) {
                value = (float)(int8_t)codes[(k / 4 * NR + i) * 4 + k % 4];
            } else {
                uint8_t both = codes[(k / 8 * NR + i) * 4 + k % 4];
                value = quant_values[f.values][k % 8 < 4 ? both & 15 : both >> 4];
            }
            *dst = f.min ? scale * value - min : scale * value;
        }
}

/* Rows and columns are any number here; vector sets are only called with multiples of 8. */
static void plain_transpose(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                            size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[c * ldd + r] = src[r * lds + c];
}

/* dst [K][mr]: a tile reads the mr numbers of one k together. */
static void plain_pack_rows(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    for (size_t k = 0; k < K; k++)
        for (size_t m = 0; m < mr; m++)
            dst[k * mr + m] = src[m * lds + k];
}

/* The same from a source whose rows are already k: only the padding between them goes. */
static void plain_pack_columns(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    for (size_t k = 0; k < K; k++)
        memcpy(dst + k * mr, src + k * lds, mr * sizeof *dst);
}

/* Weights in other forms than float32 have no tile: gemm.c expands them block by block.  No .row: a
 * single row takes the tile, too. */
const struct kernel_ops kernels_plain = {
    .name = "plain",
    .mr = 4,
    .wide = 0,
    .weights = {
        [PACKED_F32] = { .rows = MR_MAX, .tile = plain_tile_f32, .expand = plain_expand_f32 },
        [PACKED_BF16] = { .expand = plain_expand_bf16 },
        [PACKED_BF16_PAIRS] = { .expand = plain_expand_bf16 },
        [PACKED_Q8_0] = { .expand = plain_expand_quant },
        [PACKED_Q4_0] = { .expand = plain_expand_quant },
        [PACKED_Q4_K] = { .expand = plain_expand_quant },
        [PACKED_Q5_K] = { .expand = plain_expand_quant },
        [PACKED_Q6_K] = { .expand = plain_expand_quant },
        [PACKED_MXFP4] = { .expand = plain_expand_quant },
        [PACKED_Q8_0_INT8] = { .expand = plain_expand_quant },
        [PACKED_Q4_0_INT8] = { .expand = plain_expand_quant },
    },
    .transpose = plain_transpose,
    .pack_rows = plain_pack_rows,
    .pack_columns = plain_pack_columns,
    .attn = &attn_plain,
    .vec = &vec_plain,
};
