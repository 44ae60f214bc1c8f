/* send_order.c - see turns.h. */
#include "client/io/send_order.h"

#include <assert.h>
#include <stddef.h>

bool turns_enter(struct turns *t, struct turn *turn, int64_t min, int64_t max)
{
    assert(t->counter <= max);
    (void)max;
    turn->min = min;
    turn->next = NULL;
    if (t->counter >= min)
        return true;
    /* nearly always it comes after all others */
    bool last = t->last && t->last->min <= min;
    struct turn **at = last ? &t->last->next : &t->waiting;
    while (*at && (*at)->min <= min)
        at = &(*at)->next;
    turn->next = *at;
    *at = turn;
    if (!turn->next)
        t->last = turn;
    return false;
}

void turns_leave(struct turns *t)
{
    t->counter++;
    if (t->granting)
        return;
    t->granting = true;
    while (t->waiting && t->waiting->min <= t->counter) {
        struct turn *next = t->waiting;
        t->waiting = next->next;
        if (!t->waiting)
            t->last = NULL;
        next->next = NULL;
        next->granted(next);
    }
    t->granting = false;
}
