/* packed.h - the layout of a packed weight matrix, shared by its few readers.
 *
 * W (O,C) is cut along C into blocks of KC and along O into panels of NR rows; a
 * block stores its panels one after the other.  Forward reads that from front to back;
 * backward turns 16x16 squares of it in scratch.  A panel of K inputs is
 *
 *     float32    [k][16]
 *     bfloat16   [k/2][16][2]     two neighboring k share a 32-bit word per column
 *     quantized  scales, then codes: 8 bits [k/4][16][4], 4 bits [k/8][16][4]
 *
 * so that 32-bit words of 16 columns always lie side by side.  Four 8-bit codes of a column fill
 * its word, which is what an int8 dot product (VNNI, AMX) reads; a word of 4-bit codes has inputs
 * 0 to 3 in the low and 4 to 7 in the high halves of its bytes, so that one mask, or a shift and a
 * mask, gives the same.  Quantized panels are padded to 32 inputs.  Missing rows of the last panel
 * and missing inputs are zero. */
#ifndef ENGINE_KERNELS_PACKED_H
#define ENGINE_KERNELS_PACKED_H

#include <stdbool.h>
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"

struct packed {
    size_t O, C, panels;
    enum packed_dtype type;
};

enum { PACKED_HEADER = 64, QUANT_BLOCK = 32, QUANT_BLOCKS = KC / QUANT_BLOCK };

/* What a quantized format says: w = scale * value(code), less a minimum where it has one.
 * Scales before the codes are
 *
 *     plain    scale [K/32][16]             16 bits each: float16, or bfloat16 for MXFP4
 *     super    d [16], dmin [16] float16;  sub [K/block][16], then with min mins [K/32][16], bytes:
 *              scale = d * sub, min = dmin * mins */
struct quant_format {
    uint8_t bits;    /* of a code: 8, signed; or 4, an index into values */
    uint8_t block;   /* inputs that share a scale: 16 or 32 */
    bool super, min; /* as above; min only with super */
    bool sub_signed; /* sub is signed */
    bool brain;      /* plain scales are bfloat16 */
    uint8_t values;  /* 4 bits: which row of quant_values */
};
enum { VALUES_MINUS_8, VALUES_FROM_0, VALUES_E2M1, VALUES };
extern const float quant_values[VALUES][16];

/* A switch and no table: where type is a constant, so is the result. */
static inline __attribute__((always_inline)) struct quant_format
quant_format(enum packed_dtype type)
{
    switch (type) {
    case PACKED_Q8_0:
    case PACKED_Q8_0_INT8:
        return (struct quant_format){ .bits = 8, .block = 32 };
    case PACKED_Q4_0:
    case PACKED_Q4_0_INT8:
        return (struct quant_format){ .bits = 4, .block = 32, .values = VALUES_MINUS_8 };
    case PACKED_Q4_K:
        return (struct quant_format){
            .bits = 4, .block = 32, .super = true, .min = true, .values = VALUES_FROM_0
        };
    case PACKED_Q5_K:
        return (struct quant_format){ .bits = 8, .block = 32, .super = true, .min = true };
    case PACKED_Q6_K:
        return (struct quant_format){ .bits = 8, .block = 16, .super = true, .sub_signed = true };
    case PACKED_MXFP4:
        return (
            struct quant_format){ .bits = 4, .block = 32, .brain = true, .values = VALUES_E2M1 };
    default:
        return (struct quant_format){ 0 };
    }
}

/* Bytes of the scales of a quantized panel: codes begin at a cache line. */
static inline __attribute__((always_inline)) size_t quant_scales(struct quant_format f, size_t K)
{
    size_t blocks = (K + QUANT_BLOCK - 1) / QUANT_BLOCK, bytes = blocks * NR * sizeof(uint16_t);
    if (f.super)
        bytes = 2 * NR * sizeof(uint16_t) + blocks * NR * (QUANT_BLOCK / f.block + f.min);
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Bytes of a panel of K inputs. */
static inline size_t packed_panel_bytes(enum packed_dtype type, size_t K)
{
    struct quant_format f = quant_format(type);
    if (type == PACKED_F32)
        return K * NR * sizeof(float);
    if (f.bits == 0)
        return (K + (K & 1)) * NR * sizeof(uint16_t);
    return quant_scales(f, K) + (K + QUANT_BLOCK - 1) / QUANT_BLOCK * QUANT_BLOCK * NR * f.bits / 8;
}

/* Length of the block that starts at c. */
static inline size_t packed_block(const struct packed *w, size_t c)
{
    return w->C - c < KC ? w->C - c : KC;
}

/* Where panel p of the block that starts at c (a multiple of KC) lies, in bytes after the header. */
static inline size_t packed_offset(const struct packed *w, size_t c, size_t p)
{
    return c / KC * w->panels * packed_panel_bytes(w->type, KC) +
           p * packed_panel_bytes(w->type, packed_block(w, c));
}

static inline const void *packed_panel(const struct packed *w, size_t c, size_t p)
{
    return (const char *)w + PACKED_HEADER + packed_offset(w, c, p);
}

/* Where in a panel of K inputs the words of inputs from k on lie, k a multiple of NR, and the bytes
 * of NR inputs there. */
static inline size_t packed_square(enum packed_dtype type, size_t K, size_t k, size_t *bytes)
{
    struct quant_format f = quant_format(type);
    size_t bits = f.bits ? f.bits : type == PACKED_F32 ? 32 : 16;
    *bytes = NR * NR * bits / 8;
    return (f.bits ? quant_scales(f, K) : 0) + k / NR * *bytes;
}

static inline const uint16_t *packed_bf16(const struct packed *w, size_t c, size_t p)
{
    return packed_panel(w, c, p);
}

#endif
