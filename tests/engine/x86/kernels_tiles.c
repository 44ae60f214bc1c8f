/* Every tile shape of every vector set sums in the documented order, to the bit.
 *
 * The AVX-512 files are compiled here a second time with their 16-lane vocabulary
 * spelled as pairs of 8-lane vectors, so that their loops run on machines that lack
 * the instructions. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ENGINE_KERNELS_SIMD_H /* keep simd_avx512.h out: this is its stand-in */
enum { LANES = 16 };
typedef struct {
    __m256 lo, hi;
} vec;
typedef struct {
    __m256i lo, hi;
} ivec;
#define INLINE static inline __attribute__((always_inline, unused))

INLINE vec vec_set1(float x)
{
    return (vec){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}
INLINE vec vec_zero(void)
{
    return vec_set1(0);
}
INLINE vec vec_load(const float *p)
{
    return (vec){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
INLINE void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
INLINE vec vec_add(vec a, vec b)
{
    return (vec){ _mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi) };
}
INLINE vec vec_mul(vec a, vec b)
{
    return (vec){ _mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi) };
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return (vec){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
INLINE void vec_fma_to(vec *sum, vec a, vec b)
{
    *sum = vec_fma(a, b, *sum);
}
INLINE ivec ivec_load(const void *p)
{
    const __m256i *v = p;
    return (ivec){ _mm256_loadu_si256(v), _mm256_loadu_si256(v + 1) };
}
INLINE vec vec_bf16_even(ivec w)
{
    return (vec){ _mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16)) };
}
INLINE vec vec_bf16_odd(ivec w)
{
    __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (vec){ _mm256_castsi256_ps(_mm256_and_si256(w.lo, upper)),
                  _mm256_castsi256_ps(_mm256_and_si256(w.hi, upper)) };
}
INLINE ivec ivec_shift(ivec w, int bits)
{
    return (ivec){ _mm256_srli_epi32(w.lo, bits), _mm256_srli_epi32(w.hi, bits) };
}
INLINE vec vec_load_f16(const void *p)
{
    const __m128i *h = p;
    return (vec){ _mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)) };
}
INLINE vec vec_load_bf16(const void *p)
{
    const __m128i *h = p;
    ivec w = { _mm256_cvtepu16_epi32(_mm_loadu_si128(h)),
               _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)) };
    return vec_bf16_even(w);
}
INLINE vec vec_load_u8(const void *p)
{
    __m128i b = _mm_loadu_si128(p);
    return (vec){ _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)),
                  _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))) };
}
INLINE vec vec_load_i8(const void *p)
{
    __m128i b = _mm_loadu_si128(p);
    return (vec){ _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))) };
}
INLINE vec vec_byte(ivec w, int j)
{
    int up = 24 - 8 * j;
    return (vec){
        _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w.lo, up), 24)),
        _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w.hi, up), 24)),
    };
}
INLINE vec vec_sub(vec a, vec b)
{
    return (vec){ _mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi) };
}
typedef const float *vec_table;
INLINE vec_table vec_table_load(const float *p)
{
    return p;
}
INLINE vec vec_lookup(const vec_table *t, ivec index)
{
    __m256i mask = _mm256_set1_epi32(15);
    return (vec){ _mm256_i32gather_ps(*t, _mm256_and_si256(index.lo, mask), 4),
                  _mm256_i32gather_ps(*t, _mm256_and_si256(index.hi, mask), 4) };
}
INLINE ivec ivec_set1(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return (ivec){ _mm256_set1_epi32(word), _mm256_set1_epi32(word) };
}
INLINE void ivec_store_low16(void *p, ivec w)
{
    uint32_t words[LANES];
    uint16_t low[LANES];
    memcpy(words, &w, sizeof words);
    for (int i = 0; i < LANES; i++)
        low[i] = (uint16_t)words[i];
    memcpy(p, low, sizeof low);
}
INLINE vec vec_dot_bf16(vec acc, ivec a, ivec b)
{
    acc = vec_fma(vec_bf16_odd(a), vec_bf16_odd(b), acc);
    return vec_fma(vec_bf16_even(a), vec_bf16_even(b), acc);
}
#include "engine/kernels/kernels.h"
INLINE void vec_store_bf16(uint16_t *p, vec x)
{
    float t[LANES];
    vec_store(t, x);
    for (int i = 0; i < LANES; i++)
        p[i] = bf16_from_f32(t[i]);
}

INLINE void ivec_store_pairs(uint16_t *p, vec even, vec odd)
{
    uint16_t low[LANES], high[LANES];
    vec_store_bf16(low, even);
    vec_store_bf16(high, odd);
    for (int i = 0; i < LANES; i++) {
        p[2 * i] = low[i];
        p[2 * i + 1] = high[i];
    }
}

#define kernels_avx512          kernels_wide
#define kernels_avx512bf16_fill kernels_wide_fill
#include "engine/kernels/x86/ops_avx512.c"
#include "engine/kernels/x86/ops_avx512bf16.c"

#include "support/tap.h"
#include "support/tile_check.h"

static int has_avx2;

static void avx2(void)
{
    if (!has_avx2)
        return;
    check_every_tile(&kernels_avx2);
    check_widen_and_transpose(&kernels_avx2);
}

static void avx512_in_pairs_of_vectors(void)
{
    if (!has_avx2)
        return;
    check_every_tile(&kernels_wide);
    check_widen_and_transpose(&kernels_wide);
}

/* Pairs sum odd first and then even within a word; operands are exact in bfloat16. */
static void avx512bf16_in_pairs_of_vectors(void)
{
    static struct operands p;
    struct kernel_ops ops = kernels_wide;
    float y[MR_MAX * COLUMNS];
    uint16_t rounded[MR_MAX * KC];
    if (!has_avx2)
        return;
    kernels_wide_fill(&ops);
    for (size_t mr = 1; mr <= ops.mr; mr++)
        for (size_t np = 1; np <= 2; np++) {
            size_t K = mr % 2 ? 255 : 64;
            fill_operands(&p, np, K);
            ops.weights[PACKED_BF16_PAIRS].narrow(rounded, p.a, MR_MAX * KC);
            CHECK(memcmp(rounded, p.a16, sizeof rounded) == 0);
            struct tile_out out = { y, COLUMNS, 1, 0, NULL, 0 };
            ops.weights[PACKED_BF16_PAIRS].tile(PACKED_BF16_PAIRS, mr, np, K, p.a16, p.b16, &out);
            double worst = 0;
            for (size_t m = 0; m < mr; m++)
                for (size_t n = 0; n < np * NR; n++)
                    worst = fmax(worst, fabs((double)y[m * COLUMNS + n] - sum_chain(&p, m, n, K)));
            CHECK(worst < 2e-5);
        }
}

int main(void)
{
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    RUN(avx2);
    RUN(avx512_in_pairs_of_vectors);
    RUN(avx512bf16_in_pairs_of_vectors);
    return tap_done();
}
