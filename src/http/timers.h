/* timers.h - deadlines in an intrusive pairing heap.
 *
 * A timer is a member of its owner; arming never allocates, so it cannot fail.
 * Timers of equal deadline fire in the order in which they were armed.
 * Not thread-safe: the loop thread owns its heaps. */
#ifndef HTTP_TIMERS_H
#define HTTP_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
    struct timer *child, *next, *prev; /* prev: the elder sibling, or the parent */
    int64_t due_ns;
    uint64_t order;
    bool armed;
    void (*fire)(struct timer *t);
};

struct timers {
    struct timer *root;
    uint64_t order;
};

void timers_arm(struct timers *h, struct timer *t, int64_t due_ns); /* again: moves it */
void timers_disarm(struct timers *h, struct timer *t);              /* harmless when not armed */
int64_t timers_next_ns(const struct timers *h);                     /* INT64_MAX: none */
/* Fire what is due at now_ns; a timer armed meanwhile waits for the next call. */
void timers_run(struct timers *h, int64_t now_ns);

#endif
