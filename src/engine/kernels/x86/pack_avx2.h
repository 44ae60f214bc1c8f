/* pack_avx2.h - transpose and pack float32 with 256-bit registers, which suit AVX2 and AVX-512
 * alike.  Include it after tile_simd.h, in a file compiled for one of the two. */
#ifndef ENGINE_KERNELS_X86_PACK_AVX2_H
#define ENGINE_KERNELS_X86_PACK_AVX2_H

#include <immintrin.h>
#include "engine/kernels/tile_simd.h"

/* In place: r [8][8] transposed. */
TILE_PART void transpose8_in_place(__m256 *r)
{
    __m256 t[8];
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
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        r[i] = t[i];
}

/* dst [8][.] = transpose of src [8][.] */
TILE_PART void transpose8(float *dst, size_t ldd, const float *src, size_t lds)
{
    __m256 r[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * lds);
    transpose8_in_place(r);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        _mm256_storeu_ps(dst + i * ldd, r[i]);
}

enum { ROW_AHEAD = 256 }; /* floats that tile_row() prefetches ahead, in each row */

/* A single row times 16 rows of an unpacked w, which are transposed in registers: packed first,
 * they would go through L1 twice more.  The sums have the order of a tile's. */
TILE_PART void tile_row(float *y, const float *x, const float *w, size_t ldw, size_t K, float alpha,
                        int add)
{
    __m256 acc[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() }, scale = _mm256_set1_ps(alpha);
    for (size_t k = 0; k < K; k += 8) {
        __m256 r[2][8];
#pragma GCC unroll 2
        for (size_t half = 0; half < 2; half++) {
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) {
                const float *from = w + (half * 8 + i) * ldw + k;
                if (k % 16 == 0)
                    __builtin_prefetch(from + ROW_AHEAD, 0, 2);
                r[half][i] = _mm256_loadu_ps(from);
            }
            transpose8_in_place(r[half]);
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            __m256 one = _mm256_broadcast_ss(x + k + i);
            acc[0] = _mm256_fmadd_ps(one, r[0][i], acc[0]);
            acc[1] = _mm256_fmadd_ps(one, r[1][i], acc[1]);
        }
    }
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; half++) {
        __m256 sum = _mm256_mul_ps(scale, acc[half]);
        if (add)
            sum = _mm256_add_ps(_mm256_loadu_ps(y + half * 8), sum);
        _mm256_storeu_ps(y + half * 8, sum);
    }
}

/* The first n <= 8 lanes. */
TILE_PART __m256i lanes_mask(size_t n)
{
    static const int32_t ones[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    return _mm256_loadu_si256((const __m256i *)(ones + 8 - n));
}

/* dst [K][mr] = transpose of src [mr][lds].  Whole vectors are written, whose surplus lanes the
 * next k overwrites: 8 floats after dst are scratch.  Masked stores take twelve cycles each on some
 * CPUs. */
TILE_PART void tile_pack_rows(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    size_t k = 0;
    for (; k + 8 <= K; k += 8) {
        __m256 low[8], high[8];
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            low[i] = i < mr ? _mm256_loadu_ps(src + i * lds + k) : _mm256_setzero_ps();
        transpose8_in_place(low);
        if (mr <= 8) {
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++)
                _mm256_storeu_ps(dst + (k + i) * mr, low[i]);
            continue;
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            high[i] = i + 8 < mr ? _mm256_loadu_ps(src + (i + 8) * lds + k) : _mm256_setzero_ps();
        transpose8_in_place(high);
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            _mm256_storeu_ps(dst + (k + i) * mr, low[i]);
            _mm256_storeu_ps(dst + (k + i) * mr + 8, high[i]);
        }
    }
    for (; k < K; k++)
        for (size_t m = 0; m < mr; m++)
            dst[k * mr + m] = src[m * lds + k];
}

/* dst [K][mr] = the first mr columns of src [K][lds]; scratch as above. */
TILE_PART void tile_pack_columns(float *dst, size_t mr, const float *src, size_t lds, size_t K)
{
    __m256i first = lanes_mask(mr < 8 ? mr : 8), rest = lanes_mask(mr > 8 ? mr - 8 : 0);
    for (size_t k = 0; k < K; k++, dst += mr, src += lds) {
        _mm256_storeu_ps(dst, _mm256_maskload_ps(src, first));
        if (mr > 8)
            _mm256_storeu_ps(dst + 8, _mm256_maskload_ps(src + 8, rest));
    }
}

#endif
