/* callback_guard.c - see callback_guard.h.
 *
 * Invariant: running is set only by the callback thread between enter and leave, so at most one call
 * is under way, and closing has at most one to wait for. */
#include "client/io/callback_guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct callback_guard {
    atomic_int refs;             /* the future's, and one per message */
    pid_t pid;                   /* in a fork nobody calls */
    struct callback_guard *also; /* a reference: closed with it; NULL: none */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t caller; /* lock; while running */
    int waiting;      /* lock; messages on their way */
    bool running;     /* lock */
    bool closed;      /* lock */
};

struct callback_guard *callback_guard_new(void)
{
    struct callback_guard *g = calloc(1, sizeof(*g));
    if (!g)
        return NULL;
    atomic_init(&g->refs, 1);
    g->pid = getpid();
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->cond, NULL);
    return g;
}

/* Relaxed: whoever adds a reference already has one. */
void callback_guard_ref(struct callback_guard *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void callback_guard_unref(struct callback_guard *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    callback_guard_unref(g->also);
    pthread_cond_destroy(&g->cond);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* Before the guard is shared, so without the lock. */
void callback_guard_chain(struct callback_guard *g, struct callback_guard *other)
{
    g->also = other;
    if (other)
        callback_guard_ref(other);
}

void callback_guard_close(struct callback_guard *g)
{
    /* In a fork there is no callback thread that could finish the call. */
    if (!g || g->pid != getpid())
        return;
    pthread_mutex_lock(&g->lock);
    g->closed = true;
    /* The callback may free its own future; waiting for itself would never end. */
    while (g->running && !pthread_equal(g->caller, pthread_self()))
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
    callback_guard_close(g->also);
}

/* closed is looked at under the lock: after close has returned, no call can begin. */
bool callback_guard_enter(struct callback_guard *g)
{
    pthread_mutex_lock(&g->lock);
    g->running = !g->closed;
    g->caller = pthread_self();
    bool may = g->running;
    pthread_mutex_unlock(&g->lock);
    return may;
}

void callback_guard_leave(struct callback_guard *g)
{
    pthread_mutex_lock(&g->lock);
    g->running = false;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

/* max bounds what a slow callback can pile up. */
bool callback_guard_admit(struct callback_guard *g, int max)
{
    pthread_mutex_lock(&g->lock);
    bool admitted = !g->closed && g->waiting < max;
    g->waiting += admitted;
    pthread_mutex_unlock(&g->lock);
    return admitted;
}

void callback_guard_arrived(struct callback_guard *g)
{
    pthread_mutex_lock(&g->lock);
    g->waiting--;
    pthread_mutex_unlock(&g->lock);
}
