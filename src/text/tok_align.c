/* tok_align.c - which character of a text became which of its normal form.
 *
 * The reference's rule: decompose, sort the marks, compose; a result made of k of the source's
 * characters takes the place of the next k, and says it comes from the first of them; a result
 * made of none (the second half of a decomposition) comes from the one before.  The result
 * itself is known already, so only the counting is done here. */
#include "text/tok_align.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "text/unicode.h"

enum { MAX_PARTS = 32 }; /* of the decomposition of one character; U+FDFA has 18 */

struct part {
    uint32_t cp;
    unsigned char class;
    bool first; /* stands for a character of the source; the others were added */
    bool used;
};

/* Decompose one character; younger ones are left alone as in unicode.c. */
static int decompose(uint32_t cp, bool compat, utf8proc_int32_t out[MAX_PARTS])
{
    int last_boundclass = 0;
    utf8proc_ssize_t n = -1;
    if (cp >= 0x80 && !uni_in(uni_late, uni_late_n, cp))
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, MAX_PARTS,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                        (compat ? UTF8PROC_COMPAT : 0),
                                    &last_boundclass);
    if (n >= 1 && n <= MAX_PARTS)
        return (int)n;
    out[0] = (utf8proc_int32_t)cp;
    return 1;
}

static unsigned char combining(uint32_t cp)
{
    if (cp < 0x300 || uni_in(uni_late, uni_late_n, cp))
        return 0;
    return (unsigned char)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

static void sort_marks(struct part *parts, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && parts[k].class && parts[k - 1].class > parts[k].class; k--) {
            struct part swap = parts[k];
            parts[k] = parts[k - 1];
            parts[k - 1] = swap;
        }
}

/* Parts of the source in canonical order; NULL: out of memory. */
static struct part *parts_of(const char *s, size_t n, bool compat, size_t *count)
{
    struct part *parts = n > SIZE_MAX / 1024 ? NULL : malloc(n * MAX_PARTS * sizeof(*parts));
    size_t k = 0;
    unsigned len;
    for (size_t i = 0; parts && i < n; i += len) {
        utf8proc_int32_t out[MAX_PARTS];
        int m = decompose(uni_decode((const unsigned char *)s + i, &len), compat, out);
        for (int j = 0; j < m; j++)
            parts[k++] =
                (struct part){ (uint32_t)out[j], combining((uint32_t)out[j]), j == 0, false };
    }
    if (parts)
        sort_marks(parts, k);
    *count = k;
    return parts;
}

/* Number of source characters in the result character cp. */
static size_t take(struct part *parts, size_t n, uint32_t cp)
{
    utf8proc_int32_t want[MAX_PARTS];
    int m = decompose(cp, false, want);
    size_t taken = 0, i = 0;
    for (int j = 0; j < m; j++) {
        while (i < n && (parts[i].used || parts[i].cp != (uint32_t)want[j]))
            i++;
        if (i == n)
            break;
        parts[i].used = true;
        taken += parts[i].first;
    }
    return taken;
}

bool tok_align(const char *source, size_t n, const char *result, size_t m, bool compat,
               uint32_t *origin)
{
    size_t count, at = 0, k = 0;
    struct part *parts = parts_of(source, n, compat, &count);
    if (!parts)
        return false;
    unsigned len;
    for (size_t i = 0; i < m; i += len) {
        size_t taken = take(parts, count, uni_decode((const unsigned char *)result + i, &len));
        origin[k++] = (uint32_t)(taken > 0 || at == 0 ? at : at - 1);
        at += taken;
    }
    free(parts);
    return true;
}
