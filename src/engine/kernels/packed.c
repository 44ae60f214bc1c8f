/* packed.c - lay a weight matrix out once for the products of its whole life. */
#include "engine/kernels/packed.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof(struct packed) <= PACKED_HEADER, "the data starts after the header");

float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        bits = sign;
    } else {
        uint32_t e = 113;
        while ((mantissa & 0x400) == 0) {
            mantissa <<= 1;
            e--;
        }
        bits = sign | e << 23 | (mantissa & 0x3ff) << 13;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float f32_from_bf16(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t bf16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays a NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t packed_bytes(enum packed_dtype type, size_t O, size_t C)
{
    struct packed w = { O, C, (O + NR - 1) / NR, type };
    size_t last = C % KC;
    size_t elements = packed_offset(&w, C - last, 0);
    if (last > 0)
        elements += w.panels * NR * (type == PACKED_BF16 ? last + (last & 1) : last);
    return PACKED_HEADER + elements * (type == PACKED_BF16 ? sizeof(uint16_t) : sizeof(float));
}

/* Place of element (o, c) among the elements. */
static size_t place(const struct packed *w, size_t o, size_t c)
{
    size_t k = c % KC;
    size_t base = packed_offset(w, c - k, o / NR);
    if (w->type == PACKED_BF16)
        return base + (k / 2 * NR + o % NR) * 2 + (k & 1);
    return base + k * NR + o % NR;
}

static void store_row(struct packed *w, size_t o, const void *row, enum source_dtype source)
{
    void *data = (char *)w + PACKED_HEADER;
    for (size_t c = 0; c < w->C; c++) {
        size_t at = place(w, o, c);
        if (w->type == PACKED_BF16 && source == SOURCE_BF16) {
            ((uint16_t *)data)[at] = ((const uint16_t *)row)[c];
            continue;
        }
        float v = source == SOURCE_F32   ? ((const float *)row)[c]
                  : source == SOURCE_F16 ? f32_from_f16(((const uint16_t *)row)[c])
                                         : f32_from_bf16(((const uint16_t *)row)[c]);
        if (w->type == PACKED_BF16)
            ((uint16_t *)data)[at] = bf16_from_f32(v);
        else
            ((float *)data)[at] = v;
    }
}

struct packed *packed_init(void *mem, enum packed_dtype type, const void *w,
                           enum source_dtype source, size_t O, size_t C)
{
    assert((uintptr_t)mem % 64 == 0);
    struct packed *p = mem;
    memset(mem, 0, packed_bytes(type, O, C));
    p->O = O;
    p->C = C;
    p->panels = (O + NR - 1) / NR;
    p->type = type;
    size_t row = C * (source == SOURCE_F32 ? sizeof(float) : sizeof(uint16_t));
    for (size_t o = 0; o < O; o++)
        store_row(p, o, (const char *)w + o * row, source);
    return p;
}

void packed_row(float *out, const struct packed *w, size_t o)
{
    const void *data = (const char *)w + PACKED_HEADER;
    for (size_t c = 0; c < w->C; c++) {
        size_t at = place(w, o, c);
        out[c] = w->type == PACKED_BF16 ? f32_from_bf16(((const uint16_t *)data)[at])
                                        : ((const float *)data)[at];
    }
}
