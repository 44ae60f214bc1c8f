/* Quantized weights: products have the bits that the same numbers give as float32, with every set
 * of kernels; blocks of files are decoded as the reference does; quantizing loses what it says. */
#include "engine/kernels/blocks.h"
#include "support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 7;

static uint32_t next_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static float next_uniform(void)
{
    return (float)(next_bits() >> 7) / (1 << 24) * 2 - 1;
}

static float *random_floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = next_uniform();
    return p;
}

static const enum source_dtype kinds[] = { SOURCE_Q8_0, SOURCE_Q4_0, SOURCE_Q5_0, SOURCE_Q4_K,
                                           SOURCE_Q5_K, SOURCE_Q6_K, SOURCE_MXFP4 };
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Blocks with any codes and sub-scales, and scales of ordinary size. */
static uint8_t *random_blocks(enum source_dtype kind, size_t n)
{
    size_t bytes = source_bytes(kind, n), one = source_bytes(kind, source_block(kind));
    uint8_t *p = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)next_bits();
    for (size_t i = 0; i < bytes; i += one) {
        uint16_t half[2] = { f16_from_f32(next_uniform() / 64), f16_from_f32(next_uniform() / 64) };
        if (kind == SOURCE_MXFP4)
            p[i] = (uint8_t)(118 + next_bits() % 8);
        else if (kind == SOURCE_Q6_K)
            memcpy(p + i + 208, half, 2);
        else
            memcpy(p + i, half, kind == SOURCE_Q4_K || kind == SOURCE_Q5_K ? 4 : 2);
    }
    return p;
}

static struct packed *pack_weights(enum packed_dtype type, const void *w, enum source_dtype source,
                                   size_t O, size_t C)
{
    size_t bytes = (packed_bytes(type, O, C) + 63) / 64 * 64;
    return packed_init(aligned_alloc(64, bytes), type, w, source, O, C);
}

/* y = forward, then backward, of N rows: whole, or in slices with the left operand laid out once. */
static float *products(const struct packed *w, const float *x, size_t N, size_t O, size_t C)
{
    float *y = malloc(N * (O + C) * sizeof *y);
    gemm_forward(y, x, w, N, 0, 0, O);
    gemm_backward(y + N * O, x, w, N, 0, 0, C);
    return y;
}

static int is_left_equal(const struct packed *w, const float *x, const float *want, size_t N,
                         size_t O, size_t C)
{
    size_t most = O > C ? O : C, g = gemm_grain(), room = gemm_left_floats(w, N, most) + 64;
    float *left = aligned_alloc(64, (room * sizeof(float) + 63) / 64 * 64);
    float *y = malloc(N * (O + C) * sizeof *y);
    gemm_left(left, x, C, w, N, C, 0, gemm_left_units(w, N, C));
    for (size_t b = 0; b < O; b += g)
        gemm_forward_left(y, left, w, N, 0, 0, C, b, b + g < O ? b + g : O);
    gemm_left(left, x, O, w, N, O, 0, gemm_left_units(w, N, O));
    for (size_t b = 0; b < C; b += g)
        gemm_backward_left(y + N * O, left, w, N, 0, 0, O, b, b + g < C ? b + g : C);
    int same = memcmp(y, want, N * (O + C) * sizeof *y) == 0;
    free(left);
    free(y);
    return same;
}

/* Blocks are kept, numbers are quantized: either way the products are those of the numbers that the
 * operand stands for. */
static void check_operand(struct packed *q, const struct packed *f32, size_t O, size_t C)
{
    static const size_t rows[] = { 1, 2, 3, 7, 70, 200 };
    float *a = malloc(C * sizeof *a), *b = malloc(C * sizeof *b);
    int same_rows = 1;
    for (size_t o = 0; o < O; o++) {
        packed_row(a, q, o);
        packed_row(b, f32, o);
        same_rows &= memcmp(a, b, C * sizeof *a) == 0;
    }
    CHECK(same_rows);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t N = rows[i];
        float *x = random_floats(N * (O > C ? O : C));
        float *got = products(q, x, N, O, C), *want = products(f32, x, N, O, C);
        CHECK(memcmp(got, want, N * (O + C) * sizeof *got) == 0);
        CHECK(is_left_equal(q, x, want, N, O, C));
        free(x);
        free(got);
        free(want);
    }
    free(a);
    free(b);
}

static void blocks_as_f32(void)
{
    enum { O = 50, C = 512 };
    for (size_t i = 0; i < KINDS; i++) {
        uint8_t *blocks = random_blocks(kinds[i], O * C);
        float *w = malloc(O * C * sizeof *w);
        source_to_float(w, blocks, kinds[i], 0, O * C);
        struct packed *q = pack_weights(packed_native(kinds[i]), blocks, kinds[i], O, C);
        struct packed *f32 = pack_weights(PACKED_F32, w, SOURCE_F32, O, C);
        struct packed *direct = pack_weights(PACKED_F32, blocks, kinds[i], O, C);
        CHECK(memcmp(f32, direct, packed_bytes(PACKED_F32, O, C)) == 0);
        CHECK(packed_bytes(packed_native(kinds[i]), O, C) <
              packed_bytes(PACKED_BF16, O, C) * 3 / 4);
        check_operand(q, f32, O, C);
        free(blocks);
        free(w);
        free(q);
        free(f32);
        free(direct);
    }
}

/* Lengths that no block divides, one output, one input. */
static void numbers_quantized(void)
{
    static const size_t shapes[][2] = { { 1, 1 },   { 16, 16 },  { 17, 255 }, { 33, 257 },
                                        { 40, 33 }, { 130, 77 }, { 48, 600 } };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int bits = 4; bits <= 8; bits += 4) {
            size_t O = shapes[s][0], C = shapes[s][1];
            float *w = random_floats(O * C), *back = malloc(O * C * sizeof *back);
            struct packed *q =
                pack_weights(bits == 4 ? PACKED_Q4_0 : PACKED_Q8_0, w, SOURCE_F32, O, C);
            for (size_t o = 0; o < O; o++)
                packed_row(back + o * C, q, o);
            /* half a step of 1/127 and the rounding of the scale; with 4 bits steps of 0.1 or more,
             * whose largest code is 7: a weight near 1 may be 0.3 off */
            float worst = 0;
            for (size_t i = 0; i < O * C; i++)
                worst = fmaxf(worst, fabsf(back[i] - w[i]));
            CHECK(worst < (bits == 4 ? 0.31f : 0.0045f));
            struct packed *f32 = pack_weights(PACKED_F32, back, SOURCE_F32, O, C);
            check_operand(q, f32, O, C);
            free(w);
            free(back);
            free(q);
            free(f32);
        }
}

/* Relative root mean square error. */
static double rms_error(const float *a, const float *b, size_t n)
{
    double e = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)b[i] * b[i];
    }
    return sqrt(e / all);
}

/* A bell-shaped weight, as matrices of models have: the sum of uniform ones. */
static float next_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += next_uniform();
    return sum / 2;
}

static void quantization_errors(void)
{
    enum { N = 8192 };
    static const struct {
        enum source_dtype kind;
        double most;
    } limits[] = { { SOURCE_Q8_0, 0.006 },
                   { SOURCE_Q6_K, 0.020 },
                   { SOURCE_Q5_0, 0.050 },
                   { SOURCE_Q4_K, 0.078 },
                   { SOURCE_Q4_0, 0.095 } };
    float *w = malloc(N * sizeof *w), *back = malloc(N * sizeof *back);
    uint8_t *blocks = malloc(N * 2);
    for (size_t i = 0; i < N; i++)
        w[i] = next_normal() / 50;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        blocks_quantize(blocks, limits[i].kind, w, N, false);
        source_to_float(back, blocks, limits[i].kind, 0, N);
        printf("# %s: %.4f\n", source_name(limits[i].kind), rms_error(back, w, N));
        CHECK(rms_error(back, w, N) < limits[i].most);
    }
    double plain = rms_error(back, w, N);
    blocks_quantize(blocks, SOURCE_Q4_0, w, N, true);
    source_to_float(back, blocks, SOURCE_Q4_0, 0, N);
    printf("# Q4_0 with search: %.4f\n", rms_error(back, w, N));
    CHECK(rms_error(back, w, N) < 0.96 * plain);
    free(w);
    free(back);
    free(blocks);
}

static void zero_weights_stay_zero(void)
{
    static const enum source_dtype made[] = { SOURCE_Q8_0, SOURCE_Q4_0, SOURCE_Q5_0, SOURCE_Q4_K,
                                              SOURCE_Q6_K };
    float w[256] = { 0 }, back[256];
    uint8_t blocks[1024];
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        blocks_quantize(blocks, made[i], w, 256, true);
        source_to_float(back, blocks, made[i], 0, 256);
        int zero = 1;
        for (size_t k = 0; k < 256; k++)
            zero &= back[k] == 0;
        CHECK(zero);
    }
}

/* Any range, also one that begins and ends inside blocks. */
static void part_of_a_row(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        enum { N = 1024 };
        uint8_t *blocks = random_blocks(kinds[i], N);
        float all[N], part[N];
        source_to_float(all, blocks, kinds[i], 0, N);
        for (size_t first = 0; first < N; first += 97)
            for (size_t n = 1; first + n <= N; n += 131) {
                source_to_float(part, blocks, kinds[i], first, n);
                CHECK(memcmp(part, all + first, n * sizeof *part) == 0);
            }
        free(blocks);
    }
}

static void not_finite_is_seen(void)
{
    for (size_t i = 0; i < KINDS; i++) {
        uint8_t *blocks = random_blocks(kinds[i], 512);
        size_t last = source_bytes(kinds[i], 512) - source_bytes(kinds[i], source_block(kinds[i]));
        CHECK(source_is_finite(blocks, kinds[i], 512));
        if (kinds[i] == SOURCE_MXFP4)
            blocks[last] = 255;
        else
            memcpy(blocks + last + (kinds[i] == SOURCE_Q6_K ? 208 : 0), &(uint16_t){ 0x7c00 }, 2);
        CHECK(!source_is_finite(blocks, kinds[i], 512));
        free(blocks);
    }
    CHECK(!source_is_finite(&(float){ NAN }, SOURCE_F32, 1));
}

/* Rows of a head whose halves are interleaved in the data. */
static void interleaved_rows(void)
{
    enum { HEAD = 6, O = 2 * HEAD, C = 32 };
    float w[O * C], row[C];
    for (size_t i = 0; i < O * C; i++)
        w[i] = (float)(i / C);
    struct packed *p = aligned_alloc(64, (packed_bytes(PACKED_F32, O, C) + 63) / 64 * 64);
    packed_begin(p, PACKED_F32, O, C);
    packed_fill(p, &(struct packed_source){ w, SOURCE_F32, HEAD }, 0, O);
    static const int from[O] = { 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11 };
    for (size_t o = 0; o < O; o++) {
        packed_row(row, p, o);
        CHECK_INT((int)row[0], from[o]);
    }
    free(p);
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
    RUN(blocks_as_f32);
    RUN(numbers_quantized);
    RUN(quantization_errors);
    RUN(zero_weights_stay_zero);
    RUN(part_of_a_row);
    RUN(not_finite_is_seen);
    RUN(interleaved_rows);
    if (forced == NULL)
        RUN(other_sets_too);
    return tap_done();
}
