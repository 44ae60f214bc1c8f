/* fake_server.c - see fake_server.h.  One thread, epoll, non-blocking sockets. */
#include "support/fake_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/os.h"
#include "base/rand.h"

enum { TRICKLE_YIELDS = 4 };

struct conn {
    struct conn *next, **at; /* at: what points to it */
    int fd, number;
    struct buf in, out;
    size_t sent;
    bool held, close_after, dripping, reset;
    const struct fake_request *request; /* being answered */
    struct fake_reply reply;            /* body owned */
    int64_t due_ns;                     /* INT64_MAX: never by itself */
};

static const int64_t DRIP_NS = 1000000000;

struct script {
    struct script *next;
    char path[256];
    struct fake_reply reply; /* body owned */
};

struct fake_server {
    struct clock *clock;
    fake_handler *handler;
    void *state;
    int listen, epoll, wake, port;
    char url[64];
    pthread_t thread;
    pthread_mutex_t lock; /* everything below, and the connections */
    bool stop, refuse, forget, trickle;
    char cut_path[256]; /* "": none */
    size_t cut_at, n_cuts;
    enum fake_cut cut_how;
    struct rng rng;
    int cut_percent;
    struct conn *conns;
    int n_conns;
    int64_t next_due_ns; /* no held answer is due before */
    struct script *scripts;
    struct fake_request **requests;
    size_t n_requests, cap;
};

static void die(const char *what)
{
    fprintf(stdout, "# fake server: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* Does the path of a request, without its query, equal this one? */
static bool path_is(const char *path, const char *want)
{
    size_t n = strcspn(path, "?");
    return !want || (strlen(want) == n && memcmp(path, want, n) == 0);
}

/* ---- connections --------------------------------------------------------------------- */

static void request_free(struct fake_request *r)
{
    free(r->headers);
    free(r->body);
    free(r);
}

/* The request of c is over. */
static void conn_forget(struct fake_server *s, struct conn *c)
{
    if (s->forget && c->request)
        request_free((struct fake_request *)c->request);
    if (s->forget)
        c->request = NULL;
}

static void conn_close(struct fake_server *s, struct conn *c)
{
    conn_forget(s, c);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* a child process may still have it open */
    if (c->reset) /* closing then discards what is unsent and resets the connection */
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
    close(c->fd);
    buf_clear(&c->in);
    buf_clear(&c->out);
    free((char *)c->reply.body);
    free(c);
}

static void conn_watch(struct fake_server *s, struct conn *c)
{
    struct epoll_event ev = { .data.ptr = c };
    ev.events = EPOLLIN | EPOLLRDHUP | (c->sent < c->out.len ? (uint32_t)EPOLLOUT : 0);
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &ev);
}

/* false: the connection is gone */
static bool conn_flush(struct fake_server *s, struct conn *c)
{
    while (c->sent < c->out.len) {
        size_t left = s->trickle ? 1 : c->out.len - c->sent;
        ssize_t n = send(c->fd, c->out.data + c->sent, left, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            conn_close(s, c);
            return false;
        }
        c->sent += (size_t)n;
        for (int i = 0; s->trickle && i < TRICKLE_YIELDS; i++)
            sched_yield(); /* so that the reader sees this byte before the next is there */
    }
    if (c->sent == c->out.len) {
        buf_reset(&c->out);
        c->sent = 0;
        if (c->close_after) {
            conn_close(s, c);
            return false;
        }
    }
    conn_watch(s, c);
    return true;
}

/* ---- answers -------------------------------------------------------------------------- */

static struct fake_reply copy_reply(struct fake_reply r)
{
    size_t n = r.len ? r.len : r.body ? strlen(r.body) : 0;
    char *body = malloc(n + 1);
    if (n)
        memcpy(body, r.body, n);
    body[n] = '\0';
    r.body = body;
    r.len = n;
    return r;
}

static bool take_script(struct fake_server *s, const char *path, struct fake_reply *out)
{
    for (struct script **at = &s->scripts; *at; at = &(*at)->next) {
        struct script *x = *at;
        if (!path_is(path, x->path))
            continue;
        *out = copy_reply(x->reply);
        if (x->reply.times < 0)
            return true;
        if (x->reply.times > 1) {
            x->reply.times--;
            return true;
        }
        *at = x->next;
        free((char *)x->reply.body);
        free(x);
        return true;
    }
    return false;
}

static void hold(struct fake_server *s, struct conn *c, int64_t due_ns)
{
    c->held = true;
    c->due_ns = due_ns;
    if (due_ns < s->next_due_ns)
        s->next_due_ns = due_ns;
}

static bool drip(struct fake_server *s, struct conn *c)
{
    buf_putc(&c->out, ' ');
    hold(s, c, clock_now_ns(s->clock) + DRIP_NS);
    return conn_flush(s, c);
}

/* Shorten the response out[start..) if it is to be cut. */
static void cut_response(struct fake_server *s, struct conn *c, const char *path, size_t start)
{
    size_t len = c->out.len - start, at = len;
    bool reset = false;
    if (s->cut_path[0] && path_is(path, s->cut_path)) {
        at = s->cut_at;
        reset = s->cut_how == FAKE_CUT_RST;
        s->cut_path[0] = '\0';
    } else if (s->cut_percent > 0 && rng_next(&s->rng) % 100 < (uint64_t)s->cut_percent) {
        at = rng_next(&s->rng) % len;
        reset = rng_next(&s->rng) % 2;
    }
    if (at >= len)
        return;
    c->out.len = start + at;
    c->close_after = true;
    c->reset = reset;
    s->n_cuts++;
}

/* Write the answer of a held request; false: the connection is gone. */
static bool answer(struct fake_server *s, struct conn *c)
{
    struct fake_reply *r = &c->reply;
    c->held = false;
    if (r->fault == FAKE_DROP) {
        conn_close(s, c);
        return false;
    }
    if (r->fault == FAKE_DRIP && c->dripping)
        return drip(s, c);
    char path[512];
    snprintf(path, sizeof(path), "%s", c->request->path);
    if (r->fault != FAKE_OPEN && r->fault != FAKE_DRIP) /* else its path is asked for */
        conn_forget(s, c);
    size_t start = c->out.len;
    int status = r->status ? r->status : 200;
    buf_printf(&c->out, "HTTP/1.1 %d X\r\n", status);
    if (r->len || r->content_type)
        buf_printf(&c->out, "Content-Type: %s\r\n",
                   r->content_type ? r->content_type : "application/json");
    if (r->headers)
        buf_puts(&c->out, r->headers);
    if (r->fault == FAKE_OPEN)
        buf_puts(&c->out, "\r\n");
    else if (r->fault == FAKE_DRIP)
        buf_puts(&c->out, "Content-Length: 100000000\r\n\r\n");
    else if (r->fault == FAKE_NO_LENGTH)
        buf_puts(&c->out, "Connection: close\r\n\r\n");
    else
        buf_printf(&c->out, "Content-Length: %zu\r\n\r\n",
                   r->fault == FAKE_TRUNCATE ? r->len + 10 : r->len);
    buf_append(&c->out, r->body, r->len);
    if (r->fault == FAKE_TWICE && buf_reserve(&c->out, c->out.len - start))
        buf_append(&c->out, c->out.data + start, c->out.len - start);
    c->close_after = r->fault == FAKE_TRUNCATE || r->fault == FAKE_NO_LENGTH;
    cut_response(s, c, path, start);
    free((char *)r->body);
    r->body = NULL;
    r->len = 0;
    c->dripping = r->fault == FAKE_DRIP;
    if (c->dripping || r->fault == FAKE_OPEN)
        hold(s, c, c->dripping ? clock_now_ns(s->clock) + DRIP_NS : INT64_MAX);
    return conn_flush(s, c);
}

static bool parse(struct fake_server *s, struct conn *c);

static bool answer_due(struct fake_server *s, struct conn *c)
{
    if (!c->held || c->due_ns > clock_now_ns(s->clock))
        return true;
    return answer(s, c) && parse(s, c);
}

/* ---- requests -------------------------------------------------------------------------- */

static void record(struct fake_server *s, struct fake_request *r)
{
    if (s->n_requests == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 256;
        s->requests = realloc(s->requests, s->cap * sizeof(*s->requests));
    }
    r->index = s->n_requests;
    s->requests[s->n_requests++] = r;
}

static const char *find_header(const char *block, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = block; line && *line;) {
        if (strncasecmp(line, name, n) == 0 && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " ");
        line = strstr(line, "\r\n");
        line = line ? line + 2 : NULL;
    }
    return NULL;
}

/* Take one complete request out of the input; false: the connection is gone. */
static bool parse(struct fake_server *s, struct conn *c)
{
    if (c->held || !c->in.data)
        return true;
    char *end = strstr(c->in.data, "\r\n\r\n");
    if (!end)
        return true;
    size_t head = (size_t)(end - c->in.data) + 4;
    char *line_end = strstr(c->in.data, "\r\n");
    struct fake_request *r = calloc(1, sizeof(*r));
    r->headers = strndup(line_end + 2, head - (size_t)(line_end + 2 - c->in.data) - 2);
    const char *length = find_header(r->headers, "Content-Length");
    r->len = length ? strtoul(length, NULL, 10) : 0;
    if (c->in.len < head + r->len) {
        free(r->headers);
        free(r);
        return true;
    }
    sscanf(c->in.data, "%7s %511s", r->method, r->path);
    r->body = malloc(r->len + 1);
    memcpy(r->body, c->in.data + head, r->len);
    r->body[r->len] = '\0';
    r->at_ms = clock_now_ms(s->clock);
    r->conn = c->number;
    if (!s->forget)
        record(s, r);
    size_t used = head + r->len;
    memmove(c->in.data, c->in.data + used, c->in.len - used + 1);
    c->in.len -= used;
    c->request = r;
    bool scripted = take_script(s, r->path, &c->reply);
    if (!scripted || c->reply.by_handler) {
        int64_t delay_ms = scripted ? c->reply.delay_ms : 0;
        if (scripted)
            free((char *)c->reply.body);
        memset(&c->reply, 0, sizeof(c->reply));
        s->handler(s->state, r, &c->reply);
        c->reply.delay_ms += delay_ms;
        if (!c->reply.len && c->reply.body)
            c->reply.len = strlen(c->reply.body);
    }
    hold(s, c,
         c->reply.fault == FAKE_HANG ? INT64_MAX
                                     : clock_now_ns(s->clock) + c->reply.delay_ms * 1000000);
    return answer_due(s, c);
}

static void conn_read(struct fake_server *s, struct conn *c)
{
    char chunk[65536];
    ssize_t n;
    while ((n = recv(c->fd, chunk, sizeof(chunk), 0)) > 0)
        buf_append(&c->in, chunk, (size_t)n);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        conn_close(s, c);
        return;
    }
    parse(s, c);
}

static void accept_all(struct fake_server *s)
{
    int fd;
    while ((fd = accept(s->listen, NULL, NULL)) >= 0) {
        if (s->refuse) {
            close(fd);
            continue;
        }
        fcntl(fd, F_SETFL, O_NONBLOCK);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)); /* drips go out now */
        struct conn *c = calloc(1, sizeof(*c));
        c->fd = fd;
        c->number = s->n_conns++;
        buf_init(&c->in, SIZE_MAX / 4);
        buf_init(&c->out, SIZE_MAX / 4);
        c->next = s->conns;
        c->at = &s->conns;
        if (c->next)
            c->next->at = &c->next;
        s->conns = c;
        struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = c };
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev);
    }
}

static int64_t next_due_locked(const struct fake_server *s)
{
    int64_t next = INT64_MAX;
    for (const struct conn *c = s->conns; c; c = c->next)
        if (c->held && c->due_ns < next)
            next = c->due_ns;
    return next;
}

static void answer_all_due(struct fake_server *s)
{
    if (s->next_due_ns > clock_now_ns(s->clock))
        return;
    for (struct conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        answer_due(s, c);
    }
    s->next_due_ns = next_due_locked(s);
}

static void *server_main(void *arg)
{
    struct fake_server *s = arg;
    struct epoll_event events[256];
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        int ms = s->clock->poll_ms(s->clock, s->next_due_ns);
        pthread_mutex_unlock(&s->lock);
        int n = epoll_wait(s->epoll, events, 256, ms);
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < n; i++) {
            void *p = events[i].data.ptr;
            if (p == &s->wake)
                os_event_drain(s->wake);
            else if (p == &s->listen)
                accept_all(s);
            else if (!(events[i].events & EPOLLOUT) || conn_flush(s, p))
                conn_read(s, p);
        }
        answer_all_due(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- public ---------------------------------------------------------------------------- */

struct fake_server *fake_server_start(struct clock *clock, fake_handler *handler, void *state)
{
    struct fake_server *s = calloc(1, sizeof(*s));
    s->clock = clock;
    s->next_due_ns = INT64_MAX;
    s->handler = handler;
    s->state = state;
    pthread_mutex_init(&s->lock, NULL);
    s->listen = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    if (bind(s->listen, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(s->listen, 4096) != 0 ||
        getsockname(s->listen, (struct sockaddr *)&a, &len) != 0)
        die("listen");
    s->port = ntohs(a.sin_port);
    snprintf(s->url, sizeof(s->url), "http://127.0.0.1:%d", s->port);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = os_event_open();
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &s->wake };
    epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &ev);
    ev.data.ptr = &s->listen;
    epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listen, &ev);
    if (pthread_create(&s->thread, NULL, server_main, s) != 0)
        die("thread");
    return s;
}

void fake_server_stop(struct fake_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_mutex_unlock(&s->lock);
    fake_wake(s);
    pthread_join(s->thread, NULL);
    while (s->conns)
        conn_close(s, s->conns);
    for (struct script *x; (x = s->scripts) != NULL;) {
        s->scripts = x->next;
        free((char *)x->reply.body);
        free(x);
    }
    for (size_t i = 0; i < s->n_requests; i++)
        request_free(s->requests[i]);
    free(s->requests);
    close(s->listen);
    close(s->epoll);
    close(s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

const char *fake_server_url(const struct fake_server *s)
{
    return s->url;
}

int fake_server_port(const struct fake_server *s)
{
    return s->port;
}

void fake_script(struct fake_server *s, const char *path, struct fake_reply reply)
{
    struct script *x = calloc(1, sizeof(*x));
    snprintf(x->path, sizeof(x->path), "%s", path);
    x->reply = copy_reply(reply);
    pthread_mutex_lock(&s->lock);
    struct script **at = &s->scripts;
    while (*at)
        at = &(*at)->next;
    *at = x;
    pthread_mutex_unlock(&s->lock);
}

void fake_unscript(struct fake_server *s, const char *path)
{
    pthread_mutex_lock(&s->lock);
    for (struct script **at = &s->scripts; *at;) {
        struct script *x = *at;
        if (strcmp(x->path, path) != 0) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        free((char *)x->reply.body);
        free(x);
    }
    pthread_mutex_unlock(&s->lock);
}

void fake_cut(struct fake_server *s, const char *path, size_t at, enum fake_cut how)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->cut_path, sizeof(s->cut_path), "%s", path);
    s->cut_at = at;
    s->cut_how = how;
    pthread_mutex_unlock(&s->lock);
}

void fake_cut_randomly(struct fake_server *s, uint64_t seed, int percent)
{
    pthread_mutex_lock(&s->lock);
    rng_seed(&s->rng, seed);
    s->cut_percent = percent;
    pthread_mutex_unlock(&s->lock);
}

void fake_trickle(struct fake_server *s, bool trickle)
{
    pthread_mutex_lock(&s->lock);
    s->trickle = trickle;
    pthread_mutex_unlock(&s->lock);
}

size_t fake_cuts(struct fake_server *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_cuts;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void fake_release(struct fake_server *s, const char *path)
{
    pthread_mutex_lock(&s->lock);
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->held && path_is(c->request->path, path)) {
            c->due_ns = s->next_due_ns = 0;
            if (c->reply.fault == FAKE_HANG)
                c->reply.fault = FAKE_NONE;
        }
    pthread_mutex_unlock(&s->lock);
    fake_wake(s);
}

void fake_forget(struct fake_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->forget = !s->conns;
    pthread_mutex_unlock(&s->lock);
}

void fake_refuse(struct fake_server *s, bool refuse)
{
    pthread_mutex_lock(&s->lock);
    s->refuse = refuse;
    pthread_mutex_unlock(&s->lock);
}

size_t fake_count(struct fake_server *s, const char *path)
{
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_requests; i++)
        n += path_is(s->requests[i]->path, path);
    pthread_mutex_unlock(&s->lock);
    return n;
}

const struct fake_request *fake_get(struct fake_server *s, const char *path, size_t i)
{
    const struct fake_request *r = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t k = 0; k < s->n_requests && !r; k++)
        if (path_is(s->requests[k]->path, path) && i-- == 0)
            r = s->requests[k];
    pthread_mutex_unlock(&s->lock);
    return r;
}

bool fake_await(struct fake_server *s, const char *path, size_t n)
{
    for (int i = 0; i < 20000; i++) {
        if (fake_count(s, path) >= n)
            return true;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return false;
}

const char *fake_header(const struct fake_request *r, const char *name, char out[512])
{
    const char *v = r ? find_header(r->headers, name) : NULL;
    if (!v)
        return NULL;
    snprintf(out, 512, "%.*s", (int)strcspn(v, "\r\n"), v);
    return out;
}

void fake_wake(struct fake_server *s)
{
    os_event_signal(s->wake);
}

int fake_held_on(struct fake_server *s, const char *path)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (const struct conn *c = s->conns; c; c = c->next)
        n += c->held && path_is(c->request->path, path);
    pthread_mutex_unlock(&s->lock);
    return n;
}

int fake_held(struct fake_server *s)
{
    return fake_held_on(s, NULL);
}

int64_t fake_next_ns(struct fake_server *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t next = next_due_locked(s);
    pthread_mutex_unlock(&s->lock);
    return next;
}

int fake_connections(struct fake_server *s)
{
    pthread_mutex_lock(&s->lock);
    int n = s->n_conns;
    pthread_mutex_unlock(&s->lock);
    return n;
}
