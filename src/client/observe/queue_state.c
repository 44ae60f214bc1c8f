/* queue_state.c - see queue_state.h. */
#include "client/observe/queue_state.h"

#include <stdlib.h>
#include <string.h>
#include "client/session/session.h"
#include "client/observe/instrument.h"

/* Seconds between two lines of log for the same struct queue_state: a pause may last hours. */
enum { LOG_INTERVAL_S = 60, WAITING_MAX = 10000 };

/* The reasons in words are those of the reference SDK.  The service's own reason goes first. */
const char *queue_state_reason(enum queue_state_kind kind, enum wire_queue_state state,
                               const char *reason)
{
    if (reason && *reason)
        return reason;
    if (state == WIRE_QUEUE_PAUSED_RATE_LIMIT)
        return kind == QUEUE_STATE_SAMPLING ? "concurrent sampler weights limit hit"
                                            : "concurrent training clients rate limit hit";
    if (state == WIRE_QUEUE_PAUSED_CAPACITY)
        return "Tinker backend is running short on capacity, please wait";
    return "unknown";
}

/* One call of the observer, on its way to the callback thread.  Owns its texts. */
struct news {
    struct queue_observer *observer;
    tinker_queue_state state;
    char *reason;
    char who[];
};

static void news_free(struct news *n)
{
    if (n)
        free(n->reason);
    free(n);
}

static struct news *news_new(struct queue_observer *o, const char *id, enum wire_queue_state state,
                             const char *reason)
{
    size_t len = strlen(id) + 1;
    struct news *n = malloc(sizeof(*n) + len);
    if (!n)
        return NULL;
    n->observer = o;
    n->state = (tinker_queue_state)state; /* same order */
    n->reason = strdup(reason ? reason : "");
    memcpy(n->who, id, len);
    if (n->reason)
        return n;
    news_free(n);
    return NULL;
}

/* On the callback thread: the observer may have changed since, or gone. */
static void deliver_state(void *arg)
{
    struct news *n = arg;
    atomic_fetch_sub(&n->observer->waiting, 1);
    /* Copy under the lock, call without it: the observer may set itself anew. */
    pthread_mutex_lock(&n->observer->lock);
    tinker_queue_state_fn *call = n->observer->call;
    void *state = n->observer->state;
    pthread_mutex_unlock(&n->observer->lock);
    if (call)
        call(n->who, n->state, n->reason, state);
    news_free(n);
}

/* Loop thread. */
static void post_state(struct session *h, const char *id, enum wire_queue_state state,
                       const char *reason, bool changed)
{
    struct queue_observer *o = h->observer;
    if (!o)
        return;
    pthread_mutex_lock(&o->lock);
    /* Without transitions_only every poll that reports a state calls the observer. */
    bool wanted = o->call && (changed || !o->transitions_only);
    pthread_mutex_unlock(&o->lock);
    if (!wanted)
        return;
    /* Reserve a place first; it is taken back below if the message cannot be posted. */
    bool room = atomic_fetch_add(&o->waiting, 1) < WAITING_MAX;
    struct news *n = room ? news_new(o, id, state, reason) : NULL;
    if (n && runtime_post_callback(h->rt, deliver_state, n))
        return;
    atomic_fetch_sub(&o->waiting, 1);
    metric_add(h->cfg->metrics.events_dropped, 1);
    news_free(n);
}

void queue_state_report(struct queue_state *o, struct session *h, enum queue_state_kind kind,
                        const char *id, enum wire_queue_state state, const char *reason,
                        bool changed)
{
    post_state(h, id, state, reason, changed);
    if (changed)
        queue_event(h, id, state, queue_state_reason(kind, state, reason));
    int64_t now = loop_now_ns(h->rt->loop);
    /* An active queue is the normal case and not worth a line. */
    if (state == WIRE_QUEUE_ACTIVE ||
        (o->logged_ns && now - o->logged_ns < LOG_INTERVAL_S * INT64_C(1000000000)))
        return;
    o->logged_ns = now;
    const char *why = queue_state_reason(kind, state, reason);
    if (kind == QUEUE_STATE_SAMPLING)
        log_line(&h->log, LOG_WARNING, "Sampling is paused for sampler %s. Reason: %s", id, why);
    else
        log_line(&h->log, LOG_WARNING, "%s for %s is paused. Reason: %s.",
                 kind == QUEUE_STATE_TRAINING ? "Training" : "Model creation", id, why);
}
