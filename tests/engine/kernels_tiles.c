/* Every tile shape of every vector set sums in the documented order, to the bit.
 *
 * The AVX-512 files are compiled here a second time with their 16-lane vocabulary
 * spelled as pairs of 8-lane vectors, so that their loops run on machines that lack
 * the instructions. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
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
INLINE ivec ivec_set1(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return (ivec){ _mm256_set1_epi32(word), _mm256_set1_epi32(word) };
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

#define kernels_avx512          kernels_wide
#define kernels_avx512bf16_fill kernels_wide_fill
#include "engine/kernels/x86/ops_avx512.c"
#include "engine/kernels/x86/ops_avx512bf16.c"
#endif
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "support/tap.h"

enum { COLUMNS = 2 * NR, SCRATCH = 8 };

static uint32_t state = 1;

static float uniform(void)
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
static void fill(struct operands *p, size_t np, size_t K)
{
    memset(p, 0, sizeof *p);
    for (size_t m = 0; m < MR_MAX; m++)
        for (size_t k = 0; k < K; k++) {
            p->a16[m * KC + k] = bf16_from_f32(uniform());
            p->a[m * KC + k] = f32_from_bf16(p->a16[m * KC + k]);
        }
    size_t even = K + (K & 1);
    for (size_t i = 0; i < np; i++)
        for (size_t k = 0; k < K; k++)
            for (size_t n = 0; n < NR; n++) {
                uint16_t half = bf16_from_f32(uniform());
                p->b16[i * even * NR + (k / 2 * NR + n) * 2 + (k & 1)] = half;
                p->b[i * K * NR + k * NR + n] = f32_from_bf16(half);
            }
    for (size_t i = 0; i < MR_MAX * COLUMNS; i++)
        p->before[i] = uniform();
}

/* The documented sum, one rounding per step. */
static float chain(const struct operands *p, size_t m, size_t column, size_t K)
{
    float sum = 0;
    for (size_t k = 0; k < K; k++)
        sum = fmaf(p->a[m * KC + k], p->b[column / NR * K * NR + k * NR + column % NR], sum);
    return sum;
}

static int agree(const struct operands *p, const float *y, size_t mr, size_t np, size_t K, int add)
{
    for (size_t m = 0; m < mr; m++)
        for (size_t n = 0; n < np * NR; n++) {
            float v = 0.75f * chain(p, m, n, K);
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
static void pack(const struct kernel_ops *ops, float *left, size_t mr, size_t K,
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

static void every_tile(const struct kernel_ops *ops)
{
    static struct operands p;
    static const size_t lengths[] = { 1, 2, 7, 255, 256 };
    float y[MR_MAX * COLUMNS], left[MR_MAX * KC + SCRATCH];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t np = 1; np <= 2; np++) {
            size_t K = lengths[i];
            fill(&p, np, K);
            for (size_t mr = 1; mr <= ops->mr; mr++) {
                int add = (int)(mr & 1);
                struct tile_out out = { y, COLUMNS, 0.75f, add, (const char *)p.b, mr % 5 };
                memcpy(y, p.before, sizeof y);
                pack(ops, left, mr, K, &p);
                ops->tile_f32(mr, np, K, left, p.b, &out);
                CHECK(agree(&p, y, mr, np, K, add));
                memcpy(y, p.before, sizeof y);
                ops->tile_bf16(mr, np, K, left, p.b16, &out);
                CHECK(agree(&p, y, mr, np, K, add));
            }
        }
}

static void widen_and_transpose(const struct kernel_ops *ops)
{
    static struct operands p;
    float wide[KC * NR], t[24 * 9];
    fill(&p, 1, 255);
    ops->widen(wide, p.b16, 255);
    CHECK(memcmp(wide, p.b, 255 * NR * sizeof *wide) == 0);
    ops->transpose(t, 9, p.a, KC, 8, 24);
    int wrong = 0;
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < 24; j++)
            wrong += t[j * 9 + i] != p.a[i * KC + j];
    CHECK(wrong == 0);
}

#if defined(__x86_64__)
static int has_avx2;

static void avx2(void)
{
    if (!has_avx2)
        return;
    every_tile(&kernels_avx2);
    widen_and_transpose(&kernels_avx2);
}

static void avx512_in_pairs_of_vectors(void)
{
    if (!has_avx2)
        return;
    every_tile(&kernels_wide);
    widen_and_transpose(&kernels_wide);
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
            fill(&p, np, K);
            ops.narrow(rounded, p.a, MR_MAX * KC);
            CHECK(memcmp(rounded, p.a16, sizeof rounded) == 0);
            struct tile_out out = { y, COLUMNS, 1, 0, NULL, 0 };
            ops.tile_pairs(mr, np, K, p.a16, p.b16, &out);
            double worst = 0;
            for (size_t m = 0; m < mr; m++)
                for (size_t n = 0; n < np * NR; n++)
                    worst = fmax(worst, fabs((double)y[m * COLUMNS + n] - chain(&p, m, n, K)));
            CHECK(worst < 2e-5);
        }
}
#endif

static void plain(void)
{
    static struct operands p;
    float left[MR_MAX * KC];
    fill(&p, 1, 77);
    pack(&kernels_plain, left, kernels_plain.mr, 77, &p);
    widen_and_transpose(&kernels_plain);
}

int main(void)
{
    RUN(plain);
#if defined(__x86_64__)
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    RUN(avx2);
    RUN(avx512_in_pairs_of_vectors);
    RUN(avx512bf16_in_pairs_of_vectors);
#endif
    return tap_done();
}
