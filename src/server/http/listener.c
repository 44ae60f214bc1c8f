/* listener.c - requests and answers over libmicrohttpd, which only listener*.c know.
 *
 * Requests that cost more than a moment (large bodies, archives) are handled by a few
 * threads aside, their connection suspended meanwhile, so that the others do not wait.
 *
 * A client must get on: between two requests, and while it sends one, listener_expire()
 * hangs up on those who dribble.  Held requests: listener_hold.h. */
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
#include "server/work/stream.h"
#include "wire/path.h"

enum { WORKER_THREADS = 2, RESERVE = 8 << 20 };
#define STILL_THERE ":\n\n" /* in a stream of events */

struct listener {
    struct listener_options opts;
    char *unix_path;
    int fd;
    int port;
    struct MHD_Daemon *daemon;
    listener_handler *handler;
    void *state;
    struct pool *workers;
    struct conn_limits conns;
    atomic_uint_fast64_t requests, bytes_in, active, complete, worker_jobs, arriving;
    struct holds holds;
    atomic_bool told_full;
};

/* One request from its first header to the last byte of its answer. */
struct call {
    struct listener *listener;
    struct request req;
    struct buf body;
    struct hold hold;
    struct conn *conn;
    struct response res; /* made aside */
    bool handled;        /* res is */
    int status;          /* once answered */
    uint64_t n_answer;
    size_t announced;    /* by the headers; 0 also when they do not say */
    size_t counted;      /* of its bytes among those that are arriving */
    size_t dropped;      /* bytes that came after it was refused */
    bool has_body, late; /* late: there was no room left for it */
    bool complete;       /* all of it is there */
};

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

static void on_connection(void *cls, struct MHD_Connection *conn, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *l = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = info ? conn_limits_add(&l->conns, info->connect_fd) : NULL;
    } else { /* before the descriptor is closed */
        conn_limits_remove(&l->conns, *context);
        *context = NULL;
    }
}

void listener_expire(struct listener *l)
{
    bool full = conn_limits_is_full(&l->conns);
    if (full && !atomic_exchange(&l->told_full, true))
        log_line(l->opts.log, LOG_WARNING,
                 "all %zu connections there may be are taken: others wait, and who is idle is hung "
                 "up on; a larger limit of open files (ulimit -n) allows more",
                 l->conns.max);
    holds_expire(&l->holds, full);
    conn_limits_close_late(&l->conns);
}

/* Names of users are compared by hash, so that a connection need not keep a copy; two that share
 * one only wait for each other.  Never 0, which is nobody. */
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

static const char *query_value(struct request *req, const char *name)
{
    const char *raw = MHD_lookup_connection_value(req->transport, MHD_GET_ARGUMENT_KIND, name);
    size_t n = raw ? strlen(raw) : 0;
    char *value = raw && strchr(raw, '%') ? arena_alloc(&req->arena, n + 1) : NULL;
    return value && wire_read_segment(raw, n, value) ? value : raw;
}

static const struct {
    const char *name;
    size_t n, field; /* where in struct request */
} headers[] = {
    { "Content-Type", 12, offsetof(struct request, content_type) },
    { "Content-Length", 14, offsetof(struct request, content_length) },
    { "Content-Encoding", 16, offsetof(struct request, content_encoding) },
    { "Transfer-Encoding", 17, offsetof(struct request, transfer_encoding) },
    { "Accept", 6, offsetof(struct request, accept) },
    { "X-API-Key", 9, offsetof(struct request, api_key) },
    { "Authorization", 13, offsetof(struct request, authorization) },
    { "X-Idempotency-Key", 17, offsetof(struct request, idempotency_key) },
    { "Host", 4, offsetof(struct request, host) },
    { "Origin", 6, offsetof(struct request, origin) },
};

/* One walk over all headers instead of a search for each; the first of a name counts. */
static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    size_t n = strlen(name);
    (void)kind;
    for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
        if (headers[i].n != n || strcasecmp(headers[i].name, name) != 0)
            continue;
        const char **field = (const char **)((char *)cls + headers[i].field);
        if (!*field)
            *field = value;
        else if (headers[i].field == offsetof(struct request, content_length) ||
                 headers[i].field == offsetof(struct request, transfer_encoding))
            ((struct request *)cls)->two_lengths = true;
        break;
    }
    return MHD_YES;
}

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
    req->query = query_value;
    req->transport = conn;
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

static void drop_stream(void *context)
{
    stream_abandon(context);
    stream_unref(context);
}

static void call_free(struct call *c)
{
    /* The client left while the answer was made aside. */
    if (c->handled && c->res.stream)
        drop_stream(c->res.stream);
    if (c->handled)
        response_drop(&c->res);
    if (c->req.context_free)
        c->req.context_free(c->req.context);
    atomic_fetch_sub(&c->listener->active, 1);
    if (c->complete)
        atomic_fetch_sub(&c->listener->complete, 1);
    atomic_fetch_sub(&c->listener->arriving, c->counted);
    arena_clear(&c->req.arena);
    buf_clear(&c->body);
    free(c);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *out, size_t max)
{
    struct call *c = cls;
    struct stream *s = c->req.context;
    (void)pos;
    ssize_t n = stream_read(s, out, max);
    if (n == -1)
        return MHD_CONTENT_READER_END_OF_STREAM;
    /* Without its last chunk: half an answer must not look like a whole one. */
    if (n < 0 || (n == 0 && holds_stopping(&c->listener->holds)))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && c->hold.timed_out && max >= sizeof(STILL_THERE)) {
        /* A comment, which readers skip: a client who left is noticed only when one writes. */
        c->hold.timed_out = false;
        memcpy(out, STILL_THERE, sizeof(STILL_THERE) - 1);
        return sizeof(STILL_THERE) - 1;
    }
    if (n == 0)
        holds_wait(&c->listener->holds, &c->hold, stream_waitlist(s), c->req.transport);
    return n;
}

static struct MHD_Response *make_response(struct call *c, struct response *res)
{
    if (res->fd >= 0)
        return MHD_create_response_from_fd64(res->fd_size, res->fd);
    if (res->stream) {
        /* The stream replaces whatever the route kept; both die with the request. */
        if (c->req.context_free)
            c->req.context_free(c->req.context);
        c->req.context = res->stream;
        c->req.context_free = drop_stream;
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, c, NULL);
    }
    size_t n = res->body.len;
    if (!n)
        return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    char *data = buf_detach(&res->body, &n);
    return data ? MHD_create_response_from_buffer(n, data, MHD_RESPMEM_MUST_FREE) : NULL;
}

static enum MHD_Result send_response(struct call *c, struct MHD_Connection *conn,
                                     struct response *res)
{
    if (!buf_ok(&res->body))
        response_error(res, 500, "out of memory while writing the answer");
    uint64_t n = res->fd >= 0 ? res->fd_size : res->body.len;
    struct MHD_Response *r = make_response(c, res);
    buf_clear(&res->body);
    if (!r)
        return MHD_NO;
    if (res->content_type)
        MHD_add_response_header(r, "Content-Type", res->content_type);
    for (size_t i = 0; i < res->n_headers; i++)
        MHD_add_response_header(r, res->headers[i].name, res->headers[i].value);
    /* Who is told to ask again makes room when others wait, and comes back behind them. */
    if (c->req.timed_out && conn_limits_is_full(&c->listener->conns))
        MHD_add_response_header(r, "Connection", "close");
    c->status = res->status;
    c->n_answer = n;
    enum MHD_Result queued = MHD_queue_response(conn, (unsigned)res->status, r);
    MHD_destroy_response(r);
    return queued;
}

/* On a thread aside, while the connection is suspended. */
static void handle_on_worker(void *job)
{
    struct call *c = job;
    struct listener *l = c->listener;
    l->handler(l->state, &c->req, &c->res);
    c->handled = true;
    atomic_fetch_sub(&l->worker_jobs, 1);
    MHD_resume_connection(c->req.transport);
}

/* Hand the request to the threads aside if it belongs there; false: handle it here. */
static bool submit_to_worker(struct call *c, struct MHD_Connection *conn)
{
    struct listener *l = c->listener;
    enum listener_place place = l->opts.place ? l->opts.place(l->state, &c->req) : LISTENER_INLINE;
    /* While they are busy with the store, whoever needs it too would wait for them. */
    if (place == LISTENER_INLINE || (place == LISTENER_EITHER && atomic_load(&l->worker_jobs) == 0))
        return false;
    /* Counted before the look at the end: see stop_workers(). */
    atomic_fetch_add(&l->worker_jobs, 1);
    bool put = !holds_stopping(&l->holds);
    if (put) {
        MHD_suspend_connection(conn);
        put = pool_submit(l->workers, handle_on_worker, c);
        if (!put)
            MHD_resume_connection(conn);
    }
    if (!put)
        atomic_fetch_sub(&l->worker_jobs, 1);
    return put;
}

/* The handler has spoken: hold the request or answer it. */
static enum MHD_Result hold_or_send(struct call *c, struct MHD_Connection *conn,
                                    struct response *res)
{
    struct listener *l = c->listener;
    conn_limits_set_phase(c->conn, CONN_ANSWERED, 0);
    if (res->wait && c->req.timed_out && holds_stopping(&l->holds))
        response_error(res, 503, "the server is stopping");
    if (res->wait) {
        buf_clear(&res->body);
        holds_wait(&l->holds, &c->hold, res->wait, conn);
        return MHD_YES;
    }
    return send_response(c, conn, res);
}

static enum MHD_Result handle_request(struct call *c, struct MHD_Connection *conn)
{
    struct listener *l = c->listener;
    if (c->handled) {
        c->handled = false;
        return hold_or_send(c, conn, &c->res);
    }
    /* Later calls find the body as the first one left it, decompressed. */
    bool first = !c->req.body;
    if (first) {
        c->req.body = c->body.data ? c->body.data : "";
        c->req.n_body = c->body.len;
    }
    c->req.timed_out = c->hold.timed_out;
    c->hold.timed_out = false;
    response_init(&c->res);
    if (first) {
        conn_limits_set_phase(c->conn, CONN_HANDLED, c->req.started_ns);
        c->complete = true;
        atomic_fetch_add(&l->complete, 1);
        if (submit_to_worker(c, conn))
            return MHD_YES;
    }
    l->handler(l->state, &c->req, &c->res);
    return hold_or_send(c, conn, &c->res);
}

/* Answer before the body is there; what is left of it is not read. */
static enum MHD_Result send_refusal(struct call *c, struct MHD_Connection *conn,
                                    struct response *res)
{
    conn_limits_set_phase(c->conn, CONN_ANSWERED, 0);
    response_header(res, "Connection", "close");
    return send_response(c, conn, res);
}

static enum MHD_Result refuse_large(struct call *c, struct MHD_Connection *conn)
{
    struct response res;
    response_init(&res);
    response_error(&res, 413, "request body is larger than %zu bytes", c->listener->opts.max_body);
    return send_refusal(c, conn, &res);
}

/* Whoever stands between us and the client may have taken the other length for the right one,
 * and what we take for the next request for a part of this one. */
static enum MHD_Result refuse_unclear(struct call *c, struct MHD_Connection *conn)
{
    struct response res;
    response_init(&res);
    response_error(&res, 400, "the request gives the length of its body in more than one way");
    return send_refusal(c, conn, &res);
}

/* The library would take everything that follows for the body, however much that is. */
static enum MHD_Result refuse_coding(struct call *c, struct MHD_Connection *conn)
{
    struct response res;
    response_init(&res);
    response_error(&res, 501, "Transfer-Encoding %.100s is not supported; use chunked",
                   c->req.transfer_encoding);
    return send_refusal(c, conn, &res);
}

static enum MHD_Result refuse_busy(struct call *c, struct MHD_Connection *conn)
{
    struct response res;
    response_init(&res);
    response_error(&res, 429, "too many bodies are arriving at once");
    response_header(&res, "Retry-After", "1");
    return send_refusal(c, conn, &res);
}

/* Count n bytes as arriving; false: there are too many already. */
static bool count_arriving(struct call *c, size_t n)
{
    struct listener *l = c->listener;
    c->counted += n;
    return atomic_fetch_add(&l->arriving, n) + n <= l->opts.max_arriving || c->counted <= RESERVE;
}

/* The headers are there: go on with the body, or not. */
static enum MHD_Result check_headers(struct call *c, struct MHD_Connection *conn)
{
    struct listener *l = c->listener;
    struct response res;
    if (c->req.two_lengths || (c->req.content_length && c->req.transfer_encoding))
        return refuse_unclear(c, conn);
    if (c->req.transfer_encoding && strcasecmp(c->req.transfer_encoding, "chunked") != 0)
        return refuse_coding(c, conn);
    if (!c->has_body)
        return MHD_YES;
    if (c->announced > l->opts.max_body)
        return refuse_large(c, conn);
    response_init(&res);
    if (l->opts.check && !l->opts.check(l->state, &c->req, &res))
        return send_refusal(c, conn, &res);
    response_drop(&res);
    if (c->req.user)
        conn_limits_set_user(c->conn, hash_user(c->req.user));
    if (!count_arriving(c, c->announced))
        return refuse_busy(c, conn);
    /* What was announced is trusted up to a point: the rest grows as it arrives. */
    buf_reserve(&c->body, c->announced < RESERVE ? c->announced : RESERVE);
    return MHD_YES;
}

/* A piece of the body.  Once it is refused the rest is read and dropped, because clients read
 * no answer before they have sent all; false: that rest has no end. */
static bool receive_body(struct call *c, const char *p, size_t n)
{
    if (c->late || !buf_ok(&c->body)) {
        c->dropped += n;
        return c->dropped <= c->listener->opts.max_body;
    }
    buf_append(&c->body, p, n);
    if (c->body.len <= c->counted || count_arriving(c, c->body.len - c->counted))
        return true;
    c->late = true;
    buf_clear(&c->body);
    return true;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n_upload, void **con_cls)
{
    struct listener *l = cls;
    struct call *c = *con_cls;
    (void)version;
    if (!c) {
        atomic_fetch_add(&l->requests, 1);
        c = *con_cls = call_new(l, conn, url, method);
        if (!c)
            return MHD_NO;
        return check_headers(c, conn);
    }
    if (*n_upload) {
        bool goes_on = receive_body(c, upload, *n_upload);
        conn_limits_count_received(c->conn, *n_upload);
        atomic_fetch_add(&l->bytes_in, *n_upload);
        *n_upload = 0;
        return goes_on ? MHD_YES : MHD_NO;
    }
    if (c->late)
        return refuse_busy(c, conn);
    if (!buf_ok(&c->body))
        return refuse_large(c, conn);
    return handle_request(c, conn);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct listener *l = cls;
    struct call *c = *con_cls;
    (void)conn;
    if (!c)
        return;
    *con_cls = NULL;
    int64_t now_ns = clock_now_ns(l->opts.clock);
    conn_limits_set_phase(c->conn, CONN_IDLE, now_ns);
    struct access_entry a = { .status = c->status,
                              .ns = now_ns - c->req.started_ns,
                              .n_in = c->body.len,
                              .n_out = c->n_answer,
                              .aborted = code != MHD_REQUEST_TERMINATED_COMPLETED_OK };
    access_log_write(l->opts.log, &c->req, &a);
    call_free(c);
}

/* Not here: the library would do it before the path is cut at its slashes, and end names at a NUL.
 * routes.c reads the parts of a path, query_value() the rest. */
static size_t keep_escapes(void *cls, struct MHD_Connection *conn, char *text)
{
    (void)cls;
    (void)conn;
    return strlen(text);
}

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

tinker_status listener_start(struct listener *l, listener_handler *handler, void *state,
                             tinker_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)l->opts.tls_cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)l->opts.tls_key },
        { MHD_OPTION_END, 0, NULL },
    };
    if (l->opts.tls_cert)
        flags |= MHD_USE_TLS;
    else
        tls[0].option = MHD_OPTION_END;
    l->handler = handler;
    l->state = state;
    l->conns.max = listener_socket_limit(l->opts.max_connections);
    l->workers = pool_new(WORKER_THREADS, "requests");
    if (!l->workers)
        return err_nomem(err, "listener");
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, l, MHD_OPTION_EXTERNAL_LOGGER, on_library_message, l,
        MHD_OPTION_LISTEN_SOCKET, l->fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, l,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)l->conns.max, MHD_OPTION_CONNECTION_TIMEOUT, 120u, MHD_OPTION_UNESCAPE_CALLBACK,
        keep_escapes, NULL, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (!l->daemon)
        return err_set(err, TINKER_ESTATE, "cannot start the HTTP server%s",
                       l->opts.tls_cert ? " (check the certificate and key)" : "");
    return TINKER_OK;
}

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
}

/* Whoever is still sending is not waited for. */
static void wait_for_answers(struct listener *l, int64_t timeout_ms)
{
    int64_t deadline = clock_deadline_ns(clock_real(), timeout_ms);
    struct timespec pause = { 0, 5 * 1000 * 1000 };
    while (atomic_load(&l->complete) && clock_now_ns(clock_real()) < deadline) {
        listener_expire(l);
        nanosleep(&pause, NULL);
    }
    listener_expire(l);
}

/* End the threads aside.  Clients that stay connected still ask: once the end is known and
 * no job is counted, none will be. */
static void stop_workers(struct listener *l)
{
    struct timespec pause = { 0, 1000 * 1000 };
    while (atomic_load(&l->worker_jobs))
        nanosleep(&pause, NULL);
    pool_free(l->workers); /* what runs there resumes a connection */
    l->workers = NULL;
}

void listener_stop(struct listener *l, int64_t timeout_ms)
{
    if (!l || !l->daemon)
        return;
    holds_stop(&l->holds);
    MHD_quiesce_daemon(l->daemon);
    wait_for_answers(l, timeout_ms);
    stop_workers(l);
    listener_expire(l);
    MHD_stop_daemon(l->daemon);
    l->daemon = NULL;
}

void listener_close(struct listener *l, int64_t timeout_ms)
{
    if (!l)
        return;
    listener_stop(l, timeout_ms);
    pool_free(l->workers);
    close(l->fd);
    if (l->unix_path)
        unlink(l->unix_path);
    free(l->unix_path);
    conn_limits_clear(&l->conns);
    holds_clear(&l->holds);
    free(l);
}
