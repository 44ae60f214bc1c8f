/* products.h - counters of the products inside the engine, for bench/engine.
 *
 * The linker sends the engine's calls of the product kernels through the functions here
 * (--wrap, see the Makefile), which add up CPU time and multiply-adds of all threads.  A part
 * of that program, not a library. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include "engine/kernels/packed.h"

#include <stdatomic.h>
#include <time.h>

struct counter {
    _Atomic uint64_t ns, flop;
};
static struct counter base_products, adapter_products;

/* Asking for the CPU time is a system call: two for each slice were 5 % of a token. */
static int counting = 1;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    if (!counting)
        return 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count(struct counter *c, uint64_t start, size_t flop)
{
    atomic_fetch_add(&c->ns, cpu_ns() - start);
    atomic_fetch_add(&c->flop, flop);
}

static void counter_reset(struct counter *c)
{
    atomic_store(&c->ns, 0);
    atomic_store(&c->flop, 0);
}

/* The names are the linker's: --wrap=f turns calls of f into calls of __wrap_f.  They have the
 * types of what they stand for, which no linker compares. */
__typeof__(gemm_forward) __real_gemm_forward, __wrap_gemm_forward;
__typeof__(gemm_backward) __real_gemm_backward, __wrap_gemm_backward;
__typeof__(gemm_left) __real_gemm_left, __wrap_gemm_left;

void __wrap_gemm_forward(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                         size_t begin, size_t end)
{
    uint64_t start = cpu_ns();
    __real_gemm_forward(y, x, w, N, accumulate, begin, end);
    count(&base_products, start, 2 * N * w->C * (end - begin));
}

void __wrap_gemm_backward(float *dx, const float *dy, const struct packed *w, size_t N,
                          int accumulate, size_t begin, size_t end)
{
    uint64_t start = cpu_ns();
    __real_gemm_backward(dx, dy, w, N, accumulate, begin, end);
    count(&base_products, start, 2 * N * w->O * (end - begin));
}

/* Laying out counts as time of the products, and multiplies nothing. */
void __wrap_gemm_left(float *left, const float *x, size_t ld, const struct packed *w, size_t N,
                      size_t K, size_t begin, size_t end)
{
    uint64_t start = cpu_ns();
    __real_gemm_left(left, x, ld, w, N, K, begin, end);
    count(&base_products, start, 0);
}

typedef __typeof__(gemm_forward_left) left_kernel;
left_kernel __real_gemm_forward_left, __real_gemm_backward_left, __wrap_gemm_forward_left,
    __wrap_gemm_backward_left;

static void left_counted(left_kernel *f, float *y, const float *left, const struct packed *w,
                         size_t N, int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    uint64_t start = cpu_ns();
    f(y, left, w, N, accumulate, from, to, begin, end);
    count(&base_products, start, 2 * N * (to - from) * (end - begin));
}

void __wrap_gemm_forward_left(float *y, const float *left, const struct packed *w, size_t N,
                              int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    left_counted(__real_gemm_forward_left, y, left, w, N, accumulate, from, to, begin, end);
}

void __wrap_gemm_backward_left(float *dx, const float *left, const struct packed *w, size_t N,
                               int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    left_counted(__real_gemm_backward_left, dx, left, w, N, accumulate, from, to, begin, end);
}

typedef __typeof__(dense_nt) dense_kernel;
dense_kernel __real_dense_nt, __real_dense_nn, __real_dense_tn, __real_dense_nt_columns,
    __real_dense_tn_columns, __real_dense_nn_rounded, __real_dense_tn_rounded,
    __real_dense_tn_columns_rounded, __wrap_dense_nt, __wrap_dense_nn, __wrap_dense_tn,
    __wrap_dense_nt_columns, __wrap_dense_tn_columns, __wrap_dense_nn_rounded,
    __wrap_dense_tn_rounded, __wrap_dense_tn_columns_rounded;

/* `per` multiply-adds for each of [begin, end) */
static void dense_counted(dense_kernel *f, size_t per, float *y, const float *x, const float *w,
                          size_t N, size_t O, size_t C, float alpha, int accumulate, size_t begin,
                          size_t end)
{
    uint64_t start = cpu_ns();
    f(y, x, w, N, O, C, alpha, accumulate, begin, end);
    count(&adapter_products, start, 2 * per * (end - begin));
}

void __wrap_dense_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                     float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_nt, O * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                     float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_nn, O * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_tn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                     float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_tn, N * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_nt_columns(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                             float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_nt_columns, N * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_tn_columns(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                             float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_tn_columns, N * O, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_nn_rounded(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                             float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_nn_rounded, O * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_tn_rounded(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                             float alpha, int accumulate, size_t begin, size_t end)
{
    dense_counted(__real_dense_tn_rounded, N * C, y, x, w, N, O, C, alpha, accumulate, begin, end);
}

void __wrap_dense_tn_columns_rounded(float *y, const float *x, const float *w, size_t N, size_t O,
                                     size_t C, float alpha, int accumulate, size_t begin,
                                     size_t end)
{
    dense_counted(__real_dense_tn_columns_rounded, N * O, y, x, w, N, O, C, alpha, accumulate,
                  begin, end);
}

__typeof__(dense_left) __real_dense_left, __wrap_dense_left;
__typeof__(dense_add_left) __real_dense_add_left, __wrap_dense_add_left;

void __wrap_dense_left(float *left, const float *x, size_t N, size_t C, bool rounded)
{
    uint64_t start = cpu_ns();
    __real_dense_left(left, x, N, C, rounded);
    count(&adapter_products, start, 0);
}

void __wrap_dense_add_left(float *y, const float *left, const float *w, size_t N, size_t O,
                           size_t C, float alpha, bool turned, bool rounded, size_t begin,
                           size_t end)
{
    uint64_t start = cpu_ns();
    __real_dense_add_left(y, left, w, N, O, C, alpha, turned, rounded, begin, end);
    count(&adapter_products, start, 2 * N * C * (end - begin));
}

#endif
