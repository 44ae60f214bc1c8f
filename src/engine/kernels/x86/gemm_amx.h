/* gemm_amx.h - products with bfloat16 weights on the matrix unit (AMX).
 *
 * Not a header to share: each x86/gemm_*amx.c defines PARTS and MATRIX_OPS, the name of its table,
 * and includes it.  The unit multiplies bfloat16 by bfloat16; its products are exact and its sums
 * float32.  The weights are bfloat16 already.  A float32 of the left operand is cut into three
 * bfloat16 that add up to it (PARTS 3), 8 + 8 + 8 bits of its 24, so nothing of it is lost: three
 * products on this unit are still five times as fast as one on the vector unit.  Or it is rounded
 * (PARTS 1).
 *
 * One instruction adds the dot products of STEP values, each summed from zero, to a tile of
 * 16 x 16 sums.  An output is the chain of these over the summed index in ascending order, the
 * parts of a step after each other, and begins with what is already there.  Rows, columns
 * and slices only choose when: the bits of an output never depend on its company. */
#include "engine/kernels/ops.h"
#include "engine/kernels/packed.h"
#include "engine/kernels/x86/amx.h"
#include "engine/kernels/x86/sets.h"

#include <assert.h>

enum {
    CHUNK = 8 * GROUP,               /* rows whose block of the summed index stays in L2 */
    BLOCK = KC / STEP * PARTS * TILE /* bfloat16 of NR rows of a block of the summed index */
};

/* ---- the left operand ----------------------------------------------------------------------- */

/* The upper half of every float32, that is the value truncated to a bfloat16: unlike rounding,
 * this never overflows. */
INLINE __m512 upper_part(__m512 x)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}

/* x minus its upper part, which is exact: it has the low 16 bits of the mantissa.  Infinities give
 * 0, because infinity - infinity would be a NaN. */
INLINE __m512 lower_part(__m512 x, __m512 upper)
{
    __mmask16 finite = (__mmask16)~_mm512_fpclass_ps_mask(x, 0x08 | 0x10);
    return _mm512_maskz_sub_ps(finite, x, upper);
}

/* The upper halves of two vectors, one after the other. */
INLINE __m512i upper_halves(__m512 a, __m512 b)
{
    static const uint16_t odd[32] = { 1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63 };
    return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_loadu_si512(odd),
                                     _mm512_castps_si512(b));
}

/* n <= STEP values, rounded or x = x0 + x1 + x2, as PARTS rows of STEP bfloat16 that lie `apart`
 * elements from each other; missing values are zero. */
INLINE void split_floats(uint16_t *dst, size_t apart, const float *x, size_t n)
{
    uint32_t mask = n < STEP ? (1u << n) - 1 : 0xffffffff;
    __m512 a = _mm512_maskz_loadu_ps((__mmask16)mask, x);
    __m512 b = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + (mask >> 16 ? 16 : 0));
    if (PARTS == 1) {
        _mm512_storeu_si512(dst, round_floats(a, b));
        return;
    }
    for (int part = 0; part < PARTS; part++) {
        _mm512_storeu_si512(dst + (size_t)part * apart, upper_halves(a, b));
        a = lower_part(a, upper_part(a));
        b = lower_part(b, upper_part(b));
    }
}

/* A group of rows in the order in which multiply_step() reads it: [step][part][tile][16][32]. */
static void pack_group(uint16_t *dst, const float *x, size_t ld, size_t rows, size_t padded,
                       size_t K)
{
    size_t tiles = (rows + NR - 1) / NR;
    for (size_t k = 0; k < K; k += STEP, dst += PARTS * tiles * TILE) {
        for (size_t m = 0; m < rows; m++)
            split_floats(dst + m * STEP, tiles * TILE, x + m * ld + k, min_size(K - k, STEP));
        for (int part = 0; part < PARTS && padded > rows; part++)
            memset(dst + ((size_t)part * tiles * NR + rows) * STEP, 0,
                   (padded - rows) * STEP * sizeof *dst);
    }
}

/* Sizes round up: blocks of the summed index, tiles and groups of rows. */
static size_t count_blocks(size_t K)
{
    return (K + KC - 1) / KC;
}

static size_t count_tiles(size_t N)
{
    return (N + NR - 1) / NR;
}

static size_t count_groups(size_t N)
{
    return (N + GROUP - 1) / GROUP;
}

/* A packed left operand: chunks of CHUNK rows; in a chunk blocks of KC of the summed index; in a
 * block groups of rows.  A unit is one group of one block. */
static size_t amx_left_floats(size_t N, size_t K)
{
    return count_blocks(K) * count_tiles(N) * BLOCK * sizeof(uint16_t) / sizeof(float);
}

static size_t amx_left_units(size_t N, size_t K)
{
    return count_blocks(K) * count_groups(N);
}

/* Where rows from m, a multiple of CHUNK, of the block at k lie among N rows of K values. */
static size_t unit_place(size_t N, size_t K, size_t m, size_t k)
{
    return (m / NR * count_blocks(K) + k / KC * count_tiles(min_size(N - m, CHUNK))) * BLOCK;
}

/* Units [begin, end) of x (N,K), rows ld apart: groups of a block of a chunk of rows. */
static void pack_units(uint16_t *dst, const float *x, size_t ld, size_t N, size_t height, size_t K,
                       size_t begin, size_t end)
{
    size_t per_chunk = amx_left_units(CHUNK, K);
    for (size_t unit = begin; unit < end; unit++) {
        size_t padded = (N + height - 1) / height * height;
        size_t chunk = unit / per_chunk * CHUNK, groups = count_groups(min_size(N - chunk, CHUNK));
        size_t group = unit % per_chunk % groups, k = unit % per_chunk / groups * KC;
        size_t m = chunk + group * GROUP;
        pack_group(dst + unit_place(N, K, chunk, k) + group * 2 * BLOCK, x + m * ld + k, ld,
                   min_size(N - m, GROUP), min_size(padded - m, GROUP), min_size(K - k, KC));
    }
}

static void amx_left(float *left, const float *x, size_t ld, size_t N, size_t K, size_t begin,
                     size_t end)
{
    pack_units((uint16_t *)(void *)left, x, ld, N, tile_height(N), K, begin, end);
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Sums of N rows of some columns, in squares of GROUP x WIDTH, those of the same columns after
 * each other.  In the output their rows lie far apart, often by a multiple of 4 KB, and a tile of
 * such rows is never in the nearest cache. */
struct slab {
    float *sums;
    size_t N;
    size_t column, columns; /* the first one, and how many */
};

/* 256 KB of sums on the stack: with the left operand they stay in L2. */
enum { SQUARE = GROUP * WIDTH, SLAB = 1 << 16 /* floats */ };

/* As many of n columns as a slab holds with N rows. */
static size_t slab_columns(size_t N, size_t n)
{
    size_t most = SLAB / SQUARE / count_groups(N) * WIDTH;
    assert(most > 0);
    return min_size(n, most);
}

/* Where rows from m and columns from c, both counted in the slab, are summed. */
static float *slab_square(const struct slab *s, size_t m, size_t c)
{
    return s->sums + (c / WIDTH * count_groups(s->N) + m / GROUP) * SQUARE;
}

/* Copy the sums from their place in y (N, ld), or back to it. */
enum way { FROM_Y, TO_Y };
static void slab_copy(const struct slab *s, float *y, size_t ld, enum way way)
{
    for (size_t m = 0; m < s->N; m++)
        for (size_t c = 0; c < s->columns; c += WIDTH) {
            float *sums = slab_square(s, m, c) + m % GROUP * WIDTH;
            float *place = y + m * ld + s->column + c;
            size_t bytes = min_size(s->columns - c, WIDTH) * sizeof *y;
            if (way == TO_Y)
                memcpy(place, sums, bytes);
            else
                memcpy(sums, place, bytes);
        }
}

/* ---- one group of rows times up to two panels ----------------------------------------------- */

/* Panels of the right operand, [ceil(K/2)][16][2] each, `next` bfloat16 from one to the other;
 * and the panels that come after them, of which every step prefetches `lines` cache lines. */
struct right {
    const uint16_t *p;
    size_t next, panels, K;
    const uint16_t *fetch;
    size_t lines;
};

/* STEP values of the summed index: up to two tiles of rows times up to two panels.  All four sums
 * use each right tile, and every left tile is loaded once per part. */
INLINE void multiply_step(size_t tiles, size_t panels, const uint16_t *a, const uint16_t *b,
                          size_t next)
{
    const size_t stride = STEP * sizeof(uint16_t);
    tile_load(RIGHT, b, stride);
    if (panels == 2)
        tile_load(RIGHT + 1, b + next, stride);
#pragma GCC unroll 3
    for (int part = 0; part < PARTS; part++, a += tiles * TILE) {
        tile_load(LEFT, a, stride);
        tile_dot(SUMS, LEFT, RIGHT);
        if (panels == 2)
            tile_dot(SUMS + 1, LEFT, RIGHT + 1);
        if (tiles == 2) {
            tile_load(LEFT + 1, a + TILE, stride);
            tile_dot(SUMS + 2, LEFT + 1, RIGHT);
            if (panels == 2)
                tile_dot(SUMS + 3, LEFT + 1, RIGHT + 1);
        }
    }
}

/* The last, incomplete step reads from a zero-padded copy: what lies behind a panel may be NaN or
 * infinity, and zero times that is NaN. */
INLINE void multiply_last_step(size_t tiles, size_t panels, const uint16_t *a,
                               const struct right *b, size_t k)
{
    _Alignas(LINE) uint16_t whole[2 * TILE] = { 0 };
    size_t pairs = (b->K - k + 1) / 2;
    for (size_t i = 0; i < panels; i++)
        memcpy(whole + i * TILE, b->p + i * b->next + k * NR, pairs * 2 * NR * sizeof *whole);
    multiply_step(tiles, panels, a, whole, TILE);
}

/* Sums of tile t and panel p of a group: from memory or zero into their register, and back.  The
 * register number is an immediate of the instruction, so t and p must be constants. */
INLINE void load_sums(int t, int p, float *sums, int add)
{
    if (add)
        tile_load(SUMS + 2 * t + p, sums + (t * WIDTH + p) * NR, WIDTH * sizeof *sums);
    else
        tile_zero(SUMS + 2 * t + p);
}
INLINE void store_sums(int t, int p, float *sums)
{
    tile_store(SUMS + 2 * t + p, sums + (t * WIDTH + p) * NR, WIDTH * sizeof *sums);
}

/* One group of rows times one or two panels over a block of the summed index.  tiles and panels are
 * constants in every call, so the conditions vanish. */
INLINE void multiply_group(size_t tiles, size_t panels, const uint16_t *a, const struct right *b,
                           float *sums, int add)
{
    size_t k = 0;
    load_sums(0, 0, sums, add);
    if (panels == 2)
        load_sums(0, 1, sums, add);
    if (tiles == 2)
        load_sums(1, 0, sums, add);
    if (tiles == 2 && panels == 2)
        load_sums(1, 1, sums, add);
    for (; k + STEP <= b->K; k += STEP, a += PARTS * tiles * TILE) {
        const uint16_t *fetch = b->fetch + k * NR;
        for (size_t i = 0; i < b->lines; i++, fetch += LINE / sizeof *fetch) {
            __builtin_prefetch(fetch, 0, 2);
            __builtin_prefetch(fetch + b->next, 0, 2);
        }
        multiply_step(tiles, panels, a, b->p + k * NR, b->next);
    }
    if (k < b->K)
        multiply_last_step(tiles, panels, a, b, k);
    store_sums(0, 0, sums);
    if (panels == 2)
        store_sums(0, 1, sums);
    if (tiles == 2)
        store_sums(1, 0, sums);
    if (tiles == 2 && panels == 2)
        store_sums(1, 1, sums);
}

/* All rows of the slab, in the columns from c: from a block of the left operand as pack_units()
 * leaves it. */
static void multiply_rows(const struct slab *s, size_t c, const uint16_t *a, struct right *b,
                          int add)
{
    for (size_t m = 0; m < s->N; m += GROUP, a += 2 * BLOCK) {
        float *sums = slab_square(s, m, c);
        if (s->N - m > NR && b->panels == 2)
            multiply_group(2, 2, a, b, sums, add);
        else if (s->N - m > NR)
            multiply_group(2, 1, a, b, sums, add);
        else if (b->panels == 2)
            multiply_group(1, 2, a, b, sums, add);
        else
            multiply_group(1, 1, a, b, sums, add);
        b->fetch += b->lines * LINE / sizeof *b->fetch;
    }
}

/* ---- forward and backward ------------------------------------------------------------------- */

/* What will be read after the block at c of a slab: its next block, or the next slab. */
static const uint16_t *next_panels(const struct slab *s, const struct packed *w, size_t c)
{
    size_t end = s->column + s->columns;
    if (c + KC < w->C)
        return packed_bf16(w, c + KC, s->column / NR);
    return end < w->O ? packed_bf16(w, 0, end / NR) : NULL;
}

/* The slab (+)= the block at c of the left operand times w^T.  The packed weights are used as they
 * are: [k/2][16][2] is the layout of a right tile. */
static void forward_slab(const struct slab *s, const uint16_t *a, const struct packed *w, size_t c,
                         int add)
{
    size_t K = packed_block(w, c), next = (K + (K & 1)) * NR;
    size_t lines = TILE * sizeof(uint16_t) / LINE, groups = count_groups(s->N);
    for (size_t o = 0; o < s->columns; o += WIDTH) {
        size_t left = s->columns - o;
        const uint16_t *p = packed_bf16(w, c, (s->column + o) / NR);
        const uint16_t *after = left > WIDTH ? p + 2 * next : next_panels(s, w, c);
        struct right b = { .p = p, .next = next, .panels = left > NR ? 2 : 1, .K = K, .fetch = p };
        if (after) {
            b.fetch = after;
            b.lines = (lines + groups - 1) / groups;
        }
        multiply_rows(s, o, a, &b, add);
    }
}

/* dst [16][16][2] = rows [o, o + 32) of columns [c, c + 16) of w, as pairs of rows: words of two
 * columns are split into rows of one column each, which are transposed.  The same rows of the
 * columns two panels further are prefetched: they are needed next. */
static void transpose_weights(uint16_t *dst, const struct packed *w, size_t o, size_t c)
{
    static const uint16_t even[32] = { 0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                       22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                       44, 46, 48, 50, 52, 54, 56, 58, 60, 62 };
    size_t block = c / KC * KC,
           pairs = (min_size(packed_block(w, block) - (c - block), NR) + 1) / 2;
    const uint16_t *first = packed_bf16(w, block, o / NR) + (c - block) * NR;
    const uint16_t *second =
        o / NR + 1 < w->panels ? packed_bf16(w, block, o / NR + 1) + (c - block) * NR : NULL;
    __m512i r[NR];
    for (size_t i = 0; i < NR / 2; i++) {
        __m512i a = _mm512_setzero_si512(), b = a;
        if (i < pairs)
            a = _mm512_loadu_si512(first + i * 2 * NR);
        if (i < pairs && second) {
            b = _mm512_loadu_si512(second + i * 2 * NR);
            __builtin_prefetch(second + i * 2 * NR + WIDTH * NR, 0, 2);
        }
        __builtin_prefetch(first + i * 2 * NR + WIDTH * NR, 0, 2);
        r[2 * i] = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(even), b);
        r[2 * i + 1] = upper_halves(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
    }
    transpose_words(r);
    for (size_t i = 0; i < NR; i++)
        _mm512_storeu_si512(dst + i * 2 * NR, r[i]);
}

/* The slab (+)= the block at o of the left operand times w.  The rows of w that are summed are
 * transposed into panels of whole steps. */
static void backward_slab(const struct slab *s, const uint16_t *a, const struct packed *w, size_t o,
                          int add)
{
    _Alignas(LINE) uint16_t transposed[KC * WIDTH];
    size_t K = (min_size(w->O - o, KC) + STEP - 1) / STEP * STEP;
    for (size_t c = 0; c < s->columns; c += WIDTH) {
        struct right b = { .p = transposed,
                           .next = K * NR,
                           .panels = s->columns - c > NR ? 2 : 1,
                           .K = K,
                           .fetch = transposed };
        for (size_t p = 0; p < b.panels; p++)
            for (size_t k = 0; k < K; k += STEP)
                transpose_weights(transposed + p * b.next + k * NR, w, o + k,
                                  s->column + c + p * NR);
        multiply_rows(s, c, a, &b, add);
    }
}

typedef void multiply_block(const struct slab *s, const uint16_t *a, const struct packed *w,
                            size_t k, int add);

/* Columns [begin, end) of y (N,ld) (+)= a packed left operand, [from, to) of the summed index. */
static void multiply_packed(multiply_block *block, float *y, size_t ld, const float *left,
                            const struct packed *w, size_t N, int accumulate, size_t from,
                            size_t to, size_t begin, size_t end)
{
    const uint16_t *a = (const uint16_t *)(const void *)left;
    _Alignas(LINE) float sums[SLAB];
    if (N == 0)
        return; /* a tile of 0 rows cannot be configured */
    configure_tiles(tile_height(N));
    /* For each slab the whole summed index, block after block: its sums never leave the cache. */
    for (size_t column = begin, columns; column < end; column += columns) {
        columns = slab_columns(min_size(N, CHUNK), end - column);
        for (size_t m = 0; m < N; m += CHUNK) {
            struct slab s = { sums, min_size(N - m, CHUNK), column, columns };
            if (accumulate)
                slab_copy(&s, y + m * ld, ld, FROM_Y);
            for (size_t k = from; k < to; k += KC)
                block(&s, a + unit_place(N, to - from, m, k - from), w, k, accumulate || k > from);
            slab_copy(&s, y + m * ld, ld, TO_Y);
        }
    }
    release_tiles();
}

/* The same with x (N,K) unpacked: ROWS rows are packed at a time, again for every slab.  For few
 * rows, as in decoding, that is cheaper than a pass over all of x first. */
static void multiply_unpacked(multiply_block *block, float *y, size_t ld, const float *x, size_t K,
                              const struct packed *w, size_t N, int accumulate, size_t begin,
                              size_t end)
{
    enum { ROWS = 2 * GROUP };
    _Alignas(LINE) float sums[SLAB];
    _Alignas(LINE) uint16_t a[ROWS / NR * BLOCK];
    size_t height = tile_height(N);
    if (N == 0)
        return;
    configure_tiles(height);
    for (size_t m = 0; m < N; m += ROWS)
        for (size_t column = begin, columns; column < end; column += columns) {
            size_t rows = min_size(N - m, ROWS);
            columns = slab_columns(rows, end - column);
            struct slab s = { sums, rows, column, columns };
            if (accumulate)
                slab_copy(&s, y + m * ld, ld, FROM_Y);
            for (size_t k = 0; k < K; k += KC) {
                pack_units(a, x + m * K + k, K, rows, height, min_size(K - k, KC), 0,
                           count_groups(rows));
                block(&s, a, w, k, accumulate || k > 0);
            }
            slab_copy(&s, y + m * ld, ld, TO_Y);
        }
    release_tiles();
}

static void amx_forward(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                        size_t begin, size_t end)
{
    multiply_unpacked(forward_slab, y, w->O, x, w->C, w, N, accumulate, begin, end);
}

static void amx_forward_left(float *y, const float *left, const struct packed *w, size_t N,
                             int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    multiply_packed(forward_slab, y, w->O, left, w, N, accumulate, from, to, begin, end);
}

static void amx_backward(float *dx, const float *dy, const struct packed *w, size_t N,
                         int accumulate, size_t begin, size_t end)
{
    multiply_unpacked(backward_slab, dx, w->C, dy, w->O, w, N, accumulate, begin, end);
}

static void amx_backward_left(float *dx, const float *left, const struct packed *w, size_t N,
                              int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    multiply_packed(backward_slab, dx, w->C, left, w, N, accumulate, from, to, begin, end);
}

const struct matrix_ops MATRIX_OPS = {
    .rounds = PARTS == 1,
    .left_floats = amx_left_floats,
    .left_units = amx_left_units,
    .left = amx_left,
    .forward = amx_forward,
    .forward_left = amx_forward_left,
    .backward = amx_backward,
    .backward_left = amx_backward_left,
    .dense = PARTS == 1 ? amx_dense : NULL,
};
