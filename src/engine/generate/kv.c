/* kv.c - see kv.h.  A page is in exactly one state: used (refs > 0), idle (published,
 * refs 0, in the idle list) or free (in the free list, its memory kept). */
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

static void idle_add(struct kv *kv, struct kv_page *page)
{
    page->prev = kv->idle_list.prev;
    page->next = &kv->idle_list;
    page->prev->next = page->next->prev = page;
    kv->idle++;
}

static void idle_remove(struct kv *kv, struct kv_page *page)
{
    page->prev->next = page->next;
    page->next->prev = page->prev;
    kv->idle--;
}

static void page_free(struct kv_page *page)
{
    free(page->data);
    free(page);
}

void kv_clear(struct kv *kv)
{
    assert(kv->used == 0);
    for (struct kv_page *p = kv->idle_list.next; p != &kv->idle_list;) {
        struct kv_page *next = p->next;
        page_free(p);
        p = next;
    }
    while (kv->free_pages != NULL) {
        struct kv_page *p = kv->free_pages;
        kv->free_pages = p->next;
        page_free(p);
    }
    map_clear(&kv->published);
}

size_t kv_available(const struct kv *kv)
{
    return kv->limit - kv->used;
}

static struct kv_page *page_new(const struct kv *kv)
{
    struct kv_page *page = calloc(1, sizeof *page);
    if (page == NULL)
        return NULL;
    size_t bytes = (kv->page_floats * sizeof(float) + 63) / 64 * 64;
    page->data = aligned_alloc(64, bytes);
    if (page->data == NULL) {
        free(page);
        return NULL;
    }
    /* Defined bytes for code that reads a page beyond its last position. */
    memset(page->data, 0, bytes);
    return page;
}

static void unpublish(struct kv *kv, struct kv_page *page)
{
    map_remove(&kv->published, (const char *)&page->key, sizeof page->key);
    page->serial = 0;
}

struct kv_page *kv_take(struct kv *kv)
{
    struct kv_page *page = kv->free_pages;
    if (page != NULL) {
        kv->free_pages = page->next;
    } else if (kv->used + kv->idle < kv->limit) {
        page = page_new(kv);
    }
    if (page == NULL && kv->idle > 0) {
        page = kv->idle_list.next;
        idle_remove(kv, page);
        unpublish(kv, page);
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
    if (page->serial != 0) {
        idle_add(kv, page);
    } else {
        page->next = kv->free_pages;
        kv->free_pages = page;
    }
}

static void use_again(struct kv *kv, struct kv_page *page)
{
    if (page->refs++ == 0) {
        idle_remove(kv, page);
        kv->used++;
    }
}

struct kv_page *kv_find(struct kv *kv, const struct kv_key *key)
{
    struct kv_page *page = map_get(&kv->published, (const char *)key, sizeof *key);
    if (page != NULL)
        use_again(kv, page);
    return page;
}

struct kv_page *kv_publish(struct kv *kv, struct kv_page *page, const struct kv_key *key)
{
    struct kv_page *known = map_get(&kv->published, (const char *)key, sizeof *key);
    if (known != NULL) {
        if (known != page) {
            use_again(kv, known);
            kv_unref(kv, page);
        }
        return known;
    }
    page->key = *key;
    if (map_put(&kv->published, (const char *)key, sizeof *key, page, NULL))
        page->serial = ++kv->serials;
    return page; /* without memory for the entry it is merely not shared */
}
