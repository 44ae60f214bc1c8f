/* tok_align.c - which character of a text became which of its normal form.
 *
 * The reference's rule: decompose, sort the marks, compose; a result made of k of the source's
 * characters takes the place of the next k, and says it comes from the first of them; a result
 * made of none (the second half of a decomposition) comes from the one before.  The result
 * itself is known already, so only the counting is done here. */
#include "tokenizer/tok_align.h"

#include <stdlib.h>
#include "unicode/unicode.h"

/* Number of source characters in the result character cp; the first *used parts are. */
static size_t count_sources(struct uni_part *parts, size_t n, size_t *used, uint32_t cp)
{
    int32_t want[UNI_PARTS_MAX];
    int m = uni_decompose(cp, false, want);
    while (*used < n && parts[*used].used) /* so that the search does not start over each time */
        ++*used;
    size_t taken = 0, i = *used;
    /* Marks were sorted, so the parts of one result need not be neighbors, but are in order. */
    for (int j = 0; j < m; j++) {
        while (i < n && (parts[i].used || parts[i].cp != (uint32_t)want[j]))
            i++;
        if (i == n) /* not made of these: composition took another way */
            break;
        parts[i].used = true;
        taken += parts[i].first;
    }
    return taken;
}

bool tok_align(const char *source, size_t n, const char *result, size_t m, bool compat,
               uint32_t *origin)
{
    size_t count, used = 0, at = 0, k = 0;
    struct uni_part *parts = uni_parts(source, n, compat, &count);
    if (!parts)
        return false;
    unsigned len;
    for (size_t i = 0; i < m; i += len) {
        uint32_t cp = uni_decode((const unsigned char *)result + i, &len);
        size_t taken = count_sources(parts, count, &used, cp);
        /* a result made of none comes from the source character before */
        origin[k++] = (uint32_t)(taken > 0 || at == 0 ? at : at - 1);
        at += taken;
    }
    free(parts);
    return true;
}
