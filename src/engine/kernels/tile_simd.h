/* tile_simd.h - the innermost loops of every product, in the words of simd_*.h.
 *
 * Not a header to share: a kernel file includes it after the vocabulary of its
 * instruction set.  All functions here are inlined with constant mr and nv, so the
 * accumulators live in registers.  Sanitizers leave the functions marked here alone:
 * instrumented, the unrolled code takes minutes to compile; the plain tiles, which
 * the same driver calls with the same bounds, are instrumented. */
#ifndef ENGINE_KERNELS_TILE_SIMD_H
#define ENGINE_KERNELS_TILE_SIMD_H

#include "engine/kernels/ops.h"

#define TILE_BARE no_sanitize("address", "undefined", "thread")
#define TILE      static __attribute__((TILE_BARE))
#define TILE_PART static inline __attribute__((always_inline, TILE_BARE))

enum { PANEL_VECS = NR / LANES }; /* vectors across a panel */

/* y (mr, nv * LANES) = alpha * acc, or += alpha * acc. */
TILE_PART void tile_store(size_t mr, size_t nv, const vec *acc, const struct tile_out *out)
{
    vec alpha = vec_set1(out->alpha);
    const size_t ldy = out->ldy;
    float *y = out->y;
    if (!out->add) {
#pragma GCC unroll 16
        for (size_t m = 0; m < mr; m++, y += ldy)
#pragma GCC unroll 4
            for (size_t v = 0; v < nv; v++)
                vec_store(y + v * LANES, vec_mul(alpha, acc[m * nv + v]));
        return;
    }
#pragma GCC unroll 16
    for (size_t m = 0; m < mr; m++, y += ldy)
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++) {
            vec s = vec_mul(alpha, acc[m * nv + v]);
            vec_store(y + v * LANES, vec_add(vec_load(y + v * LANES), s));
        }
}

/* Zero sums, and the output's lines on their way while the sums run. */
TILE_PART void tile_begin(size_t mr, size_t nv, vec *acc, const struct tile_out *out)
{
#pragma GCC unroll 64
    for (size_t i = 0; i < mr * nv; i++)
        acc[i] = vec_zero();
#pragma GCC unroll 16
    for (size_t m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (size_t n = 0; n < nv * LANES; n += NR)
            __builtin_prefetch(out->y + m * out->ldy + n, 1);
}

/* One k: acc (mr,nv) += a[m] * b[v].  A single row uses each b once: it may stay in memory. */
TILE_PART void tile_step(size_t mr, size_t nv, vec *acc, const float *a, const vec *b)
{
    if (mr == 1) {
        vec x = vec_set1(a[0]);
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            acc[v] = vec_fma(x, b[v], acc[v]);
        return;
    }
#pragma GCC unroll 16
    for (size_t m = 0; m < mr; m++) {
        vec x = vec_set1(a[m]);
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            vec_fma_to(&acc[m * nv + v], x, b[v]);
    }
}

/* Vector v of the row at b, where the second panel begins `next` elements later. */
TILE_PART size_t tile_at(size_t v, size_t next)
{
    return v / PANEL_VECS * next + v % PANEL_VECS * LANES;
}

/* The same among bfloat16 pairs. */
TILE_PART size_t tile_at16(size_t v, size_t next)
{
    return v / PANEL_VECS * next + v % PANEL_VECS * LANES * 2;
}

/* Prefetch the next lines, at most 4 of them, into L2; returns the address after them. */
TILE_PART const char *tile_fetch(const char *at, size_t lines)
{
    if (lines == 0)
        return at;
    __builtin_prefetch(at, 0, 2);
    if (lines > 1) {
        __builtin_prefetch(at + LINE, 0, 2);
        if (lines > 2) {
            __builtin_prefetch(at + 2 * LINE, 0, 2);
            __builtin_prefetch(at + 3 * LINE, 0, 2);
        }
    }
    return at + lines * LINE;
}

/* One k of a panel: load a row of B once, use it for all mr rows of A. */
TILE_PART void tile_one_f32(size_t mr, size_t nv, vec *acc, const float *a, const float *b,
                            size_t next)
{
    vec row[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < nv; v++)
        row[v] = vec_load(b + tile_at(v, next));
    tile_step(mr, nv, acc, a, row);
}

/* Four k; `lines` are prefetched twice. */
TILE_PART const char *tile_four_f32(size_t mr, size_t nv, vec *acc, const float *a, const float *b,
                                    size_t next, const char *fetch, size_t lines)
{
    tile_one_f32(mr, nv, acc, a, b, next);
    tile_one_f32(mr, nv, acc, a + mr, b + NR, next);
    fetch = tile_fetch(fetch, lines);
    tile_one_f32(mr, nv, acc, a + 2 * mr, b + 2 * NR, next);
    tile_one_f32(mr, nv, acc, a + 3 * mr, b + 3 * NR, next);
    return tile_fetch(fetch, lines);
}

/* The summed index, eight k per iteration: loop overhead is measurable when another hyperthread
 * shares the core. */
TILE_PART void tile_loop_f32(size_t mr, size_t nv, size_t K, const float *a, const float *b,
                             const struct tile_out *out, size_t lines)
{
    vec acc[16 * 4];
    const char *fetch = out->fetch;
    const float *end = b + K * NR, *whole = b + K / SLOW * SLOW * NR;
    /* Panels lie one behind the other: K rows of NR columns each. */
    size_t next = K * NR;
    tile_begin(mr, nv, acc, out);
    for (; b != whole; a += SLOW * mr, b += SLOW * NR) {
        size_t often = lines == LINES_SLOW ? 0 : lines;
        fetch = tile_fetch(fetch, lines == LINES_SLOW);
        fetch = tile_four_f32(mr, nv, acc, a, b, next, fetch, often);
        fetch = tile_four_f32(mr, nv, acc, a + 4 * mr, b + 4 * NR, next, fetch, often);
    }
    for (; b != end; a += mr, b += NR)
        tile_one_f32(mr, nv, acc, a, b, next);
    tile_store(mr, nv, acc, out);
}

/* Most tiles prefetch nothing, some slowly, those of a few rows one line: each case has a loop of
 * its own with constant `lines`, so that nothing is counted in it. */
TILE_PART void tile_run_f32(size_t mr, size_t nv, size_t K, const float *a, const float *b,
                            const struct tile_out *out)
{
    if (out->lines == 0)
        tile_loop_f32(mr, nv, K, a, b, out, 0);
    else if (out->lines == LINES_SLOW)
        tile_loop_f32(mr, nv, K, a, b, out, LINES_SLOW);
    else if (out->lines == 1)
        tile_loop_f32(mr, nv, K, a, b, out, 1);
    else
        tile_loop_f32(mr, nv, K, a, b, out, out->lines);
}

/* Two k, or with `odd` unset the even one alone. */
TILE_PART void tile_two_bf16(size_t mr, size_t nv, vec *acc, const float *a, const uint16_t *b,
                             size_t next, int odd)
{
    vec row[4];
#pragma GCC unroll 4
    for (size_t v = 0; v < nv; v++)
        row[v] = vec_bf16_even(ivec_load(b + tile_at16(v, next)));
    tile_step(mr, nv, acc, a, row);
    if (!odd)
        return;
    __asm__ volatile("" ::: "memory"); /* load again: no registers are left to keep them */
#pragma GCC unroll 4
    for (size_t v = 0; v < nv; v++)
        row[v] = vec_bf16_odd(ivec_load(b + tile_at16(v, next)));
    tile_step(mr, nv, acc, a + mr, row);
}

/* As tile_loop_f32(), two k at a time: neighbors in k are stored as pairs, which one load brings
 * and two shifts widen to float32, exactly. */
TILE_PART void tile_loop_bf16(size_t mr, size_t nv, size_t K, const float *a, const uint16_t *b,
                              const struct tile_out *out, size_t lines)
{
    vec acc[16 * 4];
    const char *fetch = out->fetch;
    size_t next = (K + (K & 1)) * NR, k = 0;
    tile_begin(mr, nv, acc, out);
    for (; k + 4 <= K; k += 4, a += 4 * mr, b += 4 * NR) {
        tile_two_bf16(mr, nv, acc, a, b, next, 1);
        fetch = tile_fetch(fetch, lines);
        tile_two_bf16(mr, nv, acc, a + 2 * mr, b + 2 * NR, next, 1);
        fetch = tile_fetch(fetch, lines);
    }
    for (; k < K; k += 2, a += 2 * mr, b += 2 * NR)
        tile_two_bf16(mr, nv, acc, a, b, next, k + 1 < K);
    tile_store(mr, nv, acc, out);
}

TILE_PART void tile_run_bf16(size_t mr, size_t nv, size_t K, const float *a, const uint16_t *b,
                             const struct tile_out *out)
{
    if (out->lines == 0)
        tile_loop_bf16(mr, nv, K, a, b, out, 0);
    else
        tile_loop_bf16(mr, nv, K, a, b, out, out->lines);
}

#endif
