/* bpe_index.c - tokens by their bytes, and merges, whose sides are found in this way.
 *
 * The table is larger than the processor's cache, so that nearly every look-up would wait for
 * memory.  Therefore places are computed for some tokens or merges ahead, and asked for, before
 * the first of them is looked at. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/bpe/bpe_build.h"

enum { AHEAD = 16 };

/* log2 of the size of a table for n keys that is at most part / whole full. */
int bpe_bits_for(size_t n, size_t whole, size_t part)
{
    int bits = 4;
    while (((size_t)1 << bits) * part < (n + 1) * whole)
        bits++;
    return bits;
}

/* bpe_key() of bytes with slack behind them. */
static inline uint64_t make_key(const char *p, size_t n)
{
    return n <= 8 ? bpe_head(p, n) : bpe_key((const unsigned char *)p, n);
}

/* Slot of the token with these bytes, n > 0, or the empty one where it would be; key is their
 * bpe_key().
 * At most 5/8 of the slots are taken, so some slot is empty and the search ends. */
static struct bpe_slot *find_slot(const struct bpe_builder *b, const char *p, size_t n,
                                  uint64_t key)
{
    size_t mask = ((size_t)1 << (64 - b->slot_shift)) - 1;
    uint32_t len = n < 127 ? (uint32_t)n : 127;
    size_t i = bpe_slot_index(key, b->slot_shift);
    /* Linear probing. meta is id | length << 24 and never 0 for a token, since n > 0; the key holds
     * up to 8 bytes themselves, so only longer tokens are compared with their text. */
    for (; b->slots[i].meta; i = (i + 1) & mask) {
        const struct bpe_slot *s = &b->slots[i];
        if (s->key != key || s->meta >> 24 != len)
            continue;
        if (n <= 8 || ((n < 127 || bpe_builder_entry(b, s->meta & 0xFFFFFF)->len == n) &&
                       memcmp(b->text.data + s->off, p, n) == 0))
            break;
    }
    return &b->slots[i];
}

/* Id of a token by its bytes and their bpe_key(), or BPE_NONE. */
static uint32_t find_token(const struct bpe_builder *b, const char *p, size_t n, uint64_t key)
{
    const struct bpe_slot *s = n > 0 && b->slots ? find_slot(b, p, n, key) : NULL;
    return s && s->meta ? s->meta & 0xFFFFFF : BPE_NONE;
}

uint32_t bpe_builder_find(const struct bpe_builder *b, const char *p, size_t n)
{
    return find_token(b, p, n, bpe_key((const unsigned char *)p, n));
}

/* May be called again when the slots were given away (bpe_block.c). */
tinker_status bpe_builder_index(struct bpe_builder *b, tinker_error *err)
{
    uint64_t keys[AHEAD];
    int bits = bpe_bits_for(b->n_entries, 8, 5); /* bpe_block.c counts on it */
    os_map_close(&b->slot_map);
    b->slots = os_map_new(&b->slot_map, sizeof(*b->slots) << bits);
    /* The index is the upper bits of a product, hence a shift and not a mask. */
    b->slot_shift = 64 - bits;
    if (!b->slots)
        return err_nomem(err, "vocabulary");
    /* A ring of AHEAD keys: entry i is hashed and its slot asked for when entry i - AHEAD, whose
     * slot has arrived, is written. */
    for (size_t i = 0; i < b->n_entries + AHEAD; i++) {
        const struct bpe_entry *e = i < AHEAD ? NULL : &b->entries[i - AHEAD];
        if (e && e->flags & BPE_PLAIN) {
            const char *p = b->text.data + e->off;
            struct bpe_slot *s = find_slot(b, p, e->len, keys[i % AHEAD]);
            if (s->meta)
                return err_set(err, TINKER_EINVAL, "the token \"%.*s\" appears twice, as %u and %u",
                               (int)(e->len < 40 ? e->len : 40), p, (unsigned)(s->meta & 0xFFFFFF),
                               (unsigned)e->id);
            *s = (struct bpe_slot){ keys[i % AHEAD], e->off,
                                    e->id | (e->len < 127 ? e->len : 127) << 24 };
        }
        if (i >= b->n_entries)
            continue;
        e = &b->entries[i];
        keys[i % AHEAD] = make_key(b->text.data + e->off, e->len);
        __builtin_prefetch(&b->slots[bpe_slot_index(keys[i % AHEAD], b->slot_shift)], 1);
    }
    return TINKER_OK;
}

/* ---- merges ----------------------------------------------------------------------------------- */

/* Ranks are given in the order of calls, or are ids (tiktoken).
 * `id` is the token that the pair becomes. */
static tinker_status add_merge(struct bpe_builder *b, uint32_t left, uint32_t right, uint32_t rank,
                               uint32_t id, tinker_error *err)
{
    if (b->n_merges == b->cap_merges) {
        size_t cap = b->cap_merges ? b->cap_merges * 2 : 16384;
        struct bpe_pair *merges =
            cap > UINT32_MAX / 64 ? NULL : realloc(b->merges, cap * sizeof(*merges));
        if (!merges)
            return err_nomem(err, "merges");
        b->merges = merges;
        b->cap_merges = cap;
    }
    b->merges[b->n_merges++] = (struct bpe_pair){ left, right, rank, id };
    return TINKER_OK;
}

/* Turn a merge that waits into one of ids.  The bytes of its sides are written to.
 * A merge of something that is no token is refused: it could never happen, so the file is not
 * what it says. */
static tinker_status resolve_merge(struct bpe_builder *b, const struct bpe_sides *m,
                                   tinker_error *err)
{
    uint32_t left = BPE_NONE, right = BPE_NONE, whole = BPE_NONE;
    size_t cut = m->cut - m->begin, n = m->end - m->begin;
    char *p = b->sides.data + m->begin;
    if (m->spelled[0])
        left = find_token(b, p, cut, m->keys[0]);
    if (m->spelled[1])
        right = find_token(b, p + cut, n - cut, m->keys[1]);
    /* The result is the bytes of both, less the prefix that marks a continuing symbol on the
     * right.  Most files number results in the order of the merges, so the id after the last one
     * is tried before the table. */
    if (left != BPE_NONE && right != BPE_NONE) {
        size_t skip = b->prefix_n;
        uint32_t next = b->n_merges > 0 ? b->merges[b->n_merges - 1].id + 1 : 0;
        const struct bpe_entry *e = bpe_builder_entry(b, next);
        if (skip > 0 && n - cut >= skip) {
            memmove(p + cut, p + cut + skip, n - cut - skip);
            whole = bpe_builder_find(b, p, n - skip);
        } else if (e && (e->flags & BPE_PLAIN) && e->len == n &&
                   bpe_head(b->text.data + e->off, n) == bpe_head(p, n) &&
                   (n <= 8 || memcmp(b->text.data + e->off, p, n) == 0)) {
            whole = next;
        } else {
            whole = bpe_builder_find(b, p, n);
        }
    }
    if (whole != BPE_NONE)
        return add_merge(b, left, right, (uint32_t)b->n_merges, whole, err);
    return err_set(err, TINKER_EINVAL,
                   "merge of \"%.*s\" and \"%.*s\": %s is not in the vocabulary",
                   (int)(m->left_n < 40 ? m->left_n : 40), m->left,
                   (int)(m->right_n < 40 ? m->right_n : 40), m->right,
                   left == BPE_NONE    ? "the left side"
                   : right == BPE_NONE ? "the right side"
                                       : "the result");
}

tinker_status bpe_builder_merges_end(struct bpe_builder *b, tinker_error *err)
{
    tinker_status status = buf_ok(&b->sides) ? TINKER_OK : err_nomem(err, "merges");
    for (size_t i = 0; i < b->n_waiting && status == TINKER_OK; i++)
        status = resolve_merge(b, &b->waiting[i], err);
    b->n_waiting = 0;
    buf_reset(&b->sides);
    return status;
}

/* Append the bytes of one side; false when it cannot be a token.  *key is set, and its slot asked
 * for. */
static bool put_side(struct bpe_builder *b, const char *s, size_t n, uint64_t *key)
{
    size_t begin = b->sides.len;
    if (!b->byte_level)
        bpe_append(&b->sides, s, n);
    else if (!bpe_unmap(&b->sides, s, n))
        return false;
    if (!buf_ok(&b->sides))
        return false;
    *key = make_key(b->sides.data + begin, b->sides.len - begin);
    if (b->slots)
        __builtin_prefetch(&b->slots[bpe_slot_index(*key, b->slot_shift)]);
    return true;
}

tinker_status bpe_builder_merge(struct bpe_builder *b, const char *left, size_t left_n,
                                const char *right, size_t right_n, tinker_error *err)
{
    /* Merges wait in groups of BPE_SIDES, while the slots of their sides are on the way from
     * memory. */
    struct bpe_sides *m = &b->waiting[b->n_waiting++];
    *m = (struct bpe_sides){ .left = left, .right = right, .left_n = left_n, .right_n = right_n };
    /* Both sides stand next to each other, so the bytes of the result are there without copying. */
    m->begin = b->sides.len;
    m->spelled[0] = put_side(b, left, left_n, &m->keys[0]);
    m->cut = b->sides.len;
    m->spelled[1] = put_side(b, right, right_n, &m->keys[1]);
    m->end = b->sides.len;
    return b->n_waiting < BPE_SIDES ? TINKER_OK : bpe_builder_merges_end(b, err);
}

/* tiktoken has no list of merges: two tokens merge when their bytes together are a token, and the
 * rank of a merge is the id of its result. So every cut of every token into two tokens is one. */
tinker_status bpe_builder_merges_by_rank(struct bpe_builder *b, tinker_error *err)
{
    for (size_t i = 0; i < b->n_entries; i++) {
        const struct bpe_entry e = b->entries[i];
        if (e.len > 2048)
            continue; /* trying all cuts takes the square of its length; no real one is so long */
        for (uint32_t cut = 1; cut < e.len; cut++) {
            uint32_t left = bpe_builder_find(b, b->text.data + e.off, cut);
            uint32_t right = left == BPE_NONE
                                 ? BPE_NONE
                                 : bpe_builder_find(b, b->text.data + e.off + cut, e.len - cut);
            if (right == BPE_NONE)
                continue;
            tinker_status status = add_merge(b, left, right, e.id, e.id, err);
            if (status != TINKER_OK)
                return status;
        }
    }
    return TINKER_OK;
}
