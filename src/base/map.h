/* map.h - byte-string keys to pointers, open addressing, seeded hash.
 *
 * Keys are copied (and NUL-terminated), values are the caller's.  Iteration order is unspecified; the
 * current entry may be removed while iterating.  Not thread-safe. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot;
struct map {
    struct map_slot *slots;
    size_t len, cap;
    size_t filled; /* slots in use, marks of removed entries included */
    uint64_t seed;
};

void map_init(struct map *m);
void map_clear(struct map *m);
void *map_get(const struct map *m, const char *key, size_t n); /* NULL: absent */
/* Insert or replace; false: out of memory.  value must not be NULL.
 * *old (may be NULL) receives the replaced value or NULL. */
bool map_put(struct map *m, const char *key, size_t n, void *value, void **old);
void *map_remove(struct map *m, const char *key, size_t n); /* the value, or NULL */
/* it starts at 0; false at the end. */
bool map_next(const struct map *m, size_t *it, const char **key, size_t *n, void **value);

/* 64-bit, not cryptographic.  The server keeps such hashes of requests in its files, to know one
 * that comes again: stable for ever, too. */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
uint64_t hash_fnv1a(const void *p, size_t n); /* FNV-1a, stable for ever */

#endif
