/* ops.h - what one instruction set provides, and the sizes that fix the order of sums.
 *
 * Every product in the engine is cut the same way: the summed index runs in blocks
 * of KC, a block is one chain of multiply-adds in ascending order from zero, and the
 * blocks' sums are added to the output in ascending order.  Nothing else decides the
 * bits of an output element, so neither the number of rows, the slice, the tile
 * shape nor the thread count can change them. */
#ifndef ENGINE_KERNELS_OPS_H
#define ENGINE_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>
#include "engine/kernels/kernels.h"

enum {
    NR = 16,     /* columns of a panel */
    KC = 256,    /* length of a summation block; even, and a multiple of NR */
    MR_MAX = 14, /* rows of the tallest tile of any instruction set */
    MB = 192,    /* rows that share one packed copy of their left operand */
    STEPS = 2,   /* of the summed index between two prefetches */
    SLOW = 8,    /* the same for tiles that prefetch slowly */
    LINE = 64    /* bytes of a cache line */
};
enum { LINES_SLOW = 5 }; /* special value of tile_out.lines: one line per SLOW */

/* Where the sums of a tile go: rows ldy apart, times alpha, added to what is there or stored.  And
 * what to prefetch for a later tile: `lines` cache lines from `fetch` on per STEPS, 0 to 4, or, in
 * float32 tiles only, LINES_SLOW. */
struct tile_out {
    float *y;
    size_t ldy;
    float alpha;
    int add;
    const char *fetch;
    size_t lines;
};

struct attn_ops;
struct packed;
struct vec_ops;

/* A row of the left operand in 8 bits, as many inputs as a block of the summed index has: x is near
 * scale * code.  Codes of weights are unsigned in the products, w + offset, so that a sum starts from
 * -offset times the sum of the row's codes. */
enum { INT8_BLOCK = 32, INT8_BLOCKS = KC / INT8_BLOCK };
struct int8_row {
    float scale[INT8_BLOCKS];
    int32_t start[INT8_BLOCKS];
    int8_t code[KC];
};

/* One operand seen as element [i][k] at p[i*row + k*col], k being the summed index.  One of row and
 * col is 1; which one says whether the matrix is stored transposed. */
struct operand {
    const float *p;
    size_t row, col;
};

/* y (.,J) (+)= alpha * a b^T over K, both operands unpacked.  pairs is NULL, or rounds both operands
 * to bfloat16 and multiplies them in pairs; the columns of b lie beside each other then. */
struct dense {
    float *y;
    size_t J, K;
    struct operand a, b;
    float alpha;
    int accumulate;
    const struct weight_ops *pairs;
};

/* The rows and columns of the output that a call computes. */
struct part {
    size_t row, row_end, column, column_end;
};

/* What a matrix unit provides: whole products with weights instead of tiles, with the
 * semantics of gemm_forward(), gemm_left() and so on in kernels.h. */
struct matrix_ops {
    bool rounds; /* the other factor, to bfloat16 */
    size_t (*left_floats)(size_t N, size_t K);
    size_t (*left_units)(size_t N, size_t K);
    void (*left)(float *left, const float *x, size_t ld, size_t N, size_t K, size_t begin,
                 size_t end);
    void (*forward)(float *y, const float *x, const struct packed *w, size_t N, int accumulate,
                    size_t begin, size_t end);
    void (*forward_left)(float *y, const float *left, const struct packed *w, size_t N,
                         int accumulate, size_t from, size_t to, size_t begin, size_t end);
    void (*backward)(float *dx, const float *dy, const struct packed *w, size_t N, int accumulate,
                     size_t begin, size_t end);
    void (*backward_left)(float *dx, const float *left, const struct packed *w, size_t N,
                          int accumulate, size_t from, size_t to, size_t begin, size_t end);
    /* NULL, or: one part of d->y with both factors rounded, K at least 1; the columns of b lie
     * beside each other. */
    void (*dense)(const struct dense *d, struct part part);
};

/* What a set of kernels does with weights of one format. */
struct weight_ops {
    /* out (mr,16*np) (+)= alpha * sum over K of a [K][mr] with np (1 or 2) panels of K inputs from b
     * on, mr at most `rows`; same bits as expanding first.  Taller tiles expand the panels and are
     * those of float32, so that `rows` 0, and no tile, is enough for a format. */
    size_t rows;
    void (*tile)(enum packed_dtype type, size_t mr, size_t np, size_t K, const void *a,
                 const void *b, const struct tile_out *out);
    /* dst [n][16] = inputs [k, k + n) of a panel of K inputs as float32; k is a multiple of 16, and
     * quantized formats fill up to the next multiple of 16 rows. */
    void (*expand)(float *dst, enum packed_dtype type, const void *panel, size_t K, size_t k,
                   size_t n);
    /* NULL, or: tiles take rows [mr][KC] of 16 bits, which this rounds, n a multiple of 16, in the
     * place of a [K][mr], and panels of pairs in both directions */
    void (*narrow)(uint16_t *dst, const float *src, size_t n);
    /* With narrow: dst [8][16][2] = src [8][16][2] transposed, a square of weights whose pairs are
     * neighbors in the input, as pairs that are neighbors in the output */
    void (*transpose_pairs)(uint16_t *dst, const uint16_t *src);
    /* With narrow: dst [K/2][16][2] = src [K][16; rows ld apart], rounded, K even: what the two
     * factors of a gradient are multiplied as */
    void (*pair_rows)(uint16_t *dst, const float *src, size_t ld, size_t K);
    /* NULL, or: tiles of forward products take struct int8_row [mr] in the place of a [K][mr], which
     * this makes of K inputs; `rows` is then that of the tallest tile. */
    void (*quantize)(struct int8_row *dst, enum packed_dtype type, const float *src, size_t K);
    const struct matrix_ops *matrix; /* NULL, or what takes the whole product */
};

struct kernel_ops {
    const char *name;
    size_t mr;   /* tallest tile, <= MR_MAX */
    size_t wide; /* tallest tile that takes two panels at once */
    struct weight_ops weights[PACKED_TYPES];
    /* dst [cols][ldd] = transpose of src [rows][lds]; rows and cols are multiples of 8 */
    void (*transpose)(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                      size_t cols);
    /* dst [K][mr] = src [mr][lds] transposed, or columns [0, mr) of src [K][lds]; the 8 floats
     * after dst may be overwritten. */
    void (*pack_rows)(float *dst, size_t mr, const float *src, size_t lds, size_t K);
    void (*pack_columns)(float *dst, size_t mr, const float *src, size_t lds, size_t K);
    /* NULL, or: y (16) (+)= alpha * sum over K of x [K] w [16][ldw], K a multiple of 8 */
    void (*row)(float *y, const float *x, const float *w, size_t ldw, size_t K, float alpha,
                int add);
    const struct attn_ops *attn; /* attn.h */
    const struct vec_ops *vec;   /* vec.h */
};

extern const struct kernel_ops kernels_plain; /* portable C, on every machine */

const struct kernel_ops *kernels_ops(void); /* the chosen ones */

#endif
