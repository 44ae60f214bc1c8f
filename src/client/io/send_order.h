/* send_order.h - the order in which requests of one training client are sent.
 *
 * Every request has an id; a counter says whose turn it is.  A request enters when the
 * counter reaches its `min` and leaves by adding one, whatever came of it; chunks of
 * one call share a range and may be inside together.  Runs on the loop thread. */
#ifndef CLIENT_SEND_ORDER_H
#define CLIENT_SEND_ORDER_H

#include <stdbool.h>
#include <stdint.h>

struct send_turn {
    struct send_turn *next;
    int64_t min;
    void (*granted)(struct send_turn *t); /* not called by send_order_enter itself */
};

struct send_order {
    int64_t counter;
    struct send_turn *waiting, *last; /* by ascending min */
    bool granting;
};

/* true: it is its turn already.  max is only checked. */
bool send_order_enter(struct send_order *t, struct send_turn *turn, int64_t min, int64_t max);
void send_order_leave(struct send_order *t); /* one request is through */

#endif
