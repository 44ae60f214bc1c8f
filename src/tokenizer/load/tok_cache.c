/* tok_cache.c - tokenizers that were loaded before.
 *
 * A table of 32 entries under one lock; the least recently used one makes room.  A thread that
 * finds its entry being loaded waits for the other thread.  The lock is not held while loading. */
#include <string.h>
#include "base/err.h"
#include "tokenizer/load/tok_open.h"

enum { ENTRIES = 32 };

struct entry {
    uint8_t identity[32]; /* of files, or of a loader and what it is asked for */
    tinker_tokenizer *t;  /* NULL while loading */
    bool used;
    uint64_t last; /* clock of its last use */
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct entry entries[ENTRIES];
    uint64_t clock;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

tinker_tokenizer *tok_cache_load(const uint8_t identity[32],
                                 tinker_tokenizer *(*make)(void *state, tinker_error *err),
                                 void *state, tinker_error *err)
{
    tinker_tokenizer *dropped = NULL, *t = NULL;
    struct entry *e, *free_entry, *oldest;
    pthread_mutex_lock(&table.lock);
    for (;;) {
        e = free_entry = oldest = NULL;
        for (int i = 0; i < ENTRIES; i++) {
            struct entry *k = &table.entries[i];
            if (!k->used)
                free_entry = free_entry ? free_entry : k;
            else if (memcmp(k->identity, identity, 32) == 0)
                e = k;
            else if (k->t && (!oldest || k->last < oldest->last))
                oldest = k;
        }
        if (!e || e->t)
            break;
        pthread_cond_wait(&table.changed, &table.lock); /* another thread is loading it */
    }
    if (e) {
        e->last = ++table.clock;
        t = tinker_tokenizer_ref(e->t);
    } else if ((e = free_entry ? free_entry : oldest) != NULL) {
        dropped = e->t; /* NULL of a free one */
        *e = (struct entry){ .used = true };
        memcpy(e->identity, identity, 32);
    }
    pthread_mutex_unlock(&table.lock);
    tinker_tokenizer_free(dropped); /* may take a while, so without the lock */
    if (t)
        return t;
    t = make(state, err);
    if (!e) /* all entries are being loaded: nobody shares this one */
        return t;
    /* A failure leaves the entry free; those who waited try for themselves. */
    pthread_mutex_lock(&table.lock);
    e->used = t != NULL;
    e->t = t ? tinker_tokenizer_ref(t) : NULL;
    e->last = ++table.clock;
    pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
    return t;
}
