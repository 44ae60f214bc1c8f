/* attn_simd.h - the attention kernels in the words of simd_*.h.
 *
 * Not a header to share: attn_avx2.c and attn_avx512.c include it after the
 * vocabulary of their instruction set, and it defines their table. */
#ifndef ENGINE_KERNELS_ATTN_SIMD_H
#define ENGINE_KERNELS_ATTN_SIMD_H

#include <math.h>
#include "engine/kernels/attn.h"
#include "engine/kernels/exp_simd.h"

/* Rows that are computed together: as many chains of multiply-adds as registers hold beside their
 * operands, and at least eight, which hide the latency of each other. */
enum {
    PAGE_VECS = ATTN_KEYS / LANES,
    SCORE_ROWS = LANES == 16 ? 8 : 3,
    SUM_ROWS = LANES == 16 ? 4 : 3
};

INLINE void scores_rows(size_t R, float *s, const float *q, size_t ldq, const float *kt, size_t hd)
{
    vec acc[SCORE_ROWS][PAGE_VECS];
    const float *row[SCORE_ROWS];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; r++) {
        row[r] = q + r * ldq;
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECS; v++)
            acc[r][v] = vec_zero();
    }
    for (size_t d = 0; d < hd; d++) {
        vec k[PAGE_VECS];
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECS; v++)
            k[v] = vec_load(kt + d * ATTN_KEYS + v * LANES);
#pragma GCC unroll 8
        for (size_t r = 0; r < R; r++) {
            vec x = vec_set1(row[r][d]);
#pragma GCC unroll 4
            for (size_t v = 0; v < PAGE_VECS; v++)
                acc[r][v] = vec_fma(x, k[v], acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t v = 0; v < PAGE_VECS; v++)
            vec_store(s + r * ATTN_KEYS + v * LANES, acc[r][v]);
}

static void simd_scores(float *s, const float *q, size_t ldq, const float *kt, size_t R, size_t hd)
{
    for (; R >= SCORE_ROWS; R -= SCORE_ROWS, s += SCORE_ROWS * ATTN_KEYS, q += SCORE_ROWS * ldq)
        scores_rows(SCORE_ROWS, s, q, ldq, kt, hd);
    for (; R >= 3; R -= 3, s += 3 * ATTN_KEYS, q += 3 * ldq)
        scores_rows(3, s, q, ldq, kt, hd);
    if (R == 2)
        scores_rows(2, s, q, ldq, kt, hd);
    else if (R == 1)
        scores_rows(1, s, q, ldq, kt, hd);
}

/* R rows by NV vectors of columns; element (r, i) of p is p[r * step + i * ldp]. */
INLINE void accumulate_rows(size_t R, size_t NV, float *y, size_t ldy, const float *p, size_t step,
                            size_t ldp, const float *v, size_t ldv, size_t n)
{
    vec acc[SUM_ROWS][4];
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            acc[r][c] = vec_load(y + r * ldy + c * LANES);
    for (size_t i = 0; i < n; i++) {
        vec x[4];
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            x[c] = vec_load(v + i * ldv + c * LANES);
#pragma GCC unroll 4
        for (size_t r = 0; r < R; r++) {
            vec w = vec_set1(p[r * step + i * ldp]);
#pragma GCC unroll 4
            for (size_t c = 0; c < NV; c++)
                acc[r][c] = vec_fma(w, x[c], acc[r][c]);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            vec_store(y + r * ldy + c * LANES, acc[r][c]);
}

/* The last `cols` < LANES columns of one row. */
static void accumulate_edge(float *y, const float *p, size_t ldp, const float *v, size_t ldv,
                            size_t n, size_t cols)
{
    vec acc = vec_load_part(y, cols);
    for (size_t i = 0; i < n; i++)
        acc = vec_fma(vec_set1(p[i * ldp]), vec_load_part(v + i * ldv, cols), acc);
    vec_store_part(y, acc, cols);
}

static void accumulate_few(float *y, size_t ldy, const float *p, size_t step, size_t ldp,
                           const float *v, size_t ldv, size_t R, size_t n, size_t hd)
{
    size_t c = 0;
    for (; c + 4 * LANES <= hd; c += 4 * LANES) {
        if (R == SUM_ROWS)
            accumulate_rows(SUM_ROWS, 4, y + c, ldy, p, step, ldp, v + c, ldv, n);
        else if (R == 3)
            accumulate_rows(3, 4, y + c, ldy, p, step, ldp, v + c, ldv, n);
        else if (R == 2)
            accumulate_rows(2, 4, y + c, ldy, p, step, ldp, v + c, ldv, n);
        else
            accumulate_rows(1, 4, y + c, ldy, p, step, ldp, v + c, ldv, n);
    }
    for (; c + LANES <= hd; c += LANES)
        for (size_t r = 0; r < R; r++)
            accumulate_rows(1, 1, y + r * ldy + c, ldy, p + r * step, step, ldp, v + c, ldv, n);
    if (c < hd)
        for (size_t r = 0; r < R; r++)
            accumulate_edge(y + r * ldy + c, p + r * step, ldp, v + c, ldv, n, hd - c);
}

INLINE void accumulate_all(float *y, size_t ldy, const float *p, size_t step, size_t ldp,
                           const float *v, size_t ldv, size_t R, size_t n, size_t hd)
{
    for (; R >= SUM_ROWS; R -= SUM_ROWS, y += SUM_ROWS * ldy, p += SUM_ROWS * step)
        accumulate_few(y, ldy, p, step, ldp, v, ldv, SUM_ROWS, n, hd);
    if (R > 0)
        accumulate_few(y, ldy, p, step, ldp, v, ldv, R, n, hd);
}

static void simd_accumulate(float *y, size_t ldy, const float *p, size_t ldp, const float *v,
                            size_t ldv, size_t R, size_t n, size_t hd)
{
    accumulate_all(y, ldy, p, ldp, 1, v, ldv, R, n, hd);
}

static void simd_accumulate_turned(float *y, size_t ldy, const float *p, size_t ldp, const float *v,
                                   size_t ldv, size_t R, size_t n, size_t hd)
{
    accumulate_all(y, ldy, p, 1, ldp, v, ldv, R, n, hd);
}

/* Lanes in pairs, always in the same order. */
INLINE float sum_page_lanes(vec x)
{
#pragma GCC unroll 4
    for (size_t width = LANES / 2; width > 0; width /= 2)
        x = vec_add(x, vec_swap(x, width));
    return vec_first(x);
}

/* The largest of a row's scores and `top`; no order changes it, and a NaN is passed over. */
INLINE float highest_score(const float *s, float top)
{
    vec most = vec_set1(top);
#pragma GCC unroll 4
    for (size_t v = 0; v < ATTN_KEYS; v += LANES)
        most = vec_max(vec_load(s + v), most);
#pragma GCC unroll 4
    for (size_t width = LANES / 2; width > 0; width /= 2)
        most = vec_max(most, vec_swap(most, width));
    return vec_first(most);
}

static float simd_fold(float *s, size_t n, float *max, float *sum)
{
    for (size_t i = n; i < ATTN_KEYS; i++)
        s[i] = -INFINITY;
    float top = highest_score(s, *max), shrink = 1;
    if (top > *max)
        shrink = vec_first(vec_exp(vec_set1(*max - top)));
    vec total = vec_zero();
#pragma GCC unroll 4
    for (size_t v = 0; v < ATTN_KEYS; v += LANES) {
        vec p = vec_exp(vec_sub(vec_load(s + v), vec_set1(top)));
        vec_store(s + v, p);
        total = vec_add(total, p);
    }
    *max = top;
    *sum = *sum * shrink + sum_page_lanes(total);
    return shrink;
}

static void simd_gradient(float *s, float *dp, size_t n, float lse, float delta, float scale)
{
    for (size_t i = n; i < ATTN_KEYS; i++) {
        s[i] = -INFINITY;
        dp[i] = 0;
    }
    for (size_t v = 0; v < ATTN_KEYS; v += LANES) {
        vec p = vec_exp(vec_sub(vec_load(s + v), vec_set1(lse)));
        vec d = vec_sub(vec_load(dp + v), vec_set1(delta));
        vec_store(s + v, p);
        vec_store(dp + v, vec_mul(vec_mul(p, d), vec_set1(scale)));
    }
}

#endif
