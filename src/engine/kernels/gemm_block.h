/* gemm_block.h - one block of a product: its rows, its packed left operand, and the tiles over it.
 *
 * What products with packed weights (gemm.c) and dense products (gemm_dense.c) share. */
#ifndef ENGINE_KERNELS_GEMM_BLOCK_H
#define ENGINE_KERNELS_GEMM_BLOCK_H

#include "engine/kernels/ops.h"
#include "engine/kernels/packed.h"

/* Floats of a packed left block; pack_rows() may spill 8 behind its end (see ops.h). */
enum { LEFT = MB * KC + 8 };

/* The rows of one block, cut into tiles of nearly equal height, the taller ones first: 8 rows
 * with tiles of at most 6 are 4 + 4, because 6 + 2 would leave the second tile waiting for the
 * latency of its multiply-adds. */
struct rows {
    size_t n, tiles, height, taller; /* `taller` tiles have height + 1 rows */
};

/* n rows in tiles of at most mr. */
struct rows gemm_cut_rows(size_t n, size_t mr);
/* Rows of a block: at most MB, whole tiles, and no small rest in the last block. */
size_t gemm_block_rows(size_t n, size_t mr);

/* dst: for every tile, at (its first row) * KC, its rows of a, columns [0, K), as [K][mr]: a tile
 * then reads one contiguous stream, mr values per k. */
void gemm_pack_left(const struct kernel_ops *ops, float *dst, struct operand a,
                    const struct rows *r, size_t K);
/* dst [n][KC] = rows of a rounded to bfloat16; the odd last value meets a zero. */
void gemm_round_left(const struct weight_ops *ops, uint16_t *dst, struct operand a, size_t n,
                     size_t K);

/* One block of a product: a packed left operand, and panels of weights with the kernels of their
 * format.  Panels that were expanded are float32, whatever the weights are. */
struct block {
    const void *a;
    size_t a_row; /* bytes of a row of a, KC elements */
    const void *b;
    const struct weight_ops *ops;
    enum packed_dtype type;
    size_t K, np, columns; /* panels side by side, valid columns in them */
};
/* A block of two operands that both are float32, or turned into it. */
struct block gemm_f32_block(const struct kernel_ops *ops, const float *a, const float *b, size_t K,
                            size_t columns);
/* The same block with operands that are rounded, see struct weight_ops.narrow. */
void gemm_take_pairs(struct block *b, const struct weight_ops *pairs, enum packed_dtype type);

/* What the tiles of a block prefetch, because the next block will read it.  A contiguous piece is
 * prefetched while tiles run, `lines` (see ops.h) by each of the first `tiles`; scattered pieces
 * are prefetched before each tile. */
struct fetch {
    const char *at;
    size_t lines, tiles, part;    /* part: bytes that one tile prefetches */
    size_t pieces, bytes, stride; /* scattered ones, else 0 */
};
/* All row tiles against one block. */
void gemm_run_tiles(const struct rows *r, const struct block *b, struct fetch f,
                    struct tile_out out);

/* Columns that backward and dense products take at once: two panels if every tile has registers for
 * them. */
size_t gemm_panel_width(const struct kernel_ops *ops);

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A left operand (N,K) that is packed once for all slices of columns: for every block of `step` rows
 * its blocks of the summed index, each followed by room for what packing spills. */
enum { SPILL = 16 };

static inline size_t gemm_k_blocks(size_t K)
{
    return (K + KC - 1) / KC;
}

/* Its floats. */
static inline size_t gemm_left_size(size_t N, size_t K, size_t step)
{
    return gemm_k_blocks(K) * (N * KC + (N + step - 1) / step * SPILL);
}

/* Where the block of rows m, a multiple of step, and of the summed index k lies. */
static inline size_t gemm_left_offset(size_t N, size_t K, size_t step, size_t m, size_t k)
{
    size_t before = gemm_k_blocks(K) * (m * KC + m / step * SPILL);
    return before + k / KC * (min_size(N - m, step) * KC + SPILL);
}

#endif
