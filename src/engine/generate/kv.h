/* kv.h - pages of keys and values, shared by sequences and kept as a prefix cache.
 *
 * A page holds KV_BLOCK positions of all layers.  Once full it never changes, so it
 * can be published under (scope, weights, page before it, its tokens) and found again
 * by any sequence of that scope that begins the same way.  Published pages that nobody uses are the
 * first to go when a page is needed, least recently used first.
 *
 * Thread safety: one thread at a time. */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include <stddef.h>
#include <stdint.h>
#include "base/map.h"
#include "engine/generate/kv_memory.h"
#include "engine/train/forward.h"

/* Where a full page belongs; compared byte by byte. */
struct kv_key {
    uint64_t scope;          /* of the requests that may share it */
    uint64_t adapter, steps; /* the weights that computed it */
    uint64_t parent;         /* serial of the page before it, 0 for the first */
    uint64_t is_long;        /* with the frequencies of long texts */
    int32_t tokens[KV_BLOCK];
};

struct kv_page {
    float *data;
    struct kv_slab *slab; /* that data is in */
    size_t refs;          /* sequences that use it */
    uint64_t serial;      /* of a published page, else 0 */
    int64_t idle_ns;      /* when the last sequence left it */
    struct kv_key key;
    struct kv_page *prev, *next; /* idle list: published and unused, oldest first */
};

struct kv {
    size_t page_floats, limit; /* limit of used pages */
    struct kv_memory memory;
    size_t most;  /* that may have memory: what others leave now, at least used */
    size_t used;  /* pages with refs > 0, and what kv_hold() counts */
    size_t held;  /* the latter */
    size_t idle;  /* pages in the idle list */
    size_t pages; /* that have memory: used, idle and free ones */
    uint64_t serials;
    struct map published;
    struct kv_page idle_list;   /* sentinel */
    struct kv_page *free_pages; /* linked by next */
    size_t n_free, free_low;    /* how many, and the fewest since the last trim */
    int64_t now_ns;             /* the time of this step */
};

void kv_init(struct kv *kv, size_t page_floats, size_t limit);
void kv_clear(struct kv *kv); /* no page may be in use */

/* Free pages that nobody has used since then, cached ones included; how many there were. */
size_t kv_trim(struct kv *kv, int64_t since_ns);
/* Free up to n pages that nobody uses, the least worth keeping first; how many it were. */
size_t kv_shrink(struct kv *kv, size_t n);
/* Bytes that all pages have, and what kv_hold() counts. */
uint64_t kv_bytes(const struct kv *kv);
/* Pages that can be taken without anybody giving one up. */
size_t kv_available(const struct kv *kv);
/* Count n pages as used, or no longer, whose memory is somewhere else. */
bool kv_hold(struct kv *kv, size_t n);
void kv_unhold(struct kv *kv, size_t n);
/* A page for one user; NULL: all pages are in use, or no memory. */
struct kv_page *kv_take(struct kv *kv);
void kv_ref(struct kv_page *page);
void kv_unref(struct kv *kv, struct kv_page *page);

/* The published page of this key with one more user, or NULL. */
struct kv_page *kv_find(struct kv *kv, const struct kv_key *key);
/* Publish a full page of the caller.  Returns the page to use from now on: another
 * one when the key was published before (the caller's use moves over). */
struct kv_page *kv_publish(struct kv *kv, struct kv_page *page, const struct kv_key *key);

#endif
