/* listener.c - the only file that knows libmicrohttpd: see listener.h.
 *
 * A held request is a suspended connection.  The library does not notice that its
 * client left, so every hold is also in a list ordered by deadline (all holds last
 * equally long, hence first in, first out) and listener_expire() ends it.
 *
 * Lock order: the lock of the holds is a leaf.  A connection is suspended before it
 * is linked, and resumed after it was unlinked, so a wake-up cannot be lost. */
#include "server/listener.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "server/stream.h"

struct hold {
    struct hold *next_waiter; /* on the same waitlist */
    struct hold *next, *prev; /* by deadline */
    struct waitlist *on;      /* NULL: not held */
    struct MHD_Connection *conn;
    int64_t deadline_ns;
    bool timed_out;
};

struct listener {
    struct listener_options opts;
    char *unix_path;
    int fd;
    int port;
    struct MHD_Daemon *daemon;
    listener_handler *handler;
    void *state;
    atomic_uint_fast64_t requests, bytes_in, active;
    pthread_mutex_t lock;
    /* guarded by lock */
    struct hold *oldest, *newest;
    uint64_t held;
    bool stopping;
};

/* One request from its first header to the last byte of its answer. */
struct call {
    struct listener *listener;
    struct request req;
    struct buf body;
    struct hold hold;
    int status; /* once answered */
    bool too_large;
};

/* ---- holds ----------------------------------------------------------------------- */

static void unlink_deadline_locked(struct listener *l, struct hold *h)
{
    *(h->prev ? &h->prev->next : &l->oldest) = h->next;
    *(h->next ? &h->next->prev : &l->newest) = h->prev;
    h->next = h->prev = NULL;
    h->on = NULL;
    l->held--;
}

static void unlink_waiter_locked(struct hold *h)
{
    struct hold **p = &h->on->first;
    while (*p != h)
        p = &(*p)->next_waiter;
    *p = h->next_waiter;
    h->next_waiter = NULL;
}

/* Suspend and wait for w; when w has fired already, resume at once. */
static void hold_call(struct listener *l, struct hold *h, struct waitlist *w,
                      struct MHD_Connection *conn)
{
    h->conn = conn;
    h->timed_out = false;
    MHD_suspend_connection(conn);
    pthread_mutex_lock(&l->lock);
    bool at_once = w->fired || l->stopping;
    if (at_once) {
        h->timed_out = !w->fired;
    } else {
        h->deadline_ns = clock_deadline_ns(l->opts.clock, l->opts.hold_ms);
        h->on = w;
        h->next_waiter = w->first;
        w->first = h;
        h->prev = l->newest;
        h->next = NULL;
        *(l->newest ? &l->newest->next : &l->oldest) = h;
        l->newest = h;
        l->held++;
    }
    pthread_mutex_unlock(&l->lock);
    if (at_once)
        MHD_resume_connection(conn);
}

void listener_wake(struct listener *l, struct waitlist *w)
{
    pthread_mutex_lock(&l->lock);
    w->fired = true;
    struct hold *woken = w->first;
    w->first = NULL;
    for (struct hold *h = woken; h; h = h->next_waiter)
        unlink_deadline_locked(l, h);
    pthread_mutex_unlock(&l->lock);
    while (woken) {
        struct hold *next = woken->next_waiter;
        woken->next_waiter = NULL;
        /* After this call the request may be answered and freed at any time. */
        MHD_resume_connection(woken->conn);
        woken = next;
    }
}

void listener_rearm(struct listener *l, struct waitlist *w)
{
    pthread_mutex_lock(&l->lock);
    w->fired = false;
    pthread_mutex_unlock(&l->lock);
}

bool listener_waits(struct listener *l, const struct waitlist *w)
{
    pthread_mutex_lock(&l->lock);
    bool waits = w->first != NULL;
    pthread_mutex_unlock(&l->lock);
    return waits;
}

/* The oldest hold if its time is up (or always, when stopping), unlinked. */
static struct hold *take_expired(struct listener *l, int64_t now_ns)
{
    pthread_mutex_lock(&l->lock);
    struct hold *h = l->oldest;
    if (h && (l->stopping || h->deadline_ns <= now_ns)) {
        unlink_waiter_locked(h);
        unlink_deadline_locked(l, h);
        h->timed_out = true;
    } else {
        h = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    return h;
}

void listener_expire(struct listener *l)
{
    int64_t now_ns = clock_now_ns(l->opts.clock);
    struct hold *h;
    while ((h = take_expired(l, now_ns)) != NULL)
        MHD_resume_connection(h->conn);
}

/* ---- one request --------------------------------------------------------------------- */

static const char *query_value(const struct request *req, const char *name)
{
    return MHD_lookup_connection_value(req->transport, MHD_GET_ARGUMENT_KIND, name);
}

static const char *header(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
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
    req->content_type = header(conn, "Content-Type");
    req->content_encoding = header(conn, "Content-Encoding");
    req->accept = header(conn, "Accept");
    req->api_key = header(conn, "X-API-Key");
    req->authorization = header(conn, "Authorization");
    req->host = header(conn, "Host");
    req->origin = header(conn, "Origin");
    req->tls = l->opts.tls_cert != NULL;
    req->query = query_value;
    req->transport = conn;
    const char *length = header(conn, "Content-Length");
    unsigned long long n = length ? strtoull(length, NULL, 10) : 0;
    c->too_large = n > l->opts.max_body || (n && !buf_reserve(&c->body, (size_t)n));
    atomic_fetch_add(&l->active, 1);
    return c;
}

static void call_free(struct call *c)
{
    if (c->req.context_free)
        c->req.context_free(c->req.context);
    atomic_fetch_sub(&c->listener->active, 1);
    arena_clear(&c->req.arena);
    buf_clear(&c->body);
    free(c);
}

static bool is_stopping(struct listener *l)
{
    pthread_mutex_lock(&l->lock);
    bool stopping = l->stopping;
    pthread_mutex_unlock(&l->lock);
    return stopping;
}

static ssize_t read_stream(void *cls, uint64_t pos, char *out, size_t max)
{
    struct call *c = cls;
    struct stream *s = c->req.context;
    (void)pos;
    ssize_t n = stream_read(s, out, max);
    if (n < 0 || (n == 0 && is_stopping(c->listener)))
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0)
        hold_call(c->listener, &c->hold, stream_waitlist(s), c->req.transport);
    return n;
}

static void drop_stream(void *context)
{
    stream_abandon(context);
    stream_unref(context);
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

static enum MHD_Result answer(struct call *c, struct MHD_Connection *conn, struct response *res)
{
    if (!buf_ok(&res->body))
        response_error(res, 500, "out of memory while writing the answer");
    struct MHD_Response *r = make_response(c, res);
    buf_clear(&res->body);
    if (!r)
        return MHD_NO;
    if (res->content_type)
        MHD_add_response_header(r, "Content-Type", res->content_type);
    for (size_t i = 0; i < res->n_headers; i++)
        MHD_add_response_header(r, res->headers[i].name, res->headers[i].value);
    c->status = res->status;
    enum MHD_Result queued = MHD_queue_response(conn, (unsigned)res->status, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result handle(struct call *c, struct MHD_Connection *conn)
{
    struct listener *l = c->listener;
    struct response res;
    response_init(&res);
    c->req.body = c->body.data ? c->body.data : "";
    c->req.n_body = c->body.len;
    c->req.timed_out = c->hold.timed_out;
    c->hold.timed_out = false;
    l->handler(l->state, &c->req, &res);
    if (res.wait && c->req.timed_out && is_stopping(l))
        response_error(&res, 503, "the server is stopping");
    if (res.wait) {
        buf_clear(&res.body);
        hold_call(l, &c->hold, res.wait, conn);
        return MHD_YES;
    }
    return answer(c, conn, &res);
}

static enum MHD_Result refuse(struct call *c, struct MHD_Connection *conn)
{
    struct response res;
    response_init(&res);
    response_error(&res, 413, "request body is larger than %zu bytes", c->listener->opts.max_body);
    response_header(&res, "Connection", "close");
    return answer(c, conn, &res);
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
        return c->too_large ? refuse(c, conn) : MHD_YES;
    }
    if (*n_upload) {
        buf_append(&c->body, upload, *n_upload);
        atomic_fetch_add(&l->bytes_in, *n_upload);
        *n_upload = 0;
        return MHD_YES;
    }
    if (!buf_ok(&c->body))
        return refuse(c, conn);
    return handle(c, conn);
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
    log_line(l->opts.log, LOG_INFO, "%s %s %d %.1fms in=%zu%s", c->req.method, c->req.path,
             c->status, (double)(clock_now_ns(l->opts.clock) - c->req.started_ns) / 1e6,
             c->body.len, code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "" : " aborted");
    call_free(c);
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

/* ---- sockets ----------------------------------------------------------------------- */

bool listener_is_loopback(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;
    if (strcasecmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int listen_unix(struct listener *l, tinker_error *err)
{
    struct sockaddr_un sa = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(l->unix_path) >= sizeof(sa.sun_path)) {
        err_set(err, TINKER_EINVAL, "socket path is too long: %s", l->unix_path);
        return -1;
    }
    memcpy(sa.sun_path, l->unix_path, strlen(l->unix_path) + 1);
    /* A socket left behind by a dead server is replaced, anything else is not. */
    if (lstat(l->unix_path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(l->unix_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
        chmod(l->unix_path, 0600) == 0 && listen(fd, 1024) == 0)
        return fd;
    err_errno(err, "listen on", l->unix_path);
    if (fd >= 0)
        close(fd);
    return -1;
}

static int bound_port(int fd)
{
    struct sockaddr_storage ss;
    socklen_t n = sizeof(ss);
    if (getsockname(fd, (struct sockaddr *)&ss, &n) != 0)
        return 0;
    return ss.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&ss)->sin6_port)
                                    : ntohs(((struct sockaddr_in *)&ss)->sin_port);
}

static int listen_tcp(struct listener *l, tinker_error *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    char port[16], place[300];
    snprintf(port, sizeof(port), "%d", l->opts.port);
    snprintf(place, sizeof(place), "%s:%d", l->opts.host, l->opts.port);
    int rc = getaddrinfo(l->opts.host, port, &hints, &list);
    if (rc != 0) {
        err_set(err, TINKER_EINVAL, "listen on %s: %s", place, gai_strerror(rc));
        return -1;
    }
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    bool ok = fd >= 0 && bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, 4096) == 0;
    freeaddrinfo(list);
    if (ok) {
        l->port = bound_port(fd);
        return fd;
    }
    err_errno(err, "listen on", place);
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Every held poll is a descriptor: take what the system allows. */
static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
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
    pthread_mutex_init(&l->lock, NULL);
    raise_descriptor_limit();
    l->unix_path = opts->unix_path ? strdup(opts->unix_path) : NULL;
    l->fd = l->unix_path ? listen_unix(l, err) : listen_tcp(l, err);
    if (l->fd < 0) {
        free(l->unix_path);
        pthread_mutex_destroy(&l->lock);
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
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, l, MHD_OPTION_EXTERNAL_LOGGER, on_library_message, l,
        MHD_OPTION_LISTEN_SOCKET, l->fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, l,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)l->opts.max_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, 120u, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
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
    pthread_mutex_lock(&l->lock);
    out->held = l->held;
    pthread_mutex_unlock(&l->lock);
    out->requests = atomic_load(&l->requests);
    out->bytes_in = atomic_load(&l->bytes_in);
    out->active = atomic_load(&l->active);
}

static void wait_for_answers(struct listener *l, int64_t timeout_ms)
{
    int64_t deadline = clock_deadline_ns(clock_real(), timeout_ms);
    struct timespec pause = { 0, 5 * 1000 * 1000 };
    while (atomic_load(&l->active) && clock_now_ns(clock_real()) < deadline) {
        listener_expire(l);
        nanosleep(&pause, NULL);
    }
    listener_expire(l);
}

void listener_close(struct listener *l, int64_t timeout_ms)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_mutex_unlock(&l->lock);
    if (l->daemon) {
        MHD_quiesce_daemon(l->daemon);
        wait_for_answers(l, timeout_ms);
        MHD_stop_daemon(l->daemon);
    }
    close(l->fd);
    if (l->unix_path)
        unlink(l->unix_path);
    free(l->unix_path);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
