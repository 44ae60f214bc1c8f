/* tok_cache.c - tokenizers that were loaded before.
 *
 * A table of 32 entries under one lock; the least recently used one makes room.  A thread that
 * finds its entry being loaded waits for the other thread.  The lock is not held while loading. */
#include <string.h>
#include "base/err.h"
#include "tokenizer/load/tok_open.h"

enum { ENTRIES = 32 };

struct entry {
    uint8_t identity[32];
    tinker_tokenizer *t; /* NULL while loading */
    bool used;
    uint64_t last;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct entry entries[ENTRIES];
    uint64_t clock;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static struct entry *find_locked(const uint8_t identity[32])
{
    for (int i = 0; i < ENTRIES; i++)
        if (table.entries[i].used && memcmp(table.entries[i].identity, identity, 32) == 0)
            return &table.entries[i];
    return NULL;
}

/* A free entry, or the oldest that is not loading; NULL when all are loading. */
static struct entry *room_locked(tinker_tokenizer **dropped)
{
    struct entry *oldest = NULL;
    for (int i = 0; i < ENTRIES; i++) {
        struct entry *e = &table.entries[i];
        if (!e->used)
            return e;
        if (e->t && (!oldest || e->last < oldest->last))
            oldest = e;
    }
    if (oldest)
        *dropped = oldest->t;
    return oldest;
}

static tinker_tokenizer *load_into(struct entry *e,
                                   tinker_tokenizer *(*make)(void *, tinker_error *), void *state,
                                   tinker_error *err)
{
    tinker_tokenizer *t = make(state, err);
    pthread_mutex_lock(&table.lock);
    e->used = t != NULL;
    e->t = t ? tinker_tokenizer_ref(t) : NULL;
    e->last = ++table.clock;
    pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
    return t;
}

tinker_tokenizer *tok_share(const uint8_t identity[32],
                            tinker_tokenizer *(*make)(void *state, tinker_error *err), void *state,
                            tinker_error *err)
{
    tinker_tokenizer *dropped = NULL, *t = NULL;
    pthread_mutex_lock(&table.lock);
    struct entry *e;
    while ((e = find_locked(identity)) != NULL && !e->t)
        pthread_cond_wait(&table.changed, &table.lock);
    if (e) {
        e->last = ++table.clock;
        t = tinker_tokenizer_ref(e->t);
    } else if ((e = room_locked(&dropped)) != NULL) {
        *e = (struct entry){ .used = true };
        memcpy(e->identity, identity, 32);
    }
    pthread_mutex_unlock(&table.lock);
    tinker_tokenizer_free(dropped);
    if (t)
        return t;
    return e ? load_into(e, make, state, err) : make(state, err);
}
