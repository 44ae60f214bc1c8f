/* bpe_merge.c - merging the symbols of one piece.
 *
 * Short pieces are merged with a scan for the smallest rank, long ones with a linked list and a
 * heap, so that a word of 100 000 letters costs n log n.  Equal ranks merge from the left in
 * both. */
#include <stdlib.h>
#include <string.h>
#include "tokenizer/bpe/bpe.h"
#include "unicode/unicode.h"

enum { SMALL = 48 }; /* symbols: up to here the scan beats the heap */

/* Most pairs do not merge.  `near` of their parts, a Bloom filter of 16 bins on each side, says so
 * for nearly all of them without a look into the table. */
static inline const struct bpe_pair *find_pair(const struct bpe *b, uint32_t left, uint32_t right)
{
    static const struct bpe_pair none = { 0, 0, BPE_NONE, 0 };
    /* Open addressing with linear probing; the end of a run is a pair of rank BPE_NONE. */
    size_t mask = ((size_t)1 << (64 - b->pair_shift)) - 1;
    uint64_t hash = bpe_pair_hash(left, right);
    size_t i = (size_t)(hash >> b->pair_shift);
    if (!(b->parts[left].near >> bpe_bin(right) & b->parts[right].near >> (16 + bpe_bin(left)) & 1))
        return &none;
    for (const struct bpe_pair *m; (m = &b->pairs[i])->rank != BPE_NONE; i = (i + 1) & mask)
        if (m->left == left && m->right == right)
            return m;
    return &none;
}

/* For callers outside of this file that look at single pairs. */
struct bpe_pair bpe_pair(const struct bpe *b, uint32_t left, uint32_t right)
{
    return *find_pair(b, left, right);
}

/* Rank and result of merging a pair in one number that sorts by rank. */
static inline uint64_t pair_value(const struct bpe *b, uint32_t left, uint32_t right)
{
    const struct bpe_pair *s = find_pair(b, left, right);
    return (uint64_t)s->rank << 32 | s->id;
}

/* Prefetch what pair_value() will need; it is spread over tables larger than the cache. */
static inline void prefetch_pair(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t i = (size_t)(bpe_pair_hash(left, right) >> b->pair_shift);
    __builtin_prefetch(&b->parts[left]);
    __builtin_prefetch(&b->pairs[i]);
}

/* A pair that does not merge has the rank BPE_NONE. */
static inline bool is_merge(uint64_t value)
{
    return value >> 32 != BPE_NONE;
}

/* array is the address of a pointer; the old memory stays when there is no more. */
static bool grow_array(void *array, size_t n, size_t size)
{
    void *p = n > SIZE_MAX / size ? NULL : realloc(*(void **)array, n * size);
    if (p)
        *(void **)array = p;
    return p != NULL;
}

/* Arrays for a piece of n symbols, kept from piece to piece. The heap has room for three times as
 * many entries: at most one per initial pair and two per merge. */
bool bpe_ctx_reserve(struct bpe_ctx *c, size_t n)
{
    if (n <= c->cap)
        return true;
    size_t cap = c->cap < 256 ? 256 : c->cap;
    if (!c->kept)
        c->kept = calloc((size_t)1 << BPE_KEPT_BITS, sizeof(*c->kept));
    while (cap < n)
        cap *= 2;
    if (!c->kept || cap > UINT32_MAX / 4 || !grow_array(&c->ids, cap, 4) ||
        !grow_array(&c->next, cap, 4) || !grow_array(&c->prev, cap, 4) ||
        !grow_array(&c->starts, cap + 1, 4) || !grow_array(&c->value, cap, 8) ||
        !grow_array(&c->heap, cap * 3, 8))
        return false;
    c->cap = cap;
    return true;
}

/* ---- symbols --------------------------------------------------------------------------------- */

/* Id of the symbol for the scalar p[0..len), spelled with the affixes of its place. */
static uint32_t find_symbol(const struct bpe *b, const unsigned char *p, unsigned len, bool first,
                            bool last)
{
    size_t before = first ? 0 : b->prefix_n, after = last ? b->suffix_n : 0;
    if (before + after == 0)
        return *p < 0x80 ? b->ascii[*p] : bpe_find(b, (const char *)p, len);
    char text[128];
    if (before + len + after > sizeof(text))
        return BPE_NONE;
    memcpy(text, b->prefix, before);
    memcpy(text + before, p, len);
    memcpy(text + before + len, b->suffix, after);
    return bpe_find(b, text, before + len + after);
}

/* The symbols of a char-level piece: characters; for one that is not in the vocabulary its bytes
 * (<0xXX>), if it has all of them, else the unknown token, else nothing.
 * starts[k] is where symbol k begins in the piece; starts[n] ends the last one, so lengths are
 * differences. */
static size_t make_symbols(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n)
{
    size_t k = 0;
    unsigned len;
    bool after_unk = false;
    for (size_t i = 0; i < n; i += len) {
        uni_decode(p + i, &len);
        uint32_t id = find_symbol(b, p + i, len, i == 0, i + len == n);
        bool unk = false, spelled = id == BPE_NONE && b->byte_fallback;
        for (unsigned j = 0; spelled && j < len; j++)
            spelled = b->header->bytes[p[i + j]] != BPE_NONE;
        if (spelled) {
            for (unsigned j = 0; j < len; j++) {
                c->starts[k] = (uint32_t)(i + j);
                c->ids[k++] = b->header->bytes[p[i + j]];
            }
        } else if (id != BPE_NONE || b->unk != BPE_NONE) {
            unk = id == BPE_NONE;
            if (!(unk && after_unk && b->fuse_unk)) { /* fused: one token for a run of them */
                c->starts[k] = (uint32_t)i;
                c->ids[k++] = unk ? b->unk : id;
            }
        }
        after_unk = unk;
    }
    c->starts[k] = (uint32_t)n;
    return k;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Merge ids[0..n) with their values in place; returns the number of symbols left.  Each round finds
 * the smallest rank, merges there and asks for the two pairs that are new. */
static size_t merge_small(const struct bpe *b, uint32_t *ids, uint64_t *value, size_t n)
{
    while (n > 1) {
        size_t best = 0;
        uint64_t least = value[0];
        for (size_t i = 1; i + 1 < n; i++)
            /* The leftmost of equal ranks, as the reference merges. */
            if (value[i] < least) { /* equal ranks have equal results */
                least = value[i];
                best = i;
            }
        if (!is_merge(least))
            break;
        /* The value's lower half is the id of the result. */
        ids[best] = (uint32_t)least;
        if (best > 0)
            prefetch_pair(b, ids[best - 1], ids[best]);
        if (best + 2 < n)
            prefetch_pair(b, ids[best], ids[best + 2]);
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(*ids));
        if (best + 1 < n) {
            memmove(value + best + 1, value + best + 2, (n - best - 2) * sizeof(*value));
            value[best] = pair_value(b, ids[best], ids[best + 1]);
        }
        if (best > 0)
            value[best - 1] = pair_value(b, ids[best - 1], ids[best]);
    }
    return n;
}

struct heap { /* four children a node; entries are rank << 32 | position */
    uint64_t *at;
    size_t n;
};

/* Move the entry at i down to its place.  Four children, because a node then fills half a cache
 * line and the tree is half as deep as with two. */
static void sift_down(struct heap *h, size_t i)
{
    uint64_t v = h->at[i];
    for (;;) {
        size_t child = 4 * i + 1, stop = child + 4 < h->n ? child + 4 : h->n;
        if (child >= h->n)
            break;
        size_t least = child;
        for (size_t k = child + 1; k < stop; k++)
            if (h->at[k] < h->at[least])
                least = k;
        if (h->at[least] >= v)
            break;
        h->at[i] = h->at[least];
        i = least;
    }
    h->at[i] = v;
}

/* Entries move down to make room, and v is written once. */
static void heap_push(struct heap *h, uint64_t v)
{
    size_t i = h->n++;
    for (; i > 0 && h->at[(i - 1) / 4] > v; i = (i - 1) / 4)
        h->at[i] = h->at[(i - 1) / 4];
    h->at[i] = v;
}

/* The pair at i is new: compute its value, and put it on the heap if it merges. */
static void update_pair(const struct bpe *b, struct bpe_ctx *c, struct heap *h, uint32_t i,
                        uint32_t end)
{
    uint32_t right = c->next[i];
    c->value[i] = right < end ? pair_value(b, c->ids[i], c->ids[right]) : UINT64_MAX;
    if (is_merge(c->value[i]))
        heap_push(h, (c->value[i] & 0xFFFFFFFF00000000u) | i);
}

/* Merge c->ids[0..n), with their c->value, as a linked list; symbol 0 stays the first.  Entries of
 * the heap are not removed when their pair goes away: one is stale when the rank at its position is
 * no longer the one it was pushed with; dead positions have none. */
static void merge_list(const struct bpe *b, struct bpe_ctx *c, size_t n)
{
    struct heap h = { c->heap, 0 };
    uint32_t end = (uint32_t)n;
    for (uint32_t i = 0; i < end; i++) {
        c->next[i] = i + 1;
        c->prev[i] = i - 1; /* of 0: never followed */
    }
    /* All pairs that merge at the beginning; later ones come from update_pair(). */
    for (uint32_t i = 0; i + 1 < end; i++) {
        if (is_merge(c->value[i]))
            h.at[h.n++] = (c->value[i] & 0xFFFFFFFF00000000u) | i;
    }
    c->value[end - 1] = UINT64_MAX;
    for (size_t i = h.n / 4 + 1; i-- > 0;) /* make it a heap, from the last parent up */
        if (i < h.n)
            sift_down(&h, i);
    while (h.n > 0) {
        uint64_t top = h.at[0];
        h.at[0] = h.at[--h.n];
        if (h.n > 0)
            sift_down(&h, 0);
        /* Stale: the pair has merged, or has a new neighbor since. */
        uint32_t i = (uint32_t)top;
        if (c->value[i] >> 32 != top >> 32)
            continue;
        /* Symbol i takes over the text of `gone`, which leaves the list; the pairs to both sides of
         * i are new. */
        uint32_t gone = c->next[i], after = c->next[gone];
        c->ids[i] = (uint32_t)c->value[i];
        c->value[gone] = UINT64_MAX;
        c->next[i] = after;
        if (i > 0)
            prefetch_pair(b, c->ids[c->prev[i]], c->ids[i]);
        if (after < end)
            c->prev[after] = i;
        update_pair(b, c, &h, i, end);
        if (i > 0)
            update_pair(b, c, &h, c->prev[i], end);
    }
}

void bpe_encode_merge(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                      struct bpe_out *out)
{
    if (!bpe_ctx_reserve(c, n + 1)) {
        out->failed = true;
        return;
    }
    size_t k = 0;
    if (b->byte_level) {
        const uint32_t *bytes = b->header->bytes;
        for (size_t i = 0; i < n; i++) {
            c->starts[k] = (uint32_t)i;
            c->ids[k] = bytes[p[i]];
            k += bytes[p[i]] != BPE_NONE; /* a lenient vocabulary drops bytes it lacks */
        }
        c->starts[k] = (uint32_t)n;
    } else {
        k = make_symbols(b, c, p, n);
    }
    if (k == 0)
        return;
    /* value[i]: what merging symbols i and i + 1 would give. */
    for (size_t i = 0; i + 1 < k; i++)
        prefetch_pair(b, c->ids[i], c->ids[i + 1]);
    for (size_t i = 0; i + 1 < k; i++)
        c->value[i] = pair_value(b, c->ids[i], c->ids[i + 1]);
    if (k <= SMALL && !out->lens) { /* only the list keeps track of where symbols start */
        k = merge_small(b, c->ids, c->value, k);
        if (bpe_out_reserve(out, k)) {
            memcpy(out->ids + out->n, c->ids, k * sizeof(*c->ids));
            out->n += k;
        }
        return;
    }
    merge_list(b, c, k);
    for (uint32_t i = 0; i < k; i = c->next[i])
        bpe_push(out, c->ids[i], c->starts[c->next[i]] - c->starts[i]);
}
