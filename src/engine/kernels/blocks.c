/* blocks.c - decode the block formats of GGUF, to numbers and to codes.
 *
 * Halves of 16 bits are stored little-endian, as on every machine we support.  In blocks of 32 the
 * low halves of the 16 bytes are weights 0 to 15 and the high ones 16 to 31.  The K formats share
 * two float16 among 256 weights, scaled for each 16 or 32 of them by a small integer. */
#include "engine/kernels/blocks.h"

#include <math.h>
#include <string.h>
#include "engine/kernels/packed.h"

/* Where the parts of a block lie, in bytes. */
static const struct {
    const char *name;
    uint16_t block, bytes;
    uint8_t d; /* offset of the first float16 scale */
} formats[SOURCE_TYPES] = {
    [SOURCE_F32] = { "F32", 1, 4, 0 },         [SOURCE_F16] = { "F16", 1, 2, 0 },
    [SOURCE_BF16] = { "BF16", 1, 2, 0 },       [SOURCE_Q8_0] = { "Q8_0", 32, 34, 0 },
    [SOURCE_Q4_0] = { "Q4_0", 32, 18, 0 },     [SOURCE_Q4_1] = { "Q4_1", 32, 20, 0 },
    [SOURCE_Q5_0] = { "Q5_0", 32, 22, 0 },     [SOURCE_Q5_1] = { "Q5_1", 32, 24, 0 },
    [SOURCE_Q4_K] = { "Q4_K", 256, 144, 0 },   [SOURCE_Q5_K] = { "Q5_K", 256, 176, 0 },
    [SOURCE_Q6_K] = { "Q6_K", 256, 210, 208 }, [SOURCE_MXFP4] = { "MXFP4", 32, 17, 0 },
};

const float quant_values[VALUES][16] = {
    [VALUES_MINUS_8] = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 },
    [VALUES_FROM_0] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
    /* 4-bit floats with one bit of mantissa, doubled */
    [VALUES_E2M1] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 },
};

const char *source_name(enum source_dtype dtype)
{
    return formats[dtype].name;
}

size_t source_block(enum source_dtype dtype)
{
    return formats[dtype].block;
}

size_t source_bytes(enum source_dtype dtype, size_t n)
{
    return n / formats[dtype].block * formats[dtype].bytes;
}

static uint16_t read_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* code[0..32) from 16 bytes, low halves first; with high, bit i is the fifth of code i. */
static void split_nibbles(uint8_t *code, const uint8_t *qs, uint32_t high)
{
    for (size_t i = 0; i < 16; i++) {
        code[i] = (uint8_t)((qs[i] & 15) | (high >> i & 1) << 4);
        code[i + 16] = (uint8_t)(qs[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

/* The 6-bit scales and minimums of the eight parts of a Q4_K or Q5_K block, from 12 bytes: the
 * upper two bits of the last four are those that the first four leave over. */
static void split_scales(uint8_t *sub, uint8_t *mins, const uint8_t *s)
{
    for (size_t j = 0; j < 4; j++) {
        sub[j] = s[j] & 63;
        mins[j] = s[j + 4] & 63;
        sub[j + 4] = (uint8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
        mins[j + 4] = (uint8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}

/* Codes of a Q4_K block: parts 2i and 2i + 1 are the low and high halves of the same 32 bytes.
 * Q5_K adds bit j of qh[i] to weight i of part j. */
static void split_k(uint8_t *code, const uint8_t *qs, const uint8_t *qh)
{
    for (size_t j = 0; j < 8; j++)
        for (size_t i = 0; i < 32; i++) {
            unsigned q = qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            code[j * 32 + i] = (uint8_t)(q | (qh ? (unsigned)(qh[i] >> j & 1) << 4 : 0));
        }
}

/* Q6_K: four bits in ql and two in qh; each half of 128 has its own 64 and 32 bytes.  Codes are
 * stored from 0 and mean code - 32. */
static void split_q6(uint8_t *code, const uint8_t *ql, const uint8_t *qh)
{
    for (size_t i = 0; i < 256; i++) {
        size_t half = i / 128, k = i % 128 / 32, l = i % 32;
        unsigned low = ql[64 * half + 32 * (k & 1) + l] >> (k < 2 ? 0 : 4) & 15;
        unsigned high = qh[32 * half + l] >> (2 * k) & 3;
        code[i] = (uint8_t)((int)(low | high << 4) - 32);
    }
}

/* The scale of MXFP4 is 2^(e - 128), because its values are doubled; as bfloat16 every e fits. */
static uint16_t brain_from_exponent(uint8_t e)
{
    return e < 2 ? (uint16_t)(0x20 << e) : (uint16_t)((e - 1) << 7);
}

/* One block; at is the index of its first weight in out. */
static void unpack_block(struct block_codes *out, const uint8_t *b, enum source_dtype dtype,
                         size_t at)
{
    uint8_t *code = out->code + at;
    uint32_t high = 0;
    switch (dtype) {
    case SOURCE_Q8_0:
        out->scale[at / 32] = read_half(b);
        memcpy(code, b + 2, 32);
        break;
    case SOURCE_Q4_0:
        out->scale[at / 32] = read_half(b);
        split_nibbles(code, b + 2, 0);
        break;
    case SOURCE_Q5_0:
        out->scale[at / 32] = read_half(b);
        memcpy(&high, b + 2, sizeof high);
        split_nibbles(code, b + 6, high);
        for (size_t i = 0; i < 32; i++)
            code[i] = (uint8_t)(code[i] - 16);
        break;
    case SOURCE_MXFP4:
        out->scale[at / 32] = brain_from_exponent(b[0]);
        split_nibbles(code, b + 1, 0);
        break;
    case SOURCE_Q4_K:
    case SOURCE_Q5_K:
        out->d = read_half(b);
        out->dmin = read_half(b + 2);
        split_scales(out->sub, out->mins, b + 4);
        split_k(code, b + (dtype == SOURCE_Q4_K ? 16 : 48), dtype == SOURCE_Q4_K ? NULL : b + 16);
        break;
    default: /* Q6_K */
        out->d = read_half(b + 208);
        out->dmin = 0;
        memcpy(out->sub, b + 192, 16);
        split_q6(code, b, b + 128);
        break;
    }
}

void blocks_unpack(struct block_codes *out, const void *row, enum source_dtype dtype, size_t first,
                   size_t n)
{
    const uint8_t *b = (const uint8_t *)row + source_bytes(dtype, first);
    for (size_t at = 0; at < n; at += formats[dtype].block, b += formats[dtype].bytes)
        unpack_block(out, b, dtype, at);
}

/* Blocks with a scale and a minimum in float16 of their own: there is no packed format for them. */
static void decode_with_min(float *out, const uint8_t *b, enum source_dtype dtype)
{
    uint8_t code[32];
    uint32_t high = 0;
    float d = f32_from_f16(read_half(b)), m = f32_from_f16(read_half(b + 2));
    if (dtype == SOURCE_Q5_1)
        memcpy(&high, b + 4, sizeof high);
    split_nibbles(code, b + (dtype == SOURCE_Q5_1 ? 8 : 4), high);
    for (size_t i = 0; i < 32; i++)
        out[i] = d * (float)code[i] + m;
}

/* out[0..block) = a block.  Products of a scale and a code are exact in float32; only the
 * difference with a minimum rounds. */
static void decode_block(float *out, const uint8_t *b, enum source_dtype dtype)
{
    struct block_codes c;
    struct quant_format f = quant_format(packed_native(dtype));
    if (dtype == SOURCE_Q4_1 || dtype == SOURCE_Q5_1) {
        decode_with_min(out, b, dtype);
        return;
    }
    unpack_block(&c, b, dtype, 0);
    float d = f.super ? f32_from_f16(c.d) : 0, dmin = f.super ? f32_from_f16(c.dmin) : 0;
    for (size_t i = 0; i < formats[dtype].block; i++) {
        float value = f.bits == 8 ? (float)(int8_t)c.code[i] : quant_values[f.values][c.code[i]];
        float scale = f.brain ? f32_from_bf16(c.scale[i / 32]) : f32_from_f16(c.scale[i / 32]);
        if (f.super)
            scale = d * (f.sub_signed ? (float)(int8_t)c.sub[i / f.block] : c.sub[i / f.block]);
        out[i] = f.min ? scale * value - dmin * (float)c.mins[i / 32] : scale * value;
    }
}

/* Plain numbers of 16 bits, at any address. */
static void widen_halves(float *out, const uint8_t *p, enum source_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = read_half(p + 2 * i);
        out[i] = dtype == SOURCE_F16 ? f32_from_f16(h) : f32_from_bf16(h);
    }
}

void source_to_float(float *out, const void *data, enum source_dtype dtype, size_t first, size_t n)
{
    size_t block = formats[dtype].block;
    const uint8_t *p = (const uint8_t *)data + first / block * formats[dtype].bytes;
    if (dtype == SOURCE_F32) {
        memcpy(out, p, n * sizeof *out);
        return;
    }
    if (block == 1) {
        widen_halves(out, p, dtype, n);
        return;
    }
    /* whole blocks, of which the first and the last may be wanted in part */
    for (size_t skip = first % block; n > 0; skip = 0, p += formats[dtype].bytes) {
        float w[BLOCK_MAX];
        size_t take = block - skip < n ? block - skip : n;
        decode_block(w, p, dtype);
        memcpy(out, w + skip, take * sizeof *out);
        out += take;
        n -= take;
    }
}

bool source_is_finite(const void *data, enum source_dtype dtype, size_t n)
{
    const uint8_t *p = data;
    size_t halves =
        dtype == SOURCE_Q4_1 || dtype == SOURCE_Q5_1 || dtype == SOURCE_Q4_K || dtype == SOURCE_Q5_K
            ? 2
            : 1;
    for (size_t i = 0; i < n; i += formats[dtype].block, p += formats[dtype].bytes) {
        if (formats[dtype].block == 1) {
            float w;
            source_to_float(&w, data, dtype, i, 1);
            if (!isfinite(w))
                return false;
            continue;
        }
        if (dtype == SOURCE_MXFP4) {
            if (p[0] == 255)
                return false;
            continue;
        }
        for (size_t h = 0; h < halves; h++)
            if ((read_half(p + formats[dtype].d + 2 * h) & 0x7c00) == 0x7c00)
                return false;
    }
    return true;
}
