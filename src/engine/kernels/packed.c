/* packed.c - pack a weight matrix, once, at load time; and the 16-bit float formats.
 *
 * packed.h describes the layout.  Packing is a transpose: rows of 16 outputs become 16 columns
 * side by side.  Threads may fill disjoint ranges of rows at the same time. */
#include "engine/kernels/packed.h"

#include <assert.h>
#include <string.h>
#include "engine/kernels/blocks.h"

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

/* The way back: 8 exponent bits become 5, 23 fraction bits 10. */
uint16_t f16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NAN stays one, quiet */
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 aligns and rounds the fraction */
        float aligned;
        memcpy(&aligned, &magnitude, sizeof aligned);
        aligned += 0.5f;
        memcpy(&bits, &aligned, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    /* add half of the last kept bit, or a little less when that bit is 0: ties go to even; then
     * move the exponent's bias from 127 to 15 */
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
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

/* In the order of enum source_dtype.  Q5_0 has the scales of Q8_0 and fits its codes; numbers of
 * float16, and the two formats with a minimum of their own in each block, become float32. */
enum packed_dtype packed_native(enum source_dtype source)
{
    static const enum packed_dtype native[SOURCE_TYPES] = {
        [SOURCE_F32] = PACKED_F32,   [SOURCE_F16] = PACKED_F32,   [SOURCE_BF16] = PACKED_BF16,
        [SOURCE_Q8_0] = PACKED_Q8_0, [SOURCE_Q4_0] = PACKED_Q4_0, [SOURCE_Q4_1] = PACKED_F32,
        [SOURCE_Q5_0] = PACKED_Q8_0, [SOURCE_Q5_1] = PACKED_F32,  [SOURCE_Q4_K] = PACKED_Q4_K,
        [SOURCE_Q5_K] = PACKED_Q5_K, [SOURCE_Q6_K] = PACKED_Q6_K, [SOURCE_MXFP4] = PACKED_MXFP4,
    };
    return native[source];
}

const char *packed_name(enum packed_dtype type)
{
    static const char *const names[PACKED_TYPES] = {
        [PACKED_F32] = "f32",        [PACKED_BF16] = "bf16",      [PACKED_BF16_PAIRS] = "bf16",
        [PACKED_Q8_0] = "q8_0",      [PACKED_Q4_0] = "q4_0",      [PACKED_Q4_K] = "q4_k",
        [PACKED_Q5_K] = "q5_k",      [PACKED_Q6_K] = "q6_k",      [PACKED_MXFP4] = "mxfp4",
        [PACKED_Q8_0_INT8] = "q8_0", [PACKED_Q4_0_INT8] = "q4_0",
    };
    return names[type];
}

size_t packed_bytes(enum packed_dtype type, size_t O, size_t C)
{
    struct packed w = { O, C, (O + NR - 1) / NR, type };
    size_t last = C % KC;
    return PACKED_HEADER + packed_offset(&w, C - last, 0) +
           (last ? w.panels * packed_panel_bytes(type, last) : 0);
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
    if (source == SOURCE_BF16)
        widen_row(dst, (const uint16_t *)row + c, n);
    else
        source_to_float(dst, row, source, c, n);
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

/* GGUF's row of a row of the matrix, where a head's halves are interleaved. */
size_t packed_source_row(size_t pairs, size_t o)
{
    if (pairs == 0)
        return o;
    size_t head = o / pairs, in = o % pairs, half = pairs / 2;
    return head * pairs + in % half * 2 + in / half;
}

static const void *source_row(const struct packed *w, const struct packed_source *from, size_t o)
{
    return (const char *)from->data +
           packed_source_row(from->pairs, o) * source_bytes(from->dtype, w->C);
}

/* The format with the same numbers whose products round nothing. */
static enum packed_dtype exact_format(enum packed_dtype type)
{
    return type == PACKED_Q8_0_INT8 ? PACKED_Q8_0 : type == PACKED_Q4_0_INT8 ? PACKED_Q4_0 : type;
}

/* Codes and scales of inputs [c, c + K) of a row: those of the source where it has the same format,
 * else numbers are quantized, the last block filled up with zeros. */
static void read_codes(struct block_codes *codes, const struct packed *w,
                       const struct packed_source *from, size_t o, size_t c, size_t K)
{
    const void *row = source_row(w, from, o);
    if (packed_native(from->dtype) == exact_format(w->type)) {
        blocks_unpack(codes, row, from->dtype, c, K);
        return;
    }
    assert(exact_format(w->type) == PACKED_Q8_0 || exact_format(w->type) == PACKED_Q4_0);
    enum source_dtype to = exact_format(w->type) == PACKED_Q8_0 ? SOURCE_Q8_0 : SOURCE_Q4_0;
    size_t padded = (K + QUANT_BLOCK - 1) / QUANT_BLOCK * QUANT_BLOCK;
    float wide[KC] = { 0 };
    uint8_t blocks[QUANT_BLOCKS * 34];
    read_f32(wide, row, from->dtype, c, K);
    blocks_quantize(blocks, to, wide, padded, true);
    blocks_unpack(codes, blocks, to, 0, padded);
}

/* Writes row i of a panel's scales, then its codes. */
static void put_codes(uint8_t *panel, const struct quant_format f, size_t i, size_t K,
                      const struct block_codes *c)
{
    size_t blocks = (K + QUANT_BLOCK - 1) / QUANT_BLOCK, subs = blocks * (QUANT_BLOCK / f.block);
    uint8_t *codes = panel + quant_scales(f, K), *bytes = panel + 4 * NR;
    if (f.super) {
        memcpy(panel + 2 * i, &c->d, 2);
        memcpy(panel + 2 * (NR + i), &c->dmin, 2);
        for (size_t b = 0; b < subs; b++)
            bytes[b * NR + i] = c->sub[b];
        for (size_t b = 0; f.min && b < blocks; b++)
            bytes[(subs + b) * NR + i] = c->mins[b];
    } else {
        for (size_t b = 0; b < blocks; b++)
            memcpy(panel + 2 * (b * NR + i), &c->scale[b], 2);
    }
    if (f.bits == 8) {
        for (size_t k = 0; k < blocks * QUANT_BLOCK; k += 4)
            memcpy(codes + (k / 4 * NR + i) * 4, c->code + k, 4);
        return;
    }
    for (size_t k = 0; k < blocks * QUANT_BLOCK; k += 8)
        for (size_t j = 0; j < 4; j++)
            codes[(k / 8 * NR + i) * 4 + j] = (uint8_t)(c->code[k + j] | c->code[k + 4 + j] << 4);
}

/* One panel of the block at c in a quantized format.  A missing row has scales of zero, but its
 * codes must be those of zero too, for whoever multiplies codes first. */
static void fill_quantized(struct packed *w, const struct packed_source *from, size_t c,
                           size_t panel)
{
    struct quant_format f = quant_format(w->type);
    size_t K = packed_block(w, c);
    uint8_t *dst = (uint8_t *)w + PACKED_HEADER + packed_offset(w, c, panel);
    memset(dst, 0, packed_panel_bytes(w->type, K));
    for (size_t i = 0; i < NR; i++) {
        struct block_codes codes = { 0 };
        if (f.values == VALUES_MINUS_8 && f.bits == 4)
            memset(codes.code, 8, sizeof codes.code);
        if (panel * NR + i < w->O)
            read_codes(&codes, w, from, panel * NR + i, c, K);
        put_codes(dst, f, i, K, &codes);
    }
}

/* One panel of the block at c.  Its rows are gathered first and then transposed by
 * words of 32 bits: one float32, or two neighboring bfloat16. */
static void fill_panel(struct packed *w, const struct packed_source *source, size_t c, size_t panel)
{
    const struct kernel_ops *ops = kernels_ops();
    float words[NR * KC];
    size_t K = packed_block(w, c), rows = w->O - panel * NR < NR ? w->O - panel * NR : NR;
    size_t half = w->type != PACKED_F32, n = half ? (K + 1) / 2 : K;
    /* missing rows and the odd k are stored as zero */
    if (rows < NR || n % 8 != 0 || (half && K % 2 != 0))
        memset(words, 0, sizeof words);
    for (size_t i = 0; i < rows; i++) {
        const void *from = source_row(w, source, panel * NR + i);
        if (half)
            read_bf16((uint16_t *)(words + i * KC), from, source->dtype, c, K);
        else
            read_f32(words + i * KC, from, source->dtype, c, K);
    }
    float *dst = (float *)(void *)((char *)w + PACKED_HEADER + packed_offset(w, c, panel));
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

void packed_fill(struct packed *p, const struct packed_source *from, size_t begin, size_t end)
{
    int quantized = quant_format(p->type).bits > 0;
    assert(begin % NR == 0 && end <= p->O);
    for (size_t c = 0; c < p->C; c += KC)
        for (size_t o = begin; o < end; o += NR)
            if (quantized)
                fill_quantized(p, from, c, o / NR);
            else
                fill_panel(p, from, c, o / NR);
}

struct packed *packed_init(void *mem, enum packed_dtype type, const void *w,
                           enum source_dtype source, size_t O, size_t C)
{
    struct packed *p = packed_begin(mem, type, O, C);
    packed_fill(p, &(struct packed_source){ w, source, 0 }, 0, O);
    return p;
}

/* Expands the panels that hold the row and takes its column. */
void packed_row(float *out, const struct packed *w, size_t o)
{
    const struct weight_ops *ops = &kernels_ops()->weights[w->type];
    float wide[KC * NR];
    for (size_t c = 0; c < w->C; c += KC) {
        size_t K = packed_block(w, c);
        ops->expand(wide, w->type, packed_panel(w, c, o / NR), K, 0, K);
        for (size_t k = 0; k < K; k++)
            out[c + k] = wide[k * NR + o % NR];
    }
}
