/* bpe_reach.c - which tokens merging really produces from their own bytes.
 *
 * Such a token may be looked up whole instead of being merged.  Merging every token of a
 * vocabulary would answer the question; this is three times faster, in one pass over the merges
 * by rank:
 *
 * A token made of (left, right), both reachable, is reachable unless a merge reaches over the
 * boundary first.  Walk back in time from (left, right): undo whichever of the two tokens at the
 * boundary was made later, and ask whether the pair that then touches there would have merged
 * before either of its two was consumed.  At equal rank the leftmost pair goes first.
 *
 * A reachable token is made by one merge only, in any text: until a merge reaches over its ends,
 * what happens between them does not depend on what is around.  Other merges with the same result
 * never happen.
 *
 * Time is rank as long as every merge that happens comes after those that made its parts.  A
 * vocabulary that breaks this is left to the slow way. */
#include "text/bpe_reach.h"

#include <stdlib.h>
#include <string.h>
#include "text/unicode.h"

struct reach {
    const struct bpe *b;
    uint32_t *left, *right;
    uint32_t *made; /* rank + 1 of the merge that makes the token, 0: a symbol; BPE_NONE: not yet */
};

/* Whether nothing merges over the boundary of left and right before rank does. */
static bool stays_apart(const struct reach *r, uint32_t left, uint32_t right, uint32_t rank)
{
    uint32_t x = left, y = right, x_gone = rank + 1, y_gone = rank + 1;
    while (r->made[x] || r->made[y]) {
        if (r->made[x] > r->made[y]) {
            x_gone = r->made[x];
            x = r->right[x];
        } else {
            y_gone = r->made[y];
            y = r->left[y];
        }
        uint32_t across = bpe_pair(r->b, x, y).rank;
        if (across != BPE_NONE && across + 1 < x_gone && across + 1 <= y_gone)
            return false;
    }
    return true;
}

/* Tokens that are one symbol from the start. */
static void mark_symbols(struct reach *r)
{
    const struct bpe *b = r->b;
    for (uint32_t id = 0; id < b->n_ids; id++) {
        size_t n;
        unsigned len = 1;
        const unsigned char *p = (const unsigned char *)bpe_bytes(b, id, &n);
        r->made[id] = BPE_NONE;
        if (!(b->flags[id] & BPE_PLAIN) || n == 0)
            continue;
        if (!b->byte_level)
            uni_decode(p, &len);
        if (len == n)
            r->made[id] = 0;
    }
}

static bool mark_merged(struct reach *r, const struct bpe_pair *merges, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const struct bpe_pair *m = &merges[k];
        uint32_t a = r->made[m->left], b = r->made[m->right];
        if (k > 0 && m->rank < merges[k - 1].rank)
            return false;
        if (r->made[m->id] == 0) /* a symbol that is also made by a merge */
            return false;
        if (bpe_pair(r->b, m->left, m->right).rank != m->rank)
            continue; /* the same pair comes again later, and that one counts */
        if (a == BPE_NONE || b == BPE_NONE || r->made[m->id] != BPE_NONE)
            continue;
        if (a > m->rank || b > m->rank)
            continue; /* seen to below */
        if (!stays_apart(r, m->left, m->right, m->rank))
            continue;
        r->made[m->id] = m->rank + 1;
        r->left[m->id] = m->left;
        r->right[m->id] = m->right;
    }
    /* A merge whose part is made later than the merge's own rank.  If it ever happened, the first
     * such merge would find its parts side by side in a state that the others alone lead to; but
     * there the bytes of its result have become the result before, or will never. */
    for (size_t k = 0; k < n; k++) {
        const struct bpe_pair *m = &merges[k];
        uint32_t a = r->made[m->left], b = r->made[m->right];
        if (a != BPE_NONE && b != BPE_NONE && (a > m->rank || b > m->rank) &&
            r->made[m->id] == BPE_NONE)
            return false;
    }
    return true;
}

bool bpe_reach(const struct bpe *b, const struct bpe_pair *merges, size_t n, uint8_t *reachable,
               uint8_t *used)
{
    size_t count = (size_t)b->n_ids + 1;
    uint32_t *memory = malloc(3 * count * sizeof(*memory));
    if (!memory)
        return false;
    struct reach r = { b, memory, memory + count, memory + 2 * count };
    mark_symbols(&r);
    bool ok = mark_merged(&r, merges, n);
    for (uint32_t id = 0; ok && id < b->n_ids; id++)
        reachable[id] = r.made[id] != BPE_NONE;
    for (size_t k = 0; ok && k < n; k++) {
        const struct bpe_pair *m = &merges[k];
        used[k] =
            r.made[m->id] == m->rank + 1 && r.left[m->id] == m->left && r.right[m->id] == m->right;
    }
    free(memory);
    return ok;
}
