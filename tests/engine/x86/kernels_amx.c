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

static struct packed *pack_weights(const float *w, size_t O, size_t C)
{
    size_t bytes = (packed_bytes(PACKED_BF16, O, C) + 63) / 64 * 64;
    return packed_init(aligned_alloc(64, bytes), PACKED_BF16, w, SOURCE_F32, O, C);
}

static float upper_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* sum + x (K) w (K, stride apart): 32 values per instruction, three parts of x after each other,
 * odd and even products summed from zero and then added. */
static float sum_chain(float sum, const float *x, const float *w, size_t stride, size_t K)
{
    for (size_t from = 0; from < K; from += 32)
        for (int part = 0; part < 3; part++) {
            float pair[2] = { 0, 0 };
            for (size_t k = from; k < K && k < from + 32; k++) {
                float rest = x[k];
                for (int i = 0; i < part; i++)
                    rest -= upper_half(rest);
                pair[k & 1] = fmaf(upper_half(rest), w[k * stride], pair[k & 1]);
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

static void documented_order(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2];
        float *x = random_floats(N * C), *dy = random_floats(N * O), *w = random_weights(O * C);
        struct packed *p = pack_weights(w, O, C);
        for (int add = 0; add < 2; add++) {
            float *y = random_floats(N * O), *dx = random_floats(N * C);
            float *want = malloc(N * O * sizeof *want), *dwant = malloc(N * C * sizeof *dwant);
            for (size_t i = 0; i < N * O; i++)
                want[i] = sum_chain(add ? y[i] : 0, x + i / O * C, w + i % O * C, 1, C);
            for (size_t i = 0; i < N * C; i++)
                dwant[i] = sum_chain(add ? dx[i] : 0, dy + i / C * O, w + i % C, C, O);
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
    struct packed *p = pack_weights(w, O, C);
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
    struct packed *p = pack_weights(w, O, C);
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
        RUN(special_values);
        RUN(a_bad_weight_stays_in_its_column);
    }
    return tap_done();
}
