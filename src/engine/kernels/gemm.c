/* gemm.c - cut a product into blocks and tiles; the tiles come from the chosen ops.
 *
 * Order of the loops: up to MB rows of the left operand, then blocks of KC of the
 * summed index, then panels of NR columns, then tiles of rows.  The left operand's
 * block is copied once, tile by tile in the order in which a tile reads it (it stays
 * in L2), a panel of the right one stays in L1 while all tiles use it.  See ops.h for
 * why the bits do not depend on any of this.  gemm_block.c has what one block needs,
 * gemm_dense.c the products whose right operand is not packed yet. */
#include "engine/kernels/gemm_block.h"
#include "engine/kernels/kernels.h"

#include <assert.h>
#include <string.h>

/* dst [n] = rows of a rounded to 8 bits, see struct int8_row. */
static void quantize_left(const struct weight_ops *ops, enum packed_dtype type,
                          struct int8_row *dst, struct operand a, size_t n, size_t K)
{
    for (size_t m = 0; m < n; m++)
        ops->quantize(&dst[m], type, a.p + m * a.row, K);
}

/* Spread the prefetch of `bytes` evenly over the tiles, as slowly as possible: prefetches that
 * come too fast delay the rows that come from L2.  `slow`: these tiles can do LINES_SLOW. */
static struct fetch plan_fetch(size_t bytes, size_t K, size_t tiles, int slow)
{
    struct fetch f = { 0 };
    size_t steps = K / STEPS, all = steps ? (bytes / LINE + steps - 1) / steps : 0;
    size_t part = K / SLOW * LINE;
    if (all == 0)
        return f;
    if (slow && part > 0 && (bytes + part - 1) / part <= tiles)
        return (struct fetch){ .lines = LINES_SLOW, .tiles = bytes / part, .part = part };
    f.lines = (all + tiles - 1) / tiles;
    f.tiles = all / f.lines;
    f.part = f.lines * LINE * steps;
    return f;
}

/* Floats of two panels of KC inputs, and the surplus rows that expanding or turning may write. */
enum { RIGHT = (2 * KC + NR) * NR };

/* dst: np panels of w as float32, each [K][16].  Surplus rows of one are overwritten by the next. */
static void expand_panels(float *dst, const struct weight_ops *ops, const struct packed *w,
                          const char *panel, size_t K, size_t np)
{
    for (size_t p = 0; p < np; p++)
        ops->expand(dst + p * K * NR, w->type, panel + p * packed_panel_bytes(w->type, K), K, 0, K);
}

/* One block of the summed index, from c, of columns [begin, end) of y.  While one panel is
 * used the next one is prefetched; after the last, the first of the next block or slice.  Tiles
 * that are too tall for the format's own kernel use an expanded copy of the panel in L1. */
static void forward_block(const struct kernel_ops *ops, const struct rows *r, struct block b,
                          const struct packed *w, size_t c, size_t begin, size_t end,
                          struct tile_out out)
{
    _Alignas(LINE) float wide[RIGHT];
    size_t tallest = r->height + (r->taller > 0);
    /* two panels at once if the tallest tile has registers for their sums */
    size_t width = tallest <= ops->wide ? 2 * NR : NR;
    const struct weight_ops *format = b.ops;
    int expand = tallest > format->rows;
    const char *at = packed_panel(w, c, begin / NR);
    const char *after = c + KC < w->C ? packed_panel(w, c + KC, begin / NR)
                        : end < w->O  ? packed_panel(w, 0, end / NR)
                                      : NULL;
    size_t step = (size_t)((const char *)packed_panel(w, c, (begin + width) / NR) - at);
    if (expand) {
        b.type = PACKED_F32;
        b.ops = &ops->weights[PACKED_F32];
    }
    struct fetch f = plan_fetch(step, b.K, r->tiles, b.type == PACKED_F32);
    for (size_t o = begin; o < end; o += width, out.y += width, at += step) {
        b.columns = min_size(end - o, width);
        b.np = b.columns > NR ? 2 : 1;
        b.b = at;
        if (expand) {
            expand_panels(wide, format, w, at, b.K, b.np);
            b.b = wide;
        }
        f.at = o + width < end ? at + step : after;
        if (f.at == NULL)
            f.tiles = 0;
        gemm_run_tiles(r, &b, f, out);
    }
}

/* r->n rows of K values at x, rows ld apart, in the order in which tiles read them.  `format` rounds
 * them, or is NULL. */
static void pack_block(const struct kernel_ops *ops, float *dst, const float *x, size_t ld,
                       const struct rows *r, size_t K, const struct weight_ops *format)
{
    struct operand left = { x, ld, 1 };
    if (format && format->quantize)
        quantize_left(format, (enum packed_dtype)(format - ops->weights),
                      (struct int8_row *)(void *)dst, left, r->n, K);
    else if (format)
        gemm_round_left(format, (uint16_t *)(void *)dst, left, r->n, K);
    else
        gemm_pack_left(ops, dst, left, r, K);
}

/* A block with its left operand only; forward_block() fills in the panels. */
static struct block make_block(const struct kernel_ops *ops, const float *a, const struct packed *w,
                               size_t K)
{
    const struct weight_ops *format = &ops->weights[w->type];
    return (struct block){
        .a = a,
        .a_row = format->quantize ? sizeof(struct int8_row)
                                  : KC * (format->narrow ? sizeof(uint16_t) : sizeof(float)),
        .ops = format,
        .type = w->type,
        .K = K,
    };
}

/* What rounds the left operand of products with w in both directions, else NULL. */
static const struct weight_ops *find_rounding_ops(const struct kernel_ops *ops,
                                                  const struct packed *w)
{
    return ops->weights[w->type].narrow ? &ops->weights[w->type] : NULL;
}

/* The same of forward products. */
static const struct weight_ops *find_forward_rounding(const struct kernel_ops *ops,
                                                      const struct packed *w)
{
    return ops->weights[w->type].quantize ? &ops->weights[w->type] : find_rounding_ops(ops, w);
}

/* The matrix unit, if it takes the products with w, else NULL. */
static const struct matrix_ops *matrix_for(const struct kernel_ops *ops, const struct packed *w)
{
    return ops->weights[w->type].matrix;
}

/* The tallest tile of forward products with w. */
static size_t find_tallest(const struct kernel_ops *ops, const struct packed *w)
{
    return ops->weights[w->type].quantize ? ops->weights[w->type].rows : ops->mr;
}

int gemm_same_left(const struct packed *a, const struct packed *b)
{
    const struct kernel_ops *ops = kernels_ops();
    /* rows in 8 bits begin their sums with the offset of the format */
    if (ops->weights[a->type].quantize || ops->weights[b->type].quantize)
        return a->type == b->type;
    return matrix_for(ops, a) == matrix_for(ops, b) &&
           ops->weights[a->type].narrow == ops->weights[b->type].narrow;
}

int gemm_left_turns(const struct packed *w)
{
    return kernels_ops()->weights[w->type].quantize == NULL;
}

bool gemm_rounds(const struct packed *w)
{
    const struct kernel_ops *ops = kernels_ops();
    return matrix_for(ops, w) ? matrix_for(ops, w)->rounds : find_rounding_ops(ops, w) != NULL;
}

/* ---- left operand as it is ------------------------------------------------------------------- */

/* Every slice of columns packs the left operand for itself: right for few rows or one thread. */
void gemm_forward(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                  size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w)) {
        matrix_for(ops, w)->forward(y, x, w, N, accumulate, begin, end);
        return;
    }
    _Alignas(LINE) float a[LEFT];
    size_t step = gemm_block_rows(N, ops->mr);
    assert(begin % NR == 0 && end <= w->O);
    for (size_t m = 0; m < N; m += step) {
        struct rows r = gemm_cut_rows(min_size(N - m, step), find_tallest(ops, w));
        for (size_t c = 0; c < w->C; c += KC) {
            struct block b = make_block(ops, a, w, packed_block(w, c));
            pack_block(ops, a, x + m * w->C + c, w->C, &r, b.K, find_forward_rounding(ops, w));
            struct tile_out out = { y + m * w->O + begin, w->O, 1, accumulate || c > 0, NULL, 0 };
            forward_block(ops, &r, b, w, c, begin, end, out);
        }
    }
}

/* dst [K][16] = rows [o, o+K) of columns [c, c+16) of w; o, c and K are multiples of 16.
 * Backward sums over outputs, but a panel is stored by inputs: each 16 x 16 square of the packed
 * weights is transposed.  The squares that lie `ahead` columns further are prefetched, unless 0. */
static void unpack_panel(const struct kernel_ops *ops, float *dst, const struct packed *w, size_t o,
                         size_t c, size_t K, size_t ahead)
{
    size_t block = c / KC * KC, inputs = packed_block(w, block);
    size_t have = min_size(inputs - (c - block), NR), bytes;
    packed_square(w->type, inputs, 0, &bytes);
    float square[NR * NR];
    memset(square, 0, sizeof square);
    for (size_t k = 0; k < K; k += NR) {
        const char *panel = packed_panel(w, block, (o + k) / NR);
        const float *src = square;
        if (ahead > 0) {
            const char *next = panel + packed_square(w->type, inputs, c - block + ahead, &bytes);
            for (size_t i = 0; i < bytes; i += LINE)
                __builtin_prefetch(next + i, 0, 2);
        }
        if (w->type == PACKED_F32 && have == NR)
            src = (const float *)(const void *)panel + (c - block) * NR;
        else
            ops->weights[w->type].expand(square, w->type, panel, inputs, c - block, have);
        ops->transpose(dst + k * NR, NR, src, NR, NR, NR);
    }
}

/* The same for weights that stay pairs: dst [K/2][16][2].  Inputs behind the end are zero. */
static void unpack_pairs(const struct weight_ops *ops, uint16_t *dst, const struct packed *w,
                         size_t o, size_t c, size_t K, size_t ahead)
{
    size_t block = c / KC * KC, inputs = packed_block(w, block);
    size_t have = min_size(inputs - (c - block), NR), bytes;
    uint16_t square[NR * NR] = { 0 };
    for (size_t k = 0; k < K; k += NR, dst += NR * NR) {
        const char *panel = packed_panel(w, block, (o + k) / NR);
        const uint16_t *src =
            (const uint16_t *)(const void *)(panel +
                                             packed_square(w->type, inputs, c - block, &bytes));
        for (size_t i = 0; ahead > 0 && i < bytes; i += LINE)
            __builtin_prefetch((const char *)(src + ahead * NR) + i, 0, 2);
        if (have < NR) {
            memcpy(square, src, (have + (have & 1)) * NR * sizeof *square);
            src = square;
        }
        ops->transpose_pairs(dst, src);
    }
}

/* right [columns/16][K][16] = rows [o, o+K) of columns [c, c + columns) of w, or pairs of them
 * where the kernels of the format take pairs. */
static void unpack_columns(const struct kernel_ops *ops, float *right, const struct packed *w,
                           size_t o, size_t c, size_t columns, size_t K, size_t ahead)
{
    /* K is rounded up to whole squares: the surplus rows of a panel are overwritten by the next
     * panel, and `right` has room for those of the last (RIGHT). */
    const struct weight_ops *pairs = find_rounding_ops(ops, w);
    size_t squares = (K + NR - 1) / NR * NR, even = K + (K & 1);
    for (size_t n = 0; n < columns; n += NR)
        if (pairs)
            unpack_pairs(pairs, (uint16_t *)(void *)right + n * even, w, o, c + n, squares, ahead);
        else
            unpack_panel(ops, right + n * K, w, o, c + n, squares, ahead);
}

/* Prefetch the squares that unpack_columns() will transpose for `columns` from c. */
static struct fetch fetch_squares(const struct packed *w, size_t o, size_t c, size_t columns,
                                  size_t K)
{
    size_t block = c / KC * KC, square;
    size_t at = packed_square(w->type, packed_block(w, block), c - block, &square);
    return (struct fetch){
        .at = (const char *)packed_panel(w, block, o / NR) + at,
        .pieces = (K + NR - 1) / NR,
        .bytes = columns / NR * square,
        .stride = packed_offset(w, block, 1) - packed_offset(w, block, 0),
    };
}

/* From this number of tiles on, they prefetch the squares of the next columns while they run;
 * with fewer, unpack_panel() does it while it transposes the current ones. */
enum { MANY_TILES = 4 };

/* One block of the summed index, from o, of up to `width` columns from c of dx; right holds their
 * part of w.  The last block of rows prefetches what comes next. */
static void backward_block(const struct kernel_ops *ops, const struct rows *r, const float *a,
                           const float *right, const struct packed *w, size_t o, size_t c,
                           size_t end, int last, struct tile_out out)
{
    size_t width = gemm_panel_width(ops), columns = min_size(end - c, width);
    struct block b = gemm_f32_block(ops, a, right, min_size(w->O - o, KC), columns);
    struct fetch f = { 0 };
    if (find_rounding_ops(ops, w))
        gemm_take_pairs(&b, find_rounding_ops(ops, w), w->type);
    if (last && c + 2 * width <= end && r->tiles >= MANY_TILES)
        f = fetch_squares(w, o, c + width, width, b.K);
    gemm_run_tiles(r, &b, f, out);
}

/* Summed index: the outputs O.  As in forward, blocks of KC are added in ascending order. */
void gemm_backward(float *dx, const float *dy, const struct packed *w, size_t N, int accumulate,
                   size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w)) {
        matrix_for(ops, w)->backward(dx, dy, w, N, accumulate, begin, end);
        return;
    }
    _Alignas(LINE) float a[LEFT], right[RIGHT];
    size_t step = gemm_block_rows(N, ops->mr), width = gemm_panel_width(ops);
    assert(begin % NR == 0 && end <= w->C);
    for (size_t m = 0; m < N; m += step) {
        struct rows r = gemm_cut_rows(min_size(N - m, step), ops->mr);
        for (size_t o = 0; o < w->O; o += KC) {
            size_t K = min_size(w->O - o, KC);
            pack_block(ops, a, dy + m * w->O + o, w->O, &r, K, find_rounding_ops(ops, w));
            for (size_t c = begin; c < end; c += width) {
                unpack_columns(ops, right, w, o, c, min_size(end - c, width), K,
                               r.tiles < MANY_TILES ? width : 0);
                struct tile_out out = { dx + m * w->C + c, w->C, 1, accumulate || o > 0, NULL, 0 };
                backward_block(ops, &r, a, right, w, o, c, end, 1, out);
            }
        }
    }
}

/* Columns of a strip, see gemm_forward_left(): whole pairs of panels. */
enum { STRIP = 256 };

size_t gemm_left_floats(const struct packed *w, size_t N, size_t K)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w))
        return matrix_for(ops, w)->left_floats(N, K);
    size_t step = gemm_block_rows(N, ops->mr);
    return gemm_left_size(N, K, step);
}

size_t gemm_left_units(const struct packed *w, size_t N, size_t K)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w))
        return matrix_for(ops, w)->left_units(N, K);
    size_t step = gemm_block_rows(N, ops->mr);
    return gemm_k_blocks(K) * ((N + step - 1) / step);
}

void gemm_left(float *left, const float *x, size_t ld, const struct packed *w, size_t N, size_t K,
               size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w)) {
        matrix_for(ops, w)->left(left, x, ld, N, K, begin, end);
        return;
    }
    size_t step = gemm_block_rows(N, ops->mr), blocks = gemm_k_blocks(K);
    for (size_t unit = begin; unit < end; unit++) {
        size_t m = unit / blocks * step, k = unit % blocks * KC;
        struct rows r = gemm_cut_rows(min_size(N - m, step), ops->mr);
        pack_block(ops, left + gemm_left_offset(N, K, step, m, k), x + m * ld + k, ld, &r,
                   min_size(K - k, KC), find_forward_rounding(ops, w));
    }
}

void gemm_forward_left(float *y, const float *left, const struct packed *w, size_t N,
                       int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w)) {
        matrix_for(ops, w)->forward_left(y, left, w, N, accumulate, from, to, begin, end);
        return;
    }
    size_t step = gemm_block_rows(N, ops->mr);
    assert(from % KC == 0 && to <= w->C && begin % NR == 0 && end <= w->O);
    /* A strip's outputs and weights stay in L2 from one block of the sum, and of rows, to the
     * next. */
    for (size_t at = begin; at < end; at += STRIP) {
        size_t stop = min_size(at + STRIP, end);
        for (size_t m = 0; m < N; m += step) {
            struct rows r = gemm_cut_rows(min_size(N - m, step), find_tallest(ops, w));
            for (size_t c = from; c < to; c += KC) {
                const float *a = left + gemm_left_offset(N, to - from, step, m, c - from);
                struct tile_out out = {
                    y + m * w->O + at, w->O, 1, accumulate || c > from, NULL, 0
                };
                forward_block(ops, &r, make_block(ops, a, w, packed_block(w, c)), w, c, at, stop,
                              out);
            }
        }
    }
}

void gemm_backward_left(float *dx, const float *left, const struct packed *w, size_t N,
                        int accumulate, size_t from, size_t to, size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    if (matrix_for(ops, w)) {
        matrix_for(ops, w)->backward_left(dx, left, w, N, accumulate, from, to, begin, end);
        return;
    }
    _Alignas(LINE) float right[RIGHT];
    size_t step = gemm_block_rows(N, ops->mr), width = gemm_panel_width(ops);
    assert(gemm_left_turns(w));
    assert(from % KC == 0 && to <= w->O && begin % NR == 0 && end <= w->C);
    /* Rows are the innermost loop here: a panel of weights is transposed once for all of them.
     * An output still receives its blocks in ascending order of o. */
    for (size_t o = from; o < to; o += KC)
        for (size_t c = begin; c < end; c += width) {
            size_t K = min_size(w->O - o, KC);
            unpack_columns(ops, right, w, o, c, min_size(end - c, width), K, 0);
            for (size_t m = 0; m < N; m += step) {
                struct rows r = gemm_cut_rows(min_size(N - m, step), ops->mr);
                const float *a = left + gemm_left_offset(N, to - from, step, m, o - from);
                struct tile_out out = {
                    dx + m * w->C + c, w->C, 1, accumulate || o > from, NULL, 0
                };
                backward_block(ops, &r, a, right, w, o, c, end, m + step >= N, out);
            }
        }
}

/* Slices begin at even panels, so that a slice can always take two at once. */
size_t gemm_grain(void)
{
    return 2 * NR;
}

size_t gemm_left_step(void)
{
    return KC;
}
