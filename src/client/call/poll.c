/* poll.c - the polling state machine.
 *
 *   start --> exchange --408, pending--> exchange ...           (the service holds each poll)
 *                |----429, no connection--> backoff --> exchange
 *                |----5xx--> at once, or configured backoff --> exchange
 *                |----402--> 5 s, while the account may be topped up --> exchange
 *                |----announced--> bytes of the budget --> exchange
 *                |----result--> decode, here or on a worker --> done
 *                '----410, failed, anything else--> done
 *
 * Pending is exactly one of: an exchange (call), a delay (timer), or bytes of the
 * response budget (bytes, waiting).  `bytes` stays held from the announcement of a
 * large result until the end. */
#include "client/call/poll.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/map.h"
#include "client/future/future.h"
#include "client/call/retry_policy.h"
#include "client/observe/instrument.h"
#include "wire/wire.h"

/* Bytes above which a result is decoded on a worker thread. */
enum { LARGE_RESULT = 256 << 10 };

/* 45 s, because the service holds a poll until there is news.  No retries of its own: this
 * state machine decides. */
static const struct call_spec spec = {
    .name = "retrieve_future",
    .method = "POST",
    .pool = POOL_RETRIEVE,
    .timeout_ms = 45000,
    .timeout_text = "45",
};

static void send_poll(struct poll *p);

/* ---- the end -------------------------------------------------------------------------------- */

/* The owner may free the poll in done, so nothing may follow that call. */
static void finish_poll(struct poll *p)
{
    p->active = false;
    budget_give(&p->bytes);
    tinker_error *err = &p->call.err;
    /* an error is of use to support only with the id of the request */
    if (!p->ok && !err->request_id[0])
        snprintf(err->request_id, sizeof(err->request_id), "%s", p->request_id);
    p->done(p);
}

static void fail_poll(struct poll *p, const tinker_error *err)
{
    p->ok = false;
    /* p->call.err is where the owner looks, whatever failed. */
    if (err != &p->call.err)
        p->call.err = *err;
    finish_poll(p);
}

static void on_poll_timer(struct timer *t)
{
    send_poll(container_of(t, struct poll, timer));
}

/* ---- the next exchange ------------------------------------------------------------------------ */

static void send_poll_later(struct poll *p, int64_t delay_ms)
{
    p->timer.fire = on_poll_timer;
    loop_arm(p->session->rt->loop, &p->timer, delay_ms);
}

/* The service does not answer or asks for mercy: 1, 2, 4 ... 30 s. */
static void send_poll_after_backoff(struct poll *p)
{
    p->conn++;
    send_poll_later(p, retry_delay_ms(RETRY_DELAY_POLL, p->conn, 0));
}

/* At once, because the service held the last poll.  A service that answers within
 * milliseconds does not; a small pause keeps that from becoming a busy loop. */
static void send_poll_at_once(struct poll *p)
{
    struct loop *l = p->session->rt->loop;
    if (loop_now_ns(l) - p->sent_ns < RETRY_POLL_HELD_NS && p->iteration > 1)
        send_poll_later(p, RETRY_POLL_FLOOR_MS);
    else
        send_poll(p);
}

static void send_poll_after_error(struct poll *p)
{
    const struct config *cfg = p->session->cfg;
    /* Off by default: errors of the service are polled again at once. */
    if (!cfg->poll_backoff) {
        send_poll_at_once(p);
        return;
    }
    send_poll_later(p, retry_poll_error_delay_ms(cfg->poll_backoff_initial_ms,
                                                 cfg->poll_backoff_max_ms, p->iteration));
}

/* Pass the state of the queue on, and whether it is news.  The reason may be long, and only its hash
 * is kept to compare. */
static void report_queue_state(struct poll *p, const struct wire_future_answer *a)
{
    const char *reason = a->queue_state_reason;
    if (a->queue_state == WIRE_QUEUE_UNKNOWN && !reason)
        return;
    uint64_t hash = reason ? hash_fnv1a(reason, strlen(reason)) : 0;
    bool changed = !p->state_known || p->last_state != a->queue_state || p->last_reason != hash;
    p->state_known = true;
    p->last_state = a->queue_state;
    p->last_reason = hash;
    if (p->queue_state)
        p->queue_state(p, a->queue_state, reason, changed);
}

/* ---- answers ------------------------------------------------------------------------ */

/* Loop thread: others have given enough bytes back. */
static void on_bytes_granted(struct budget_wait *w)
{
    send_poll(container_of(w, struct poll, bytes));
}

static void handle_metadata(struct poll *p, int64_t size)
{
    tinker_error err;
    if (p->metadata_seen) {
        err_set(&err, TINKER_EPROTOCOL, "the service announced the result twice");
        fail_poll(p, &err);
        return;
    }
    /* From now on polls ask for the result itself.  The bytes are taken before it is fetched, so that
     * large results cannot fill the memory all at once. */
    p->metadata_seen = true;
    p->bytes.granted = on_bytes_granted;
    /* A negative size is not to be trusted, so it takes none. */
    if (budget_take(&p->session->response_bytes, &p->bytes, size > 0 ? size : 0))
        send_poll(p);
}

/* The request was accepted and then failed.  Only a wrong request (category user) is not worth
 * another submission. */
static void handle_failed(struct poll *p, const struct wire_future_answer *a)
{
    tinker_error err;
    err_set(&err, TINKER_EREQUEST, "%s", a->error);
    err.category = a->category;
    poll_event(p, POLL_EVENT_FAILED, &(struct poll_failure){ .err = &err, .text = a->error });
    err.retryable = a->category != TINKER_CATEGORY_USER;
    fail_poll(p, &err);
}

static void finish_result(struct poll *p, bool proto, size_t n, tinker_status s, tinker_error *err)
{
    if (s != TINKER_OK) {
        /* What came is wrong, not what the program gave: the status must say so. */
        wire_as_answer(err->status, err);
        poll_event(p, POLL_EVENT_DECODE,
                   &(struct poll_failure){ .err = err, .proto = proto, .n = n });
        fail_poll(p, err);
        return;
    }
    p->ok = true;
    finish_poll(p);
}

/* ---- large results, on a worker: a heartbeat does not wait for them ---------------------- */

struct aside {
    struct runtime_job job;
    /* The body moves here from the call, so the poll may be canceled while the worker reads. */
    struct poll *poll; /* NULL: nobody waits any more */
    poll_reader *read;
    struct buf body;
    bool proto;
    struct arena arena;
    void *out;
    tinker_error err;
};

/* On a worker: touches nothing but the job. */
static void aside_work(struct runtime_job *j)
{
    struct aside *a = (struct aside *)j; /* first member */
    a->out = a->read(&a->arena, a->body.data, a->body.len, a->proto, &a->err);
}

static void aside_done(struct runtime_job *j)
{
    struct aside *a = (struct aside *)j;
    struct poll *p = a->poll;
    /* back on the loop thread; poll_cancel() has cleared the pointer if nobody wants the result */
    if (p) {
        tinker_status s = a->out ? TINKER_OK : a->err.status;
        p->aside = NULL;
        if (s == TINKER_OK)
            s = p->take_aside(p, a->out, &a->arena, &a->err);
        finish_result(p, a->proto, a->body.len, s, &a->err);
    }
    buf_clear(&a->body);
    arena_clear(&a->arena);
    free(a);
}

/* false: not worth it, or no memory for it. */
static bool read_aside(struct poll *p, bool proto)
{
    struct buf *body = &p->call.http.resp.body;
    struct aside *a = p->read_aside && body->len > LARGE_RESULT ? calloc(1, sizeof(*a)) : NULL;
    if (!a)
        return false;
    a->job.work = aside_work;
    a->job.done = aside_done;
    a->poll = p;
    a->read = p->read_aside;
    a->proto = proto;
    arena_init(&a->arena, SIZE_MAX);
    a->body = *body;
    if (!runtime_work(p->session->rt, &a->job)) {
        free(a);
        return false;
    }
    /* only now: without a worker the body is still needed here */
    buf_init(body, a->body.max);
    p->aside = a;
    return true;
}

static void handle_success(struct poll *p)
{
    const struct http_response *resp = &p->call.http.resp;
    struct arena scratch;
    struct wire_future_answer a;
    tinker_error err;
    char type[128] = "";
    /* The content type decides between JSON and protobuf. */
    http_response_header(resp, "content-type", type, sizeof(type));
    arena_init(&scratch, 16 << 20);
    /* any 2xx proves that the service is reachable */
    p->conn = 0;
    if (wire_classify_future(type, resp->body.data ? resp->body.data : "", resp->body.len, &scratch,
                             &a, &err) != TINKER_OK)
        fail_poll(p, &err);
    else if (a.state == WIRE_FUTURE_PENDING) {
        report_queue_state(p, &a);
        send_poll_at_once(p);
    } else if (a.state == WIRE_FUTURE_METADATA)
        handle_metadata(p, a.payload_size);
    else if (a.state == WIRE_FUTURE_FAILED)
        handle_failed(p, &a);
    else if (!read_aside(p, a.state == WIRE_FUTURE_PROTO)) {
        /* Small results are decoded right here; switching threads would cost more. */
        bool proto = a.state == WIRE_FUTURE_PROTO;
        size_t n = resp->body.len;
        tinker_status s = p->decode(p, resp->body.data ? resp->body.data : "", n, proto, &err);
        finish_result(p, proto, n, s, &err);
    }
    arena_clear(&scratch);
}

/* 408: not ready.  Its body may carry the state of the queue; an unreadable body is ignored. */
static void handle_pending(struct poll *p)
{
    const struct buf *body = &p->call.http.resp.body;
    struct arena scratch;
    struct wire_future_answer a = { 0 };
    arena_init(&scratch, 1 << 20);
    if (wire_read_queue_state(body->data ? body->data : "", body->len, &scratch, &a)) {
        p->bad400 = 0;
        report_queue_state(p, &a);
    }
    arena_clear(&scratch);
    p->conn = 0;
    poll_event(p, POLL_EVENT_RETRY, NULL);
    send_poll_after_error(p);
}

static void handle_status(struct poll *p, int status)
{
    enum retry_poll_action action = retry_poll_action(status);
    /* 402: out of credit.  While session_billing_pause() allows it, poll again later; then
     * it is a failure. */
    if (action == RETRY_POLL_BILLING && session_billing_pause(p->session, p->call.err.message)) {
        send_poll_later(p, RETRY_BILLING_MS);
        return;
    }
    if (action != RETRY_POLL_BACKOFF && action != RETRY_POLL_PENDING)
        p->conn = 0; /* the service was reached: a later failure to connect is a new one */
    /* A 400 for a poll may be a proxy's hiccup, so some are forgiven, but not for ever. */
    if (action == RETRY_POLL_BUDGET && p->bad400 >= RETRY_BAD_POLLS)
        action = RETRY_POLL_FATAL;
    switch (action) {
    case RETRY_POLL_PENDING:
        handle_pending(p);
        break;
    case RETRY_POLL_BACKOFF:
        poll_event(p, POLL_EVENT_BACKOFF, NULL);
        send_poll_after_backoff(p);
        break;
    case RETRY_POLL_AGAIN:
        poll_event(p, POLL_EVENT_RETRY, NULL);
        send_poll_after_error(p);
        break;
    case RETRY_POLL_GONE:
        /* 410: the service has forgotten the promise.  The owner may submit the request anew. */
        p->gone = true;
        poll_event(p, POLL_EVENT_GONE, NULL);
        p->call.err.retryable = 1;
        fail_poll(p, &p->call.err);
        break;
    case RETRY_POLL_BUDGET:
        poll_event(p, POLL_EVENT_BUDGET, NULL);
        p->bad400++;
        send_poll(p);
        break;
    default:
        poll_event(p, POLL_EVENT_FATAL, NULL);
        fail_poll(p, &p->call.err);
    }
}

static void on_poll_response(struct call *c)
{
    struct poll *p = container_of(c, struct poll, call);
    switch (c->outcome) {
    case CALL_OK:
        handle_success(p);
        return;
    case CALL_STATUS:
        handle_status(p, c->http.resp.status);
        return;
    /* The request is accepted already, so losing a connection never loses it: poll until it
     * is there. */
    case CALL_CONNECT:
    case CALL_TIMEOUT:
        poll_event(p, POLL_EVENT_CONNECTION, NULL);
        send_poll_after_backoff(p);
        return;
    default:
        fail_poll(p, &c->err);
    }
}

/* ---- requests ----------------------------------------------------------------------- */

static void put_poll_header(struct call *c, const char *name, const char *value)
{
    c->extra[c->n_extra++] = (struct http_header){ name, value, false };
}

/* The body asks the service to announce a large result first; once it has, it is fetched. */
static bool build_poll(struct poll *p)
{
    struct call *c = &p->call;
    struct wire_future_retrieve_request req = { p->request_id, !p->metadata_seen };
    tinker_error err;
    buf_reset(&p->body);
    if (wire_encode_json(&wire_future_retrieve_request, &req, &p->body, &err) != TINKER_OK)
        return false;
    c->body = p->body.data;
    c->body_len = p->body.len;
    c->n_extra = 0;
    p->iteration_text[shortest_int64(p->iteration, p->iteration_text)] = '\0';
    put_poll_header(c, "X-Tinker-Request-Iteration", p->iteration_text);
    put_poll_header(c, "X-Tinker-Request-Type", p->kind->request_type);
    /* As the reference sends it for polls. */
    put_poll_header(c, "X-Stainless-Raw-Response", "raw");
    /* how long the submission took, as the reference reports it with the first poll */
    if (p->iteration == 0) {
        double s = (double)(p->poll_start_ns - p->started_ns) / 1e9;
        p->roundtrip_text[shortest_double(s, p->roundtrip_text)] = '\0';
        put_poll_header(c, "X-Tinker-Create-Promise-Roundtrip-Time", p->roundtrip_text);
    }
    return true;
}

static void send_poll(struct poll *p)
{
    struct loop *l = p->session->rt->loop;
    tinker_error err;
    p->sent_ns = loop_now_ns(l);
    if (!build_poll(p)) {
        err_nomem(&err, "poll request");
        fail_poll(p, &err);
        return;
    }
    /* many polls are held at a time, so each gets a small receive buffer */
    p->call.http.small_response = !p->metadata_seen; /* large ones are announced first */
    if (p->future)
        p->future->iteration = p->iteration;
    p->iteration++;
    call_start(&p->call);
}

/* Loop thread.  May be called again after done, with another request id. */
void poll_start(struct poll *p, const char *request_id)
{
    assert(!p->active);
    p->active = true;
    p->ok = p->gone = p->metadata_seen = p->state_known = false;
    p->iteration = 0;
    p->conn = p->bad400 = 0;
    p->poll_start_ns = loop_now_ns(p->session->rt->loop);
    if (!p->body.max)
        buf_init(&p->body, 1 << 16);
    p->call.session = p->session;
    /* a poll has the headers and the metadata of its operation, but not its timeout and retries */
    p->call.op = p->future ? p->future->op : NULL;
    p->call.spec = &spec;
    p->call.path = "api/v1/retrieve_future";
    p->call.accept = p->kind->proto ? "application/x-protobuf" : NULL;
    p->call.max_response = p->max_result ? p->max_result : CALL_RESPONSE_MOST;
    p->call.catch = NULL; /* an owner may have used the call before */
    p->call.done = on_poll_response;
    free(p->request_id);
    p->request_id = strdup(request_id);
    if (!p->request_id) {
        tinker_error err;
        err_nomem(&err, "request id");
        fail_poll(p, &err);
        return;
    }
    /* For the messages of futures, and for tinker_future_request_id(). */
    if (p->future)
        future_set_request(p->future, request_id, p->kind->request_type);
    send_poll(p);
}

void poll_cancel(struct poll *p)
{
    if (!p->active)
        return;
    p->active = false;
    /* The worker goes on with its copy; aside_done() then only frees it. */
    if (p->aside)
        p->aside->poll = NULL;
    p->aside = NULL;
    call_cancel(&p->call);
    loop_disarm(p->session->rt->loop, &p->timer);
    budget_give(&p->bytes);
}

void poll_clear(struct poll *p)
{
    poll_cancel(p);
    call_clear(&p->call);
    buf_clear(&p->body);
    free(p->request_id);
    p->request_id = NULL;
}
