/* Products on the matrix unit: the documented order of sums bit for bit, and numbers that
 * are none.  A CPU without the unit has nothing to test. */
#include "engine/kernels/kernels.h"
#include "support/tap.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint32_t state = 1;

static float next_uniform(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

static float *random_floats(size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = next_uniform();
    return p;
}

/* Weights that bfloat16 holds. */
static float *random_weights(size_t n)
{
    float *p = random_floats(n);
    for (size_t i = 0; i < n; i++)
        p[i] = f32_from_bf16(bf16_from_f32(p[i]));
    return p;
}

static struct packed *pack_weights(enum packed_dtype type, const float *w, size_t O, size_t C)
{
    size_t bytes = (packed_bytes(type, O, C) + 63) / 64 * 64;
    return packed_init(aligned_alloc(64, bytes), type, w, SOURCE_F32, O, C);
}

static float upper_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float rounded(float x)
{
    return f32_from_bf16(bf16_from_f32(x));
}

/* A matrix of which one column, or row, is summed. */
struct line {
    const float *p;
    size_t stride;
};

/* sum + x (K) w (K): 32 values per instruction, of x three parts after each other or one that is
 * rounded; odd and even products summed from zero and then added. */
static float sum_chain(int parts, float sum, struct line x, struct line w, size_t K)
{
    for (size_t from = 0; from < K; from += 32)
        for (int part = 0; part < parts; part++) {
            float pair[2] = { 0, 0 };
            for (size_t k = from; k < K && k < from + 32; k++) {
                float rest = x.p[k * x.stride];
                for (int i = 0; i < part; i++)
                    rest -= upper_half(rest);
                rest = parts == 1 ? rounded(rest) : upper_half(rest);
                pair[k & 1] = fmaf(rest, w.p[k * w.stride], pair[k & 1]);
            }
            sum += pair[0] + pair[1];
        }
    return sum;
}

static const size_t shapes[][3] = {
    /* N, O, C */
    { 1, 1, 1 },    { 1, 40, 96 },    { 5, 33, 70 },   { 16, 64, 256 },  { 17, 48, 300 },
    { 40, 80, 31 }, { 64, 100, 513 }, { 65, 16, 257 }, { 300, 544, 64 }, { 0, 40, 64 },
};

static void order_of(enum packed_dtype type, int parts)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2];
        float *x = random_floats(N * C), *dy = random_floats(N * O), *w = random_weights(O * C);
        struct packed *p = pack_weights(type, w, O, C);
        for (int add = 0; add < 2; add++) {
            float *y = random_floats(N * O), *dx = random_floats(N * C);
            float *want = malloc(N * O * sizeof *want), *dwant = malloc(N * C * sizeof *dwant);
            for (size_t i = 0; i < N * O; i++)
                want[i] = sum_chain(parts, add ? y[i] : 0, (struct line){ x + i / O * C, 1 },
                                    (struct line){ w + i % O * C, 1 }, C);
            for (size_t i = 0; i < N * C; i++)
                dwant[i] = sum_chain(parts, add ? dx[i] : 0, (struct line){ dy + i / C * O, 1 },
                                     (struct line){ w + i % C, C }, O);
            gemm_forward(y, x, p, N, add, 0, O);
            gemm_backward(dx, dy, p, N, add, 0, C);
            CHECK(memcmp(y, want, N * O * sizeof *y) == 0);
            CHECK(memcmp(dx, dwant, N * C * sizeof *dx) == 0);
            free(y);
            free(dx);
            free(want);
            free(dwant);
        }
        free(x);
        free(dy);
        free(w);
        free(p);
    }
}

static void documented_order(void)
{
    order_of(PACKED_BF16, 3);
}

static void rounded_order(void)
{
    order_of(PACKED_BF16_PAIRS, 1);
}

/* alpha times the chain of each block of 256, added in ascending order. */
static float rounded_sum(float before, int add, float alpha, struct line a, struct line b, size_t K)
{
    for (size_t k = 0; k < K; k += 256) {
        struct line x = { a.p + k * a.stride, a.stride }, w = { b.p + k * b.stride, b.stride };
        float sum = alpha * sum_chain(1, 0, x, w, K - k < 256 ? K - k : 256);
        before = add || k > 0 ? before + sum : sum;
    }
    return before;
}

static void order_of_gradients(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2];
        float *a = random_floats(N * C), *b = random_weights(C * O), *t = random_floats(C * N);
        float *y = malloc(N * O * sizeof *y);
        for (int add = 0; add < 2; add++) {
            int same = 1;
            for (size_t i = 0; i < N * O; i++)
                y[i] = 0.75f;
            dense_nn_rounded(y, a, b, N, O, C, 0.3f, add, 0, N);
            for (size_t i = 0; i < N * O; i++)
                same &= y[i] == rounded_sum(0.75f, add, 0.3f, (struct line){ a + i / O * C, 1 },
                                            (struct line){ b + i % O, O }, C);
            CHECK(same);
            for (size_t i = 0; i < N * O; i++)
                y[i] = 0.75f;
            dense_tn_rounded(y, t, b, C, N, O, 0.3f, add, 0, N);
            for (size_t i = 0; i < N * O; i++)
                same &= y[i] == rounded_sum(0.75f, add, 0.3f, (struct line){ t + i / O, N },
                                            (struct line){ b + i % O, O }, C);
            CHECK(same);
        }
        free(a);
        free(b);
        free(t);
        free(y);
    }
}

/* Parts of a number must not make another of it: the largest does not overflow, an infinity
 * stays one, a NaN too, and only in its own row. */
static void special_values(void)
{
    enum { N = 4, O = 3, C = 33 };
    static const float special[N] = { FLT_MAX, -INFINITY, NAN, -FLT_MAX };
    float x[N * C] = { 0 }, y[N * O], w[O * C];
    for (size_t i = 0; i < O * C; i++)
        w[i] = 0.5f;
    for (size_t i = 0; i < N; i++)
        x[i * C + C - 1] = special[i];
    struct packed *p = pack_weights(PACKED_BF16, w, O, C);
    gemm_forward(y, x, p, N, 0, 0, O);
    for (size_t o = 0; o < O; o++) {
        CHECK(y[0 * O + o] == FLT_MAX / 2);
        CHECK(y[1 * O + o] == -INFINITY);
        CHECK(isnan(y[2 * O + o]));
        CHECK(y[3 * O + o] == -FLT_MAX / 2);
    }
    free(p);
}

/* What lies behind a panel is not multiplied, not even by zero: a weight that is no number makes
 * its own column one, and no other. */
static void a_bad_weight_stays_in_its_column(void)
{
    enum { N = 3, O = 40, C = 34 };
    float *x = random_floats(N * C), *w = random_weights(O * C), y[N * O], dx[N * C];
    w[20 * C + 5] = NAN;
    struct packed *p = pack_weights(PACKED_BF16, w, O, C);
    gemm_forward(y, x, p, N, 0, 0, O);
    gemm_backward(dx, y, p, N, 0, 0, C);
    for (size_t i = 0; i < N * O; i++)
        CHECK(!isnan(y[i]) == (i % O != 20));
    free(x);
    free(w);
    free(p);
}

int main(void)
{
    printf("# kernels: %s\n", kernels_name());
    if (strcmp(kernels_name(), "amx") == 0) {
        RUN(documented_order);
        RUN(rounded_order);
        RUN(order_of_gradients);
        RUN(special_values);
        RUN(a_bad_weight_stays_in_its_column);
    }
    return tap_done();
}
