/* instrument.c - see local.h.  The names are Tinkex's; times are milliseconds. */
#include "client/observe/instrument.h"
#include <tinker/custom_loss.h>

#include "client/future/future.h"
#include "client/observe/metrics.h"
#include "client/call/poll.h"
#include "client/call/call_options.h"

static double ms_since(struct session *h, int64_t start_ns)
{
    return (double)(loop_now_ns(h->rt->loop) - start_ns) / 1e6;
}

/* e NULL: nobody listens, and nobody needs to look at the clock. */
static void put_wall_time(struct event *e, struct session *h)
{
    if (e)
        event_number(e, "system_time_ms", (double)(clock_wall_ns(h->rt->clock) / 1000000));
}

/* ---- calls --------------------------------------------------------------------------------- */

static const char *const pool_names[POOL_COUNT] = {
    [POOL_SESSION] = "session", [POOL_TRAIN] = "training",      [POOL_SAMPLE] = "sampling",
    [POOL_RETRIEVE] = "future", [POOL_TELEMETRY] = "telemetry", [POOL_REDIRECT] = "redirect",
    [POOL_AUTH] = "auth",       [POOL_CONFIG] = "config",
};

/* The metadata that the caller gave the operation; op may be NULL. */
static void tag(struct event *e, const struct op *op)
{
    if (op && op->prefs)
        event_own(e, op->prefs->metadata, op->prefs->n_metadata);
}

static struct event *request_event(const struct call *c, const char *name)
{
    struct event *e = event_new(c->session->hooks, name);
    event_text(e, "operation", c->spec->name);
    event_text(e, "method", c->spec->method);
    event_text(e, "path", c->path);
    event_text(e, "pool", pool_names[c->spec->pool]);
    event_text(e, "base_url", c->session->cfg->base_url);
    return e;
}

static struct local_attempt try_of(const struct call *c)
{
    bool fine = c->outcome == CALL_OK || c->outcome == CALL_CAUGHT;
    return (struct local_attempt){ .layer = "call",
                                   .operation = c->spec->name,
                                   .attempt = c->tries + 1,
                                   .started_ns = c->try_ns,
                                   .err = fine ? NULL : &c->err,
                                   .op = c->op };
}

void local_try_started(struct call *c)
{
    struct session *h = c->session;
    if (c->spec->pool == POOL_RETRIEVE)
        metric_add(h->cfg->metrics.polls, 1);
    struct event *e = request_event(c, "http.request.start");
    put_wall_time(e, h);
    tag(e, c->op);
    event_send(e);
    struct local_attempt a = try_of(c);
    a.err = NULL;
    if (c->spec->outer)
        local_attempt(h, LOCAL_START, &a);
}

void local_try_ended(struct call *c)
{
    struct session *h = c->session;
    const struct own_metrics *m = &h->cfg->metrics;
    double ms = ms_since(h, c->try_ns);
    bool ok = c->outcome == CALL_OK;
    metric_add(m->requests, 1);
    metric_add(ok ? m->successes : m->failures, 1);
    metric_record(m->duration, ms);
    bool answered = c->outcome != CALL_LOCAL;
    struct event *e = request_event(c, answered ? "http.request.stop" : "http.request.exception");
    event_number(e, "duration_ms", ms);
    if (answered) {
        event_number(e, "status", c->http.resp.status);
        event_number(e, "retry_count", c->attempt);
        event_text(e, "result", ok ? "ok" : "error");
    }
    event_text(e, answered ? "error" : "reason", ok ? NULL : c->err.message);
    tag(e, c->op);
    event_send(e);
}

void local_try_cancelled(struct call *c)
{
    struct event *e = request_event(c, "http.request.exception");
    event_number(e, "duration_ms", ms_since(c->session, c->try_ns));
    event_text(e, "reason", "cancelled");
    tag(e, c->op);
    event_send(e);
}

void local_try_decided(struct call *c, int64_t delay_ms)
{
    struct local_attempt a = try_of(c);
    a.delay_ms = delay_ms;
    if (delay_ms >= 0)
        metric_add(c->session->cfg->metrics.try_retries, 1);
    local_attempt(c->session, delay_ms >= 0 ? LOCAL_RETRY : a.err ? LOCAL_FAILED : LOCAL_STOP, &a);
}

void local_attempt(struct session *h, enum local_step step, const struct local_attempt *a)
{
    static const char *const names[] = { "retry.attempt.start", "retry.attempt.stop",
                                         "retry.attempt.retry", "retry.attempt.failed" };
    struct event *e = event_new(h->hooks, names[step]);
    event_number(e, "attempt", a->attempt);
    if (step == LOCAL_START)
        put_wall_time(e, h);
    else
        event_number(e, "duration_ms", ms_since(h, a->started_ns));
    if (step == LOCAL_RETRY)
        event_number(e, "delay_ms", (double)a->delay_ms);
    event_text(e, "layer", a->layer);
    event_text(e, "operation", a->operation);
    event_text(e, "error", a->err ? a->err->message : NULL);
    tag(e, a->op);
    event_send(e);
}

/* ---- waiting --------------------------------------------------------------------------------- */

void local_queue_state(struct session *h, const char *who, enum wire_queue_state state,
                       const char *reason)
{
    static const char *const names[] = { "unknown", "active", "paused_capacity",
                                         "paused_rate_limit" };
    if (state == WIRE_QUEUE_PAUSED_CAPACITY || state == WIRE_QUEUE_PAUSED_RATE_LIMIT)
        metric_add(h->cfg->metrics.queue_pauses, 1);
    struct event *e = event_new(h->hooks, "queue.state_change");
    event_text(e, "who", who);
    event_text(e, "queue_state", (unsigned)state < 4 ? names[state] : names[0]);
    event_text(e, "reason", reason);
    event_send(e);
}

void local_poll(struct poll *p, const char *event, const tinker_error *err)
{
    struct event *e = event_new(p->session->hooks, event);
    event_number(e, "elapsed_ms", ms_since(p->session, p->poll_start_ns));
    event_number(e, "iteration", (double)(p->iteration - 1));
    event_number(e, "status", err->http_status);
    event_text(e, "request_id", p->request_id);
    event_text(e, "request_type", p->kind->request_type);
    event_text(e, "error", err->message);
    tag(e, p->call.op);
    event_send(e);
}

void local_timeout(struct session *h, const struct tinker_future *f, double timeout_s)
{
    struct event *e = event_new(h->hooks, "future.timeout");
    event_number(e, "elapsed_ms", timeout_s * 1000);
    event_number(e, "iteration", (double)f->iteration);
    event_text(e, "request_id", future_request_id(f));
    event_text(e, "request_type", f->request_type);
    tag(e, f->op);
    event_send(e);
}

/* ---- custom losses --------------------------------------------------------------------------- */

static void loss_outcome(struct event *e, const tinker_loss_event *l)
{
    event_number(e, "duration_ms", (double)l->duration_ns / 1e6);
    if (l->reason)
        return;
    if (!l->regularizer) {
        event_number(e, "loss_total", l->loss_total);
        event_number(e, "regularizer_total", l->regularizer_total);
        return;
    }
    event_number(e, "value", l->value);
    event_number(e, "contribution", l->contribution);
    if (l->has_grad_norm)
        event_number(e, "grad_norm", l->grad_norm);
}

void local_loss(struct hooks *hooks, const tinker_loss_event *l)
{
    struct event *e = event_new(hooks, l->name);
    if (l->system_time_ns)
        event_number(e, "system_time_ms", (double)(l->system_time_ns / 1000000));
    else
        loss_outcome(e, l);
    if (l->regularizer)
        event_number(e, "weight", l->weight);
    else
        event_number(e, "n_regularizers", (double)l->n_regularizers);
    event_text(e, "regularizer", l->regularizer);
    event_text(e, "reason", l->reason);
    event_send(e);
}
