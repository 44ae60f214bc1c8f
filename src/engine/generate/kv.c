/* kv.c - see kv.h.  A page is in exactly one state:
 *
 *     free  --kv_take-->  used  --last kv_unref, not published-->  free
 *     used  --last kv_unref, published-->  idle  --kv_find-->  used
 *     idle  --kv_take, when nothing is free: unpublished-->  used
 *
 * used: refs > 0; idle: in the idle list and in the map of published pages; free: in the free
 * list, with its memory kept.  used + idle + free never exceeds the limit. */
#include "engine/generate/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void kv_init(struct kv *kv, size_t page_floats, size_t limit)
{
    *kv = (struct kv){ .page_floats = page_floats, .limit = limit };
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
    free(page->data);
    free(page);
    kv->pages--;
}

size_t kv_trim(struct kv *kv)
{
    size_t n = 0;
    while (kv->idle > 0) {
        struct kv_page *page = kv->idle_list.next;
        remove_idle(kv, page);
        map_remove(&kv->published, (const char *)&page->key, sizeof page->key);
        free_page(kv, page);
        n++;
    }
    while (kv->free_pages != NULL) {
        struct kv_page *page = kv->free_pages;
        kv->free_pages = page->next;
        free_page(kv, page);
        n++;
    }
    return n;
}

void kv_clear(struct kv *kv)
{
    assert(kv->used == 0);
    kv_trim(kv);
    map_clear(&kv->published);
}

/* Idle pages count: kv_take() evicts them. */
size_t kv_available(const struct kv *kv)
{
    return kv->limit - kv->used;
}

bool kv_hold(struct kv *kv, size_t n)
{
    if (kv_available(kv) < n)
        return false;
    kv->used += n;
    return true;
}

void kv_unhold(struct kv *kv, size_t n)
{
    assert(kv->used >= n);
    kv->used -= n;
}

/* A free page, a new one below the limit, or the least recently used idle one; NULL: all are in
 * use. */
struct kv_page *kv_take(struct kv *kv)
{
    struct kv_page *page = kv->free_pages;
    if (page != NULL) {
        kv->free_pages = page->next;
    } else if (kv->used + kv->idle < kv->limit) {
        size_t bytes = (kv->page_floats * sizeof(float) + 63) / 64 * 64;
        page = calloc(1, sizeof *page);
        if (page != NULL)
            page->data = aligned_alloc(64, bytes);
        if (page != NULL && page->data == NULL) {
            free(page);
            page = NULL;
        }
        /* Attention reads whole pages: positions that are not computed yet must be numbers. */
        if (page != NULL) {
            memset(page->data, 0, bytes);
            kv->pages++;
        }
    }
    if (page == NULL && kv->idle > 0) {
        /* Evict the least recently used.  Pages that name it as parent can no longer be found,
         * since serials are never given twice, and age out in their turn. */
        page = kv->idle_list.next;
        remove_idle(kv, page);
        map_remove(&kv->published, (const char *)&page->key, sizeof page->key);
        page->serial = 0;
    }
    if (page == NULL)
        return NULL;
    page->refs = 1;
    kv->used++;
    return page;
}

void kv_ref(struct kv_page *page)
{
    assert(page->refs > 0);
    page->refs++;
}

void kv_unref(struct kv *kv, struct kv_page *page)
{
    assert(page->refs > 0);
    if (--page->refs > 0)
        return;
    kv->used--;
    if (page->serial != 0) { /* to the end: the list is ordered by last use */
        page->prev = kv->idle_list.prev;
        page->next = &kv->idle_list;
        page->prev->next = page->next->prev = page;
        kv->idle++;
    } else {
        page->next = kv->free_pages;
        kv->free_pages = page;
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
    if (page != NULL)
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
    page->key = *key;
    if (map_put(&kv->published, (const char *)key, sizeof *key, page, NULL))
        page->serial = ++kv->serials;
    return page; /* without memory for the entry it is merely not shared */
}
