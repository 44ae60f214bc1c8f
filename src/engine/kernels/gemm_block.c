/* gemm_block.c - see gemm_block.h. */
#include "engine/kernels/gemm_block.h"

#include <assert.h>
#include <string.h>

/* The rest goes to the first tiles, one row each, so heights differ by at most one. */
struct rows gemm_cut_rows(size_t n, size_t mr)
{
    size_t tiles = (n + mr - 1) / mr;
    return (struct rows){ n, tiles, n / tiles, n % tiles };
}

/* Rows of one tile; their sum over all tiles is r->n. */
static size_t tile_rows(const struct rows *r, size_t tile)
{
    return r->height + (tile < r->taller);
}

size_t gemm_block_rows(size_t n, size_t mr)
{
    size_t blocks = (n + MB - 1) / MB, even = blocks ? (n + blocks - 1) / blocks : 1;
    return (even + mr - 1) / mr * mr;
}

void gemm_pack_left(const struct kernel_ops *ops, float *dst, struct operand a,
                    const struct rows *r, size_t K)
{
    assert(a.col == 1 || a.row == 1);
    if (r->n == 1 && a.col == 1) { /* lies as its tile reads it */
        memcpy(dst, a.p, K * sizeof *dst);
        return;
    }
    for (size_t t = 0, m = 0, mr; t < r->tiles; t++, m += mr) {
        mr = tile_rows(r, t);
        if (a.col == 1)
            ops->pack_rows(dst + m * KC, mr, a.p + m * a.row, a.row, K);
        else
            ops->pack_columns(dst + m * KC, mr, a.p + m, a.col, K);
    }
}

void gemm_round_left(const struct weight_ops *ops, uint16_t *dst, struct operand a, size_t n,
                     size_t K)
{
    size_t whole = (K + 15) / 16 * 16;
    float row[KC];
    for (size_t m = 0; m < n; m++) {
        memcpy(row, a.p + m * a.row, K * sizeof *row);
        memset(row + K, 0, (whole - K) * sizeof *row);
        ops->narrow(dst + m * KC, row, whole);
    }
}

/* Left and right are the caller's buffers, which must outlive the block. */
struct block gemm_f32_block(const struct kernel_ops *ops, const float *a, const float *b, size_t K,
                            size_t columns)
{
    return (struct block){
        .a = a,
        .a_row = KC * sizeof(float),
        .b = b,
        .ops = &ops->weights[PACKED_F32],
        .type = PACKED_F32,
        .K = K,
        .np = columns > NR ? 2 : 1,
        .columns = columns,
    };
}

/* Half the bytes per element of a, so that its rows lie closer. */
void gemm_take_pairs(struct block *b, const struct weight_ops *pairs, enum packed_dtype type)
{
    b->ops = pairs;
    b->type = type;
    b->a_row = KC * sizeof(uint16_t);
}

/* Tile number `tile` of `tiles` prefetches its share of the lines of all pieces. */
static void fetch_pieces(const struct fetch *f, size_t tile, size_t tiles)
{
    size_t per_piece = f->bytes / LINE, lines = f->pieces * per_piece;
    for (size_t i = lines * tile / tiles; i < lines * (tile + 1) / tiles; i++)
        __builtin_prefetch(f->at + i / per_piece * f->stride + i % per_piece * LINE, 0, 2);
}

/* mr rows from m of the packed left block times the right panels. */
static inline void run_tile(size_t m, size_t mr, const struct block *b, const struct tile_out *out)
{
    b->ops->tile(b->type, mr, b->np, b->K, (const char *)b->a + m * b->a_row, b->b, out);
}

/* A tile with fewer valid columns than its panels is computed at full width into a copy, so that
 * nothing is written beyond the output's edge.  Same sums, same bits. */
static void run_edge_tile(size_t m0, size_t mr, const struct block *b, const struct tile_out *out)
{
    float edge[MR_MAX * 2 * NR];
    struct tile_out through = { edge, 2 * NR, out->alpha, 0, out->fetch, out->lines };
    run_tile(m0, mr, b, &through);
    for (size_t m = 0; m < mr; m++)
        for (size_t n = 0; n < b->columns; n++) {
            float *y = &out->y[m * out->ldy + n];
            *y = out->add ? *y + edge[m * 2 * NR + n] : edge[m * 2 * NR + n];
        }
}

/* Keep this loop short: eight rows are only two tiles, and its overhead is measurable beside them. */
void gemm_run_tiles(const struct rows *r, const struct block *b, struct fetch f,
                    struct tile_out out)
{
    int whole = b->columns == b->np * NR;
    out.fetch = f.at;
    for (size_t t = 0, m = 0, mr; t < r->tiles; t++, m += mr) {
        mr = tile_rows(r, t);
        out.lines = t < f.tiles ? f.lines : 0;
        if (f.pieces > 0)
            fetch_pieces(&f, t, r->tiles);
        /* Nearly always: only the last panel of a matrix has an edge. */
        if (whole)
            run_tile(m, mr, b, &out);
        else
            run_edge_tile(m, mr, b, &out);
        out.y += mr * out.ldy;
        if (out.lines > 0)
            out.fetch += f.part;
    }
}

/* Decided by the tallest tile, since all tiles of a block share the panels. */
size_t gemm_panel_width(const struct kernel_ops *ops)
{
    return ops->wide >= ops->mr ? 2 * NR : NR;
}
