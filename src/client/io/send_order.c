/* send_order.c - see send_order.h. */
#include "client/io/send_order.h"

#include <assert.h>
#include <stddef.h>

/* Requests of a client are numbered and go out in that order; min is what the counter must
 * have reached.  Loop thread. */
bool send_order_enter(struct send_order *t, struct send_turn *turn, int64_t min, int64_t max)
{
    assert(t->counter <= max);
    (void)max;
    turn->min = min;
    turn->next = NULL;
    if (t->counter >= min)
        return true;
    /* nearly always it comes after all others */
    bool last = t->last && t->last->min <= min;
    struct send_turn **at = last ? &t->last->next : &t->waiting;
    while (*at && (*at)->min <= min)
        at = &(*at)->next;
    turn->next = *at;
    *at = turn;
    if (!turn->next)
        t->last = turn;
    return false;
}

/* One request has been sent, or will never be. */
void send_order_leave(struct send_order *t)
{
    t->counter++;
    /* Called from inside granted(): the outer loop goes on with the new counter. */
    if (t->granting)
        return;
    t->granting = true;
    while (t->waiting && t->waiting->min <= t->counter) {
        struct send_turn *next = t->waiting;
        t->waiting = next->next;
        if (!t->waiting)
            t->last = NULL;
        next->next = NULL;
        next->granted(next);
    }
    t->granting = false;
}
