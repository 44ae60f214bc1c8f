/* pool_impl.h - what pool.c and transfer.c share: the insides of pools and clients. */
#ifndef HTTP_POOL_IMPL_H
#define HTTP_POOL_IMPL_H

#include <curl/curl.h>
#include "http/http.h"

enum { EDGE_BUDGET = 16, POOL_IDLE_MAX = 64, POOL_ADDRESSES = 8 };

/* An address that curl need not take apart again. */
struct http_address {
    char *url;
    CURLU *parsed;
};

struct socket_budget {
    struct loop *loop;
    int max, max_connecting;
    int sockets, connecting; /* of all pools */
    struct http_pool *pools;
};

struct http_client {
    struct http_client *next;
    struct http_pool *pool;
    CURLM *multi;
    struct timer timer; /* curl's own, on the real clock */
    int active;
    int connecting;              /* of the active ones: no connection yet */
    int sockets;                 /* connections, and attempts at one */
    int *kept, n_kept, max_kept; /* descriptors of the connections */
    bool retired;                /* takes no new request; freed when the last one ends */
    bool draining;               /* its completions are being handed out */
};

struct http_pool {
    struct loop *loop;
    struct http_pool_options opts; /* strings owned */
    struct curl_slist *proxy_headers;
    struct http_client *clients;
    struct http_request *waiting, *last_waiting;
    int active, n_waiting, budget;
    int connecting, sockets; /* of all clients */
    struct timer wake;       /* on the real clock: start waiting requests */
    bool starved;            /* no descriptor was free: no new socket until the timer fires */
    struct http_pool *next_of_budget;
    int64_t retired;
    bool in_free;
    CURL *idle[POOL_IDLE_MAX]; /* handles ready for reuse */
    int n_idle;
    /* The first few: all that training and sampling ask for.  None is ever replaced, because
     * handles refer to them. */
    struct http_address addresses[POOL_ADDRESSES];
    int n_addresses;
};

/* pool.c: a request has left its client; free what is unused, start waiting requests. */
void pool_release(struct http_request *r);
/* pool.c: an edge proxy refused this client's connection. */
void pool_retire(struct http_client *c);

/* pool.c: of what clients without a request keep open, close all. */
void pool_drop_unused(struct http_pool *p);
/* pool.c: in a while, begin what waits and can; never from inside a callback of curl. */
void pool_wake(struct http_pool *p, int64_t delay_ms);
/* pool.c: a request is being connected, or no longer. */
void pool_count_connecting(struct http_request *r, bool connecting);
/* pool.c: a socket was opened for r; r has its connection, at this port of ours; a socket is being
 * closed.  curl need not tell when it closes one that did not become a connection. */
void pool_socket_opened(struct http_request *r, int fd);
void pool_socket_connected(struct http_request *r, int local_port);
void pool_socket_closed(struct http_client *c, int fd);

/* budget.c */
void socket_budget_add(struct socket_budget *b, struct http_pool *p);
void socket_budget_remove(struct socket_budget *b, struct http_pool *p);
bool socket_budget_allows(struct socket_budget *b,
                          struct http_pool *p); /* p: to open another socket */
void socket_budget_wake(struct socket_budget *b);

/* transfer.c */
bool transfer_begin(struct http_client *c, struct http_request *r); /* false: resp says why */
void transfer_end(struct http_request *r);                          /* takes it off its client */
/* Look again after ms, or when the total time is over. */
void transfer_arm(struct http_request *r, int64_t ms);
int64_t transfer_left_ms(const struct http_request *r); /* of the total time */
/* Is the connection made?  Then its socket is closed by on_close() and no other way. */
bool transfer_connected(const struct http_request *r);
void transfer_complete(struct http_request *r, CURLcode code); /* reads the outcome */
void transfer_fail(struct http_request *r, enum http_failure f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Follow resp's Location if the request asks for it: true, r is ready to begin again. */
bool transfer_redirect(struct http_request *r);
char *transfer_header_line(const struct http_header *h); /* as curl wants it; caller frees */

#endif
