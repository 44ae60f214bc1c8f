/* send_order.h - the order in which requests of one training client are sent.
 *
 * Every request has an id; a counter says whose turn it is.  A request enters when the
 * counter reaches its `min` and leaves by adding one, whatever came of it; chunks of
 * one call share a range and may be inside together.  Runs on the loop thread. */
#ifndef CLIENT_TURNS_H
#define CLIENT_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct turn {
    struct turn *next;
    int64_t min;
    void (*granted)(struct turn *t); /* not called by turns_enter itself */
};

struct turns {
    int64_t counter;
    struct turn *waiting, *last; /* by ascending min */
    bool granting;
};

/* true: it is its turn already.  max is only checked. */
bool turns_enter(struct turns *t, struct turn *turn, int64_t min, int64_t max);
void turns_leave(struct turns *t); /* one request is through */

#endif
