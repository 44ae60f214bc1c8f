/* jinja_text.c - what Python's str does: trimming and searching.
 *
 * Text is UTF-8 and counted in code points where Python counts them.  Pure functions. */
#include "jinja/jinja_value.h"

#include <string.h>
#include "base/utf8.h"

/* str.isspace(): White_Space of Unicode and the four separators U+001C to U+001F, which Python
 * adds. */
bool text_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* Each code point has one byte that is not a continuation byte (10xxxxxx): its first. */
size_t text_length(struct jv_str s)
{
    size_t count = 0;
    for (size_t i = 0; i < s.n; i++)
        count += ((unsigned char)s.s[i] & 0xc0) != 0x80;
    return count;
}

/* Whether cp is one of the code points of `chars`; NULL is white space, as strip() without an
 * argument. */
static bool in_set(uint32_t cp, const char *chars)
{
    if (!chars)
        return text_is_space(cp);
    size_t n = strlen(chars);
    for (size_t i = 0; i < n;) {
        uint32_t c;
        int len = utf8_decode(chars + i, n - i, &c);
        if (len == 0)
            return false;
        if (c == cp)
            return true;
        i += (size_t)len;
    }
    return false;
}

/* The result is a part of s, nothing is copied. Ill-formed bytes are never trimmed. From the right,
 * continuation bytes lead back to the start of the last character. */
struct jv_str text_trim(struct jv_str s, const char *chars, bool left, bool right)
{
    uint32_t cp;
    while (left && s.n > 0) {
        int len = utf8_decode(s.s, s.n, &cp);
        if (len == 0 || !in_set(cp, chars))
            break;
        s.s += len;
        s.n -= (size_t)len;
    }
    while (right && s.n > 0) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.s[at] & 0xc0) == 0x80)
            at--;
        int len = utf8_decode(s.s + at, s.n - at, &cp);
        if (len == 0 || !in_set(cp, chars))
            break;
        s.n = at;
    }
    return s;
}

/* memchr() jumps from candidate to candidate; a text that nearly matches everywhere costs |s| *
 * |what|, which text_find_steps() charges. */
size_t text_find(struct jv_str s, struct jv_str what, size_t from)
{
    if (from > s.n || what.n > s.n - from)
        return SIZE_MAX;
    if (what.n == 0)
        return from;
    /* `end` is one past the last place where `what` still fits. UTF-8 is self-synchronizing, so a
     * match of bytes never begins inside a character. */
    const char *end = s.s + s.n - what.n + 1;
    for (const char *p = s.s + from; p < end; p++) {
        p = memchr(p, what.s[0], (size_t)(end - p));
        if (!p)
            return SIZE_MAX;
        if (memcmp(p, what.s, what.n) == 0)
            return (size_t)(p - s.s);
    }
    return SIZE_MAX;
}

/* One step for 64 by 64 bytes: a long text and a short word cost what reading the text costs, two
 * long texts that nearly match run into the limit of steps instead of taking seconds. */
uint64_t text_find_steps(struct jv_str s, struct jv_str what)
{
    return 1 + (uint64_t)(s.n / 64 + 1) * (what.n / 64 + 1);
}

/* Tries every place from the right; callers charge text_find_steps() first. An empty `what` is
 * found at the end. */
size_t text_rfind(struct jv_str s, struct jv_str what)
{
    if (what.n > s.n)
        return SIZE_MAX;
    for (size_t at = s.n - what.n + 1; at-- > 0;)
        if (what.n == 0 || memcmp(s.s + at, what.s, what.n) == 0)
            return at;
    return SIZE_MAX;
}

/* For C code; templates have the method. */
bool text_starts(struct jv_str s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.n >= n && memcmp(s.s, prefix, n) == 0;
}

bool text_ends(struct jv_str s, const char *suffix)
{
    size_t n = strlen(suffix);
    return s.n >= n && memcmp(s.s + s.n - n, suffix, n) == 0;
}
