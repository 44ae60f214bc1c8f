/* budget.c - first-come-first-served admission.  A grant runs inside the give that made
 * room; `granting` keeps nested gives from recursing through a long line of waiters. */
#include "client/io/budget.h"

#include <stddef.h>

/* floor is the least that must be free for another to be admitted. */
static void init_budget(struct budget *s, int64_t n, int64_t floor)
{
    *s = (struct budget){ .free = n < floor ? floor : n, .floor = floor };
}

/* Permits: one must be free, and each waiter takes one or more of them. */
void budget_init_permits(struct budget *s, int64_t n)
{
    init_budget(s, n, 1);
}

/* Bytes: admitted while the balance is not negative, so one result may be larger than the
 * whole budget. */
void budget_init_bytes(struct budget *s, int64_t n)
{
    init_budget(s, n, 0);
}

static void unlink_wait(struct budget *s, struct budget_wait *w)
{
    *(w->prev ? &w->prev->next : &s->first) = w->next;
    *(w->next ? &w->next->prev : &s->last) = w->prev;
    w->next = w->prev = NULL;
}

/* Loop thread.  w belongs to the caller until budget_give(). */
bool budget_take(struct budget *s, struct budget_wait *w, int64_t amount)
{
    w->budget = s;
    w->amount = amount;
    w->next = w->prev = NULL;
    /* First come, first served: a small amount does not overtake a waiting large one. */
    w->holding = !s->first && s->free >= s->floor;
    if (w->holding) {
        s->free -= amount;
        return true;
    }
    w->prev = s->last;
    *(s->last ? &s->last->next : &s->first) = w;
    s->last = w;
    return false;
}

/* Harmless if nothing was taken.  A waiter that gives up leaves the line. */
void budget_give(struct budget_wait *w)
{
    struct budget *s = w->budget;
    if (!s)
        return;
    w->budget = NULL;
    if (w->holding)
        s->free += w->amount;
    else
        unlink_wait(s, w);
    w->holding = false;
    /* The outer call's loop sees what this one has given back. */
    if (s->granting)
        return;
    s->granting = true;
    while (s->first && s->free >= s->floor) {
        struct budget_wait *next = s->first;
        unlink_wait(s, next);
        /* Account first: granted() may give at once, or take again. */
        next->holding = true;
        s->free -= next->amount;
        next->granted(next);
    }
    s->granting = false;
}
