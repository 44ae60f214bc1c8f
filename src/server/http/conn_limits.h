/* conn_limits.h - the connections of a listener, and time limits for slow clients.
 *
 * A client may be idle between two requests, and send one, only for a limited time; sending a
 * byte now and then does not extend it.  Nothing here knows HTTP: the listener reports which
 * phase a connection is in.
 *
 * Thread safety: any thread, any time; the phase of one connection by one thread. */
#ifndef SERVER_CONN_LIMITS_H
#define SERVER_CONN_LIMITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"

enum conn_phase {
    CONN_IDLE,    /* until the headers of a request are there */
    CONN_SENDING, /* its body is on the way */
    CONN_HANDLED, /* complete, the handler has not returned yet: no limit */
    CONN_ANSWERED /* the response is ours to send: no limit */
};

struct conn;

struct conn_limits {
    struct clock *clock;
    int64_t idle_ms; /* longest CONN_IDLE */
    int64_t body_ms; /* longest CONN_SENDING, and a second more per CONN_MIN_RATE bytes */
    pthread_mutex_t lock;
    struct conn *first; /* lock: newest first */
    size_t n;           /* lock */
    size_t max;         /* connections there may be; 0: no limit */
};
enum { CONN_MIN_RATE = 4096, CONN_CROWDED_MS = 1000 };
/* Connections above max, for checks and for telling others to come back; they are closed after one
 * response or CONN_CROWDED_MS. */
enum { CONN_EXTRA = 16 };

void conn_limits_init(struct conn_limits *v, struct clock *clock, int64_t idle_ms, int64_t body_ms);
/* At most so many connections; 0: no limit.  The timer thread may be looking already. */
void conn_limits_set_max(struct conn_limits *v, size_t max);
void conn_limits_clear(struct conn_limits *v); /* no connection is left */

/* A connection was accepted.  NULL: no memory; it then has no limits. */
struct conn *conn_limits_add(struct conn_limits *v, int fd);
/* It is about to be closed.  p may be NULL here and below. */
void conn_limits_remove(struct conn_limits *v, struct conn *p);
/* Called per request, therefore lock-free.  now_ns: when the phase began. */
void conn_limits_set_phase(struct conn *p, enum conn_phase phase, int64_t now_ns);
void conn_limits_count_received(struct conn *p, size_t n);
/* Set the user of the request being sent: a hash, never 0. */
void conn_limits_set_user(struct conn *p, uint64_t user);
/* Set how many bytes of bodies the connection holds. */
void conn_limits_set_held(struct conn *p, size_t n);
/* All that connections of this user hold. */
size_t conn_limits_held_by(struct conn_limits *v, uint64_t user);
/* Is a request of this user SENDING or HANDLED that began no later than by_ns? */
bool conn_limits_is_receiving(struct conn_limits *v, uint64_t user, int64_t by_ns);
/* Shut down the sockets of connections past their limit; their owner sees the end of the stream.
 * When all connections are taken, some that were idle for CONN_CROWDED_MS are closed, too. */
void conn_limits_close_late(struct conn_limits *v);
bool conn_limits_is_full(struct conn_limits *v);
bool conn_limits_is_extra(const struct conn *p);

#endif
