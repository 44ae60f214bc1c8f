/* transport.c - see transport.h.
 *
 * An exchange is shared by the call that waits for it and by the program's transport.  The call
 * may go first, and its loop with it: `closed` says so, and whoever finds it open under the lock
 * may post to the loop. */
#include "client/call/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call_options.h"

struct tinker_exchange {
    atomic_int refs;
    struct runtime *rt;
    tinker_transport transport;
    const atomic_bool *muted; /* the service's; for the callback thread, which ends before it */
    tinker_http_request request;
    struct arena arena; /* of the request */
    pthread_mutex_t lock;
    bool closed;            /* lock: the call waits no more */
    bool answered;          /* lock */
    struct http_request *r; /* loop thread; NULL: closed */
    struct timer timer;
    struct loop_task task;
    /* the answer; written before the task is posted */
    enum http_failure failure;
    int status;
    struct buf head, body;
    char reason[HTTP_REASON_MAX];
};

/* Two references: the call's, and the transport's, which ends with done or fail. */
static void unref_exchange(tinker_exchange *x)
{
    if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&x->lock);
    arena_clear(&x->arena);
    buf_clear(&x->head);
    buf_clear(&x->body);
    free(x);
}

/* ---- to the program, on the callback thread ------------------------------------------------------- */

static void deliver_send(void *arg)
{
    tinker_exchange *x = arg;
    if (atomic_load(x->muted)) /* the service is being freed: no more callbacks */
        tinker_exchange_fail(x, TINKER_ECANCELED, "the service is being freed");
    else
        x->transport.send(x, &x->request, x->transport.state);
}

/* Only if the program has not answered meanwhile.  The reference is the one that the call
 * gave up. */
static void deliver_cancel(void *arg)
{
    tinker_exchange *x = arg;
    pthread_mutex_lock(&x->lock);
    bool wanted = !x->answered && !atomic_load(x->muted);
    pthread_mutex_unlock(&x->lock);
    if (wanted)
        x->transport.cancel(x, x->transport.state);
    unref_exchange(x);
}

/* ---- from the program, in any thread ------------------------------------------------------- */

/* The loop thread takes the answer, unless nobody waits for it. */
static void hand_over_exchange(tinker_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->answered = true;
    bool open = !x->closed;
    if (open)
        loop_post(x->rt->loop, &x->task); /* which takes over the transport's reference */
    pthread_mutex_unlock(&x->lock);
    if (!open)
        unref_exchange(x);
}

void tinker_exchange_done(tinker_exchange *x, int status, const tinker_named_string *headers,
                          size_t n_headers, const void *body, size_t n_body)
{
    size_t size = 0; /* of all headers */
    for (size_t i = 0; i < n_headers; i++)
        /* A header that HTTP does not allow is left out: a line break in it would look like
         * another header. */
        if (call_options_check_header(&headers[i], NULL) == TINKER_OK) {
            buf_printf(&x->head, "%s: %s\n", headers[i].name, headers[i].value);
            size += strlen(headers[i].name) + strlen(headers[i].value) + 3;
        }
    if (n_body)
        buf_append(&x->body, body, n_body);
    x->status = status;
    /* Not an HTTP status: no layer above could judge it. */
    if (status < 100 || status > 599) {
        x->failure = HTTP_FAIL_PROTOCOL;
        snprintf(x->reason, sizeof(x->reason), "the transport gave the status %d", status);
    } else if (!buf_ok(&x->head)) {
        x->failure = size > x->head.max ? HTTP_FAIL_PROTOCOL : HTTP_FAIL_NOMEM;
        snprintf(x->reason, sizeof(x->reason), "no room for %zu headers", n_headers);
    } else if (!buf_ok(&x->body)) {
        x->failure = n_body > x->body.max ? HTTP_FAIL_PROTOCOL : HTTP_FAIL_NOMEM;
        snprintf(x->reason, sizeof(x->reason), "no room for a response of %zu bytes", n_body);
    }
    hand_over_exchange(x);
}

void tinker_exchange_fail(tinker_exchange *x, tinker_status why, const char *reason)
{
    /* Only a lost connection and a timeout are retried by the layers above. */
    x->failure = why == TINKER_ECONNECT    ? HTTP_FAIL_CONNECT
                 : why == TINKER_ETIMEDOUT ? HTTP_FAIL_TIMEOUT
                 : why == TINKER_ENOMEM    ? HTTP_FAIL_NOMEM
                                           : HTTP_FAIL_PROTOCOL;
    snprintf(x->reason, sizeof(x->reason), "%s", reason ? reason : "the transport failed");
    /* The reason becomes part of one line in logs and errors. */
    for (char *c = x->reason; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    hand_over_exchange(x);
}

/* ---- the loop's side ------------------------------------------------------------------------ */

/* The call waits no more; its reference is dropped. */
static void close_exchange(tinker_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->closed = true;
    pthread_mutex_unlock(&x->lock);
    x->r = NULL;
    loop_disarm(x->rt->loop, &x->timer);
    loop_busy(x->rt->loop, -1);
}

static void abandon_exchange(tinker_exchange *x)
{
    close_exchange(x);
    /* The reference goes along with the message, else it is dropped here. */
    if (!x->transport.cancel || !runtime_post_callback(x->rt, deliver_cancel, x))
        unref_exchange(x);
}

/* Body and status into the request, as curl would have done. */
static void fill_response(tinker_exchange *x, struct http_request *r)
{
    struct http_response *resp = &r->resp;
    resp->failure = x->failure;
    resp->status = x->failure == HTTP_OK ? x->status : 0;
    memcpy(resp->reason, x->reason, sizeof(resp->reason));
    if (x->failure != HTTP_OK)
        return;
    resp->length = (int64_t)x->body.len;
    /* Moved, not copied; x keeps empty buffers, which its end may clear. */
    resp->head = x->head;
    buf_init(&x->head, 65536);
    if (!r->on_data || x->status < 200 || x->status > 299) {
        resp->body = x->body;
        buf_init(&x->body, SIZE_MAX / 4);
    } else if (x->body.len && !r->on_data(r, x->body.data, x->body.len)) {
        resp->failure = HTTP_FAIL_SINK;
        snprintf(resp->reason, sizeof(resp->reason), "the receiver stopped the transfer");
    }
}

/* Loop thread.  If the call was canceled before, only the reference of the transport is left
 * to drop. */
static void on_exchange_done(struct loop_task *t)
{
    tinker_exchange *x = container_of(t, tinker_exchange, task);
    struct http_request *r = x->r;
    if (r) {
        fill_response(x, r);
        close_exchange(x);
        unref_exchange(x);
        r->done(r);
    }
    unref_exchange(x);
}

/* The transport may still answer later; hand_over_exchange() finds it closed then. */
static void on_exchange_timeout(struct timer *t)
{
    tinker_exchange *x = container_of(t, tinker_exchange, timer);
    struct http_request *r = x->r;
    r->resp.failure = HTTP_FAIL_TIMEOUT;
    snprintf(r->resp.reason, sizeof(r->resp.reason),
             "no response from the transport within %lld ms", (long long)x->request.timeout_ms);
    abandon_exchange(x);
    r->done(r);
}

static bool copy_request_headers(tinker_exchange *x, const struct http_request *r)
{
    size_t n = r->n_headers;
    /* Common headers come as lines; count them first. */
    while (http_common_line(r->common, n - r->n_headers))
        n++;
    tinker_named_string *v = arena_array(&x->arena, n, sizeof(*v));
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (i < r->n_headers) {
            v[i] = (tinker_named_string){ arena_strdup(&x->arena, r->headers[i].name),
                                          arena_strdup(&x->arena, r->headers[i].value) };
            continue;
        }
        const char *line = http_common_line(r->common, i - r->n_headers);
        size_t name = strcspn(line, ":");
        const char *value = line[name] ? line + name + 1 : "";
        v[i] = (tinker_named_string){ arena_strndup(&x->arena, line, name),
                                      arena_strdup(&x->arena, value + strspn(value, " ")) };
    }
    x->request.headers = v;
    x->request.n_headers = n;
    return true;
}

/* The program may read it longer than the call lives. */
static bool copy_request(tinker_exchange *x, const struct http_request *r)
{
    int64_t connect = r->timeouts.connect_ms, read = r->timeouts.read_ms;
    x->request.method = r->method;
    x->request.url = arena_strdup(&x->arena, r->url);
    x->request.body = r->body_len ? arena_memdup(&x->arena, r->body, r->body_len) : NULL;
    x->request.n_body = r->body_len;
    /* One number for all phases; a limit that would overflow is no limit. */
    x->request.timeout_ms =
        connect > INT64_MAX / 4 || read > INT64_MAX / 4 ? INT64_MAX / 4 : connect + read;
    x->request.follow = r->follow;
    return copy_request_headers(x, r) && !x->arena.failed;
}

tinker_exchange *transport_start(struct session *h, struct http_request *r)
{
    tinker_exchange *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    atomic_init(&x->refs, 1);
    x->rt = h->rt;
    x->transport = h->cfg->transport;
    x->muted = h->cfg->muted_by;
    x->task.run = on_exchange_done;
    x->timer.fire = on_exchange_timeout;
    pthread_mutex_init(&x->lock, NULL);
    arena_init(&x->arena, SIZE_MAX);
    buf_init(&x->head, 65536);
    buf_init(&x->body, r->max_response ? r->max_response : SIZE_MAX / 4);
    http_request_clear(r);
    buf_init(&r->resp.head, 65536);
    buf_init(&r->resp.body, SIZE_MAX / 4);
    r->resp.sends = 1;
    if (!copy_request(x, r)) {
        unref_exchange(x);
        return NULL;
    }
    /* From now on the transport holds one, too. */
    atomic_store(&x->refs, 2);
    if (!runtime_post_callback(h->rt, deliver_send, x)) {
        unref_exchange(x);
        unref_exchange(x);
        return NULL;
    }
    x->r = r;
    loop_busy(h->rt->loop, 1);
    loop_arm(h->rt->loop, &x->timer, x->request.timeout_ms);
    return x;
}

void transport_cancel(tinker_exchange *x)
{
    if (x)
        abandon_exchange(x);
}
