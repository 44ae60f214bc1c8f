/* ops_plain.c - the tiles in portable C, for machines without vector kernels.
 *
 * Also the model for a new set: same signatures, same order of sums.  One difference: products
 * and sums are rounded separately here (the engine is compiled with -ffp-contract=off), where
 * vector kernels fuse them, so the bits differ from those of the vector sets. */
#include "engine/kernels/ops.h"
#include "engine/kernels/attn.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/vec.h"

#include <string.h>

/* Panels are taken one after the other: the plain tile has no use for two at once,
 * and leaves prefetching (out->fetch) to the hardware. */
static void plain_tile_f32(size_t mr, size_t np, size_t K, const float *a, const float *b,
                           const struct tile_out *out)
{
    struct tile_out to = *out;
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

/* Two k share a 32-bit word per column: [k/2][16][2]. */
static void plain_widen(float *dst, const uint16_t *b, size_t K)
{
    for (size_t k = 0; k < K; k++)
        for (size_t n = 0; n < NR; n++)
            dst[k * NR + n] = f32_from_bf16(b[(k / 2 * NR + n) * 2 + (k & 1)]);
}

static void plain_tile_bf16(size_t mr, size_t np, size_t K, const float *a, const uint16_t *b,
                            const struct tile_out *out)
{
    struct tile_out to = *out;
    float wide[KC * NR];
    for (size_t p = 0; p < np; p++, b += (K + (K & 1)) * NR, to.y += NR) {
        plain_widen(wide, b, K);
        plain_tile_f32(mr, 1, K, a, wide, &to);
    }
}

static void plain_transpose(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                            size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            dst[c * ldd + r] = src[r * lds + c];
}

static void plain_pack_rows(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    for (size_t k = 0; k < K; k++)
        for (size_t m = 0; m < mr; m++)
            dst[k * mr + m] = src[m * lds + k];
}

static void plain_pack_columns(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    for (size_t k = 0; k < K; k++)
        memcpy(dst + k * mr, src + k * lds, mr * sizeof *dst);
}

const struct kernel_ops kernels_plain = {
    .name = "plain",
    .mr = 4,
    .wide = 0,
    .tile_f32 = plain_tile_f32,
    .tile_bf16 = plain_tile_bf16,
    .widen = plain_widen,
    .transpose = plain_transpose,
    .pack_rows = plain_pack_rows,
    .pack_columns = plain_pack_columns,
    .attn = &attn_plain,
    .vec = &vec_plain,
};
