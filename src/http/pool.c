/* pool.c - which connection group carries a request, and what happens when one is bad.
 *
 * Invariants: pool->active is the sum of the clients' counts; a retired client takes no
 * new request and is freed when its last one ends; a waiting request is in the pool's
 * list and on no client.  Runs on the loop thread. */
#include "base/array.h"
#include "http/pool_impl.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include "base/err.h"

/* curl_global_init() is not thread-safe in older versions, hence the once. */
static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static CURLcode init_code;

static void init_curl(void)
{
    init_code = curl_global_init(CURL_GLOBAL_ALL);
}

tinker_status http_global_init(tinker_error *err)
{
    pthread_once(&init_once, init_curl);
    if (init_code != CURLE_OK)
        return err_set(err, TINKER_ESTATE, "libcurl: %s", curl_easy_strerror(init_code));
    return TINKER_OK;
}

/* ---- clients ------------------------------------------------------------------------ */

static void count_sockets(struct http_client *c, int delta);

static void client_free(struct http_client *c)
{
    struct http_pool *p = c->pool;
    for (struct http_client **at = &p->clients; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    loop_disarm_real(p->loop, &c->timer);
    /* Cleaning up may call on_curl_timer() and arm the timer again: it is disarmed before and after. */
    curl_multi_cleanup(c->multi); /* closes its sockets */
    if (c->sockets)               /* closed without a word */
        count_sockets(c, -c->sockets);
    free(c->kept);
    loop_disarm_real(p->loop, &c->timer);
    free(c);
}

/* Free clients without a request, and with them the idle connections they keep. */
void pool_drop_unused(struct http_pool *p)
{
    for (struct http_client *c = p->clients, *next; c; c = next) {
        next = c->next;
        if (c->active == 0 && !c->draining)
            client_free(c);
    }
}

static void client_free_if_unused(struct http_client *c)
{
    if (c->retired && c->active == 0 && !c->draining)
        client_free(c);
}

static void request_ended(struct http_request *r);

/* Hand out the transfers that curl reports as finished. */
static void client_drain(struct http_client *c)
{
    /* A completion may start or cancel requests, which comes back here; the outer call goes on with
     * whatever they left to hand out. */
    if (c->draining)
        return;
    c->draining = true;
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
        if (m->msg != CURLMSG_DONE)
            continue;
        char *private = NULL;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
        struct http_request *r = (struct http_request *)(void *)private;
        transfer_complete(r, code);
        request_ended(r);
    }
    c->draining = false;
    if (c->pool->in_free) /* freed by one of its completions */
        http_pool_free(c->pool);
    else
        client_free_if_unused(c);
}

/* ---- curl's side: sockets to watch and timers to keep, see curl_multi_socket_action(3) ---------- */

/* The loop calls this when epoll reports the socket. */
static void client_ready(void *arg, int fd, unsigned events)
{
    struct http_client *c = arg;
    /* A half-closed peer is something to read: curl reads until the end and sees it. */
    int mask = (events & (EPOLLIN | EPOLLRDHUP) ? CURL_CSELECT_IN : 0) |
               (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
    int running;
    /* This may call nearly every callback of this file and of transfer.c before it returns. */
    curl_multi_socket_action(c->multi, fd, mask, &running);
    client_drain(c);
}

/* CURL_SOCKET_TIMEOUT lets curl look at its own timers and start handles that were just
 * added. */
static void client_timer(struct timer *t)
{
    struct http_client *c = container_of(t, struct http_client, timer);
    int running;
    curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    client_drain(c);
}

/* CURLMOPT_SOCKETFUNCTION: curl wants fd watched for what, or no longer. */
static int on_curl_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *unused)
{
    (void)unused;
    struct http_client *c = arg;
    char *private = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    const struct http_request *r = (struct http_request *)(void *)private;
    /* Between two requests a connection stays with the kernel.  Other descriptors (of the
     * resolver, of attempts to connect) are closed without a word. */
    bool connected = r && transfer_connected(r);
    if (what == CURL_POLL_REMOVE && connected) {
        loop_park(c->pool->loop, fd);
        return 0;
    }
    if (!connected)
        loop_unwatch(c->pool->loop, fd);
    if (what == CURL_POLL_REMOVE)
        return 0;
    unsigned events = (what & CURL_POLL_IN ? (unsigned)EPOLLIN : 0) |
                      (what & CURL_POLL_OUT ? (unsigned)EPOLLOUT : 0);
    /* -1 makes curl fail the transfers of this multi handle. */
    return loop_watch(c->pool->loop, fd, events, client_ready, c) ? 0 : -1;
}

/* curl's own timers run on the real clock, also in tests with a fake one: it measures with it. */
static int on_curl_timer(CURLM *multi, long ms, void *arg)
{
    (void)multi;
    struct http_client *c = arg;
    if (ms < 0)
        loop_disarm_real(c->pool->loop, &c->timer);
    else
        loop_arm_real(c->pool->loop, &c->timer, ms);
    return 0;
}

static struct http_client *client_new(struct http_pool *p)
{
    struct http_client *c = calloc(1, sizeof(*c));
    CURLM *multi = curl_multi_init();
    if (!c || !multi) {
        free(c);
        curl_multi_cleanup(multi);
        return NULL;
    }
    c->pool = p;
    c->multi = multi;
    c->timer.fire = client_timer;
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_curl_socket);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_curl_timer);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, c);
    /* Several requests on one HTTP/2 connection. */
    curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX);
    /* what a client keeps open is what it may need at once */
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)p->opts.per_client + 1);
    /* at the end: older clients are filled first, and those at the end become idle and can go */
    struct http_client **at = &p->clients;
    while (*at)
        at = &(*at)->next;
    *at = c;
    return c;
}

/* A client that keeps a socket for which it has no request; NULL: none. */
static struct http_client *find_unused(const struct http_pool *p)
{
    for (struct http_client *c = p->clients; c; c = c->next)
        if (!c->retired && c->active < p->opts.per_client && c->sockets > c->active)
            return c;
    return NULL;
}

/* A connection of the client was bad: it takes no further request, and its end is that of its last
 * one.  The next request gets fresh connections. */
void pool_retire(struct http_client *c)
{
    if (!c->retired) {
        c->retired = true;
        c->pool->retired++;
    }
}

/* ---- what waits --------------------------------------------------------------------- */

enum { DESCRIPTOR_MS = 100 }; /* until it is tried again whether one is free */

/* On the real clock and through the loop even with delay 0, so that a request never begins
 * inside the callback that made room for it. */
void pool_wake(struct http_pool *p, int64_t delay_ms)
{
    if (p->waiting && !p->in_free)
        loop_arm_real(p->loop, &p->wake, delay_ms);
}

/* Others may have a use for what became free. */
static void wake_waiting(struct http_pool *p)
{
    if (p->opts.budget)
        socket_budget_wake(p->opts.budget);
    else
        pool_wake(p, 0);
}

/* A request that is being connected may open a socket at any moment, so it counts as one. */
void pool_count_connecting(struct http_request *r, bool connecting)
{
    struct http_pool *p = r->pool;
    if (r->connecting == connecting)
        return;
    int delta = connecting ? 1 : -1;
    r->connecting = connecting;
    r->client->connecting += delta;
    p->connecting += delta;
    if (p->opts.budget)
        p->opts.budget->connecting += delta;
    if (!connecting)
        wake_waiting(p);
}

/* The three sums change together; what became free may be what another pool waits for. */
static void count_sockets(struct http_client *c, int delta)
{
    struct http_pool *p = c->pool;
    c->sockets += delta;
    p->sockets += delta;
    if (p->opts.budget)
        p->opts.budget->sockets += delta;
    if (delta < 0)
        wake_waiting(p);
}

/* curl opens several sockets for one request when it tries IPv6 and IPv4 side by side (RFC 8305).
 * Which of them became the connection is known only later, by its local port. */
void pool_socket_opened(struct http_request *r, int fd)
{
    if (r->n_opened < HTTP_OPENED_MAX)
        r->opened[r->n_opened] = fd;
    r->n_opened++;
    count_sockets(r->client, 1);
}

/* What was opened for r is closed, or is its connection. */
static void forget_opened(struct http_request *r)
{
    int n = r->n_opened;
    r->n_opened = 0;
    if (n)
        count_sockets(r->client, -n);
}

/* In host byte order; -1 when the socket is gone already. */
static int local_port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return -1;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

void pool_socket_connected(struct http_request *r, int local_port)
{
    int n = r->n_opened, fd = -1;
    if (n == 0)
        return; /* it has one that was open before */
    n = n < HTTP_OPENED_MAX ? n : HTTP_OPENED_MAX;
    for (int i = 0; i < n && fd < 0; i++)
        if (n == 1 || local_port_of(r->opened[i]) == local_port)
            fd = r->opened[i];
    struct http_client *c = r->client;
    if (fd >= 0 && c->n_kept == c->max_kept) {
        int max = c->max_kept ? 2 * c->max_kept : 4;
        int *v = realloc(c->kept, (size_t)max * sizeof(*v));
        if (v) {
            c->kept = v;
            c->max_kept = max;
        }
    }
    /* Without memory for it the connection is not counted.  Count it before the attempts are taken
     * off: the sum never shows less than is open. */
    if (fd >= 0 && c->n_kept < c->max_kept) {
        c->kept[c->n_kept++] = fd;
        count_sockets(c, 1);
    }
    forget_opened(r);
}

void pool_socket_closed(struct http_client *c, int fd)
{
    /* Order does not matter: the last one fills the gap. */
    for (int i = 0; i < c->n_kept; i++)
        if (c->kept[i] == fd) {
            c->kept[i] = c->kept[--c->n_kept];
            count_sockets(c, -1);
            return;
        }
}

static bool below_max(const struct http_pool *p)
{
    return p->opts.max_active <= 0 || p->active < p->opts.max_active;
}

/* Is there a socket for one more request, or may one be opened? */
static bool has_room(struct http_pool *p)
{
    /* Without a budget and with descriptors left nothing bounds sockets; only below_max()
     * counts. */
    if (!p->opts.budget && !p->starved)
        return true;
    if (find_unused(p))
        return true;
    /* Asked last: it may close idle connections of other pools to make room. */
    return !p->starved && (!p->opts.budget || socket_budget_allows(p->opts.budget, p));
}

static void tell_waiting(const struct http_pool *p, bool none_left)
{
    if (p->opts.on_wait)
        p->opts.on_wait(p->opts.on_wait_state, none_left);
}

/* ---- requests ----------------------------------------------------------------------- */

/* Begin r on a client; a failure to do so is reported from a timer, never from inside. */
static void request_begin(struct http_request *r)
{
    struct http_pool *p = r->pool;
    /* An idle connection first, when sockets are scarce; else the first client with room; else a
     * new one. */
    struct http_client *c = p->opts.budget ? find_unused(p) : NULL;
    for (struct http_client *o = p->clients; o && !c; o = o->next)
        if (!o->retired && o->active < p->opts.per_client)
            c = o;
    if (!c)
        c = client_new(p);
    if (c) {
        r->client = c;
        /* Both counts rise before transfer_begin(), whose callbacks may look at them. */
        c->active++;
        p->active++;
        if (transfer_begin(c, r))
            return;
        c->active--;
        p->active--;
        r->client = NULL;
    } else
        transfer_fail(r, HTTP_FAIL_NOMEM, "out of memory for a connection");
    loop_arm(p->loop, &r->timer, 0);
}

/* The list is first come, first served, and doubly linked because a timeout or a cancel
 * takes a request out of the middle. */
static void waiting_push(struct http_pool *p, struct http_request *r)
{
    r->next_waiting = NULL;
    r->prev_waiting = p->last_waiting;
    if (p->last_waiting)
        p->last_waiting->next_waiting = r;
    else
        p->waiting = r;
    p->last_waiting = r;
    p->n_waiting++;
}

static void waiting_remove(struct http_pool *p, struct http_request *r)
{
    *(r->prev_waiting ? &r->prev_waiting->next_waiting : &p->waiting) = r->next_waiting;
    *(r->next_waiting ? &r->next_waiting->prev_waiting : &p->last_waiting) = r->prev_waiting;
    r->next_waiting = r->prev_waiting = NULL;
    p->n_waiting--;
}

static bool is_waiting(const struct http_request *r)
{
    return r->prev_waiting || r->next_waiting || r->pool->waiting == r;
}

/* in_free: the pool is being freed, and what its last completions leave must not start
 * anything. */
static void begin_waiting(struct http_pool *p)
{
    while (p->waiting && !p->in_free && below_max(p) && has_room(p)) {
        struct http_request *next = p->waiting;
        waiting_remove(p, next);
        request_begin(next);
    }
}

static void pool_timer(struct timer *t)
{
    struct http_pool *p =
        (struct http_pool *)(void *)((char *)t - offsetof(struct http_pool, wake));
    /* Try a descriptor again now; if there still is none, the request comes back to
     * wait_for_descriptor(). */
    p->starved = false;
    begin_waiting(p);
}

/* It is on its client no more. */
static void leave_client(struct http_request *r)
{
    struct http_client *c = r->client;
    if (!c)
        return;
    pool_count_connecting(r, false);
    forget_opened(r);
    r->client = NULL;
    c->active--;
    c->pool->active--;
    client_free_if_unused(c);
}

void pool_release(struct http_request *r)
{
    /* Leave first: the place that this frees is the one the next request takes. */
    leave_client(r);
    begin_waiting(r->pool);
    if (r->pool->opts.budget)
        socket_budget_wake(r->pool->opts.budget);
}

/* Not an error: the request waits, as it would for a connection. */
static void wait_for_descriptor(struct http_request *r)
{
    struct http_pool *p = r->pool;
    /* http_request_clear() forgets these three, but the request goes on where it was, maybe
     * after a redirect. */
    size_t max = r->resp.body.max;
    char *location = r->location;
    bool as_get = r->as_get;
    r->location = NULL;
    http_request_clear(r);
    buf_init(&r->resp.head, 65536);
    buf_init(&r->resp.body, max);
    r->location = location;
    r->as_get = as_get;
    /* PHASE_ACQUIRE: it has no connection yet. */
    r->phase = 0;
    p->starved = true;
    leave_client(r);
    /* In front of all: it was its turn before. */
    r->prev_waiting = NULL;
    r->next_waiting = p->waiting;
    *(p->waiting ? &p->waiting->prev_waiting : &p->last_waiting) = r;
    p->waiting = r;
    p->n_waiting++;
    /* its time to wait began when there was none for the first time */
    int64_t now = loop_now_ns(p->loop);
    if (!r->lacking_ns)
        r->lacking_ns = now;
    r->active_ns = r->lacking_ns;
    transfer_arm(r, r->timeouts.acquire_ms - (now - r->lacking_ns) / 1000000);
    pool_wake(p, DESCRIPTOR_MS);
    tell_waiting(p, true);
}

/* The only way out of a request that is not canceled.  Which way: wait again, begin again at
 * another address, or done(). */
static void request_ended(struct http_request *r)
{
    transfer_end(r);
    /* Did it fail before it had a connection, because this process has no descriptor left?
     * Looking up names and reading certificates takes some, too, and fails without saying so. */
    bool failed = r->resp.failure == HTTP_FAIL_CONNECT || r->resp.failure == HTTP_FAIL_NOMEM;
    if (failed && (r->no_descriptor || (!transfer_connected(r) && !loop_can_open(r->pool->loop)))) {
        wait_for_descriptor(r);
        return;
    }
    /* Leave before beginning: the redirect may need the place that this request holds. */
    if (transfer_redirect(r)) {
        pool_release(r);
        request_begin(r);
        return;
    }
    /* An empty 400 comes from a proxy in front of the service that dislikes this connection: a new
     * one usually helps, so it counts as a connection error as long as the pool has had recent
     * successes to show for it. */
    struct http_pool *p = r->pool;
    const struct http_response *resp = &r->resp;
    if (resp->failure == HTTP_OK && resp->status == 400 && resp->length <= 0) {
        if (r->client)
            pool_retire(r->client);
        if (p->budget > 0) {
            p->budget--;
            transfer_fail(r, HTTP_FAIL_CONNECT, "empty response 400 from a proxy on the way");
        }
    } else if (resp->failure == HTTP_OK && resp->status >= 200 && resp->status < 300 &&
               p->budget < EDGE_BUDGET)
        p->budget++;
    pool_release(r);
    loop_disarm(r->pool->loop, &r->timer);
    r->running = false;
    /* Last: done() may free r or start it again. */
    r->done(r);
}

/* One timer per request serves all phases.  It may fire early, because activity only moves
 * active_ns; then it is armed for the rest. */
static void request_timer(struct timer *t)
{
    struct http_request *r = container_of(t, struct http_request, timer);
    struct loop *l = r->pool->loop;
    if (r->resp.failure == HTTP_OK) { /* else it could not even begin */
        const int64_t limits[] = { r->timeouts.acquire_ms, r->timeouts.connect_ms,
                                   r->timeouts.write_ms, r->timeouts.read_ms };
        static const char *const names[] = { "waiting for a connection", "connecting",
                                             "sending the request", "waiting for the response" };
        /* A paused request waits for its reader, so the silence is not the server's. */
        int64_t idle_ms = r->paused ? 0 : (loop_now_ns(l) - r->active_ns) / 1000000;
        bool late = transfer_left_ms(r) <= 0;
        if (!late && idle_ms < limits[r->phase]) {
            transfer_arm(r, limits[r->phase] - idle_ms);
            return;
        }
        const char *doing =
            is_waiting(r) && r->lacking_ns ? "waiting for a free file descriptor" : names[r->phase];
        if (late)
            transfer_fail(r, HTTP_FAIL_TIMEOUT, "not complete within %g s, still %s",
                          (double)r->total_ms / 1000, doing);
        else
            transfer_fail(r, HTTP_FAIL_TIMEOUT, "no progress for %g s while %s",
                          (double)limits[r->phase] / 1000, doing);
    }
    if (is_waiting(r))
        waiting_remove(r->pool, r);
    if (r->easy)
        loop_note_aborted(r->pool->loop);
    request_ended(r);
}

/* Loop thread.  r belongs to the caller and must stay until done() or http_cancel().  done()
 * is never called from inside. */
void http_start(struct http_pool *p, struct http_request *r)
{
    assert(loop_on_thread(p->loop) && !r->running);
    http_request_clear(r);
    buf_init(&r->resp.head, 65536);
    buf_init(&r->resp.body, r->max_response ? r->max_response : SIZE_MAX / 4);
    r->pool = p;
    r->timer.fire = request_timer;
    r->running = true;
    r->redirects = r->phase = 0;
    r->cross_origin = r->paused = false;
    r->active_ns = r->start_ns = loop_now_ns(p->loop);
    r->lacking_ns = 0;
    if (!below_max(p)) {
        waiting_push(p, r);
        transfer_arm(r, r->timeouts.acquire_ms);
    } else if (p->waiting || !has_room(p)) {
        /* First come, first served.  No timer is armed for this wait; it ends when a socket becomes
         * free, or with a cancel. */
        waiting_push(p, r);
        tell_waiting(p, false);
        pool_wake(p, 0);
    } else
        request_begin(r);
}

void http_pause(struct http_request *r, bool pause)
{
    if (!r->running || r->paused == pause)
        return;
    r->paused = pause;
    r->active_ns = loop_now_ns(r->pool->loop);
    /* A pause begins when curl next offers data.  Its end may deliver at once. */
    if (pause || !r->easy || curl_easy_pause(r->easy, CURLPAUSE_CONT) == CURLE_OK)
        return;
    if (r->resp.failure == HTTP_OK)
        transfer_fail(r, HTTP_FAIL_PROTOCOL, "the transfer cannot go on");
    loop_arm(r->pool->loop, &r->timer, 0);
}

/* done() is not called.  Afterwards the caller may free r. */
void http_cancel(struct http_request *r)
{
    if (!r->running)
        return;
    loop_disarm(r->pool->loop, &r->timer);
    r->running = false;
    if (is_waiting(r))
        waiting_remove(r->pool, r);
    if (r->easy)
        loop_note_aborted(r->pool->loop);
    transfer_end(r);
    pool_release(r);
}

/* ---- pools -------------------------------------------------------------------------- */

static char *copy_string(const char *s)
{
    return s ? strdup(s) : NULL;
}

struct http_pool *http_pool_new(struct loop *l, const struct http_pool_options *opts,
                                tinker_error *err)
{
    struct http_pool *p = calloc(1, sizeof(*p));
    if (!p) {
        err_nomem(err, "connection pool");
        return NULL;
    }
    /* The strings are copied because options usually live on the caller's stack. */
    p->loop = l;
    p->opts = *opts;
    p->wake.fire = pool_timer;
    p->opts.proxy = copy_string(opts->proxy);
    p->opts.no_proxy = copy_string(opts->no_proxy);
    p->opts.ca_file = copy_string(opts->ca_file);
    p->budget = EDGE_BUDGET;
    bool ok = (p->opts.proxy || !opts->proxy) && (p->opts.no_proxy || !opts->no_proxy) &&
              (p->opts.ca_file || !opts->ca_file);
    for (size_t i = 0; ok && i < opts->n_proxy_headers; i++) {
        char *line = transfer_header_line(&opts->proxy_headers[i]);
        struct curl_slist *list = line ? curl_slist_append(p->proxy_headers, line) : NULL;
        free(line);
        ok = list != NULL;
        if (ok)
            p->proxy_headers = list;
    }
    if (p->opts.budget)
        socket_budget_add(p->opts.budget, p);
    if (!ok) {
        err_nomem(err, "connection pool");
        http_pool_free(p);
        return NULL;
    }
    return p;
}

void http_pool_free(struct http_pool *p)
{
    if (!p)
        return;
    /* Requests must have ended or been canceled before: they point to the pool. */
    assert(p->active == 0 && p->n_waiting == 0);
    p->in_free = true;
    for (struct http_client *c = p->clients, *next; c; c = next) {
        next = c->next;
        if (!c->draining)
            client_free(c);
    }
    if (p->clients)
        return; /* client_drain() comes back here */
    /* It may still be armed for requests that have ended since. */
    loop_disarm_real(p->loop, &p->wake);
    if (p->opts.budget)
        socket_budget_remove(p->opts.budget, p);
    for (int i = 0; i < p->n_idle; i++)
        curl_easy_cleanup(p->idle[i]);
    for (int i = 0; i < p->n_addresses; i++) {
        free(p->addresses[i].url);
        curl_url_cleanup(p->addresses[i].parsed);
    }
    curl_slist_free_all(p->proxy_headers);
    free((char *)p->opts.proxy);
    free((char *)p->opts.no_proxy);
    free((char *)p->opts.ca_file);
    free(p);
}

struct http_pool_stats http_pool_stats(const struct http_pool *p)
{
    struct http_pool_stats s = { 0, p->active, p->n_waiting, p->budget, p->retired };
    for (const struct http_client *c = p->clients; c; c = c->next)
        s.clients++;
    return s;
}
