/* dtype.c - float32 to and from the half precision types of tensor files.
 *
 * Pure functions; the file's data may lie at any address, so it is read with
 * memcpy.  Little-endian hosts only, as the rest of the engine. */
#include "engine/model/safetensors.h"

#include <math.h>
#include <string.h>

size_t st_dtype_size(enum source_dtype dtype)
{
    return dtype == SOURCE_F32 ? 4 : 2;
}

const char *st_dtype_name(enum source_dtype dtype)
{
    switch (dtype) {
    case SOURCE_F16:
        return "F16";
    case SOURCE_BF16:
        return "BF16";
    case SOURCE_F32:
        break;
    }
    return "F32";
}

/* memcpy() is how C reads the bits of a float without undefined behavior. */
static uint32_t float_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* IEEE 754 binary32 to binary16, round to nearest even: 8 exponent bits become 5, 23 fraction
 * bits 10. */
static uint16_t float_to_half(float f)
{
    uint32_t bits = float_to_bits(f);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) /* NAN stays one, quiet */
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 aligns and rounds the fraction */
        uint32_t aligned = float_to_bits(fabsf(f) + 0.5f);
        return (uint16_t)(sign | (aligned - float_to_bits(0.5f)));
    }
    /* add half of the last kept bit, or a little less when that bit is 0: ties go to even; then
     * move the exponent's bias from 127 to 15 */
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

void st_to_float(const void *data, enum source_dtype dtype, size_t first, size_t n, float *out)
{
    const unsigned char *p = (const unsigned char *)data + first * st_dtype_size(dtype);
    if (dtype == SOURCE_F32) {
        memcpy(out, p, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = dtype == SOURCE_F16 ? f32_from_f16(h) : f32_from_bf16(h);
    }
}

void st_from_float(const float *in, enum source_dtype dtype, size_t n, void *out)
{
    unsigned char *p = out;
    if (dtype == SOURCE_F32) {
        memcpy(p, in, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = dtype == SOURCE_F16 ? float_to_half(in[i]) : bf16_from_f32(in[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}
