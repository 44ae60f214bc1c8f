/* bpe.c - encoding pieces.
 *
 * A piece of up to 15 bytes is looked up in the context's table of words, which answers with all
 * its ids from one cache line.  What is not there is looked for in the vocabulary (most pieces
 * are tokens as they stand), then in a second table of longer pieces, and is merged at last
 * (bpe_merge.c); the answer is kept.  Both tables forget: they are caches of what merging gives,
 * so what they hold never changes a result. */
#include "tokenizer/bpe/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 17, WORD_TEXT = 15, WORD_IDS = 3 };
enum { NOTE_BITS = 17, NOTE_MAX = 250, NOTES = 4 << 20 };

/* The key is the bytes of the word, padded with zeros, and its length in the last byte: equal keys
 * are equal words, and an empty entry is no word. */
struct word {
    uint64_t key[2];
    int32_t ids[WORD_IDS];
    uint32_t n_ids;
};
struct bpe_words { /* two words with the same hash; the second is the next to be forgotten */
    struct word first, second;
};
_Static_assert(sizeof(struct bpe_words) == 64, "one cache line");

struct bpe_note { /* a piece that does not fit into a word; ids and text follow */
    uint16_t n_ids, n_text;
};

static inline uint64_t load64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xA0761D6478BD642Fu;
    return h ^ (h >> 32);
}

static uint64_t long_key(const unsigned char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i + 8 < n; i += 8)
        h = mix(h, load64(p + i));
    return mix(h, load64(p + n - 8));
}

uint64_t bpe_key(const unsigned char *p, size_t n)
{
    if (n > 8)
        return long_key(p, n);
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static inline uint32_t probe(const struct bpe *b, const unsigned char *p, size_t n, uint64_t key)
{
    size_t mask = ((size_t)1 << (64 - b->slot_shift)) - 1;
    uint32_t len = n < 127 ? (uint32_t)n : 127;
    for (size_t i = bpe_slot_index(key, b->slot_shift);; i = (i + 1) & mask) {
        const struct bpe_slot *s = &b->slots[i];
        if (s->meta == 0)
            return 0;
        if (s->key != key || ((s->meta >> 24) & 127) != len)
            continue;
        if (n <= 8)
            return s->meta;
        uint32_t id = s->meta & 0xFFFFFF;
        if (n >= 127 && b->offsets[id + 1] - s->off != n)
            continue;
        if (memcmp(b->blob + s->off, p, n) == 0)
            return s->meta;
    }
}

uint32_t bpe_find(const struct bpe *b, const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    if (b->trie)
        return bpe_walk_find(b, u, n);
    uint32_t meta = n > 0 ? probe(b, u, n, bpe_key(u, n)) : 0;
    return meta ? meta & 0xFFFFFF : BPE_NONE;
}

/* ---- output and scratch ---------------------------------------------------------------------- */

bool bpe_out_reserve(struct bpe_out *out, size_t extra)
{
    if (out->cap - out->n >= extra)
        return true;
    size_t cap = out->cap < 64 ? 64 : out->cap;
    while (cap - out->n < extra) {
        if (cap > SIZE_MAX / 16)
            return !(out->failed = true);
        cap *= 2;
    }
    int32_t *ids = realloc(out->ids, cap * sizeof(*ids));
    if (!ids)
        return !(out->failed = true);
    out->ids = ids;
    if (out->lens) {
        uint32_t *lens = realloc(out->lens, cap * sizeof(*lens));
        if (!lens)
            return !(out->failed = true);
        out->lens = lens;
    }
    out->cap = cap;
    return true;
}

void bpe_ctx_clear(struct bpe_ctx *c)
{
    os_map_close(&c->tables);
    free(c->ids);
    free(c->next);
    free(c->prev);
    free(c->starts);
    free(c->value);
    free(c->heap);
    free(c->kept);
    memset(c, 0, sizeof(*c));
}

/* ---- longer pieces ---------------------------------------------------------------------------- */

/* Notes stand one behind the other, found by a hash table of their places: four to a hash, the
 * newest first, each with a few more bits of the hash beside it.  When there is no room for one
 * more note, all are forgotten. */
struct note_key {
    uint32_t *places, tag;
};

static inline struct note_key note_key(const struct bpe_ctx *c, uint64_t key, size_t n)
{
    uint64_t hash = (key + n) * 0x9E3779B97F4A7C15u;
    return (struct note_key){ &c->places[hash >> (64 - NOTE_BITS) & ~(uint64_t)3],
                              (uint32_t)hash & ~(NOTES / 4 - 1u) };
}

static bool note_hit(const struct bpe_ctx *c, struct note_key k, const unsigned char *p, size_t n,
                     struct bpe_out *out)
{
    for (int i = 0; i < 4; i++) {
        uint32_t place = k.places[i] ^ k.tag;
        if (place == k.tag || place >= NOTES / 4)
            continue;
        const char *at = c->notes + 4 * (size_t)place;
        struct bpe_note note;
        memcpy(&note, at, sizeof(note));
        size_t size = note.n_ids * sizeof(*out->ids);
        if (note.n_text != n || memcmp(at + sizeof(note) + size, p, n) != 0)
            continue;
        memcpy(out->ids + out->n, at + sizeof(note), size);
        out->n += note.n_ids;
        return true;
    }
    return false;
}

static void note_down(struct bpe_ctx *c, struct note_key k, const unsigned char *p, size_t n,
                      const int32_t *ids, size_t n_ids)
{
    struct bpe_note note = { (uint16_t)n_ids, (uint16_t)n };
    size_t size = n_ids * sizeof(*ids), total = (sizeof(note) + size + n + 3) / 4;
    if (c->n_notes == 0 || NOTES / 4 - c->n_notes < total) {
        memset(c->places, 0, sizeof(*c->places) << NOTE_BITS);
        c->n_notes = 1;
    }
    char *at = c->notes + 4 * c->n_notes;
    memcpy(at, &note, sizeof(note));
    memcpy(at + sizeof(note), ids, size);
    memcpy(at + sizeof(note) + size, p, n);
    memmove(k.places + 1, k.places, 3 * sizeof(*k.places));
    k.places[0] = (uint32_t)c->n_notes | k.tag;
    c->n_notes += total;
}

/* Ask for the newest note of a hash. */
static inline void expect_note(const struct bpe_ctx *c, uint64_t key, size_t n)
{
    __builtin_prefetch(c->notes + 4 * (size_t)(*note_key(c, key, n).places & (NOTES / 4 - 1)));
}

/* Ask for what encode_unknown() will look at; returns the key it wants. */
static uint64_t expect_unknown(const struct bpe *b, const struct bpe_ctx *c, const unsigned char *p,
                               size_t n)
{
    uint64_t key = bpe_key(p, n);
    if (!b->trie)
        __builtin_prefetch(&b->slots[bpe_slot_index(key, b->slot_shift)]);
    __builtin_prefetch(note_key(c, key, n).places);
    return key;
}

/* Encode a piece that is not in the table of words; key is its bpe_key().  There is room in out.
 * is_word: it will be put there if it fits. */
static void encode_unknown(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                           uint64_t key, bool is_word, struct bpe_out *out)
{
    struct note_key note = note_key(c, key, n);
    bool noted = n <= NOTE_MAX && !out->lens;
    size_t before = out->n;
    c->unknown++;
    if (noted && note_hit(c, note, p, n, out))
        return;
    uint32_t meta = b->trie ? 0 : probe(b, p, n, key);
    if (b->trie)
        bpe_walk(b, c, p, n, out);
    else if (meta >> 31)
        bpe_push(out, meta & 0xFFFFFF, n);
    else
        bpe_encode_merge(b, c, p, n, out);
    size_t k = out->n - before;
    if (noted && !out->failed && (!is_word || k > WORD_IDS))
        note_down(c, note, p, n, out->ids + before, k);
}

/* ---- words ------------------------------------------------------------------------------------ */

struct piece {
    const unsigned char *p;
    struct bpe_words *set; /* NULL: too long for a word */
    uint64_t key[2];       /* of the word; else for encode_unknown(), and the length */
};

static bool make_tables(struct bpe_ctx *c)
{
    size_t words = sizeof(*c->words) << WORD_BITS, places = sizeof(*c->places) << NOTE_BITS;
    if (c->words)
        return true;
    char *p = os_map_new(&c->tables, words + places + NOTES);
    if (!p)
        return false;
    c->words = (struct bpe_words *)p;
    c->places = (uint32_t *)(p + words);
    c->notes = p + words + places;
    return true;
}

/* Key of the word p[0..n), n <= WORD_TEXT; bytes up to limit may be read. */
static inline void word_key(uint64_t key[2], const unsigned char *p, size_t n,
                            const unsigned char *limit)
{
    static const unsigned char ones[32] = { 255, 255, 255, 255, 255, 255, 255, 255,
                                            255, 255, 255, 255, 255, 255, 255, 255 };
    unsigned char text[16] = { 0 };
    if (limit - p < 16) {
        memcpy(text, p, n);
        p = text;
    }
    const unsigned char *mask = ones + 16 - n;
    key[0] = load64(p) & load64(mask);
    key[1] = (load64(p + 8) & load64(mask + 8)) | (uint64_t)n << 56;
}

static inline size_t word_index(const uint64_t key[2])
{
    return (size_t)((key[0] * 0x9E3779B97F4A7C15u + key[1] * 0xD6E8FEB86659FD93u) >>
                    (64 - WORD_BITS));
}

static inline bool word_is(const struct word *w, const uint64_t key[2])
{
    return ((w->key[0] ^ key[0]) | (w->key[1] ^ key[1])) == 0;
}

/* Append the ids of a word; there is room for all that an entry can hold. */
static inline void put_word(struct bpe_out *out, const struct word *w)
{
    memcpy(out->ids + out->n, w->ids, sizeof(w->ids));
    out->n += w->n_ids;
}

/* A word that is not the first of its set. */
static void encode_word(const struct bpe *b, struct bpe_ctx *c, struct piece *w,
                        struct bpe_out *out)
{
    struct bpe_words *set = w->set;
    if (word_is(&set->second, w->key)) { /* it was used again: the other one may be forgotten */
        struct word swap = set->first;
        put_word(out, &set->second);
        set->first = set->second;
        set->second = swap;
        return;
    }
    size_t before = out->n, n = w->key[1] >> 56;
    /* where words crowd they go on forgetting each other, so that a note is worth its room */
    bool crowded = set->second.key[1] != 0;
    encode_unknown(b, c, w->p, n, bpe_key(w->p, n), !crowded, out);
    size_t k = out->n - before;
    if (out->failed || k > WORD_IDS)
        return;
    struct word *at = set->first.key[1] ? &set->second : &set->first;
    *at = (struct word){ .key = { w->key[0], w->key[1] }, .n_ids = (uint32_t)k };
    if (k > 0) /* a lenient vocabulary may drop all of it */
        memcpy(at->ids, out->ids + before, k * sizeof(*at->ids));
}

/* Ask for what pieces that are no known words will need. */
static void expect_all(const struct bpe *b, const struct bpe_ctx *c, const struct piece *pieces,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct piece *w = &pieces[i];
        if (!w->set)
            expect_note(c, w->key[0], w->key[1]);
        else if (!word_is(&w->set->first, w->key) && !word_is(&w->set->second, w->key))
            expect_unknown(b, c, w->p, w->key[1] >> 56);
    }
}

void bpe_encode(const struct bpe *b, struct bpe_ctx *c, const unsigned char *const *starts,
                size_t n, const unsigned char *limit, struct bpe_out *out)
{
    struct piece pieces[BPE_AHEAD];
    /* no token covers less than a byte, so this is room for all of them */
    if (!bpe_out_reserve(out, (size_t)(starts[n] - starts[0]) + WORD_IDS))
        return;
    if (!make_tables(c)) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct piece *w = &pieces[i];
        size_t len = (size_t)(starts[i + 1] - starts[i]);
        w->p = starts[i];
        w->set = NULL;
        if (len > WORD_TEXT || out->lens) {
            w->key[0] = expect_unknown(b, c, w->p, len);
            w->key[1] = len;
            continue;
        }
        word_key(w->key, w->p, len, limit);
        w->set = &c->words[word_index(w->key)];
        __builtin_prefetch(w->set);
    }
    if (c->unknown > 0)
        expect_all(b, c, pieces, n);
    c->unknown = 0;
    for (size_t i = 0; i < n && !out->failed; i++) {
        struct piece *w = &pieces[i];
        if (!w->set)
            encode_unknown(b, c, w->p, w->key[1], w->key[0], false, out);
        else if (word_is(&w->set->first, w->key))
            put_word(out, &w->set->first);
        else
            encode_word(b, c, w, out);
    }
}
