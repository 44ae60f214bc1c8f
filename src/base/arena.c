/* arena.c - many allocations, one free.
 *
 * Blocks are cleared when they are made and memory is handed out once, so what is handed
 * out is zero, but for arena_unfilled().  The head block serves small requests; a large
 * one gets a block of its own, put second, so that the head's rest is not lost.
 * Not thread-safe. */
#include "base/arena.h"
#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    bool unfilled; /* not cleared */
    alignas(max_align_t) char data[];
};

enum { ALIGN = alignof(max_align_t), BLOCK_FIRST = 992, BLOCK_LARGEST = 256 * 1024 };

void arena_init(struct arena *a, size_t max)
{
    *a = (struct arena){ .max = max };
}

void arena_clear(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    arena_init(a, a->max);
}

void arena_adopt(struct arena *a, struct arena *from)
{
    /* Behind the blocks of a, so that its head goes on serving small requests. */
    struct arena_block **at = &a->blocks;
    while (*at)
        at = &(*at)->next;
    *at = from->blocks;
    a->used += from->used; /* may exceed a->max: then nothing more is handed out */
    arena_init(from, from->max);
}

/* n rounded up to the alignment, at least one unit so that pointers differ; 0: too large */
static size_t round_up(size_t n)
{
    if (n > SIZE_MAX / 2)
        return 0;
    return n ? (n + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
}

/* A block with space for n, linked where it belongs.  Blocks double, so an arena of n bytes has
 * O(log n) of them, up to a size beyond which doubling only wastes memory. */
static struct arena_block *add_block(struct arena *a, size_t n)
{
    struct arena_block *head = a->blocks;
    size_t cap = head ? head->cap * 2 : BLOCK_FIRST;
    if (cap > BLOCK_LARGEST)
        cap = BLOCK_LARGEST;
    /* A large request gets a block of its own behind the head: the rest of the head stays in
     * use. */
    bool own = n > cap / 4;
    if (own)
        cap = n;
    /* glibc keeps small blocks of a thread at hand for malloc, but not for calloc. */
    bool small = cap <= BLOCK_FIRST;
    struct arena_block *b = small ? malloc(sizeof *b + cap) : calloc(1, sizeof *b + cap);
    if (!b)
        return NULL;
    if (small)
        memset(b, 0, sizeof *b + cap);
    b->cap = cap;
    if (own && head) {
        b->next = head->next;
        head->next = b;
    } else {
        b->next = head;
        a->blocks = b;
    }
    return b;
}

/* The limit counts what was handed out, not the rest of blocks: the same requests always fit or
 * never do. */
static bool fits_limit(const struct arena *a, size_t size)
{
    return size && a->used <= a->max && size <= a->max - a->used;
}

static void *take_space(struct arena *a, struct arena_block *b, size_t size)
{
    void *p = b->data + b->used;
    b->used += size;
    a->used += size;
    return p;
}

/* Zeroed memory, aligned for any type. NULL: over the limit, or out of memory. */
void *arena_alloc(struct arena *a, size_t n)
{
    size_t size = round_up(n);
    if (!fits_limit(a, size))
        return NULL;
    struct arena_block *b = a->blocks;
    if (!b || size > b->cap - b->used) {
        b = add_block(a, size);
        if (!b) {
            a->failed = true;
            return NULL;
        }
    }
    return take_space(a, b, size);
}

/* A block that is not cleared, near the front but never the head.  Blocks of twice what there is keep
 * their number small; the C library then has few, large blocks, which it does not give back to the
 * system every time: page by page that costs more than filling them. */
static struct arena_block *find_unfilled(struct arena *a, size_t size)
{
    enum { NEAR = 4, LARGEST = 16 << 20 };
    struct arena_block *b = a->blocks;
    for (int i = 0; b && i < NEAR; i++, b = b->next)
        if (b->unfilled && size <= b->cap - b->used)
            return b;
    if (!a->blocks && !add_block(a, 0))
        return NULL;
    size_t cap = a->used < LARGEST / 2 ? 2 * a->used : LARGEST;
    if (cap < size)
        cap = size;
    b = malloc(sizeof *b + cap);
    if (!b)
        return NULL;
    *b = (struct arena_block){ .next = a->blocks->next, .cap = cap, .unfilled = true };
    a->blocks->next = b;
    return b;
}

void *arena_unfilled(struct arena *a, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    size_t n = round_up(count * size);
    if (n && n <= BLOCK_FIRST)
        return arena_alloc(a, n);
    if (!fits_limit(a, n))
        return NULL;
    struct arena_block *b = find_unfilled(a, n);
    a->failed = a->failed || !b;
    return b ? take_space(a, b, n) : NULL;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
    /* A count from a peer must not wrap to a small product. */
    if (size && count > SIZE_MAX / size)
        return NULL;
    return arena_alloc(a, count * size);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

void *arena_memdup(struct arena *a, const void *p, size_t n)
{
    void *copy = arena_alloc(a, n);
    if (copy && n)
        memcpy(copy, p, n);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    /* Measure, then print: the arena cannot give back what was too much. */
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

/* Is p (size bytes) what the block b handed out last?  Only then may it grow where it is. */
static bool is_last(const struct arena_block *b, const void *p, size_t size)
{
    return b && size <= b->used && b->data + (b->used - size) == (const char *)p;
}

void *arena_grow(struct arena *a, void *p, size_t old_n, size_t new_n)
{
    if (!p)
        return arena_alloc(a, new_n);
    size_t old_size = round_up(old_n), size = round_up(new_n);
    if (size && size <= old_size)
        return p;
    if (!size || a->used > a->max || size - old_size > a->max - a->used)
        return NULL;
    /* In place, when it is the last of the head block or of the block right after it, which is
     * where a large array that grows has its own. */
    struct arena_block *b = a->blocks;
    if (!is_last(b, p, old_size))
        b = b ? b->next : NULL;
    if (is_last(b, p, old_size) && size - old_size <= b->cap - b->used) {
        b->used += size - old_size;
        a->used += size - old_size;
        return p;
    }
    void *bigger = arena_alloc(a, new_n);
    if (bigger)
        memcpy(bigger, p, old_n);
    return bigger;
}
