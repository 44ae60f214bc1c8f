/* scalar.h - readers of single values that the tables use. */
#ifndef WIRE_JSON_SCALAR_H
#define WIRE_JSON_SCALAR_H

#include "wire/json/describe.h"

/* As wire_read_double(), or a text that says nan or infinity: results of a run that diverged must
 * stay readable. */
bool wire_read_metric(struct wire_reader *r, double *out);
bool wire_read_time(struct wire_reader *r, struct wire_time *out);
/* An integer of any size, folded into [0, 2^63-1) when it does not fit. */
bool wire_read_seed(struct wire_reader *r, int64_t *out);
bool wire_read_bytes(struct wire_reader *r, const void **out, size_t *n); /* base64 */

#endif
