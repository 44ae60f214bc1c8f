/* conn_limits.h - the connections of a listener, and the limits on clients that do not get on.
 *
 * Between two requests, and while it sends one, a client has only so much time; bytes
 * that dribble in do not buy more.  Nothing here knows HTTP: the listener says which
 * phase a connection is in.
 *
 * Thread safety: any thread, any time; the phase of one connection by one thread. */
#ifndef SERVER_PEER_H
#define SERVER_PEER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/clock.h"

enum peer_phase {
    PEER_IDLE,    /* until the headers of a request are there */
    PEER_SENDING, /* its body is on the way */
    PEER_HANDLED, /* it is there, and its handler has not looked at it yet: no limit, also below */
    PEER_ANSWERED /* ours to answer */
};

struct peer;

struct peers {
    struct clock *clock;
    int64_t idle_ms; /* longest PEER_IDLE */
    int64_t body_ms; /* longest PEER_SENDING, and a second more per PEER_RATE bytes */
    pthread_mutex_t lock;
    struct peer *first; /* lock: the latest */
    size_t n;           /* lock */
    size_t max;         /* so many are all there may be; 0: no bound */
};
enum { PEER_RATE = 4096, PEER_CROWDED_MS = 1000 };

void peers_init(struct peers *v, struct clock *clock, int64_t idle_ms, int64_t body_ms);
void peers_clear(struct peers *v); /* no connection is left */

/* A connection has begun; NULL: no memory, and no limits for it. */
struct peer *peers_add(struct peers *v, int fd);
/* It is about to be closed.  p may be NULL, also below. */
void peers_remove(struct peers *v, struct peer *p);
/* Per request and therefore without the lock; now_ns: when the phase began. */
void peer_phase(struct peer *p, enum peer_phase phase, int64_t now_ns);
void peer_received(struct peer *p, size_t n);
/* Whose request it is that is being sent; any number but 0. */
void peer_user(struct peer *p, uint64_t user);
/* Is there a request of this user that began by then and is SENDING or HANDLED? */
bool peers_is_receiving(struct peers *v, uint64_t user, int64_t by_ns);
/* Shut down the sockets of those who are late; whoever owns them sees the end.  When there is no
 * room for anybody else, some of those who were idle for PEER_CROWDED_MS are late, too. */
void peers_hang_up(struct peers *v);
bool peers_full(struct peers *v);

#endif
