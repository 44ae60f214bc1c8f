/* tile.h - the innermost loops of every product, in the words of simd_*.h.
 *
 * Not a header to share: a kernel file includes it after the vocabulary of its
 * instruction set.  All functions here are inlined with constant mr and nv, so the
 * accumulators live in registers.  Sanitizers leave the functions marked here alone:
 * instrumented, the unrolled code takes minutes to compile; the plain tiles, which
 * the same driver calls with the same bounds, are instrumented. */
#ifndef ENGINE_KERNELS_TILE_H
#define ENGINE_KERNELS_TILE_H

#include "engine/kernels/ops.h"

#define TILE_BARE no_sanitize("address", "undefined", "thread")
#define TILE      static __attribute__((TILE_BARE))
#define TILE_PART static inline __attribute__((always_inline, TILE_BARE))

enum {
    PANEL_VECS = NR / LANES, /* vectors across a panel */
    AHEAD = 160              /* rows: far enough for memory, near enough to stay in L2 */
};

TILE_PART void tile_store(size_t mr, size_t nv, const vec *acc, const struct tile_out *out)
{
    vec alpha = vec_set1(out->alpha);
#pragma GCC unroll 16
    for (size_t m = 0; m < mr; m++) {
        float *y = out->y + m * out->ldy;
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++) {
            vec s = vec_mul(alpha, acc[m * nv + v]);
            if (out->add)
                s = vec_add(vec_load(y + v * LANES), s);
            vec_store(y + v * LANES, s);
        }
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

/* One k: acc (mr,nv) += a[m] * b[v] */
TILE_PART void tile_step(size_t mr, size_t nv, vec *acc, const float *a, const vec *b)
{
#pragma GCC unroll 16
    for (size_t m = 0; m < mr; m++) {
        vec x = vec_set1(a[m * KC]);
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            acc[m * nv + v] = vec_fma(x, b[v], acc[m * nv + v]);
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

/* Ask for what comes later: with one panel the rows AHEAD, with two the same row of the
 * two panels after them.  A row and a panel are given in bytes. */
TILE_PART void tile_fetch(size_t nv, const void *b, size_t row, size_t panel)
{
    const char *at = b;
    if (nv == PANEL_VECS) {
        __builtin_prefetch(at + AHEAD * row, 0, 2);
    } else {
        __builtin_prefetch(at + 2 * panel, 0, 2);
        __builtin_prefetch(at + 3 * panel, 0, 2);
    }
}

TILE_PART void tile_run_f32(size_t mr, size_t nv, size_t K, const float *a, const float *b,
                            const struct tile_out *out)
{
    vec acc[16 * 4];
    tile_begin(mr, nv, acc, out);
    size_t next = K * NR;
    for (size_t k = 0; k < K; k++) {
        vec row[4];
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            row[v] = vec_load(b + tile_at(v, next));
        tile_step(mr, nv, acc, a + k, row);
        tile_fetch(nv, b, NR * sizeof *b, next * sizeof *b);
        b += NR;
    }
    tile_store(mr, nv, acc, out);
}

TILE_PART void tile_run_bf16(size_t mr, size_t nv, size_t K, const float *a, const uint16_t *b,
                             const struct tile_out *out)
{
    vec acc[16 * 4];
    tile_begin(mr, nv, acc, out);
    size_t next = (K + (K & 1)) * NR;
    for (size_t k = 0; k < K; k += 2) {
        tile_fetch(nv, b, 2 * NR * sizeof *b, next * sizeof *b);
        vec row[4];
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            row[v] = vec_bf16_even(ivec_load(b + tile_at16(v, next)));
        tile_step(mr, nv, acc, a + k, row);
        if (k + 1 == K)
            break;
        __asm__ volatile("" ::: "memory"); /* load again: no registers are left to keep them */
#pragma GCC unroll 4
        for (size_t v = 0; v < nv; v++)
            row[v] = vec_bf16_odd(ivec_load(b + tile_at16(v, next)));
        tile_step(mr, nv, acc, a + k + 1, row);
        b += 2 * NR;
    }
    tile_store(mr, nv, acc, out);
}

/* dst [K][16] = bfloat16 pairs [ceil(K/2)][16][2] */
TILE_PART void tile_widen(float *dst, const uint16_t *b, size_t K)
{
    for (size_t k = 0; k < K; k += 2, b += 2 * NR, dst += 2 * NR)
        for (size_t v = 0; v < PANEL_VECS; v++) {
            ivec words = ivec_load(b + v * LANES * 2);
            vec_store(dst + v * LANES, vec_bf16_even(words));
            if (k + 1 < K)
                vec_store(dst + NR + v * LANES, vec_bf16_odd(words));
        }
}

/* dst [8][.] = transpose of src [8][.]; 256-bit registers suit both sets. */
TILE_PART void transpose8(float *dst, size_t ldd, const float *src, size_t lds)
{
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * lds);
#pragma GCC unroll 4
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#endif
