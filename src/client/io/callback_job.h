/* callback_job.h - work for the callback thread, at most one piece at a time, that ends on the loop thread.
 *
 * First member of what the work is done on.  That is shared by its owner and by the round under
 * way, and destroyed when both are through: the owner, and its loop, may go first. */
#ifndef CLIENT_CALLBACK_JOB_H
#define CLIENT_CALLBACK_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "client/io/runtime.h"
#include "http/loop.h"

struct callback_job;

struct callback_job_class {
    void (*work)(struct callback_job *r);    /* on the callback thread */
    void (*ended)(struct callback_job *r);   /* on the loop, as long as there is an owner */
    void (*destroy)(struct callback_job *r); /* any thread */
};

struct callback_job {
    const struct callback_job_class *class;
    struct runtime *rt;
    atomic_int refs; /* the owner's, and one while under way */
    pthread_mutex_t lock;
    bool closed; /* lock: the owner is gone, and perhaps the loop */
    struct loop_task back;
    bool under_way; /* loop thread */
};

void callback_job_init(struct callback_job *r, const struct callback_job_class *class,
                       struct runtime *rt);
/* None may be under way.  false: no memory.  Loop thread. */
bool callback_job_begin(struct callback_job *r);
void callback_job_close(struct callback_job *r); /* by the owner, who is gone then; loop thread */

#endif
