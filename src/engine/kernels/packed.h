/* packed.h - the layout of a packed weight matrix, shared by its few readers.
 *
 * W (O,C) is cut along C into blocks of KC and along O into panels of NR rows; a
 * block stores its panels one after the other, each as [k][16].  Forward reads that
 * from front to back; backward transposes 16x16 squares of it into scratch.  With
 * bfloat16 two neighboring k share a 32-bit word per column: [k/2][16][2].
 * Missing rows of the last panel (and the odd k) are zero. */
#ifndef ENGINE_KERNELS_PACKED_H
#define ENGINE_KERNELS_PACKED_H

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"

struct packed {
    size_t O, C, panels;
    enum packed_dtype type;
};

enum { PACKED_HEADER = 64 };

/* Bytes of an element. */
static inline size_t packed_element(enum packed_dtype type)
{
    return type == PACKED_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Length of the block that starts at c. */
static inline size_t packed_block(const struct packed *w, size_t c)
{
    return w->C - c < KC ? w->C - c : KC;
}

/* Offset in elements of panel p of the block that starts at c (a multiple of KC). */
static inline size_t packed_offset(const struct packed *w, size_t c, size_t p)
{
    size_t K = packed_block(w, c);
    if (w->type != PACKED_F32)
        K += K & 1;
    return c * w->panels * NR + p * K * NR;
}

/* Where panel p of the block that starts at c lies. */
static inline const void *packed_panel(const struct packed *w, size_t c, size_t p)
{
    return (const char *)w + PACKED_HEADER + packed_offset(w, c, p) * packed_element(w->type);
}

static inline const float *packed_f32(const struct packed *w, size_t c, size_t p)
{
    return packed_panel(w, c, p);
}

static inline const uint16_t *packed_bf16(const struct packed *w, size_t c, size_t p)
{
    return packed_panel(w, c, p);
}

#endif
