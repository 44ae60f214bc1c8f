/* Pages: who owns them, who finds them again, which go first. */
#define _DEFAULT_SOURCE /* mincore() */
#include "engine/generate/generator.h"
#include "support/tap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/os.h"

static struct kv_key key_of(uint64_t adapter, uint64_t parent, int32_t first)
{
    struct kv_key key;
    memset(&key, 0, sizeof key);
    key.adapter = adapter;
    key.parent = parent;
    for (int i = 0; i < KV_BLOCK; i++)
        key.tokens[i] = first + i;
    return key;
}

static void limit_is_kept(void)
{
    struct kv kv;
    struct kv_page *p[3];
    kv_init(&kv, 10, 3);
    CHECK_INT(kv_available(&kv), 3);
    for (int i = 0; i < 3; i++)
        CHECK((p[i] = kv_take(&kv)) != NULL);
    CHECK(kv_take(&kv) == NULL);
    CHECK_INT(kv_available(&kv), 0);
    CHECK_INT(kv.pages, 3);
    kv_ref(p[1]);
    kv_unref(&kv, p[1]);
    CHECK(kv_take(&kv) == NULL); /* it still has a user */
    kv_unref(&kv, p[1]);
    CHECK(kv_take(&kv) == p[1]); /* the memory is used again */
    for (int i = 0; i < 3; i++)
        kv_unref(&kv, p[i]);
    CHECK_INT(kv_available(&kv), 3);
    CHECK_INT(kv.pages, 3); /* their memory is kept */
    CHECK_INT(kv_trim(&kv, INT64_MAX), 3);
    CHECK_INT(kv.pages, 0);
    kv_clear(&kv);
}

static void published_pages_are_found_by_exact_key(void)
{
    struct kv kv;
    kv_init(&kv, 10, 4);
    struct kv_key a = key_of(1, 0, 100), other = key_of(2, 0, 100), last = key_of(1, 0, 100);
    last.tokens[KV_BLOCK - 1]++;
    struct kv_page *p = kv_publish(&kv, kv_take(&kv), &a);
    CHECK(p->serial != 0);
    kv_unref(&kv, p);
    CHECK_INT(kv_available(&kv), 4); /* idle pages can be had */
    CHECK(kv_find(&kv, &other) == NULL);
    CHECK(kv_find(&kv, &last) == NULL);
    CHECK(kv_find(&kv, &a) == p);
    CHECK_INT(kv_available(&kv), 3);
    /* A second page of the same key gives way to the first. */
    struct kv_page *twin = kv_take(&kv);
    CHECK(kv_publish(&kv, twin, &a) == p);
    CHECK_INT(p->refs, 2);
    CHECK_INT(kv_available(&kv), 3);
    CHECK(kv_publish(&kv, p, &a) == p);
    CHECK_INT(p->refs, 2);
    kv_unref(&kv, p);
    kv_unref(&kv, p);
    kv_clear(&kv);
}

static void least_recently_used_goes_first(void)
{
    struct kv kv;
    struct kv_key keys[3];
    struct kv_page *p[3];
    kv_init(&kv, 10, 3);
    for (int i = 0; i < 3; i++) {
        keys[i] = key_of(1, 0, 100 * i);
        p[i] = kv_publish(&kv, kv_take(&kv), &keys[i]);
    }
    for (int i = 0; i < 3; i++)
        kv_unref(&kv, p[i]);
    CHECK(kv_find(&kv, &keys[0]) == p[0]); /* used again, so now the youngest */
    kv_unref(&kv, p[0]);
    struct kv_page *fresh = kv_take(&kv);
    CHECK(fresh == p[1]);
    CHECK(kv_find(&kv, &keys[1]) == NULL);
    CHECK(fresh->serial == 0);
    CHECK(kv_find(&kv, &keys[0]) == p[0]);
    CHECK(kv_take(&kv) == p[2]);
    CHECK(kv_take(&kv) == NULL); /* the third one is in use */
    for (int i = 0; i < 3; i++)
        kv_unref(&kv, p[i]);
    kv_clear(&kv);
}

static void serials_are_never_reused(void)
{
    struct kv kv;
    kv_init(&kv, 10, 1);
    uint64_t last = 0;
    for (int i = 0; i < 5; i++) {
        struct kv_key key = key_of(1, 0, i);
        struct kv_page *p = kv_publish(&kv, kv_take(&kv), &key);
        CHECK(p->serial > last);
        last = p->serial;
        kv_unref(&kv, p);
    }
    kv_clear(&kv);
}

/* A page that could not be published has no serial.  What follows it is not found as the
 * beginning of another sequence. */
static void nothing_follows_an_unpublished_page(void)
{
    tinker_generator g = { 0 };
    struct request r = { .n_prompt = 3 * KV_BLOCK };
    struct kv_page *pages[4];
    float *data[4];
    int32_t tokens[3 * KV_BLOCK];
    for (int i = 0; i < 3 * KV_BLOCK; i++)
        tokens[i] = i;
    kv_init(&g.kv, 10, 4);
    struct kv_key second = key_of(0, 0, KV_BLOCK);
    struct kv_page *first = kv_publish(&g.kv, kv_take(&g.kv), &second);
    pages[0] = kv_take(&g.kv); /* as kv_publish() leaves it without memory */
    struct sequence s = { .request = &r,
                          .tokens = tokens,
                          .len = 3 * KV_BLOCK,
                          .computed = KV_BLOCK,
                          .pages = pages,
                          .data = data,
                          .n_pages = 1,
                          .published = 1 };
    sequence_reuse_prefix(&g, &s);
    CHECK_INT(s.computed, KV_BLOCK);
    CHECK_INT(first->refs, 1);
    sequence_release(&g, &s);
    kv_unref(&g.kv, first);
    kv_clear(&g.kv);
}

/* Does the system still hold memory for these bytes? */
static bool is_resident(const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char state;
    for (uintptr_t at = (uintptr_t)p / page * page; at < (uintptr_t)p + n; at += page)
        if (mincore((void *)at, page, &state) == 0 && (state & 1))
            return true;
    return false;
}

/* A result that stays was allocated after each page, as in a server: it must not keep the memory
 * around it.  Pages that are still used keep nothing but themselves, either. */
static void memory_of_pages_goes_back_whatever_was_allocated_between(void)
{
    enum { PAGES = 1000, FLOATS = 4096 };
    struct kv kv;
    struct kv_page *p[PAGES];
    const void *data[PAGES];
    void *between[PAGES];
    size_t kept = 0;
    kv_init(&kv, FLOATS, PAGES);
    for (size_t i = 0; i < PAGES; i++) {
        p[i] = kv_take(&kv);
        data[i] = p[i]->data;
        p[i]->data[0] = p[i]->data[FLOATS - 1] = (float)i;
        between[i] = malloc(100);
    }
    for (size_t i = 0; i < PAGES; i++)
        if (i % 100 != 7)
            kv_unref(&kv, p[i]);
    CHECK_INT(kv_trim(&kv, INT64_MAX), PAGES - PAGES / 100);
    os_memory_return();
    for (size_t i = 0; i < PAGES; i++)
        if (i % 100 != 7)
            kept += is_resident(data[i], FLOATS * sizeof(float));
    CHECK_INT(kept, 0);
    for (size_t i = 7; i < PAGES; i += 100) {
        CHECK(p[i]->data[0] == (float)i && p[i]->data[FLOATS - 1] == (float)i);
        kv_unref(&kv, p[i]);
    }
    CHECK_INT(kv_trim(&kv, INT64_MAX), PAGES / 100);
    /* its place is taken again, and holds numbers */
    struct kv_page *again = kv_take(&kv);
    CHECK(again->data[0] == 0 && again->data[FLOATS - 1] == 0);
    kv_unref(&kv, again);
    kv_clear(&kv);
    for (size_t i = 0; i < PAGES; i++)
        free(between[i]);
}

int main(void)
{
    RUN(limit_is_kept);
    RUN(published_pages_are_found_by_exact_key);
    RUN(least_recently_used_goes_first);
    RUN(serials_are_never_reused);
    RUN(nothing_follows_an_unpublished_page);
    RUN(memory_of_pages_goes_back_whatever_was_allocated_between);
    return tap_done();
}
