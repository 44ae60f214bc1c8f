/* bpe_greedy.c - the tokens of a piece from left to right, without merging.
 *
 * A row of tokens is what merging gives if and only if each can be made and no two neighbors
 * would have merged over their boundary (bpe_boundary.h): the first merge over any boundary would
 * have come about between these two alone.  So: take the longest token that goes with the one
 * before it, and where none does, go back and take a shorter one.  A place that was left in this
 * way is no boundary, whatever leads there, for the tokens up to a place are one row only; so none
 * is tried twice, and the time is that of the length. */
#include <string.h>
#include "tokenizer/bpe/bpe.h"
#include "tokenizer/bpe/bpe_boundary.h"

/* A token that the text at hand begins with. */
struct match {
    uint32_t len, id, open;
};

/* The tokens at p of at most max bytes, the longest last, and how many.  whole: max is all of the
 * piece, for tokens that are found in no other way. */
static inline size_t find_matches(const struct bpe *b, const unsigned char *p, size_t max,
                                  bool whole, struct match *found)
{
    uint32_t edge = b->trie[0].edge;
    size_t n = 0;
    for (size_t i = 0; i < max; i++) {
        const struct bpe_cell *cell = &b->trie[(edge >> 9) + p[i]];
        edge = cell->edge;
        if ((edge & 511) != (256u | p[i]))
            break;
        if (cell->id < BPE_ASIDE)
            found[n++] = (struct match){ (uint32_t)i + 1, cell->id, cell->open };
        else if (whole && i + 1 == max && cell->id != BPE_NONE && cell->id & BPE_WHOLE)
            found[n++] = (struct match){ (uint32_t)i + 1, cell->id & (BPE_ASIDE - 1u), 0 };
    }
    return n;
}

/* bpe_boundary_holds(), whose last answers are cached: runs of one character ask the same again and
 * again, and text does so, too. */
static bool ask_boundary(const struct bpe *b, struct bpe_ctx *c, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 24 | right;
    uint64_t *kept = &c->kept[(pair * 0x9E3779B97F4A7C15u) >> (64 - BPE_KEPT_BITS)];
    if (*kept >> 1 != pair + 1)
        *kept = (pair + 1) << 1 | bpe_boundary_holds(b, left, right);
    return *kept & 1;
}

void bpe_greedy_encode(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                       struct bpe_out *out)
{
    if (!bpe_ctx_reserve(c, n + 1)) {
        out->failed = true;
        return;
    }
    /* The row so far is ids[0..k) from starts[0..k); found[0..left) are still to be tried at `at`. */
    uint32_t *ids = c->ids, *starts = c->starts, open = 0;
    uint64_t *dead = c->value; /* a bit for each place that is no boundary */
    struct match *found = (struct match *)c->heap;
    bool any_dead = false;
    size_t k = 0, at = 0, left = find_matches(b, p, n, true, found), all = left;
    while (at < n) {
        if (left == 0) { /* nothing fits here: go back by one token and try shorter ones */
            if (k == 0)  /* not with tables of our making */
                break;
            if (!any_dead)
                memset(dead, 0, (n / 64 + 1) * sizeof(*dead));
            any_dead = true;
            dead[at / 64] |= (uint64_t)1 << (at % 64);
            size_t shorter = at - starts[--k] - 1;
            at = starts[k];
            left = find_matches(b, p + at, shorter, false, found);
            all = SIZE_MAX;                /* none of these is the longest */
            open = k > 0 ? UINT32_MAX : 0; /* not kept: ask about every boundary */
            continue;
        }
        const struct match *m = &found[left - 1];
        size_t end = at + m->len;
        /* `open` of the token before rules out nearly all questions: no token that starts with
         * this byte merges with any part at its end. */
        if ((any_dead && dead[end / 64] >> (end % 64) & 1) ||
            (open >> p[at] % 32 & 1 && !ask_boundary(b, c, ids[k - 1], m->id))) {
            left--;
            continue;
        }
        ids[k] = m->id;
        starts[k++] = (uint32_t)at;
        at += m->len;
        open = left == all ? m->open : UINT32_MAX; /* known for the longest only */
        all = left = find_matches(b, p + at, n - at, false, found);
    }
    starts[k] = (uint32_t)n;
    for (size_t i = 0; i < k; i++)
        bpe_push(out, ids[i], starts[i + 1] - starts[i]);
}
