/* bpe_open.c - a view of a block, after checking that nothing in it points outside.
 *
 * A prebuilt file is input like any other: the checksum finds damage, the checks below make
 * even a forged one harmless to memory. */
#include "tokenizer/bpe/bpe.h"

#include <string.h>
#include "base/err.h"

/* Both halves of a product, into which every bit of a and b goes. */
static inline uint64_t fold_product(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The 64 bytes at p go into four sums, which do not wait for one another. */
static inline void add_line(uint64_t sums[4], const char *p)
{
    uint64_t word[8];
    memcpy(word, p, sizeof(word));
    sums[0] = fold_product(word[0] ^ 0x9E3779B97F4A7C15u, word[1] ^ sums[0]);
    sums[1] = fold_product(word[2] ^ 0xD6E8FEB86659FD93u, word[3] ^ sums[1]);
    sums[2] = fold_product(word[4] ^ 0xC2B2AE3D27D4EB4Fu, word[5] ^ sums[2]);
    sums[3] = fold_product(word[6] ^ 0x94D049BB133111EBu, word[7] ^ sums[3]);
}

uint64_t bpe_checksum(const struct bpe_header *h)
{
    size_t skip = offsetof(struct bpe_header, checksum) + sizeof(h->checksum);
    const char *p = (const char *)h + skip, *end = (const char *)h + h->total;
    /* The checksum itself is left out, and the length goes in at the end: a block that was cut
     * at a line of zeros has another sum. */
    uint64_t sums[4] = { 1, 2, 3, 4 };
    char last[64] = { 0 };
    for (; end - p >= 64; p += 64)
        add_line(sums, p);
    memcpy(last, p, (size_t)(end - p));
    add_line(sums, last);
    return fold_product(fold_product(sums[0], sums[1] ^ h->total),
                        fold_product(sums[2], sums[3] ^ h->total));
}

/* Whether `count` things of `size` bytes at `at` lie in the block, without overflow. */
static bool is_inside(const struct bpe_header *h, uint64_t at, uint64_t count, uint64_t size)
{
    return at % 64 == 0 && at <= h->total && count <= (h->total - at) / size;
}

/* The header alone: a block of this version and byte order, with all tables inside.
 * Sizes are compared before they are used, and each table must lie in the block: afterwards base
 * + at is valid for every `at` of the header. */
static bool check_header(const struct bpe_header *h, size_t n)
{
    if (n < sizeof(*h) || memcmp(h->magic, "tinkTOK", 8) != 0 || h->version != BPE_VERSION ||
        h->byte_order != 0x01020304 || h->total != n)
        return false;
    if (h->n_ids > BPE_MAX_ID || h->slot_bits < 4 || h->slot_bits > 30 || h->pair_bits < 4 ||
        h->pair_bits > 30 || h->blob_n > UINT32_MAX)
        return false;
    return is_inside(h, h->offsets_at, (uint64_t)h->n_ids + 1, 4) &&
           is_inside(h, h->flags_at, (uint64_t)h->n_ids + 1, 1) &&
           is_inside(h, h->slots_at, 1ull << h->slot_bits, sizeof(struct bpe_slot)) &&
           is_inside(h, h->pairs_at, 1ull << h->pair_bits, sizeof(struct bpe_pair)) &&
           is_inside(h, h->parts_at, h->n_ids, sizeof(struct bpe_part)) &&
           is_inside(h, h->trie_at, h->n_cells, sizeof(struct bpe_cell)) &&
           (h->n_cells >= 512 || !(h->flags & BPE_GREEDY)) && h->n_cells < 1u << 23 &&
           is_inside(h, h->blob_at, h->blob_n + 16, 1) && h->json_n < n && h->config_n < n &&
           is_inside(h, h->json_at, h->json_n + 1, 1) &&
           is_inside(h, h->config_at, h->config_n + 1, 1);
}

/* Whether no number in the tables leads outside.  Loops without branches: millions of entries are
 * looked at each time a prebuilt file is opened.
 * Invariant after this: every id is below n_ids, every offset inside its blob, and every probe
 * ends at an empty entry.  Encoding relies on it and checks nothing. */
static bool check_tables(const struct bpe *b)
{
    const struct bpe_header *h = b->header;
    /* Offsets ascend and end inside the blob; bytes are tokens. */
    unsigned bad = b->offsets[0] != 0 || b->offsets[b->n_ids] > h->blob_n;
    for (uint32_t i = 0; i < b->n_ids; i++)
        bad |= b->offsets[i] > b->offsets[i + 1];
    for (int i = 0; i < 256; i++)
        bad |= h->bytes[i] != BPE_NONE && h->bytes[i] >= b->n_ids;
    if (bad)
        return false;

    /* Every slot tells the truth about its token, and one is free so that probing ends. */
    size_t used = 0, n = (size_t)1 << h->slot_bits;
    for (size_t i = 0; i < n; i++) {
        const struct bpe_slot *s = &b->slots[i];
        if (s->meta == 0)
            continue;
        uint32_t id = s->meta & 0xFFFFFF, len = (s->meta >> 24) & 127;
        if (id >= b->n_ids || s->off != b->offsets[id])
            return false;
        uint32_t real = b->offsets[id + 1] - b->offsets[id];
        if (len != (real < 127 ? real : 127) || len == 0)
            return false;
        used++;
    }
    if (used == n)
        return false;

    /* Merges give tokens, and one pair is free.  Half of the pairs are empty, in no order: a branch
     * would be mispredicted every other time. */
    used = 0, n = (size_t)1 << h->pair_bits;
    for (size_t i = 0; i < n; i++) {
        unsigned there = b->pairs[i].rank != BPE_NONE;
        bad |= there & (b->pairs[i].id >= b->n_ids);
        used += there;
    }
    if (bad || used == n)
        return false;
    if (!b->trie)
        return true;

    /* Parts are tokens, and every step in the trie stays inside.  That undoing merges ends is seen
     * to in bpe_boundary.c. */
    uint32_t n_cells = (uint32_t)h->n_cells, farthest = 0;
    for (uint32_t i = 0; i < b->n_ids; i++)
        bad |= (b->parts[i].left >= b->n_ids) | (b->parts[i].right >= b->n_ids);
    for (uint32_t i = 0; i < n_cells; i++) {
        const struct bpe_cell *cell = &b->trie[i];
        farthest = cell->edge > farthest ? cell->edge : farthest;
        bad |= (cell->id != BPE_NONE) & ((cell->id & (BPE_ASIDE - 1u)) >= b->n_ids);
    }
    return !bad && (farthest >> 9) + 256 <= n_cells;
}

/* All of a view that does not look into the tables.
 * What the file does not hold (unknown token, affixes) is set by whoever loads its
 * configuration. */
static void set_pointers(struct bpe *b, const struct bpe_header *h)
{
    const char *base = (const char *)h;
    memset(b, 0, sizeof(*b));
    b->header = h;
    b->n_ids = h->n_ids;
    b->offsets = (const uint32_t *)(base + h->offsets_at);
    b->flags = (const uint8_t *)(base + h->flags_at);
    b->slots = (const struct bpe_slot *)(base + h->slots_at);
    b->pairs = (const struct bpe_pair *)(base + h->pairs_at);
    b->parts = (const struct bpe_part *)(base + h->parts_at);
    b->blob = base + h->blob_at;
    b->slot_shift = 64 - (int)h->slot_bits;
    b->pair_shift = 64 - (int)h->pair_bits;
    b->byte_level = (h->flags & BPE_BYTE_LEVEL) != 0;
    if (h->flags & BPE_GREEDY)
        b->trie = (const struct bpe_cell *)(base + h->trie_at);
    b->ignore_merges = (h->flags & BPE_IGNORE_MERGES) != 0;
    b->unk = BPE_NONE;
    b->prefix = b->suffix = "";
}

/* Symbols of one byte are looked up once; most of a text are such. */
static void find_ascii(struct bpe *b)
{
    for (int i = 0; i < 128; i++) {
        char c = (char)i;
        b->ascii[i] = bpe_find(b, &c, 1);
    }
}

/* For a block that this process has just made; bpe_open() is for those that come from a file. */
void bpe_view(struct bpe *b, const struct bpe_header *h)
{
    set_pointers(b, h);
    find_ascii(b);
}

tinker_status bpe_open(struct bpe *b, const void *block, size_t n, tinker_error *err)
{
    if (!check_header(block, n))
        return err_set(err, TINKER_EINVAL, "not a prebuilt tokenizer of this version");
    set_pointers(b, block);
    if (!check_tables(b))
        return err_set(err, TINKER_EINVAL, "the prebuilt tokenizer is damaged");
    find_ascii(b); /* in tables that are known to be sound */
    return TINKER_OK;
}
