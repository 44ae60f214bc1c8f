/* amx.h - the instructions of the matrix unit, and what all kernels on it share.
 *
 * A part of each x86/..._amx.c: everything is static. */
#ifndef ENGINE_KERNELS_X86_AMX_H
#define ENGINE_KERNELS_X86_AMX_H

#include "engine/kernels/ops.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum {
    STEP = 32,        /* of the summed index that one instruction takes */
    TILE = NR * STEP, /* bfloat16 of a tile of either operand */
    GROUP = 2 * NR,   /* rows that are multiplied at once, two tiles */
    WIDTH = 2 * NR    /* columns likewise, two panels */
};
enum { SUMS = 0, LEFT = 4, RIGHT = 6 }; /* the eight registers: four tiles, two and two */

#define INLINE static inline __attribute__((always_inline))

/* The four instructions.  Inline assembly, because the compiler's intrinsics do not tell it that
 * tile loads and stores read and write memory. */
INLINE void tile_load(int tile, const void *p, size_t stride)
{
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(tile) : "memory");
}
INLINE void tile_store(int tile, void *p, size_t stride)
{
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(tile) : "memory");
}
INLINE void tile_zero(int tile)
{
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile));
}
INLINE void tile_dot(int sums, int left, int right)
{
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}

/* Rows of a tile register: fewer than NR rows take a lower tile, which is loaded and multiplied
 * faster; more come in whole tiles, the last one padded with zeros. */
static inline size_t tile_height(size_t N)
{
    return N < NR ? N : NR;
}

/* LDTILECFG, palette 1 (Intel SDM volume 1, chapter 18): rows and bytes per row of each of the
 * eight tile registers.  Sums and left tiles have `height` rows, right ones always 16. */
static inline void configure_tiles(size_t height)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = STEP * sizeof(uint16_t);
        config.rows[i] = (uint8_t)(i < RIGHT ? height : NR);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

/* A thread without tiles in use is cheap to switch: the kernel need not save their 8 KB. */
static inline void release_tiles(void)
{
    __asm__ volatile("tilerelease");
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Thirty-two floats as bfloat16, to nearest, ties to even. */
INLINE __m512i round_floats(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Transpose a 16 x 16 square of 32-bit words in place: interleave words, then pairs, then
 * exchange quarters twice. */
static inline void transpose_words(__m512i r[NR])
{
    __m512i t[NR];
    for (int i = 0; i < NR; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < NR; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < NR; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
    }
}

#endif
