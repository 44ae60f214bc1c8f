/* instrument.h - what the state machines tell about themselves.
 *
 * A state machine reports once what happened; this file passes it on: to the log, the
 * metrics (metrics.h), the program's hooks (hooks.h) and the telemetry of the session
 * (telemetry.h).  Loop thread, except loss_event(). */
#ifndef CLIENT_INSTRUMENT_H
#define CLIENT_INSTRUMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/custom_loss.h>
#include "client/call/call.h"
#include "client/observe/hooks.h"
#include "client/observe/queue_state.h"

struct poll;

/* Of an API call, see call.h.  Its order:
 *
 *   TRY  (SEND RESPONSE [AGAIN])...  TRY_END  [TRY_FAILED]  RETRY, and TRY once more, or FINAL
 *
 * RETRY and FINAL are of layer 2, so calls without it have none. */
enum call_event {
    CALL_EVENT_TRY,        /* a try begins */
    CALL_EVENT_SEND,       /* an attempt is about to be sent; its headers are in c->http */
    CALL_EVENT_RESPONSE,   /* the attempt is over, c->outcome says how */
    CALL_EVENT_AGAIN,      /* layer 1 sends another attempt */
    CALL_EVENT_TRY_END,    /* the try is over; c->outcome and c->err say how */
    CALL_EVENT_TRY_FAILED, /* delay_ms: -1 when it is not worth another one */
    CALL_EVENT_RETRY,      /* layer 2 begins another try after delay_ms */
    CALL_EVENT_FINAL,      /* the outcome of this try is that of the call */
    CALL_EVENT_CANCELED,   /* in the middle of a try */
    CALL_EVENT_REFUSED     /* by an open circuit breaker: nothing was sent */
};
void call_event(struct call *c, enum call_event event, int64_t delay_ms);

/* An attempt of layer 2 ("call") or 3 ("sample"). */
struct attempt {
    const char *layer, *operation;
    int number; /* from 1 */
    int64_t started_ns;
    int64_t first_ns;           /* of a sample: when its first attempt started */
    int64_t delay_ms;           /* of a retry */
    const tinker_error *err;    /* NULL: none */
    const struct operation *op; /* may be NULL */
};
enum attempt_event { ATTEMPT_START, ATTEMPT_STOP, ATTEMPT_RETRY, ATTEMPT_FAILED };
void attempt_event(struct session *h, enum attempt_event event, const struct attempt *a);

/* What a poll does about a response that is not the result. */
enum poll_event {
    POLL_EVENT_RETRY,
    POLL_EVENT_BACKOFF,
    POLL_EVENT_BUDGET,
    POLL_EVENT_GONE,
    POLL_EVENT_FATAL,
    POLL_EVENT_CONNECTION,
    POLL_EVENT_FAILED, /* the request itself failed: err, and the whole text */
    POLL_EVENT_DECODE  /* the result cannot be read: err, proto and n */
};
struct poll_failure {
    const tinker_error *err;
    const char *text;
    bool proto; /* the result is protobuf */
    size_t n;   /* its bytes */
};
/* failure NULL: p->call.err. */
void poll_event(struct poll *p, enum poll_event event, const struct poll_failure *failure);

/* The deadline of a future passed. */
void future_timeout_event(struct session *h, const struct tinker_future *f, double timeout_s);
/* The state of the service's queue changed, for the requests of `who`. */
void queue_event(struct session *h, const char *who, enum wire_queue_state state,
                 const char *reason);
/* A custom loss began or ended.  Any thread. */
void loss_event(struct hooks *hooks, const tinker_loss_event *loss);

#endif
