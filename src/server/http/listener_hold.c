/* listener_hold.c - see listener_hold.h.
 *
 * A hold is in two lists at once: the waiters of its waitlist and all holds by deadline.  Either
 * holds_wake(), holds_expire() or holds_end_left() takes it out of both under the lock; whoever did
 * so resumes the connection, exactly once.
 *
 * The lock is a leaf.  A connection is suspended before it is linked, and resumed after it was
 * unlinked, so a wake-up cannot be lost. */
#include "server/http/listener_hold.h"

#include <microhttpd.h>
#include <stdlib.h>

#include "base/os.h"

void holds_init(struct holds *v, struct clock *clock, int64_t hold_ms)
{
    *v = (struct holds){ .clock = clock, .hold_ms = hold_ms };
    pthread_mutex_init(&v->lock, NULL);
}

void holds_clear(struct holds *v)
{
    pthread_mutex_destroy(&v->lock);
}

/* Take h out of the list by deadline; its waitlist is the caller's business. */
static void unlink_deadline_locked(struct holds *v, struct hold *h)
{
    /* The links of the neighbors, or of the list at its ends. */
    *(h->prev ? &h->prev->next : &v->oldest) = h->next;
    *(h->next ? &h->next->prev : &v->newest) = h->prev;
    h->next = h->prev = NULL;
    h->on = NULL;
    v->held--;
}

/* HTTP thread, in the library's callback: the only place where a connection may be suspended. */
void holds_wait(struct holds *v, struct hold *h, struct waitlist *w, int64_t ms,
                struct MHD_Connection *conn)
{
    /* The hold is part of the call, which lives as long as the connection's request. */
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    h->conn = conn;
    h->fd = info ? info->connect_fd : -1; /* poll() skips -1 */
    h->timed_out = false;
    MHD_suspend_connection(conn);
    pthread_mutex_lock(&v->lock);
    /* The event came between the handler's look and this call, or the server is stopping. */
    bool at_once = w->fired || v->stopping;
    if (at_once) {
        h->timed_out = !w->fired; /* stopping: the handler must respond now */
    } else {
        /* Into both lists: first of the waiters (their order does not matter), and by deadline,
         * which is at the end unless the client asked for a shorter hold. */
        bool shorter = ms > 0 && ms < v->hold_ms;
        h->deadline_ns = clock_deadline_ns(v->clock, shorter ? ms : v->hold_ms);
        h->on = w;
        h->next_waiter = w->first;
        w->first = h;
        h->prev = v->newest;
        while (h->prev && h->prev->deadline_ns > h->deadline_ns)
            h->prev = h->prev->prev;
        h->next = h->prev ? h->prev->next : v->oldest;
        *(h->prev ? &h->prev->next : &v->oldest) = h;
        *(h->next ? &h->next->prev : &v->newest) = h;
        v->held++;
    }
    pthread_mutex_unlock(&v->lock);
    if (at_once)
        MHD_resume_connection(conn);
}

void holds_wake(struct holds *v, struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    w->fired = true; /* later waits return at once */
    struct hold *woken = w->first;
    w->first = NULL;
    for (struct hold *h = woken; h; h = h->next_waiter)
        unlink_deadline_locked(v, h);
    pthread_mutex_unlock(&v->lock);
    /* Resume without the lock: the library takes locks of its own, and may run the handler,
     * which waits again, at once. */
    while (woken) {
        struct hold *next = woken->next_waiter;
        woken->next_waiter = NULL;
        /* After this call the request may be answered and freed at any time. */
        MHD_resume_connection(woken->conn);
        woken = next;
    }
}

/* A stream fires its waitlist with every write; its reader rearms it before it looks. */
void holds_rearm(struct holds *v, struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    w->fired = false;
    pthread_mutex_unlock(&v->lock);
}

/* For tests and for work that is worth doing only if somebody waits. */
bool holds_waits(struct holds *v, const struct waitlist *w)
{
    pthread_mutex_lock(&v->lock);
    bool waits = w->first != NULL;
    pthread_mutex_unlock(&v->lock);
    return waits;
}

/* Take h out of both lists. */
static void unlink_hold_locked(struct holds *v, struct hold *h)
{
    struct hold **p = &h->on->first;
    while (*p != h)
        p = &(*p)->next_waiter;
    *p = h->next_waiter;
    h->next_waiter = NULL;
    unlink_deadline_locked(v, h);
}

void holds_expire(struct holds *v, bool crowded)
{
    int64_t now_ns = clock_now_ns(v->clock);
    /* Deadlines were set for hold_ms; look from a later time to end holds after HOLD_CROWDED_MS. */
    if (crowded && v->hold_ms > HOLD_CROWDED_MS)
        now_ns += (v->hold_ms - HOLD_CROWDED_MS) * 1000000;
    for (;;) {
        pthread_mutex_lock(&v->lock);
        struct hold *h = v->oldest;
        /* They are in order of their deadlines. */
        bool due = h && (v->stopping || h->deadline_ns <= now_ns);
        if (due) {
            unlink_hold_locked(v, h);
            h->timed_out = true;
        }
        pthread_mutex_unlock(&v->lock);
        if (!due)
            return;
        MHD_resume_connection(h->conn); /* without the lock: the library takes its own */
    }
}

/* A client that sends no more counts as gone: none of ours closes one direction only.  Under the
 * lock no connection is resumed, so the descriptors stay what they are; looking does not wait, and
 * takes about a millisecond for ten thousand. */
void holds_end_left(struct holds *v)
{
    struct hold *gone = NULL;
    pthread_mutex_lock(&v->lock);
    size_t n = 0;
    int *fds = v->held ? calloc(v->held, sizeof(*fds)) : NULL;
    bool *closed = v->held ? calloc(v->held, sizeof(*closed)) : NULL;
    for (struct hold *h = v->oldest; fds && closed && h; h = h->next)
        fds[n++] = h->fd;
    size_t found = os_find_closed(fds, n, closed), i = 0;
    for (struct hold *h = v->oldest, *next; found && h; h = next, i++) {
        next = h->next;
        if (!closed[i])
            continue;
        found--;
        unlink_hold_locked(v, h);
        h->left = true;
        h->next_waiter = gone; /* a list of our own: it waits for nothing any more */
        gone = h;
    }
    pthread_mutex_unlock(&v->lock);
    free(fds);
    free(closed);
    while (gone) {
        struct hold *next = gone->next_waiter;
        gone->next_waiter = NULL;
        MHD_resume_connection(gone->conn); /* the request may be freed from here on */
        gone = next;
    }
}

/* From now on nothing is held; the next holds_expire() ends what is. */
void holds_stop(struct holds *v)
{
    pthread_mutex_lock(&v->lock);
    v->stopping = true;
    pthread_mutex_unlock(&v->lock);
}

bool holds_stopping(struct holds *v)
{
    pthread_mutex_lock(&v->lock);
    bool stopping = v->stopping; /* never goes back to false */
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
