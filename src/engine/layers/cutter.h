/* cutter.h - pieces of one block of memory, each at the beginning of a cache line.
 *
 * A layout is written once: without memory it only counts, so that sizes and pointers cannot
 * differ. */
#ifndef ENGINE_CUTTER_H
#define ENGINE_CUTTER_H

#include <stddef.h>

struct cutter {
    float *memory; /* NULL: count only */
    size_t used;   /* floats */
};

/* The next n floats; NULL without memory. */
static inline float *cutter_take(struct cutter *c, size_t n)
{
    enum { ALIGN_FLOATS = 16 };
    float *p = c->memory ? c->memory + c->used : NULL;
    c->used += (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return p;
}

#endif
