/* attn_avx512bf16.c - attention with VDPBF16PS beside the functions of AVX-512.
 *
 * Queries, keys, weights and values are bfloat16, sums float32.  An output is one chain of pairs
 * in ascending order, whatever rows are computed beside it. */
#include "engine/kernels/x86/simd_avx512.h"
#include "engine/kernels/attn_simd.h"
#include "engine/kernels/x86/sets.h"

/* Rows of a tile: with PAGE_VECS and VALUE_VECS sixteen chains each, which hide their latency. */
enum { PAIR_SCORE_ROWS = 8, PAIR_SUM_ROWS = 4, VALUE_VECS = 4 };

/* n is a multiple of ATTN_ROUNDED_DIM, so there is no rest. */
static void pairs_round(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        vec_store_bf16(dst + i, vec_load(src + i));
}

/* R is a constant of each call, so the sums are registers. */
INLINE void pair_scores_rows(size_t R, float *s, const uint16_t *q, const uint16_t *kt, size_t hd)
{
    vec acc[PAIR_SCORE_ROWS][PAGE_VECS];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < PAGE_VECS; v++)
            acc[r][v] = vec_zero();
    for (size_t d = 0; d < hd; d += 2) {
        ivec k[PAGE_VECS];
#pragma GCC unroll 2
        for (size_t v = 0; v < PAGE_VECS; v++)
            k[v] = ivec_load(kt + d * ATTN_KEYS + v * 2 * LANES);
#pragma GCC unroll 8
        for (size_t r = 0; r < R; r++) {
            ivec x = ivec_set1(q + r * hd + d);
#pragma GCC unroll 2
            for (size_t v = 0; v < PAGE_VECS; v++)
                acc[r][v] = vec_dot_bf16(acc[r][v], x, k[v]);
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < PAGE_VECS; v++)
            vec_store(s + r * ATTN_KEYS + v * LANES, acc[r][v]);
}

/* Eight rows at a time, the rest by the binary digits of their number. */
static void pairs_scores(float *s, const uint16_t *q, const uint16_t *kt, size_t R, size_t hd)
{
    size_t r = 0;
    for (; r + PAIR_SCORE_ROWS <= R; r += PAIR_SCORE_ROWS)
        pair_scores_rows(PAIR_SCORE_ROWS, s + r * ATTN_KEYS, q + r * hd, kt, hd);
    for (; r + 4 <= R; r += 4)
        pair_scores_rows(4, s + r * ATTN_KEYS, q + r * hd, kt, hd);
    for (; r + 2 <= R; r += 2)
        pair_scores_rows(2, s + r * ATTN_KEYS, q + r * hd, kt, hd);
    if (r < R)
        pair_scores_rows(1, s + r * ATTN_KEYS, q + r * hd, kt, hd);
}

/* NV vectors of columns of R rows; `odd` keys end with the lower half of a word. */
INLINE void pair_sums_rows(size_t R, size_t NV, float *y, const uint16_t *p, const uint16_t *v,
                           size_t n, size_t hd)
{
    vec acc[PAIR_SUM_ROWS][VALUE_VECS];
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            acc[r][c] = vec_load(y + r * hd + c * LANES);
    for (size_t i = 0; i < n; i += 2) {
        ivec x[VALUE_VECS];
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            x[c] = ivec_load(v + i * hd + c * 2 * LANES);
        if (i + 1 == n) /* the upper halves hold what nobody wrote */
#pragma GCC unroll 4
            for (size_t c = 0; c < NV; c++)
                x[c] = _mm512_and_si512(x[c], _mm512_set1_epi32(0xffff));
#pragma GCC unroll 4
        for (size_t r = 0; r < R; r++) {
            ivec w = ivec_set1(p + r * ATTN_KEYS + i);
#pragma GCC unroll 4
            for (size_t c = 0; c < NV; c++)
                acc[r][c] = vec_dot_bf16(acc[r][c], w, x[c]);
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < R; r++)
#pragma GCC unroll 4
        for (size_t c = 0; c < NV; c++)
            vec_store(y + r * hd + c * LANES, acc[r][c]);
}

/* Columns by four vectors, then one by one; every column is a chain of its own. */
INLINE void pair_sums(size_t R, float *y, const uint16_t *p, const uint16_t *v, size_t n, size_t hd)
{
    size_t c = 0;
    for (; c + VALUE_VECS * LANES <= hd; c += VALUE_VECS * LANES)
        pair_sums_rows(R, VALUE_VECS, y + c, p, v + 2 * c, n, hd);
    for (; c < hd; c += LANES)
        pair_sums_rows(R, 1, y + c, p, v + 2 * c, n, hd);
}

static void pairs_accumulate(float *y, const uint16_t *p, const uint16_t *v, size_t R, size_t n,
                             size_t hd)
{
    size_t r = 0;
    for (; r + PAIR_SUM_ROWS <= R; r += PAIR_SUM_ROWS)
        pair_sums(PAIR_SUM_ROWS, y + r * hd, p + r * ATTN_KEYS, v, n, hd);
    for (; r + 2 <= R; r += 2)
        pair_sums(2, y + r * hd, p + r * ATTN_KEYS, v, n, hd);
    if (r < R)
        pair_sums(1, y + r * hd, p + r * ATTN_KEYS, v, n, hd);
}

const struct attn_ops attn_avx512bf16 = {
    .scores = simd_scores,
    .accumulate = simd_accumulate,
    .accumulate_turned = simd_accumulate_turned,
    .fold = simd_fold,
    .gradient = simd_gradient,
    .round = pairs_round,
    .scores_rounded = pairs_scores,
    .accumulate_rounded = pairs_accumulate,
};
