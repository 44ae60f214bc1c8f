/* proto_read.c - copies protobuf payloads into the arena, aligned and checked. */
#include "wire/proto/proto_read.h"

#include <string.h>
#include "base/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "payloads are little endian and are copied as they are");

struct wire_reader proto_reader(struct arena *arena, tinker_error *err)
{
    /* Only the arena, the place and the failure are used: there is no JSON to read, and thus no
     * mode. */
    return (struct wire_reader){ .arena = arena, .mode = WIRE_LENIENT, .err = err };
}

/* Call it after each message: pb_next() gives false at the end and for damage alike. */
bool proto_done(struct wire_reader *r, const struct pb_in *in)
{
    if (in->bad)
        wire_read_fail(r, "the protobuf message is damaged or cut off");
    return r->status == TINKER_OK;
}

/* proto3 strings are UTF-8, which a parser has to check. Ours are C strings, too: a NUL inside
 * would hide the rest, so that two names became one. */
static bool check_text(struct wire_reader *r, const uint8_t *bytes, size_t n)
{
    /* Without bytes the pointer may be NULL, which memchr() must not get. */
    if (n == 0)
        return true;
    if (memchr(bytes, 0, n))
        return wire_read_fail(r, "a text holds a NUL character");
    if (utf8_valid_prefix((const char *)bytes, n) != n)
        return wire_read_fail(r, "a text is not valid UTF-8");
    return true;
}

/* An empty text comes as length 0, and is not NULL afterwards. */
bool proto_text(struct wire_reader *r, const struct pb_field *f, const char **out)
{
    if (!check_text(r, f->bytes, f->n))
        return false;
    const char *copy = arena_strndup(r->arena, (const char *)f->bytes, f->n);
    if (copy)
        *out = copy;
    return copy != NULL || wire_read_nomem(r);
}

/* A bytes field that holds an array; it is copied because the arena aligns it and the
 * message does not. */
bool proto_elements(struct wire_reader *r, const uint8_t *bytes, size_t n, size_t size,
                    const void **out, size_t *count)
{
    if (n % size != 0)
        return wire_read_fail(r, "%zu bytes are no whole number of elements of %zu bytes", n, size);
    /* Copied even when empty: NULL would mean "not given". The arena gives an address for 0 bytes,
     * too. */
    *out = arena_memdup(r->arena, bytes ? bytes : (const uint8_t *)"", n);
    *count = n / size;
    return *out != NULL || wire_read_nomem(r);
}

/* Values of the enum DType of tinker_public.proto; 0: one that is not known. */
size_t proto_itemsize(uint64_t dtype)
{
    switch (dtype) {
    case PROTO_FLOAT32:
    case PROTO_INT32:
        return 4;
    case PROTO_INT64:
        return 8;
    case PROTO_BFLOAT16:
        return 2;
    }
    return 0;
}

bool proto_values(struct wire_reader *r, uint64_t dtype, const uint8_t *bytes, size_t n,
                  tinker_tensor *out)
{
    size_t size = proto_itemsize(dtype);
    /* 0, DTYPE_UNSPECIFIED, is what a missing dtype reads as: there is no default to fall back
     * on. */
    if (!size)
        return wire_read_fail(r, "unknown element type %llu", (unsigned long long)dtype);
    if (n % size != 0)
        return wire_read_fail(r, "%zu bytes are no whole number of elements of %zu bytes", n, size);
    /* Whatever the wire has, memory has one integer and one float type. */
    bool whole = dtype == PROTO_INT32 || dtype == PROTO_INT64;
    out->dtype = whole ? TINKER_INT64 : TINKER_FLOAT32;
    if (dtype != PROTO_INT32 && dtype != PROTO_BFLOAT16)
        return proto_elements(r, bytes, n, size, &out->data, &out->n);
    /* In memory there are int64 and float32 only; both widen without loss.  The bytes are not
     * aligned, so they are copied one by one. */
    /* Widening doubles the bytes at most, so memory stays bounded by the limit on the body. */
    out->n = n / size;
    if (dtype == PROTO_INT32) {
        int64_t *v = arena_array(r->arena, out->n, sizeof *v);
        for (size_t i = 0; v && i < out->n; i++) {
            int32_t x;
            memcpy(&x, bytes + 4 * i, sizeof x);
            v[i] = x;
        }
        out->data = v;
    } else {
        /* bfloat16 is the upper half of a float32, so a shift widens it. */
        uint32_t *v = arena_array(r->arena, out->n, sizeof *v); /* the bits of floats */
        for (size_t i = 0; v && i < out->n; i++) {
            uint16_t x;
            memcpy(&x, bytes + 2 * i, sizeof x);
            v[i] = (uint32_t)x << 16;
        }
        out->data = v;
    }
    return out->data != NULL || wire_read_nomem(r);
}

bool proto_shape(struct wire_reader *r, const struct pb_field *f,
                 int64_t shape[WIRE_DIMENSIONS_MAX], size_t *n)
{
    struct pb_in in = pb_open(f->bytes, f->n);
    uint64_t v = f->value;
    bool packed = f->type == PB_LEN;
    /* Repeated numbers come packed or one by one: a parser must take both. */
    while (!packed || in.p < in.end) {
        if (packed && !pb_varint(&in, &v))
            return proto_done(r, &in);
        if (*n == WIRE_DIMENSIONS_MAX)
            return wire_read_fail(r, "more than %d dimensions", WIRE_DIMENSIONS_MAX);
        /* May be negative, or make a product that is too large: callers check the whole. */
        shape[(*n)++] = (int64_t)v;
        if (!packed)
            break;
    }
    return true;
}

bool proto_entry(struct wire_reader *r, const struct pb_field *f, enum pb_type value,
                 struct proto_entry *out)
{
    struct pb_in in = pb_open(f->bytes, f->n);
    struct pb_field x;
    memset(out, 0, sizeof *out);
    /* A map is a repeated message of key and value; the last of each counts. One that is missing
     * stays empty or zero, which are the defaults that protobuf gives it. */
    while (pb_next(&in, &x)) {
        if (pb_is(&x, 1, PB_LEN))
            out->key = x;
        else if (pb_is(&x, 2, value))
            out->value = x;
    }
    return proto_done(r, &in) && check_text(r, out->key.bytes, out->key.n);
}

/* An entry of map<string, double>: the value is eight bytes, wire type 1.  A name that comes
 * twice takes the last value. */
bool proto_number_entry(struct wire_reader *r, const struct pb_field *f, struct wire_named *named)
{
    struct proto_entry e;
    if (!proto_entry(r, f, PB_FIXED64, &e))
        return false;
    tinker_named_number *slot =
        wire_named_slot(r, named, e.key.bytes ? (const char *)e.key.bytes : "", e.key.n);
    if (!slot)
        return false;
    /* The bits of the double; those of a missing value are zero, which is 0.0. */
    memcpy(&slot->value, &e.value.value, sizeof slot->value);
    return true;
}
