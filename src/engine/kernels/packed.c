/* packed.c - pack a weight matrix, once, at load time; and the 16-bit float formats.
 *
 * packed.h describes the layout.  Packing is a transpose: rows of 16 outputs become 16 columns
 * side by side.  Threads may fill disjoint ranges of rows at the same time. */
#include "engine/kernels/packed.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof(struct packed) <= PACKED_HEADER, "the data starts after the header");

/* IEEE 754 half precision: 1 sign, 5 exponent (bias 15), 10 mantissa bits; float32 has a bias
 * of 127, so a normal exponent grows by 112.  Every half is exact as float32. */
float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 31) { /* infinity or NaN */
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        bits = sign;
    } else { /* subnormal: shift the leading 1 into its implied place */
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

/* bfloat16 is the upper half of a float32. */
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
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN whose upper half is 0 must stay one */
    /* half a unit, or just less where the kept part is even: ties go to even */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t packed_bytes(enum packed_dtype type, size_t O, size_t C)
{
    struct packed w = { O, C, (O + NR - 1) / NR, type };
    size_t last = C % KC;
    size_t elements = packed_offset(&w, C - last, 0);
    if (last > 0)
        elements += w.panels * NR * (type == PACKED_F32 ? last : last + (last & 1));
    return PACKED_HEADER + elements * packed_element(type);
}

/* bfloat16 to float32.  Loading a model is mostly this loop, so it uses vectors, in the portable
 * form of gcc and clang. */
static void widen_row(float *dst, const uint16_t *src, size_t n)
{
    typedef uint16_t half8 __attribute__((vector_size(16)));
    typedef uint32_t word8 __attribute__((vector_size(32)));
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        half8 half;
        memcpy(&half, src + i, sizeof half);
        word8 word = __builtin_convertvector(half, word8) << 16;
        memcpy(dst + i, &word, sizeof word);
    }
    for (; i < n; i++)
        dst[i] = f32_from_bf16(src[i]);
}

/* Elements [c, c + n) of a row of the source as float32; read_bf16() gives them as bfloat16,
 * rounded to nearest unless the source is bfloat16 already. */
static void read_f32(float *dst, const void *row, enum source_dtype source, size_t c, size_t n)
{
    if (source == SOURCE_F32) {
        memcpy(dst, (const float *)row + c, n * sizeof *dst);
        return;
    }
    const uint16_t *from = (const uint16_t *)row + c;
    if (source == SOURCE_BF16) {
        widen_row(dst, from, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_from_f16(from[i]);
}

static void read_bf16(uint16_t *dst, const void *row, enum source_dtype source, size_t c, size_t n)
{
    if (source == SOURCE_BF16) {
        memcpy(dst, (const uint16_t *)row + c, n * sizeof *dst);
        return;
    }
    float wide[KC];
    read_f32(wide, row, source, c, n);
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(wide[i]);
}

/* One panel of the block at c.  Its rows are gathered first and then transposed by
 * words of 32 bits: one float32, or two neighboring bfloat16. */
static void fill_panel(struct packed *w, const void *source_data, enum source_dtype source,
                       size_t c, size_t panel)
{
    const struct kernel_ops *ops = kernels_ops();
    float words[NR * KC];
    size_t K = packed_block(w, c), rows = w->O - panel * NR < NR ? w->O - panel * NR : NR;
    size_t half = w->type != PACKED_F32, n = half ? (K + 1) / 2 : K;
    size_t row = w->C * (source == SOURCE_F32 ? sizeof(float) : sizeof(uint16_t));
    /* missing rows and the odd k are stored as zero */
    if (rows < NR || n % 8 != 0 || (half && K % 2 != 0))
        memset(words, 0, sizeof words);
    for (size_t i = 0; i < rows; i++) {
        const void *from = (const char *)source_data + (panel * NR + i) * row;
        if (half)
            read_bf16((uint16_t *)(words + i * KC), from, source, c, K);
        else
            read_f32(words + i * KC, from, source, c, K);
    }
    float *dst = (float *)((char *)w + PACKED_HEADER) +
                 (half ? packed_offset(w, c, panel) / 2 : packed_offset(w, c, panel));
    /* transpose() takes multiples of 8; the last words of a short block go one by one */
    size_t whole = n / 8 * 8;
    ops->transpose(dst, NR, words, KC, NR, whole);
    for (size_t k = whole; k < n; k++)
        for (size_t i = 0; i < NR; i++)
            memcpy(dst + k * NR + i, words + i * KC + k, sizeof *dst);
}

struct packed *packed_begin(void *mem, enum packed_dtype type, size_t O, size_t C)
{
    assert((uintptr_t)mem % 64 == 0);
    struct packed *p = mem;
    memset(mem, 0, PACKED_HEADER);
    *p = (struct packed){ O, C, (O + NR - 1) / NR, type };
    return p;
}

void packed_fill(struct packed *p, const void *w, enum source_dtype source, size_t begin,
                 size_t end)
{
    assert(begin % NR == 0 && end <= p->O);
    for (size_t c = 0; c < p->C; c += KC)
        for (size_t o = begin; o < end; o += NR)
            fill_panel(p, w, source, c, o / NR);
}

struct packed *packed_init(void *mem, enum packed_dtype type, const void *w,
                           enum source_dtype source, size_t O, size_t C)
{
    struct packed *p = packed_begin(mem, type, O, C);
    packed_fill(p, w, source, 0, O);
    return p;
}

void packed_row(float *out, const struct packed *w, size_t o)
{
    const void *data = (const char *)w + PACKED_HEADER;
    for (size_t c = 0; c < w->C; c++) {
        size_t k = c % KC, at = packed_offset(w, c - k, o / NR);
        if (w->type == PACKED_F32)
            at += k * NR + o % NR;
        else
            at += (k / 2 * NR + o % NR) * 2 + (k & 1);
        out[c] = w->type == PACKED_F32 ? ((const float *)data)[at]
                                       : f32_from_bf16(((const uint16_t *)data)[at]);
    }
}
