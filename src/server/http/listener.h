/* listener.h - sockets, HTTP/1.1 and held requests.
 *
 * Only listener*.c know the HTTP library.  One thread accepts, parses and responds.  It calls the
 * handler once per complete request (or a worker thread does), and again whenever a hold of that
 * request ends.  A held request costs a few kilobytes and no thread; it always ends: by
 * listener_wake(), by its deadline or by shutdown.
 *
 * Thread safety: listener_wake(), listener_expire(), listener_stats() and
 * listener_is_receiving() from any thread; the rest from the thread that opened it. */
#ifndef SERVER_LISTENER_H
#define SERVER_LISTENER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/clock.h"
#include "base/log.h"
#include "server/http/http_message.h"

struct listener;

typedef void listener_handler(void *state, struct request *req, struct response *res);

/* Called with the headers, before the body is read; false: send the response instead. */
typedef bool listener_checker(void *state, struct request *req, struct response *res);

/* Where a request is handled: on the HTTP thread because it is quick, on a worker thread because
 * it takes long, or on a worker only while the workers are busy. */
enum listener_place { LISTENER_INLINE, LISTENER_EITHER, LISTENER_WORKER };
typedef enum listener_place listener_placer(void *state, const struct request *req);

struct listener_options {
    const char *host;               /* numeric or a name; ignored with unix_path */
    int port;                       /* 0: any free one */
    const char *unix_path;          /* NULL: TCP */
    const char *tls_cert, *tls_key; /* PEM texts, NULL: clear text */
    size_t max_body;                /* larger bodies get 413 */
    int64_t hold_ms;                /* longest hold */
    int64_t idle_ms;                /* until the headers of the next request are there */
    int64_t body_ms;                /* for a body, and a second more per 4 KB that came */
    int max_connections;
    size_t max_arriving;     /* bytes of all bodies in memory; above, new ones get 429 */
    size_t max_user;         /* the same of one user; 0: no limit of their own */
    listener_checker *check; /* NULL: read every body */
    /* Is it a check that has to be answered even when all connections are taken?  NULL: none is. */
    bool (*is_check)(void *state, const struct request *req);
    listener_placer *place; /* NULL: all on the HTTP thread */
    struct clock *clock;
    const struct log *log;
};

struct listener_stats {
    uint64_t requests, bytes_in;
    uint64_t held;   /* now */
    uint64_t bodies; /* bytes of bodies in memory, decompressed ones included */
    uint64_t active; /* requests being received or answered now, held ones included */
};

/* Bind and listen; requests are accepted from listener_start() on. */
struct listener *listener_open(const struct listener_options *opts, tinker_error *err);
/* Other limits of bodies, before listener_start(): see the options of these names. */
void listener_limit_bodies(struct listener *l, size_t max_body, size_t max_arriving,
                           size_t max_user);
tinker_status listener_start(struct listener *l, listener_handler *handler, void *state,
                             tinker_error *err);
int listener_port(const struct listener *l);
/* Stop accepting, end all holds, wait for answers up to timeout_ms, close the sockets.
 * listener_wake() and its like may still be called, and do nothing. */
void listener_stop(struct listener *l, int64_t timeout_ms);
/* The same if that was not done yet, and free. */
void listener_close(struct listener *l, int64_t timeout_ms);

/* Fire w: every request that waits on it is handled again.  Later waits on a fired
 * list return at once. */
void listener_wake(struct listener *l, struct waitlist *w);
/* Does anybody wait on w? */
bool listener_waits(struct listener *l, const struct waitlist *w);
/* For a stream: let waits block again. */
void listener_rearm(struct listener *l, struct waitlist *w);
/* End the holds whose time is up. */
void listener_expire(struct listener *l);
void listener_stats(struct listener *l, struct listener_stats *out);

/* Is a request of this user being received or handled that began no later than by_ns? */
bool listener_is_receiving(struct listener *l, const char *user, int64_t by_ns);

/* Is this numeric address or name one that only this machine can reach? */
bool listener_is_loopback(const char *host);
/* Is a Host header an address or localhost, not a name that a web site could own? */
bool listener_is_local_name(const char *host);

#endif
