/* unicode.c - normal forms and the repair of ill-formed UTF-8.
 *
 * utf8proc normalises; it knows a newer Unicode than the reference.  By the stability policy a
 * text of old characters only has the same normal form in every version, so it is enough to
 * hand over the spans between younger characters, which the reference leaves alone. */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

bool uni_in(const struct uni_range *ranges, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp > ranges[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && cp >= ranges[lo].first;
}

bool uni_is_word(uint32_t cp)
{
    unsigned c = uni_class(cp);
    if (c & (UNI_L | UNI_M))
        return true;
    if (c & UNI_N) { /* Nd and Nl, not No */
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
        return category != UTF8PROC_CATEGORY_NO;
    }
    if (cp == 0x200C || cp == 0x200D)
        return true;
    if (c & UNI_P)
        return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_PC;
    /* circled and squared letters: symbols that are Alphabetic */
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

static inline unsigned nfc_class(uint32_t cp)
{
    return uni_nfc_data[((unsigned)uni_nfc_index[cp >> 7] << 7) | (cp & 127)];
}

size_t uni_nfc_prefix(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n, *safe = p;
    unsigned last = 0;
    while (p < end) {
        if (*p < 0xCC) { /* below U+0300 nothing combines and everything is composed */
            safe = p;
            last = 0;
            p += *p < 0x80 ? 1 : 2;
            continue;
        }
        unsigned len, class = nfc_class(uni_decode(p, &len));
        if (class == 255 || (class && class < last))
            return (size_t)(safe - (const unsigned char *)text);
        if (class == 0)
            safe = p;
        last = class;
        p += len;
    }
    return n;
}

/* Append the normal form of a span without younger characters. */
static bool normalize_span(struct buf *out, const char *text, size_t n, enum uni_form form)
{
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= form == UNI_NFC || form == UNI_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == UNI_NFKC || form == UNI_NFKD)
        options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t *result = NULL;
    utf8proc_ssize_t len =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &result, options);
    if (len < 0) {
        free(result);
        return false;
    }
    buf_append(out, result, (size_t)len);
    free(result);
    return true;
}

/* Length of the prefix of text[0..n) that ends before the next character from which the text
 * is normalised on its own: a starter with quick check yes that is not the first character. */
static size_t nfc_span(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    unsigned len;
    uni_decode(p, &len);
    for (p += len; p < end; p += len)
        if (nfc_class(uni_decode(p, &len)) == 0)
            break;
    return (size_t)(p - (const unsigned char *)text);
}

/* Length of the prefix of text[0..n) without younger characters (late: only with them). */
static size_t run_by_age(const char *text, size_t n, bool late)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        unsigned len = 1;
        bool is_late = false;
        if (*p >= 0x80) {
            uint32_t cp = uni_decode(p, &len);
            is_late = uni_in(uni_late, uni_late_n, cp);
        }
        if (is_late != late)
            break;
        p += len;
    }
    return (size_t)(p - (const unsigned char *)text);
}

static bool normalize_old(struct buf *out, const char *text, size_t n, enum uni_form form)
{
    if (form != UNI_NFC)
        return normalize_span(out, text, n, form);
    while (n > 0) { /* copy what is normal, hand over only the spans that are not */
        size_t done = uni_nfc_prefix(text, n);
        buf_append(out, text, done);
        text += done;
        n -= done;
        if (n == 0)
            break;
        size_t span = nfc_span(text, n);
        if (!normalize_span(out, text, span, form))
            return false;
        text += span;
        n -= span;
    }
    return true;
}

bool uni_normalize(struct buf *out, const char *text, size_t n, enum uni_form form)
{
    while (n > 0) {
        size_t old = run_by_age(text, n, false);
        if (old > 0 && !normalize_old(out, text, old, form))
            return false;
        size_t late = run_by_age(text + old, n - old, true);
        buf_append(out, text + old, late);
        text += old + late;
        n -= old + late;
    }
    return buf_ok(out);
}

size_t uni_bad_part(const char *text, size_t n, bool *incomplete)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned char lo = 0x80, hi = 0xBF;
    size_t want;
    *incomplete = false;
    if (p[0] >= 0xC2 && p[0] <= 0xDF)
        want = 2;
    else if (p[0] >= 0xE0 && p[0] <= 0xEF)
        want = 3;
    else if (p[0] >= 0xF0 && p[0] <= 0xF4)
        want = 4;
    else
        return 1;
    if (p[0] == 0xE0)
        lo = 0xA0;
    else if (p[0] == 0xED)
        hi = 0x9F;
    else if (p[0] == 0xF0)
        lo = 0x90;
    else if (p[0] == 0xF4)
        hi = 0x8F;
    for (size_t i = 1; i < want; i++, lo = 0x80, hi = 0xBF) {
        if (i == n) {
            *incomplete = true;
            return n;
        }
        if (p[i] < lo || p[i] > hi)
            return i;
    }
    return want;
}

void uni_repair(struct buf *out, const char *text, size_t n)
{
    while (n > 0) {
        size_t good = utf8_valid_prefix(text, n);
        buf_append(out, text, good);
        text += good;
        n -= good;
        if (n == 0)
            break;
        bool incomplete;
        size_t bad = uni_bad_part(text, n, &incomplete);
        buf_append(out, "\xEF\xBF\xBD", 3);
        text += bad;
        n -= bad;
    }
}
