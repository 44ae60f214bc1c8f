/* ops_plain.c - the tiles in portable C, for machines without the vector kernels. */
#include "engine/kernels/ops.h"
#include "engine/kernels/kernels.h"

#include <string.h>

static void store(const float *acc, size_t mr, const struct tile_out *out)
{
    for (size_t m = 0; m < mr; m++) {
        float *y = out->y + m * out->ldy;
        for (size_t n = 0; n < NR; n++) {
            float v = out->alpha * acc[m * NR + n];
            y[n] = out->add ? y[n] + v : v;
        }
    }
}

static void tile_f32(size_t mr, size_t np, size_t K, const float *a, const float *b,
                     const struct tile_out *out)
{
    struct tile_out to = *out;
    for (size_t p = 0; p < np; p++, b += K * NR, to.y += NR) {
        float acc[MR_MAX * NR] = { 0 };
        for (size_t k = 0; k < K; k++)
            for (size_t m = 0; m < mr; m++)
                for (size_t n = 0; n < NR; n++)
                    acc[m * NR + n] += a[m * KC + k] * b[k * NR + n];
        store(acc, mr, &to);
    }
}

static void widen(float *dst, const uint16_t *b, size_t K)
{
    for (size_t k = 0; k < K; k++)
        for (size_t n = 0; n < NR; n++)
            dst[k * NR + n] = f32_from_bf16(b[(k / 2 * NR + n) * 2 + (k & 1)]);
}

static void tile_bf16(size_t mr, size_t np, size_t K, const float *a, const uint16_t *b,
                      const struct tile_out *out)
{
    struct tile_out to = *out;
    float wide[KC * NR];
    for (size_t p = 0; p < np; p++, b += (K + (K & 1)) * NR, to.y += NR) {
        widen(wide, b, K);
        tile_f32(mr, 1, K, a, wide, &to);
    }
}

static void transpose(float *dst, size_t ldd, const float *src, size_t lds)
{
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < 8; j++)
            dst[j * ldd + i] = src[i * lds + j];
}

const struct kernel_ops kernels_plain = { "plain", 4,         1,    tile_f32, tile_bf16,
                                          widen,   transpose, NULL, NULL };
