/* internal.h - what the files of the reader share. */
#ifndef JSON_INTERNAL_H
#define JSON_INTERNAL_H

#include "json/json.h"

/* Fail at the byte `at`; the first failure stays.  Always false. */
bool json_fail_at(struct json_reader *r, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static inline void json_skip_space(struct json_reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

/* The string whose opening quote is at r->p, checked, without its quotes and with its
 * escapes; *escaped says whether there are any. */
bool json_scan_string(struct json_reader *r, struct json_str *raw, bool *escaped);
/* Resolve the escapes of a checked string, into the arena. */
bool json_unescape(struct json_reader *r, struct json_str raw, struct json_str *out);

#endif
