/* kv_memory.h - the memory of pages of keys and values, apart from that of malloc().
 *
 * A small model has pages of some KB, a busy server tens of thousands of them, and between two that
 * were made one after the other lies what was allocated meanwhile and stays longer, such as the
 * result of a sample.  malloc() could then give little of it back.  Here pages share slabs with
 * nothing else: what a page took returns to the system when it goes.
 *
 * Thread safety: one thread at a time. */
#ifndef ENGINE_KV_MEMORY_H
#define ENGINE_KV_MEMORY_H

#include <stddef.h>

struct kv_slab;

struct kv_memory {
    size_t bytes;         /* of a page, a multiple of 64 */
    size_t per_slab;      /* pages in a slab; 0: pages are large, each is allocated alone */
    struct kv_slab *open; /* those with room, linked both ways */
};

void kv_memory_init(struct kv_memory *m, size_t bytes);
/* A page, and its slab (NULL when it has none); aligned to 64, of any contents.  NULL: no memory. */
void *kv_memory_take(struct kv_memory *m, struct kv_slab **slab);
void kv_memory_give(struct kv_memory *m, struct kv_slab *slab, void *page);

#endif
