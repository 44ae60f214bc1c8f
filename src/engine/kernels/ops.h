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
 * tile_f32 only, LINES_SLOW. */
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

/* What a matrix unit provides: whole products of bfloat16 weights instead of tiles, with the
 * semantics of gemm_forward(), gemm_left() and so on in kernels.h. */
struct matrix_ops {
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
};

struct kernel_ops {
    const char *name;
    size_t mr;   /* tallest tile, <= MR_MAX */
    size_t wide; /* tallest tile that takes two panels at once */
    /* out (mr,16*np) (+)= alpha * sum over K of a [K][mr] b [np][K][16], np is 1 or 2 */
    void (*tile_f32)(size_t mr, size_t np, size_t K, const float *a, const float *b,
                     const struct tile_out *out);
    /* The same with b as bfloat16 pairs [np][ceil(K/2)][16][2]; same bits as widening first. */
    void (*tile_bf16)(size_t mr, size_t np, size_t K, const float *a, const uint16_t *b,
                      const struct tile_out *out);
    /* dst [K][16] = bfloat16 pairs [ceil(K/2)][16][2] */
    void (*widen)(float *dst, const uint16_t *b, size_t K);
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
    /* NULL, or: round n (a multiple of 16) values, and the tile on rounded pairs [mr][KC] */
    void (*narrow)(uint16_t *dst, const float *src, size_t n);
    void (*tile_pairs)(size_t mr, size_t np, size_t K, const uint16_t *a, const uint16_t *b,
                       const struct tile_out *out);
    const struct matrix_ops *matrix; /* NULL, or what bfloat16 weights take instead of tiles */
    const struct attn_ops *attn;     /* attn.h */
    const struct vec_ops *vec;       /* vec.h */
};

extern const struct kernel_ops kernels_plain; /* portable C, on every machine */

const struct kernel_ops *kernels_ops(void); /* the chosen ones */

#endif
