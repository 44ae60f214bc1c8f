/* Element-wise functions against double, their independence of place, fixed sums. */
#include "engine/kernels/attn.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/vec.h"
#include "support/tap.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1003 };

static uint64_t state = 7;

static float next_uniform(float scale)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) / (1 << 24) * 2 - 1) * scale;
}

static void fill_random(float *p, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        p[i] = next_uniform(scale);
}

static double relative_error(double got, double want)
{
    return fabs(got - want) / (fabs(want) + 1e-30);
}

static void silu_is_exact(const struct vec_ops *v)
{
    float gate[N], up[N], y[N], dgate[N], dup[N], d[N];
    double worst = 0, worst_up = 0, worst_gate = 0;
    fill_random(gate, N, 20);
    gate[0] = 0;
    gate[1] = 100;
    gate[2] = -80;
    fill_random(up, N, 1);
    fill_random(d, N, 1);
    memcpy(dup, d, sizeof d);
    v->silu(y, gate, up, N);
    v->silu_backward(dgate, dup, gate, up, N);
    for (size_t i = 0; i < N; i++) {
        double g = gate[i], s = 1 / (1 + exp(-g));
        if (i > 2)
            worst = fmax(worst, relative_error(y[i], g * s * up[i]));
        worst_up = fmax(worst_up, fabs(dup[i] - d[i] * g * s) / (1 + fabs(g)));
        worst_gate =
            fmax(worst_gate, fabs(dgate[i] - (double)d[i] * up[i] * s * (1 + g * (1 - s))));
    }
    CHECK(worst < 6e-7);
    CHECK(worst_up < 3e-7);
    CHECK(worst_gate < 2e-6);
    CHECK(y[0] == 0 && y[1] == 100 * up[1] && fabsf(y[2]) < 1e-30f);
    /* very negative gates underflow instead of overflowing */
    float low[1] = { -3000 }, one[1] = { 1 }, out[1];
    v->silu(out, low, one, 1);
    CHECK(fabsf(out[0]) < 1e-30f);
}

static void softmax_pieces(const struct vec_ops *v)
{
    static const size_t sizes[] = { 1, 7, 15, 16, 17, 255, 256, 257, N };
    float z[N], p[N];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        double sum = 0, total = 0, worst = 0;
        fill_random(z, n, 30);
        if (n > 5)
            z[3] = -INFINITY;
        float max = v->largest(z, n);
        for (size_t i = 0; i < n; i++) {
            CHECK(z[i] <= max);
            sum += exp(((double)z[i] - max) * 0.7f);
        }
        double got = v->sum_exp(z, n, max, 0.7f);
        CHECK(relative_error(got, sum) < 2e-6);
        memcpy(p, z, n * sizeof *p);
        v->softmax(p, n, max, 0.7f, (float)log(sum), -2);
        for (size_t i = 0; i < n; i++) {
            worst = fmax(worst, fabs(p[i] + 2 * exp(((double)z[i] - max) * 0.7f) / sum));
            total += p[i];
        }
        CHECK(worst < 4e-6);
        CHECK_NEAR(total, -2, 1e-5);
        if (n > 5)
            CHECK(p[3] == 0);
    }
}

static void check_sums(const struct vec_ops *v)
{
    float a[N], b[N], c[N];
    fill_random(a, N, 1);
    fill_random(b, N, 1);
    fill_random(c, N, 1);
    static const size_t sizes[] = { 0, 1, 15, 16, 64, 127, 128, N };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double two = 0, three = 0;
        for (size_t i = 0; i < sizes[s]; i++) {
            two += (double)a[i] * b[i];
            three += (double)a[i] * b[i] * c[i];
        }
        CHECK_NEAR(v->dot(a, b, sizes[s]), two, 2e-5);
        CHECK_NEAR(v->dot3(a, b, c, sizes[s]), three, 2e-5);
    }
    float y[N], want[N];
    memcpy(y, c, sizeof y);
    v->add(y, a, N);
    for (size_t i = 0; i < N; i++)
        want[i] = c[i] + a[i];
    CHECK(memcmp(y, want, sizeof y) == 0);
    v->scale_by(y, a, b, 0.3f, N);
    for (size_t i = 0; i < N; i++)
        want[i] = a[i] * 0.3f * b[i];
    CHECK(memcmp(y, want, sizeof y) == 0);
    v->scale(y, a, 0.3f, N);
    for (size_t i = 0; i < N; i++)
        want[i] = a[i] * 0.3f;
    CHECK(memcmp(y, want, sizeof y) == 0);
    v->add_scaled(y, b, -0.7f, N);
    for (size_t i = 0; i < N; i++)
        want[i] += b[i] * -0.7f;
    CHECK(memcmp(y, want, sizeof y) == 0);
    v->add_products(y, a, b, N);
    for (size_t i = 0; i < N; i++)
        want[i] += a[i] * b[i];
    CHECK(memcmp(y, want, sizeof y) == 0);
}

/* The same element in the middle, at an edge or alone. */
static void place_does_not_matter(const struct vec_ops *v)
{
    float gate[64], up[64], y[64], one[64], z[64];
    int wrong = 0;
    fill_random(gate, 64, 10);
    fill_random(up, 64, 1);
    v->silu(y, gate, up, 64);
    memcpy(z, gate, sizeof z);
    v->softmax(z, 64, 10, 1, 0.5f, 3);
    for (size_t begin = 0; begin < 64; begin++)
        for (size_t n = 1; n <= 64 - begin; n += 3) {
            v->silu(one, gate + begin, up + begin, n);
            wrong += memcmp(one, y + begin, n * sizeof *one) != 0;
            memcpy(one, gate + begin, n * sizeof *one);
            v->softmax(one, n, 10, 1, 0.5f, 3);
            wrong += memcmp(one, z + begin, n * sizeof *one) != 0;
        }
    CHECK_INT(wrong, 0);
}

/* A NaN is found at every place, and infinities are none. */
static void finds_nan(const struct vec_ops *v)
{
    float z[70];
    int wrong = 0;
    fill_random(z, 70, 10);
    z[5] = INFINITY;
    z[60] = -INFINITY;
    for (size_t n = 0; n <= 70; n++)
        wrong += v->has_nan(z, n) != 0;
    for (size_t i = 0; i < 70; i++) {
        float kept = z[i];
        z[i] = NAN;
        wrong += v->has_nan(z, 70) == 0 || v->has_nan(z, i) != 0;
        z[i] = kept;
    }
    CHECK_INT(wrong, 0);
}

/* A logit that is NaN must not look like one that is very small. */
static void nan_stays(const struct vec_ops *v)
{
    float z[70], p[70];
    int wrong = 0;
    fill_random(z, 70, 10);
    for (size_t i = 0; i < 70; i++) {
        float kept = z[i];
        z[i] = NAN;
        wrong += !isnan(v->sum_exp(z, 70, 10, 1));
        memcpy(p, z, sizeof p);
        v->softmax(p, 70, 10, 1, 3, -2);
        wrong += !isnan(p[i]) || isnan(p[(i + 1) % 70]);
        z[i] = kept;
    }
    CHECK_INT(wrong, 0);
}

static void check_all(const struct vec_ops *v)
{
    finds_nan(v);
    nan_stays(v);
    silu_is_exact(v);
    softmax_pieces(v);
    check_sums(v);
    place_does_not_matter(v);
}

static void plain_set(void)
{
    check_all(&vec_plain);
}

static void chosen_set(void)
{
    check_all(vec_ops());
}

static void argmax_is_the_first_of_equals(void)
{
    enum { LONG = 5000 };
    static float z[LONG];
    for (size_t at = 0; at < LONG; at += 7) {
        for (size_t i = 0; i < LONG; i++)
            z[i] = -1 - (float)(i % 13);
        z[at] = z[LONG - 1] = 2;
        CHECK_INT(vec_argmax(z, LONG), at);
        CHECK_INT(vec_argmax(z + at, LONG - at), 0);
    }
    z[0] = -INFINITY;
    CHECK_INT(vec_argmax(z, 1), 0);
}

/* A matrix taken transposed gives the bits of its transpose, in all rows and columns. */
static void turned_as_transposed(void)
{
    enum { R = 32, K = 31, HD = 85, LDP = 40 };
    const struct attn_ops *sets[] = { &attn_plain, attn_ops() };
    static float p[R * K], turned[K * LDP], v[K * HD], y[R * HD], z[R * HD];
    fill_random(p, R * K, 1);
    fill_random(v, K * HD, 1);
    for (size_t r = 0; r < R; r++)
        for (size_t i = 0; i < K; i++)
            turned[i * LDP + r] = p[r * K + i];
    for (size_t s = 0; s < 2; s++)
        for (size_t rows = 1; rows <= R; rows += rows < 8 ? 1 : 12) {
            fill_random(y, R * HD, 1);
            memcpy(z, y, sizeof y);
            sets[s]->accumulate(y, HD, p, K, v, HD, rows, K, HD);
            sets[s]->accumulate_turned(z, HD, turned, LDP, v, HD, rows, K, HD);
            CHECK(memcmp(y, z, sizeof y) == 0);
        }
}

/* Rows of queries together, as many as fit: the bits of each alone. */
static void rows_of_scores(void)
{
    enum { R = 24, HD = 72, LDQ = 80 };
    const struct attn_ops *sets[] = { &attn_plain, attn_ops() };
    static float q[R * LDQ], kt[HD * ATTN_KEYS], s[R * ATTN_KEYS], alone[R * ATTN_KEYS];
    fill_random(q, R * LDQ, 1);
    fill_random(kt, HD * ATTN_KEYS, 1);
    for (size_t i = 0; i < 2; i++) {
        for (size_t r = 0; r < R; r++)
            sets[i]->scores(alone + r * ATTN_KEYS, q + r * LDQ, LDQ, kt, 1, HD);
        for (size_t rows = 1; rows <= R; rows++) {
            sets[i]->scores(s, q, LDQ, kt, rows, HD);
            CHECK(memcmp(s, alone, rows * ATTN_KEYS * sizeof *s) == 0);
        }
    }
}

int main(void)
{
    printf("# kernels: %s\n", kernels_name());
    RUN(plain_set);
    RUN(chosen_set);
    RUN(argmax_is_the_first_of_equals);
    RUN(turned_as_transposed);
    RUN(rows_of_scores);
    return tap_done();
}
