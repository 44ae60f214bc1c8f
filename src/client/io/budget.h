/* budget.h - permits and byte budgets for state machines on the loop.
 *
 * One signed counter.  A request is admitted when no earlier one waits and the counter
 * is at least `floor`: 1 for permits, 0 for byte budgets, so that one oversized request
 * is admitted and later ones wait until the debt is paid.  First come, first served.
 * Runs on the loop thread. */
#ifndef CLIENT_BUDGET_H
#define CLIENT_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct budget_wait;

struct budget {
    int64_t free, floor;
    struct budget_wait *first, *last;
    bool granting;
};

/* A member of its owner; zero-initialize, then set granted. */
struct budget_wait {
    struct budget_wait *next, *prev;
    struct budget *budget; /* not NULL while waiting or holding */
    int64_t amount;
    bool holding;
    void (*granted)(struct budget_wait *w); /* the wait is over; not called by budget_take itself */
};

/* n comes from the service.  A limit of 0 would block everything forever; treat it as 1. */
void budget_init_permits(struct budget *s, int64_t n);
void budget_init_bytes(struct budget *s, int64_t n);
bool budget_take(struct budget *s, struct budget_wait *w,
                 int64_t amount);        /* true: admitted at once */
void budget_give(struct budget_wait *w); /* give back, or stop waiting; harmless otherwise */

#endif
