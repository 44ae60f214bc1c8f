/* bpe_block.c - the tables of bpe.h, written when all of a vocabulary is known.
 *
 * The block is laid out once with all merges, so that bpe_reach.c can look into it; when many of
 * them turn out never to happen, it is laid out again without these.  A vocabulary whose tokens
 * come about in the order of their ranks gets a trie and is walked (bpe_walk.c); any other gets a
 * hash table of its tokens and is merged. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "text/bpe_build.h"
#include "text/bpe_reach.h"
#include "text/bpe_trie.h"

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

/* The merges, and where to find them by their pairs. */
static void fill_pairs(const struct bpe_builder *b, struct bpe_header *h)
{
    char *base = (char *)h;
    struct bpe_part *parts = (struct bpe_part *)(base + h->parts_at);
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
    if (b->n_cells > 0)
        memcpy(base + h->trie_at, b->trie.data, b->n_cells * sizeof(struct bpe_cell));
    for (size_t i = 0; b->n_cells == 0 && b->slots && i < (size_t)1 << h->slot_bits; i++) {
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

/* direct[id]: whether its bytes may be taken for the token at once; parts, when *decided. */
static bool find_direct(struct bpe_builder *b, const struct bpe_header *h, uint8_t *direct,
                        struct bpe_part *parts, bool *decided)
{
    struct bpe view;
    bpe_view(&view, h);
    view.byte_fallback = b->byte_fallback;
    view.fuse_unk = b->fuse_unk;
    view.unk = b->unk ? bpe_find(&view, b->unk, b->unk_n) : BPE_NONE;
    view.prefix = b->prefix;
    view.prefix_n = b->prefix_n;
    view.suffix = b->suffix;
    view.suffix_n = b->suffix_n;
    *decided = reach(b, &view, parts);
    for (uint32_t id = 0; id < h->n_ids; id++)
        direct[id] = b->ignore_merges || (*decided && parts[id].made != BPE_NONE);
    return *decided || b->ignore_merges || merge_all(&view, direct);
}

/* All tokens that a piece can hold, instead of the slots. */
static void build_trie(struct bpe_builder *b)
{
    struct os_map map;
    struct bpe_word *words = os_map_new(&map, (b->n_entries + 1) * sizeof(*words));
    size_t n = 0;
    for (size_t i = 0; words && i < b->n_entries; i++) {
        const struct bpe_entry *e = &b->entries[i];
        const unsigned char *p = (const unsigned char *)b->text.data + e->off;
        if (e->flags & BPE_PLAIN)
            words[n++] =
                (struct bpe_word){ p, e->len, e->id, __builtin_bswap64(bpe_head(p, e->len)) };
    }
    if (!words || !bpe_trie_build(words, n, &b->trie, &b->n_cells))
        b->n_cells = 0;
    os_map_close(&map);
}

/* open[id] for bpe_walk.c: bits of the bytes that a token may start with which, standing behind
 * this one, merges with a part at its end before that part goes into the next larger one.  The
 * merges are by rank, so `so_far` has those that came before. */
static void find_open(const struct bpe_builder *b, uint32_t *open, uint32_t *so_far)
{
    for (size_t k = 0; k < b->n_merges; k++) {
        const struct bpe_pair *m = &b->merges[k];
        unsigned char first = (unsigned char)b->text.data[bpe_builder_entry(b, m->right)->off];
        open[m->id] = open[m->right] | so_far[m->right];
        so_far[m->left] |= 1u << first % 32;
    }
}

/* Have pieces walked, not merged.  What cannot be made is a token as a whole piece or not at all. */
static bool put_walk(const struct bpe_builder *b, struct bpe_header *h,
                     const struct bpe_part *parts, const uint8_t *direct)
{
    uint32_t *open = calloc(2 * (size_t)h->n_ids, sizeof(*open));
    if (!open)
        return false;
    find_open(b, open, open + h->n_ids);
    struct bpe_cell *cells = (struct bpe_cell *)((char *)h + h->trie_at);
    struct bpe_part *to = (struct bpe_part *)((char *)h + h->parts_at);
    for (uint32_t id = 0; id < h->n_ids; id++) {
        uint32_t near = to[id].near;
        to[id] = parts[id];
        to[id].near = near;
    }
    for (size_t i = 0; i < h->n_cells; i++) {
        uint32_t id = cells[i].id;
        if (id == BPE_NONE)
            continue;
        cells[i].open = open[id];
        if (parts[id].made == BPE_NONE)
            cells[i].id |= direct[id] ? BPE_WHOLE : BPE_ASIDE;
    }
    free(open);
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

static struct bpe_header *lay_out(const struct bpe_builder *b, struct bpe_header h,
                                  struct os_map *block)
{
    h.n_merges = (uint32_t)b->n_merges;
    h.n_cells = b->n_cells;
    h.slot_bits = b->slots && b->n_cells == 0 ? (uint32_t)(64 - b->slot_shift) : 4;
    h.pair_bits = (uint32_t)bpe_bits_for(b->n_merges, 5, 3);
    size_t at = align64(sizeof(h));
    h.offsets_at = at, at += align64((b->n_ids + 1) * sizeof(uint32_t));
    h.flags_at = at, at += align64(b->n_ids + 1);
    h.slots_at = at, at += align64(((size_t)1 << h.slot_bits) * sizeof(struct bpe_slot));
    h.pairs_at = at, at += align64(((size_t)1 << h.pair_bits) * sizeof(struct bpe_pair));
    h.parts_at = at, at += align64(b->n_ids * sizeof(struct bpe_part));
    h.trie_at = at, at += align64(b->n_cells * sizeof(struct bpe_cell));
    h.blob_at = at, h.blob_n = b->text.len, at += align64(b->text.len + 16);
    h.json_at = at, at += align64(h.json_n + 1);
    h.config_at = at, at += align64(h.config_n + 1);
    h.total = at;
    struct bpe_header *out = os_map_new(block, at);
    if (!out)
        return NULL;
    *out = h;
    fill_tables(b, out);
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
    if (b->byte_level && h.flags & BPE_HAS_ALL_BYTES)
        build_trie(b);
    struct bpe_header *out = lay_out(b, h, block);
    uint8_t *direct = calloc(b->n_ids + 1, 1);
    struct bpe_part *parts = calloc(b->n_ids + 1, sizeof(*parts));
    bool decided = false, again = false, ok = out && direct && parts;
    ok = ok && find_direct(b, out, direct, parts, &decided);
    if (ok && !decided && b->n_cells > 0) {
        os_map_close(&b->trie);
        b->n_cells = 0;
        again = true;
    }
    if (ok && (again || (uint32_t)bpe_bits_for(b->n_merges, 5, 3) < out->pair_bits)) {
        os_map_close(block);
        out = lay_out(b, h, block);
        ok = out != NULL;
    }
    if (ok && b->n_cells > 0)
        ok = put_walk(b, out, parts, direct);
    if (ok) {
        put_direct(out, direct);
        memcpy((char *)out + out->json_at, json, json_n);
        memcpy((char *)out + out->config_at, config, config_n);
    } else {
        os_map_close(block);
    }
    free(direct);
    free(parts);
    return ok ? TINKER_OK : err_nomem(err, "vocabulary");
}
