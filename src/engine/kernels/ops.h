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
    MB = 192     /* rows that share one packed copy of their left operand */
};

/* Where a tile goes: row stride, sum added to what is there or stored, scale. */
struct tile_out {
    float *y;
    size_t ldy;
    float alpha;
    int add;
};

struct kernel_ops {
    const char *name;
    size_t mr;     /* tallest tile, <= MR_MAX */
    size_t panels; /* side by side in a product of many tiles: what L1 holds */
    /* out (mr,16*np) (+)= alpha * sum over K of a [mr][KC] b [np][K][16], np is 1 or 2 */
    void (*tile_f32)(size_t mr, size_t np, size_t K, const float *a, const float *b,
                     const struct tile_out *out);
    /* The same with b as bfloat16 pairs [np][ceil(K/2)][16][2]; same bits as widening first. */
    void (*tile_bf16)(size_t mr, size_t np, size_t K, const float *a, const uint16_t *b,
                      const struct tile_out *out);
    /* dst [K][16] = bfloat16 pairs [ceil(K/2)][16][2] */
    void (*widen)(float *dst, const uint16_t *b, size_t K);
    /* dst [8][ldd] = transpose of src [8][lds] */
    void (*transpose)(float *dst, size_t ldd, const float *src, size_t lds);
    /* NULL, or: round n (a multiple of 16) values, and the tile on rounded pairs */
    void (*narrow)(uint16_t *dst, const float *src, size_t n);
    void (*tile_pairs)(size_t mr, size_t np, size_t K, const uint16_t *a, const uint16_t *b,
                       const struct tile_out *out);
};

extern const struct kernel_ops kernels_plain, kernels_avx2, kernels_avx512;
void kernels_avx512bf16_fill(struct kernel_ops *ops); /* what VDPBF16PS replaces */

const struct kernel_ops *kernels_ops(void); /* the chosen ones */

#endif
