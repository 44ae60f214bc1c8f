/* unicode.c - normal forms and the repair of ill-formed UTF-8.
 *
 * utf8proc decomposes and composes; it knows a newer Unicode than the reference.  By the stability
 * policy a text of old characters only has the same normal form in every version, so it is enough
 * to hand over the spans between younger characters, which the reference leaves alone. */
#include "unicode/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* Binary search for the first range that does not end before cp. */
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

/* \w as Unicode's TR18 has it: Alphabetic, marks, decimal numbers, connectors, joiners. */
bool uni_is_word(uint32_t cp)
{
    unsigned c = uni_class(cp);
    if (c & (UNI_L | UNI_M))
        return true;
    if (c & UNI_N) { /* Nd and Nl, not No */
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
        return category != UTF8PROC_CATEGORY_NO;
    }
    if (cp == 0x200C || cp == 0x200D) /* Join_Control */
        return true;
    if (c & UNI_P)
        return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_PC;
    /* circled and squared letters: symbols that are Alphabetic */
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

/* Whether a character is younger than the reference's normalization. */
static inline bool is_late(uint32_t cp)
{
    return cp >= uni_late[0].first && uni_in(uni_late, uni_late_n, cp);
}

int uni_decompose(uint32_t cp, bool compat, int32_t out[UNI_PARTS_MAX])
{
    int last_boundclass = 0;
    utf8proc_ssize_t n = -1;
    if (cp >= 0x80 && !is_late(cp))
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, UNI_PARTS_MAX,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                        (compat ? UTF8PROC_COMPAT : 0),
                                    &last_boundclass);
    if (n >= 1 && n <= UNI_PARTS_MAX)
        return (int)n;
    out[0] = (int32_t)cp;
    return 1;
}

/* Marks by class, equal ones as they are.  A counting sort: a text may well be a megabyte of marks,
 * which must not take quadratic time. */
static bool sort_marks(struct uni_part *marks, size_t n)
{
    size_t next[256] = { 0 }, at = 0;
    struct uni_part *copy = malloc(n * sizeof(*copy));
    if (!copy)
        return false;
    memcpy(copy, marks, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        next[copy[i].class]++;
    for (int c = 0; c < 256; c++) {
        size_t count = next[c];
        next[c] = at;
        at += count;
    }
    for (size_t i = 0; i < n; i++)
        marks[next[copy[i].class]++] = copy[i];
    free(copy);
    return true;
}

struct uni_part *uni_parts(const char *text, size_t n, bool compat, size_t *count)
{
    struct uni_part *parts = NULL;
    size_t k = 0, cap = 0;
    unsigned len;
    for (size_t i = 0; i < n; i += len) {
        int32_t out[UNI_PARTS_MAX];
        int m = uni_decompose(uni_decode((const unsigned char *)text + i, &len), compat, out);
        if (cap - k < UNI_PARTS_MAX) {
            cap = cap ? 2 * cap : n / 2 + UNI_PARTS_MAX;
            struct uni_part *more =
                cap > SIZE_MAX / 16 ? NULL : realloc(parts, cap * sizeof(*more));
            if (!more) {
                free(parts);
                return NULL;
            }
            parts = more;
        }
        for (int j = 0; j < m; j++) {
            uint32_t cp = (uint32_t)out[j];
            uint8_t class = 0; /* of a starter, which marks follow */
            if (cp >= 0x300 && !is_late(cp))
                class = (uint8_t)utf8proc_get_property(out[j])->combining_class;
            parts[k++] = (struct uni_part){ .cp = cp, .class = class, .first = j == 0 };
        }
    }
    *count = k;
    /* Canonical order (Unicode Standard, 3.11): each run of marks is sorted by class. */
    for (size_t i = 0, end; i < k; i = end) {
        bool sorted = true;
        for (end = i + 1; parts[i].class && end < k && parts[end].class; end++)
            sorted = sorted && parts[end - 1].class <= parts[end].class;
        if (!sorted && !sort_marks(parts + i, end - i)) {
            free(parts);
            return NULL;
        }
    }
    return parts;
}

/* Append the normal form of a span without younger characters.  utf8proc_map() would do all of it,
 * but takes the square of the length to sort marks. */
static bool normalize_span(struct buf *out, const char *text, size_t n, enum uni_form form)
{
    size_t count;
    struct uni_part *parts = uni_parts(text, n, form == UNI_NFKC || form == UNI_NFKD, &count);
    utf8proc_int32_t *cps = parts ? malloc(count * sizeof(*cps)) : NULL;
    for (size_t i = 0; cps && i < count; i++)
        cps[i] = (utf8proc_int32_t)parts[i].cp;
    free(parts);
    if (!cps)
        return false;
    if (form == UNI_NFC || form == UNI_NFKC)
        count = (size_t)utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)count,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        buf_append(out, bytes, (size_t)utf8_encode((uint32_t)cps[i], bytes));
    }
    free(cps);
    return true;
}

/* Length of the prefix of text[0..n) without younger characters (late: only with them). */
static size_t find_age_run(const char *text, size_t n, bool late)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        unsigned len = 1;
        bool young = *p >= 0x80 && is_late(uni_decode(p, &len));
        if (young != late)
            break;
        p += len;
    }
    return (size_t)(p - (const unsigned char *)text);
}

bool uni_normalize(struct buf *out, const char *text, size_t n, enum uni_form form)
{
    while (n > 0) {
        size_t old = find_age_run(text, n, false);
        /* Of NFC, copy what is normal and hand over only the spans that are not. */
        for (size_t at = 0; at < old;) {
            size_t normal = form == UNI_NFC ? uni_nfc_prefix(text + at, old - at) : 0;
            buf_append(out, text + at, normal);
            at += normal;
            if (at == old)
                break;
            /* It ends before the next character from which the text is normalized on its own: a
             * starter with quick check yes that is not the first character. */
            const unsigned char *from = (const unsigned char *)text + at, *p = from;
            const unsigned char *end = (const unsigned char *)text + old;
            unsigned len;
            uni_decode(p, &len);
            p = form == UNI_NFC ? p + len : end;
            while (p < end && uni_nfc_class(uni_decode(p, &len)) != 0)
                p += len;
            if (!normalize_span(out, text + at, (size_t)(p - from), form))
                return false;
            at += (size_t)(p - from);
        }
        size_t late = find_age_run(text + old, n - old, true);
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
    /* Unicode Standard, table 3-7: the second byte of these is limited further */
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

/* One U+FFFD for each maximal ill-formed part, as the standard recommends and Rust and Python do. */
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
