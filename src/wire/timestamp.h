/* timestamp.h - date texts of the protocol: RFC 3339 out, RFC 3339 and more in. */
#ifndef WIRE_TIMESTAMP_H
#define WIRE_TIMESTAMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "wire/types.h"

enum { WIRE_TIME_TEXT = 40 };

/* "2026-08-09T10:11:12.345678Z"; six digits or none; no Z when naive. */
void wire_time_format(struct wire_time t, char out[WIRE_TIME_TEXT]);
/* RFC 3339 or ISO 8601 with T, t, space or _ between date and time, offset optional;
 * a date alone; or digits: Unix seconds (milliseconds above 2e10). */
bool wire_time_parse(const char *s, size_t n, struct wire_time *out);
/* Unix seconds, or milliseconds above 2e10. */
bool wire_time_from_number(double v, struct wire_time *out);
/* "Sun, 09 Aug 2026 11:00:00 GMT", as in an Expires header. */
bool wire_time_parse_http(const char *s, struct wire_time *out);
/* Python's text of a duration: "0:00:03.654322", "1 day, 2:03:04". */
void wire_duration_format(int64_t us, char out[WIRE_TIME_TEXT]);

#endif
