/* conn_limits.c - see conn_limits.h.
 *
 * A connection moves IDLE -> SENDING -> HANDLED -> ANSWERED -> IDLE.  Its phase is written once
 * or more per request by the thread that serves it and read twice a second by the timer thread,
 * so the phase fields are atomics and only the list has a lock.  The lock is a leaf. */
#include "server/http/conn_limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Memory order: `since_ns` is written before `phase` (release) and read after it (acquire), so a
 * reader that sees a new phase never combines it with the start time of the previous one. */
struct conn {
    struct conn *next, *prev; /* guarded by the list's lock */
    int fd;
    bool extra; /* const: there were max others when it came */
    atomic_int phase;
    atomic_int_fast64_t since_ns; /* when the phase began */
    atomic_size_t received;       /* SENDING: bytes of the body so far */
    atomic_uint_fast64_t user;    /* SENDING, HANDLED: hash of the user; 0: not known yet */
    atomic_size_t held;           /* bytes of the body in memory */
};

void conn_limits_init(struct conn_limits *v, struct clock *clock, int64_t idle_ms, int64_t body_ms)
{
    *v = (struct conn_limits){ .clock = clock, .idle_ms = idle_ms, .body_ms = body_ms };
    pthread_mutex_init(&v->lock, NULL);
}

void conn_limits_set_max(struct conn_limits *v, size_t max)
{
    pthread_mutex_lock(&v->lock);
    v->max = max;
    pthread_mutex_unlock(&v->lock);
}

void conn_limits_clear(struct conn_limits *v)
{
    pthread_mutex_destroy(&v->lock);
}

struct conn *conn_limits_add(struct conn_limits *v, int fd)
{
    struct conn *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->fd = fd;
    atomic_init(&p->since_ns, clock_now_ns(v->clock));
    pthread_mutex_lock(&v->lock);
    p->next = v->first;
    if (p->next)
        p->next->prev = p;
    v->first = p;
    p->extra = v->max && v->n >= v->max;
    v->n++;
    pthread_mutex_unlock(&v->lock);
    return p;
}

void conn_limits_remove(struct conn_limits *v, struct conn *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&v->lock);
    *(p->prev ? &p->prev->next : &v->first) = p->next;
    if (p->next)
        p->next->prev = p->prev;
    v->n--;
    pthread_mutex_unlock(&v->lock);
    free(p);
}

void conn_limits_set_phase(struct conn *p, enum conn_phase phase, int64_t now_ns)
{
    if (!p)
        return;
    atomic_store_explicit(&p->since_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&p->received, 0, memory_order_relaxed);
    /* The request that is handled is the one that was sent: it keeps its user. */
    if (phase != CONN_HANDLED)
        atomic_store_explicit(&p->user, 0, memory_order_relaxed);
    atomic_store_explicit(&p->phase, (int)phase, memory_order_release);
}

void conn_limits_set_user(struct conn *p, uint64_t user)
{
    if (p)
        atomic_store_explicit(&p->user, user, memory_order_relaxed);
}

void conn_limits_set_held(struct conn *p, size_t n)
{
    if (p)
        atomic_store_explicit(&p->held, n, memory_order_relaxed);
}

/* A walk over all connections, which only bodies of many megabytes ask for. */
size_t conn_limits_held_by(struct conn_limits *v, uint64_t user)
{
    size_t held = 0;
    pthread_mutex_lock(&v->lock);
    for (const struct conn *p = v->first; p; p = p->next)
        if (atomic_load_explicit(&p->user, memory_order_relaxed) == user)
            held += atomic_load_explicit(&p->held, memory_order_relaxed);
    pthread_mutex_unlock(&v->lock);
    return held;
}

void conn_limits_count_received(struct conn *p, size_t n)
{
    /* Only one thread writes, so a load and a store do without a locked addition. */
    if (p)
        atomic_store_explicit(&p->received,
                              atomic_load_explicit(&p->received, memory_order_relaxed) + n,
                              memory_order_relaxed);
}

/* How long the current phase has lasted. */
static int64_t phase_ms(const struct conn *p, int64_t now_ns)
{
    return (now_ns - atomic_load_explicit(&p->since_ns, memory_order_relaxed)) / 1000000;
}

static bool is_full_locked(const struct conn_limits *v)
{
    return v->max && v->n >= v->max;
}

void conn_limits_close_late(struct conn_limits *v)
{
    int64_t now_ns = clock_now_ns(v->clock);
    struct conn *oldest = NULL;
    pthread_mutex_lock(&v->lock);
    /* shutdown() only: the descriptor belongs to the HTTP library, whose thread sees the end of
     * the stream and closes it.  The lock keeps the connection, and so the number, alive. */
    for (struct conn *p = v->first; p; p = p->next) {
        int phase = atomic_load_explicit(&p->phase, memory_order_acquire);
        int64_t ms = phase_ms(p, now_ns);
        size_t received = atomic_load_explicit(&p->received, memory_order_relaxed);
        /* A body may take body_ms plus one second per CONN_MIN_RATE bytes that did arrive. */
        int64_t body_ms = v->body_ms + (int64_t)(received / CONN_MIN_RATE) * 1000;
        bool over = p->extra && phase != CONN_ANSWERED && ms > CONN_CROWDED_MS;
        if (over || (phase == CONN_IDLE && ms > v->idle_ms) ||
            (phase == CONN_SENDING && ms > body_ms))
            shutdown(p->fd, SHUT_RDWR);
        oldest = p;
    }
    /* All connections are taken, and more clients may be waiting in the listen queue: close an
     * eighth of the connections, those that were opened first and are idle. */
    size_t wanted = is_full_locked(v) ? v->max / 8 + 1 : 0;
    for (struct conn *p = oldest; p && wanted; p = p->prev)
        if (atomic_load_explicit(&p->phase, memory_order_acquire) == CONN_IDLE &&
            phase_ms(p, now_ns) >= CONN_CROWDED_MS) {
            shutdown(p->fd, SHUT_RDWR);
            wanted--;
        }
    pthread_mutex_unlock(&v->lock);
}

bool conn_limits_is_receiving(struct conn_limits *v, uint64_t user, int64_t by_ns)
{
    bool found = false;
    pthread_mutex_lock(&v->lock);
    for (const struct conn *p = v->first; p && !found; p = p->next) {
        int phase = atomic_load_explicit(&p->phase, memory_order_acquire);
        found = (phase == CONN_SENDING || phase == CONN_HANDLED) &&
                atomic_load_explicit(&p->since_ns, memory_order_relaxed) <= by_ns &&
                atomic_load_explicit(&p->user, memory_order_relaxed) == user;
    }
    pthread_mutex_unlock(&v->lock);
    return found;
}

bool conn_limits_is_extra(const struct conn *p)
{
    return p && p->extra;
}

bool conn_limits_is_full(struct conn_limits *v)
{
    pthread_mutex_lock(&v->lock);
    bool full = is_full_locked(v);
    pthread_mutex_unlock(&v->lock);
    return full;
}
