/* kv.c - see kv.h.  A page is in exactly one state:
 *
 *     free  --kv_take-->  used  --last kv_unref, not published-->  free
 *     used  --last kv_unref, published-->  idle  --kv_find-->  used
 *     idle  --kv_take, when nothing is free: unpublished-->  used
 *
 * used: refs > 0; idle: in the idle list and in the map of published pages; free: in the free
 * list, with its memory kept.  used never exceeds the limit, and used + idle + free not what others
 * leave of the engine's memory (budget.h). */
#include "engine/generate/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* limit: pages that running sequences may hold together, fixed for life.  most: pages that may
 * have memory at the moment, idle and free ones included; it moves with what passes leave, see
 * update_page_limit(). */
void kv_init(struct kv *kv, size_t page_floats, size_t limit)
{
    *kv = (struct kv){ .page_floats = page_floats, .limit = limit, .most = limit };
    kv_memory_init(&kv->memory, (page_floats * sizeof(float) + 63) / 64 * 64);
    map_init(&kv->published);
    kv->idle_list.prev = kv->idle_list.next = &kv->idle_list;
}

/* The list is circular with a sentinel, so no end is special. */
static void remove_idle(struct kv *kv, struct kv_page *page)
{
    page->prev->next = page->next;
    page->next->prev = page->prev;
    kv->idle--;
}

static void free_page(struct kv *kv, struct kv_page *page)
{
    kv_memory_give(&kv->memory, page->slab, page->data);
    free(page);
    kv->pages--;
}

/* idle -> gone.  Its key leaves the map first, so that nobody can find a page without memory. */
static void free_oldest_idle(struct kv *kv)
{
    struct kv_page *page = kv->idle_list.next;
    remove_idle(kv, page);
    map_remove(&kv->published, (const char *)&page->key, sizeof page->key);
    free_page(kv, page);
}

/* What is found by no key costs nothing but the time to clear another page. */
static void free_unused(struct kv *kv)
{
    struct kv_page *page = kv->free_pages;
    kv->free_pages = page->next;
    kv->n_free--;
    free_page(kv, page);
}

size_t kv_trim(struct kv *kv, int64_t since_ns)
{
    size_t before = kv->pages;
    /* The list is ordered by time: the oldest is first. */
    while (kv->idle > 0 && kv->idle_list.next->idle_ns <= since_ns)
        free_oldest_idle(kv);
    /* Of free pages those that were there all the time since the last look. */
    size_t unused = since_ns == INT64_MAX ? kv->n_free : kv->free_low;
    while (unused-- > 0)
        free_unused(kv);
    kv->free_low = kv->n_free;
    return before - kv->pages;
}

/* Free pages first, since cached prefixes may save a prompt's computation, then the oldest prefix. */
size_t kv_shrink(struct kv *kv, size_t n)
{
    size_t before = kv->pages;
    for (; n > 0 && kv->free_pages != NULL; n--)
        free_unused(kv);
    for (; n > 0 && kv->idle > 0; n--)
        free_oldest_idle(kv);
    kv->free_low = kv->free_low < kv->n_free ? kv->free_low : kv->n_free;
    return before - kv->pages;
}

uint64_t kv_bytes(const struct kv *kv)
{
    return ((uint64_t)kv->pages + kv->held) * kv->page_floats * sizeof(float);
}

void kv_clear(struct kv *kv)
{
    assert(kv->used == 0);
    kv_trim(kv, INT64_MAX);
    map_clear(&kv->published);
}

/* Idle pages count: kv_take() evicts them. */
size_t kv_available(const struct kv *kv)
{
    return kv->limit > kv->used ? kv->limit - kv->used : 0;
}

/* Memory that is counted in pages but is none: states of delta layers.  false: there is no room
 * for them now. */
bool kv_hold(struct kv *kv, size_t n)
{
    if (kv_available(kv) < n)
        return false;
    kv->used += n;
    kv->held += n;
    if (kv->pages + kv->held > kv->most) /* that memory is taken from the caches */
        kv_shrink(kv, kv->pages + kv->held - kv->most);
    return true;
}

void kv_unhold(struct kv *kv, size_t n)
{
    assert(kv->used >= n && kv->held >= n);
    kv->used -= n;
    kv->held -= n;
}

/* A free page, a new one where the memory allows it, or the least recently used idle one; NULL: all
 * are in use. */
struct kv_page *kv_take(struct kv *kv)
{
    struct kv_page *page = kv->free_pages;
    if (kv->used >= kv->limit)
        return NULL;
    if (page != NULL) {
        kv->free_pages = page->next;
        if (--kv->n_free < kv->free_low)
            kv->free_low = kv->n_free;
    } else if (kv->pages + kv->held < kv->most) {
        page = calloc(1, sizeof *page);
        if (page != NULL)
            page->data = kv_memory_take(&kv->memory, &page->slab);
        if (page != NULL && page->data == NULL) {
            free(page);
            page = NULL;
        }
        /* Attention reads whole pages: positions that are not computed yet must be numbers. */
        if (page != NULL) {
            memset(page->data, 0, kv->memory.bytes);
            kv->pages++;
        }
    }
    if (page == NULL && kv->idle > 0) {
        /* Evict the least recently used.  Pages that name it as parent can no longer be found,
         * since serials are never given twice, and age out in their turn. */
        page = kv->idle_list.next;
        remove_idle(kv, page);
        map_remove(&kv->published, (const char *)&page->key, sizeof page->key);
        /* Unpublished again: when its new user lets go it becomes free, not idle. */
        page->serial = 0;
    }
    if (page == NULL)
        return NULL;
    page->refs = 1;
    kv->used++;
    return page;
}

/* Only for pages in use: one that is idle is taken by its key. */
void kv_ref(struct kv_page *page)
{
    assert(page->refs > 0);
    page->refs++;
}

void kv_unref(struct kv *kv, struct kv_page *page)
{
    assert(page->refs > 0);
    /* used -> idle when others may find it, used -> free when not. */
    if (--page->refs > 0)
        return;
    kv->used--;
    if (page->serial != 0) { /* to the end: the list is ordered by last use */
        page->prev = kv->idle_list.prev;
        page->next = &kv->idle_list;
        page->prev->next = page->next->prev = page;
        page->idle_ns = kv->now_ns;
        kv->idle++;
    } else {
        page->next = kv->free_pages;
        kv->free_pages = page;
        kv->n_free++;
    }
}

/* One more user of a published page, which may be idle. */
static void reuse_page(struct kv *kv, struct kv_page *page)
{
    if (page->refs++ == 0) {
        remove_idle(kv, page);
        kv->used++;
    }
}

/* The key stands for the whole prefix: the weights, the serial of the page before, and the tokens in
 * this one.  So equal keys mean equal contents, and sequences with a common prompt share its
 * pages. */
struct kv_page *kv_find(struct kv *kv, const struct kv_key *key)
{
    struct kv_page *page = map_get(&kv->published, (const char *)key, sizeof *key);
    if (page == NULL || (page->refs == 0 && kv->used >= kv->limit))
        return NULL;
    reuse_page(kv, page);
    return page;
}

/* The page is full and will not change again: let others find it. Returns the page to use from now
 * on, which may be another with the same content. */
struct kv_page *kv_publish(struct kv *kv, struct kv_page *page, const struct kv_key *key)
{
    struct kv_page *known = map_get(&kv->published, (const char *)key, sizeof *key);
    /* Two sequences computed the same page side by side: keep one copy, the bits are equal. */
    if (known != NULL) {
        if (known != page) {
            reuse_page(kv, known);
            kv_unref(kv, page);
        }
        return known;
    }
    /* The map refers to this copy of the key for as long as the page is published. */
    page->key = *key;
    if (map_put(&kv->published, (const char *)key, sizeof *key, page, NULL))
        page->serial = ++kv->serials;
    return page; /* without memory for the entry it is merely not shared */
}
