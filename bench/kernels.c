/* bench/kernels - the bars G1 to G6 as ratios, measured in one run.
 *
 * One-thread figures use the thread's CPU time, so that a busy neighbor disturbs
 * neither side of a ratio; figures of several threads use the wall clock.  Both sides
 * take turns; every figure is the median, with the spread behind it and, as "alone", the
 * ratio of both sides' fast turns (see compare()).  OpenBLAS is loaded when it is there, and
 * only to stand beside our kernels: it lays out both operands in every call, which is what
 * packed weights save.  It is called as a linear layer would, x (M,K) times W (N,K)
 * transposed, and with W given as (K,N), which it prefers or not. */
#define _DEFAULT_SOURCE /* madvise */
#include "ceilings.h"
#include "ratio.h"
#include "engine/kernels/kernels.h"
#include "engine/threads.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- products ------------------------------------------------------------------------ */

struct product {
    float *y, *x;
    float *w; /* plain, for OpenBLAS */
    struct packed *packed;
    size_t N, O, C;
    struct threads *threads;
    float *left; /* for many rows, as the engine has them: laid out first */
};

static void *take(size_t bytes)
{
    enum { HUGE_PAGE = 2 << 20 };
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, bytes);
    if (p == NULL) {
        fprintf(stderr, "kernels: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(p, bytes,
            MADV_HUGEPAGE); /* both sides alike: figures do not depend on luck with pages */
    return p;
}

static float *numbers(size_t n)
{
    float *p = take(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)((i * 2654435761u >> 8 & 0xffff) / 65536.0 - 0.5);
    return p;
}

static struct packed *pack(enum packed_dtype type, const float *w, size_t O, size_t C)
{
    return packed_init(take(packed_bytes(type, O, C)), type, w, SOURCE_F32, O, C);
}

static void lay_out(struct product *p, const float *x, size_t K)
{
    gemm_left(p->left, x, K, p->packed, p->N, K, 0, gemm_left_units(p->packed, p->N, K));
}

static void forward(void *arg)
{
    struct product *p = arg;
    if (p->left == NULL) {
        gemm_forward(p->y, p->x, p->packed, p->N, 0, 0, p->O);
        return;
    }
    lay_out(p, p->x, p->C);
    gemm_forward_left(p->y, p->left, p->packed, p->N, 0, 0, p->C, 0, p->O);
}

static void backward(void *arg)
{
    struct product *p = arg;
    if (p->left == NULL) {
        gemm_backward(p->x, p->y, p->packed, p->N, 0, 0, p->C);
        return;
    }
    lay_out(p, p->y, p->O);
    gemm_backward_left(p->x, p->left, p->packed, p->N, 0, 0, p->O, 0, p->C);
}

static void forward_slice(void *arg, size_t begin, size_t end)
{
    struct product *p = arg;
    gemm_forward(p->y, p->x, p->packed, p->N, 0, begin, end);
}

static void forward_threads(void *arg)
{
    struct product *p = arg;
    threads_run(p->threads, p->O, gemm_grain(), forward_slice, p);
}

static void left_slice(void *arg, size_t begin, size_t end)
{
    struct product *p = arg;
    gemm_left(p->left, p->x, p->C, p->packed, p->N, p->C, begin, end);
}

static void shared_slice(void *arg, size_t begin, size_t end)
{
    struct product *p = arg;
    gemm_forward_left(p->y, p->left, p->packed, p->N, 0, 0, p->C, begin, end);
}

/* As the engine multiplies many rows: laid out once, then in slices. */
static void forward_shared(void *arg)
{
    struct product *p = arg;
    threads_run(p->threads, gemm_left_units(p->packed, p->N, p->C), 1, left_slice, p);
    threads_run_fine(p->threads, p->O, gemm_grain(), shared_slice, p);
}

/* cblas_sgemm(order, transA, transB, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc) */
typedef void sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int,
                   float, float *, int);
static sgemm *blas;

/* row major, x as it is, W transposed: W (O,C) as models store it */
static void forward_blas(void *arg)
{
    struct product *p = arg;
    blas(101, 111, 112, (int)p->N, (int)p->O, (int)p->C, 1, p->x, (int)p->C, p->w, (int)p->C, 0,
         p->y, (int)p->O);
}

/* the same numbers of a W (C,O): nobody has it so, but who called it so would be helped */
static void forward_blas_turned(void *arg)
{
    struct product *p = arg;
    blas(101, 111, 111, (int)p->N, (int)p->O, (int)p->C, 1, p->x, (int)p->C, p->w, (int)p->O, 0,
         p->y, (int)p->O);
}

static void load_blas(void)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    if (lib == NULL)
        return;
    void *set = dlsym(lib, "openblas_set_num_threads"), *gemm = dlsym(lib, "cblas_sgemm");
    void (*set_threads)(int);
    if (set == NULL || gemm == NULL)
        return;
    memcpy(&set_threads, &set, sizeof set);
    memcpy(&blas, &gemm, sizeof gemm);
    set_threads(1);
}

/* ---- the report -------------------------------------------------------------------- */

static void line(const char *bar, const char *what, double ratio, double want, struct figure f,
                 double unit)
{
    double spread = ratio / f.median;
    keep_ratio("kernels", what, ratio, f.low * spread, f.high * spread, want);
    printf("%-3s %-46s %6.2f x", bar, what, ratio);
    if (want > 0)
        printf("  (bar %.2f)", want);
    printf("  %.1f [%.1f-%.1f]\n", f.median / unit, f.low / unit, f.high / unit);
    fflush(stdout);
}

static void ratio_line(const char *bar, const char *what, struct figure r, double want)
{
    keep_ratio("kernels", what, r.median, r.low, r.high, want);
    printf("%-3s %-46s %6.2f x", bar, what, r.median);
    if (want > 0)
        printf("  (bar %.2f)", want);
    printf("  [%.2f-%.2f]", r.low, r.high);
    if (r.best > 0)
        printf("  alone %.2f", r.best);
    printf("\n");
    fflush(stdout);
}

/* A few rows use each weight a few times, 4 FLOP per byte for eight of them: what loads alone
 * get from where the weights are, by then in L3 or where neighbors have left them, may be
 * less than the peak asks for. */
static void feed_line(const struct product *p, struct figure ours)
{
    size_t words = packed_bytes(PACKED_F32, p->O, p->C) / sizeof(uint64_t);
    struct reading r = { (const uint64_t *)(const void *)p->packed, words / READ_GRAIN * READ_GRAIN,
                         NULL };
    double flop = (double)(r.n * sizeof *r.p / sizeof(float)) * 2 * (double)p->N;
    struct side reads = { read_all, &r, flop };
    struct figure f = compare(reads, peak_side(), CLOCK_THREAD_CPUTIME_ID);
    printf(
        "      reading its weights feeds %.2f [%.2f-%.2f] of the peak; ours is %.2f of the lower "
        "limit\n",
        f.median, f.low, f.high, ours.median / (f.median < 1 ? f.median : 1));
    fflush(stdout);
}

/* Ours against both forms of OpenBLAS, and what the bar asks for on this machine. */
static void blas_bars(struct product *p, struct side ours)
{
    struct side natural = { forward_blas, p, ours.amount }, peak = peak_side();
    struct side turned = { forward_blas_turned, p, ours.amount };
    int bar = p->N == 8;
    char what[80];
    snprintf(what, sizeof what, "f32 %zux%zu M=%zu / OpenBLAS x W(N,K)^T", p->O, p->C, p->N);
    ratio_line(bar ? "G2" : "", what, compare(ours, natural, CLOCK_THREAD_CPUTIME_ID), bar ? 3 : 0);
    if (!bar)
        return;
    snprintf(what, sizeof what, "f32 %zux%zu M=%zu / OpenBLAS x W(K,N)", p->O, p->C, p->N);
    ratio_line("", what, compare(ours, turned, CLOCK_THREAD_CPUTIME_ID), 0);
    if (peak.f == NULL)
        return;
    double share = compare(natural, peak, CLOCK_THREAD_CPUTIME_ID).best;
    double other = compare(turned, peak, CLOCK_THREAD_CPUTIME_ID).best;
    printf("    OpenBLAS alone: %.2f and %.2f of the FMA peak; three times that is %.2f and %.2f\n",
           share, other, 3 * share, 3 * other);
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void gemm_bars(size_t O, size_t C)
{
    static const size_t rows[] = { 8, 64, 512 };
    float *w = numbers(O * C), *x = numbers(512 * C), *y = numbers(512 * O);
    struct packed *f32 = pack(PACKED_F32, w, O, C), *bf16 = pack(PACKED_BF16, w, O, C),
                  *pairs = pack(PACKED_BF16_PAIRS, w, O, C);
    size_t length = max_size(O, C);
    float *left =
        take(max_size(gemm_left_floats(f32, 512, length), gemm_left_floats(bf16, 512, length)) *
             sizeof *left);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct product p = { y, x, w, f32, rows[i], O, C, NULL, rows[i] > 16 ? left : NULL };
        double flop = 2.0 * (double)rows[i] * (double)O * (double)C;
        char what[80];
        struct side ours = { forward, &p, flop }, back = { backward, &p, flop };
        struct side peak = peak_side();
        if (peak.f != NULL) {
            snprintf(what, sizeof what, "f32 %zux%zu M=%zu / FMA peak", O, C, rows[i]);
            struct figure share = compare(ours, peak, CLOCK_THREAD_CPUTIME_ID);
            ratio_line("G1", what, share, 0.85);
            if (rows[i] == 8)
                feed_line(&p, share);
            snprintf(what, sizeof what, "f32 %zux%zu M=%zu backward / FMA peak", O, C, rows[i]);
            ratio_line("", what, compare(back, peak, CLOCK_THREAD_CPUTIME_ID), 0);
        }
        if (blas != NULL)
            blas_bars(&p, ours);
        struct product q = p;
        q.packed = pairs;
        struct side half = { forward, &q, flop }, half_back = { backward, &q, flop };
        struct side dots = dots_side();
        snprintf(what, sizeof what, "bf16 %zux%zu M=%zu / f32", O, C, rows[i]);
        ratio_line(dots.f ? "G4" : "", what, compare(half, ours, CLOCK_THREAD_CPUTIME_ID),
                   dots.f ? 1.8 : 0);
        snprintf(what, sizeof what, "bf16 %zux%zu M=%zu backward / f32", O, C, rows[i]);
        ratio_line("", what, compare(half_back, back, CLOCK_THREAD_CPUTIME_ID), 0);
        if (dots.f != NULL) {
            snprintf(what, sizeof what, "bf16 %zux%zu M=%zu / VDPBF16PS peak", O, C, rows[i]);
            ratio_line("G3", what, compare(half, dots, CLOCK_THREAD_CPUTIME_ID), 0.85);
        }
        if (kernels_bf16_rounds()) { /* elsewhere the two kinds are one */
            q.packed = bf16;
            snprintf(what, sizeof what, "bf16 as exact as f32, %zux%zu M=%zu / f32", O, C, rows[i]);
            ratio_line("", what, compare(half, ours, CLOCK_THREAD_CPUTIME_ID), 0);
        }
    }
    free(w);
    free(x);
    free(y);
    free(f32);
    free(bf16);
    free(pairs);
    free(left);
}

static void bandwidth_bars(struct threads *two)
{
    enum { O = 32768, C = 2048 }; /* 256 MB: beyond any L3 here */
    float *w = numbers((size_t)O * C), *x = numbers(C), *y = numbers(O);
    struct reading r = { (const uint64_t *)w, (size_t)O * C / 2, NULL };
    double bytes = (double)O * C * sizeof(float);
    struct packed *f32 = pack(PACKED_F32, w, O, C);
    struct product p = { y, x, NULL, f32, 1, O, C, two, NULL };
    struct side reads = { read_all, &r, bytes }, ours = { forward, &p, bytes };
    ratio_line("G5", "f32 GEMV / read bandwidth, 1 thread",
               compare(ours, reads, CLOCK_THREAD_CPUTIME_ID), 0.85);
    struct reading r2 = { r.p, r.n, two };
    struct side reads2 = { read_threads, &r2, bytes }, ours2 = { forward_threads, &p, bytes };
    ratio_line("", "f32 GEMV / read bandwidth, 2 threads", compare(ours2, reads2, CLOCK_MONOTONIC),
               0);
    free(f32);
    p.packed = pack(PACKED_BF16, w, O, C);
    ours.amount = bytes / 2;
    ratio_line("G5", "bf16 GEMV / read bandwidth, 1 thread",
               compare(ours, reads, CLOCK_THREAD_CPUTIME_ID), 0.85);
    struct figure read = measure(read_all, &r, bytes, CLOCK_THREAD_CPUTIME_ID);
    line("", "read bandwidth, 1 thread, GB/s", 1, 0, read, 1e9);
    read = measure(read_threads, &r2, bytes, CLOCK_MONOTONIC);
    line("", "read bandwidth, 2 threads, GB/s", 1, 0, read, 1e9);
    free(p.packed);
    free(w);
    free(x);
    free(y);
}

/* Eight rows do eight multiply-adds with every weight, 4 FLOP per byte: with weights from
 * memory the roof is what the read bandwidth feeds, not the peak. */
static void roof_bar(void)
{
    enum { O = 8192, C = 3072, N = 8 }; /* 100 MB */
    float *w = numbers((size_t)O * C), *x = numbers(N * C), *y = numbers((size_t)N * O);
    struct product p = { y, x, w, pack(PACKED_F32, w, O, C), N, O, C, NULL, NULL };
    struct reading r = { (const uint64_t *)w, (size_t)O * C / 2, NULL };
    double bytes = (double)O * C * sizeof(float), flop = 2.0 * N * O * C;
    struct side by_byte = { forward, &p, bytes }, reads = { read_all, &r, bytes };
    struct side by_flop = { forward, &p, flop }, peak = peak_side();
    ratio_line("", "f32 8192x3072 M=8, beyond L3 / read bandwidth",
               compare(by_byte, reads, CLOCK_THREAD_CPUTIME_ID), 0);
    if (peak.f != NULL) {
        reads.amount = flop;
        ratio_line("", "  the same / FMA peak", compare(by_flop, peak, CLOCK_THREAD_CPUTIME_ID), 0);
        ratio_line("", "  its roof: read bandwidth x 4 FLOP/byte / peak",
                   compare(reads, peak, CLOCK_THREAD_CPUTIME_ID), 0);
    }
    free(w);
    free(x);
    free(y);
    free(p.packed);
}

static void thread_bar(struct threads *two)
{
    enum { N = 512, O = 3072, C = 1024 };
    float *w = numbers((size_t)O * C), *x = numbers(N * C), *y = numbers((size_t)N * O);
    struct packed *packed = pack(PACKED_F32, w, O, C);
    float *left = take(gemm_left_floats(packed, N, C) * sizeof *left);
    struct product p = { y, x, w, packed, N, O, C, two, left };
    double flop = 2.0 * N * O * C;
    struct side one = { forward, &p, flop }, both = { forward_shared, &p, flop };
    ratio_line("G6", "f32 3072x1024 M=512, 2 threads / 1", compare(both, one, CLOCK_MONOTONIC),
               1.7);
    free(w);
    free(x);
    free(y);
    free(left);
    free(p.packed);
}

int main(void)
{
    /* 1 MB lies in L2, where memory does not decide about eight rows */
    static const size_t shapes[][2] = {
        { 512, 512 }, { 3072, 1024 }, { 1024, 3072 }, { 2048, 1024 }
    };
    struct threads *two = threads_new(2);
    if (two == NULL)
        return 1;
    load_blas();
    struct figure peak = peak_f32();
    printf("kernels: %s, OpenBLAS: %s, FMA peak of one core %.1f GFLOP/s [%.1f-%.1f]\n",
           kernels_name(), blas ? "present" : "absent", peak.median / 1e9, peak.low / 1e9,
           peak.high / 1e9);
    if (dots_side().f == NULL)
        printf("G3, G4 skipped: this CPU has no AVX-512 BF16\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        gemm_bars(shapes[i][0], shapes[i][1]);
    roof_bar();
    bandwidth_bars(two);
    thread_bar(two);
    threads_free(two);
    return 0;
}
