/* gemm.c - cut a product into blocks and tiles; the tiles come from the chosen ops.
 *
 * Order of the loops: MB rows of the left operand, then blocks of KC of the summed
 * index, then panels of NR columns, then tiles of rows.  The left operand's block is
 * copied once to rows of KC (it stays in L2), a panel of the right one
 * stays in L1 while all tiles use it.  See ops.h for why the bits do not depend on
 * any of this. */
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/packed.h"

#include <assert.h>
#include <string.h>

/* One operand seen as element [i][k] at p[i*row + k*col]. */
struct operand {
    const float *p;
    size_t row, col;
};

/* The rows of one block, cut into tiles of nearly equal height. */
struct rows {
    size_t n, tiles;
};

static struct rows rows_cut(size_t n, size_t mr)
{
    return (struct rows){ n, (n + mr - 1) / mr };
}

static size_t rows_begin(const struct rows *r, size_t tile)
{
    return tile * r->n / r->tiles;
}

/* dst [n][KC] = rows of a, columns [0, K) */
static void pack_left(const struct kernel_ops *ops, float *dst, struct operand a, size_t n,
                      size_t K)
{
    if (a.col == 1) {
        for (size_t m = 0; m < n; m++)
            memcpy(dst + m * KC, a.p + m * a.row, K * sizeof *dst);
        return;
    }
    size_t whole = a.row == 1 ? n / 8 * 8 : 0, long_ = K / 8 * 8;
    for (size_t m = 0; m < whole; m += 8)
        for (size_t k = 0; k < long_; k += 8)
            ops->transpose(dst + m * KC + k, KC, a.p + m + k * a.col, a.col);
    for (size_t m = 0; m < n; m++)
        for (size_t k = m < whole ? long_ : 0; k < K; k++)
            dst[m * KC + k] = a.p[m * a.row + k * a.col];
}

/* dst [K][16] from columns [0, n) of b, the rest zero. */
static void pack_right(const struct kernel_ops *ops, float *dst, struct operand b, size_t n,
                       size_t K)
{
    if (n < NR)
        memset(dst, 0, K * NR * sizeof *dst);
    if (b.row == 1) {
        for (size_t k = 0; k < K; k++)
            memcpy(dst + k * NR, b.p + k * b.col, n * sizeof *dst);
        return;
    }
    size_t whole = b.col == 1 ? n / 8 * 8 : 0, long_ = K / 8 * 8;
    for (size_t j = 0; j < whole; j += 8)
        for (size_t k = 0; k < long_; k += 8)
            ops->transpose(dst + k * NR + j, NR, b.p + j * b.row + k, b.row);
    for (size_t j = 0; j < n; j++)
        for (size_t k = j < whole ? long_ : 0; k < K; k++)
            dst[k * NR + j] = b.p[j * b.row + k * b.col];
}

/* Round a packed left block to bfloat16; the odd last value meets a zero. */
static void narrow_left(const struct kernel_ops *ops, uint16_t *dst, float *a, size_t n, size_t K)
{
    size_t whole = (K + 15) / 16 * 16;
    for (size_t m = 0; m < n; m++) {
        memset(a + m * KC + K, 0, (whole - K) * sizeof *a);
        ops->narrow(dst + m * KC, a + m * KC, whole);
    }
}

/* One block of a product: left rows as float32 or bfloat16, right panels likewise. */
struct block {
    const float *a;
    const uint16_t *a16; /* used when not NULL; then b is bfloat16 */
    const float *b;      /* used when not NULL */
    const uint16_t *b16;
    size_t K, np, columns; /* panels side by side, valid columns in them */
    const char *ahead;     /* what the next block will read: pieces at a stride; or NULL */
    size_t pieces, bytes, stride;
};

/* Ask for one tile's share of what comes next; the arithmetic hides the wait. */
static void fetch_ahead(const struct block *b, size_t tile, size_t tiles)
{
    enum { LINE = 64 };
    size_t per_piece = b->bytes / LINE, lines = b->pieces * per_piece;
    for (size_t i = lines * tile / tiles; i < lines * (tile + 1) / tiles; i++)
        __builtin_prefetch(b->ahead + i / per_piece * b->stride + i % per_piece * LINE, 0, 2);
}

static void tile(const struct kernel_ops *ops, size_t m, size_t mr, const struct block *b,
                 const struct tile_out *out)
{
    if (b->a16 != NULL)
        ops->tile_pairs(mr, b->np, b->K, b->a16 + m * KC, b->b16, out);
    else if (b->b != NULL)
        ops->tile_f32(mr, b->np, b->K, b->a + m * KC, b->b, out);
    else
        ops->tile_bf16(mr, b->np, b->K, b->a + m * KC, b->b16, out);
}

/* All row tiles against one block; partial panels go through a full-width copy. */
static void block_tiles(const struct kernel_ops *ops, const struct rows *r, const struct block *b,
                        const struct tile_out *out)
{
    for (size_t t = 0; t < r->tiles; t++) {
        size_t m0 = rows_begin(r, t), mr = rows_begin(r, t + 1) - m0;
        struct tile_out to = *out;
        to.y += m0 * out->ldy;
        if (b->ahead != NULL)
            fetch_ahead(b, t, r->tiles);
        if (b->columns == b->np * NR) {
            tile(ops, m0, mr, b, &to);
            continue;
        }
        float edge[MR_MAX * 2 * NR];
        struct tile_out through = { edge, 2 * NR, out->alpha, 0 };
        tile(ops, m0, mr, b, &through);
        for (size_t m = 0; m < mr; m++)
            for (size_t n = 0; n < b->columns; n++) {
                float *y = &to.y[m * to.ldy + n];
                *y = out->add ? *y + edge[m * 2 * NR + n] : edge[m * 2 * NR + n];
            }
    }
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void gemm_forward(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                  size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    float a[MB * KC];
    uint16_t a16[MB * KC];
    uint16_t *left16 = w->type == PACKED_BF16 && ops->narrow != NULL ? a16 : NULL;
    assert(begin % NR == 0 && end <= w->O);
    for (size_t m = 0; m < N; m += MB) {
        struct rows r = rows_cut(min_size(N - m, MB), ops->mr);
        for (size_t c = 0; c < w->C; c += KC) {
            size_t K = packed_block(w, c);
            pack_left(ops, a, (struct operand){ x + m * w->C + c, w->C, 1 }, r.n, K);
            if (left16 != NULL)
                narrow_left(ops, a16, a, r.n, K);
            size_t np = r.tiles > 1 ? ops->panels : 2;
            for (size_t o = begin; o < end; o += np * NR) {
                size_t columns = min_size(end - o, np * NR);
                struct block b = {
                    .a = a, .a16 = left16, .K = K, .np = columns > NR ? 2 : 1, .columns = columns
                };
                if (w->type == PACKED_F32)
                    b.b = packed_f32(w, c, o / NR);
                else
                    b.b16 = packed_bf16(w, c, o / NR);
                struct tile_out out = { y + m * w->O + o, w->O, 1, accumulate || c > 0 };
                block_tiles(ops, &r, &b, &out);
            }
        }
    }
}

/* dst [K][16] = rows [o, o+K) of columns [c, c+16) of w; o and c are multiples of 16. */
static void unpack_square(const struct kernel_ops *ops, float *dst, const struct packed *w,
                          size_t o, size_t c, size_t K)
{
    size_t block = c / KC * KC;
    size_t have = min_size(packed_block(w, block) - (c - block), NR);
    float square[NR * NR];
    memset(square, 0, sizeof square);
    for (size_t k = 0; k < K; k += NR) {
        const float *src = square;
        if (w->type == PACKED_BF16)
            ops->widen(square, packed_bf16(w, block, (o + k) / NR) + (c - block) * NR, have);
        else if (have == NR)
            src = packed_f32(w, block, (o + k) / NR) + (c - block) * NR;
        else
            memcpy(square, packed_f32(w, block, (o + k) / NR) + (c - block) * NR,
                   have * NR * sizeof(float));
        for (size_t q = 0; q < 4; q++) {
            size_t i = q / 2 * 8, j = q % 2 * 8;
            ops->transpose(dst + (k + j) * NR + i, NR, src + i * NR + j, NR);
        }
    }
}

static void ahead_backward(struct block *b, const struct packed *w, size_t o, size_t c)
{
    size_t block = c / KC * KC, size = w->type == PACKED_BF16 ? sizeof(uint16_t) : sizeof(float);
    size_t at = packed_offset(w, block, o / NR) + (c - block) * NR;
    b->ahead = (const char *)w + PACKED_HEADER + at * size;
    b->pieces = (b->K + NR - 1) / NR;
    b->bytes = NR * NR * size;
    b->stride = (packed_offset(w, block, 1) - packed_offset(w, block, 0)) * size;
}

void gemm_backward(float *dx, const float *dy, const struct packed *w, size_t N, int accumulate,
                   size_t begin, size_t end)
{
    const struct kernel_ops *ops = kernels_ops();
    float a[MB * KC], right[KC * NR];
    assert(begin % NR == 0 && end <= w->C);
    for (size_t m = 0; m < N; m += MB) {
        struct rows r = rows_cut(min_size(N - m, MB), ops->mr);
        for (size_t o = 0; o < w->O; o += KC) {
            size_t K = min_size(w->O - o, KC);
            size_t whole = (K + NR - 1) / NR * NR;
            pack_left(ops, a, (struct operand){ dy + m * w->O + o, w->O, 1 }, r.n, K);
            for (size_t c = begin; c < end; c += NR) {
                unpack_square(ops, right, w, o, c, whole);
                struct block b = { .a = a, .b = right, .K = K, .np = 1 };
                b.columns = min_size(end - c, NR);
                if (c + 2 * NR <= end && r.tiles >= 4)
                    ahead_backward(&b, w, o, c + NR);
                struct tile_out out = { dx + m * w->C + c, w->C, 1, accumulate || o > 0 };
                block_tiles(ops, &r, &b, &out);
            }
        }
    }
}

size_t gemm_grain(void)
{
    return 2 * NR;
}

/* The part of an output that a call computes. */
struct part {
    size_t row, row_end, column, column_end;
};

/* One part of y (.,J) (+)= alpha * a b^T over K, both operands unpacked. */
static void dense(float *y, size_t J, size_t K, struct operand a, struct operand b, float alpha,
                  int accumulate, struct part part)
{
    const struct kernel_ops *ops = kernels_ops();
    float left[MB * KC], right[KC * NR];
    for (size_t m = part.row; K == 0 && !accumulate && m < part.row_end; m++)
        memset(y + m * J + part.column, 0, (part.column_end - part.column) * sizeof *y);
    for (size_t m = part.row; m < part.row_end; m += MB) {
        struct rows r = rows_cut(min_size(part.row_end - m, MB), ops->mr);
        for (size_t k = 0; k < K; k += KC) {
            size_t block = min_size(K - k, KC);
            struct operand rows = { a.p + m * a.row + k * a.col, a.row, a.col };
            pack_left(ops, left, rows, r.n, block);
            for (size_t j = part.column; j < part.column_end; j += NR) {
                struct operand columns = { b.p + j * b.row + k * b.col, b.row, b.col };
                struct block p = { .a = left, .b = right, .K = block, .np = 1 };
                p.columns = min_size(part.column_end - j, NR);
                pack_right(ops, right, columns, p.columns, block);
                struct tile_out out = { y + m * J + j, J, alpha, accumulate || k > 0 };
                block_tiles(ops, &r, &p, &out);
            }
        }
    }
}

void dense_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    assert(end <= N);
    (void)N;
    dense(y, O, C, (struct operand){ x, C, 1 }, (struct operand){ w, C, 1 }, alpha, accumulate,
          (struct part){ begin, end, 0, O });
}

void dense_nt_columns(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    assert(end <= O);
    dense(y, O, C, (struct operand){ x, C, 1 }, (struct operand){ w, C, 1 }, alpha, accumulate,
          (struct part){ 0, N, begin, end });
}

void dense_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    assert(end <= N);
    (void)N;
    dense(y, O, C, (struct operand){ x, C, 1 }, (struct operand){ w, 1, O }, alpha, accumulate,
          (struct part){ begin, end, 0, O });
}

void dense_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C, float alpha,
              int accumulate, size_t begin, size_t end)
{
    assert(end <= O);
    dense(y, C, N, (struct operand){ a, 1, O }, (struct operand){ x, 1, C }, alpha, accumulate,
          (struct part){ begin, end, 0, C });
}

void dense_tn_columns(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                      float alpha, int accumulate, size_t begin, size_t end)
{
    assert(end <= C);
    dense(y, C, N, (struct operand){ a, 1, O }, (struct operand){ x, 1, C }, alpha, accumulate,
          (struct part){ 0, O, begin, end });
}
