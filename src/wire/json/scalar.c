/* scalar.c - reads texts, numbers, truth values and times from JSON.
 *
 * In lenient mode the coercions are those of the reference's validator: integers
 * from digit strings, whole floats and booleans; numbers from numeric strings;
 * booleans from 0, 1 and a few words; texts from texts only. */
#include "wire/json/scalar.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/base64.h"
#include "base/number.h"
#include "wire/timestamp.h"

/* The error names both kinds, by enum json_kind. Lenient readers that convert ("3" to 3, 1 to true)
 * look at the kind before they call this. */
bool wire_expect(struct wire_reader *r, enum json_kind kind)
{
    static const char *const names[] = { "a value", "null",     "true or false", "a number",
                                         "a text",  "an array", "an object" };
    static const char *const found[] = { "nothing", "null",     "a boolean", "a number",
                                         "a text",  "an array", "an object" };
    /* Peeking consumes nothing, so the caller can go on with any reader. */
    enum json_kind got = json_peek(&r->json);
    if (got == kind)
        return true;
    if (got == JSON_NONE) {
        json_skip(&r->json); /* reports what is wrong with the text itself */
        if (!wire_read_ok(r))
            return false;
    }
    return wire_read_fail(r, "expected %s, got %s", names[kind], found[got]);
}

/* The copy is the arena's and ends with NUL; a NUL inside the text is an error. */
bool wire_read_string(struct wire_reader *r, const char **out)
{
    char *s = NULL;
    if (!wire_expect(r, JSON_STRING))
        return false;
    if (!json_cstring(&r->json, &s))
        /* No fault of the text: then memory was short. */
        return wire_read_ok(r) && wire_read_nomem(r);
    *out = s;
    return true;
}

/* The text of the next string without surrounding space, in buf; false if too long. */
static bool read_short_text(struct wire_reader *r, char *buf, size_t size)
{
    struct json_str s;
    /* Borrowed, hence the copy: the parsers below want a NUL at the end. */
    if (!json_string(&r->json, &s))
        return false;
    /* Space around the number is allowed, as in int() and float() of Python. */
    while (s.n && isspace((unsigned char)s.s[0])) {
        s.s++;
        s.n--;
    }
    while (s.n && isspace((unsigned char)s.s[s.n - 1]))
        s.n--;
    if (s.n == 0 || s.n >= size)
        return false;
    memcpy(buf, s.s, s.n);
    buf[s.n] = '\0';
    return true;
}

/* [+-]digits, single underscores between them, optionally ".000" */
static bool parse_int_text(const char *s, int64_t *out)
{
    /* int() of Python: "1_000" is a number, "_1", "1__0" and "1_" are not. An int64 has at most 19
     * digits; leading zeros may fill the rest of the room. */
    char digits[32];
    size_t n = 0;
    bool after_digit = false;
    if (*s == '+' || *s == '-')
        digits[n++] = *s++;
    for (; *s && *s != '.'; s++) {
        if (*s == '_' && after_digit && isdigit((unsigned char)s[1])) {
            after_digit = false;
            continue;
        }
        after_digit = isdigit((unsigned char)*s);
        if (!after_digit || n + 1 >= sizeof digits)
            return false;
        digits[n++] = *s;
    }
    if (!after_digit)
        return false;
    /* "3.0" is an integer, "3." and "3.5" are not. */
    if (*s == '.' && (s[1] == '\0' || s[1 + strspn(s + 1, "0")] != '\0'))
        return false;
    digits[n] = '\0';
    /* strtoll() reports a number that is too large by errno only. */
    errno = 0;
    *out = strtoll(digits, NULL, 10);
    return errno == 0;
}

/* json_int64() takes 3.0, too, but no fraction and nothing beyond 64 bits. */
bool wire_read_int(struct wire_reader *r, int64_t *out)
{
    /* pydantic's lax mode, with which the reference reads, converts texts and booleans to numbers.
     * A float must be whole: 3.0, but not 3.5. */
    enum json_kind kind = json_peek(&r->json);
    char text[48];
    bool b = false;
    if (r->mode == WIRE_LENIENT && kind == JSON_STRING) {
        if (read_short_text(r, text, sizeof text) && parse_int_text(text, out))
            return true;
        return wire_read_ok(r) && wire_read_fail(r, "expected an integer, got a text");
    }
    if (r->mode == WIRE_LENIENT && kind == JSON_BOOL) {
        if (!json_bool(&r->json, &b))
            return wire_read_ok(r);
        *out = b;
        return true;
    }
    if (!wire_expect(r, JSON_NUMBER))
        return false;
    return json_int64(&r->json, out) || wire_read_ok(r);
}

/* A decimal number, single underscores between digits allowed; with `any` also "nan", "inf" and
 * "infinity" in any case. */
static bool parse_double_text(char *s, bool any, double *out)
{
    bool minus = *s == '-';
    const char *word = s + (minus || *s == '+');
    if (any && strcasecmp(word, "nan") == 0) {
        *out = NAN;
        return true;
    }
    if (any && (strcasecmp(word, "inf") == 0 || strcasecmp(word, "infinity") == 0)) {
        *out = minus ? -INFINITY : INFINITY;
        return true;
    }
    /* Underscores are squeezed out in place. Only characters of a decimal number pass, because
     * strtod() in number_read() takes hexadecimal as well. */
    size_t n = 0;
    for (size_t i = 0; s[i]; i++) {
        bool between = i && isdigit((unsigned char)s[i - 1]) && isdigit((unsigned char)s[i + 1]);
        if (s[i] == '_' && between)
            continue;
        if (!isdigit((unsigned char)s[i]) && !strchr("+-.eE", s[i]))
            return false;
        s[n++] = s[i];
    }
    s[n] = '\0';
    return number_read(s, out);
}

/* any: metrics may be NaN or infinite, settings may not. */
static bool read_double(struct wire_reader *r, bool any, double *out)
{
    enum json_kind kind = json_peek(&r->json);
    char text[64];
    bool b = false;
    if (r->mode == WIRE_LENIENT && kind == JSON_STRING) {
        if (read_short_text(r, text, sizeof text) && parse_double_text(text, any, out))
            return true;
        return wire_read_ok(r) && wire_read_fail(r, "expected a number, got a text");
    }
    if (r->mode == WIRE_LENIENT && kind == JSON_BOOL) {
        if (!json_bool(&r->json, &b))
            return wire_read_ok(r);
        *out = b;
        return true;
    }
    if (!wire_expect(r, JSON_NUMBER))
        return false;
    return json_double(&r->json, out) || wire_read_ok(r);
}

bool wire_read_double(struct wire_reader *r, double *out)
{
    return read_double(r, false, out);
}

/* A diverged run reports NaN: its metrics must be readable. */
bool wire_read_metric(struct wire_reader *r, double *out)
{
    /* The words come as texts, because JSON has no number for them. */
    return read_double(r, true, out);
}

/* The words are pydantic's. */
bool wire_read_bool(struct wire_reader *r, bool *out)
{
    /* Pairs of false and true, so an odd index is true. */
    static const char *const words[] = { "false", "true", "f",   "t",  "no", "yes",
                                         "n",     "y",    "off", "on", "0",  "1" };
    enum json_kind kind = json_peek(&r->json);
    if (r->mode == WIRE_LENIENT && kind == JSON_NUMBER) {
        double v = 0;
        if (!json_double(&r->json, &v))
            return wire_read_ok(r);
        /* 1.0 is true for the reference, 2 is a mistake. */
        if (v != 0 && v != 1)
            return wire_read_fail(r, "expected true or false, got a number");
        *out = v == 1;
        return true;
    }
    if (r->mode == WIRE_LENIENT && kind == JSON_STRING) {
        struct json_str s;
        /* The words as they are: other than numbers, they may not have space around them. */
        bool ok = json_string(&r->json, &s);
        for (size_t i = 0; ok && i < sizeof words / sizeof words[0]; i++) {
            if (s.n == strlen(words[i]) && strncasecmp(s.s, words[i], s.n) == 0) {
                *out = i % 2 == 1;
                return true;
            }
        }
        return wire_read_ok(r) && wire_read_fail(r, "expected true or false, got a text");
    }
    if (!wire_expect(r, JSON_BOOL))
        return false;
    return json_bool(&r->json, out) || wire_read_ok(r);
}

/* RFC 3339 text; lenient also a number, as pydantic reads it. */
bool wire_read_time(struct wire_reader *r, struct wire_time *out)
{
    /* Seconds or milliseconds since 1970; the size tells which. */
    if (r->mode == WIRE_LENIENT && json_peek(&r->json) == JSON_NUMBER) {
        double v = 0;
        if (!json_double(&r->json, &v))
            return wire_read_ok(r);
        return wire_time_from_number(v, out) || wire_read_fail(r, "no such point in time");
    }
    if (!wire_expect(r, JSON_STRING))
        return false;
    struct json_str s;
    if (!json_string(&r->json, &s))
        return wire_read_ok(r);
    return wire_time_parse(s.s, s.n, out) ||
           wire_read_fail(r, "expected a date and time such as 2026-08-09T10:11:12Z");
}

/* A number beyond 64 bits, which json_int64() would refuse; texts and booleans go the way of every
 * integer. */
bool wire_read_seed(struct wire_reader *r, int64_t *out)
{
    if (json_peek(&r->json) != JSON_NUMBER)
        return wire_read_int(r, out);
    struct json_str s;
    if (!json_raw(&r->json, &s))
        return wire_read_ok(r);
    /* Seeds are Python integers of any size.  Those beyond int64_t are folded, modulo 2^63 - 1:
     * the same seed gives the same stream, which is all a seed promises. */
    bool negative = s.n && s.s[0] == '-';
    const uint64_t modulus = INT64_MAX;
    uint64_t magnitude = 0;
    bool large = false;
    for (size_t i = negative; i < s.n; i++) {
        if (!isdigit((unsigned char)s.s[i])) {
            /* 3.0 and 1e3: rare enough to go the general way */
            struct wire_reader one = *r;
            json_reader_part(&one.json, &r->json, s);
            if (wire_read_int(&one, out))
                return true;
            r->status = one.status;
            return false;
        }
        uint64_t digit = (uint64_t)(s.s[i] - '0');
        large = large || magnitude > (modulus - digit) / 10;
        /* magnitude < 2^63, so each doubling stays below 2^64: x * 10 is x * 2 + x * 8 modulo m. */
        uint64_t twice = (magnitude * 2) % modulus;
        uint64_t eight = (((twice * 2) % modulus) * 2) % modulus;
        magnitude = large ? ((twice + eight) % modulus + digit) % modulus : magnitude * 10 + digit;
    }
    /* As % of Python does: the result is never negative. */
    if (large && negative)
        magnitude = magnitude ? modulus - magnitude : 0;
    *out = !large && negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

/* Standard base64; the bytes are the arena's. */
bool wire_read_bytes(struct wire_reader *r, const void **out, size_t *n)
{
    struct json_str s;
    if (!wire_expect(r, JSON_STRING))
        return false;
    if (!json_string(&r->json, &s))
        return wire_read_ok(r);
    struct buf b;
    buf_init(&b, s.n + 4);
    /* Into a buffer first, because the length is known only when foreign characters were skipped,
     * as the reference does. Its maximum is more than what base64 of that length decodes to. */
    bool ok = base64_decode(&b, s.s, s.n);
    bool full = !buf_ok(&b);
    void *copy = ok ? arena_memdup(r->arena, b.data ? b.data : "", b.len) : NULL;
    /* Not NULL even for no bytes, which are given. */
    *out = copy;
    *n = b.len;
    buf_clear(&b);
    if (!ok && !full)
        return wire_read_fail(r, "expected base64");
    return copy != NULL || wire_read_nomem(r);
}
