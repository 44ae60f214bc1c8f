/* kv_memory.c - see kv_memory.h.
 *
 * A slab is a map of its own with up to 64 pages and a bit for each.  It is in the list of open
 * ones as long as it has room, and goes with its last page. */
#include "engine/generate/kv_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include "base/os.h"

/* Enough pages that a map is rarely made, few enough that one page in use keeps little else. */
enum { SLAB_BYTES = 1 << 20, SLAB_PAGES = 64 };

struct kv_slab {
    struct kv_slab *prev, *next; /* open slabs */
    struct os_map map;
    char *data;     /* of map */
    uint64_t taken; /* a bit for each page */
};

void kv_memory_init(struct kv_memory *m, size_t bytes)
{
    /* Fewer than two pages per slab: each gets memory of its own. */
    size_t fit = bytes ? SLAB_BYTES / bytes : 0;
    *m = (struct kv_memory){ .bytes = bytes,
                             .per_slab = fit < 2            ? 0
                                         : fit < SLAB_PAGES ? fit
                                                            : SLAB_PAGES };
}

/* All bits of the pages that a slab has. */
static uint64_t full_mask(const struct kv_memory *m)
{
    return UINT64_MAX >> (SLAB_PAGES - m->per_slab);
}

/* To the front: the slab used last is filled first, so that others can become empty and go. */
static void open_slab(struct kv_memory *m, struct kv_slab *slab)
{
    slab->prev = NULL;
    slab->next = m->open;
    if (m->open)
        m->open->prev = slab;
    m->open = slab;
}

/* It is full, or about to be freed; either way nothing more is taken from it. */
static void close_slab(struct kv_memory *m, struct kv_slab *slab)
{
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        m->open = slab->next;
    if (slab->next)
        slab->next->prev = slab->prev;
}

/* The system clears maps page by page when they are touched, so an empty slab costs address
 * space only. */
static struct kv_slab *new_slab(struct kv_memory *m)
{
    struct kv_slab *slab = calloc(1, sizeof *slab);
    if (!slab)
        return NULL;
    slab->data = os_map_new(&slab->map, m->bytes * m->per_slab);
    if (!slab->data) {
        free(slab);
        return NULL;
    }
    open_slab(m, slab);
    return slab;
}

/* *slab is kept beside the page: kv_memory_give() needs it to find the bit. */
void *kv_memory_take(struct kv_memory *m, struct kv_slab **slab)
{
    *slab = NULL;
    if (!m->per_slab) /* malloc() maps pages of this size one by one */
        return aligned_alloc(64, m->bytes);
    struct kv_slab *s = m->open ? m->open : new_slab(m);
    if (!s)
        return NULL;
    /* The lowest free place.  An open slab has one, so the loop ends. */
    unsigned at = 0;
    while (s->taken >> at & 1)
        at++;
    s->taken |= (uint64_t)1 << at;
    if (s->taken == full_mask(m))
        close_slab(m, s);
    *slab = s;
    return s->data + at * m->bytes;
}

void kv_memory_give(struct kv_memory *m, struct kv_slab *slab, void *page)
{
    if (!slab) {
        free(page);
        return;
    }
    size_t at = (size_t)((char *)page - slab->data) / m->bytes;
    if (slab->taken == full_mask(m))
        open_slab(m, slab);
    slab->taken &= ~((uint64_t)1 << at);
    if (slab->taken == 0) {
        close_slab(m, slab);
        os_map_close(&slab->map);
        free(slab);
        return;
    }
    /* The place stays, its memory goes: others in the slab may be used for hours. */
    os_map_release(page, m->bytes);
}
