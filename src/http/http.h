/* http.h - HTTP requests on the loop, through isolated pools of connections.
 *
 * A pool is a list of connection groups ("clients": one curl multi handle each).  A
 * request takes the first client with less than `per_client` requests on it, else a
 * new client; so pools grow with need and never wait for each other.  Completion is a
 * callback on the loop thread.
 *
 * Everything here is called on the loop thread, except http_global_init(). */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "http/loop.h"

enum http_failure {
    HTTP_OK = 0, /* headers with their blank line, and the body that they promise */
    HTTP_FAIL_CONNECT, /* DNS, TCP, a broken handshake, reset, cut short, no HTTP, an edge proxy's empty 400 */
    HTTP_FAIL_TLS,      /* a refused certificate, or no TLS at all: another attempt is no better */
    HTTP_FAIL_TIMEOUT,  /* one of the phases took too long */
    HTTP_FAIL_PROTOCOL, /* too large, too many redirects */
    HTTP_FAIL_INVALID,  /* the URL cannot be used */
    HTTP_FAIL_NOMEM,
    HTTP_FAIL_SINK /* on_data said stop */
};

enum { HTTP_REASON_MAX = 256 };

struct http_header {
    const char *name, *value;
    bool secret; /* not sent to another origin after a redirect */
};

struct http_timeouts { /* of inactivity, per phase */
    int64_t acquire_ms, connect_ms, read_ms, write_ms;
};

struct http_response {
    enum http_failure failure;
    int status;
    struct buf head; /* "name: value\n" lines of the final response */
    struct buf body;
    int64_t length;   /* of the body as announced, -1: not announced */
    bool until_close; /* the body ended with the connection: a cut would look the same */
    int sends; /* how often it went out: more than once when curl repeated it by itself, as it does
                  when a kept connection dies before a byte of the response has come */
    bool refused; /* a failure to connect: the host is up, and nobody listens on the port */
    char reason[HTTP_REASON_MAX]; /* of a failure; never holds a URL's query or a header */
};

enum { HTTP_OPENED_MAX = 4 };

struct http_client;
struct http_pool;
/* Sockets that several pools may have open together. */
struct socket_budget;
/* Headers that many requests share, kept once in the transport's own form. */
struct http_common;

struct http_request {
    /* filled by the caller, who keeps everything alive until done */
    const char *method; /* GET, POST, PUT, DELETE */
    const char *url;
    const struct http_header *headers;
    size_t n_headers;
    const struct http_common *common; /* sent too, or NULL */
    const void *body;                 /* NULL with length 0: none */
    size_t body_len;
    struct http_timeouts timeouts;
    int64_t total_ms;    /* from start to end, redirects included; 0: as long as bytes arrive */
    bool follow;         /* redirects */
    bool small_response; /* expected: a small buffer will do, and many may be held */
    size_t max_response;
    void (*done)(struct http_request *r); /* may start it again, or free it */
    /* Instead of resp.body, for a 2xx; false stops with HTTP_FAIL_SINK.  May be NULL. */
    bool (*on_data)(struct http_request *r, const void *p, size_t n);
    struct http_response resp; /* valid in done, until http_request_clear or the next start */

    /* private */
    struct http_pool *pool;
    struct http_client *client;
    void *easy; /* CURL * */
    void *header_list, *connect_to;
    char *detail; /* curl's own words about a failure; of https only */
    struct http_request *next_waiting, *prev_waiting;
    struct timer timer;
    int64_t active_ns;  /* last sign of life */
    int64_t lacking_ns; /* since when there is no descriptor for it, 0: there was one */
    int64_t start_ns;
    size_t sent;
    char *location; /* after a redirect */
    int phase, redirects;
    bool http1, chunked; /* framing of the response that is arriving */
    bool head_done;      /* the blank line after its headers has come */
    bool cross_origin, as_get, running, paused;
    int opened[HTTP_OPENED_MAX]; /* sockets opened for it, of which one becomes its connection */
    int n_opened;                /* of which opened[] has the first */
    bool connecting;             /* counted as such */
    bool no_descriptor;          /* there was none for its socket */
};

struct http_pool_options {
    int per_client;    /* concurrent requests of one client */
    int max_active;    /* of the pool, 0: no bound; the rest waits in order */
    const char *proxy; /* NULL: none, whatever the environment says */
    const char *no_proxy;
    const struct http_header *proxy_headers;
    size_t n_proxy_headers;
    const char *ca_file; /* NULL: the system's trust store */
    bool only_http1;     /* even over TLS */
    /* NULL: no bound.  What finds no room waits in order, as long as it takes: those before it
     * have deadlines of their own. */
    struct socket_budget *budget;
    /* A request has to wait for the budget, or (none_left) because the process has no descriptor
     * left.  May be NULL.  Must not start or cancel requests. */
    void (*on_wait)(void *state, bool none_left);
    void *on_wait_state;
};

struct http_pool_stats {
    int clients, active, waiting, budget;
    int64_t retired;
};

tinker_status http_global_init(tinker_error *err); /* any thread; once is enough */

struct http_pool *http_pool_new(struct loop *l, const struct http_pool_options *opts,
                                tinker_error *err);
void http_pool_free(struct http_pool *p); /* no request may be under way */
struct http_pool_stats http_pool_stats(const struct http_pool *p);

struct socket_budget *socket_budget_new(struct loop *l, int max); /* NULL: no memory */
void socket_budget_free(struct socket_budget *b);                 /* after its pools */

struct http_common *http_common_new(const struct http_header *headers,
                                    size_t n); /* NULL: no memory */
/* "name: value" of the i-th, NULL: there are no more. */
const char *http_common_line(const struct http_common *c, size_t i);
void http_common_free(struct http_common *c); /* no request may use it */

/* Start r; done is called later, never from inside. */
void http_start(struct http_pool *p, struct http_request *r);
/* Abort r if it is under way; done is not called.  Not from on_data. */
void http_cancel(struct http_request *r);
/* Let no more data come, or let it come again; a pause does not count as inactivity. */
void http_pause(struct http_request *r, bool pause);
void http_request_clear(struct http_request *r); /* free what the response holds */

/* Value of a response header (case-insensitive) copied to out, cut if need be; false: absent. */
bool http_response_header(const struct http_response *resp, const char *name, char *out,
                          size_t size);
/* Where a redirect leads, however long; the caller frees it.  NULL: absent, or no memory. */
char *http_response_location(const struct http_response *resp);

/* The address that a reference means in a response from base (RFC 3986, section 5); the caller frees
 * it.  NULL: neither it nor base is usable, or no memory. */
char *http_resolve(const char *base, const char *reference);

/* Escape for a query string value: space as +. */
void http_query_escape(struct buf *out, const char *s);

#endif
