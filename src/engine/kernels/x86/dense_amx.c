/* dense_amx.c - products of gradients on the matrix unit, both factors rounded to bfloat16.
 *
 * What costs here is rounding and laying out the operands, so each is done once: a strip of columns
 * of b for a block of the summed index, then the rows of a, 32 at a time.  An output is the chain of
 * TDPBF16PS over a block of KC, in steps of 32; the blocks' sums, times alpha, are stored or added
 * in ascending order.  Rows, columns and strips only choose when. */
#include "engine/kernels/x86/amx.h"
#include "engine/kernels/x86/sets.h"

#include <assert.h>

enum { STRIP = 512 }; /* columns whose block, 256 KB, stays in L2 */

/* Words of two neighbors along the summed index: low from even, high from odd. */
INLINE __m512i pair_floats(__m512 even, __m512 odd)
{
    /* VCVTNE2PS2BF16 leaves 16 numbers of one row behind 16 of the other; TDPBF16PS wants the two
     * neighbors of a column side by side. */
    static const uint16_t order[32] = { 0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), round_floats(even, odd));
}

/* The first n <= 16 floats, 0 where k is not below K: nothing behind them is read. */
INLINE __m512 load_floats(const float *p, size_t n, size_t k, size_t K)
{
    __mmask16 mask = k < K ? (__mmask16)((1u << n) - 1) : 0;
    return _mm512_maskz_loadu_ps(mask, p);
}

/* words [16] = pairs of rows [k, k + 32) of n <= 16 columns at p, rows ld apart. */
INLINE void load_words(__m512i words[NR], const float *p, size_t ld, size_t n, size_t k, size_t K)
{
    for (size_t i = 0; i < NR; i++, k += 2) {
        /* Behind K the mask is empty, but a pointer beyond the matrix must not even be formed. */
        const float *even = k < K ? p + k * ld : p, *odd = k + 1 < K ? p + (k + 1) * ld : p;
        words[i] = pair_floats(load_floats(even, n, k, K), load_floats(odd, n, k + 1, K));
    }
}

/* dst: panels of 16 columns, each a right tile for every step of K inputs; b is at its first row and
 * column. */
static void lay_out_right(uint16_t *dst, struct operand b, size_t columns, size_t K)
{
    assert(b.row == 1);
    for (size_t n = 0; n < columns; n += NR)
        for (size_t k = 0; k < K; k += STEP, dst += TILE) {
            __m512i words[NR];
            load_words(words, b.p + n, b.col, min_size(columns - n, NR), k, K);
            for (size_t i = 0; i < NR; i++)
                _mm512_storeu_si512(dst + i * 2 * NR, words[i]);
        }
}

/* dst: a left tile of 16 rows for every step; missing rows are zero. */
static void lay_out_rows(uint16_t *dst, struct operand a, size_t rows, size_t K)
{
    for (size_t k = 0; k < K; k += STEP, dst += TILE) {
        if (a.col != 1) { /* the rows are columns in memory */
            __m512i words[NR];
            load_words(words, a.p, a.col, rows, k, K);
            transpose_words(words);
            for (size_t m = 0; m < NR; m++)
                _mm512_storeu_si512(dst + m * STEP, words[m]);
            continue;
        }
        size_t n = min_size(K - k, STEP);
        /* A step may end inside the row: zeros for the rest of its 32 inputs add nothing. */
        __mmask16 low = (__mmask16)((1u << min_size(n, NR)) - 1);
        __mmask16 high = (__mmask16)((1u << (n > NR ? n - NR : 0)) - 1);
        for (size_t m = 0; m < rows; m++) {
            const float *p = a.p + m * a.row + k;
            __m512 second = _mm512_maskz_loadu_ps(high, p + (high ? NR : 0));
            _mm512_storeu_si512(dst + m * STEP,
                                round_floats(_mm512_maskz_loadu_ps(low, p), second));
        }
        memset(dst + rows * STEP, 0, (NR - rows) * STEP * sizeof *dst);
    }
}

/* sums (32,32) = two tiles of rows times two panels; what lies behind `apart` elements is the second.
 * With one of them the other's sums are not wanted. */
INLINE void multiply_square(size_t tiles, size_t panels, float *sums, const uint16_t *a,
                            const uint16_t *b, size_t K, size_t apart)
{
    const size_t stride = STEP * sizeof(uint16_t), ld = WIDTH * sizeof *sums;
    /* Sums stay in registers for the whole block; a step loads at most four tiles for four
     * products. */
    tile_zero(SUMS);
    if (panels == 2)
        tile_zero(SUMS + 1);
    if (tiles == 2)
        tile_zero(SUMS + 2);
    if (tiles == 2 && panels == 2)
        tile_zero(SUMS + 3);
    for (size_t k = 0; k < K; k += STEP, a += TILE, b += TILE) {
        tile_load(RIGHT, b, stride);
        tile_load(LEFT, a, stride);
        tile_dot(SUMS, LEFT, RIGHT);
        if (panels == 2) {
            tile_load(RIGHT + 1, b + apart, stride);
            tile_dot(SUMS + 1, LEFT, RIGHT + 1);
        }
        if (tiles == 2) {
            tile_load(LEFT + 1, a + apart, stride);
            tile_dot(SUMS + 2, LEFT + 1, RIGHT);
        }
        if (tiles == 2 && panels == 2)
            tile_dot(SUMS + 3, LEFT + 1, RIGHT + 1);
    }
    /* The order of the four tiles in memory is that of a square: right half behind 16 columns,
     * lower half behind 16 rows. */
    tile_store(SUMS, sums, ld);
    if (panels == 2)
        tile_store(SUMS + 1, sums + NR, ld);
    if (tiles == 2)
        tile_store(SUMS + 2, sums + NR * WIDTH, ld);
    if (tiles == 2 && panels == 2)
        tile_store(SUMS + 3, sums + NR * WIDTH + NR, ld);
}

/* y (rows, columns; rows ld apart) (+)= alpha * sums */
static void add_square(float *y, size_t ld, const float *sums, size_t rows, size_t columns,
                       float alpha, int add)
{
    const __m512 scale = _mm512_set1_ps(alpha);
    for (size_t m = 0; m < rows; m++)
        for (size_t n = 0; n < columns; n += NR) {
            __mmask16 mask = (__mmask16)((1u << min_size(columns - n, NR)) - 1);
            __m512 x = _mm512_mul_ps(_mm512_loadu_ps(sums + m * WIDTH + n), scale);
            if (add)
                x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + m * ld + n), x);
            _mm512_mask_storeu_ps(y + m * ld + n, mask, x);
        }
}

/* Up to 32 rows of the output times a strip of columns, for one block. */
static void multiply_strip(float *y, size_t ld, const uint16_t *a, const uint16_t *right,
                           size_t rows, size_t columns, size_t K, float alpha, int add)
{
    _Alignas(LINE) float sums[GROUP * WIDTH];
    /* The numbers of tiles are constants of each call, so that no instruction in the inner loop is
     * behind a branch that depends on data. */
    size_t apart = (K + STEP - 1) / STEP * TILE;
    for (size_t n = 0; n < columns; n += WIDTH) {
        const uint16_t *b = right + n / NR * apart;
        if (rows > NR && columns - n > NR)
            multiply_square(2, 2, sums, a, b, K, apart);
        else if (rows > NR)
            multiply_square(2, 1, sums, a, b, K, apart);
        else if (columns - n > NR)
            multiply_square(1, 2, sums, a, b, K, apart);
        else
            multiply_square(1, 1, sums, a, b, K, apart);
        add_square(y + n, ld, sums, rows, min_size(columns - n, WIDTH), alpha, add);
    }
}

void amx_dense(const struct dense *d, struct part part)
{
    /* 272 KB on the stack of a compute thread: no allocation can fail halfway through a step. */
    _Alignas(LINE) uint16_t left[GROUP * KC], right[STRIP * KC];
    configure_tiles(NR);
    for (size_t j = part.column; j < part.column_end; j += STRIP)
        for (size_t k = 0; k < d->K; k += KC) {
            size_t columns = min_size(part.column_end - j, STRIP), K = min_size(d->K - k, KC);
            /* From here on each operand begins at its block; its strides stay those of the whole
             * matrix. */
            struct operand b = { d->b.p + j * d->b.row + k * d->b.col, d->b.row, d->b.col };
            lay_out_right(right, b, columns, K);
            for (size_t m = part.row; m < part.row_end; m += GROUP) {
                size_t rows = min_size(part.row_end - m, GROUP);
                size_t tile = (K + STEP - 1) / STEP * TILE;
                struct operand a = { d->a.p + m * d->a.row + k * d->a.col, d->a.row, d->a.col };
                lay_out_rows(left, a, min_size(rows, NR), K);
                a.p += NR * a.row;
                if (rows > NR)
                    lay_out_rows(left + tile, a, rows - NR, K);
                multiply_strip(d->y + m * d->J + j, d->J, left, right, rows, columns, K, d->alpha,
                               d->accumulate || k > 0);
            }
        }
    release_tiles();
}
