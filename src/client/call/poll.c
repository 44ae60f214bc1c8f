/* poll.c - the polling state machine.
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
#include "client/observe/report.h"
#include "wire/wire.h"

enum {
    LARGE_RESULT = 256 << 10,
    BAD_REQUEST_BUDGET = 3,
    BACKOFF_CAP_MS = 30000,
    BILLING_MS = 5000,
    FLOOR_MS = 50
};

static const struct call_spec spec = {
    "retrieve_future", "POST", POOL_RETRIEVE, 45000, "45", 0, false, false
};

static void send(struct poll *p);

static void finish(struct poll *p)
{
    p->active = false;
    sem_give(&p->bytes);
    tinker_error *err = &p->call.err;
    if (!p->ok && !err->request_id[0])
        snprintf(err->request_id, sizeof(err->request_id), "%s", p->request_id);
    p->done(p);
}

static void fail(struct poll *p, const tinker_error *err)
{
    p->ok = false;
    if (err != &p->call.err)
        p->call.err = *err;
    finish(p);
}

static void on_timer(struct timer *t)
{
    send(container_of(t, struct poll, timer));
}

static void send_later(struct poll *p, int64_t delay_ms)
{
    p->timer.fire = on_timer;
    loop_arm(p->session->rt->loop, &p->timer, delay_ms);
}

static void send_after_backoff(struct poll *p)
{
    int64_t delay = p->conn < 5 ? (int64_t)1000 << p->conn : BACKOFF_CAP_MS;
    p->conn++;
    send_later(p, delay);
}

/* At once, because the service held the last poll.  A service that answers within
 * milliseconds does not; a small pause keeps that from becoming a busy loop. */
static void send_at_once(struct poll *p)
{
    struct loop *l = p->session->rt->loop;
    if (loop_now_ns(l) - p->sent_ns < 5000000 && p->iteration > 1)
        send_later(p, FLOOR_MS);
    else
        send(p);
}

static void send_after_server_error(struct poll *p)
{
    const struct config *cfg = p->session->cfg;
    if (!cfg->poll_backoff) {
        send_at_once(p);
        return;
    }
    int64_t delay = cfg->poll_backoff_initial_ms, n = p->iteration - 1;
    while (n-- > 0 && delay < cfg->poll_backoff_max_ms)
        delay *= 2;
    send_later(p, delay < cfg->poll_backoff_max_ms ? delay : cfg->poll_backoff_max_ms);
}

static void tell_state(struct poll *p, const struct wire_future_answer *a)
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

static void on_bytes(struct sem_wait *w)
{
    send(container_of(w, struct poll, bytes));
}

static void on_metadata(struct poll *p, int64_t size)
{
    tinker_error err;
    if (p->metadata_seen) {
        err_set(&err, TINKER_EPROTOCOL, "the service announced the result twice");
        fail(p, &err);
        return;
    }
    p->metadata_seen = true;
    p->bytes.granted = on_bytes;
    if (sem_take(&p->session->response_bytes, &p->bytes, size > 0 ? size : 0))
        send(p);
}

static void on_failed(struct poll *p, const struct wire_future_answer *a)
{
    tinker_error err;
    report_poll_failed(p, a->error, a->category);
    err_set(&err, TINKER_EREQUEST, "%s", a->error);
    err.category = a->category;
    err.retriable = a->category != TINKER_CATEGORY_USER;
    fail(p, &err);
}

static void end_result(struct poll *p, bool proto, size_t n, tinker_status s, tinker_error *err)
{
    if (s != TINKER_OK) {
        wire_as_answer(err->status, err);
        report_poll_decode(p, err, proto, n);
        fail(p, err);
        return;
    }
    p->ok = true;
    finish(p);
}

/* ---- large results, on a worker: a heartbeat does not wait for them ---------------------- */

struct aside {
    struct runtime_job job;
    struct poll *poll; /* NULL: nobody waits any more */
    poll_reader *read;
    struct buf body;
    bool proto;
    struct arena arena;
    void *out;
    tinker_error err;
};

static void aside_work(struct runtime_job *j)
{
    struct aside *a = (struct aside *)j; /* first member */
    a->out = a->read(&a->arena, a->body.data, a->body.len, a->proto, &a->err);
}

static void aside_done(struct runtime_job *j)
{
    struct aside *a = (struct aside *)j;
    struct poll *p = a->poll;
    if (p) {
        tinker_status s = a->out ? TINKER_OK : a->err.status;
        p->aside = NULL;
        if (s == TINKER_OK)
            s = p->take_aside(p, a->out, &a->arena, &a->err);
        end_result(p, a->proto, a->body.len, s, &a->err);
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
    buf_init(body, a->body.max);
    p->aside = a;
    return true;
}

static void on_result(struct poll *p, bool proto)
{
    const struct buf *body = &p->call.http.resp.body;
    tinker_error err;
    if (read_aside(p, proto))
        return;
    tinker_status s = p->decode(p, body->data ? body->data : "", body->len, proto, &err);
    end_result(p, proto, body->len, s, &err);
}

static void on_success(struct poll *p)
{
    const struct http_response *resp = &p->call.http.resp;
    struct arena scratch;
    struct wire_future_answer a;
    tinker_error err;
    char type[128] = "";
    http_response_header(resp, "content-type", type, sizeof(type));
    arena_init(&scratch, 16 << 20);
    p->conn = 0;
    if (wire_classify_future(type, resp->body.data ? resp->body.data : "", resp->body.len, &scratch,
                             &a, &err) != TINKER_OK)
        fail(p, &err);
    else if (a.state == WIRE_FUTURE_PENDING) {
        tell_state(p, &a);
        send_at_once(p);
    } else if (a.state == WIRE_FUTURE_METADATA)
        on_metadata(p, a.payload_size);
    else if (a.state == WIRE_FUTURE_FAILED)
        on_failed(p, &a);
    else
        on_result(p, a.state == WIRE_FUTURE_PROTO);
    arena_clear(&scratch);
}

static void on_pending_status(struct poll *p)
{
    const struct buf *body = &p->call.http.resp.body;
    struct arena scratch;
    struct wire_future_answer a = { 0 };
    arena_init(&scratch, 1 << 20);
    if (wire_read_queue_state(body->data ? body->data : "", body->len, &scratch, &a)) {
        p->bad400 = 0;
        tell_state(p, &a);
    }
    arena_clear(&scratch);
    p->conn = 0;
    report_poll_status(p, REPORT_RETRY);
    send_after_server_error(p);
}

static void on_gone(struct poll *p)
{
    p->gone = true;
    report_poll_status(p, REPORT_GONE);
    p->call.err.retriable = 1;
    fail(p, &p->call.err);
}

static void on_status(struct poll *p, int status)
{
    if (status == 408) {
        on_pending_status(p);
        return;
    }
    if (status == 429) {
        report_poll_status(p, REPORT_BACKOFF);
        send_after_backoff(p);
        return;
    }
    if (status == 402 && session_billing_pause(p->session, p->call.err.message)) {
        send_later(p, BILLING_MS);
        return;
    }
    p->conn = 0;
    if (status >= 500) {
        report_poll_status(p, REPORT_RETRY);
        send_after_server_error(p);
    } else if (status == 410)
        on_gone(p);
    else if (status == 400 && p->bad400 < BAD_REQUEST_BUDGET) {
        report_poll_status(p, REPORT_BUDGET);
        p->bad400++;
        send(p);
    } else {
        report_poll_status(p, REPORT_FATAL);
        fail(p, &p->call.err);
    }
}

static void on_call(struct call *c)
{
    struct poll *p = container_of(c, struct poll, call);
    switch (c->outcome) {
    case CALL_OK:
        on_success(p);
        return;
    case CALL_STATUS:
        on_status(p, c->http.resp.status);
        return;
    case CALL_CONNECT:
    case CALL_TIMEOUT:
        report_poll_status(p, REPORT_CONNECTION);
        send_after_backoff(p);
        return;
    default:
        fail(p, &c->err);
    }
}

/* ---- requests ----------------------------------------------------------------------- */

static void put(struct call *c, const char *name, const char *value)
{
    c->extra[c->n_extra++] = (struct http_header){ name, value, false };
}

static bool build(struct poll *p)
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
    put(c, "X-Tinker-Request-Iteration", p->iteration_text);
    put(c, "X-Tinker-Request-Type", p->kind->request_type);
    put(c, "X-Stainless-Raw-Response", "raw");
    if (p->iteration == 0) {
        double s = (double)(p->poll_start_ns - p->started_ns) / 1e9;
        p->roundtrip_text[shortest_double(s, p->roundtrip_text)] = '\0';
        put(c, "X-Tinker-Create-Promise-Roundtrip-Time", p->roundtrip_text);
    }
    return true;
}

static void send(struct poll *p)
{
    struct loop *l = p->session->rt->loop;
    tinker_error err;
    p->sent_ns = loop_now_ns(l);
    if (!build(p)) {
        err_nomem(&err, "poll request");
        fail(p, &err);
        return;
    }
    p->call.http.small_answer = !p->metadata_seen; /* large ones are announced first */
    if (p->future)
        p->future->iteration = p->iteration;
    p->iteration++;
    call_start(&p->call);
}

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
    p->call.op = p->future ? p->future->op : NULL;
    p->call.spec = &spec;
    p->call.path = "api/v1/retrieve_future";
    p->call.accept = p->kind->proto ? "application/x-protobuf" : NULL;
    p->call.catch = NULL; /* an owner may have used the call before */
    p->call.done = on_call;
    free(p->request_id);
    p->request_id = strdup(request_id);
    if (!p->request_id) {
        tinker_error err;
        err_nomem(&err, "request id");
        fail(p, &err);
        return;
    }
    if (p->future)
        future_set_request(p->future, request_id, p->kind->request_type);
    send(p);
}

void poll_cancel(struct poll *p)
{
    if (!p->active)
        return;
    p->active = false;
    if (p->aside)
        p->aside->poll = NULL;
    p->aside = NULL;
    call_cancel(&p->call);
    loop_disarm(p->session->rt->loop, &p->timer);
    sem_give(&p->bytes);
}

void poll_clear(struct poll *p)
{
    poll_cancel(p);
    call_clear(&p->call);
    buf_clear(&p->body);
    free(p->request_id);
    p->request_id = NULL;
}
