/* map.c - byte-string keys to pointers, open addressing, seeded hash.
 *
 * Linear probing over a power of two; a removed entry leaves a mark so that an
 * iteration may remove its current entry without moving the others.  The seed is
 * random per map: a peer cannot choose keys that collide.  Not thread-safe. */
#include "base/map.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "base/rand.h"

struct map_slot {
    char *key; /* NULL: value tells free (NULL) from removed (&removed) */
    size_t n;
    uint64_t hash;
    void *value;
};

static char removed;

/* Up to eight bytes as a word, in the machine's order: a file with hashes stays on its machine. */
static inline uint64_t word_at(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

/* Multiply to 128 bits and fold the halves: every input bit reaches every output bit.  The same
 * construction as wyhash and rapidhash use. */
static uint64_t fold_product(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const unsigned char *s = p;
    uint64_t h = seed ^ 0x9e3779b97f4a7c15u;
    size_t left = n;
    /* Two words a step: one is mixed with a constant, the other with the state so far. */
    for (; left >= 16; left -= 16, s += 16)
        h = fold_product(word_at(s, 8) ^ 0xbf58476d1ce4e5b9u, word_at(s + 8, 8) ^ h);
    uint64_t a = left ? word_at(s, left < 8 ? left : 8) : 0;
    uint64_t b = left > 8 ? word_at(s + 8, left - 8) : 0;
    h = fold_product(a ^ 0x94d049bb133111ebu, b ^ h);
    return fold_product(h ^ 0xd6e8feb86659fd93u, (uint64_t)n ^ 0xa0761d6478bd642fu);
}

/* For keys that no peer chooses, and values that must be the same in every run. */
uint64_t hash_fnv1a(const void *p, size_t n)
{
    const unsigned char *s = p;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    return h;
}

/* No memory is taken until the first entry. */
void map_init(struct map *m)
{
    *m = (struct map){ 0 };
    if (rand_os(&m->seed, sizeof m->seed) != 0)
        m->seed = (uint64_t)(uintptr_t)m; /* still another one for each map */
}

/* Frees the keys; the values are the caller's. */
void map_clear(struct map *m)
{
    for (size_t i = 0; i < m->cap; i++)
        free(m->slots[i].key);
    free(m->slots);
    m->slots = NULL;
    m->len = m->cap = m->filled = 0;
}

/* NULL: not there.  Ends, because a quarter of the slots is free. */
static struct map_slot *find_slot(const struct map *m, const char *key, size_t n, uint64_t hash)
{
    if (!m->cap)
        return NULL;
    /* A mark does not end the search: the entry may lie behind what was removed. */
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct map_slot *s = &m->slots[i];
        if (!s->key && !s->value)
            return NULL;
        if (s->key && s->hash == hash && s->n == n && (n == 0 || memcmp(s->key, key, n) == 0))
            return s;
    }
}

/* Put an entry that is not there yet into the first slot without a key. */
static void place_entry(struct map_slot *slots, size_t cap, struct map_slot entry)
{
    size_t i = entry.hash & (cap - 1);
    while (slots[i].key)
        i = (i + 1) & (cap - 1);
    slots[i] = entry;
}

/* Make sure that one more entry fits.  At least a quarter of the slots stays free, marks counted as
 * used, because a search ends at the first free slot. */
static bool reserve_slot(struct map *m)
{
    if (m->filled + 1 <= m->cap - m->cap / 4)
        return true;
    size_t cap = m->cap ? m->cap : 8;
    /* Many marks and few entries: the same size again, only without the marks. */
    if (m->len >= cap / 2)
        cap *= 2;
    struct map_slot *slots = calloc(cap, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key)
            place_entry(slots, cap, m->slots[i]);
    free(m->slots);
    m->slots = slots;
    m->cap = cap;
    m->filled = m->len;
    return true;
}

/* NULL: not there; a value is never NULL. */
void *map_get(const struct map *m, const char *key, size_t n)
{
    const struct map_slot *s = find_slot(m, key, n, hash_bytes(key, n, m->seed));
    return s ? s->value : NULL;
}

/* The key is copied.  false: no memory, and nothing has changed. */
bool map_put(struct map *m, const char *key, size_t n, void *value, void **old)
{
    assert(value);
    uint64_t hash = hash_bytes(key, n, m->seed);
    struct map_slot *s = find_slot(m, key, n, hash);
    if (old)
        *old = s ? s->value : NULL;
    if (s) {
        s->value = value;
        return true;
    }
    if (n == SIZE_MAX || !reserve_slot(m))
        return false;
    /* NUL-terminated, so that map_next() can hand the key out as a C string. */
    char *copy = malloc(n + 1);
    if (!copy)
        return false;
    if (n)
        memcpy(copy, key, n);
    copy[n] = '\0';
    place_entry(m->slots, m->cap, (struct map_slot){ copy, n, hash, value });
    m->len++;
    m->filled++; /* over a removed mark this counts high, which only rebuilds sooner */
    return true;
}

void *map_remove(struct map *m, const char *key, size_t n)
{
    struct map_slot *s = find_slot(m, key, n, hash_bytes(key, n, m->seed));
    if (!s)
        return NULL;
    void *value = s->value;
    free(s->key);
    /* The mark keeps the entries behind it reachable. */
    *s = (struct map_slot){ .value = &removed };
    m->len--;
    return value;
}

bool map_next(const struct map *m, size_t *it, const char **key, size_t *n, void **value)
{
    while (*it < m->cap) {
        const struct map_slot *s = &m->slots[(*it)++];
        if (!s->key)
            continue;
        if (key)
            *key = s->key;
        if (n)
            *n = s->n;
        if (value)
            *value = s->value;
        return true;
    }
    return false;
}
