/* Products against their plain twins, and the same bits for any rows and slices. */
#include "engine/kernels/kernels.h"
#include "support/tap.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static float next_uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) / (1 << 24) * 2 - 1);
}

static float *random_floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = next_uniform();
    return p;
}

static struct packed *pack_weights(enum packed_dtype type, const void *w, enum source_dtype source,
                                   size_t O, size_t C)
{
    size_t bytes = (packed_bytes(type, O, C) + 63) / 64 * 64;
    return packed_init(aligned_alloc(64, bytes), type, w, source, O, C);
}

/* The largest error in units of the sum's natural scale sqrt(K). */
static double worst_error(const float *got, const float *want, size_t n, size_t K)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (!(e <= worst))
            worst = e;
    }
    return worst / sqrt((double)K);
}

static void round_bf16(float *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        w[i] = f32_from_bf16(bf16_from_f32(w[i]));
}

static const size_t shapes[][3] = {
    /* N, O, C */
    { 1, 1, 1 },    { 1, 16, 16 },  { 2, 17, 255 },  { 3, 33, 257 },   { 5, 64, 300 },
    { 7, 40, 513 }, { 13, 96, 31 }, { 70, 130, 77 }, { 101, 48, 600 },
};

static void close_to_reference(enum packed_dtype type)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2];
        float *x = random_floats(N * C), *w = random_floats(O * C), *dy = random_floats(N * O);
        if (type != PACKED_F32)
            round_bf16(w, O * C);
        if (type == PACKED_BF16_PAIRS && kernels_bf16_rounds())
            round_bf16(x, N * C), round_bf16(dy, N * O); /* as the kernels do */
        struct packed *p = pack_weights(type, w, SOURCE_F32, O, C);
        float *y = random_floats(N * O), *want = malloc(N * O * sizeof *want);
        memcpy(want, y, N * O * sizeof *want);
        for (int add = 1; add >= 0; add--) {
            gemm_forward(y, x, p, N, add, 0, O);
            ref_gemm_nt(want, x, w, N, O, C, 1, add);
            CHECK(worst_error(y, want, N * O, C) < 1e-6);
        }
        float *dx = random_floats(N * C), *dwant = malloc(N * C * sizeof *dwant);
        memcpy(dwant, dx, N * C * sizeof *dwant);
        for (int add = 1; add >= 0; add--) {
            gemm_backward(dx, dy, p, N, add, 0, C);
            ref_gemm_nn(dwant, dy, w, N, C, O, 1, add);
            CHECK(worst_error(dx, dwant, N * C, O) < 1e-6);
        }
        float *row = malloc(C * sizeof *row);
        packed_row(row, p, O - 1);
        CHECK(memcmp(row, w + (O - 1) * C, C * sizeof *row) == 0);
        free(row);
        free(x);
        free(w);
        free(dy);
        free(p);
        free(y);
        free(want);
        free(dx);
        free(dwant);
    }
}

static void products_f32(void)
{
    close_to_reference(PACKED_F32);
}

static void products_bf16(void)
{
    close_to_reference(PACKED_BF16);
    close_to_reference(PACKED_BF16_PAIRS);
}

/* The same numbers in half the memory give the same bits, where that is promised. */
static void bf16_as_f32(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && kernels_bf16_exact(); s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2], most = O > C ? O : C;
        float *x = random_floats(N * most), *w = random_floats(O * C), *y[2];
        round_bf16(w, O * C);
        struct packed *p[2] = { pack_weights(PACKED_F32, w, SOURCE_F32, O, C),
                                pack_weights(PACKED_BF16, w, SOURCE_F32, O, C) };
        for (int i = 0; i < 2; i++) {
            y[i] = malloc((N * O + N * C) * sizeof *y[i]);
            gemm_forward(y[i], x, p[i], N, 0, 0, O);
            gemm_backward(y[i] + N * O, x, p[i], N, 0, 0, C);
        }
        CHECK(memcmp(y[0], y[1], (N * O + N * C) * sizeof *y[0]) == 0);
        for (int i = 0; i < 2; i++) {
            free(p[i]);
            free(y[i]);
        }
        free(x);
        free(w);
    }
}

static void dense_products(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2];
        float *x = random_floats(N * C), *w = random_floats(O * C), *a = random_floats(N * O);
        float *y = random_floats(N * O), *want = malloc(N * O * sizeof *want);
        float *g = random_floats(O * C), *gwant = malloc(O * C * sizeof *gwant);
        memcpy(want, y, N * O * sizeof *want);
        memcpy(gwant, g, O * C * sizeof *gwant);
        for (int add = 1; add >= 0; add--) {
            dense_nt(y, x, w, N, O, C, 0.5f, add, 0, N);
            ref_gemm_nt(want, x, w, N, O, C, 0.5f, add);
            CHECK(worst_error(y, want, N * O, C) < 1e-6);
            dense_nn(y, x, w, N, O, C, 2, add, 0, N);
            ref_gemm_nn(want, x, w, N, O, C, 2, add);
            CHECK(worst_error(y, want, N * O, C) < 2e-6);
            dense_tn(g, a, x, N, O, C, 0.25f, add, 0, O);
            ref_gemm_tn(gwant, a, x, N, O, C, 0.25f, add);
            CHECK(worst_error(g, gwant, O * C, N) < 1e-6);
        }
        free(x);
        free(w);
        free(a);
        free(y);
        free(want);
        free(g);
        free(gwant);
    }
}

/* Gradients where speed was asked for: factors that bfloat16 holds lose nothing by rounding, so the
 * result is that of the exact form but for the order of sums; and no slice changes a bit. */
static void rounded_gradients(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        size_t N = shapes[s][0], O = shapes[s][1], C = shapes[s][2], step = dense_panel();
        float *a = random_floats(N * O), *x = random_floats(N * C), *w = random_floats(C * O);
        float *g = random_floats(O * C), *gwant = malloc(O * C * sizeof *gwant);
        float *y = random_floats(N * O), *want = malloc(N * O * sizeof *want);
        float *part = malloc((O * C + N * O) * sizeof *part);
        round_bf16(a, N * O);
        round_bf16(x, N * C);
        round_bf16(w, C * O);
        memcpy(gwant, g, O * C * sizeof *gwant);
        memcpy(want, y, N * O * sizeof *want);
        for (int add = 1; add >= 0; add--) {
            dense_tn_rounded(g, a, x, N, O, C, 0.25f, add, 0, O);
            ref_gemm_tn(gwant, a, x, N, O, C, 0.25f, add);
            CHECK(worst_error(g, gwant, O * C, N) < 1e-6);
            dense_nn_rounded(y, x, w, N, O, C, 2, add, 0, N);
            ref_gemm_nn(want, x, w, N, O, C, 2, add);
            CHECK(worst_error(y, want, N * O, C) < 2e-6);
        }
        for (size_t at = 0; at < O; at += 5)
            dense_tn_rounded(part, a, x, N, O, C, 0.25f, 0, at, at + 5 < O ? at + 5 : O);
        CHECK(memcmp(part, g, O * C * sizeof *g) == 0);
        memset(part, 0, O * C * sizeof *part);
        for (size_t at = 0; at < C; at += step)
            dense_tn_columns_rounded(part, a, x, N, O, C, 0.25f, 0, at,
                                     at + step < C ? at + step : C);
        CHECK(memcmp(part, g, O * C * sizeof *g) == 0);
        for (size_t at = 0; at < N; at += 3)
            dense_nn_rounded(part, x, w, N, O, C, 2, 0, at, at + 3 < N ? at + 3 : N);
        CHECK(memcmp(part, y, N * O * sizeof *y) == 0);
        float *all[] = { a, x, w, g, gwant, y, want, part };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
}

/* Rows computed alone, together, and in slices of columns: equal to the bit. */
static void same_bits(enum packed_dtype type)
{
    enum { N = 70, O = 150, C = 530 };
    float *x = random_floats(N * C), *w = random_floats(O * C), *dy = random_floats(N * O);
    struct packed *p = pack_weights(type, w, SOURCE_F32, O, C);
    float *y = malloc(N * O * sizeof *y), *dx = malloc(N * C * sizeof *dx);
    float *part = malloc(N * C * sizeof *part);
    gemm_forward(y, x, p, N, 0, 0, O);
    gemm_backward(dx, dy, p, N, 0, 0, C);
    size_t g = gemm_grain();
    int forward = 1, backward = 1, sliced = 1;
    for (size_t n = 1; n <= N; n++) {
        gemm_forward(part, x + (N - n) * C, p, n, 0, 0, O);
        forward &= memcmp(part, y + (N - n) * O, n * O * sizeof *part) == 0;
        gemm_backward(part, dy + (N - n) * O, p, n, 0, 0, C);
        backward &= memcmp(part, dx + (N - n) * C, n * C * sizeof *part) == 0;
        for (size_t begin = 0; begin < O; begin += g * (1 + n % 2))
            gemm_forward(part, x, p, n, 0, begin,
                         begin + g * (1 + n % 2) < O ? begin + g * (1 + n % 2) : O);
        sliced &= memcmp(part, y, n * O * sizeof *part) == 0;
        for (size_t begin = 0; begin < C; begin += g)
            gemm_backward(part, dy, p, n, 0, begin, begin + g < C ? begin + g : C);
        sliced &= memcmp(part, dx, n * C * sizeof *part) == 0;
    }
    CHECK(forward);
    CHECK(backward);
    CHECK(sliced);
    free(x);
    free(w);
    free(dy);
    free(p);
    free(y);
    free(dx);
    free(part);
}

/* The left operand laid out once, units in any order, then used in parts of the summed index
 * and slices of columns: the bits of the plain call, and nothing written behind the layout. */
static void left_case(enum packed_dtype type, size_t N, size_t O, size_t C)
{
    enum { GUARD = 64 };
    float *x = random_floats(N * C), *w = random_floats(O * C), *dy = random_floats(N * O);
    struct packed *p = pack_weights(type, w, SOURCE_F32, O, C);
    size_t most = C > O ? C : O, step = gemm_left_step(), g = gemm_grain();
    size_t room = (gemm_left_floats(p, N, most) + GUARD) * sizeof(float);
    float *left = aligned_alloc(64, (room + 63) / 64 * 64), *want = random_floats(N * most);
    float *got = malloc(N * most * sizeof *got);
    memcpy(got, want, N * most * sizeof *got);
    gemm_forward(want, x, p, N, 1, 0, O);
    for (size_t from = 0, to; from < C; from = to) {
        to = from + 2 * step < C ? from + 2 * step : C;
        memset(left, 0x5a, room);
        for (size_t u = gemm_left_units(p, N, to - from); u-- > 0;)
            gemm_left(left, x + from, C, p, N, to - from, u, u + 1);
        for (size_t b = 0; b < O; b += g)
            gemm_forward_left(got, left, p, N, 1, from, to, b, b + g < O ? b + g : O);
        CHECK(left[gemm_left_floats(p, N, to - from)] ==
              left[gemm_left_floats(p, N, most) + GUARD - 1]);
    }
    CHECK(memcmp(got, want, N * O * sizeof *got) == 0);
    /* one slice of all columns, which the kernel cuts itself */
    size_t all = C < 2 * step ? C : 2 * step;
    gemm_left(left, x, C, p, N, all, 0, gemm_left_units(p, N, all));
    gemm_forward_left(got, left, p, N, 0, 0, all, 0, O);
    for (size_t b = 0; b < O; b += g)
        gemm_forward_left(want, left, p, N, 0, 0, all, b, b + g < O ? b + g : O);
    CHECK(memcmp(got, want, N * O * sizeof *got) == 0);
    gemm_backward(want, dy, p, N, 0, 0, C);
    for (size_t from = 0, to; from < O; from = to) {
        to = from + step < O ? from + step : O;
        gemm_left(left, dy + from, O, p, N, to - from, 0, gemm_left_units(p, N, to - from));
        for (size_t b = 0; b < C; b += g)
            gemm_backward_left(got, left, p, N, from > 0, from, to, b, b + g < C ? b + g : C);
    }
    CHECK(memcmp(got, want, N * C * sizeof *got) == 0);
    free(x);
    free(w);
    free(dy);
    free(p);
    free(left);
    free(want);
    free(got);
}

static void left_once(void)
{
    static const size_t cases[][3] = {
        { 1, 40, 300 },   { 17, 150, 530 }, { 192, 290, 256 }, { 200, 48, 520 },
        { 391, 33, 600 }, { 512, 64, 256 }, { 195, 550, 300 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        left_case(PACKED_F32, cases[i][0], cases[i][1], cases[i][2]);
        left_case(PACKED_BF16, cases[i][0], cases[i][1], cases[i][2]);
        left_case(PACKED_BF16_PAIRS, cases[i][0], cases[i][1], cases[i][2]);
    }
}

static void same_bits_f32(void)
{
    same_bits(PACKED_F32);
}

static void same_bits_bf16(void)
{
    same_bits(PACKED_BF16);
    same_bits(PACKED_BF16_PAIRS);
}

/* A single row reads its matrix as it lies, where the lengths allow: the bits are the tile's. */
static void same_bits_of_a_single_row(void)
{
    enum { N = 6, O = 52, MOST = 528 };
    static const size_t lengths[] = { 4, 8, 32, 36, 264, 300, MOST };
    float *x = random_floats(N * MOST), *w = random_floats(O * MOST), y[N * O], row[O];
    int same = 1;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int add = 0; add < 2; add++) {
            size_t C = lengths[i];
            for (size_t k = 0; k < N * O; k++)
                y[k] = 1.25f;
            dense_nt(y, x, w, N, O, C, 0.3f, add, 0, N);
            for (size_t n = 0; n < N; n++) {
                for (size_t k = 0; k < O; k++)
                    row[k] = 1.25f;
                for (size_t begin = 0; begin < O; begin += dense_panel())
                    dense_nt_columns(row, x + n * C, w, 1, O, C, 0.3f, add, begin,
                                     begin + dense_panel() < O ? begin + dense_panel() : O);
                same &= memcmp(row, y + n * O, sizeof row) == 0;
            }
        }
    CHECK(same);
    free(x);
    free(w);
}

/* The small products too: any rows alone equal the rows together. */
static void same_bits_dense(void)
{
    enum { N = 70, O = 36, C = 300 };
    float *x = random_floats(N * C), *w = random_floats(O * C), *a = random_floats(N * O);
    float *y = malloc(N * O * sizeof *y), *part = malloc(O * C * sizeof *part);
    int nt = 1, nn = 1, tn = 1;
    dense_nt(y, x, w, N, O, C, 0.3f, 0, 0, N);
    for (size_t n = 0; n < N; n++) {
        dense_nt(part, x + n * C, w, 1, O, C, 0.3f, 0, 0, 1);
        nt &= memcmp(part, y + n * O, O * sizeof *y) == 0;
    }
    dense_nn(y, x, w, N, O, C, 0.3f, 0, 0, N);
    for (size_t n = 0; n + 3 <= N; n++) {
        dense_nn(part, x + n * C, w, 3, O, C, 0.3f, 0, 0, 3);
        nn &= memcmp(part, y + n * O, 3 * O * sizeof *y) == 0;
    }
    float *g = malloc(O * C * sizeof *g);
    dense_tn(g, a, x, N, O, C, 0.3f, 0, 0, O);
    for (size_t begin = 0; begin < O; begin += 5)
        dense_tn(part, a, x, N, O, C, 0.3f, 0, begin, begin + 5 < O ? begin + 5 : O);
    tn = memcmp(part, g, O * C * sizeof *g) == 0;
    size_t grain = gemm_grain();
    memset(part, 0, O * C * sizeof *part);
    for (size_t begin = 0; begin < C; begin += grain)
        dense_tn_columns(part, a, x, N, O, C, 0.3f, 0, begin,
                         begin + grain < C ? begin + grain : C);
    tn &= memcmp(part, g, O * C * sizeof *g) == 0;
    dense_nt(y, x, w, N, O, C, 0.3f, 0, 0, N);
    for (size_t begin = 0; begin < O; begin += grain)
        dense_nt_columns(part, x, w, N, O, C, 0.3f, 0, begin,
                         begin + grain < O ? begin + grain : O);
    nt &= memcmp(part, y, N * O * sizeof *y) == 0;
    CHECK(nt);
    CHECK(nn);
    CHECK(tn);
    free(x);
    free(w);
    free(a);
    free(y);
    free(part);
    free(g);
}

static void convert_16_bit_floats(void)
{
    CHECK(f32_from_f16(0x3c00) == 1.0f);
    CHECK(f32_from_f16(0xc000) == -2.0f);
    CHECK(f32_from_f16(0x0001) == 0x1p-24f);
    CHECK(f32_from_f16(0x03ff) == 1023 * 0x1p-24f);
    CHECK(f32_from_f16(0x7bff) == 65504.0f);
    CHECK(isinf(f32_from_f16(0xfc00)) && isnan(f32_from_f16(0x7e00)));
    CHECK(bf16_from_f32(1.0f) == 0x3f80);
    CHECK(bf16_from_f32(1.00390625f) == 0x3f80); /* a tie goes to even */
    CHECK(bf16_from_f32(1.01171875f) == 0x3f82);
    CHECK(bf16_from_f32(INFINITY) == 0x7f80);
    CHECK(isnan(f32_from_bf16(bf16_from_f32(NAN))));
}

/* Every source type ends in the same matrix. */
static void packing_sources(void)
{
    enum { O = 18, C = 21 };
    float w[O * C];
    uint16_t half[O * C], brain[O * C];
    for (size_t i = 0; i < O * C; i++) {
        w[i] = (float)((int)(i % 251) - 125) / 4;
        brain[i] = bf16_from_f32(w[i]);
        int e;
        float m = frexpf(fabsf(w[i]), &e);
        half[i] =
            w[i] == 0
                ? 0
                : (uint16_t)((w[i] < 0 ? 0x8000 : 0) | (e + 14) << 10 | ((int)(m * 2048) & 0x3ff));
    }
    for (int type = PACKED_F32; type <= PACKED_BF16_PAIRS; type++) {
        struct packed *a = pack_weights((enum packed_dtype)type, w, SOURCE_F32, O, C);
        struct packed *b = pack_weights((enum packed_dtype)type, half, SOURCE_F16, O, C);
        struct packed *c = pack_weights((enum packed_dtype)type, brain, SOURCE_BF16, O, C);
        size_t bytes = packed_bytes((enum packed_dtype)type, O, C);
        CHECK(memcmp(a, b, bytes) == 0);
        CHECK(memcmp(a, c, bytes) == 0);
        free(a);
        free(b);
        free(c);
    }
}

static void empty_sum(void)
{
    float y[6] = { 1, 2, 3, 4, 5, 6 };
    dense_tn(y, NULL, NULL, 0, 2, 3, 1, 1, 0, 2);
    CHECK(y[5] == 6);
    dense_tn(y, NULL, NULL, 0, 2, 3, 1, 0, 0, 2);
    CHECK(y[0] == 0 && y[5] == 0);
}

static const char *self;

/* Every other set that this CPU has, each in a process of its own: the choice is made once. */
static void other_sets_too(void)
{
    static const char *const sets[] = {
        "plain", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char command[600];
        snprintf(command, sizeof command, "TINKER_KERNELS=%s '%s' > /dev/null", sets[i], self);
        if (strcmp(kernels_name(), sets[i]) != 0)
            CHECK(system(command) == 0);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    self = argv[0];
    const char *forced = getenv("TINKER_KERNELS");
    if (forced != NULL && strcmp(forced, kernels_name()) != 0)
        return 0; /* this CPU does not have them */
    printf("# kernels: %s\n", kernels_name());
    RUN(convert_16_bit_floats);
    RUN(packing_sources);
    RUN(products_f32);
    RUN(products_bf16);
    RUN(bf16_as_f32);
    RUN(dense_products);
    RUN(rounded_gradients);
    RUN(left_once);
    RUN(same_bits_f32);
    RUN(same_bits_bf16);
    RUN(same_bits_dense);
    RUN(same_bits_of_a_single_row);
    RUN(empty_sum);
    if (forced == NULL)
        RUN(other_sets_too);
    return tap_done();
}
