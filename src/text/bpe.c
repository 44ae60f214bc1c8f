/* bpe.c - encoding pieces.
 *
 * A piece of up to 15 bytes is looked up in the context's table of words, which answers with all
 * its ids from one cache line.  What is not there is looked for in the vocabulary (most pieces
 * are tokens as they stand), then in a second table of longer pieces, and is merged at last
 * (bpe_merge.c); the answer is kept.  Both tables forget: they are caches of what merging gives,
 * so what they hold never changes a result. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BITS = 17, WORD_TEXT = 15, WORD_IDS = 3, LONG_BITS = 16, LONG_TEXT = 30, LONG_IDS = 8 };

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

struct bpe_long {          /* a piece that does not fit into a word */
    uint8_t n_text, n_ids; /* n_text 0: empty */
    unsigned char text[LONG_TEXT];
    int32_t ids[LONG_IDS];
};
_Static_assert(sizeof(struct bpe_long) == 64, "one cache line");

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
    free(c->longs);
    free(c->memory);
    free(c->ids);
    free(c->next);
    free(c->prev);
    free(c->starts);
    free(c->value);
    free(c->heap);
    memset(c, 0, sizeof(*c));
}

/* ---- longer pieces ---------------------------------------------------------------------------- */

static bool long_hit(const struct bpe_long *e, const unsigned char *p, size_t n,
                     struct bpe_out *out)
{
    if (e->n_text != n || memcmp(e->text, p, n) != 0)
        return false;
    if (bpe_out_reserve(out, LONG_IDS)) {
        memcpy(out->ids + out->n, e->ids, sizeof(e->ids));
        out->n += e->n_ids;
    }
    return true;
}

static inline struct bpe_long *long_of(const struct bpe_ctx *c, uint64_t key, size_t n)
{
    return &c->longs[bpe_slot_index(key + n, 64 - LONG_BITS)];
}

/* Ask for what encode_unknown() will look at; returns the key it wants. */
static uint64_t expect_unknown(const struct bpe *b, const struct bpe_ctx *c, const unsigned char *p,
                               size_t n)
{
    uint64_t key = bpe_key(p, n);
    __builtin_prefetch(&b->slots[bpe_slot_index(key, b->slot_shift)]);
    __builtin_prefetch(long_of(c, key, n));
    return key;
}

/* Encode a piece that is not in the table of words; key is its bpe_key(). */
static void encode_unknown(const struct bpe *b, struct bpe_ctx *c, const unsigned char *p, size_t n,
                           uint64_t key, struct bpe_out *out)
{
    uint32_t meta = probe(b, p, n, key);
    if (meta >> 31) {
        bpe_push(out, meta & 0xFFFFFF, n);
        return;
    }
    if (n > LONG_TEXT || out->lens) {
        bpe_encode_merge(b, c, p, n, out);
        return;
    }
    struct bpe_long *e = long_of(c, key, n);
    if (long_hit(e, p, n, out))
        return;
    size_t before = out->n;
    bpe_encode_merge(b, c, p, n, out);
    size_t k = out->n - before;
    if (out->failed || k > LONG_IDS || (n <= WORD_TEXT && k <= WORD_IDS))
        return;
    e->n_text = (uint8_t)n;
    e->n_ids = (uint8_t)k;
    memcpy(e->text, p, n);
    memcpy(e->ids, out->ids + before, k * sizeof(*e->ids));
}

/* ---- words ------------------------------------------------------------------------------------ */

struct piece {
    const unsigned char *p;
    struct bpe_words *set; /* NULL: too long for a word */
    uint64_t key[2];       /* of the word; else for encode_unknown(), and the length */
};

static bool make_tables(struct bpe_ctx *c)
{
    if (!c->longs)
        c->longs = calloc((size_t)1 << LONG_BITS, sizeof(*c->longs));
    if (!c->memory) { /* calloc gives untouched pages; a line is aligned by hand */
        c->memory = calloc(((size_t)1 << WORD_BITS) + 1, sizeof(*c->words));
        c->words = (struct bpe_words *)(((uintptr_t)c->memory + 63) & ~(uintptr_t)63);
    }
    return c->longs && c->memory;
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
    encode_unknown(b, c, w->p, n, bpe_key(w->p, n), out);
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
    if (!bpe_out_reserve(out, (size_t)(starts[n] - starts[0]) + LONG_IDS))
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
    for (size_t i = 0; i < n; i++) {
        const struct piece *w = &pieces[i];
        if (w->set && !word_is(&w->set->first, w->key) && !word_is(&w->set->second, w->key))
            expect_unknown(b, c, w->p, w->key[1] >> 56);
    }
    for (size_t i = 0; i < n && !out->failed; i++) {
        struct piece *w = &pieces[i];
        if (!w->set)
            encode_unknown(b, c, w->p, w->key[1], w->key[0], out);
        else if (word_is(&w->set->first, w->key))
            put_word(out, &w->set->first);
        else
            encode_word(b, c, w, out);
    }
}
