/* budget.c - see budget.h. */
#include "engine/train/budget.h"

#include <stdlib.h>

/* At the head of the list; its order decides only whose cache shrinks first. */
void budget_join(tinker_engine *e, struct budget_user *user)
{
    user->next = e->budget_users;
    e->budget_users = user;
}

void budget_leave(tinker_engine *e, struct budget_user *user)
{
    struct budget_user **p = &e->budget_users;
    while (*p != NULL && *p != user)
        p = &(*p)->next;
    if (*p != NULL)
        *p = user->next;
}

/* By what each may come to need, not by what it holds: a promise is kept also when all ask for it at
 * the same time. */
uint64_t budget_promised(const tinker_engine *e)
{
    uint64_t sum = e->pass_bytes;
    for (const struct budget_user *u = e->budget_users; u != NULL; u = u->next)
        sum += u->reserved;
    return sum;
}

/* What may still be promised to somebody new. */
uint64_t budget_room(const tinker_engine *e)
{
    uint64_t promised = budget_promised(e);
    return e->memory_limit > promised ? e->memory_limit - promised : 0;
}

/* What a generator keeps from others: memory that it has counts, and so does a promise. */
static uint64_t count_user(const struct budget_user *u)
{
    return u->held > u->reserved ? u->held : u->reserved;
}

/* Passes and all generators but one; NULL: all. */
static uint64_t count_others(const tinker_engine *e, const struct budget_user *except)
{
    uint64_t sum = e->pass_bytes;
    for (const struct budget_user *u = e->budget_users; u != NULL; u = u->next)
        sum += u == except ? 0 : count_user(u);
    return sum;
}

/* Caches of generators other than `except` shrink until `bytes` more fit, or are empty. */
static void shrink_caches(tinker_engine *e, const struct budget_user *except, uint64_t bytes)
{
    for (struct budget_user *u = e->budget_users; u != NULL; u = u->next) {
        uint64_t total = count_others(e, except) + bytes;
        if (total <= e->memory_limit || total < bytes)
            return;
        if (u != except && u->held > u->reserved)
            u->give_back(u, total - e->memory_limit);
    }
}

/* For a pass, which is in no list: all caches may have to give. */
void budget_make_room(tinker_engine *e, uint64_t bytes)
{
    shrink_caches(e, NULL, bytes);
}

/* What this user may have in all, now: the limit without the others, never less than its
 * promise. */
uint64_t budget_share(tinker_engine *e, struct budget_user *user)
{
    uint64_t spare = e->spare != NULL ? e->spare_bytes : 0;
    uint64_t others = count_others(e, user) + spare;
    if (others <= e->memory_limit && e->memory_limit - others >= user->reserved)
        return e->memory_limit - others;
    free(e->spare);
    e->spare = NULL;
    shrink_caches(e, user, user->reserved);
    others = count_others(e, user);
    /* Less than was promised is left only after the limit was lowered: promises are kept. */
    if (others > e->memory_limit || e->memory_limit - others < user->reserved)
        return user->reserved;
    return e->memory_limit - others;
}
