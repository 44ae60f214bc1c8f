/* huge_pages.c - a thread that moves memory into huge pages, piece by piece; see huge_pages.h. */
#include "engine/model/huge_pages.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include "base/os.h"

/* Less is not worth a thread. */
enum { WORTH = 64 << 20 };

/* One thread and its piece of memory. */
struct huge_pages {
    char *p;
    size_t n;
    atomic_bool stop;
    bool joined;
    pthread_t thread;
};

/* The thread.  A failure ends it: small pages work as well, only slower. */
static void *enlarge_pages(void *arg)
{
    struct huge_pages *pages = arg;
    /* whole large pages inside the memory; its edges stay as they are */
    size_t large = os_large_page(), skip = (large - (uintptr_t)pages->p % large) % large;
    os_thread_name("tinker-pages");
    for (size_t at = skip; at + large <= pages->n && !atomic_load(&pages->stop); at += large)
        if (!os_make_large_page(pages->p + at))
            break;
    return NULL;
}

struct huge_pages *huge_pages_start(void *p, size_t n)
{
    struct huge_pages *pages = n >= WORTH && os_large_page() ? calloc(1, sizeof(*pages)) : NULL;
    if (!pages)
        return NULL;
    pages->p = p;
    pages->n = n;
    if (pthread_create(&pages->thread, NULL, enlarge_pages, pages) != 0) {
        free(pages);
        return NULL;
    }
    return pages;
}

void huge_pages_wait(struct huge_pages *pages)
{
    if (!pages || pages->joined)
        return;
    pthread_join(pages->thread, NULL);
    /* huge_pages_free() waits again after huge_pages_wait() */
    pages->joined = true;
}

void huge_pages_free(struct huge_pages *pages)
{
    if (!pages)
        return;
    /* the memory may be freed as soon as this returns */
    atomic_store(&pages->stop, true);
    huge_pages_wait(pages);
    free(pages);
}
