/* Products of 8-bit and 4-bit weights with rows rounded to 8 bits: the documented sum to the bit,
 * whatever the rows, slices and layouts; backward, and sets without the instruction, round nothing. */
#include "engine/kernels/blocks.h"
#include "engine/kernels/packed.h"
#include "support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t state = 5;

static float next_uniform(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) * 2 - 1;
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

/* Codes and scales of a matrix, read back from blocks of its format. */
struct matrix {
    enum packed_dtype type;
    size_t O, C, padded;
    uint8_t *blocks;
    struct packed *packed, *exact;
};

/* Rows are filled up with zeros to whole blocks. */
static struct matrix make_matrix(enum packed_dtype type, size_t O, size_t C)
{
    int bits8 = type == PACKED_Q8_0_INT8;
    enum source_dtype kind = bits8 ? SOURCE_Q8_0 : SOURCE_Q4_0;
    struct matrix m = { .type = type, .O = O, .C = C, .padded = (C + 31) / 32 * 32 };
    float *w = random_floats(O * C), *row = calloc(m.padded, sizeof *row);
    m.blocks = malloc(O * source_bytes(kind, m.padded));
    for (size_t o = 0; o < O; o++) {
        memcpy(row, w + o * C, C * sizeof *row);
        blocks_quantize(m.blocks + o * source_bytes(kind, m.padded), kind, row, m.padded, true);
    }
    m.packed = pack_weights(type, w, SOURCE_F32, O, C);
    m.exact = pack_weights(bits8 ? PACKED_Q8_0 : PACKED_Q4_0, w, SOURCE_F32, O, C);
    free(w);
    free(row);
    return m;
}

static void free_matrix(struct matrix *m)
{
    free(m->blocks);
    free(m->packed);
    free(m->exact);
}

/* Code i, with its sign, and the scale of a row's block. */
static int weight_code(const struct matrix *m, size_t o, size_t k, float *scale)
{
    int bits8 = m->type == PACKED_Q8_0_INT8;
    size_t bytes = bits8 ? 34 : 18;
    const uint8_t *block = m->blocks + (o * (m->padded / 32) + k / 32) * bytes;
    uint16_t d;
    memcpy(&d, block, sizeof d);
    *scale = f32_from_f16(d);
    if (bits8)
        return (int8_t)block[2 + k % 32];
    uint8_t both = block[2 + k % 16];
    return (k % 32 < 16 ? both & 15 : both >> 4) - 8;
}

/* The documented product: blocks of 32 in integers, each times both scales, in one chain for every
 * 256 inputs, whose sums are added in ascending order. */
static float output(const struct matrix *m, const float *x, size_t o, float before, int add)
{
    float y = before;
    for (size_t c = 0; c < m->C; c += KC) {
        float chain = 0;
        for (size_t b = c; b < c + KC && b < m->C; b += 32) {
            float largest = 0, scale;
            int sum = 0;
            for (size_t k = b; k < b + 32 && k < m->C; k++)
                largest = fmaxf(largest, fabsf(x[k]));
            float inverse = largest > 0 ? 127 / largest : 0;
            for (size_t k = b; k < b + 32 && k < m->C; k++)
                sum += weight_code(m, o, k, &scale) * (int)lrintf(x[k] * inverse);
            weight_code(m, o, b, &scale);
            chain = fmaf((float)sum, scale * (largest / 127), chain);
        }
        y = add || c > 0 ? y + chain : chain;
    }
    return y;
}

static const enum packed_dtype types[] = { PACKED_Q8_0_INT8, PACKED_Q4_0_INT8 };
static const size_t shapes[][2] = { { 1, 1 },    { 16, 32 },  { 17, 255 }, { 33, 257 }, { 40, 33 },
                                    { 130, 77 }, { 48, 600 }, { 70, 513 }, { 64, 1024 } };
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_ROWS = 205 };

/* Rows whose magnitudes differ from block to block; some are zero. */
static float *random_rows(size_t N, size_t C)
{
    float *x = random_floats(N * C);
    for (size_t i = 0; i < N * C; i++)
        x[i] *= i / 32 % 7 == 3 ? 0 : (float)(1 << i / 32 % 5);
    return x;
}

static void documented_sums(void)
{
    for (size_t t = 0; t < 2; t++)
        for (size_t s = 0; s < SHAPES && kernels_int8_rounds(); s++) {
            size_t O = shapes[s][0], C = shapes[s][1], N = 15;
            struct matrix m = make_matrix(types[t], O, C);
            float *x = random_rows(N, C), *y = random_floats(N * O), *before = malloc(N * O * 4);
            memcpy(before, y, N * O * sizeof *y);
            for (int add = 1; add >= 0; add--) {
                int same = 1;
                memcpy(y, before, N * O * sizeof *y);
                gemm_forward(y, x, m.packed, N, add, 0, O);
                for (size_t i = 0; i < N * O; i++)
                    same &= y[i] == output(&m, x + i / O * C, i % O, before[i], add);
                CHECK(same);
            }
            free(x);
            free(y);
            free(before);
            free_matrix(&m);
        }
}

/* Any rows together, any slices, and rows laid out once for parts of the sum: the bits of a row
 * alone. */
static void same_bits(void)
{
    static const size_t rows[] = { 2, 3, 6, 7, 12, 13, 25, 64, MOST_ROWS };
    for (size_t t = 0; t < 2; t++)
        for (size_t s = 0; s < SHAPES; s++) {
            size_t O = shapes[s][0], C = shapes[s][1], g = gemm_grain();
            struct matrix m = make_matrix(types[t], O, C);
            size_t room =
                (gemm_left_floats(m.packed, MOST_ROWS, C) * sizeof(float) + 127) / 64 * 64;
            float *x = random_rows(MOST_ROWS, C), *left = aligned_alloc(64, room);
            float *want = malloc(MOST_ROWS * O * 4), *got = malloc(MOST_ROWS * O * 4);
            for (size_t n = 0; n < MOST_ROWS; n++)
                gemm_forward(want + n * O, x + n * C, m.packed, 1, 0, 0, O);
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                size_t N = rows[i], units = gemm_left_units(m.packed, N, C);
                for (size_t b = 0; b < O; b += g)
                    gemm_forward(got, x, m.packed, N, 0, b, b + g < O ? b + g : O);
                CHECK(memcmp(got, want, N * O * sizeof *got) == 0);
                memset(got, 0x7f, N * O * sizeof *got);
                for (size_t from = 0, to; from < C; from = to) {
                    to = from + 2 * gemm_left_step() < C ? from + 2 * gemm_left_step() : C;
                    units = gemm_left_units(m.packed, N, to - from);
                    while (units-- > 0)
                        gemm_left(left, x + from, C, m.packed, N, to - from, units, units + 1);
                    gemm_forward_left(got, left, m.packed, N, from > 0, from, to, 0, O);
                }
                CHECK(memcmp(got, want, N * O * sizeof *got) == 0);
            }
            free(x);
            free(left);
            free(want);
            free(got);
            free_matrix(&m);
        }
}

/* Rounding to 127 steps for each side of zero costs less than a hundredth of the result's length. */
static void near_the_exact_product(void)
{
    enum { N = 9, O = 64, C = 1024 };
    for (size_t t = 0; t < 2; t++) {
        struct matrix m = make_matrix(types[t], O, C);
        float *x = random_floats(N * C), *y = malloc(N * O * 4), *exact = malloc(N * O * 4);
        double error = 0, length = 0;
        gemm_forward(y, x, m.packed, N, 0, 0, O);
        gemm_forward(exact, x, m.exact, N, 0, 0, O);
        for (size_t i = 0; i < N * O; i++) {
            error += ((double)y[i] - exact[i]) * ((double)y[i] - exact[i]);
            length += (double)exact[i] * exact[i];
        }
        printf("# relative error: %.5f\n", sqrt(error / length));
        CHECK(sqrt(error / length) < 0.01);
        CHECK((error == 0) == !kernels_int8_rounds());
        free(x);
        free(y);
        free(exact);
        free_matrix(&m);
    }
}

/* Backward, and a row read back, are those of the exact format. */
static void backward_is_exact(void)
{
    for (size_t t = 0; t < 2; t++)
        for (size_t s = 0; s < SHAPES; s++) {
            size_t O = shapes[s][0], C = shapes[s][1], N = 21;
            struct matrix m = make_matrix(types[t], O, C);
            float *dy = random_floats(N * O), *a = malloc(N * C * 4), *b = malloc(N * C * 4);
            gemm_backward(a, dy, m.packed, N, 0, 0, C);
            gemm_backward(b, dy, m.exact, N, 0, 0, C);
            CHECK(memcmp(a, b, N * C * sizeof *a) == 0);
            packed_row(a, m.packed, O - 1);
            packed_row(b, m.exact, O - 1);
            CHECK(memcmp(a, b, C * sizeof *a) == 0);
            CHECK_INT(gemm_left_turns(m.packed), !kernels_int8_rounds());
            CHECK(gemm_left_turns(m.exact));
            free(dy);
            free(a);
            free(b);
            free_matrix(&m);
        }
}

/* What is not a number is not hidden by rounding, and numbers without a normal inverse are zero. */
static void unusual_numbers(void)
{
    enum { C = 64 };
    float x[C], y[16];
    for (size_t t = 0; t < 2; t++) {
        struct matrix m = make_matrix(types[t], 16, C);
        static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
        for (size_t i = 0; i < 4; i++)
            for (size_t at = 0; at < C; at += 21) {
                for (size_t k = 0; k < C; k++)
                    x[k] = 1;
                x[at] = bad[i];
                gemm_forward(y, x, m.packed, 1, 0, 0, 16);
                CHECK(!isfinite(y[0]));
            }
        for (size_t k = 0; k < C; k++)
            x[k] = 1e-42f;
        gemm_forward(y, x, m.packed, 1, 0, 0, 16);
        CHECK(fabsf(y[0]) < 1e-38f);
        free_matrix(&m);
    }
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
    RUN(documented_sums);
    RUN(same_bits);
    RUN(near_the_exact_product);
    RUN(backward_is_exact);
    RUN(unusual_numbers);
    if (forced == NULL)
        RUN(other_sets_too);
    return tap_done();
}
