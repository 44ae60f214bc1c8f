/* budget.h - one limit for what an engine holds beside its weights: passes, keys and values, caches.
 *
 * Passes take all their memory when they begin.  A generator is promised what its requests can come
 * to need (`reserved`), so that nothing that began has to wait for memory of the other kind.  What
 * both leave is for caches, the spare memory of the last pass and cached prefixes, which go when
 * somebody needs the room.
 *
 * Thread safety: that of the engine, one thread at a time. */
#ifndef ENGINE_BUDGET_H
#define ENGINE_BUDGET_H

#include <stdint.h>
#include "engine/model/model.h"

/* A generator, as the engine sees it: train does not know generate. */
struct budget_user {
    struct budget_user *next;
    uint64_t reserved; /* bytes that its requests may come to need */
    uint64_t held;     /* bytes that it has, caches included */
    /* Free cached bytes, at least so many if there are; `held` says what is left. */
    void (*give_back)(struct budget_user *user, uint64_t bytes);
};

void budget_join(tinker_engine *e, struct budget_user *user);
void budget_leave(tinker_engine *e, struct budget_user *user);

/* Bytes that live passes hold and that generators were promised. */
uint64_t budget_promised(const tinker_engine *e);
/* What is left of the limit for a new promise or pass. */
uint64_t budget_room(const tinker_engine *e);
/* Have caches give back what `bytes` more need; call it with at most budget_room(). */
void budget_make_room(tinker_engine *e, uint64_t bytes);
/* How many bytes the generator may hold, caches included; spare memory and the caches of others go
 * first when that is less than it was promised. */
uint64_t budget_share(tinker_engine *e, struct budget_user *user);

#endif
