/* linear.c - products of more rows and longer sums than are laid out at once: the bits of one row
 * are those it has alone, and the numbers those of the sum written in double. */
#include "engine/layers/linear.h"
#include "base/rand.h"
#include "support/tap.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 600, LONG = 9000, SHORT = 70 };

static float *noise(size_t n, uint64_t seed)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(philox_uniform(seed, i) - 0.5);
    return p;
}

struct matrix {
    struct linear linear;
    float *w, *bias;
    void *memory;
};

static void matrix_init(struct matrix *m, size_t out, size_t in, enum packed_dtype dtype,
                        uint64_t seed)
{
    m->w = noise(out * in, seed);
    m->bias = noise(out, seed + 1);
    for (size_t i = 0; i < out * in; i++) /* exact in every type */
        m->w[i] = (float)((int)(m->w[i] * 200) / 128.0);
    m->memory = aligned_alloc(64, (packed_bytes(dtype, out, in) + 63) / 64 * 64);
    struct packed *packed = packed_begin(m->memory, dtype, out, in);
    packed_fill(packed, &(struct packed_source){ m->w, SOURCE_F32, 0 }, 0, out);
    for (size_t o = 0; o < out; o++) /* what was quantized means other numbers */
        packed_row(m->w + o * in, packed, o);
    m->linear = (struct linear){ .w = packed, .bias = m->bias, .out = out, .in = in };
}

static void matrix_clear(struct matrix *m)
{
    free(m->w);
    free(m->bias);
    free(m->memory);
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Two products of one x, of all rows, then of `part` rows at a time. */
static void check_forward(struct threads *t, const struct matrix *a, const struct matrix *b,
                          double within)
{
    size_t in = a->linear.in, out[2] = { a->linear.out, b->linear.out };
    float *x = noise(ROWS * in, 5), *y[2], *z[2];
    for (int i = 0; i < 2; i++) {
        y[i] = malloc(ROWS * out[i] * sizeof(float));
        z[i] = malloc(ROWS * out[i] * sizeof(float));
    }
    struct linear_set set = { 2, { &a->linear, &b->linear }, { y[0], y[1] }, { { 0 } } };
    linear_forward(t, &set, x, ROWS);
    static const size_t parts[] = { 100, 16, 3 };
    for (size_t k = 0; k < 3; k++) {
        for (size_t row = 0; row < ROWS; row += parts[k]) {
            set.y[0] = z[0] + row * out[0];
            set.y[1] = z[1] + row * out[1];
            linear_forward(t, &set, x + row * in, min_size(parts[k], ROWS - row));
        }
        for (int i = 0; i < 2; i++)
            CHECK(memcmp(y[i], z[i], ROWS * out[i] * sizeof(float)) == 0);
    }
    for (size_t row = 11; row < ROWS; row += 97)
        for (int i = 0; i < 2; i++) {
            const struct matrix *m = i ? b : a;
            size_t o = row % out[i];
            double sum = (double)m->bias[o];
            for (size_t c = 0; c < in; c++)
                sum += (double)x[row * in + c] * (double)m->w[o * in + c];
            CHECK_NEAR(y[i][row * out[i] + o], sum, within);
        }
    free(x);
    for (int i = 0; i < 2; i++) {
        free(y[i]);
        free(z[i]);
    }
}

static void check_backward(struct threads *t, const struct matrix *a, const struct matrix *b)
{
    size_t in = a->linear.in, out[2] = { a->linear.out, b->linear.out };
    float *dx = malloc(ROWS * in * sizeof(float)), *dz = malloc(ROWS * in * sizeof(float));
    float *dy[2] = { noise(ROWS * out[0], 6), noise(ROWS * out[1], 7) };
    struct linear_set set = { 2, { &a->linear, &b->linear }, { dy[0], dy[1] }, { { 0 } } };
    linear_backward(t, &set, dx, ROWS);
    static const size_t parts[] = { 100, 16, 3 };
    for (size_t k = 0; k < 3; k++) {
        for (size_t row = 0; row < ROWS; row += parts[k]) {
            set.y[0] = dy[0] + row * out[0];
            set.y[1] = dy[1] + row * out[1];
            linear_backward(t, &set, dz + row * in, min_size(parts[k], ROWS - row));
        }
        CHECK(memcmp(dx, dz, ROWS * in * sizeof(float)) == 0);
    }
    for (size_t row = 11; row < ROWS; row += 97) {
        size_t c = row % in;
        double sum = 0;
        for (size_t o = 0; o < out[0]; o++)
            sum += (double)dy[0][row * out[0] + o] * (double)a->w[o * in + c];
        for (size_t o = 0; o < out[1]; o++)
            sum += (double)dy[1][row * out[1] + o] * (double)b->w[o * in + c];
        CHECK_NEAR(dx[row * in + c], sum, 1e-4);
    }
    free(dx);
    free(dz);
    free(dy[0]);
    free(dy[1]);
}

static void check_all(enum packed_dtype dtype)
{
    struct threads *t = threads_new(2);
    struct matrix wide[2], tall[2];
    matrix_init(&wide[0], SHORT, LONG, dtype, 10);
    matrix_init(&wide[1], SHORT + 9, LONG, dtype, 20);
    matrix_init(&tall[0], LONG, SHORT, dtype, 30);
    matrix_init(&tall[1], SHORT, SHORT, dtype, 40);
    check_forward(t, &wide[0], &wide[1], 1e-4);
    check_backward(t, &tall[0], &tall[1]);
    for (int i = 0; i < 2; i++) {
        matrix_clear(&wide[i]);
        matrix_clear(&tall[i]);
    }
    threads_free(t);
}

static void test_long_sums_of_many_rows(void)
{
    check_all(PACKED_F32);
}

static void test_stored_bf16(void)
{
    check_all(PACKED_BF16);
}

/* The two matrices of a set in formats whose kernels may want x laid out differently. */
static void test_mixed_formats(void)
{
    struct threads *t = threads_new(3);
    static const enum packed_dtype others[] = { PACKED_F32, PACKED_Q8_0, PACKED_BF16_PAIRS };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct matrix a, b;
        matrix_init(&a, 96, 300, PACKED_BF16, 11);
        matrix_init(&b, 70, 300, others[i], 12);
        /* pairs round x to bfloat16 */
        check_forward(t, &a, &b, others[i] == PACKED_BF16_PAIRS ? 0.1 : 1e-4);
        matrix_clear(&a);
        matrix_clear(&b);
    }
    threads_free(t);
}

/* Products of different rows, lengths and factors in one run: the bits that each has alone. */
static void test_groups(void)
{
    enum { GROUPS = 40, MOST = 16 };
    struct threads *t = threads_new(3);
    struct dense_group groups[GROUPS];
    float *want[GROUPS];
    for (size_t i = 0; i < GROUPS; i++) {
        size_t N = 1 + i % MOST, C = i % 3 ? 8 * (1 + i % 5) : 300 + i, O = 1 + i * 37 % 90;
        float *y = noise(N * O, i + 3);
        groups[i] =
            (struct dense_group){ .product = { y, noise(N * C, i + 1), noise(O * C, i + 2), O },
                                  .N = N,
                                  .C = C,
                                  .alpha = (float)(i % 4) + 0.5F };
        want[i] = noise(N * O, i + 3);
    }
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        linear_nt_groups(t, groups, GROUPS, accumulate);
        linear_nt_groups(t, groups, 0, accumulate);
        for (size_t i = 0; i < GROUPS; i++) {
            const struct dense_group *g = &groups[i];
            const struct dense_product *p = &g->product;
            dense_nt(want[i], p->x, p->w, g->N, p->O, g->C, g->alpha, accumulate, 0, g->N);
            CHECK(memcmp(want[i], p->y, g->N * p->O * sizeof(float)) == 0);
        }
    }
    for (size_t i = 0; i < GROUPS; i++) {
        free(want[i]);
        free(groups[i].product.y);
        free((void *)(uintptr_t)groups[i].product.x);
        free((void *)(uintptr_t)groups[i].product.w);
    }
    threads_free(t);
}

/* A product of low rank that is added strip by strip: the bits of the whole product and the addition
 * behind it.  The second of the two matrices has none. */
static void check_low_rank(struct threads *t, enum packed_dtype dtype, enum factors factors,
                           size_t rows, size_t rank)
{
    enum { OUT = 700, IN = 330 };
    struct matrix m[2];
    matrix_init(&m[0], OUT, IN, dtype, 50);
    matrix_init(&m[1], SHORT, IN, dtype, 60);
    float *x = noise(rows * IN, 1), *low = noise(rows * rank, 2), *b = noise(OUT * rank, 3);
    float *y = malloc(rows * OUT * sizeof(float)), *z = malloc(rows * OUT * sizeof(float));
    float *other = malloc(rows * SHORT * sizeof(float));
    struct linear_set set = { 2, { &m[0].linear, &m[1].linear }, { z, other }, { { 0 } } };
    linear_forward(t, &set, x, rows);
    dense_nt(z, low, b, rows, OUT, rank, 0.3F, 1, 0, rows);
    set.y[0] = y;
    set.low[0] = (struct low_rank){ low, b, rank, 0.3F, FACTORS_EXACT };
    linear_forward(t, &set, x, rows);
    CHECK(memcmp(y, z, rows * OUT * sizeof(float)) == 0);
    /* y and `other` are gradients now, and b is (rank, IN) */
    float *dx = malloc(rows * IN * sizeof(float)), *dz = malloc(rows * IN * sizeof(float));
    set.low[0] = (struct low_rank){ 0 };
    linear_backward(t, &set, dz, rows);
    linear_nn(t, factors, dz, low, b, rows, IN, rank, 0.7F, 1);
    set.low[0] = (struct low_rank){ low, b, rank, 0.7F, factors };
    linear_backward(t, &set, dx, rows);
    CHECK(memcmp(dx, dz, rows * IN * sizeof(float)) == 0);
    float *all[] = { x, low, b, y, z, other, dx, dz };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    matrix_clear(&m[0]);
    matrix_clear(&m[1]);
}

static void test_low_rank(void)
{
    struct threads *t = threads_new(3);
    static const size_t rows[] = { 3, 17, 200, 600 }, ranks[] = { 1, 8, 37, 300, 900 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
            check_low_rank(t, PACKED_F32, FACTORS_EXACT, rows[i], ranks[k]);
            check_low_rank(t, PACKED_BF16, FACTORS_EXACT, rows[i], ranks[k]);
            check_low_rank(t, PACKED_BF16_PAIRS, FACTORS_ROUNDED, rows[i], ranks[k]);
            check_low_rank(t, PACKED_Q8_0_INT8, FACTORS_EXACT, rows[i], ranks[k]);
        }
    threads_free(t);
}

int main(void)
{
    RUN(test_low_rank);
    RUN(test_groups);
    RUN(test_mixed_formats);
    RUN(test_long_sums_of_many_rows);
    RUN(test_stored_bf16);
    return tap_done();
}
