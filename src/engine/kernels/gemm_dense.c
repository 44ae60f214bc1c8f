/* gemm_dense.c - products of two operands that are both unpacked: gradients, and small matrices.
 *
 * Loops and bits are those of gemm.c; here the right operand is packed, too, a few columns of one
 * block at a time. */
#include "engine/kernels/gemm_block.h"
#include "engine/kernels/kernels.h"

#include <assert.h>
#include <string.h>

/* Where a slice of columns may begin and end without cutting a panel between two threads. */
size_t dense_panel(void)
{
    return NR;
}

/* dst [K][16] from columns [0, n) of b, the rest zero.  b.row == 1: the columns lie beside each
 * other and are copied; otherwise each column is contiguous and is transposed, 8 x 8 values at a
 * time, the edges one by one. */
static void pack_right(const struct kernel_ops *ops, float *dst, struct operand b, size_t n,
                       size_t K)
{
    if (n < NR)
        memset(dst, 0, K * NR * sizeof *dst);
    if (b.row == 1 && n == NR) {
        for (size_t k = 0; k < K; k++)
            memcpy(dst + k * NR, b.p + k * b.col, NR * sizeof *dst);
        return;
    }
    if (b.row == 1) {
        for (size_t k = 0; k < K; k++)
            memcpy(dst + k * NR, b.p + k * b.col, n * sizeof *dst);
        return;
    }
    size_t whole = b.col == 1 ? n / 8 * 8 : 0, long_ = K / 8 * 8;
    ops->transpose(dst, NR, b.p, b.row, whole, long_);
    for (size_t j = 0; j < n; j++)
        for (size_t k = j < whole ? long_ : 0; k < K; k++)
            dst[k * NR + j] = b.p[j * b.row + k * b.col];
}

/* dst [ceil(K/2)][16][2] = columns [0, n) of b, which lie beside each other, rounded to bfloat16;
 * missing columns and the odd k are zero. */
static void pair_columns(const struct weight_ops *ops, uint16_t *dst, struct operand b, size_t n,
                         size_t K)
{
    float edge[KC * NR];
    assert(b.row == 1 && K <= KC);
    if (n == NR && K % 2 == 0) {
        ops->pair_rows(dst, b.p, b.col, K);
        return;
    }
    memset(edge, 0, sizeof edge);
    for (size_t k = 0; k < K; k++)
        memcpy(edge + k * NR, b.p + k * b.col, n * sizeof *edge);
    ops->pair_rows(dst, edge, NR, K + (K & 1));
}

/* dst [n][KC] = columns of a rounded to bfloat16: words of two neighboring k, then transposed.  Up
 * to 15 surplus rows are written. */
static void round_left_columns(const struct kernel_ops *ops, const struct weight_ops *pairs,
                               uint16_t *dst, struct operand a, size_t n, size_t K)
{
    float words[KC / 2 * NR];
    size_t long_ = (K / 2 + 8) / 8 * 8; /* of words, what transpose() takes */
    memset(words, 0, sizeof words);
    for (size_t m = 0; m < n; m += NR) {
        pair_columns(pairs, (uint16_t *)(void *)words, (struct operand){ a.p + m, 1, a.col },
                     min_size(n - m, NR), K);
        ops->transpose((float *)(void *)(dst + m * KC), KC / 2, words, NR, min_size(long_, KC / 2),
                       NR);
    }
}

/* The left operand of one block: rows of d->a from m, columns from k. */
static void pack_dense_left(const struct kernel_ops *ops, float *left, const struct dense *d,
                            size_t m, size_t k, const struct rows *r, size_t K)
{
    struct operand a = { d->a.p + m * d->a.row + k * d->a.col, d->a.row, d->a.col };
    uint16_t *rounded = (uint16_t *)(void *)left;
    if (d->pairs == NULL)
        gemm_pack_left(ops, left, a, r, K);
    else if (a.col == 1)
        gemm_round_left(d->pairs, rounded, a, r->n, K);
    else
        round_left_columns(ops, d->pairs, rounded, a, r->n, K);
}

/* The panels of `columns` columns of b, rows of the block, side by side. */
static void pack_dense_right(const struct kernel_ops *ops, float *right, const struct dense *d,
                             struct operand b, size_t columns, size_t K)
{
    /* Pairs of an odd K end with a zero, which every panel has room for. */
    size_t even = K + (K & 1);
    for (size_t n = 0; n < columns; n += NR) {
        struct operand panel = { b.p + n * b.row, b.row, b.col };
        if (d->pairs)
            pair_columns(d->pairs, (uint16_t *)(void *)right + n * even, panel,
                         min_size(columns - n, NR), K);
        else
            pack_right(ops, right + n * K, panel, min_size(columns - n, NR), K);
    }
}

/* One part of d->y. */
static void dense_product(const struct dense *d, struct part part)
{
    const struct kernel_ops *ops = kernels_ops();
    _Alignas(LINE) float left[LEFT], right[2 * KC * NR];
    size_t step = gemm_block_rows(part.row_end - part.row, ops->mr), width = gemm_panel_width(ops);
    float *y = d->y;
    size_t J = d->J;
    /* an empty sum is zero, but the loops below would not store it */
    for (size_t m = part.row; d->K == 0 && !d->accumulate && m < part.row_end; m++)
        memset(y + m * J + part.column, 0, (part.column_end - part.column) * sizeof *y);
    for (size_t m = part.row; m < part.row_end; m += step) {
        struct rows r = gemm_cut_rows(min_size(part.row_end - m, step), ops->mr);
        for (size_t k = 0; k < d->K; k += KC) {
            size_t block = min_size(d->K - k, KC);
            int add = d->accumulate || k > 0;
            pack_dense_left(ops, left, d, m, k, &r, block);
            for (size_t j = part.column; j < part.column_end; j += width) {
                struct operand b = { d->b.p + j * d->b.row + k * d->b.col, d->b.row, d->b.col };
                struct block p =
                    gemm_f32_block(ops, left, right, block, min_size(part.column_end - j, width));
                /* A single row reads 16 rows of w where they are: packing them would move more
                 * bytes than the product does. */
                if (ops->row != NULL && r.n == 1 && b.col == 1 && p.columns % NR == 0 &&
                    block % 8 == 0) {
                    for (size_t n = 0; n < p.columns; n += NR)
                        ops->row(y + m * J + j + n, left, b.p + n * b.row, b.row, block, d->alpha,
                                 add);
                    continue;
                }
                pack_dense_right(ops, right, d, b, p.columns, block);
                if (d->pairs)
                    gemm_take_pairs(&p, d->pairs, PACKED_BF16_PAIRS);
                struct tile_out out = { y + m * J + j, J, d->alpha, add, NULL, 0 };
                gemm_run_tiles(&r, &p, (struct fetch){ 0 }, out);
            }
        }
    }
}

/* The forms differ only in how the operands are stored (row and col above) and in which dimension
 * of the output is cut. */
void dense_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    struct dense d = { y, O, C, { x, C, 1 }, { w, C, 1 }, alpha, accumulate, NULL };
    assert(end <= N);
    (void)N;
    dense_product(&d, (struct part){ begin, end, 0, O });
}

/* The same, cut by columns: for few rows, or the threads would have nothing to share. */
void dense_nt_columns(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    struct dense d = { y, O, C, { x, C, 1 }, { w, C, 1 }, alpha, accumulate, NULL };
    assert(end <= O);
    dense_product(&d, (struct part){ 0, N, begin, end });
}

/* y (N, O) = alpha x (N, C) w (C, O): seen from the summed index, w is stored transposed. */
static struct dense make_nn(float *y, const float *x, const float *w, size_t O, size_t C,
                            float alpha, int accumulate)
{
    return (struct dense){ y, O, C, { x, C, 1 }, { w, 1, O }, alpha, accumulate, NULL };
}

/* y (O, C) = alpha aT (O, N) x (N, C): the gradient of a matrix, summed over the N tokens. */
static struct dense make_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                            float alpha, int accumulate)
{
    return (struct dense){ y, C, N, { a, 1, O }, { x, 1, C }, alpha, accumulate, NULL };
}

/* One part of d->y, both factors rounded where the set has kernels for that. */
static void rounded_product(struct dense *d, struct part part)
{
    const struct weight_ops *ops = &kernels_ops()->weights[PACKED_BF16_PAIRS];
    /* The unit takes whole parts; it has no answer for an empty sum. */
    if (ops->matrix && ops->matrix->dense && d->K > 0) {
        ops->matrix->dense(d, part);
        return;
    }
    d->pairs = ops->narrow ? ops : NULL;
    dense_product(d, part);
}

/* ---- dense products added to columns that are in a cache ------------------------------------- */

/* A matrix unit rounds in tiles of its own and takes whole products. */
bool dense_adds_rounded(void)
{
    const struct weight_ops *ops = &kernels_ops()->weights[PACKED_BF16_PAIRS];
    return !(ops->matrix && ops->matrix->dense);
}

/* What rounds the factors of a product that asks for it, else NULL. */
static const struct weight_ops *find_pairs(bool rounded)
{
    const struct weight_ops *ops = &kernels_ops()->weights[PACKED_BF16_PAIRS];
    return rounded && ops->narrow ? ops : NULL;
}

size_t dense_left_floats(size_t N, size_t C)
{
    return gemm_left_size(N, C, gemm_block_rows(N, kernels_ops()->mr));
}

void dense_left(float *left, const float *x, size_t N, size_t C, bool rounded)
{
    const struct kernel_ops *ops = kernels_ops();
    size_t step = gemm_block_rows(N, ops->mr);
    struct dense d = { .a = { x, C, 1 }, .pairs = find_pairs(rounded) };
    /* The blocks of rows and their order are those that dense_add_left() walks; each block of the
     * summed index of theirs begins where gemm_left_offset() says. */
    for (size_t m = 0; m < N; m += step) {
        struct rows r = gemm_cut_rows(min_size(N - m, step), ops->mr);
        for (size_t k = 0; k < C; k += KC)
            pack_dense_left(ops, left + gemm_left_offset(N, C, step, m, k), &d, m, k, &r,
                            min_size(C - k, KC));
    }
}

/* Rows are the innermost loop: the right operand is laid out once for all of them. */
void dense_add_left(float *y, const float *left, const float *w, size_t N, size_t O, size_t C,
                    float alpha, bool turned, bool rounded, size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    _Alignas(LINE) float right[2 * KC * NR];
    size_t step = gemm_block_rows(N, ops->mr), width = gemm_panel_width(ops);
    struct dense d = { .b = { w, turned ? 1 : C, turned ? O : 1 }, .pairs = find_pairs(rounded) };
    assert(begin % NR == 0 && end <= O && (turned || !rounded));
    /* Blocks of the summed index ascend for every column, which is all that the bits depend on. */
    for (size_t j = begin; j < end; j += width)
        for (size_t k = 0; k < C; k += KC) {
            size_t K = min_size(C - k, KC), columns = min_size(end - j, width);
            /* Columns from j, rows from k of w, whichever way it is stored. */
            struct operand b = { w + j * d.b.row + k * d.b.col, d.b.row, d.b.col };
            pack_dense_right(ops, right, &d, b, columns, K);
            for (size_t m = 0; m < N; m += step) {
                struct rows r = gemm_cut_rows(min_size(N - m, step), ops->mr);
                struct block p = gemm_f32_block(ops, left + gemm_left_offset(N, C, step, m, k),
                                                right, K, columns);
                if (d.pairs)
                    gemm_take_pairs(&p, d.pairs, PACKED_BF16_PAIRS);
                struct tile_out out = { y + m * O + j, O, alpha, 1, NULL, 0 };
                gemm_run_tiles(&r, &p, (struct fetch){ 0 }, out);
            }
        }
}

void dense_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    struct dense d = make_nn(y, x, w, O, C, alpha, accumulate);
    assert(end <= N);
    (void)N;
    dense_product(&d, (struct part){ begin, end, 0, O });
}

/* Rounded: both factors to bfloat16, in sets that multiply such pairs; elsewhere the same as
 * dense_nn(). */
void dense_nn_rounded(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    struct dense d = make_nn(y, x, w, O, C, alpha, accumulate);
    assert(end <= N);
    (void)N;
    rounded_product(&d, (struct part){ begin, end, 0, O });
}

void dense_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    struct dense d = make_tn(y, a, x, N, O, C, alpha, accumulate);
    assert(end <= O);
    dense_product(&d, (struct part){ begin, end, 0, C });
}

void dense_tn_rounded(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    struct dense d = make_tn(y, a, x, N, O, C, alpha, accumulate);
    assert(end <= O);
    rounded_product(&d, (struct part){ begin, end, 0, C });
}

/* Cut by columns of y, as dense_nt_columns(). */
void dense_tn_columns(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    struct dense d = make_tn(y, a, x, N, O, C, alpha, accumulate);
    assert(end <= C);
    dense_product(&d, (struct part){ 0, O, begin, end });
}

void dense_tn_columns_rounded(float *y, const float *a, const float *x, size_t N, size_t O,
                              size_t C, float alpha, int accumulate, size_t begin, size_t end)
{
    struct dense d = make_tn(y, a, x, N, O, C, alpha, accumulate);
    assert(end <= C);
    rounded_product(&d, (struct part){ 0, O, begin, end });
}
