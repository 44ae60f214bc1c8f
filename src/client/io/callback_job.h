/* callback_job.h - work for the courier, at most one piece at a time, that ends on the loop thread.
 *
 * First member of what the work is done on.  That is shared by its owner and by the round under
 * way, and destroyed when both are through: the owner, and its loop, may go first. */
#ifndef CLIENT_ROUND_H
#define CLIENT_ROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "client/io/runtime.h"
#include "http/loop.h"

struct round;

struct round_class {
    void (*work)(struct round *r);    /* on the courier */
    void (*ended)(struct round *r);   /* on the loop, as long as there is an owner */
    void (*destroy)(struct round *r); /* any thread */
};

struct round {
    const struct round_class *class;
    struct runtime *rt;
    atomic_int refs; /* the owner's, and one while under way */
    pthread_mutex_t lock;
    bool closed; /* lock: the owner is gone, and perhaps the loop */
    struct loop_task back;
    bool under_way; /* loop thread */
};

void round_init(struct round *r, const struct round_class *class, struct runtime *rt);
/* None may be under way.  false: no memory.  Loop thread. */
bool round_begin(struct round *r);
void round_close(struct round *r); /* by the owner, who is gone then; loop thread */

#endif
