/* tile_check.h - the tiles of a set of kernels against the documented order of sums, to the bit.
 * Include it after tap.h. */
#ifndef SUPPORT_TILE_CHECK_H
#define SUPPORT_TILE_CHECK_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"

enum { COLUMNS = 2 * NR, SCRATCH = 8 };

static uint32_t state = 1;

static float next_uniform(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

struct operands {
    float a[MR_MAX * KC], b[2 * KC * NR];
    uint16_t a16[MR_MAX * KC], b16[2 * KC * NR];
    float before[MR_MAX * COLUMNS];
};

/* Random operands; those of bfloat16 hold the rounded values of the others, in pairs. */
static void fill_operands(struct operands *p, size_t np, size_t K)
{
    memset(p, 0, sizeof *p);
    for (size_t m = 0; m < MR_MAX; m++)
        for (size_t k = 0; k < K; k++) {
            p->a16[m * KC + k] = bf16_from_f32(next_uniform());
            p->a[m * KC + k] = f32_from_bf16(p->a16[m * KC + k]);
        }
    size_t even = K + (K & 1);
    for (size_t i = 0; i < np; i++)
        for (size_t k = 0; k < K; k++)
            for (size_t n = 0; n < NR; n++) {
                uint16_t half = bf16_from_f32(next_uniform());
                p->b16[i * even * NR + (k / 2 * NR + n) * 2 + (k & 1)] = half;
                p->b[i * K * NR + k * NR + n] = f32_from_bf16(half);
            }
    for (size_t i = 0; i < MR_MAX * COLUMNS; i++)
        p->before[i] = next_uniform();
}

/* The documented sum, one rounding per step. */
static float sum_chain(const struct operands *p, size_t m, size_t column, size_t K)
{
    float sum = 0;
    for (size_t k = 0; k < K; k++)
        sum = fmaf(p->a[m * KC + k], p->b[column / NR * K * NR + k * NR + column % NR], sum);
    return sum;
}

static int tile_agrees(const struct operands *p, const float *y, size_t mr, size_t np, size_t K,
                       int add)
{
    for (size_t m = 0; m < mr; m++)
        for (size_t n = 0; n < np * NR; n++) {
            float v = 0.75f * sum_chain(p, m, n, K);
            float want = add ? p->before[m * COLUMNS + n] + v : v;
            if (memcmp(&want, &y[m * COLUMNS + n], sizeof want) != 0)
                return 0;
        }
    /* and nothing beyond the tile was touched */
    for (size_t m = 0; m < MR_MAX; m++)
        for (size_t n = m < mr ? np * NR : 0; n < COLUMNS; n++)
            if (y[m * COLUMNS + n] != p->before[m * COLUMNS + n])
                return 0;
    return 1;
}

/* left [K][mr] by both ways of packing, which must agree and stay in their bounds. */
static void check_packing(const struct kernel_ops *ops, float *left, size_t mr, size_t K,
                          const struct operands *p)
{
    float columns[KC * MR_MAX], again[MR_MAX * KC + SCRATCH + 1];
    for (size_t k = 0; k < K; k++)
        for (size_t m = 0; m < mr; m++)
            columns[k * mr + m] = p->a[m * KC + k];
    again[mr * K + SCRATCH] = 7;
    ops->pack_rows(again, mr, p->a, KC, K);
    CHECK(memcmp(again, columns, mr * K * sizeof *columns) == 0);
    CHECK(again[mr * K + SCRATCH] == 7);
    ops->pack_columns(left, mr, columns, mr, K);
    CHECK(memcmp(left, columns, mr * K * sizeof *columns) == 0);
}

static void check_every_tile(const struct kernel_ops *ops)
{
    static struct operands p;
    static const size_t lengths[] = { 1, 2, 7, 255, 256 };
    float y[MR_MAX * COLUMNS], left[MR_MAX * KC + SCRATCH];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t np = 1; np <= 2; np++) {
            size_t K = lengths[i];
            fill_operands(&p, np, K);
            for (size_t mr = 1; mr <= ops->mr; mr++) {
                int add = (int)(mr & 1);
                struct tile_out out = { y, COLUMNS, 0.75f, add, (const char *)p.b, mr % 5 };
                memcpy(y, p.before, sizeof y);
                check_packing(ops, left, mr, K, &p);
                ops->weights[PACKED_F32].tile(PACKED_F32, mr, np, K, left, p.b, &out);
                CHECK(tile_agrees(&p, y, mr, np, K, add));
                memcpy(y, p.before, sizeof y);
                if (mr > ops->weights[PACKED_BF16].rows)
                    continue;
                ops->weights[PACKED_BF16].tile(PACKED_BF16, mr, np, K, left, p.b16, &out);
                CHECK(tile_agrees(&p, y, mr, np, K, add));
            }
        }
}

static void check_widen_and_transpose(const struct kernel_ops *ops)
{
    static struct operands p;
    float wide[KC * NR], t[24 * 9];
    fill_operands(&p, 1, 255);
    ops->weights[PACKED_BF16].expand(wide, PACKED_BF16, p.b16, 255, 0, 255);
    CHECK(memcmp(wide, p.b, 255 * NR * sizeof *wide) == 0);
    ops->transpose(t, 9, p.a, KC, 8, 24);
    int wrong = 0;
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < 24; j++)
            wrong += t[j * 9 + i] != p.a[i * KC + j];
    CHECK(wrong == 0);
}

#endif
