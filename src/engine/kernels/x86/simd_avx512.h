/* simd_avx512.h - the vocabulary of the vector code: 16 lanes of float32.
 * See simd_avx2.h, of which this is the wide twin. */
#ifndef ENGINE_KERNELS_SIMD_H
#define ENGINE_KERNELS_SIMD_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
typedef __m512 vec;
typedef __m512i ivec;

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
INLINE vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
/* Each run of `width` lanes, a power of two, in the place of its neighbor. */
INLINE vec vec_swap(vec x, size_t width)
{
    if (width == 8)
        return _mm512_shuffle_f32x4(x, x, 0x4e);
    if (width == 4)
        return _mm512_shuffle_f32x4(x, x, 0xb1);
    return width == 2 ? _mm512_permute_ps(x, 0x4e) : _mm512_permute_ps(x, 0xb1);
}
INLINE float vec_first(vec x)
{
    return _mm512_cvtss_f32(x);
}
/* a * b + c, rounded once */
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* *sum += a * b, all three in registers; see simd_avx2.h. */
INLINE void vec_fma_to(vec *sum, vec a, vec b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(a), "v"(b));
}
/* Is a NaN among the two? */
INLINE int vec_nan(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}
INLINE vec vec_sqrt(vec a)
{
    return _mm512_sqrt_ps(a);
}
INLINE ivec ivec_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
/* The even and the odd bfloat16 of each 32-bit word, widened. */
INLINE vec vec_bf16_even(ivec words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
INLINE vec vec_bf16_odd(ivec words)
{
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}
INLINE ivec ivec_shift(ivec words, int bits)
{
    return _mm512_srl_epi32(words, _mm_cvtsi32_si128(bits));
}
/* Numbers of 16 and 8 bits, widened. */
INLINE vec vec_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vec vec_load_bf16(const void *p)
{
    ivec words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
INLINE vec vec_load_u8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vec vec_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Signed byte j of each 32-bit word. */
INLINE vec vec_byte(ivec words, int j)
{
    ivec up = _mm512_sll_epi32(words, _mm_cvtsi32_si128(24 - 8 * j));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(up, 24));
}
/* Sixteen numbers, of which the lowest four bits of each word choose one. */
typedef vec vec_table;
INLINE vec_table vec_table_load(const float *p)
{
    return vec_load(p);
}
INLINE vec vec_lookup(const vec_table *t, ivec index)
{
    return _mm512_permutexvar_ps(index, *t);
}
/* x * 2^n for whole n in [-252, 252], in two steps so that neither leaves the range. */
INLINE vec vec_scale2(vec x, vec n)
{
    ivec i = _mm512_cvtps_epi32(n);
    ivec half = _mm512_srai_epi32(i, 1);
    ivec bias = _mm512_set1_epi32(127);
    vec a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    ivec rest = _mm512_sub_epi32(i, half);
    vec b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23));
    return _mm512_mul_ps(_mm512_mul_ps(x, a), b);
}
INLINE vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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
#ifdef __AVX512BF16__
/* The 32-bit word at p in every lane. */
INLINE ivec ivec_set1(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}
/* The lower halves of all words, side by side. */
INLINE void ivec_store_low16(void *p, ivec words)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(words));
}
/* acc + a.odd * b.odd + a.even * b.even, on words of two bfloat16 */
INLINE vec vec_dot_bf16(vec acc, ivec a, ivec b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}
INLINE void vec_store_bf16(uint16_t *p, vec x)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
/* Words of two bfloat16: even in the lower half, odd in the upper. */
INLINE void ivec_store_pairs(uint16_t *p, vec even, vec odd)
{
    ivec low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    ivec high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
#endif

#endif
