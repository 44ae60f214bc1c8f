/* arena.h - many allocations, one free.
 *
 * Used for everything that lives as long as one response or one parsed file.
 * Allocations are aligned for any type.  Returns NULL when out of memory or over
 * the maximum; earlier allocations stay valid.  Not thread-safe. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *blocks;
    size_t used, max;
    bool failed; /* the system once had no memory for it; kept until clear */
};

void arena_init(struct arena *a, size_t max); /* SIZE_MAX: no limit of its own */
void arena_clear(struct arena *a);
/* Everything that lives in *from lives in *a from now on; *from is empty. */
void arena_adopt(struct arena *a, struct arena *from);
void *arena_alloc(struct arena *a, size_t n);                  /* zeroed */
void *arena_array(struct arena *a, size_t count, size_t size); /* zeroed, overflow-checked */
/* For large arrays that the caller fills at once: not zeroed where that would cost a pass. */
void *arena_unfilled(struct arena *a, size_t count, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_strdup(struct arena *a, const char *s);
void *arena_memdup(struct arena *a, const void *p, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Grow an array that was the arena's last allocation in place, else copy. */
void *arena_grow(struct arena *a, void *p, size_t old_n, size_t new_n);

#endif
