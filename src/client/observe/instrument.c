/* instrument.c - see instrument.h.
 *
 * Two kinds of events leave here.  Those for the program's hooks have the names of Tinkex and
 * times in milliseconds; those for the service's telemetry have the names and keys of the
 * reference SDK and times in seconds.  Nothing is written when no hook listens: event_new() gives
 * NULL without hooks, and a session without telemetry has none. */
#include "client/observe/instrument.h"

#include <stdio.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "client/call/call_options.h"
#include "client/call/poll.h"
#include "client/call/retry_policy.h"
#include "client/future/future.h"
#include "client/observe/metrics.h"
#include "client/observe/telemetry.h"
#include "json/json.h"

/* ---- parts of events for hooks --------------------------------------------------------------- */

/* start_ns is of the loop's clock, so that a fake clock in tests moves these times, too. */
static double ms_since(struct session *h, int64_t start_ns)
{
    return (double)(loop_now_ns(h->rt->loop) - start_ns) / 1e6;
}

/* e NULL: no hook listens, and the clock is not read. */
static void put_wall_time(struct event *e, struct session *h)
{
    if (e)
        event_number(e, "system_time_ms", (double)(clock_wall_ns(h->rt->clock) / 1000000));
}

/* The metadata that the caller gave the operation; op may be NULL. */
static void put_call_metadata(struct event *e, const struct operation *op)
{
    if (op && op->options)
        event_own(e, op->options->metadata, op->options->n_metadata);
}

/* ---- parts of events for telemetry ------------------------------------------------------------ */

/* A JSON object being written, for the data of one telemetry event. */
struct data {
    struct buf buf;
    struct json_writer w;
};

/* 256 KiB are far above what any event needs; a longer one is dropped by send_data(). */
static void begin_data(struct data *d)
{
    buf_init(&d->buf, 1 << 18);
    json_writer_init(&d->w, &d->buf);
    json_put_begin_object(&d->w);
}

static void put_text(struct data *d, const char *key, const char *value)
{
    json_put_key(&d->w, key);
    if (value)
        json_put_string(&d->w, value);
    else
        json_put_null(&d->w);
}

/* Helpers for one member each; the keys are those of the reference SDK. */
static void put_int(struct data *d, const char *key, int64_t value)
{
    json_put_key(&d->w, key);
    json_put_int64(&d->w, value);
}

static void put_seconds(struct data *d, const char *key, int64_t ns)
{
    json_put_key(&d->w, key);
    json_put_double(&d->w, (double)ns / 1e9);
}

static void put_bool(struct data *d, const char *key, bool value)
{
    json_put_key(&d->w, key);
    json_put_bool(&d->w, value);
}

/* The object is copied into the queue.  An object that did not fit or had no memory is
 * dropped: telemetry never fails a call. */
static void send_data(struct data *d, struct session *h, const char *name, tinker_severity severity)
{
    json_put_end_object(&d->w);
    if (buf_ok(&d->buf))
        telemetry_generic(h->telemetry, name, severity, d->buf.data, d->buf.len);
    buf_clear(&d->buf);
}

/* C has no stack trace, but the service's schema has the key: it is null. */
static void put_failure(struct data *d, const tinker_error *err)
{
    put_text(d, "exception", err->message);
    put_text(d, "exception_type", telemetry_error_type(err));
    put_text(d, "exception_stack", NULL);
    json_put_key(&d->w, "status_code");
    if (err->http_status)
        json_put_int64(&d->w, err->http_status);
    else
        json_put_null(&d->w);
}

/* Wall time in seconds since 1970.  The start is computed backwards, because only the
 * monotonic time of it was kept. */
static void put_times(struct data *d, struct session *h, int64_t start_ns)
{
    int64_t elapsed = loop_now_ns(h->rt->loop) - start_ns;
    int64_t wall = clock_wall_ns(h->rt->clock);
    put_seconds(d, "start_time", wall - elapsed);
    put_seconds(d, "current_time", wall);
    put_seconds(d, "elapsed_time", elapsed);
}

/* ---- attempts of layers 2 and 3 --------------------------------------------------------------- */

/* again: layer 3 (whole samples) will submit once more, so it is only a warning. */
static void send_sample_failure(struct session *h, const struct attempt *a, bool again)
{
    if (!h->telemetry)
        return;
    bool user = telemetry_is_user_error(a->err);
    struct data d;
    begin_data(&d);
    put_text(&d, "func", "sample");
    put_failure(&d, a->err);
    put_bool(&d, "should_retry", again);
    put_bool(&d, "is_user_error", user);
    put_int(&d, "attempt_count", a->number);
    put_times(&d, h, a->first_ns);
    send_data(&d, h, "RetryHandler.execute.exception",
              again || user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

/* Layer 2 ("call") and layer 3 ("sample") share these events; the text "layer" tells them
 * apart. */
void attempt_event(struct session *h, enum attempt_event event, const struct attempt *a)
{
    static const char *const names[] = { "retry.attempt.start", "retry.attempt.stop",
                                         "retry.attempt.retry", "retry.attempt.failed" };
    bool sample = strcmp(a->layer, "sample") == 0;
    /* Metrics count always, hooks or not. */
    if (event == ATTEMPT_RETRY)
        metric_add(sample ? h->cfg->metrics.sample_retries : h->cfg->metrics.try_retries, 1);
    /* Layer 2 sends its own telemetry event from send_try_failure(). */
    if (sample && (event == ATTEMPT_RETRY || event == ATTEMPT_FAILED))
        send_sample_failure(h, a, event == ATTEMPT_RETRY);
    struct event *e = event_new(h->hooks, names[event]);
    event_number(e, "attempt", a->number);
    if (event == ATTEMPT_START)
        put_wall_time(e, h);
    else
        event_number(e, "duration_ms", ms_since(h, a->started_ns));
    if (event == ATTEMPT_RETRY)
        event_number(e, "delay_ms", (double)a->delay_ms);
    event_text(e, "layer", a->layer);
    event_text(e, "operation", a->operation);
    event_text(e, "error", a->err ? a->err->message : NULL);
    put_call_metadata(e, a->op);
    event_send(e);
}

/* ---- calls ------------------------------------------------------------------------------------ */

/* As the text "pool" of events shows them. */
static const char *const pool_names[POOL_COUNT] = {
    [POOL_SESSION] = "session", [POOL_TRAIN] = "training",      [POOL_SAMPLE] = "sampling",
    [POOL_RETRIEVE] = "future", [POOL_TELEMETRY] = "telemetry", [POOL_REDIRECT] = "redirect",
    [POOL_AUTH] = "auth",       [POOL_CONFIG] = "config",
};

/* What all events of a request begin with.  NULL when no hook wants it. */
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

static void log_attempt(struct call *c)
{
    struct session *h = c->session;
    /* Without the option only the line of debugging, which has no header in it. */
    if (!h->cfg->dump_headers) {
        log_line(&h->log, LOG_DEBUG, "%s %s", c->spec->method, c->path);
        return;
    }
    struct buf b;
    buf_init(&b, 1 << 16);
    /* A header that carries a secret shows its name only.  The shared headers hold no secrets. */
    for (size_t i = 0; i < c->http.n_headers; i++) {
        const struct http_header *v = &c->http.headers[i];
        buf_printf(&b, "%s%s: %s", i ? ", " : "", v->name, v->secret ? "[REDACTED]" : v->value);
    }
    const char *line;
    for (size_t i = 0; (line = http_common_line(c->http.common, i)) != NULL; i++)
        buf_printf(&b, ", %s", line);
    log_line(&h->log, LOG_INFO, "%s %s%s (attempt %d, body of %zu bytes) %s", c->spec->method,
             h->cfg->base_url, c->path, c->attempt + 1, c->body_len, buf_ok(&b) ? b.data : "");
    buf_clear(&b);
}

/* layer 2 counts tries from 0, people from 1. */
static struct attempt try_of(const struct call *c)
{
    /* CALL_CAUGHT: the owner deals with the status itself, so it is no failure here. */
    bool fine = c->outcome == CALL_OK || c->outcome == CALL_CAUGHT;
    return (struct attempt){ .layer = "call",
                             .operation = c->spec->name,
                             .number = c->tries + 1,
                             .started_ns = c->try_ns,
                             .err = fine ? NULL : &c->err,
                             .op = c->op };
}

static void start_try_event(struct call *c)
{
    struct session *h = c->session;
    /* Each poll is a try of its own. */
    if (c->spec->pool == POOL_RETRIEVE)
        metric_add(h->cfg->metrics.polls, 1);
    struct event *e = request_event(c, "http.request.start");
    put_wall_time(e, h);
    put_call_metadata(e, c->op);
    event_send(e);
    struct attempt a = try_of(c);
    /* err is still that of the previous try. */
    a.err = NULL;
    if (c->spec->outer)
        attempt_event(h, ATTEMPT_START, &a);
}

/* One try of layer 2 is over: one request for the metrics, however many attempts of layer 1
 * it took. */
static void end_try_event(struct call *c)
{
    struct session *h = c->session;
    const struct own_metrics *m = &h->cfg->metrics;
    double ms = ms_since(h, c->try_ns);
    bool ok = c->outcome == CALL_OK;
    metric_add(m->requests, 1);
    metric_add(ok ? m->successes : m->failures, 1);
    metric_record(m->duration, ms);
    /* CALL_LOCAL: the library itself failed (memory, credentials), so there is no status to
     * tell. */
    bool answered = c->outcome != CALL_LOCAL;
    struct event *e = request_event(c, answered ? "http.request.stop" : "http.request.exception");
    event_number(e, "duration_ms", ms);
    if (answered) {
        event_number(e, "status", c->http.resp.status);
        event_number(e, "retry_count", c->attempt);
        event_text(e, "result", ok ? "ok" : "error");
    }
    event_text(e, answered ? "error" : "reason", ok ? NULL : c->err.message);
    put_call_metadata(e, c->op);
    event_send(e);
}

/* For the service's telemetry, and the log. */
static void send_try_failure(struct call *c, bool retryable)
{
    struct session *h = c->session;
    bool user = telemetry_is_user_error(&c->err);
    log_line(&h->log, LOG_DEBUG, "%s failed%s: %s", c->spec->name,
             retryable ? ", will be tried again" : "", c->err.message);
    if (!h->telemetry)
        return;
    struct data d;
    begin_data(&d);
    put_text(&d, "func", c->spec->name);
    put_failure(&d, &c->err);
    put_bool(&d, "is_retryable", retryable);
    put_bool(&d, "is_user_error", user);
    put_int(&d, "attempt_count", c->tries);
    put_times(&d, h, c->start_ns);
    send_data(&d, h, "InternalClientHolder.execute_with_retries.exception",
              retryable || user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

/* The single entry for call.c, which knows nothing of hooks, metrics and telemetry. */
void call_event(struct call *c, enum call_event event, int64_t delay_ms)
{
    const struct own_metrics *m = &c->session->cfg->metrics;
    switch (event) {
    case CALL_EVENT_TRY:
        start_try_event(c);
        break;
    case CALL_EVENT_SEND:
        log_attempt(c);
        break;
    case CALL_EVENT_RESPONSE:
        if (c->outcome == CALL_STATUS && retry_status_is(c->http.resp.status, RETRY_RATE_LIMIT))
            metric_add(m->rate_limited, 1);
        break;
    case CALL_EVENT_AGAIN:
        metric_add(m->attempt_retries, 1);
        break;
    case CALL_EVENT_TRY_END:
        end_try_event(c);
        break;
    case CALL_EVENT_TRY_FAILED:
        send_try_failure(c, delay_ms >= 0);
        break;
    case CALL_EVENT_RETRY:
    case CALL_EVENT_FINAL:
        /* Only calls with layer 2 report their attempts. */
        if (c->spec->outer) {
            struct attempt a = try_of(c);
            a.delay_ms = delay_ms;
            attempt_event(c->session,
                          event == CALL_EVENT_RETRY ? ATTEMPT_RETRY
                          : a.err                   ? ATTEMPT_FAILED
                                                    : ATTEMPT_STOP,
                          &a);
        }
        break;
    case CALL_EVENT_CANCELED: {
        /* Not counted in the metrics: there is no outcome. */
        struct event *e = request_event(c, "http.request.exception");
        event_number(e, "duration_ms", ms_since(c->session, c->try_ns));
        event_text(e, "reason", "canceled");
        put_call_metadata(e, c->op);
        event_send(e);
        break;
    }
    case CALL_EVENT_REFUSED:
        metric_add(m->circuit_refused, 1);
        break;
    }
}

/* ---- polls ------------------------------------------------------------------------------------ */

/* The iteration was counted up when the poll was sent, hence the -1. */
static void send_poll_hook(struct poll *p, const char *event, const tinker_error *err)
{
    struct event *e = event_new(p->session->hooks, event);
    event_number(e, "elapsed_ms", ms_since(p->session, p->poll_start_ns));
    event_number(e, "iteration", (double)(p->iteration - 1));
    event_number(e, "status", err->http_status);
    event_text(e, "request_id", p->request_id);
    event_text(e, "request_type", p->kind->request_type);
    event_text(e, "error", err->message);
    put_call_metadata(e, p->call.op);
    event_send(e);
}

/* The pair of poll_begin() and poll_end() writes what all events of a poll have in common. */
static void poll_begin(struct data *d, const struct poll *p)
{
    begin_data(d);
    put_text(d, "request_id", p->request_id);
    put_text(d, "request_type", p->kind->request_type);
}

static void poll_end(struct data *d, struct poll *p, const char *name, tinker_severity severity)
{
    char full[96];
    put_int(d, "iteration", p->iteration - 1);
    put_seconds(d, "elapsed_time", loop_now_ns(p->session->rt->loop) - p->poll_start_ns);
    snprintf(full, sizeof(full), "APIFuture.result_async.%s", name);
    send_data(d, p->session, full, severity);
}

/* What the service wrote: it may repeat a secret, and it may be long. */
static void foreign_text(struct data *d, const char *key, const char *value)
{
    char copy[4096];
    snprintf(copy, sizeof(copy), "%s", value);
    log_redact(copy, sizeof(copy));
    put_text(d, key, copy);
}

/* One poll failed and the state machine in poll.c has decided how to go on: kind. */
static void send_poll_status(struct poll *p, enum poll_event kind)
{
    /* By enum poll_event; a failure to connect (the last) counts as retry_with_backoff. */
    static const char *const kinds[] = { "retry",           "retry_with_backoff",
                                         "retry_if_budget", "retryable_exception",
                                         "fatal",           "retry_with_backoff" };
    const tinker_error *err = &p->call.err;
    send_poll_hook(
        p, kind == POLL_EVENT_CONNECTION ? "future.connection_error" : "future.api_error", err);
    if (!p->session->telemetry)
        return;
    /* Only where the decision ends the poll, or may soon, is the whole response worth
     * sending. */
    bool loud = kind == POLL_EVENT_FATAL || kind == POLL_EVENT_BUDGET;
    struct data d;
    poll_begin(&d, p);
    put_int(&d, "status_code", kind == POLL_EVENT_CONNECTION ? 0 : err->http_status);
    put_text(&d, "detail", err->message);
    put_text(&d, "kind", kinds[kind]);
    put_bool(&d, "should_retry", kind != POLL_EVENT_FATAL);
    put_bool(&d, "is_user_error", telemetry_is_user_error(err));
    put_text(&d, "exception", err->message);
    put_text(&d, "exception_type", telemetry_error_type(err));
    put_int(&d, "bad_request_retries", p->bad400);
    put_int(&d, "connection_error_retries", p->conn);
    if (loud) {
        const struct http_response *resp = &p->call.http.resp;
        foreign_text(&d, "response_headers", resp->head.data ? resp->head.data : "");
        /* Request headers carry the API key, so they are never reported. */
        put_text(&d, "request_headers", "[REDACTED]");
        if (resp->body.len > 0)
            foreign_text(&d, "response_body", resp->body.data);
    }
    poll_end(&d, p, kind == POLL_EVENT_CONNECTION ? "connection_error" : "api_status_error",
             loud ? TINKER_SEVERITY_ERROR : TINKER_SEVERITY_WARNING);
}

/* The service reported that the request itself failed.  Category user is no fault of the
 * service. */
static void send_poll_failed(struct poll *p, const tinker_error *err, const char *error)
{
    static const char *const names[] = { "Unknown", "Server", "User" };
    send_poll_hook(p, "future.request_failed", err);
    if (!p->session->telemetry)
        return;
    bool user = err->category == TINKER_CATEGORY_USER;
    struct data d;
    poll_begin(&d, p);
    foreign_text(&d, "error", error);
    put_text(&d, "error_category", names[err->category]);
    put_bool(&d, "is_user_error", user);
    poll_end(&d, p, "application_error", user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

/* n bytes came and could not be read as the result. */
static void send_poll_decode(struct poll *p, const tinker_error *err, bool proto, size_t n)
{
    send_poll_hook(p, "future.validation_error", err);
    if (!p->session->telemetry)
        return;
    struct data d;
    poll_begin(&d, p);
    put_text(&d, "exception", err->message);
    put_text(&d, "exception_type", telemetry_error_type(err));
    if (proto)
        put_int(&d, "proto_bytes_len", (int64_t)n);
    else
        put_text(&d, "exception_stack", NULL);
    put_text(&d, "model_cls", p->kind->request_type);
    poll_end(&d, p, proto ? "proto_deserialization_error" : "validation_error",
             TINKER_SEVERITY_ERROR);
}

void poll_event(struct poll *p, enum poll_event event, const struct poll_failure *failure)
{
    if (event == POLL_EVENT_FAILED)
        send_poll_failed(p, failure->err, failure->text);
    else if (event == POLL_EVENT_DECODE)
        send_poll_decode(p, failure->err, failure->proto, failure->n);
    else
        send_poll_status(p, event);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

/* Called for changes of the state only, see queue_state_report(). */
void queue_event(struct session *h, const char *who, enum wire_queue_state state,
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

void future_timeout_event(struct session *h, const struct tinker_future *f, double timeout_s)
{
    /* The caller's patience is over; the operation itself goes on. */
    struct event *e = event_new(h->hooks, "future.timeout");
    event_number(e, "elapsed_ms", timeout_s * 1000);
    event_number(e, "iteration", (double)f->iteration);
    event_text(e, "request_id", future_request_id(f));
    event_text(e, "request_type", f->request_type);
    put_call_metadata(e, f->op);
    event_send(e);
    if (!h->telemetry)
        return;
    struct data d;
    begin_data(&d);
    put_text(&d, "request_id", future_request_id(f));
    /* Before the first poll the type of the request is not known. */
    put_text(&d, "request_type", f->request_type ? f->request_type : "");
    json_put_key(&d.w, "timeout");
    json_put_double(&d.w, timeout_s);
    put_int(&d, "iteration", f->iteration);
    json_put_key(&d.w, "elapsed_time");
    json_put_double(&d.w, timeout_s);
    send_data(&d, h, "APIFuture.result_async.timeout", TINKER_SEVERITY_ERROR);
}

/* ---- custom losses ---------------------------------------------------------------------------- */

/* A failed loss (reason set) has a duration and no values. */
static void put_loss_outcome(struct event *e, const tinker_loss_event *l)
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

void loss_event(struct hooks *hooks, const tinker_loss_event *l)
{
    struct event *e = event_new(hooks, l->name);
    /* Only the start of a loss has a wall time; the end has the outcome. */
    if (l->system_time_ns)
        event_number(e, "system_time_ms", (double)(l->system_time_ns / 1000000));
    else
        put_loss_outcome(e, l);
    if (l->regularizer)
        event_number(e, "weight", l->weight);
    else
        event_number(e, "n_regularizers", (double)l->n_regularizers);
    event_text(e, "regularizer", l->regularizer);
    event_text(e, "reason", l->reason);
    event_send(e);
}
