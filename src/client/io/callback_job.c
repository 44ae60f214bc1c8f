/* callback_job.c - see round.h. */
#include "client/io/callback_job.h"

#include <stddef.h>
#include "base/array.h"

static void unref(struct round *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&r->lock);
    r->class->destroy(r);
}

static void on_courier(void *arg)
{
    struct round *r = arg;
    r->class->work(r);
    pthread_mutex_lock(&r->lock);
    bool open = !r->closed;
    if (open)
        loop_post(r->rt->loop, &r->back); /* which takes over the reference */
    pthread_mutex_unlock(&r->lock);
    if (!open)
        unref(r);
}

static void on_back(struct loop_task *t)
{
    struct round *r = container_of(t, struct round, back);
    r->under_way = false;
    if (!r->closed) /* written by this thread only */
        r->class->ended(r);
    unref(r);
}

void round_init(struct round *r, const struct round_class *class, struct runtime *rt)
{
    r->class = class;
    r->rt = rt;
    atomic_init(&r->refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    r->closed = r->under_way = false;
    r->back.run = on_back;
}

bool round_begin(struct round *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    r->under_way = runtime_deliver(r->rt, on_courier, r);
    if (!r->under_way)
        atomic_fetch_sub_explicit(&r->refs, 1, memory_order_relaxed);
    return r->under_way;
}

void round_close(struct round *r)
{
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    pthread_mutex_unlock(&r->lock);
    unref(r);
}
