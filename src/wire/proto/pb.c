/* pb.c - protobuf primitives.
 *
 * The encoding (protobuf.dev, "Encoding"): a message is a sequence of fields; each begins with a
 * varint tag, number << 3 | type, followed by a varint, four or eight bytes, or a length and that
 * many bytes.  A varint has seven bits a byte, lowest first, the top bit set in all but the last
 * one. */
#include "wire/proto/pb.h"

#include <assert.h>
#include <string.h>

/* ---- writing --------------------------------------------------------------------- */

size_t pb_varint_size(uint64_t v)
{
    size_t n = 1;
    /* A byte for every seven bits. */
    while (v >= 0x80) {
        v >>= 7;
        n++;
    }
    return n;
}

/* Tag, length and n bytes.  One byte of tag, since all our field numbers are below 16. */
size_t pb_len_size(size_t n)
{
    return 1 + pb_varint_size(n) + n;
}

/* The caller has measured and reserved; there is no check of space here. */
uint8_t *pb_put_varint(uint8_t *p, uint64_t v)
{
    while (v >= 0x80) {
        *p++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *p++ = (uint8_t)v;
    return p;
}

/* Field 16 and up would take a second byte, for which nothing here measures. */
static uint8_t *put_tag(uint8_t *p, unsigned field, enum pb_type type)
{
    /* Number << 3 | type in one byte. */
    assert(field < 16);
    *p = (uint8_t)(field << 3 | type);
    return p + 1;
}

/* For int32, int64, bool and enums alike: all are varints on the wire. Callers extend the sign of
 * an int32 to 64 bits, as the standard wants. */
uint8_t *pb_put_int(uint8_t *p, unsigned field, uint64_t v)
{
    return pb_put_varint(put_tag(p, field, PB_VARINT), v);
}

/* The head of a nested message, a text, bytes or a packed list: all have the same wire type. */
uint8_t *pb_put_head(uint8_t *p, unsigned field, size_t n)
{
    return pb_put_varint(put_tag(p, field, PB_LEN), n);
}

uint8_t *pb_put_bytes(uint8_t *p, unsigned field, const void *data, size_t n)
{
    p = pb_put_head(p, field, n);
    /* memcpy() must not get NULL, not even for no bytes (C11, 7.24.1). */
    if (n)
        memcpy(p, data, n);
    return p + n;
}

/* Wire type 1: eight bytes, lowest first. */
uint8_t *pb_put_double(uint8_t *p, unsigned field, double v)
{
    p = put_tag(p, field, PB_FIXED64);
    memcpy(p, &v, sizeof v); /* little endian: see proto_read.c */
    return p + sizeof v;
}

/* ---- reading --------------------------------------------------------------------- */

struct pb_in pb_open(const void *p, size_t n)
{
    /* NULL is the empty message: a map entry without a value has no bytes to point to. */
    const uint8_t *start = p ? p : (const uint8_t *)"";
    return (struct pb_in){ start, start + (p ? n : 0), false };
}

/* Sticky: after the first damage nothing more is read, and only the end of reading looks at
 * it. */
static bool mark_bad(struct pb_in *in)
{
    in->bad = true;
    return false;
}

bool pb_varint(struct pb_in *in, uint64_t *v)
{
    uint64_t value = 0;
    /* At most ten bytes; bits beyond 64 are dropped, as the reference does. A negative int32 comes
     * sign-extended, so it takes all ten. */
    for (int shift = 0; shift < 70 && in->p < in->end; shift += 7) {
        uint8_t byte = *in->p++;
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *v = value;
            return true;
        }
    }
    return mark_bad(in);
}

/* The low n bytes of *v; the host is little endian, like the wire. */
static bool read_fixed(struct pb_in *in, size_t n, uint64_t *v)
{
    if ((size_t)(in->end - in->p) < n)
        return mark_bad(in);
    *v = 0;
    memcpy(v, in->p, n);
    in->p += n;
    return true;
}

/* The two wire types without a payload, and how deep skipped groups may nest: their numbers are
 * kept on the stack, where a message of nothing but starts must not grow without end. */
enum { START_GROUP = 3, END_GROUP = 4, DEPTH_MAX = 64 };

static bool read_payload(struct pb_in *in, struct pb_field *f)
{
    uint64_t n;
    switch (f->type) {
    case PB_VARINT:
        return pb_varint(in, &f->value);
    case PB_FIXED64:
        return read_fixed(in, 8, &f->value);
    case PB_FIXED32:
        return read_fixed(in, 4, &f->value);
    case PB_LEN:
        if (!pb_varint(in, &n))
            return false;
        /* A length from outside: never beyond the message. */
        if (n > (uint64_t)(in->end - in->p))
            return mark_bad(in);
        f->bytes = in->p;
        f->n = (size_t)n;
        in->p += n;
        return true;
    }
    /* Types 6 and 7 do not exist: without a length the rest cannot be found. */
    return mark_bad(in);
}

/* The next field that is not inside a group.  false: the end, or damage (in->bad). */
bool pb_next(struct pb_in *in, struct pb_field *f)
{
    uint32_t open[DEPTH_MAX];
    size_t depth = 0;
    uint64_t tag;
    while (!in->bad && in->p < in->end) {
        if (!pb_varint(in, &tag))
            return false;
        memset(f, 0, sizeof *f);
        f->number = (uint32_t)(tag >> 3);
        unsigned type = tag & 7;
        /* Numbers begin at 1 and have at most 29 bits. */
        if (tag > UINT32_MAX || f->number == 0)
            return mark_bad(in);
        /* Groups are deprecated, but a parser must be able to skip them with all they hold. */
        if (type == START_GROUP) {
            if (depth == DEPTH_MAX)
                return mark_bad(in);
            open[depth++] = f->number;
        } else if (type == END_GROUP) {
            if (depth == 0 || open[--depth] != f->number)
                return mark_bad(in);
        } else {
            f->type = (enum pb_type)type;
            if (!read_payload(in, f))
                return false;
            /* What is inside a group belongs to it, and no message of ours has groups. */
            if (depth == 0)
                return true;
        }
    }
    /* The message ended inside a group. */
    return depth == 0 ? false : mark_bad(in);
}

/* A field with the right number and another wire type is treated as unknown, as protobuf
 * does. */
bool pb_is(const struct pb_field *f, uint32_t number, enum pb_type type)
{
    return f->number == number && f->type == type;
}

/* A pass over the heads only: payloads are stepped over. Callers allocate by the count, so for a
 * damaged message it is 0, and the decoding pass reports the damage. */
size_t pb_count(const void *p, size_t n, uint32_t number, enum pb_type type)
{
    struct pb_in in = pb_open(p, n);
    struct pb_field f;
    size_t count = 0;
    while (pb_next(&in, &f))
        count += pb_is(&f, number, type);
    return in.bad ? 0 : count;
}
