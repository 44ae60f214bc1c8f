/* fmt.h - sizes, times and dates as the reference program prints and reads them.
 *
 * Times are microseconds since 1970 UTC, TINKER_NO_TIME for none.  Pure functions. */
#ifndef CLI_FMT_H
#define CLI_FMT_H

#include <stdbool.h>
#include <stdint.h>
#include "json/json.h"

enum { FMT_TEXT = 48 };

/* "500 B", "1.5 KB"; "N/A" for a negative number. */
const char *fmt_size(int64_t bytes, char out[FMT_TEXT]);

/* "3 days ago", "in 2 hours", "2026-01-31"; "N/A" for none. */
const char *fmt_relative(int64_t us, int64_t now_us, char out[FMT_TEXT]);
/* "2026-08-09T10:11:12Z", with six digits when the fraction is not zero. */
const char *fmt_rfc3339(int64_t us, char out[FMT_TEXT]);

/* A cell of a table as --time-format wants it; `none` stands for no time. */
const char *fmt_cell_time(int64_t us, const char *none, char out[FMT_TEXT]);
/* A value of a JSON result: by default the text that Python gives a datetime. */
void fmt_json_time(struct json_writer *w, int64_t us);

/* "2024-01-01", "2024-01-01T12:00[:00[.5]][Z|+01:00]", also with a space.  No zone: UTC. */
bool fmt_read_date(const char *s, int64_t *us);

#endif
