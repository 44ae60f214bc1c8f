/* instrument.h - what the state machines tell the program itself: metrics, and events for its
 * hooks.  Nothing of it leaves the machine; report.h is the other half.  Loop thread,
 * except local_loss(). */
#ifndef CLIENT_LOCAL_H
#define CLIENT_LOCAL_H

#include <stdint.h>
#include <tinker/custom_loss.h>
#include "client/call/call.h"
#include "client/observe/hooks.h"
#include "client/observe/queue_state.h"

struct poll;

/* A try of a call: an API call with the attempts of layer 1. */
void local_try_started(struct call *c);
void local_try_ended(struct call *c); /* c->outcome and c->err say how */
void local_try_cancelled(struct call *c);
/* What layer 2 makes of the try: again after delay_ms, or (-1) this is the end. */
void local_try_decided(struct call *c, int64_t delay_ms);

/* An attempt of layer 2 ("call") or 3 ("sample"). */
struct local_attempt {
    const char *layer, *operation;
    int attempt; /* from 1 */
    int64_t started_ns;
    int64_t delay_ms;        /* of a retry */
    const tinker_error *err; /* NULL: none */
    const struct op *op;     /* may be NULL */
};
enum local_step { LOCAL_START, LOCAL_STOP, LOCAL_RETRY, LOCAL_FAILED };
void local_attempt(struct session *h, enum local_step step, const struct local_attempt *a);

void local_queue_state(struct session *h, const char *who, enum wire_queue_state state,
                       const char *reason);
/* A poll or a future went wrong: "future.api_error" and the like. */
void local_poll(struct poll *p, const char *event, const tinker_error *err);
void local_timeout(struct session *h, const struct tinker_future *f, double timeout_s);

/* Any thread. */
void local_loss(struct hooks *hooks, const tinker_loss_event *loss);

#endif
