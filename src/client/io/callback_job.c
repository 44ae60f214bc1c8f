/* callback_job.c - see callback_job.h. */
#include "client/io/callback_job.h"

#include <stddef.h>
#include "base/array.h"

static void unref_job(struct callback_job *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&r->lock);
    r->class->destroy(r);
}

/* On the callback thread. */
static void run_callback_job(void *arg)
{
    struct callback_job *r = arg;
    r->class->work(r);
    pthread_mutex_lock(&r->lock);
    bool open = !r->closed;
    if (open)
        /* Under the lock: while it is open, the loop is there to take the task. */
        loop_post(r->rt->loop, &r->back); /* which takes over the reference */
    pthread_mutex_unlock(&r->lock);
    if (!open)
        unref_job(r);
}

/* Back on the loop thread, which is the only one that closes. */
static void end_callback_job(struct loop_task *t)
{
    struct callback_job *r = container_of(t, struct callback_job, back);
    r->under_way = false;
    if (!r->closed) /* written by this thread only */
        r->class->ended(r);
    unref_job(r);
}

void callback_job_init(struct callback_job *r, const struct callback_job_class *class,
                       struct runtime *rt)
{
    r->class = class;
    r->rt = rt;
    atomic_init(&r->refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    r->closed = r->under_way = false;
    r->back.run = end_callback_job;
}

/* The reference is for the round trip: callback thread, then loop. */
bool callback_job_begin(struct callback_job *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    r->under_way = runtime_post_callback(r->rt, run_callback_job, r);
    if (!r->under_way)
        atomic_fetch_sub_explicit(&r->refs, 1, memory_order_relaxed);
    return r->under_way;
}

/* Loop thread.  A round under way ends without ended(), and the last reference destroys the
 * job. */
void callback_job_close(struct callback_job *r)
{
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_mutex_unlock(&r->lock);
    unref_job(r);
}
