/* proto_read.h - what the protobuf decoders share: texts, arrays, maps of numbers. */
#ifndef WIRE_PROTO_READ_H
#define WIRE_PROTO_READ_H

#include "wire/check.h"
#include "wire/json/collection.h"
#include "wire/json/describe.h"
#include "wire/proto/pb.h"

/* Numbers on the wire: enum DType of the schema. */
enum proto_dtype { PROTO_FLOAT32 = 1, PROTO_INT64 = 2, PROTO_INT32 = 3, PROTO_BFLOAT16 = 4 };

struct wire_reader proto_reader(struct arena *arena, tinker_error *err);
/* Reports malformed bytes; true when all was well. */
bool proto_done(struct wire_reader *r, const struct pb_in *in);
/* Valid UTF-8 without NUL, copied; a failure leaves *out as it was. */
bool proto_text(struct wire_reader *r, const struct pb_field *f, const char **out);
/* A copy of n bytes as elements of `size` bytes; fails unless they divide. */
bool proto_elements(struct wire_reader *r, const uint8_t *bytes, size_t n, size_t size,
                    const void **out, size_t *count);
/* Elements of a wire type, widened to float32 or int64. */
bool proto_values(struct wire_reader *r, uint64_t dtype, const uint8_t *bytes, size_t n,
                  tinker_tensor *out);
size_t proto_itemsize(uint64_t dtype); /* 0: unknown */
/* Add the packed or single int64 of f to shape[*n]; fails above the maximum. */
bool proto_shape(struct wire_reader *r, const struct pb_field *f,
                 int64_t shape[WIRE_DIMENSIONS_MAX], size_t *n);
/* One entry of a map: its key and its value, any of which may be missing. */
struct proto_entry {
    struct pb_field key, value;
};
bool proto_entry(struct wire_reader *r, const struct pb_field *f, enum pb_type value,
                 struct proto_entry *out);
/* Add an entry of a map<string, double> to named (tinker_named_number). */
bool proto_number_entry(struct wire_reader *r, const struct pb_field *f, struct wire_named *named);

#endif
