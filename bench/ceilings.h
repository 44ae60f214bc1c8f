/* ceilings.h - what this machine can do: FMA peak and read bandwidth, and how to measure.
 *
 * A part of each bench program, not a library: everything is static. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include "engine/kernels/kernels.h"
#include "engine/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { REPEATS = 7 };

typedef void work(void *arg);

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure {
    double median, low, high; /* work per second */
};

/* How much of `amount` per second, when one call of f does `amount`. */
static inline struct figure measure(work *f, void *arg, double amount, clockid_t clock)
{
    double rates[REPEATS];
    f(arg);
    double start = now(clock);
    f(arg);
    double once = now(clock) - start;
    int calls = once > 0.03 ? 1 : (int)(0.03 / (once + 1e-9)) + 1;
    for (int r = 0; r < REPEATS; r++) {
        start = now(clock);
        for (int i = 0; i < calls; i++)
            f(arg);
        rates[r] = amount * calls / (now(clock) - start);
    }
    qsort(rates, REPEATS, sizeof *rates, ascending);
    return (struct figure){ rates[REPEATS / 2], rates[0], rates[REPEATS - 1] };
}

/* ---- ceilings of the machine ------------------------------------------------------ */

static volatile float sink;
enum { PEAK_STEPS = 1 << 20 };

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void fma_256(void *arg)
{
    (void)arg;
    __m256 acc[12], a = _mm256_set1_ps(1.0000001f), b = _mm256_set1_ps(1e-9f);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], a, b);
    }
    for (int i = 1; i < 12; i++)
        acc[0] = _mm256_add_ps(acc[0], acc[i]);
    sink = _mm256_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f"))) static void fma_512(void *arg)
{
    (void)arg;
    __m512 acc[12], a = _mm512_set1_ps(1.0000001f), b = _mm512_set1_ps(1e-9f);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    }
    for (int i = 1; i < 12; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    sink = _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f,avx512bf16"))) static void dot_bf16(void *arg)
{
    (void)arg;
    __m512 acc[12];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], a, a);
    }
    for (int i = 1; i < 12; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    sink = _mm512_cvtss_f32(acc[0]);
}
#endif

/* FLOP per second of one core with the instructions our kernels use; 0: not known. */
static inline struct figure peak_f32(void)
{
#if defined(__x86_64__)
    if (strncmp(kernels_name(), "avx512", 6) == 0)
        return measure(fma_512, NULL, 2.0 * 16 * 12 * PEAK_STEPS, CLOCK_THREAD_CPUTIME_ID);
    if (strcmp(kernels_name(), "avx2") == 0)
        return measure(fma_256, NULL, 2.0 * 8 * 12 * PEAK_STEPS, CLOCK_THREAD_CPUTIME_ID);
#endif
    return (struct figure){ 0, 0, 0 };
}

static inline struct figure peak_bf16(void)
{
#if defined(__x86_64__)
    if (strcmp(kernels_name(), "avx512bf16") == 0)
        return measure(dot_bf16, NULL, 4.0 * 16 * 12 * PEAK_STEPS, CLOCK_THREAD_CPUTIME_ID);
#endif
    return (struct figure){ 0, 0, 0 };
}

struct reading {
    const uint64_t *p;
    size_t n;
    struct threads *threads;
};

/* Plain loads with the same prefetching that the kernels allow themselves. */
static void read_range(void *arg, size_t begin, size_t end)
{
    const struct reading *r = arg;
    uint64_t s = 0;
#if defined(__x86_64__)
    __m128i acc[4];
    for (int i = 0; i < 4; i++)
        acc[i] = _mm_setzero_si128();
    for (size_t at = begin; at < end; at += 8) {
        __builtin_prefetch(r->p + at + 256);
        for (size_t i = 0; i < 4; i++)
            acc[i] = _mm_xor_si128(acc[i], _mm_load_si128((const __m128i *)(r->p + at) + i));
    }
    for (int i = 0; i < 4; i++)
        s ^= (uint64_t)_mm_cvtsi128_si64(acc[i]);
#else
    for (size_t at = begin; at < end; at++)
        s ^= r->p[at];
#endif
    sink = (float)s;
}

static inline void read_all(void *arg)
{
    struct reading *r = arg;
    read_range(r, 0, r->n);
}

static inline void read_threads(void *arg)
{
    struct reading *r = arg;
    threads_run(r->threads, r->n, 1024, read_range, r);
}

#endif
