/* string.c - strings of the reader: checking, and resolving escapes.
 *
 * Checking is one pass that stops only at quotes, backslashes, control characters
 * and non-ASCII; a string without escapes is borrowed from the input. */
#include <string.h>
#include "base/utf8.h"
#include "json/internal.h"
#include "json/scan.h"

/* Four hexadecimal digits, or -1. */
static int parse_hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* UTF-16 (RFC 8259, 7): a high half and a low half make one character beyond U+FFFF. */
static bool is_high_surrogate(int v)
{
    return v >= 0xd800 && v <= 0xdbff;
}

static bool is_low_surrogate(int v)
{
    return v >= 0xdc00 && v <= 0xdfff;
}

/* Length of the escape at p (a backslash), or 0 with the reader failed. */
static size_t check_escape(struct json_reader *r, const char *p)
{
    if (r->end - p < 2) {
        json_fail_at(r, r->end, "the string does not end");
        return 0;
    }
    if (p[1] && strchr("\"\\/bfnrt", p[1]))
        return 2;
    if (p[1] != 'u') {
        json_fail_at(r, p, "unknown escape in a string");
        return 0;
    }
    int v = parse_hex4(p + 2, r->end);
    if (v < 0) {
        json_fail_at(r, p, "\\u needs four hexadecimal digits");
        return 0;
    }
    if (!is_high_surrogate(v) && !is_low_surrogate(v))
        return 6;
    /* A high half must be followed by a low one; alone, neither is a character. */
    if (is_high_surrogate(v) && r->end - p >= 12 && p[6] == '\\' && p[7] == 'u' &&
        is_low_surrogate(parse_hex4(p + 8, r->end)))
        return 12;
    json_fail_at(r, p, "half of a surrogate pair");
    return 0;
}

/* r->p is at the opening quote. raw is the text between the quotes, not yet unescaped but known
 * to be valid, so json_unescape() needs no checks. One pass checks everything: the end, control
 * characters, escapes and UTF-8. */
bool json_scan_string(struct json_reader *r, struct json_str *raw, bool *escaped)
{
    const char *start = r->p + 1, *p = start;
    *escaped = false;
    for (;;) {
        /* Sixteen bytes at a time over what needs no look. */
        p = scan_plain(p, r->end);
        if (p == r->end)
            return json_fail_at(r, p, "the string does not end");
        unsigned char c = (unsigned char)*p;
        if (c == '"')
            break;
        if (c < 0x20)
            return json_fail_at(r, p, "control character in a string");
        size_t n;
        if (c == '\\') {
            *escaped = true;
            n = check_escape(r, p);
            if (!n)
                return false;
        } else {
            uint32_t cp;
            n = (size_t)utf8_decode(p, (size_t)(r->end - p), &cp);
            if (!n)
                return json_fail_at(r, p, "invalid UTF-8");
        }
        p += n;
    }
    *raw = (struct json_str){ start, (size_t)(p - start) };
    r->p = p + 1;
    return true;
}

bool json_unescape(struct json_reader *r, struct json_str raw, struct json_str *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    /* No escape is shorter than what it stands for, so the raw length is enough. */
    char *copy = r->arena ? arena_alloc(r->arena, raw.n + 1) : NULL;
    if (!copy)
        return json_fail_at(r, raw.s, "no memory for a string");
    const char *p = raw.s, *end = raw.s + raw.n;
    char *q = copy;
    while (p < end) {
        /* Runs without escapes are copied as they are. */
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        size_t n = (size_t)((slash ? slash : end) - p);
        memcpy(q, p, n);
        q += n;
        p += n;
        if (!slash)
            break;
        if (p[1] != 'u') {
            *q++ = to[strchr(from, p[1]) - from];
            p += 2;
            continue;
        }
        /* A character beyond U+FFFF is a pair of surrogates, ten bits in each. */
        uint32_t cp = (uint32_t)parse_hex4(p + 2, end);
        p += 6;
        if (is_high_surrogate((int)cp)) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)parse_hex4(p + 2, end) - 0xdc00);
            p += 6;
        }
        q += utf8_encode(cp, q);
    }
    *out = (struct json_str){ copy, (size_t)(q - copy) };
    return true;
}
