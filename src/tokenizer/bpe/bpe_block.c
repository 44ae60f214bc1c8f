/* bpe_block.c - the tables of bpe.h, written when all of a vocabulary is known.
 *
 * The block is laid out once with all merges, so that bpe_reach.c can look into it; when many of
 * them turn out never to happen, it is laid out again without these.  A vocabulary whose tokens
 * come about in the order of their ranks gets a trie and is walked (bpe_walk.c); any other gets a
 * hash table of its tokens and is merged.  The system clears memory before it gives it, which takes
 * a good part of the time: so the trie is built in its place, and memory is used again. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/bpe/bpe_boundary.h"
#include "tokenizer/bpe/bpe_trie.h"

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static void fill_bytes(const struct bpe_builder *b, struct bpe_header *h)
{
    bool all = true;
    for (int i = 0; i < 256; i++) {
        static const char hex[] = "0123456789ABCDEF";
        char text[7] = { '<', '0', 'x', hex[i >> 4], hex[i & 15], '>', 0 };
        char byte = (char)i;
        h->bytes[i] = b->byte_level ? bpe_builder_find(b, &byte, 1) : bpe_builder_find(b, text, 6);
        all = all && h->bytes[i] != BPE_NONE;
    }
    if (all)
        h->flags |= BPE_HAS_ALL_BYTES;
}

enum { AHEAD = 16 };

/* The merges, and where to find them by their pairs. */
static void fill_pairs(const struct bpe_builder *b, struct bpe_header *h)
{
    char *base = (char *)h;
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

/* What merges with what, as bpe_reach() does it on its way. */
static void fill_near(const struct bpe_builder *b, struct bpe_part *parts)
{
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        parts[m->left].near |= 1u << bpe_bin(m->right);
        parts[m->right].near |= 65536u << bpe_bin(m->left);
    }
}

static void fill_tables(const struct bpe_builder *b, struct bpe_header *h)
{
    char *base = (char *)h;
    uint32_t *offsets = (uint32_t *)(base + h->offsets_at);
    uint8_t *flags = (uint8_t *)(base + h->flags_at);
    struct bpe_slot *slots = (struct bpe_slot *)(base + h->slots_at);
    uint32_t off = 0;
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
    for (size_t i = 0; h->n_cells == 0 && b->slots && i < (size_t)1 << h->slot_bits; i++) {
        slots[i] = b->slots[i];
        if (slots[i].meta)
            slots[i].off = offsets[slots[i].meta & 0xFFFFFF];
    }
    fill_pairs(b, h);
}

/* reachable[id] by merging every token: the slow way. */
static bool merge_all(const struct bpe *view, uint8_t *reachable)
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

/* How each token is made, by reasoning; also forgets the merges that never happen, as some files
 * list every way to make a token.  false: not decided. */
static bool reach(struct bpe_builder *b, const struct bpe *view, struct bpe_part *parts)
{
    if (b->prefix_n > 0 || b->suffix_n > 0 || !bpe_reach(view, b->merges, b->n_merges, parts))
        return false;
    size_t kept = 0;
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        const struct bpe_part *p = &parts[m->id];
        if (p->made == m->rank + 1 && p->left == m->left && p->right == m->right)
            b->merges[kept++] = *m;
    }
    b->n_merges = kept;
    return true;
}

static struct bpe_part *parts_of(struct bpe_header *h)
{
    return (struct bpe_part *)((char *)h + h->parts_at);
}

/* direct[id]: whether its bytes may be taken for the token at once; the parts, when *decided. */
static bool find_direct(struct bpe_builder *b, struct bpe_header *h, uint8_t *direct, bool *decided)
{
    struct bpe view;
    struct bpe_part *parts = parts_of(h);
    bpe_view(&view, h);
    view.byte_fallback = b->byte_fallback;
    view.fuse_unk = b->fuse_unk;
    view.unk = b->unk ? bpe_find(&view, b->unk, b->unk_n) : BPE_NONE;
    view.prefix = b->prefix;
    view.prefix_n = b->prefix_n;
    view.suffix = b->suffix;
    view.suffix_n = b->suffix_n;
    *decided = reach(b, &view, parts);
    if (!*decided) {
        memset(parts, 0, h->n_ids * sizeof(*parts));
        fill_near(b, parts);
    }
    for (uint32_t id = 0; id < h->n_ids; id++)
        direct[id] = b->ignore_merges || (*decided && parts[id].made != BPE_NONE);
    return *decided || b->ignore_merges || merge_all(&view, direct);
}

/* ---- walking ---------------------------------------------------------------------------------- */

struct ends { /* of a token, see find_ends(); side by side, as a cell needs both */
    uint32_t open;
    union {
        uint32_t so_far; /* while the merges are gone through */
        uint32_t mark;   /* then: what goes into the id of its cell */
    };
};

/* open, for bpe_walk.c: bits of the bytes that a token may start with which, standing behind this
 * one, merges with a part at its end before that part goes into the next larger one.  The merges
 * are by rank, so `so_far` has those that came before. */
static void find_ends(const struct bpe_builder *b, const struct bpe_header *h, struct ends *ends)
{
    const char *base = (const char *)h;
    const uint32_t *offsets = (const uint32_t *)(base + h->offsets_at);
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        unsigned char first = (unsigned char)base[h->blob_at + offsets[m->right]];
        ends[m->id].open = ends[m->right].open | ends[m->right].so_far;
        ends[m->left].so_far |= 1u << first % 32;
    }
}

/* Have pieces walked, not merged.  What cannot be made is a token as a whole piece or not at all. */
static bool put_walk(const struct bpe_builder *b, struct bpe_header *h, const uint8_t *direct)
{
    struct ends *ends = calloc(h->n_ids, sizeof(*ends));
    if (!ends)
        return false;
    find_ends(b, h, ends);
    struct bpe_cell *cells = (struct bpe_cell *)((char *)h + h->trie_at);
    const struct bpe_part *parts = parts_of(h);
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
    h->flags |= BPE_WALKED;
    return true;
}

static void put_direct(struct bpe_header *h, const uint8_t *direct)
{
    struct bpe_slot *slots = (struct bpe_slot *)((char *)h + h->slots_at);
    for (size_t i = 0; i < (size_t)1 << h->slot_bits; i++)
        if (slots[i].meta && direct[slots[i].meta & 0xFFFFFF])
            slots[i].meta |= 1u << 31;
}

/* ---- layout ----------------------------------------------------------------------------------- */

/* Where everything will be.  The trie comes last, as its size is known last. */
static void plan(const struct bpe_builder *b, struct bpe_header *h, bool walked)
{
    h->n_merges = (uint32_t)b->n_merges;
    h->slot_bits = walked ? 4 : (uint32_t)(64 - b->slot_shift);
    h->pair_bits = (uint32_t)bpe_bits_for(b->n_merges, 5, 3);
    size_t at = align64(sizeof(*h));
    h->offsets_at = at, at += align64((b->n_ids + 1) * sizeof(uint32_t));
    h->flags_at = at, at += align64(b->n_ids + 1);
    h->slots_at = at, at += align64(((size_t)1 << h->slot_bits) * sizeof(struct bpe_slot));
    h->pairs_at = at, at += align64(((size_t)1 << h->pair_bits) * sizeof(struct bpe_pair));
    h->parts_at = at, at += align64(b->n_ids * sizeof(struct bpe_part));
    h->blob_at = at, h->blob_n = b->text.len, at += align64(b->text.len + 16);
    h->json_at = at, at += align64(h->json_n + 1);
    h->config_at = at, at += align64(h->config_n + 1);
    h->trie_at = at, at += align64(h->n_cells * sizeof(struct bpe_cell));
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
        if (e->flags & BPE_PLAIN)
            words[n++] =
                (struct bpe_word){ p, e->len, e->id, __builtin_bswap64(bpe_head(p, e->len)) };
    }
    plan(b, &h, true);
    if (!bpe_trie_build(words, n, h.trie_at, block, &n_cells))
        return NULL;
    h.n_cells = n_cells;
    plan(b, &h, true);
    struct bpe_header *out = (struct bpe_header *)(uintptr_t)block->data;
    *out = h;
    fill_tables(b, out);
    return out;
}

/* A block without a trie. */
static struct bpe_header *lay_out(struct bpe_builder *b, struct bpe_header h, struct os_map *block)
{
    if (!b->slots && bpe_builder_index(b, NULL) != TINKER_OK)
        return NULL;
    h.n_cells = 0;
    plan(b, &h, false);
    struct bpe_header *out = os_map_new(block, h.total);
    if (!out)
        return NULL;
    *out = h;
    fill_tables(b, out);
    return out;
}

/* The same with fewer merges. */
static struct bpe_header *lay_out_again(struct bpe_builder *b, struct os_map *block)
{
    struct bpe_header *old = (struct bpe_header *)(uintptr_t)block->data, h = *old;
    struct os_map map;
    plan(b, &h, h.n_cells > 0);
    struct bpe_header *out = os_map_new(&map, h.total);
    if (!out)
        return NULL;
    *out = h;
    fill_tables(b, out);
    struct bpe_part *parts = parts_of(out);
    memcpy(parts, parts_of(old), h.n_ids * sizeof(*parts));
    for (uint32_t id = 0; id < h.n_ids; id++)
        parts[id].near = 0;
    fill_near(b, parts);
    memcpy((char *)out + h.trie_at, (char *)old + old->trie_at,
           h.n_cells * sizeof(struct bpe_cell));
    os_map_close(block);
    *block = map;
    return out;
}

/* The block without its texts, and in direct what find_direct() says.  NULL: no memory; then there
 * may be a block to close. */
static struct bpe_header *make_block(struct bpe_builder *b, const struct bpe_header *h,
                                     struct os_map *block, uint8_t *direct)
{
    bool decided = false, bytes = b->byte_level && h->flags & BPE_HAS_ALL_BYTES;
    struct bpe_header *out = bytes ? lay_out_trie(b, *h, block) : NULL;
    if (!out)
        out = lay_out(b, *h, block);
    if (!out || !find_direct(b, out, direct, &decided))
        return NULL;
    if (!decided && out->n_cells > 0) {
        os_map_close(block);
        out = lay_out(b, *h, block);
        if (out)
            fill_near(b, parts_of(out));
    } else if ((uint32_t)bpe_bits_for(b->n_merges, 5, 3) < out->pair_bits) {
        out = lay_out_again(b, block);
    }
    if (out && out->n_cells > 0 && !put_walk(b, out, direct))
        return NULL;
    return out;
}

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
    fill_bytes(b, &h);
    if (b->byte_level && !lenient && !(h.flags & BPE_HAS_ALL_BYTES))
        return err_set(err, TINKER_EINVAL, "the byte-level vocabulary lacks some of the 256 bytes");
    *block = (struct os_map){ 0 };
    uint8_t *direct = calloc(b->n_ids + 1, 1);
    struct bpe_header *out = direct ? make_block(b, &h, block, direct) : NULL;
    if (out) {
        put_direct(out, direct);
        memcpy((char *)out + out->json_at, json, json_n);
        memcpy((char *)out + out->config_at, config, config_n);
    } else {
        os_map_close(block);
    }
    free(direct);
    return out ? TINKER_OK : err_nomem(err, "vocabulary");
}
