/* bpe_boundary.c - which tokens merging really produces from their own bytes.
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
#include "tokenizer/bpe/bpe_boundary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "unicode/unicode.h"

/* Whether no parts of left and right merge over their boundary before `until`, a rank + 1. */
static bool stays_apart(const struct bpe *b, const struct bpe_part *parts, uint32_t left,
                        uint32_t right, uint32_t until)
{
    /* x and y touch at the boundary; each exists from its `made` up to its `gone`. */
    uint32_t x_gone = until, y_gone = until;
    for (;;) {
        struct bpe_part x = parts[left], y = parts[right];
        x.made = x.made < x_gone ? x.made : 0; /* so that tables of whatever making have an end */
        y.made = y.made < y_gone ? y.made : 0;
        if (x.made == 0 && y.made == 0)
            return true;
        if (x.made > y.made) { /* undo the later one: its inner part is at the boundary then */
            x_gone = x.made;
            left = x.right;
        } else {
            y_gone = y.made;
            right = y.left;
        }
        /* At equal rank the leftmost pair goes first: the merge that consumes x lies to the left of
         * this pair, the one that consumes y to its right. */
        uint32_t across = bpe_pair(b, left, right).rank;
        if (across != BPE_NONE && across + 1 < x_gone && across + 1 <= y_gone)
            return false;
    }
}

bool bpe_boundary_holds(const struct bpe *b, uint32_t left, uint32_t right)
{
    return bpe_pair(b, left, right).rank == BPE_NONE &&
           stays_apart(b, b->parts, left, right, BPE_NONE);
}

/* Fill in the parts of merged tokens, by rank; false: the order of the merges decides nothing.
 * A merge matters only to those of a later rank, so near names the ones so far: then most questions
 * need no look into the table of pairs. */
static bool mark_merged(const struct bpe *b, const struct bpe_pair *merges, size_t n,
                        struct bpe_part *parts)
{
    for (size_t k = 0; k < n; k++) {
        const struct bpe_pair *m = &merges[k];
        uint32_t left = parts[m->left].made, right = parts[m->right].made;
        parts[m->left].near |= 1u << bpe_bin(m->right);
        parts[m->right].near |= 65536u << bpe_bin(m->left);
        if (k > 0 && m->rank < merges[k - 1].rank)
            return false;
        if (parts[m->id].made == 0) /* a symbol that is also made by a merge */
            return false;
        if (b->header->flags & BPE_TWICE && bpe_pair(b, m->left, m->right).rank != m->rank)
            continue; /* the same pair comes again later, and that one counts */
        if (left == BPE_NONE || right == BPE_NONE || parts[m->id].made != BPE_NONE)
            continue;
        if (left > m->rank || right > m->rank)
            continue; /* seen to by no_late_merge() */
        if (!stays_apart(b, parts, m->left, m->right, m->rank + 1))
            continue;
        parts[m->id].left = m->left;
        parts[m->id].right = m->right;
        parts[m->id].made = m->rank + 1;
    }
    return true;
}

/* Whether no merge happens that has a part which is made later than the merge's own rank.  If one
 * did, the first would find its parts side by side in a state that the others alone lead to.  Where
 * its result is a token made in time, the bytes have become that before, or never will; where it
 * is not, it is enough to see that merging its bytes does not give it either. */
static bool no_late_merge(const struct bpe *b, const struct bpe_pair *merges, size_t n,
                          const struct bpe_part *parts)
{
    struct bpe_ctx ctx = { 0 };
    struct bpe_out out = { 0 };
    bool ok = true;
    for (size_t k = 0; ok && k < n; k++) {
        const struct bpe_pair *m = &merges[k];
        uint32_t left = parts[m->left].made, right = parts[m->right].made;
        if (left != BPE_NONE && right != BPE_NONE && (left > m->rank || right > m->rank) &&
            parts[m->id].made == BPE_NONE) {
            size_t len;
            const char *p = bpe_bytes(b, m->id, &len);
            out.n = 0;
            bpe_encode_merge(b, &ctx, (const unsigned char *)p, len, &out);
            ok = !out.failed && !(out.n == 1 && out.ids[0] == (int32_t)m->id);
        }
    }
    free(out.ids);
    bpe_ctx_clear(&ctx);
    return ok;
}

bool bpe_boundary_find_parts(const struct bpe *b, const struct bpe_pair *merges, size_t n,
                             struct bpe_part *parts)
{
    assert(b->parts == parts);
    /* Tokens that are one symbol, a byte or a character, exist from the start. */
    for (uint32_t id = 0; id < b->n_ids; id++) {
        size_t len;
        unsigned symbol = 1;
        const unsigned char *p = (const unsigned char *)bpe_bytes(b, id, &len);
        parts[id].made = BPE_NONE;
        if (!(b->flags[id] & BPE_PLAIN) || len == 0)
            continue;
        if (!b->byte_level)
            uni_decode(p, &symbol);
        if (symbol == len)
            parts[id].made = 0;
    }
    return mark_merged(b, merges, n, parts) && no_late_merge(b, merges, n, parts);
}
