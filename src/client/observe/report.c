/* report.c - see report.h.  The event names and keys are the reference's. */
#include "client/observe/report.h"

#include <stdio.h>
#include <string.h>
#include "client/future/future.h"
#include "client/observe/instrument.h"
#include "client/call/poll.h"
#include "client/observe/telemetry.h"
#include "json/json.h"

/* ---- writing event_data ---------------------------------------------------------------- */

struct data {
    struct buf buf;
    struct json_writer w;
};

static void begin(struct data *d)
{
    buf_init(&d->buf, 1 << 18);
    json_writer_init(&d->w, &d->buf);
    json_put_begin_object(&d->w);
}

static void text(struct data *d, const char *key, const char *value)
{
    json_put_key(&d->w, key);
    if (value)
        json_put_string(&d->w, value);
    else
        json_put_null(&d->w);
}

static void number(struct data *d, const char *key, int64_t value)
{
    json_put_key(&d->w, key);
    json_put_int64(&d->w, value);
}

static void seconds(struct data *d, const char *key, int64_t ns)
{
    json_put_key(&d->w, key);
    json_put_double(&d->w, (double)ns / 1e9);
}

static void truth(struct data *d, const char *key, bool value)
{
    json_put_key(&d->w, key);
    json_put_bool(&d->w, value);
}

static void end(struct data *d, struct session *h, const char *name, tinker_severity severity)
{
    json_put_end_object(&d->w);
    if (buf_ok(&d->buf))
        telemetry_generic(h->telemetry, name, severity, d->buf.data, d->buf.len);
    buf_clear(&d->buf);
}

/* ---- attempts ---------------------------------------------------------------------------- */

static void append_headers(struct buf *out, const struct call *c)
{
    for (size_t i = 0; i < c->http.n_headers; i++) {
        const struct http_header *h = &c->http.headers[i];
        buf_printf(out, "%s%s: %s", i ? ", " : "", h->name, h->secret ? "[REDACTED]" : h->value);
    }
    const char *line; /* none of these is a secret */
    for (size_t i = 0; (line = http_common_line(c->http.common, i)) != NULL; i++)
        buf_printf(out, ", %s", line);
}

void report_attempt(struct call *c)
{
    struct session *h = c->session;
    if (!h->cfg->dump_headers) {
        log_line(&h->log, LOG_DEBUG, "%s %s", c->spec->method, c->path);
        return;
    }
    struct buf b;
    buf_init(&b, 1 << 16);
    append_headers(&b, c);
    log_line(&h->log, LOG_INFO, "%s %s%s (attempt %d, body of %zu bytes) %s", c->spec->method,
             h->cfg->base_url, c->path, c->attempt + 1, c->body_len, buf_ok(&b) ? b.data : "");
    buf_clear(&b);
}

static void failure(struct data *d, const tinker_error *err)
{
    text(d, "exception", err->message);
    text(d, "exception_type", telemetry_error_type(err));
    text(d, "exception_stack", NULL);
    json_put_key(&d->w, "status_code");
    if (err->http_status)
        json_put_int64(&d->w, err->http_status);
    else
        json_put_null(&d->w);
}

static void times(struct data *d, struct session *h, int64_t start_ns)
{
    int64_t elapsed = loop_now_ns(h->rt->loop) - start_ns;
    int64_t wall = clock_wall_ns(h->rt->clock);
    seconds(d, "start_time", wall - elapsed);
    seconds(d, "current_time", wall);
    seconds(d, "elapsed_time", elapsed);
}

void report_try(struct call *c, bool retryable)
{
    struct session *h = c->session;
    bool user = telemetry_is_user_error(&c->err);
    log_line(&h->log, LOG_DEBUG, "%s failed%s: %s", c->spec->name,
             retryable ? ", will be tried again" : "", c->err.message);
    if (!h->telemetry)
        return;
    struct data d;
    begin(&d);
    text(&d, "func", c->spec->name);
    failure(&d, &c->err);
    truth(&d, "is_retryable", retryable);
    truth(&d, "is_user_error", user);
    number(&d, "attempt_count", c->tries);
    times(&d, h, c->start_ns);
    end(&d, h, "InternalClientHolder.execute_with_retries.exception",
        retryable || user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

void report_sample(struct session *h, const struct report_failure *a)
{
    if (!h->telemetry)
        return;
    bool user = telemetry_is_user_error(a->err);
    struct data d;
    begin(&d);
    text(&d, "func", "sample");
    failure(&d, a->err);
    truth(&d, "should_retry", a->should_retry);
    truth(&d, "is_user_error", user);
    number(&d, "attempt_count", a->attempt);
    times(&d, h, a->start_ns);
    end(&d, h, "RetryHandler.execute.exception",
        a->should_retry || user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

/* ---- polls --------------------------------------------------------------------------------- */

static void poll_begin(struct data *d, const struct poll *p)
{
    begin(d);
    text(d, "request_id", p->request_id);
    text(d, "request_type", p->kind->request_type);
}

static void poll_end(struct data *d, struct poll *p, const char *name, tinker_severity severity)
{
    char full[96];
    number(d, "iteration", p->iteration - 1);
    seconds(d, "elapsed_time", loop_now_ns(p->session->rt->loop) - p->poll_start_ns);
    snprintf(full, sizeof(full), "APIFuture.result_async.%s", name);
    end(d, p->session, full, severity);
}

/* What the service wrote: it may repeat a secret, and it may be long. */
static void foreign_text(struct data *d, const char *key, const char *value)
{
    char copy[4096];
    snprintf(copy, sizeof(copy), "%s", value);
    log_redact(copy, sizeof(copy));
    text(d, key, copy);
}

static void put_headers(struct data *d, const struct poll *p)
{
    const struct http_response *resp = &p->call.http.resp;
    foreign_text(d, "response_headers", resp->head.data ? resp->head.data : "");
    text(d, "request_headers", "[REDACTED]");
    if (resp->body.len > 0)
        foreign_text(d, "response_body", resp->body.data);
}

void report_poll_status(struct poll *p, enum report_kind kind)
{
    static const char *const kinds[] = { "retry",           "retry_with_backoff",
                                         "retry_if_budget", "retryable_exception",
                                         "fatal",           "retry_with_backoff" };
    const tinker_error *err = &p->call.err;
    local_poll(p, kind == REPORT_CONNECTION ? "future.connection_error" : "future.api_error", err);
    if (!p->session->telemetry)
        return;
    bool loud = kind == REPORT_FATAL || kind == REPORT_BUDGET;
    struct data d;
    poll_begin(&d, p);
    number(&d, "status_code", kind == REPORT_CONNECTION ? 0 : err->http_status);
    text(&d, "detail", err->message);
    text(&d, "kind", kinds[kind]);
    truth(&d, "should_retry", kind != REPORT_FATAL);
    truth(&d, "is_user_error", telemetry_is_user_error(err));
    text(&d, "exception", err->message);
    text(&d, "exception_type", telemetry_error_type(err));
    number(&d, "bad_request_retries", p->bad400);
    number(&d, "connection_error_retries", p->conn);
    if (loud)
        put_headers(&d, p);
    poll_end(&d, p, kind == REPORT_CONNECTION ? "connection_error" : "api_status_error",
             loud ? TINKER_SEVERITY_ERROR : TINKER_SEVERITY_WARNING);
}

void report_poll_failed(struct poll *p, const char *error, int category)
{
    static const char *const names[] = { "Unknown", "Server", "User" };
    tinker_error err = { .category = category };
    snprintf(err.message, sizeof(err.message), "%s", error);
    local_poll(p, "future.request_failed", &err);
    if (!p->session->telemetry)
        return;
    bool user = category == TINKER_CATEGORY_USER;
    struct data d;
    poll_begin(&d, p);
    foreign_text(&d, "error", error);
    text(&d, "error_category", names[category]);
    truth(&d, "is_user_error", user);
    poll_end(&d, p, "application_error", user ? TINKER_SEVERITY_WARNING : TINKER_SEVERITY_ERROR);
}

void report_poll_decode(struct poll *p, const tinker_error *err, bool proto, size_t n)
{
    local_poll(p, "future.validation_error", err);
    if (!p->session->telemetry)
        return;
    struct data d;
    poll_begin(&d, p);
    text(&d, "exception", err->message);
    text(&d, "exception_type", telemetry_error_type(err));
    if (proto)
        number(&d, "proto_bytes_len", (int64_t)n);
    else
        text(&d, "exception_stack", NULL);
    text(&d, "model_cls", p->kind->request_type);
    poll_end(&d, p, proto ? "proto_deserialization_error" : "validation_error",
             TINKER_SEVERITY_ERROR);
}

void report_timeout(struct session *h, const struct tinker_future *f, double timeout_s)
{
    local_timeout(h, f, timeout_s);
    if (!h->telemetry)
        return;
    struct data d;
    begin(&d);
    text(&d, "request_id", future_request_id(f));
    text(&d, "request_type", f->request_type ? f->request_type : "");
    json_put_key(&d.w, "timeout");
    json_put_double(&d.w, timeout_s);
    number(&d, "iteration", f->iteration);
    json_put_key(&d.w, "elapsed_time");
    json_put_double(&d.w, timeout_s);
    end(&d, h, "APIFuture.result_async.timeout", TINKER_SEVERITY_ERROR);
}
