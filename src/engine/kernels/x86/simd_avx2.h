/* simd_avx2.h - the vocabulary of the vector code: 8 lanes of float32.
 *
 * simd_avx512.h says the same words for 16 lanes, so that tile_simd.h and vec_simd.h are
 * written once.  Include exactly one of them, in a file compiled for that set. */
#ifndef ENGINE_KERNELS_SIMD_H
#define ENGINE_KERNELS_SIMD_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 8 };
typedef __m256 vec;
typedef __m256i ivec;

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}
INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
/* Each run of `width` lanes, a power of two, in the place of its neighbor. */
INLINE vec vec_swap(vec x, size_t width)
{
    if (width == 4)
        return _mm256_permute2f128_ps(x, x, 1);
    return width == 2 ? _mm256_permute_ps(x, 0x4e) : _mm256_permute_ps(x, 0xb1);
}
INLINE float vec_first(vec x)
{
    return _mm256_cvtss_f32(x);
}
/* a * b + c, rounded once */
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* *sum += a * b, all three in registers.  Left to choose, the compiler folds loads into the
 * multiply-adds (each then loads again) and moves sums about: up to a fifth of the speed. */
INLINE void vec_fma_to(vec *sum, vec a, vec b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}
/* Is a NaN among the two? */
INLINE int vec_nan(vec a, vec b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
}
INLINE vec vec_sqrt(vec a)
{
    return _mm256_sqrt_ps(a);
}
INLINE ivec ivec_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
/* The even and the odd bfloat16 of each 32-bit word, widened. */
INLINE vec vec_bf16_even(ivec words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
INLINE vec vec_bf16_odd(ivec words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE ivec ivec_shift(ivec words, int bits)
{
    return _mm256_srl_epi32(words, _mm_cvtsi32_si128(bits));
}
/* Numbers of 16 and 8 bits, widened. */
INLINE vec vec_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE vec vec_load_bf16(const void *p)
{
    ivec words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
INLINE vec vec_load_u8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vec vec_load_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* Signed byte j of each 32-bit word. */
INLINE vec vec_byte(ivec words, int j)
{
    ivec up = _mm256_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * j));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(up, 24));
}
/* Sixteen numbers, of which the lowest four bits of each word choose one. */
typedef struct vec_table {
    vec low, high;
} vec_table;
INLINE vec_table vec_table_load(const float *p)
{
    return (vec_table){ vec_load(p), vec_load(p + 8) };
}
INLINE vec vec_lookup(const vec_table *t, ivec index)
{
    vec bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t->low, index),
                            _mm256_permutevar8x32_ps(t->high, index), bit3);
}
/* x * 2^n for whole n in [-252, 252], in two steps so that neither leaves the range. */
INLINE vec vec_scale2(vec x, vec n)
{
    ivec i = _mm256_cvtps_epi32(n);
    ivec half = _mm256_srai_epi32(i, 1);
    ivec bias = _mm256_set1_epi32(127);
    vec a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    ivec rest = _mm256_sub_epi32(i, half);
    vec b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, a), b);
}
INLINE vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* The first n < LANES elements; the other lanes are zero, and not read or written. */
INLINE vec vec_load_part(const float *p, size_t n)
{
    float t[LANES] = { 0 };
    memcpy(t, p, n * sizeof *t);
    return vec_load(t);
}
INLINE void vec_store_part(float *p, vec x, size_t n)
{
    float t[LANES];
    vec_store(t, x);
    memcpy(p, t, n * sizeof *t);
}

#endif
