/* conn_limits.h - the connections of a listener, and the limits on clients that do not get on.
 *
 * Between two requests, and while it sends one, a client has only so much time; bytes
 * that dribble in do not buy more.  Nothing here knows HTTP: the listener says which
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
    CONN_HANDLED, /* it is there, and its handler has not looked at it yet: no limit, also below */
    CONN_ANSWERED /* ours to answer */
};

struct conn;

struct conn_limits {
    struct clock *clock;
    int64_t idle_ms; /* longest CONN_IDLE */
    int64_t body_ms; /* longest CONN_SENDING, and a second more per CONN_MIN_RATE bytes */
    pthread_mutex_t lock;
    struct conn *first; /* lock: the latest */
    size_t n;           /* lock */
    size_t max;         /* so many are all there may be; 0: no bound */
};
enum { CONN_MIN_RATE = 4096, CONN_CROWDED_MS = 1000 };

void conn_limits_init(struct conn_limits *v, struct clock *clock, int64_t idle_ms, int64_t body_ms);
void conn_limits_clear(struct conn_limits *v); /* no connection is left */

/* A connection has begun; NULL: no memory, and no limits for it. */
struct conn *conn_limits_add(struct conn_limits *v, int fd);
/* It is about to be closed.  p may be NULL, also below. */
void conn_limits_remove(struct conn_limits *v, struct conn *p);
/* Per request and therefore without the lock; now_ns: when the phase began. */
void conn_limits_set_phase(struct conn *p, enum conn_phase phase, int64_t now_ns);
void conn_limits_count_received(struct conn *p, size_t n);
/* Whose request it is that is being sent; any number but 0. */
void conn_limits_set_user(struct conn *p, uint64_t user);
/* Is there a request of this user that began by then and is SENDING or HANDLED? */
bool conn_limits_is_receiving(struct conn_limits *v, uint64_t user, int64_t by_ns);
/* Shut down the sockets of those who are late; whoever owns them sees the end.  When there is no
 * room for anybody else, some of those who were idle for CONN_CROWDED_MS are late, too. */
void conn_limits_close_late(struct conn_limits *v);
bool conn_limits_is_full(struct conn_limits *v);

#endif
