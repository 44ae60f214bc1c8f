/* proto_write.c - elements, shapes and maps of numbers as protobuf.
 *
 * float32, int64 and, in results, bfloat16 are copied as they are; the other types
 * are converted on the way. */
#include "wire/proto/proto_write.h"

#include <string.h>
#include "wire/check.h"
#include "wire/proto/proto_read.h"

/* DType of tinker_public.proto; 0: cannot be sent. */
uint64_t proto_dtype_of(tinker_dtype in)
{
    /* Results may be bfloat16; requests are checked before and never are. */
    if (in == TINKER_BFLOAT16)
        return PROTO_BFLOAT16;
    tinker_dtype out = wire_dtype(in);
    return out == TINKER_INT64 ? PROTO_INT64 : out == TINKER_FLOAT32 ? PROTO_FLOAT32 : 0;
}

size_t proto_values_size(const tinker_tensor *t)
{
    /* The checks of tensors bound n by SIZE_MAX / 8, so the product cannot wrap. */
    return t->n * proto_itemsize(proto_dtype_of(t->dtype));
}

/* float64 becomes float32, every integer int64; what does not fit was refused by
 * wire_check_tensor(). */
static uint8_t *put_converted(uint8_t *p, const tinker_tensor *t)
{
    for (size_t i = 0; i < t->n; i++) {
        int64_t whole = 0;
        if (t->dtype == TINKER_FLOAT64) {
            float f = (float)((const double *)t->data)[i];
            memcpy(p, &f, sizeof f);
            p += sizeof f;
            continue;
        }
        if (t->dtype == TINKER_INT32)
            whole = ((const int32_t *)t->data)[i];
        else if (t->dtype == TINKER_UINT32)
            whole = ((const uint32_t *)t->data)[i];
        else
            whole = (int64_t)((const uint64_t *)t->data)[i];
        /* Copied, not stored: p is as unaligned as the lengths before it make it. */
        memcpy(p, &whole, sizeof whole);
        p += sizeof whole;
    }
    return p;
}

/* What lies in memory as on the wire (little endian) is copied, the rest converted. */
uint8_t *proto_put_values(uint8_t *p, const tinker_tensor *t)
{
    if (t->dtype != TINKER_FLOAT32 && t->dtype != TINKER_INT64 && t->dtype != TINKER_BFLOAT16)
        return put_converted(p, t);
    size_t n = proto_values_size(t);
    if (n)
        memcpy(p, t->data, n);
    return p + n;
}

/* Of the packed list, without tag and length. Dimensions are checked not to be negative: as int64
 * such a one takes ten bytes. */
size_t proto_shape_size(const int64_t *shape, size_t ndim)
{
    size_t size = 0;
    for (size_t i = 0; i < ndim; i++)
        size += pb_varint_size((uint64_t)shape[i]);
    return size;
}

/* Packed: one length, then varints without tags, as proto3 writes repeated numbers. */
uint8_t *proto_put_shape(uint8_t *p, unsigned field, const int64_t *shape, size_t ndim)
{
    /* proto3 leaves an empty repeated field out. */
    if (ndim == 0)
        return p;
    p = pb_put_head(p, field, proto_shape_size(shape, ndim));
    for (size_t i = 0; i < ndim; i++)
        p = pb_put_varint(p, (uint64_t)shape[i]);
    return p;
}

/* Content of one entry: the key, and tag and eight bytes of the value. 0.0 is written, too: the
 * value of a map entry is never left out. */
static size_t number_size(const tinker_named_number *v)
{
    return pb_len_size(strlen(v->name)) + 9;
}

/* Of all entries of the map, with their tags and lengths. */
size_t proto_numbers_size(const tinker_named_number *v, size_t n)
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += pb_len_size(number_size(&v[i]));
    return size;
}

uint8_t *proto_put_numbers(uint8_t *p, unsigned field, const tinker_named_number *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p = pb_put_head(p, field, number_size(&v[i]));
        /* A map entry: key 1, value 2. */
        p = pb_put_bytes(p, 1, v[i].name, strlen(v[i].name));
        p = pb_put_double(p, 2, v[i].value);
    }
    return p;
}
