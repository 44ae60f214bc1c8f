/* http_message.h - one HTTP exchange as the routes see it: no sockets, no library.
 *
 * A route gets a request and fills a response, or asks to be called again when a
 * waitlist fires (a long poll).  Strings of a request live until its answer is sent;
 * so does everything in its arena.
 *
 * Thread: a request and its response belong to one thread at a time. */
#ifndef SERVER_HTTP_MESSAGE_H
#define SERVER_HTTP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/arena.h"
#include "base/buf.h"

struct hold;

/* Something that happens once, on which answers may wait.  Zero-initialize.
 * Guarded by the listener's lock; listener_wake() fires it. */
struct waitlist {
    struct hold *first;
    bool fired;
};

enum { REQUEST_PARAMS = 3 };

struct request {
    const char *method, *path; /* path: with its escapes; in one spelling once it was routed */
    /* Headers; NULL when absent. */
    const char *content_type, *content_encoding, *accept, *api_key, *authorization, *host, *origin,
        *idempotency_key, *content_length, *transfer_encoding, *user_agent, *range, *if_range;
    const char *sdk_version; /* of the official Python SDK; NULL: another client */
    bool bad_header;         /* a name is not a token, as before "Content-Length :" */
    const char *twice;       /* a header that came twice and must not; NULL: none */
    /* NUL-terminated, and only there for the first call of the handler: what is needed after a
     * hold has to be kept in the arena or the context. */
    const char *body;
    size_t n_body;
    struct buf *buffer; /* holds the body; may be replaced together with it */
    size_t max_body;    /* set with the route: larger ones are refused; 0: the listener's limit */
    /* Count n more bytes of the body as held; false: the user or the server has too many. */
    bool (*charge)(struct request *req, size_t n);
    bool tls;
    struct arena arena;
    int64_t started_ns;

    /* Set while routing, once: a request that was admitted stays so. */
    const struct route *route;
    const char *param[REQUEST_PARAMS]; /* parts of the path, as the names they are */
    const char *user;
    bool admin; /* may see what all users do, as far as numbers go */

    /* For the log, where known: in the arena, and numbers that are zero when not. */
    const char *model;
    int64_t tokens, queue_ns, compute_ns;

    bool again;     /* a call after a hold: there is no body any more */
    bool timed_out; /* the hold ran out before anything happened */
    /* A route may keep something from call to call; freed with the request. */
    void *context;
    void (*context_free)(void *context);

    const char *(*query)(struct request *req, const char *name); /* NULL: absent */
    void *transport;                                             /* the listener's */
};

enum { RESPONSE_HEADERS = 4 };

/* A body of known size that is made while it is sent; state NULL: there is none. */
struct body_source {
    /* Up to max bytes from an offset, at least one: -2: they cannot be had, and the connection is closed. */
    ssize_t (*read)(void *state, uint64_t at, char *out, size_t max);
    void (*free)(void *state);
    void *state;
    uint64_t size;
};

struct response {
    int status;
    const char *content_type; /* NULL: no body */
    struct buf body;
    struct {
        const char *name, *value; /* static or in the request's arena */
    } headers[RESPONSE_HEADERS];
    size_t n_headers;
    int fd; /* >= 0: the body is this file, closed by the listener */
    uint64_t fd_size;
    uint64_t fd_at;            /* the body begins at this byte of the file */
    struct body_source source; /* with a state: the body comes from there, freed by the listener */
    struct waitlist *wait;     /* not NULL: no answer yet, call again when it fires */
    int64_t wait_ms;           /* how long to wait, when shorter than the longest hold; 0: that */
    struct stream *stream;     /* not NULL: the body arrives piece by piece, see stream.h */
};

void response_init(struct response *res);
void response_header(struct response *res, const char *name, const char *value);
void response_drop(struct response *res); /* it will not be sent */
/* {"detail": "…"} with the status. */
void response_error(struct response *res, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void response_no_memory(struct response *res); /* 503, to be retried */
/* A literal JSON body with status 200. */
void response_json(struct response *res, const char *json);
void response_no_content(struct response *res); /* 204 */

#endif
