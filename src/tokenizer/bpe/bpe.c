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

/* WORD_BITS: 2^17 sets of two words, 8 MB of which a text touches a small part.  Fifteen bytes
 * and three ids make a word of half a cache line; most pieces of ordinary text are that short. */
enum { WORD_BITS = 17, WORD_TEXT = 15, WORD_IDS = 3 };
/* NOTE_MAX: longer pieces hardly come twice and would push out many short ones. */
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

static inline uint64_t read_u64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* Multiply and fold: cheap, and good enough for keys that are compared afterwards. */
static inline uint64_t mix_hash(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xA0761D6478BD642Fu;
    return h ^ (h >> 32);
}

uint64_t bpe_key(const unsigned char *p, size_t n)
{
    if (n <= 8) { /* the key is the bytes themselves: equal keys are equal tokens */
        uint64_t v = 0;
        memcpy(&v, p, n);
        return v;
    }
    /* Eight bytes at a time; the last eight overlap the ones before unless n is a multiple. */
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i + 8 < n; i += 8)
        h = mix_hash(h, read_u64(p + i));
    return mix_hash(h, read_u64(p + n - 8));
}

/* meta of the slot with these bytes, whose bpe_key() is key; 0: there is none.  Linear probing;
 * bpe_open() made sure that some slot is empty, so it ends. */
static inline uint32_t probe_slots(const struct bpe *b, const unsigned char *p, size_t n,
                                   uint64_t key)
{
    size_t mask = ((size_t)1 << (64 - b->slot_shift)) - 1;
    uint32_t len = n < 127 ? (uint32_t)n : 127;
    for (size_t i = bpe_slot_index(key, b->slot_shift);; i = (i + 1) & mask) {
        const struct bpe_slot *s = &b->slots[i];
        if (s->meta == 0)
            return 0;
        if (s->key != key || ((s->meta >> 24) & 127) != len)
            continue;
        if (n <= 8) /* the key says it all */
            return s->meta;
        uint32_t id = s->meta & 0xFFFFFF;
        /* meta has 7 bits for the length; longer tokens are compared by their offsets. */
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
        return bpe_trie_find(b, u, n);
    uint32_t meta = n > 0 ? probe_slots(b, u, n, bpe_key(u, n)) : 0;
    return meta ? meta & 0xFFFFFF : BPE_NONE;
}

/* ---- output and scratch ---------------------------------------------------------------------- */

/* Grown by doubling.  A failure sticks to `out`, so that encoders need not pass it on. */
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

static inline struct note_key make_note_key(const struct bpe_ctx *c, uint64_t key, size_t n)
{
    uint64_t hash = (key + n) * 0x9E3779B97F4A7C15u;
    return (struct note_key){ &c->places[hash >> (64 - NOTE_BITS) & ~(uint64_t)3],
                              (uint32_t)hash & ~(NOTES / 4 - 1u) };
}

/* Append the ids of a piece that was noted down; false: it was not.  A place is an index in units
 * of 4 bytes with the tag in its upper bits: it is another hash's when they do not cancel. */
static bool read_note(const struct bpe_ctx *c, struct note_key k, const unsigned char *p, size_t n,
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

/* Note a piece down.  Of the four notes of its hash the oldest is forgotten. */
static void write_note(struct bpe_ctx *c, struct note_key k, const unsigned char *p, size_t n,
                       const int32_t *ids, size_t n_ids)
{
    struct bpe_note note = { (uint16_t)n_ids, (uint16_t)n };
    size_t size = n_ids * sizeof(*ids), total = (sizeof(note) + size + n + 3) / 4;
    if (c->n_notes == 0 || NOTES / 4 - c->n_notes < total) { /* place 0 means none */
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

/* Prefetch what encode_unknown() will look at; returns the key it wants. */
static uint64_t prefetch_unknown(const struct bpe *b, const struct bpe_ctx *c,
                                 const unsigned char *p, size_t n)
{
    uint64_t key = bpe_key(p, n);
    if (!b->trie)
        __builtin_prefetch(&b->slots[bpe_slot_index(key, b->slot_shift)]);
    __builtin_prefetch(make_note_key(c, key, n).places);
    return key;
}

/* Encode a piece that is not in the table of words; key is its bpe_key().  There is room in out.
 * is_word: it will be put there if it fits. */
static void encode_unknown(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                           uint64_t key, bool is_word, struct bpe_out *out)
{
    struct note_key note = make_note_key(c, key, n);
    bool noted = n <= NOTE_MAX && !out->lens; /* notes do not keep the lengths of tokens */
    size_t before = out->n;
    c->unknown++;
    if (noted && read_note(c, note, p, n, out))
        return;
    /* Bit 31 of meta: merging the bytes of the token gives the token, so it may be taken whole. */
    uint32_t meta = b->trie ? 0 : probe_slots(b, p, n, key);
    if (b->trie)
        bpe_greedy_encode(b, c, p, n, out);
    else if (meta >> 31)
        bpe_push(out, meta & 0xFFFFFF, n);
    else
        bpe_encode_merge(b, c, p, n, out);
    size_t k = out->n - before;
    if (noted && !out->failed && (!is_word || k > WORD_IDS))
        write_note(c, note, p, n, out->ids + before, k);
}

/* ---- words ------------------------------------------------------------------------------------ */

struct piece {
    const unsigned char *p;
    struct bpe_words *set; /* NULL: too long for a word */
    uint64_t key[2];       /* of the word; else for encode_unknown(), and the length */
};

/* Key of the word p[0..n), n <= WORD_TEXT; bytes up to limit may be read.  Sixteen bytes are loaded
 * and those behind the word masked off, without a branch on n. */
static inline void make_word_key(uint64_t key[2], const unsigned char *p, size_t n,
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
    key[0] = read_u64(p) & read_u64(mask);
    key[1] = (read_u64(p + 8) & read_u64(mask + 8)) | (uint64_t)n << 56;
}

/* Both halves at once, without a branch between them. */
static inline bool is_word(const struct word *w, const uint64_t key[2])
{
    return ((w->key[0] ^ key[0]) | (w->key[1] ^ key[1])) == 0;
}

/* Append the ids of a word; there is room for all that an entry can hold. */
static inline void push_word(struct bpe_out *out, const struct word *w)
{
    memcpy(out->ids + out->n, w->ids, sizeof(w->ids));
    out->n += w->n_ids;
}

/* A word that is not the first of its set. */
static void encode_word(const struct bpe *b, struct bpe_ctx *c, struct piece *w,
                        struct bpe_out *out)
{
    struct bpe_words *set = w->set;
    if (is_word(&set->second, w->key)) { /* it was used again: the other one may be forgotten */
        struct word swap = set->first;
        push_word(out, &set->second);
        set->first = set->second;
        set->second = swap;
        return;
    }
    /* The length is the last byte of the key. */
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

void bpe_encode(const struct bpe *b, struct bpe_ctx *c, const unsigned char *const *starts,
                size_t n, const unsigned char *limit, struct bpe_out *out)
{
    struct piece pieces[BPE_AHEAD];
    /* no token covers less than a byte, so this is room for all of them */
    if (!bpe_out_reserve(out, (size_t)(starts[n] - starts[0]) + WORD_IDS))
        return;
    if (!c->words) { /* made when a context is first used: many are not */
        size_t words = sizeof(*c->words) << WORD_BITS, places = sizeof(*c->places) << NOTE_BITS;
        char *p = os_map_new(&c->tables, words + places + NOTES);
        if (!p) {
            out->failed = true;
            return;
        }
        c->words = (struct bpe_words *)p;
        c->places = (uint32_t *)(p + words);
        c->notes = p + words + places;
    }
    /* First pass: keys of all pieces; ask memory for their sets of words. */
    for (size_t i = 0; i < n; i++) {
        struct piece *w = &pieces[i];
        size_t len = (size_t)(starts[i + 1] - starts[i]);
        w->p = starts[i];
        w->set = NULL;
        if (len > WORD_TEXT || out->lens) {
            w->key[0] = prefetch_unknown(b, c, w->p, len);
            w->key[1] = len;
            continue;
        }
        make_word_key(w->key, w->p, len, limit);
        w->set = &c->words[(w->key[0] * 0x9E3779B97F4A7C15u + w->key[1] * 0xD6E8FEB86659FD93u) >>
                           (64 - WORD_BITS)];
        __builtin_prefetch(w->set);
    }
    /* Second pass, only while there were unknown pieces lately: ask for what those will need. */
    for (size_t i = 0; c->unknown > 0 && i < n; i++) {
        const struct piece *w = &pieces[i];
        if (!w->set) { /* the newest note of its hash */
            uint32_t place = *make_note_key(c, w->key[0], w->key[1]).places;
            __builtin_prefetch(c->notes + 4 * (size_t)(place & (NOTES / 4 - 1)));
        } else if (!is_word(&w->set->first, w->key) && !is_word(&w->set->second, w->key)) {
            prefetch_unknown(b, c, w->p, w->key[1] >> 56);
        }
    }
    c->unknown = 0;
    /* Third pass: the ids. */
    for (size_t i = 0; i < n && !out->failed; i++) {
        struct piece *w = &pieces[i];
        if (!w->set)
            encode_unknown(b, c, w->p, w->key[1], w->key[0], false, out);
        else if (is_word(&w->set->first, w->key))
            push_word(out, &w->set->first);
        else
            encode_word(b, c, w, out);
    }
}
