/* observe.c - see observe.h. */
#include "client/observe.h"

#include "client/holder.h"

enum { LOG_INTERVAL_S = 60 };

const char *observe_reason(enum observe_kind kind, enum wire_queue_state state, const char *reason)
{
    if (reason && *reason)
        return reason;
    if (state == WIRE_QUEUE_PAUSED_RATE_LIMIT)
        return kind == OBSERVE_SAMPLING ? "concurrent sampler weights limit hit"
                                        : "concurrent training clients rate limit hit";
    if (state == WIRE_QUEUE_PAUSED_CAPACITY)
        return "Tinker backend is running short on capacity, please wait";
    return "unknown";
}

void observe_state(struct observe *o, struct holder *h, enum observe_kind kind, const char *id,
                   enum wire_queue_state state, const char *reason)
{
    int64_t now = loop_now_ns(h->rt->loop);
    if (state == WIRE_QUEUE_ACTIVE ||
        (o->logged_ns && now - o->logged_ns < LOG_INTERVAL_S * INT64_C(1000000000)))
        return;
    o->logged_ns = now;
    const char *why = observe_reason(kind, state, reason);
    if (kind == OBSERVE_SAMPLING)
        log_line(&h->log, LOG_WARNING, "Sampling is paused for sampler %s. Reason: %s", id, why);
    else
        log_line(&h->log, LOG_WARNING, "%s for %s is paused. Reason: %s.",
                 kind == OBSERVE_TRAINING ? "Training" : "Model creation", id, why);
}
