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
    double median, low, high; /* work per second, or a ratio */
    double best;              /* of a ratio: that of both sides' fast turns, else 0 */
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
    return (struct figure){ rates[REPEATS / 2], rates[0], rates[REPEATS - 1], 0 };
}

/* One side of a comparison: one call of f does `amount`. */
struct side {
    work *f;
    void *arg;
    double amount;
};

static double rate_once(const struct side *s, int calls, clockid_t clock)
{
    double start = now(clock);
    for (int i = 0; i < calls; i++)
        s->f(s->arg);
    return s->amount * calls / (now(clock) - start);
}

/* A turn of several calls begins with one more that is not counted: while the other side was
 * at work, neighbors have had the shared cache, and to win it back is no part of the work. */
static inline double rate_turn(const struct side *s, int calls, clockid_t clock)
{
    if (calls > 1)
        s->f(s->arg);
    return rate_once(s, calls, clock);
}

/* How many times as fast as b is a?  Both take turns of some milliseconds, so that what
 * neighbors do to the machine meets both; the figure is that of the ratios of all turns.
 * Neighbors only slow down, and not both sides alike: somebody on the other half of a core
 * takes more from a product than from multiply-adds alone.  So `best` compares the turns
 * that a tenth of the others beat: the core as it is when it is ours. */
static inline struct figure compare(struct side a, struct side b, clockid_t clock)
{
    enum { LONG_TURNS = 25, TURNS = 51 };
    double ratios[TURNS], as[TURNS], bs[TURNS], turn = 0.003;
    int calls_a = (int)(turn * rate_once(&a, 1, clock) / a.amount) + 1;
    int calls_b = (int)(turn * rate_once(&b, 1, clock) / b.amount) + 1;
    int turns = calls_a > 1 && calls_b > 1 ? TURNS : LONG_TURNS, fast = turns - 1 - turns / 10;
    double after = rate_turn(&b, calls_b, clock);
    for (int i = 0; i < turns; i++) {
        bs[i] = after;
        as[i] = rate_turn(&a, calls_a, clock);
        after = rate_turn(&b, calls_b, clock);
        ratios[i] = 2 * as[i] / (bs[i] + after);
    }
    qsort(ratios, (size_t)turns, sizeof *ratios, ascending);
    qsort(as, (size_t)turns, sizeof *as, ascending);
    qsort(bs, (size_t)turns, sizeof *bs, ascending);
    return (struct figure){ ratios[turns / 2], ratios[turns / 10], ratios[fast],
                            as[fast] / bs[fast] };
}

/* ---- ceilings of the machine ------------------------------------------------------ */

static volatile float sink;
enum { PEAK_STEPS = 1 << 17 };

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

/* Multiply-adds alone, with the instructions our kernels use; f is NULL where not known. */
static inline struct side peak_side(void)
{
#if defined(__x86_64__)
    if (strncmp(kernels_name(), "avx512", 6) == 0 || strcmp(kernels_name(), "amx") == 0)
        return (struct side){ fma_512, NULL, 2.0 * 16 * 12 * PEAK_STEPS };
    if (strcmp(kernels_name(), "avx2") == 0)
        return (struct side){ fma_256, NULL, 2.0 * 8 * 12 * PEAK_STEPS };
#endif
    return (struct side){ NULL, NULL, 0 };
}

/* FLOP per second of one core; 0: not known. */
static inline struct figure peak_f32(void)
{
    struct side s = peak_side();
    if (s.f == NULL)
        return (struct figure){ 0, 0, 0, 0 };
    return measure(s.f, s.arg, s.amount, CLOCK_THREAD_CPUTIME_ID);
}

/* Products of bfloat16 alone; f is NULL where the CPU has no VDPBF16PS. */
static inline struct side dots_side(void)
{
#if defined(__x86_64__)
    if (strcmp(kernels_name(), "avx512bf16") == 0 ||
        (strcmp(kernels_name(), "amx") == 0 && __builtin_cpu_supports("avx512bf16")))
        return (struct side){ dot_bf16, NULL, 4.0 * 16 * 12 * PEAK_STEPS };
#endif
    return (struct side){ NULL, NULL, 0 };
}

struct reading {
    const uint64_t *p;
    size_t n;
    struct threads *threads;
};

/* Loads alone, with the prefetching that the kernels allow themselves: the next page is
 * asked for before the hardware would find it. */
enum { READ_AHEAD = 1280, READ_GRAIN = 4096 }; /* words: 10 KB, 32 KB */

#if defined(__x86_64__)
/* Two streams 16 KB apart, as a GEMV reads its panels. */
__attribute__((target("avx2"))) static uint64_t read_256(const uint64_t *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t at = 0; at + READ_GRAIN <= n; at += READ_GRAIN)
        for (size_t i = at; i < at + READ_GRAIN / 2; i += 8) {
            const uint64_t *q = p + i + READ_GRAIN / 2;
            __builtin_prefetch(p + i + READ_GRAIN, 0, 2);
            __builtin_prefetch(q + READ_GRAIN, 0, 2);
            a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i *)(p + i)));
            b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i *)(p + i + 4)));
            a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i *)q));
            b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i *)(q + 4)));
        }
    a = _mm256_xor_si256(a, b);
    return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 1) ^
           (uint64_t)_mm256_extract_epi64(a, 2) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}
#endif

static uint64_t read_plain(const uint64_t *p, size_t n)
{
    uint64_t s[8] = { 0 };
    for (size_t at = 0; at < n; at += 8) {
        __builtin_prefetch(p + at + READ_AHEAD, 0, 2);
        for (size_t i = 0; i < 8; i++)
            s[i] ^= p[at + i];
    }
    return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

/* Words [begin, end), multiples of READ_GRAIN, of memory aligned to 64 bytes. */
static void read_range(void *arg, size_t begin, size_t end)
{
    const struct reading *r = arg;
#if defined(__x86_64__)
    if (peak_side().f != NULL) { /* AVX2 at least */
        sink = (float)read_256(r->p + begin, end - begin);
        return;
    }
#endif
    sink = (float)read_plain(r->p + begin, end - begin);
}

static inline void read_all(void *arg)
{
    struct reading *r = arg;
    read_range(r, 0, r->n);
}

static inline void read_threads(void *arg)
{
    struct reading *r = arg;
    threads_run(r->threads, r->n, READ_GRAIN, read_range, r);
}

#endif
