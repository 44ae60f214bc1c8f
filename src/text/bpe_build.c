/* bpe_build.c - from a vocabulary in the file's order to tables by id and by bytes.
 *
 * Tokens arrive in any order.  They are kept in one text, found by a hash table of their bytes
 * that doubles when half full, and by id.  bpe_block.c writes the tables when all are known. */
#include "text/bpe_build.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "text/unicode.h"

enum { MAX_TOKEN = 1 << 20, MAX_TEXT = 1 << 30 };

uint32_t bpe_byte_char(unsigned char byte)
{
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x121u + (byte - 0x7Fu);
}

int bpe_char_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
        return (int)cp;
    if (cp >= 0x100 && cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

bool bpe_unmap(struct buf *out, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    if (!buf_reserve(out, n))
        return true; /* the buffer remembers that it failed */
    size_t k = out->len;
    unsigned len;
    for (; p < end; p += len) {
        int byte = bpe_char_byte(uni_decode(p, &len));
        if (byte < 0)
            return false;
        out->data[k++] = (char)byte;
    }
    out->len = k;
    out->data[k] = '\0';
    return true;
}

void bpe_builder_init(struct bpe_builder *b, bool byte_level)
{
    memset(b, 0, sizeof(*b));
    b->byte_level = byte_level;
    b->prefix = b->suffix = "";
    map_init(&b->odd);
    buf_init(&b->text, MAX_TEXT);
}

void bpe_builder_clear(struct bpe_builder *b)
{
    buf_clear(&b->text);
    map_clear(&b->odd);
    free(b->entries);
    free(b->by_id);
    os_map_close(&b->slot_map);
    free(b->merges);
    free(b->trie);
    memset(b, 0, sizeof(*b));
}

const struct bpe_entry *bpe_builder_entry(const struct bpe_builder *b, uint32_t id)
{
    return id < b->n_ids && b->by_id[id] ? &b->entries[b->by_id[id] - 1] : NULL;
}

uint32_t bpe_builder_find(const struct bpe_builder *b, const char *p, size_t n)
{
    if (n == 0 || !b->slots)
        return BPE_NONE;
    uint64_t key = bpe_key((const unsigned char *)p, n);
    size_t mask = ((size_t)1 << (64 - b->slot_shift)) - 1;
    uint32_t len = n < 127 ? (uint32_t)n : 127;
    for (size_t i = bpe_slot_index(key, b->slot_shift); b->slots[i].meta; i = (i + 1) & mask) {
        const struct bpe_slot *s = &b->slots[i];
        if (s->key != key || s->meta >> 24 != len)
            continue;
        uint32_t id = s->meta & 0xFFFFFF;
        if (n <= 8 || ((n < 127 || bpe_builder_entry(b, id)->len == n) &&
                       memcmp(b->text.data + s->off, p, n) == 0))
            return id;
    }
    return BPE_NONE;
}

static void put_slot(struct bpe_slot *slots, int shift, const char *text, const struct bpe_entry *e)
{
    size_t mask = ((size_t)1 << (64 - shift)) - 1;
    uint64_t key = bpe_key((const unsigned char *)text + e->off, e->len);
    size_t i = bpe_slot_index(key, shift);
    while (slots[i].meta)
        i = (i + 1) & mask;
    uint32_t len = e->len < 127 ? e->len : 127;
    slots[i] = (struct bpe_slot){ key, e->off, e->id | len << 24 };
}

int bpe_bits_for(size_t n, size_t whole, size_t part)
{
    int bits = 4;
    while (((size_t)1 << bits) * part < (n + 1) * whole)
        bits++;
    return bits;
}

static bool grow_slots(struct bpe_builder *b)
{
    int shift = b->slots ? b->slot_shift - 1 : 64 - bpe_bits_for(b->expected, 8, 5);
    struct os_map map;
    struct bpe_slot *slots = os_map_new(&map, sizeof(*slots) << (64 - shift));
    if (!slots)
        return false;
    for (size_t i = 0; i < b->n_entries; i++)
        if (b->entries[i].flags & BPE_PLAIN)
            put_slot(slots, shift, b->text.data, &b->entries[i]);
    os_map_close(&b->slot_map);
    b->slot_map = map;
    b->slots = slots;
    b->slot_shift = shift;
    return true;
}

static bool reserve_id(struct bpe_builder *b, uint32_t id)
{
    if (id >= b->cap_ids) {
        size_t cap = b->cap_ids ? b->cap_ids : 4096;
        while (cap <= id)
            cap *= 2;
        uint32_t *by_id = realloc(b->by_id, cap * sizeof(*by_id));
        if (!by_id)
            return false;
        memset(by_id + b->cap_ids, 0, (cap - b->cap_ids) * sizeof(*by_id));
        b->by_id = by_id;
        b->cap_ids = cap;
    }
    if (id >= b->n_ids)
        b->n_ids = (size_t)id + 1;
    return true;
}

/* Add the token whose bytes were appended to the text from `off` on. */
static tinker_status add_entry(struct bpe_builder *b, uint32_t id, size_t off, uint8_t flags,
                               tinker_error *err)
{
    size_t len = b->text.len - off;
    if (id >= BPE_MAX_ID)
        return err_set(err, TINKER_EINVAL, "token id %u is out of range", (unsigned)id);
    if (len > MAX_TOKEN)
        return err_set(err, TINKER_EINVAL, "token %u has %zu bytes, more than 1 MB", (unsigned)id,
                       len);
    if (!buf_ok(&b->text) || !reserve_id(b, id))
        return err_nomem(err, "vocabulary");
    const struct bpe_entry *other = bpe_builder_entry(b, id);
    if (other)
        return err_set(err, TINKER_EINVAL, "two tokens have the id %u: \"%.*s\" and \"%.*s\"",
                       (unsigned)id, (int)(other->len < 40 ? other->len : 40),
                       b->text.data + other->off, (int)(len < 40 ? len : 40), b->text.data + off);
    if (b->n_entries == b->cap_entries) {
        size_t cap = b->cap_entries ? b->cap_entries * 2 : 4096;
        struct bpe_entry *entries = realloc(b->entries, cap * sizeof(*entries));
        if (!entries)
            return err_nomem(err, "vocabulary");
        b->entries = entries;
        b->cap_entries = cap;
    }
    struct bpe_entry e = { id, (uint32_t)off, (uint32_t)len, flags };
    if (len == 0)
        e.flags &= (uint8_t)~BPE_PLAIN; /* never occurs as a piece */
    if (e.flags & BPE_PLAIN) {
        if (bpe_builder_find(b, b->text.data + off, len) != BPE_NONE)
            return err_set(err, TINKER_EINVAL, "the token \"%.*s\" appears twice",
                           (int)(len < 40 ? len : 40), b->text.data + off);
        size_t room = b->slots ? (size_t)1 << (64 - b->slot_shift) : 0;
        if ((b->n_entries + 1) * 5 >= room * 3 && !grow_slots(b))
            return err_nomem(err, "vocabulary");
        put_slot(b->slots, b->slot_shift, b->text.data, &e);
    }
    b->entries[b->n_entries++] = e;
    b->by_id[id] = (uint32_t)b->n_entries;
    b->n_vocab += (flags & BPE_MODEL) != 0;
    return TINKER_OK;
}

/* Add a token that no piece of text can be. */
static tinker_status add_odd(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                             uint8_t flags, tinker_error *err)
{
    size_t off = b->text.len;
    if (b->byte_level && bpe_unmap(&b->text, s, n))
        flags |= BPE_MAPPED;
    else
        buf_append(&b->text, s, n);
    tinker_status status = add_entry(b, id, off, flags, err);
    if (status != TINKER_OK)
        return status;
    if (!map_put(&b->odd, s, n, (void *)(uintptr_t)b->n_entries, NULL))
        return err_nomem(err, "vocabulary");
    return TINKER_OK;
}

tinker_status bpe_builder_token(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err)
{
    size_t off = b->text.len;
    uint8_t flags = BPE_TOKEN | BPE_MODEL | BPE_PLAIN;
    if (b->byte_level) {
        if (bpe_unmap(&b->text, s, n))
            return add_entry(b, id, off, flags | BPE_MAPPED, err);
        return add_odd(b, id, s, n, BPE_TOKEN | BPE_MODEL, err);
    }
    buf_append(&b->text, s, n);
    return add_entry(b, id, off, flags, err);
}

tinker_status bpe_builder_bytes(struct bpe_builder *b, uint32_t id, const char *s, size_t n,
                                tinker_error *err)
{
    size_t off = b->text.len;
    buf_append(&b->text, s, n);
    return add_entry(b, id, off, BPE_TOKEN | BPE_MODEL | BPE_PLAIN | BPE_MAPPED, err);
}

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

/* Id of a merge's result.  Most files number results in the order of the merges, so the id after
 * the last one is tried before the table, which would miss the cache. */
static uint32_t find_result(const struct bpe_builder *b, const char *p, size_t n)
{
    uint32_t next = b->n_merges > 0 ? b->merges[b->n_merges - 1].id + 1 : 0;
    const struct bpe_entry *e = bpe_builder_entry(b, next);
    if (e && (e->flags & BPE_PLAIN) && e->len == n && memcmp(b->text.data + e->off, p, n) == 0)
        return next;
    return bpe_builder_find(b, p, n);
}

tinker_status bpe_builder_merge(struct bpe_builder *b, const char *text, size_t cut, size_t n,
                                tinker_error *err)
{
    struct buf *t = &b->text; /* its end is scratch here */
    size_t off = t->len, mid = off;
    bool known = true;
    if (b->byte_level) {
        known = bpe_unmap(t, text, cut);
        mid = t->len;
        known = known && bpe_unmap(t, text + cut, n - cut);
    } else {
        buf_append(t, text, cut);
        mid = t->len;
        buf_append(t, text + cut, n - cut);
    }
    if (!buf_ok(t))
        return err_nomem(err, "merges");
    uint32_t left = BPE_NONE, right = BPE_NONE, whole = BPE_NONE;
    size_t skip = b->prefix_n;
    if (known) {
        left = bpe_builder_find(b, t->data + off, mid - off);
        right = bpe_builder_find(b, t->data + mid, t->len - mid);
        if (skip > 0 && t->len - mid >= skip) { /* the right side loses its continuing prefix */
            memmove(t->data + mid, t->data + mid + skip, t->len - mid - skip);
            whole = bpe_builder_find(b, t->data + off, t->len - skip - off);
        } else {
            whole = find_result(b, t->data + off, t->len - off);
        }
    }
    t->len = off;
    if (left == BPE_NONE || right == BPE_NONE || whole == BPE_NONE)
        return err_set(
            err, TINKER_EINVAL, "merge of \"%.*s\" and \"%.*s\": %s is not in the vocabulary",
            (int)(cut < 40 ? cut : 40), text, (int)(n - cut < 40 ? n - cut : 40), text + cut,
            left == BPE_NONE    ? "the left side"
            : right == BPE_NONE ? "the right side"
                                : "the result");
    return add_merge(b, left, right, (uint32_t)b->n_merges, whole, err);
}

tinker_status bpe_builder_merges_by_rank(struct bpe_builder *b, tinker_error *err)
{
    for (size_t i = 0; i < b->n_entries; i++) {
        const struct bpe_entry e = b->entries[i];
        if (e.len > 2048)
            continue; /* splits of such a token are never reached one by one */
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

/* Entry of the token that the file spells s[0..n), or NULL. */
static struct bpe_entry *find_spelled(struct bpe_builder *b, const char *s, size_t n)
{
    size_t off = b->text.len;
    uint32_t id;
    if (b->byte_level) {
        id = bpe_unmap(&b->text, s, n) && buf_ok(&b->text)
                 ? bpe_builder_find(b, b->text.data + off, b->text.len - off)
                 : BPE_NONE;
        b->text.len = off;
    } else {
        id = bpe_builder_find(b, s, n);
    }
    if (id != BPE_NONE)
        return &b->entries[b->by_id[id] - 1];
    uintptr_t odd = (uintptr_t)map_get(&b->odd, s, n);
    return odd ? &b->entries[odd - 1] : NULL;
}

tinker_status bpe_builder_added(struct bpe_builder *b, uint32_t *id, const char *s, size_t n,
                                bool special, tinker_error *err)
{
    uint8_t flags = (uint8_t)(BPE_ADDED | (special ? BPE_SPECIAL : 0));
    const struct bpe_entry *at = bpe_builder_entry(b, *id);
    struct bpe_entry *e = find_spelled(b, s, n);
    if (e) {
        *id = e->id;
        e->flags = (uint8_t)((e->flags & ~BPE_SPECIAL) | flags);
        return TINKER_OK;
    }
    if (at)
        return err_set(err, TINKER_EINVAL, "added token \"%.*s\": the id %u is taken by \"%.*s\"",
                       (int)(n < 60 ? n : 60), s, (unsigned)*id, (int)(at->len < 60 ? at->len : 60),
                       b->text.data + at->off);
    return add_odd(b, *id, s, n, flags | BPE_TOKEN, err);
}
