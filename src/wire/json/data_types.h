/* data_types.h - pieces of the JSON form of data that results use too. */
#ifndef WIRE_JSON_DATA_TYPES_H
#define WIRE_JSON_DATA_TYPES_H

#include "wire/json/describe.h"

/* tinker_named_tensor, whose name is the key of a map entry. */
extern const struct wire_type wire_named_tensor;
extern const struct wire_type wire_result_tensor; /* may also be bfloat16 */

/* A tensor of the arena; null leaves *out as it is. */
bool wire_read_new_tensor(struct wire_reader *r, const tinker_tensor **out);
/* *out is not NULL afterwards, even for an empty list. */
bool wire_read_int32s(struct wire_reader *r, const int32_t **out, size_t *n);

#endif
