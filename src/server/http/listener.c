/* listener.c - requests and responses over libmicrohttpd, which only listener*.c know.
 *
 * Life of a request (struct call), as the library calls on_access() again and again:
 *
 *     headers complete   check_headers(): refuse early, or go on
 *     pieces of the body appended to call.body, counted against max_arriving
 *     body complete      handle_request(): the handler runs on the HTTP thread or, connection
 *                        suspended, on a worker thread
 *     response wanted    hold_or_send(): send it, or suspend until a waitlist fires and call
 *                        the handler again
 *     sent or aborted    on_completed(): access log, free
 *
 * Requests that take more than a moment (large bodies, archives) go to the worker threads, which
 * users share fairly (user_queue.h), so that polls and heartbeats on the HTTP thread do not wait for
 * them.  A body is in memory until its handler has returned for the first time, and counted that
 * long, decompressed as it may be.  conn_limits.h closes slow clients, listener_hold.h has the held
 * requests. */
#include "server/http/listener.h"

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/err.h"
#include "base/pool.h"
#include "server/http/access_log.h"
#include "server/http/listener_hold.h"
#include "server/http/listener_socket.h"
#include "server/http/conn_limits.h"
#include "server/http/user_queue.h"
#include "server/work/stream.h"
#include "wire/path.h"

enum { WORKER_THREADS = 2 };
enum { QUERY_MAX = 64 }; /* arguments; the API has four */
/* Bytes of a body that are accepted and reserved on the word of its Content-Length alone. */
enum { RESERVE = 8 << 20 };
enum { SOURCE_BLOCK = 64 * 1024 }; /* bytes of a body that are made at a time */
#define KEEP_ALIVE ":\n\n"         /* a comment in a stream of server-sent events */

/* Everything but the atomics is set before the HTTP thread starts, or has a lock of its own. */
struct listener {
    struct listener_options opts;
    char *unix_path; /* removed at the end; NULL: TCP */
    int fd;          /* the listening socket */
    int port;
    struct MHD_Daemon *daemon; /* NULL: not started, or stopped */
    listener_handler *handler;
    void *state;                /* the handler's */
    struct user_queue *workers; /* large bodies and archives */
    struct pool *quick;         /* small requests while the workers are busy */
    struct conn_limits conns;
    struct holds holds;
    atomic_uint_fast64_t requests, bytes_in; /* totals */
    atomic_uint_fast64_t active, complete;   /* requests now; complete: with their whole body */
    atomic_uint_fast64_t worker_jobs;        /* queued for or running on the workers */
    atomic_uint_fast64_t arriving;           /* bytes of the bodies of all active requests */
    atomic_bool told_full;                   /* the warning of full connections was logged */
};

/* One request from its first header to the last byte of its answer. */
struct call {
    struct listener *listener;
    struct request req;
    struct buf body;
    struct hold hold;
    struct user_job job; /* on a worker */
    struct conn *conn;
    struct response res; /* of the handler; written by a worker while the connection is suspended */
    bool handled;        /* a worker has filled res */
    int status;          /* once answered, for the log */
    uint64_t n_answer;
    size_t announced; /* Content-Length; 0 when there is none */
    size_t counted;   /* its bytes in listener.arriving */
    size_t n_in;      /* bytes of the body as it came, for the log */
    size_t dropped;   /* bytes received after it was refused */
    bool has_body;
    bool long_query; /* its query has too many arguments */
    bool over_limit; /* the limit of arriving bytes was reached: answer 429 at the end */
    bool complete;   /* received completely, counted in listener.complete */
};

/* Waitlists belong to the holds; the listener only passes the calls on. */
void listener_wake(struct listener *l, struct waitlist *w)
{
    holds_wake(&l->holds, w);
}

void listener_rearm(struct listener *l, struct waitlist *w)
{
    holds_rearm(&l->holds, w);
}

bool listener_waits(struct listener *l, const struct waitlist *w)
{
    return holds_waits(&l->holds, w);
}

/* ---- connections -------------------------------------------------------------------------- */

/* Connections come and go with the library; conn_limits keeps a record of each. */
static void on_connection(void *cls, struct MHD_Connection *conn, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *l = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? conn_limits_add(&l->conns, info->connect_fd) : NULL;
    } else { /* called before the library closes the descriptor */
        conn_limits_remove(&l->conns, *context);
        *context = NULL;
    }
}

/* Timer thread, every tick: end holds and connections that are past their time. */
void listener_expire(struct listener *l)
{
    bool full = conn_limits_is_full(&l->conns);
    if (full && !atomic_exchange(&l->told_full, true))
        log_line(
            l->opts.log, LOG_WARNING,
            "all %zu connections are in use: new clients are told to retry and idle connections "
            "are closed; raise the limit of open files (ulimit -n) to allow more",
            l->conns.max);
    holds_end_left(&l->holds);
    holds_expire(&l->holds, full);
    conn_limits_close_late(&l->conns);
}

/* Users are compared by hash, so that a connection need not keep a copy of the name; two users
 * with the same hash only wait for each other.  Never 0, which means unknown. */
static uint64_t hash_user(const char *user)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *user; user++)
        h = (h ^ (unsigned char)*user) * 1099511628211u;
    return h ? h : 1;
}

bool listener_is_receiving(struct listener *l, const char *user, int64_t by_ns)
{
    return conn_limits_is_receiving(&l->conns, hash_user(user), by_ns);
}

/* ---- one request --------------------------------------------------------------------- */

/* A query parameter, decoded if it has escapes; in the request's arena or the library's memory,
 * which both live as long as the request. */
static const char *query_value(struct request *req, const char *name)
{
    const char *raw = MHD_lookup_connection_value(req->transport, MHD_GET_ARGUMENT_KIND, name);
    size_t n = raw ? strlen(raw) : 0;
    char *value = raw && strchr(raw, '%') ? arena_alloc(&req->arena, n + 1) : NULL;
    return value && wire_read_segment(raw, n, value) ? value : raw;
}

static const char name_length[] = "Content-Length", name_transfer[] = "Transfer-Encoding";
static const struct {
    const char *name;
    size_t n, field; /* where in struct request */
} headers[] = {
    { "Content-Type", 12, offsetof(struct request, content_type) },
    { name_length, 14, offsetof(struct request, content_length) },
    { "Content-Encoding", 16, offsetof(struct request, content_encoding) },
    { name_transfer, 17, offsetof(struct request, transfer_encoding) },
    { "Accept", 6, offsetof(struct request, accept) },
    { "X-API-Key", 9, offsetof(struct request, api_key) },
    { "Authorization", 13, offsetof(struct request, authorization) },
    { "X-Idempotency-Key", 17, offsetof(struct request, idempotency_key) },
    { "User-Agent", 10, offsetof(struct request, user_agent) },
    { "Host", 4, offsetof(struct request, host) },
    { "Origin", 6, offsetof(struct request, origin) },
    { "Range", 5, offsetof(struct request, range) },
    { "If-Range", 8, offsetof(struct request, if_range) },
};

/* Is it a name as RFC 9110, 5.1 has it?  A blank before the colon is refused because a proxy in
 * front of us may skip the blank, and believe the header that we do not (RFC 9112, 5.1). */
static bool is_header_name(const char *name)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *name && !name[strspn(name, token)];
}

/* One walk over all headers instead of a search for each.  Those of the table must not come twice:
 * which of two lengths, hosts, origins or keys counts is something that two programs may see
 * differently (RFC 9112, 3.2 and 6.3).  Accept alone is a list. */
static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    size_t n = strlen(name);
    (void)kind;
    if (!is_header_name(name))
        ((struct request *)cls)->bad_header = true;
    for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
        if (headers[i].n != n || strcasecmp(headers[i].name, name) != 0)
            continue;
        const char **field = (const char **)((char *)cls + headers[i].field);
        if (!*field)
            *field = value;
        else if (headers[i].field != offsetof(struct request, accept))
            ((struct request *)cls)->twice = headers[i].name;
        break;
    }
    return MHD_YES;
}

/* Count n more bytes as held; false: a limit, of all bodies or of the user's, is reached.  The
 * first RESERVE bytes of a body always pass, so small requests work under any load, and so does a
 * body beside which there is no other: told to retry, it would come back forever. */
static bool count_arriving(struct call *c, size_t n)
{
    struct listener *l = c->listener;
    c->counted += n;
    conn_limits_set_held(c->conn, c->counted);
    uint64_t all = atomic_fetch_add(&l->arriving, n) + n;
    if (c->counted <= RESERVE || all == c->counted)
        return true;
    if (all > l->opts.max_arriving)
        return false;
    size_t user = l->opts.max_user && c->req.user
                      ? conn_limits_held_by(&l->conns, hash_user(c->req.user))
                      : 0;
    return user <= l->opts.max_user || user == c->counted;
}

/* request.charge; what does not pass stays counted until the body is released. */
static bool charge_body(struct request *req, size_t n)
{
    return count_arriving(container_of(req, struct call, req), n);
}

/* A request begins: its headers are known, its body is not.  The time limit for the body starts
 * here. */
static struct call *call_new(struct listener *l, struct MHD_Connection *conn, const char *url,
                             const char *method)
{
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->listener = l;
    buf_init(&c->body, l->opts.max_body);
    struct request *req = &c->req;
    arena_init(&req->arena, (size_t)4 << 30);
    req->started_ns = clock_now_ns(l->opts.clock);
    req->method = method;
    req->path = url;
    MHD_get_connection_values(conn, MHD_HEADER_KIND, read_header, req);
    req->tls = l->opts.tls_cert != NULL;
    /* "AsyncTinker/Python 0.25.0"; other clients send the SDK's headers, too, but not its name. */
    static const char sdk[] = "Tinker/Python ";
    const char *agent = req->user_agent ? strstr(req->user_agent, sdk) : NULL;
    req->sdk_version = agent ? agent + sizeof(sdk) - 1 : NULL;
    req->query = query_value;
    req->buffer = &c->body;
    req->charge = charge_body;
    req->transport = conn;
    /* More than max_body is all the same: it is refused. */
    unsigned long long n = req->content_length ? strtoull(req->content_length, NULL, 10) : 0;
    c->announced = n > l->opts.max_body ? l->opts.max_body + 1 : (size_t)n;
    c->has_body = n || req->transfer_encoding;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    c->conn = info ? info->socket_context : NULL;
    conn_limits_set_phase(c->conn, CONN_SENDING, req->started_ns);
    atomic_fetch_add(&l->active, 1);
    return c;
}

/* The reader's side of a stream ends with its request. */
static void drop_stream(void *context)
{
    stream_abandon(context);
    stream_unref(context);
}

/* The library asks for the next piece of a stream.  With none there yet, suspend the connection
 * until the producer writes or the hold runs out; 0 then means "ask again". */
static ssize_t read_stream(void *cls, uint64_t pos, char *out, size_t max)
{
    struct call *c = cls;
    struct stream *s = c->req.context;
    (void)pos;
    if (c->hold.left)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    ssize_t n = stream_read(s, out, max);
    if (n == -1)
        return MHD_CONTENT_READER_END_OF_STREAM;
    /* An error leaves out the last chunk: half a response must not look like a whole one. */
    if (n < 0 || (n == 0 && holds_stopping(&c->listener->holds)))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && c->hold.timed_out && max >= sizeof(KEEP_ALIVE)) {
        /* Clients skip the comment; writing it is the only way to notice that one has left. */
        c->hold.timed_out = false;
        memcpy(out, KEEP_ALIVE, sizeof(KEEP_ALIVE) - 1);
        return sizeof(KEEP_ALIVE) - 1;
    }
    if (n == 0)
        holds_wait(&c->listener->holds, &c->hold, stream_waitlist(s), 0, c->req.transport);
    return n;
}

/* Queue a response; the library sends it.  Its body is a file, a source, a stream or a buffer, which the
 * library then owns.  MHD_NO closes the connection. */
static enum MHD_Result send_response(struct call *c, struct MHD_Connection *conn,
                                     struct response *res)
{
    if (!buf_ok(&res->body))
        response_no_memory(res);
    struct MHD_Response *r = NULL;
    uint64_t n = res->body.len;
    if (res->fd >= 0) {
        n = res->fd_size - res->fd_at;
        r = MHD_create_response_from_fd_at_offset64(n, res->fd, res->fd_at);
    } else if (res->source.state) {
        n = res->source.size;
        r = MHD_create_response_from_callback(n, SOURCE_BLOCK, res->source.read, res->source.state,
                                              res->source.free);
    } else if (res->stream) {
        /* The stream replaces what the route kept from call to call; it ends with the request. */
        if (c->req.context_free)
            c->req.context_free(c->req.context);
        c->req.context = res->stream;
        c->req.context_free = drop_stream;
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, c, NULL);
    } else if (n) {
        size_t n_data;
        char *data = buf_detach(&res->body, &n_data);
        r = data ? MHD_create_response_from_buffer(n_data, data, MHD_RESPMEM_MUST_FREE) : NULL;
    } else {
        r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    }
    if (!r) {
        response_drop(res);
        return MHD_NO;
    }
    buf_clear(&res->body);
    res->source.state = NULL; /* the library frees it, as it closes the file */
    if (res->content_type)
        MHD_add_response_header(r, "Content-Type", res->content_type);
    for (size_t i = 0; i < res->n_headers; i++)
        MHD_add_response_header(r, res->headers[i].name, res->headers[i].value);
    /* A poll that timed out while all connections are taken gives up its own to those waiting. */
    if ((c->req.timed_out && conn_limits_is_full(&c->listener->conns)) ||
        conn_limits_is_extra(c->conn))
        MHD_add_response_header(r, "Connection", "close");
    c->status = res->status;
    c->n_answer = n;
    enum MHD_Result queued = MHD_queue_response(conn, (unsigned)res->status, r);
    MHD_destroy_response(r);
    return queued;
}

/* Runs on a worker thread while the connection is suspended; nobody else touches the call. */
static void handle_on_worker(struct call *c)
{
    struct listener *l = c->listener;
    l->handler(l->state, &c->req, &c->res);
    c->handled = true;
    atomic_fetch_sub(&l->worker_jobs, 1);
    MHD_resume_connection(c->req.transport);
}

static void run_user_job(struct user_job *job)
{
    handle_on_worker(container_of(job, struct call, job));
}

static void run_quick_job(void *call)
{
    handle_on_worker(call);
}

/* Have a worker handle the request; false: no memory, or the server is stopping. */
static bool submit_to_worker(struct call *c, struct MHD_Connection *conn, bool quick)
{
    struct listener *l = c->listener;
    /* Count before looking at `stopping`: listener_stop() sets it, then waits for 0. */
    atomic_fetch_add(&l->worker_jobs, 1);
    if (!holds_stopping(&l->holds)) {
        c->job = (struct user_job){ .run = run_user_job,
                                    .user = c->req.user ? hash_user(c->req.user) : 0 };
        MHD_suspend_connection(conn);
        if (quick ? pool_submit(l->quick, run_quick_job, c)
                  : user_queue_submit(l->workers, &c->job))
            return true;
        MHD_resume_connection(conn);
    }
    atomic_fetch_sub(&l->worker_jobs, 1);
    return false;
}

/* The handler has seen the body and will not see it again. */
static void release_body(struct call *c)
{
    atomic_fetch_sub(&c->listener->arriving, c->counted);
    c->counted = 0;
    conn_limits_set_held(c->conn, 0);
    buf_clear(&c->body);
    c->req.body = "";
    c->req.n_body = 0;
    c->req.again = true;
}

/* The handler has returned: hold the request if it waits for something, else respond. */
static enum MHD_Result hold_or_send(struct call *c, struct MHD_Connection *conn,
                                    struct response *res)
{
    struct listener *l = c->listener;
    conn_limits_set_phase(c->conn, CONN_ANSWERED, 0);
    release_body(c);
    /* At shutdown holds time out at once; a handler that waits again would loop. */
    if (res->wait && c->req.timed_out && holds_stopping(&l->holds))
        response_error(res, 503, "the server is stopping");
    if (res->wait) {
        buf_clear(&res->body);
        holds_wait(&l->holds, &c->hold, res->wait, res->wait_ms, conn);
        return MHD_YES;
    }
    return send_response(c, conn, res);
}

/* The request is complete: run its handler, here or on a worker.  Called again when a worker is
 * done with it and when a hold has ended. */
static enum MHD_Result handle_request(struct call *c, struct MHD_Connection *conn)
{
    struct listener *l = c->listener;
    if (c->hold.left) /* closes the connection; on_completed() frees what waits for the result */
        return MHD_NO;
    if (c->handled) { /* a worker resumed the connection */
        c->handled = false;
        return hold_or_send(c, conn, &c->res);
    }
    bool first = !c->req.body;
    if (first) {
        c->req.body = c->body.data ? c->body.data : "";
        c->req.n_body = c->body.len;
    }
    c->req.timed_out = c->hold.timed_out;
    c->hold.timed_out = false;
    response_init(&c->res); /* status 200, empty body */
    if (first) {
        conn_limits_set_phase(c->conn, CONN_HANDLED, c->req.started_ns);
        c->complete = true;
        atomic_fetch_add(&l->complete, 1);
        enum listener_place place =
            l->opts.place ? l->opts.place(l->state, &c->req) : LISTENER_INLINE;
        /* While a worker holds the store's lock, a request that needs the store would block
         * this thread, and with it all polls: a thread for such requests waits instead. */
        bool quick = place == LISTENER_EITHER && atomic_load(&l->worker_jobs) > 0;
        if ((place == LISTENER_WORKER || quick) && submit_to_worker(c, conn, quick))
            return MHD_YES;
    }
    l->handler(l->state, &c->req, &c->res);
    return hold_or_send(c, conn, &c->res);
}

/* Respond before the body was read; the connection closes, so the rest is not read either. */
static enum MHD_Result send_refusal(struct call *c, struct MHD_Connection *conn,
                                    struct response *res)
{
    conn_limits_set_phase(c->conn, CONN_ANSWERED, 0);
    response_header(res, "Connection", "close");
    return send_response(c, conn, res);
}

/* The largest body that the request may have. */
static size_t body_limit(const struct call *c)
{
    return c->req.max_body ? c->req.max_body : c->listener->opts.max_body;
}

/* 413: the body is too large.  429: all bodies together are, try again.  503: no memory. */
static enum MHD_Result refuse_body(struct call *c, struct MHD_Connection *conn, int status)
{
    struct response res;
    response_init(&res);
    if (status == 413) {
        response_error(&res, 413, "request body is larger than %zu bytes", body_limit(c));
    } else if (status == 503) {
        response_no_memory(&res);
    } else {
        response_error(&res, 429, "too many request bodies are arriving at once; retry later");
        response_header(&res, "Retry-After", "1");
    }
    return send_refusal(c, conn, &res);
}

/* All headers are there: accept the body, or refuse it before it costs anything. */
static enum MHD_Result check_headers(struct call *c, struct MHD_Connection *conn,
                                     const char *version)
{
    struct listener *l = c->listener;
    struct response res;
    response_init(&res);
    /* Request smuggling: a proxy in front of us may believe the other length, and take the
     * rest of this body for the next request, or the reverse. */
    if (c->req.bad_header) {
        response_error(&res, 400, "the name of a header has a character that it must not have");
        return send_refusal(c, conn, &res);
    }
    if (c->req.twice && c->req.twice != name_length && c->req.twice != name_transfer) {
        response_error(&res, 400, "the request has two headers %s", c->req.twice);
        return send_refusal(c, conn, &res);
    }
    if (c->req.twice || (c->req.content_length && c->req.transfer_encoding)) {
        response_error(&res, 400, "the request gives the length of its body in more than one way");
        return send_refusal(c, conn, &res);
    }
    if (c->long_query) {
        response_error(&res, 400, "the query has more than %d arguments", QUERY_MAX);
        return send_refusal(c, conn, &res);
    }
    if (conn_limits_is_extra(c->conn) &&
        !(l->opts.is_check && l->opts.is_check(l->state, &c->req))) {
        response_error(&res, 429, "all %zu connections are in use; retry later", l->conns.max);
        response_header(&res, "Retry-After", "1");
        return send_refusal(c, conn, &res);
    }
    if (!c->req.host && strcmp(version, "HTTP/1.1") == 0) {
        response_error(&res, 400, "a request of HTTP/1.1 needs the header Host");
        return send_refusal(c, conn, &res);
    }
    /* With another coding the library would read everything that follows as the body. */
    if (c->req.transfer_encoding && strcasecmp(c->req.transfer_encoding, "chunked") != 0) {
        response_error(&res, 501, "Transfer-Encoding %.100s is not supported; use chunked",
                       c->req.transfer_encoding);
        return send_refusal(c, conn, &res);
    }
    if (!c->has_body)
        return MHD_YES;
    if (l->opts.check && !l->opts.check(l->state, &c->req, &res))
        return send_refusal(c, conn, &res);
    response_drop(&res);
    buf_limit(&c->body, body_limit(c));
    if (c->announced > body_limit(c))
        return refuse_body(c, conn, 413);
    if (c->req.user)
        conn_limits_set_user(c->conn, hash_user(c->req.user));
    if (!count_arriving(c, c->announced))
        return refuse_body(c, conn, 429);
    /* Trust Content-Length up to a point; beyond it the buffer grows as bytes arrive. */
    buf_reserve(&c->body, c->announced < RESERVE ? c->announced : RESERVE);
    return MHD_YES;
}

/* What check_query() returns for a request that is to be refused; only its address matters. */
static char long_query;

/* The library's one entry point: called with the headers, with each piece of the body, and once
 * more when the body is complete or the connection was resumed. */
static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n_upload, void **con_cls)
{
    struct listener *l = cls;
    bool too_many = *con_cls == &long_query; /* of the first call only */
    struct call *c = too_many ? NULL : *con_cls;
    if (!c) {
        atomic_fetch_add(&l->requests, 1);
        c = *con_cls = call_new(l, conn, url, method);
        if (!c)
            return MHD_NO;
        c->long_query = too_many;
        return check_headers(c, conn, version);
    }
    if (*n_upload) {
        size_t n = *n_upload;
        bool proceed = true;
        c->n_in += n;
        if (c->over_limit || !buf_ok(&c->body)) {
            /* Most clients read no response before they have sent everything, so the rest is
             * read and dropped, but not without end. */
            c->dropped += n;
            proceed = c->dropped <= l->opts.max_body;
        } else {
            buf_append(&c->body, upload, n);
            if (c->body.len > c->counted && !count_arriving(c, c->body.len - c->counted)) {
                c->over_limit = true;
                buf_clear(&c->body);
            }
        }
        conn_limits_count_received(c->conn, n);
        atomic_fetch_add(&l->bytes_in, n);
        *n_upload = 0; /* all of it was taken */
        return proceed ? MHD_YES : MHD_NO;
    }
    /* The body is complete, or a hold or a worker has resumed the connection. */
    if (c->over_limit)
        return refuse_body(c, conn, 429);
    if (!buf_ok(&c->body))
        return refuse_body(c, conn, c->n_in > body_limit(c) ? 413 : 503);
    return handle_request(c, conn);
}

/* The response was sent or the client has left: the last call for this request. */
static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct listener *l = cls;
    struct call *c = *con_cls;
    (void)conn;
    if (!c || *con_cls == &long_query) /* it ended before its headers were complete */
        return;
    *con_cls = NULL;
    int64_t now_ns = clock_now_ns(l->opts.clock);
    conn_limits_set_phase(c->conn, CONN_IDLE, now_ns);
    struct access_entry a = { .status = c->status,
                              .ns = now_ns - c->req.started_ns,
                              .n_in = c->n_in,
                              .n_out = c->n_answer,
                              .aborted = code != MHD_REQUEST_TERMINATED_COMPLETED_OK };
    access_log_write(l->opts.log, &c->req, &a);
    /* The client left while a worker made the response: nobody will send it. */
    if (c->handled && c->res.stream)
        drop_stream(c->res.stream);
    if (c->handled)
        response_drop(&c->res);
    if (c->req.context_free)
        c->req.context_free(c->req.context);
    atomic_fetch_sub(&l->active, 1);
    if (c->complete)
        atomic_fetch_sub(&l->complete, 1);
    atomic_fetch_sub(&l->arriving, c->counted);
    arena_clear(&c->req.arena);
    buf_clear(&c->body);
    free(c);
}

/* Keep the library from decoding %XX: it would do so before the path is split at its slashes, and
 * cut names at a NUL.  routes.c decodes the segments of a path, query_value() the query. */
static size_t keep_escapes(void *cls, struct MHD_Connection *conn, char *text)
{
    (void)cls;
    (void)conn;
    return strlen(text);
}

/* Called with the request line before its query is split.  The library takes memory of a fixed pool
 * for every argument, and when that is used up it has none for a response either: cut the query off
 * where it becomes absurd (the text is the library's own buffer), and remember to refuse. */
static void *check_query(void *cls, const char *uri, struct MHD_Connection *conn)
{
    size_t n = 0;
    (void)cls;
    (void)conn;
    for (char *p = strchr((char *)(uintptr_t)uri, '?'); p; p = strchr(p + 1, '&'))
        if (++n > QUERY_MAX) {
            *p = '\0';
            return &long_query;
        }
    return NULL;
}

/* The library's own messages: mostly clients that broke off, so they go to the debug log. */
static void on_library_message(void *cls, const char *fmt, va_list ap)
{
    struct listener *l = cls;
    char text[256];
    vsnprintf(text, sizeof(text), fmt, ap);
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n')
        text[--n] = 0;
    log_line(l->opts.log, LOG_DEBUG, "http: %s", text);
}

/* ---- life --------------------------------------------------------------------------- */

struct listener *listener_open(const struct listener_options *opts, tinker_error *err)
{
    struct listener *l = calloc(1, sizeof(*l));
    if (!l) {
        err_nomem(err, "listener");
        return NULL;
    }
    l->opts = *opts;
    holds_init(&l->holds, opts->clock, opts->hold_ms);
    conn_limits_init(&l->conns, opts->clock, opts->idle_ms, opts->body_ms);
    l->unix_path = opts->unix_path ? strdup(opts->unix_path) : NULL;
    if (opts->unix_path && !l->unix_path) { /* nobody would remove the socket at the end */
        err_nomem(err, "listener");
        conn_limits_clear(&l->conns);
        holds_clear(&l->holds);
        free(l);
        return NULL;
    }
    l->fd = listener_socket_open(opts, &l->port, err);
    if (l->fd < 0) {
        free(l->unix_path);
        conn_limits_clear(&l->conns);
        holds_clear(&l->holds);
        free(l);
        return NULL;
    }
    return l;
}

void listener_limit_bodies(struct listener *l, size_t max_body, size_t max_arriving,
                           size_t max_user)
{
    l->opts.max_body = max_body;
    l->opts.max_arriving = max_arriving;
    l->opts.max_user = max_user;
}

tinker_status listener_start(struct listener *l, listener_handler *handler, void *state,
                             tinker_error *err)
{
    /* One internal thread; suspended connections are the held polls. */
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)l->opts.tls_cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)l->opts.tls_key },
        { MHD_OPTION_END, 0, NULL },
    };
    if (l->opts.tls_cert)
        flags |= MHD_USE_TLS;
    else
        tls[0].option = MHD_OPTION_END; /* an empty list */
    l->handler = handler;
    l->state = state;
    conn_limits_set_max(&l->conns, listener_socket_limit(l->opts.max_connections));
    l->workers = user_queue_new(WORKER_THREADS, "requests");
    l->quick = pool_new(1, "quick requests");
    if (!l->workers || !l->quick)
        return err_nomem(err, "listener");
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, l, MHD_OPTION_EXTERNAL_LOGGER, on_library_message, l,
        MHD_OPTION_LISTEN_SOCKET, l->fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, l,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(l->conns.max + CONN_EXTRA), MHD_OPTION_CONNECTION_TIMEOUT, 120u,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_URI_LOG_CALLBACK, check_query,
        NULL, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (!l->daemon)
        return err_set(err, TINKER_ESTATE, "cannot start the HTTP server%s",
                       l->opts.tls_cert ? " (check the certificate and key)" : "");
    return TINKER_OK;
}

/* The port that was bound, also when 0 was asked for. */
int listener_port(const struct listener *l)
{
    return l->port;
}

void listener_stats(struct listener *l, struct listener_stats *out)
{
    out->held = holds_count(&l->holds);
    out->requests = atomic_load(&l->requests);
    out->bytes_in = atomic_load(&l->bytes_in);
    out->active = atomic_load(&l->active);
    out->bodies = atomic_load(&l->arriving);
}

void listener_stop(struct listener *l, int64_t timeout_ms)
{
    int64_t deadline = clock_deadline_ns(clock_real(), timeout_ms);
    const struct timespec pause = { 0, 2 * 1000 * 1000 };
    if (!l || !l->daemon)
        return;
    holds_stop(&l->holds);
    MHD_quiesce_daemon(l->daemon);
    /* Wait for the requests that were received completely; a client that is still sending
     * does not delay the end.  Each round ends the holds that came up meanwhile. */
    while (atomic_load(&l->complete) && clock_now_ns(clock_real()) < deadline) {
        listener_expire(l);
        nanosleep(&pause, NULL);
    }
    listener_expire(l);
    /* Connected clients still send requests.  `stopping` is set, so once no job is counted no
     * more will be: see submit_to_worker(). */
    while (atomic_load(&l->worker_jobs))
        nanosleep(&pause, NULL);
    user_queue_free(l->workers); /* before the daemon: its jobs resume connections */
    pool_free(l->quick);
    l->workers = NULL;
    l->quick = NULL;
    listener_expire(l);
    MHD_stop_daemon(l->daemon);
    l->daemon = NULL;
}

void listener_close(struct listener *l, int64_t timeout_ms)
{
    if (!l)
        return;
    listener_stop(l, timeout_ms);
    user_queue_free(l->workers);
    pool_free(l->quick);
    close(l->fd);
    if (l->unix_path)
        unlink(l->unix_path);
    free(l->unix_path);
    conn_limits_clear(&l->conns);
    holds_clear(&l->holds);
    free(l);
}
