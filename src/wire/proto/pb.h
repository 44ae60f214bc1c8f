/* pb.h - the protobuf encoding itself: tags, varints, lengths.
 *
 * Writing is into memory that was measured before; reading never leaves its bytes
 * and skips what it does not know, groups included. */
#ifndef WIRE_PB_H
#define WIRE_PB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pb_type { PB_VARINT = 0, PB_FIXED64 = 1, PB_LEN = 2, PB_FIXED32 = 5 };

/* ---- writing: all field numbers of ours are below 16, so a tag is one byte ------- */
size_t pb_varint_size(uint64_t v);
size_t pb_len_size(size_t n); /* a length-delimited field of n bytes, all included */
uint8_t *pb_put_varint(uint8_t *p, uint64_t v);
uint8_t *pb_put_int(uint8_t *p, unsigned field, uint64_t v); /* tag and varint */
uint8_t *pb_put_head(uint8_t *p, unsigned field, size_t n);  /* tag and length */
uint8_t *pb_put_bytes(uint8_t *p, unsigned field, const void *data, size_t n);
uint8_t *pb_put_double(uint8_t *p, unsigned field, double v);

/* ---- reading --------------------------------------------------------------------- */
struct pb_in {
    const uint8_t *p, *end;
    bool bad; /* truncated or malformed */
};
struct pb_field {
    uint32_t number;
    enum pb_type type;
    uint64_t value;       /* VARINT, FIXED64, FIXED32 */
    const uint8_t *bytes; /* LEN */
    size_t n;
};
struct pb_in pb_open(const void *p, size_t n);
/* The next field; false at the end, or with `bad` set. */
bool pb_next(struct pb_in *in, struct pb_field *f);
bool pb_is(const struct pb_field *f, uint32_t number, enum pb_type type);
/* How many fields with this number and type; 0 as well when malformed. */
size_t pb_count(const void *p, size_t n, uint32_t number, enum pb_type type);
/* One varint of a packed field. */
bool pb_varint(struct pb_in *in, uint64_t *v);

#endif
