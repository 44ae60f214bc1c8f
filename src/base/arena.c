/* arena.c - many allocations, one free.
 *
 * Blocks are cleared when they are made and memory is handed out once, so what is handed
 * out is zero.  The head block serves small requests; a large
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
    struct arena_block **at = &a->blocks;
    while (*at)
        at = &(*at)->next;
    *at = from->blocks;
    a->used += from->used;
    arena_init(from, from->max);
}

/* n rounded up to the alignment, at least one unit so that pointers differ; 0: too large */
static size_t round_up(size_t n)
{
    if (n > SIZE_MAX / 2)
        return 0;
    return n ? (n + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
}

static struct arena_block *new_block(size_t cap)
{
    /* glibc keeps small blocks of a thread at hand for malloc, but not for calloc */
    bool small = cap <= BLOCK_FIRST;
    struct arena_block *b = small ? malloc(sizeof *b + cap) : calloc(1, sizeof *b + cap);
    if (b && small)
        memset(b, 0, sizeof *b + cap);
    if (b)
        b->cap = cap;
    return b;
}

/* A block with room for n, linked where it belongs. */
static struct arena_block *add_block(struct arena *a, size_t n)
{
    struct arena_block *head = a->blocks;
    size_t cap = head ? head->cap * 2 : BLOCK_FIRST;
    if (cap > BLOCK_LARGEST)
        cap = BLOCK_LARGEST;
    bool own = n > cap / 4;
    struct arena_block *b = new_block(own ? n : cap);
    if (!b)
        return NULL;
    if (own && head) {
        b->next = head->next;
        head->next = b;
    } else {
        b->next = head;
        a->blocks = b;
    }
    return b;
}

void *arena_alloc(struct arena *a, size_t n)
{
    size_t size = round_up(n);
    if (!size || a->used > a->max || size > a->max - a->used)
        return NULL;
    struct arena_block *b = a->blocks;
    if (!b || size > b->cap - b->used) {
        b = add_block(a, size);
        if (!b) {
            a->failed = true;
            return NULL;
        }
    }
    void *p = b->data + b->used;
    b->used += size;
    a->used += size;
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
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
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

/* True when p (size bytes) is what the block b handed out last. */
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
    /* in place: in the head, or in the block of its own right after it */
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
