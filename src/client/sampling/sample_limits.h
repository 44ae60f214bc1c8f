/* sample_limits.h - leave to send one sampling request: the permits of the account, in order.
 *
 *   one of 400 -> shortly after a pause one of 10 -> bytes of the prompt -> no pause any more
 *
 * Runs on the loop thread. */
#ifndef CLIENT_DISPATCH_H
#define CLIENT_DISPATCH_H

#include <stdint.h>
#include "client/session/session.h"
#include "client/sampling/rate_limits.h"

/* A member of its owner; zero-initialise, then set the first three. */
struct dispatch {
    struct session *session;
    int64_t bytes; /* of the prompt */
    void (*go)(struct dispatch *d);

    /* private */
    struct budget_wait permit, throttle, budget;
    struct timer timer;
};

/* Calls go, now or later. */
void dispatch_start(struct dispatch *d);
/* Wait for the end of the account's pause, with the permits that are held; then go. */
void dispatch_again(struct dispatch *d);
/* The service asked for a pause. */
void dispatch_pause(struct dispatch *d);
/* Give everything back, or stop waiting for it; harmless otherwise. */
void dispatch_end(struct dispatch *d);

#endif
