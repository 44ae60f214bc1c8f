/* json.h - pull reader and append-only writer; bytes in, bytes out.
 *
 * Reader: the caller asks for what it expects, in order; there is no tree.  The
 * first failure is kept with the byte offset and line:column; every later call
 * fails too, so a decoder may check once.  Depth is limited (64).  Strict RFC 8259:
 * valid UTF-8, no NaN or Infinity, no trailing comma, no duplicate check.
 *
 *     json_begin_object(r);
 *     while (json_next_key(r, &key)) {
 *         if (json_str_is(key, "a")) json_int64(r, &a);
 *         else json_skip(r);
 *     }
 *     if (!json_end(r)) return err_set(err, ..., json_error(r));
 *
 * Not thread-safe. */
#ifndef JSON_JSON_H
#define JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"

enum json_kind {
    JSON_NONE, /* end of input, or failed */
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

/* A string: borrowed from the input when it has no escapes, else from the arena.
 * Not NUL-terminated. */
struct json_str {
    const char *s;
    size_t n;
};

struct json_reader {
    const char *start, *p, *end;
    struct arena *arena; /* for strings with escapes and arrays */
    int depth;
    bool failed;
    bool first[65]; /* by depth: no member read yet */
    char closer[65];
    size_t error_at;
    char error[160]; /* "line 1, column 7: expected ','" */
};

void json_reader_init(struct json_reader *r, const char *s, size_t n, struct arena *arena);
/* For a value that json_raw() gave, read later: errors name its place in the whole text. */
void json_reader_part(struct json_reader *r, const struct json_reader *whole, struct json_str raw);
enum json_kind json_peek(struct json_reader *r); /* kind of the next value */
bool json_begin_object(struct json_reader *r);
/* false at '}' (consumed) or failure */
bool json_next_key(struct json_reader *r, struct json_str *key);
bool json_begin_array(struct json_reader *r);
/* false at ']' (consumed) or failure */
bool json_next_item(struct json_reader *r);
bool json_null(struct json_reader *r);
bool json_bool(struct json_reader *r, bool *out);
bool json_int64(struct json_reader *r, int64_t *out); /* 3.0 is an int, 3.5 fails, range checked */
bool json_uint64(struct json_reader *r, uint64_t *out);
bool json_double(struct json_reader *r, double *out); /* correctly rounded */
bool json_string(struct json_reader *r, struct json_str *out);
/* NUL-terminated arena copy; an embedded NUL fails */
bool json_cstring(struct json_reader *r, char **out);
/* The bytes of the next value, checked. */
bool json_raw(struct json_reader *r, struct json_str *out);
/* The next value, checked for grammar and UTF-8 only: 1e999 passes. */
bool json_skip(struct json_reader *r);
/* Whole arrays of numbers in one call, into the arena; the fast path for large tensors. */
bool json_array_int64(struct json_reader *r, int64_t **out, size_t *n);
bool json_array_int32(struct json_reader *r, int32_t **out, size_t *n);
bool json_array_float(struct json_reader *r, float **out, size_t *n);      /* null fails */
bool json_array_float_null(struct json_reader *r, float **out, size_t *n); /* null reads as NaN */
bool json_end(struct json_reader *r); /* nothing but space left, and nothing failed */
/* Make the reader fail from outside, at the current place. */
void json_fail(struct json_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *json_error(const struct json_reader *r);
bool json_str_is(struct json_str s, const char *text);

/* Writer: appends to a buf and puts the commas itself.  NaN and infinities make it
 * fail (buf->failed).  Keys and strings must be valid UTF-8; invalid bytes are
 * replaced by U+FFFD. */
struct json_writer {
    struct buf *out;
    bool need_comma;
};

void json_writer_init(struct json_writer *w, struct buf *out);
void json_put_begin_object(struct json_writer *w);
void json_put_end_object(struct json_writer *w);
void json_put_begin_array(struct json_writer *w);
void json_put_end_array(struct json_writer *w);
void json_put_key(struct json_writer *w, const char *key);
void json_put_key_n(struct json_writer *w, const char *key, size_t n);
void json_put_null(struct json_writer *w);
void json_put_bool(struct json_writer *w, bool v);
void json_put_int64(struct json_writer *w, int64_t v);
void json_put_uint64(struct json_writer *w, uint64_t v);
/* Python's shortest text: 1.0, 0.0001, 1e-12 */
void json_put_double(struct json_writer *w, double v);
/* The shortest text that reads back as the same float. */
void json_put_float(struct json_writer *w, float v);
void json_put_string(struct json_writer *w, const char *s);
void json_put_string_n(struct json_writer *w, const char *s, size_t n);
void json_put_raw(struct json_writer *w, const char *json, size_t n);
void json_put_array_int64(struct json_writer *w, const int64_t *v, size_t n);
void json_put_array_int32(struct json_writer *w, const int32_t *v, size_t n);
void json_put_array_float(struct json_writer *w, const float *v, size_t n);

#endif
