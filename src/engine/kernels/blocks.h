/* blocks.h - weights as they lie in files: plain numbers, and the block formats of GGUF.
 *
 * A block holds 32 or 256 neighboring weights of a row as small codes with shared scales.
 * source_to_float() is what the numbers mean, for every reader in the engine: its products are
 * rounded in the order that gives the bits of the reference implementation.  blocks_unpack() gives
 * the same block as codes and scales, for formats that are computed with as they are. */
#ifndef ENGINE_KERNELS_BLOCKS_H
#define ENGINE_KERNELS_BLOCKS_H

#include <stdbool.h>
#include "engine/kernels/kernels.h"

enum { BLOCK_MAX = 256, BLOCK_BYTES_MAX = 256 };

const char *source_name(enum source_dtype dtype); /* "F32", "Q4_K" */
size_t source_block(enum source_dtype dtype);     /* weights of a block; 1: plain numbers */
/* Bytes of n weights, n a multiple of the block. */
size_t source_bytes(enum source_dtype dtype, size_t n);
/* out[0..n) = weights [first, first + n) of a tensor, at any address.  Any range will do. */
void source_to_float(float *out, const void *data, enum source_dtype dtype, size_t first, size_t n);
/* Whether all scales of n weights are finite: a file can say otherwise, and one NaN spreads. */
bool source_is_finite(const void *data, enum source_dtype dtype, size_t n);

/* Up to 256 neighboring weights of a row; 32 of them share an entry of scale, or of mins and of sub
 * (in Q6_K 16 of sub).  packed.h says what they mean. */
struct block_codes {
    uint8_t code[BLOCK_MAX];
    uint16_t scale[BLOCK_MAX / 32]; /* plain */
    uint16_t d, dmin;               /* super */
    uint8_t sub[BLOCK_MAX / 16], mins[BLOCK_MAX / 32];
};
/* Weights [first, first + n) of a row, both multiples of the block, n <= 256, of a format that
 * packed_native() keeps in blocks. */
void blocks_unpack(struct block_codes *out, const void *row, enum source_dtype dtype, size_t first,
                   size_t n);

/* Quantize n weights, a multiple of the block, to Q8_0, Q4_0, Q5_0, Q4_K or Q6_K.  `search`: for
 * Q4_0, try several scales for each block and keep the one with the least squared error. */
void blocks_quantize(void *out, enum source_dtype dtype, const float *w, size_t n, bool search);

#endif
