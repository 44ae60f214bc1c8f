/* bpe_block.c - the tables of bpe.h, written when all of a vocabulary is known.
 *
 * The block is laid out once with all merges, so that bpe_boundary.c can look into it; when many of
 * them turn out never to happen, it is laid out again without these.  A vocabulary whose tokens
 * come about in the order of their ranks gets a trie and is walked (bpe_greedy.c); any other gets a
 * hash table of its tokens and is merged.  The system clears memory before it gives it, which takes
 * a good part of the time: so the trie is built in its place, and memory is used again. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/bpe/bpe_boundary.h"
#include "tokenizer/bpe/bpe_trie.h"

/* Tables start at cache lines. */
static size_t align_line(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

enum { AHEAD = 16 }; /* cells; how far prefetches run ahead */

/* near: what merges with what, as bpe_boundary_find_parts() does it on its way.
 * The lower 16 bits of a part are for tokens on its right, the upper ones for those on its left. */
static void fill_neighbors(const struct bpe_builder *b, struct bpe_part *parts)
{
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        parts[m->left].near |= 1u << bpe_bin(m->right);
        parts[m->right].near |= 65536u << bpe_bin(m->left);
    }
}

/* Everything whose place plan_layout() gave, but parts, trie and the two texts. */
static void fill_tables(const struct bpe_builder *b, struct bpe_header *h)
{
    char *base = (char *)h;
    uint32_t *offsets = (uint32_t *)(base + h->offsets_at);
    uint8_t *flags = (uint8_t *)(base + h->flags_at);
    struct bpe_slot *slots = (struct bpe_slot *)(base + h->slots_at);
    uint32_t off = 0;
    /* Tokens by id: their bytes lie in the blob one behind the other. */
    for (uint32_t id = 0; id < h->n_ids; id++) {
        const struct bpe_entry *e = bpe_builder_entry(b, id);
        offsets[id] = off;
        if (!e)
            continue;
        flags[id] = e->flags;
        memcpy(base + h->blob_at + off, b->text.data + e->off, e->len);
        off += e->len;
    }
    offsets[h->n_ids] = off;
    /* Tokens by bytes, unless there is a trie: the builder's table, with places in the blob. */
    for (size_t i = 0; h->n_cells == 0 && b->slots && i < (size_t)1 << h->slot_bits; i++) {
        slots[i] = b->slots[i];
        if (slots[i].meta)
            slots[i].off = offsets[slots[i].meta & 0xFFFFFF];
    }
    /* Merges by their pairs: open addressing, at most 3/5 full. */
    struct bpe_pair *pairs = (struct bpe_pair *)(base + h->pairs_at);
    size_t mask = ((size_t)1 << h->pair_bits) - 1;
    for (size_t i = 0; i <= mask; i++)
        pairs[i].rank = BPE_NONE;
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        size_t i = (size_t)(bpe_pair_hash(m->left, m->right) >> (64 - h->pair_bits));
        for (; pairs[i].rank != BPE_NONE; i = (i + 1) & mask)
            if (pairs[i].left == m->left && pairs[i].right == m->right) {
                h->flags |= BPE_TWICE;
                break; /* of equal pairs the later wins */
            }
        pairs[i] = *m;
    }
}

/* reachable[id] by merging every token: the slow way.
 * A token whose bytes merge to something else can only come from added_tokens or from
 * ignore_merges. */
static bool merge_every_token(const struct bpe *view, uint8_t *reachable)
{
    struct bpe_ctx ctx = { 0 };
    struct bpe_out out = { 0 };
    for (uint32_t id = 0; id < view->n_ids && !out.failed; id++) {
        size_t n;
        const char *p = bpe_bytes(view, id, &n);
        out.n = 0;
        if (!(view->flags[id] & BPE_PLAIN))
            continue;
        bpe_encode_merge(view, &ctx, (const unsigned char *)p, n, &out);
        reachable[id] = out.n == 1 && out.ids[0] == (int32_t)id;
    }
    free(out.ids);
    bpe_ctx_clear(&ctx);
    return !out.failed;
}

/* Part of the block, so it moves when the block is laid out again. */
static struct bpe_part *find_parts(struct bpe_header *h)
{
    return (struct bpe_part *)((char *)h + h->parts_at);
}

/* direct[id]: whether its bytes may be taken for the token at once; the parts, when *decided. */
static bool find_whole_tokens(struct bpe_builder *b, struct bpe_header *h, uint8_t *direct,
                              bool *decided)
{
    struct bpe view;
    struct bpe_part *parts = find_parts(h);
    bpe_view(&view, h);
    /* The view works on the unfinished block as it will on the finished one: whether tokens can
     * come about is decided by the very code that encodes. */
    view.byte_fallback = b->byte_fallback;
    view.fuse_unk = b->fuse_unk;
    view.unk = b->unk ? bpe_find(&view, b->unk, b->unk_n) : BPE_NONE;
    view.prefix = b->prefix;
    view.prefix_n = b->prefix_n;
    view.suffix = b->suffix;
    view.suffix_n = b->suffix_n;
    *decided = b->prefix_n == 0 && b->suffix_n == 0 &&
               bpe_boundary_find_parts(&view, b->merges, b->n_merges, parts);
    if (*decided) { /* forget merges that never happen: some files list every way to make a token */
        size_t kept = 0;
        for (size_t k = 0; k < b->n_merges; k++) {
            const struct bpe_pair *m = &b->merges[k];
            const struct bpe_part *p = &parts[m->id];
            if (p->made == m->rank + 1 && p->left == m->left && p->right == m->right)
                b->merges[kept++] = *m;
        }
        b->n_merges = kept;
    } else { /* it may have got half way */
        memset(parts, 0, h->n_ids * sizeof(*parts));
        fill_neighbors(b, parts);
    }
    for (uint32_t id = 0; id < h->n_ids; id++)
        direct[id] = b->ignore_merges || (*decided && parts[id].made != BPE_NONE);
    return *decided || b->ignore_merges || merge_every_token(&view, direct);
}

/* ---- the trie ---------------------------------------------------------------------------------- */

struct ends { /* of a token; side by side, as a cell needs both */
    /* For bpe_greedy.c: bits of the bytes that a token may start with which, standing behind this
     * one, merges with a part at its end before that part goes into the next larger one. */
    uint32_t open;
    union {
        uint32_t so_far; /* bytes of the merges, by rank, that came before the one at hand */
        uint32_t mark;   /* then: what goes into the id of its cell */
    };
};

/* Complete the trie, so that pieces are encoded by bpe_greedy.c and not merged.  What cannot be made is a token as a whole piece or not at all. */
static bool fill_cells(const struct bpe_builder *b, struct bpe_header *h, const uint8_t *direct)
{
    struct ends *ends = calloc(h->n_ids, sizeof(*ends));
    if (!ends)
        return false;
    const char *base = (const char *)h;
    const uint32_t *offsets = (const uint32_t *)(base + h->offsets_at);
    /* The end of a token is the end of its right side, which was open to what its own parts were
     * open to and to all that it merged with so far. */
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        unsigned char first = (unsigned char)base[h->blob_at + offsets[m->right]];
        ends[m->id].open = ends[m->right].open | ends[m->right].so_far;
        ends[m->left].so_far |= 1u << first % 32;
    }
    struct bpe_cell *cells = (struct bpe_cell *)((char *)h + h->trie_at);
    const struct bpe_part *parts = find_parts(h);
    for (uint32_t id = 0; id < h->n_ids; id++)
        ends[id].mark = parts[id].made != BPE_NONE ? 0u
                        : direct[id]               ? (uint32_t)BPE_WHOLE
                                                   : (uint32_t)BPE_ASIDE;
    for (size_t i = 0; i < h->n_cells; i++) {
        uint32_t id = cells[i].id, soon = i + AHEAD < h->n_cells ? cells[i + AHEAD].id : BPE_NONE;
        if (soon != BPE_NONE)
            __builtin_prefetch(&ends[soon]);
        if (id == BPE_NONE)
            continue;
        cells[i].open = ends[id].open;
        cells[i].id |= ends[id].mark;
    }
    free(ends);
    h->flags |= BPE_GREEDY;
    return true;
}

/* ---- layout ----------------------------------------------------------------------------------- */

/* Where everything will be.  The trie comes last, as its size is known last. */
static void plan_layout(const struct bpe_builder *b, struct bpe_header *h, bool walked)
{
    h->n_merges = (uint32_t)b->n_merges;
    h->slot_bits = walked ? 4 : (uint32_t)(64 - b->slot_shift);
    /* 3/5 full: with linear probing a search for a pair that does not exist then looks at three
     * to four places on average. */
    h->pair_bits = (uint32_t)bpe_bits_for(b->n_merges, 5, 3);
    size_t at = align_line(sizeof(*h));
    h->offsets_at = at, at += align_line((b->n_ids + 1) * sizeof(uint32_t));
    h->flags_at = at, at += align_line(b->n_ids + 1);
    h->slots_at = at, at += align_line(((size_t)1 << h->slot_bits) * sizeof(struct bpe_slot));
    h->pairs_at = at, at += align_line(((size_t)1 << h->pair_bits) * sizeof(struct bpe_pair));
    h->parts_at = at, at += align_line(b->n_ids * sizeof(struct bpe_part));
    h->blob_at = at, h->blob_n = b->text.len, at += align_line(b->text.len + 16);
    h->json_at = at, at += align_line(h->json_n + 1);
    h->config_at = at, at += align_line(h->config_n + 1);
    h->trie_at = at, at += align_line(h->n_cells * sizeof(struct bpe_cell));
    h->total = at;
}

/* A block with the trie of all tokens that a piece can hold.  The words take the memory of the slots,
 * which are not needed then; it is enough for them. */
static struct bpe_header *lay_out_trie(struct bpe_builder *b, struct bpe_header h,
                                       struct os_map *block)
{
    _Static_assert(sizeof(struct bpe_word) * 5 <= sizeof(struct bpe_slot) * 8,
                   "there are 8/5 slots");
    struct bpe_word *words = (struct bpe_word *)b->slots;
    size_t n = 0, n_cells;
    b->slots = NULL;
    for (size_t i = 0; i < b->n_entries; i++) {
        const struct bpe_entry *e = &b->entries[i];
        const unsigned char *p = (const unsigned char *)b->text.data + e->off;
        /* Added tokens are found in the text before it is cut into pieces; they are not part of
         * the trie. */
        if (e->flags & BPE_PLAIN)
            words[n++] =
                (struct bpe_word){ p, e->len, e->id, __builtin_bswap64(bpe_head(p, e->len)) };
    }
    plan_layout(b, &h, true); /* for trie_at: the cells are built in their place */
    if (!bpe_trie_build(words, n, h.trie_at, block, &n_cells))
        return NULL;
    h.n_cells = n_cells;
    plan_layout(b, &h, true);
    struct bpe_header *out = (struct bpe_header *)(uintptr_t)block->data;
    *out = h;
    fill_tables(b, out);
    return out;
}

/* A block without a trie.
 * Slots are built anew if a trie has used up their memory before. */
static struct bpe_header *lay_out(struct bpe_builder *b, struct bpe_header h, struct os_map *block)
{
    if (!b->slots && bpe_builder_index(b, NULL) != TINKER_OK)
        return NULL;
    h.n_cells = 0;
    plan_layout(b, &h, false);
    struct bpe_header *out = os_map_new(block, h.total);
    if (!out)
        return NULL;
    *out = h;
    fill_tables(b, out);
    return out;
}

/* The same with fewer merges.
 * Fewer pairs fit into a smaller table, of which more stays in the cache. */
static struct bpe_header *lay_out_again(struct bpe_builder *b, struct os_map *block)
{
    struct bpe_header *old = (struct bpe_header *)(uintptr_t)block->data, h = *old;
    struct os_map map;
    plan_layout(b, &h, h.n_cells > 0);
    struct bpe_header *out = os_map_new(&map, h.total);
    if (!out)
        return NULL;
    *out = h;
    fill_tables(b, out);
    struct bpe_part *parts = find_parts(out);
    /* What was decided about tokens stays; only which ones are neighbors has become less. */
    memcpy(parts, find_parts(old), h.n_ids * sizeof(*parts));
    for (uint32_t id = 0; id < h.n_ids; id++)
        parts[id].near = 0;
    fill_neighbors(b, parts);
    memcpy((char *)out + h.trie_at, (char *)old + old->trie_at,
           h.n_cells * sizeof(struct bpe_cell));
    os_map_close(block);
    *block = map;
    return out;
}

/* The block without its texts, and in direct what find_whole_tokens() says.  NULL: no memory; then there
 * may be a block to close. */
static struct bpe_header *make_block(struct bpe_builder *b, const struct bpe_header *h,
                                     struct os_map *block, uint8_t *direct)
{
    /* A trie needs a token for every byte, so that no piece gets stuck. */
    bool decided = false, bytes = b->byte_level && h->flags & BPE_HAS_ALL_BYTES;
    struct bpe_header *out = bytes ? lay_out_trie(b, *h, block) : NULL;
    if (!out)
        out = lay_out(b, *h, block);
    if (!out || !find_whole_tokens(b, out, direct, &decided))
        return NULL;
    if (!decided && out->n_cells > 0) { /* the trie cannot be used: once more, with slots */
        os_map_close(block);
        out = lay_out(b, *h, block);
        if (out)
            fill_neighbors(b, find_parts(out));
    } else if ((uint32_t)bpe_bits_for(b->n_merges, 5, 3) < out->pair_bits) {
        out = lay_out_again(b, block);
    }
    if (out && out->n_cells > 0 && !fill_cells(b, out, direct))
        return NULL;
    return out;
}

/* The one place where a vocabulary becomes a block: from here on it is read only, may be written
 * to a file as it stands, and is shared by threads. */
tinker_status bpe_builder_finish(struct bpe_builder *b, const char *json, size_t json_n,
                                 const char *config, size_t config_n, bool lenient,
                                 struct os_map *block, tinker_error *err)
{
    struct bpe_header h = { .magic = "tinkTOK", .version = BPE_VERSION, .byte_order = 0x01020304 };
    h.n_ids = (uint32_t)b->n_ids;
    h.n_vocab = b->n_vocab;
    h.flags = (b->byte_level ? BPE_BYTE_LEVEL : 0u) | (b->ignore_merges ? BPE_IGNORE_MERGES : 0u);
    h.json_n = json_n;
    h.config_n = config_n;
    /* Ids of the 256 bytes: tokens of one byte, or those that spell it for byte fallback. */
    h.flags |= BPE_HAS_ALL_BYTES;
    for (int i = 0; i < 256; i++) {
        static const char hex[] = "0123456789ABCDEF";
        char text[7] = { '<', '0', 'x', hex[i >> 4], hex[i & 15], '>', 0 };
        char byte = (char)i;
        h.bytes[i] = b->byte_level ? bpe_builder_find(b, &byte, 1) : bpe_builder_find(b, text, 6);
        if (h.bytes[i] == BPE_NONE)
            h.flags &= ~(uint32_t)BPE_HAS_ALL_BYTES;
    }
    if (b->byte_level && !lenient && !(h.flags & BPE_HAS_ALL_BYTES))
        return err_set(err, TINKER_EINVAL, "the byte-level vocabulary lacks some of the 256 bytes");
    *block = (struct os_map){ 0 };
    uint8_t *direct = calloc(b->n_ids + 1, 1);
    struct bpe_header *out = direct ? make_block(b, &h, block, direct) : NULL;
    if (out) {
        /* Bit 31 of meta: the bytes may be taken for the token at once. */
        struct bpe_slot *slots = (struct bpe_slot *)((char *)out + out->slots_at);
        for (size_t i = 0; i < (size_t)1 << out->slot_bits; i++)
            if (slots[i].meta && direct[slots[i].meta & 0xFFFFFF])
                slots[i].meta |= 1u << 31;
        memcpy((char *)out + out->json_at, json, json_n);
        memcpy((char *)out + out->config_at, config, config_n);
    } else {
        os_map_close(block);
    }
    free(direct);
    return out ? TINKER_OK : err_nomem(err, "vocabulary");
}
