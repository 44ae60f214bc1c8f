/* budget.h - permits and byte budgets for state machines on the loop.
 *
 * One signed counter.  A request is admitted when no earlier one waits and the counter
 * is at least `floor`: 1 for permits, 0 for byte budgets, so that one oversized request
 * is admitted and later ones wait until the debt is paid.  First come, first served.
 * Runs on the loop thread. */
#ifndef CLIENT_SEM_H
#define CLIENT_SEM_H

#include <stdbool.h>
#include <stdint.h>

struct sem_wait;

struct sem {
    int64_t free, floor;
    struct sem_wait *first, *last;
    bool granting;
};

/* A member of its owner; zero-initialise, then set granted. */
struct sem_wait {
    struct sem_wait *next, *prev;
    struct sem *sem; /* not NULL while waiting or holding */
    int64_t amount;
    bool holding;
    void (*granted)(struct sem_wait *w); /* the wait is over; not called by sem_take itself */
};

/* n comes from the service; of one that admits nobody, who would wait for ever, one is made that
 * admits them one by one. */
void sem_init_permits(struct sem *s, int64_t n);
void sem_init_bytes(struct sem *s, int64_t n);
bool sem_take(struct sem *s, struct sem_wait *w, int64_t amount); /* true: admitted at once */
void sem_give(struct sem_wait *w); /* give back, or stop waiting; harmless otherwise */

#endif
