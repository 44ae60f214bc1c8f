/* reader.c - the pull reader: structure, scalars, errors.
 *
 * r->p stands before the next token.  Per depth the reader remembers which bracket
 * closes it and whether a member was read, which is all the state JSON needs.  Every
 * function is a no-op that returns false once the reader failed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "json/decimal.h"
#include "json/internal.h"

enum { DEPTH_MAX = 64 };

void json_reader_init(struct json_reader *r, const char *s, size_t n, struct arena *arena)
{
    *r = (struct json_reader){ .start = s, .p = s, .end = s + n, .arena = arena };
}

void json_reader_part(struct json_reader *r, const struct json_reader *whole, struct json_str raw)
{
    *r = (struct json_reader){
        .start = whole->start, .p = raw.s, .end = raw.s + raw.n, .arena = whole->arena
    };
}

/* The first error is kept; after it every call returns false at once, so callers may check at the
 * end only. */
static __attribute__((format(printf, 3, 0))) void set_error(struct json_reader *r, const char *at,
                                                            const char *fmt, va_list ap)
{
    if (r->failed)
        return;
    r->failed = true;
    r->error_at = (size_t)(at - r->start);
    /* Counted only now: texts without errors do not pay for line numbers. */
    size_t line = 1, column = 1;
    for (const char *p = r->start; p < at; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    int n = snprintf(r->error, sizeof r->error, "line %zu, column %zu: ", line, column);
    vsnprintf(r->error + n, sizeof r->error - (size_t)n, fmt, ap);
}

bool json_fail_at(struct json_reader *r, const char *at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(r, at, fmt, ap);
    va_end(ap);
    return false;
}

void json_fail(struct json_reader *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_error(r, r->p, fmt, ap);
    va_end(ap);
}

const char *json_error(const struct json_reader *r)
{
    return r->error;
}

bool json_str_is(struct json_str s, const char *text)
{
    size_t n = strlen(text);
    return s.n == n && memcmp(s.s, text, n) == 0;
}

/* By its first character alone, consuming only white space. */
enum json_kind json_peek(struct json_reader *r)
{
    if (r->failed)
        return JSON_NONE;
    json_skip_space(r);
    if (r->p == r->end)
        return JSON_NONE;
    switch (*r->p) {
    case '{':
        return JSON_OBJECT;
    case '[':
        return JSON_ARRAY;
    case '"':
        return JSON_STRING;
    case 't':
    case 'f':
        return JSON_BOOL;
    case 'n':
        return JSON_NULL;
    /* Anything else is not a value; the reader that is called next reports it. */
    default:
        return *r->p == '-' || decimal_is_digit(*r->p) ? JSON_NUMBER : JSON_NONE;
    }
}

/* What stands at r->p, for messages. */
static const char *describe_next(const struct json_reader *r)
{
    static const char *const names[] = { "no value", "null",     "a boolean", "a number",
                                         "a string", "an array", "an object" };
    /* A copy, because the reader may have failed already and would say nothing. */
    struct json_reader copy = { .p = r->p, .end = r->end };
    json_skip_space(&copy);
    return copy.p == copy.end ? "the end of the text" : names[json_peek(&copy)];
}

/* Step to the next token and check that it begins with c. */
static bool skip_to_char(struct json_reader *r, char c)
{
    json_skip_space(r);
    return r->p < r->end && *r->p == c;
}

/* Enter an object or array: one level more, which a peer may not do for ever. */
static bool begin_container(struct json_reader *r, char open, char close, const char *what)
{
    if (r->failed)
        return false;
    if (!skip_to_char(r, open))
        return json_fail_at(r, r->p, "expected %s, found %s", what, describe_next(r));
    if (r->depth == DEPTH_MAX)
        return json_fail_at(r, r->p, "nested deeper than %d levels", DEPTH_MAX);
    r->p++;
    r->depth++;
    r->first[r->depth] = true;
    r->closer[r->depth] = close;
    return true;
}

/* Past the comma to the next member; false at the closing bracket or on failure. */
static bool next_member(struct json_reader *r, char close)
{
    if (r->failed)
        return false;
    if (r->depth == 0 || r->closer[r->depth] != close)
        return json_fail_at(r, r->p, "not inside %s", close == '}' ? "an object" : "an array");
    /* Before the first member no comma, before every other one: so "[1,]" and "[,1]" both fail. */
    bool first = r->first[r->depth];
    r->first[r->depth] = false;
    if (skip_to_char(r, close)) {
        r->p++;
        r->depth--;
        return false;
    }
    if (first)
        return true;
    if (r->p == r->end || *r->p != ',')
        return json_fail_at(r, r->p, "expected ',' or '%c'", close);
    r->p++;
    json_skip_space(r);
    return true;
}

bool json_begin_object(struct json_reader *r)
{
    return begin_container(r, '{', '}', "an object");
}

bool json_begin_array(struct json_reader *r)
{
    return begin_container(r, '[', ']', "an array");
}

bool json_next_item(struct json_reader *r)
{
    return next_member(r, ']');
}

/* The raw key and the colon after it. */
static bool scan_key(struct json_reader *r, struct json_str *raw, bool *escaped)
{
    if (!skip_to_char(r, '"'))
        return json_fail_at(r, r->p, "expected a name in quotes");
    if (!json_scan_string(r, raw, escaped))
        return false;
    if (!skip_to_char(r, ':'))
        return json_fail_at(r, r->p, "expected ':'");
    r->p++;
    return true;
}

bool json_next_key(struct json_reader *r, struct json_str *key)
{
    bool escaped = false;
    if (!next_member(r, '}') || !scan_key(r, key, &escaped))
        return false;
    return !escaped || json_unescape(r, *key, key);
}

/* Step over null, true or false, whose first letter was seen. */
static bool take_literal(struct json_reader *r, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0)
        return json_fail_at(r, r->p, "expected %s", word);
    r->p += n;
    return true;
}

/* The next value must be of this kind. */
static bool expect_kind(struct json_reader *r, enum json_kind kind, const char *what)
{
    if (r->failed)
        return false;
    if (json_peek(r) != kind)
        return json_fail_at(r, r->p, "expected %s, found %s", what, describe_next(r));
    return true;
}

bool json_null(struct json_reader *r)
{
    return expect_kind(r, JSON_NULL, "null") && take_literal(r, "null");
}

bool json_bool(struct json_reader *r, bool *out)
{
    if (!expect_kind(r, JSON_BOOL, "true or false"))
        return false;
    bool v = *r->p == 't';
    if (!take_literal(r, v ? "true" : "false"))
        return false;
    *out = v;
    return true;
}

/* The number at the next token, taken apart but not rounded yet. */
static bool scan_number(struct json_reader *r, const char *what, struct decimal *d)
{
    if (!expect_kind(r, JSON_NUMBER, what))
        return false;
    const char *p = decimal_scan(r->p, r->end, d);
    if (!p)
        return json_fail_at(r, r->p, "malformed number");
    r->p = p;
    return true;
}

/* An integer up to `most` in magnitude; INT64_MAX allows one more when it is negative. */
static bool scan_integer(struct json_reader *r, uint64_t most, uint64_t *magnitude, bool *negative)
{
    struct decimal d;
    bool fraction = false;
    if (!scan_number(r, "an integer", &d))
        return false;
    bool ok = decimal_uint64(&d, magnitude, &fraction);
    if (!ok && fraction)
        return json_fail_at(r, d.text, "expected an integer, found a fraction");
    *negative = d.negative;
    if (!ok || *magnitude > most + (d.negative && most == INT64_MAX))
        return json_fail_at(r, d.text, "integer out of range");
    return true;
}

bool json_int64(struct json_reader *r, int64_t *out)
{
    uint64_t magnitude = 0;
    bool negative = false;
    if (!scan_integer(r, INT64_MAX, &magnitude, &negative))
        return false;
    *out = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool json_uint64(struct json_reader *r, uint64_t *out)
{
    uint64_t magnitude = 0;
    bool negative = false;
    const char *at = (json_peek(r), r->p);
    if (!scan_integer(r, UINT64_MAX, &magnitude, &negative))
        return false;
    if (negative && magnitude)
        return json_fail_at(r, at, "integer out of range: it is negative");
    *out = magnitude;
    return true;
}

bool json_double(struct json_reader *r, double *out)
{
    struct decimal d;
    double v;
    if (!scan_number(r, "a number", &d))
        return false;
    if (!decimal_double(&d, &v))
        return json_fail_at(r, d.text, "number out of range");
    *out = v;
    return true;
}

bool json_string(struct json_reader *r, struct json_str *out)
{
    struct json_str raw;
    bool escaped = false;
    if (!expect_kind(r, JSON_STRING, "a string") || !json_scan_string(r, &raw, &escaped))
        return false;
    /* Borrowed from the input unless it must be rewritten. */
    if (escaped)
        return json_unescape(r, raw, out);
    *out = raw;
    return true;
}

bool json_cstring(struct json_reader *r, char **out)
{
    struct json_str s;
    const char *at = (json_peek(r), r->p);
    if (!json_string(r, &s))
        return false;
    /* "\u0000" is legal JSON; a C string would silently end there. */
    if (memchr(s.s, '\0', s.n))
        return json_fail_at(r, at, "the string contains a NUL character");
    char *copy = r->arena ? arena_strndup(r->arena, s.s, s.n) : NULL;
    if (!copy)
        return json_fail_at(r, at, "no memory for a string");
    *out = copy;
    return true;
}

/* Recursion is bounded by DEPTH_MAX. */
bool json_skip(struct json_reader *r)
{
    /* Values are checked but not kept, so nothing is allocated. */
    struct json_str raw;
    struct decimal d;
    bool flag = false;
    switch (json_peek(r)) {
    case JSON_NULL:
        return take_literal(r, "null");
    case JSON_BOOL:
        return json_bool(r, &flag);
    case JSON_NUMBER:
        return scan_number(r, "a number", &d);
    case JSON_STRING:
        return json_scan_string(r, &raw, &flag);
    case JSON_ARRAY:
        json_begin_array(r);
        while (json_next_item(r))
            json_skip(r);
        return !r->failed;
    case JSON_OBJECT:
        json_begin_object(r);
        while (next_member(r, '}') && scan_key(r, &raw, &flag))
            json_skip(r);
        return !r->failed;
    case JSON_NONE:
        break;
    }
    return json_fail_at(r, r->p, "expected a value, found %s", describe_next(r));
}

bool json_raw(struct json_reader *r, struct json_str *out)
{
    json_peek(r);
    /* Without the space before it: json_peek() has skipped that. */
    const char *start = r->p;
    if (!json_skip(r))
        return false;
    *out = (struct json_str){ start, (size_t)(r->p - start) };
    return true;
}

bool json_end(struct json_reader *r)
{
    if (r->failed)
        return false;
    json_skip_space(r);
    /* Inside a container the end of the document has not been read. */
    if (r->depth)
        return json_fail_at(r, r->p, "expected '%c'", r->closer[r->depth]);
    if (r->p != r->end)
        return json_fail_at(r, r->p, "more text after the end");
    return true;
}
