/* listener_hold.h - requests that wait: suspended connections, and what wakes them.
 *
 * The HTTP library does not look at suspended connections, so holds_end_left() looks whether their
 * clients have left.  Every hold is also in a list ordered by deadline (most last equally long, hence
 * first in, first out) and holds_expire() ends it.
 *
 * Thread safety: any thread, any time; a hold itself is its connection's. */
#ifndef SERVER_LISTENER_HOLD_H
#define SERVER_LISTENER_HOLD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"
#include "server/http/http_message.h"

struct MHD_Connection;

struct hold {
    struct hold *next_waiter; /* on the same waitlist */
    struct hold *next, *prev; /* by deadline */
    struct waitlist *on;      /* NULL: not held */
    struct MHD_Connection *conn;
    int fd;
    int64_t deadline_ns;
    bool timed_out;
    bool left; /* the client closed its connection meanwhile: there is nobody to respond to */
};

struct holds {
    struct clock *clock;
    int64_t hold_ms;
    pthread_mutex_t lock;
    /* guarded by lock, as are all waitlists */
    struct hold *oldest, *newest;
    uint64_t held;
    bool stopping;
};

void holds_init(struct holds *v, struct clock *clock, int64_t hold_ms);
void holds_clear(struct holds *v); /* nothing is held */

/* Suspend and wait for w, at most for ms (0: as long as holds last); when w has fired already,
 * resume at once. */
void holds_wait(struct holds *v, struct hold *h, struct waitlist *w, int64_t ms,
                struct MHD_Connection *conn);
/* See listener_wake(), listener_rearm() and listener_waits(). */
void holds_wake(struct holds *v, struct waitlist *w);
void holds_rearm(struct holds *v, struct waitlist *w);
bool holds_waits(struct holds *v, const struct waitlist *w);
/* End those whose time is up; all of them once holds_stop() was called.  crowded: others need the
 * connections, so HOLD_CROWDED_MS is all the time there is. */
void holds_expire(struct holds *v, bool crowded);
enum { HOLD_CROWDED_MS = 5000 };
/* End the holds of clients that closed their connections. */
void holds_end_left(struct holds *v);
void holds_stop(struct holds *v);
bool holds_stopping(struct holds *v);
uint64_t holds_count(struct holds *v);

#endif
