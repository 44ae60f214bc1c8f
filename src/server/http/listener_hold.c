/* listener_hold.c - see listener_hold.h.
 *
 * The lock is a leaf.  A connection is suspended before it is linked, and resumed after it
 * was unlinked, so a wake-up cannot be lost. */
#include "server/http/listener_hold.h"

#include <microhttpd.h>

void holds_init(struct holds *v, struct clock *clock, int64_t hold_ms)
{
    *v = (struct holds){ .clock = clock, .hold_ms = hold_ms };
    pthread_mutex_init(&v->lock, NULL);
}

void holds_clear(struct holds *v)
{
    pthread_mutex_destroy(&v->lock);
}

static void unlink_deadline_locked(struct holds *v, struct hold *h)
{
    *(h->prev ? &h->prev->next : &v->oldest) = h->next;
    *(h->next ? &h->next->prev : &v->newest) = h->prev;
    h->next = h->prev = NULL;
    h->on = NULL;
    v->held--;
}

static void unlink_waiter_locked(struct hold *h)
{
    struct hold **p = &h->on->first;
    while (*p != h)
        p = &(*p)->next_waiter;
    *p = h->next_waiter;
    h->next_waiter = NULL;
}

void holds_wait(struct holds *v, struct hold *h, struct waitlist *w, struct MHD_Connection *conn)
{
    h->conn = conn;
    h->timed_out = false;
    MHD_suspend_connection(conn);
    pthread_mutex_lock(&v->lock);
    bool at_once = w->fired || v->stopping;
    if (at_once) {
        h->timed_out = !w->fired;
    } else {
        h->deadline_ns = clock_deadline_ns(v->clock, v->hold_ms);
        h->on = w;
        h->next_waiter = w->first;
        w->first = h;
        h->prev = v->newest;
        h->next = NULL;
        *(v->newest ? &v->newest->next : &v->oldest) = h;
        v->newest = h;
        v->held++;
    }
    pthread_mutex_unlock(&v->lock);
    if (at_once)
        MHD_resume_connection(conn);
}

void holds_wake(struct holds *v, struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    w->fired = true;
    struct hold *woken = w->first;
    w->first = NULL;
    for (struct hold *h = woken; h; h = h->next_waiter)
        unlink_deadline_locked(v, h);
    pthread_mutex_unlock(&v->lock);
    while (woken) {
        struct hold *next = woken->next_waiter;
        woken->next_waiter = NULL;
        /* After this call the request may be answered and freed at any time. */
        MHD_resume_connection(woken->conn);
        woken = next;
    }
}

void holds_rearm(struct holds *v, struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    w->fired = false;
    pthread_mutex_unlock(&v->lock);
}

bool holds_waits(struct holds *v, const struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    bool waits = w->first != NULL;
    pthread_mutex_unlock(&v->lock);
    return waits;
}

/* The oldest hold if its time is up (or always, when stopping), unlinked. */
static struct hold *take_expired(struct holds *v, int64_t now_ns)
{
    pthread_mutex_lock(&v->lock);
    struct hold *h = v->oldest;
    if (h && (v->stopping || h->deadline_ns <= now_ns)) {
        unlink_waiter_locked(h);
        unlink_deadline_locked(v, h);
        h->timed_out = true;
    } else {
        h = NULL;
    }
    pthread_mutex_unlock(&v->lock);
    return h;
}

void holds_expire(struct holds *v, bool crowded)
{
    int64_t now_ns = clock_now_ns(v->clock);
    if (crowded && v->hold_ms > HOLD_CROWDED_MS)
        now_ns += (v->hold_ms - HOLD_CROWDED_MS) * 1000000;
    struct hold *h;
    while ((h = take_expired(v, now_ns)) != NULL)
        MHD_resume_connection(h->conn);
}

void holds_stop(struct holds *v)
{
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    pthread_mutex_unlock(&v->lock);
}

bool holds_stopping(struct holds *v)
{
    pthread_mutex_lock(&v->lock);
    bool stopping = v->stopping;
    pthread_mutex_unlock(&v->lock);
    return stopping;
}

uint64_t holds_count(struct holds *v)
{
    pthread_mutex_lock(&v->lock);
    uint64_t held = v->held;
    pthread_mutex_unlock(&v->lock);
    return held;
}
