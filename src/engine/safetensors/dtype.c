/* dtype.c - float32 to and from the half precision types of tensor files.
 *
 * Pure functions; the file's data may lie at any address, so it is read with
 * memcpy.  Little-endian hosts only, as the rest of the engine. */
#include "engine/safetensors/safetensors.h"

#include <string.h>
#include "engine/kernels/blocks.h"

size_t st_dtype_size(enum source_dtype dtype)
{
    return dtype == SOURCE_F32 ? 4 : 2;
}

/* In capitals, as the format spells types. */
const char *st_dtype_name(enum source_dtype dtype)
{
    return source_name(dtype);
}

/* Elements first to first + n. */
void st_to_float(const void *data, enum source_dtype dtype, size_t first, size_t n, float *out)
{
    source_to_float(out, data, dtype, first, n);
}

/* Rounded to nearest, ties to even. */
void st_from_float(const float *in, enum source_dtype dtype, size_t n, void *out)
{
    unsigned char *p = out;
    if (dtype == SOURCE_F32) {
        memcpy(p, in, n * sizeof(float));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = dtype == SOURCE_F16 ? f16_from_f32(in[i]) : bf16_from_f32(in[i]);
        memcpy(p + 2 * i, &h, 2);
    }
}
