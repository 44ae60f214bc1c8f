/* telemetry.c - see telemetry.h.
 *
 * Lock: `lock` guards the queue, the counters and `idle`.  The batch being sent is the
 * head of the queue and stays there until it is delivered or given up. */
#include "client/call/retry_policy.h"
#include "client/observe/telemetry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "base/rand.h"
#include "client/call/call.h"
#include "client/session/session.h"
#include "client/session/user_agent.h"
#include "json/json.h"
#include "wire/timestamp.h"
#include "wire/wire.h"

/* A flush after 10 s or 100 events, whichever is first; above 10000 waiting events new ones
 * are dropped. */
enum { BATCH_MAX = 100, QUEUE_MAX = 10000, FLUSH_MS = 10000 };

/* Owns its texts: wire points into text, id and duration of this same block. */
struct event {
    struct event *next;
    struct wire_telemetry_event wire;
    char id[37], duration[WIRE_TIME_TEXT];
    char text[]; /* what wire points to: name or message, then data or type */
};

struct telemetry {
    struct session *session;
    char session_id[128], process_uuid[37];
    bool with_session;
    int64_t started_us;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    struct event *first, **last; /* lock */
    size_t n_queued;             /* lock */
    int64_t next_index;          /* lock */
    bool stopped;                /* lock: no more events */
    bool posted;                 /* lock: the flush task is under way */
    struct loop_task task;
    struct timer timer; /* the next flush, or the next attempt */
    struct timer bound; /* of closing */
    struct call call;
    struct buf body;
    size_t n_sending;
    int64_t failures;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* 5 s per phase: telemetry must not keep a program from ending.  No layer 2: this file tries
 * again by itself. */
static const struct call_spec spec = {
    .name = "telemetry",
    .method = "POST",
    .pool = POOL_TELEMETRY,
    .timeout_ms = 5000,
    .timeout_text = "5.0",
    .max_retries = CALL_DEFAULT,
};

/* ---- classification ------------------------------------------------------------------ */

/* A wrong request of the program is a warning in telemetry, not an error of the library. */
bool telemetry_is_user_error(const tinker_error *err)
{
    if (err->status == TINKER_EREQUEST)
        return err->category == TINKER_CATEGORY_USER;
    return retry_status_is(err->http_status, RETRY_USER_EVENT);
}

/* Names of the exceptions of the reference SDK, which dashboards of the service group by. */
static const char *http_error_type(int status)
{
    static const struct {
        int status;
        const char *name;
    } names[] = { { 400, "BadRequestError" },       { 401, "AuthenticationError" },
                  { 403, "PermissionDeniedError" }, { 404, "NotFoundError" },
                  { 409, "ConflictError" },         { 422, "UnprocessableEntityError" },
                  { 429, "RateLimitError" } };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i].status == status)
            return names[i].name;
    return status >= 500 ? "InternalServerError" : "APIStatusError";
}

const char *telemetry_error_type(const tinker_error *err)
{
    switch (err->status) {
    case TINKER_EHTTP:
        return http_error_type(err->http_status);
    case TINKER_ECONNECT:
        return "APIConnectionError";
    case TINKER_ETIMEDOUT:
        return "APITimeoutError";
    case TINKER_EPROTOCOL:
        return "APIResponseValidationError";
    case TINKER_EREQUEST:
        return "RequestFailedError";
    default:
        return tinker_status_name(err->status);
    }
}

/* ---- the queue ------------------------------------------------------------------------ */

/* a and b go into one block, each with its NUL. */
static struct event *make_event(struct telemetry *t, enum wire_event_kind kind,
                                tinker_severity severity, const char *a, const char *b, size_t nb)
{
    size_t na = strlen(a);
    struct event *e = calloc(1, sizeof(*e) + na + nb + 2);
    if (!e)
        return NULL;
    memcpy(e->text, a, na);
    memcpy(e->text + na + 1, b, nb);
    rand_uuid(e->id);
    e->wire.kind = kind;
    e->wire.event_id = e->id;
    static const char *const severities[] = { "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL" };
    e->wire.severity = (unsigned)severity < ARRAY_LEN(severities) ? severities[severity] : "INFO";
    e->wire.timestamp.has = 1;
    e->wire.timestamp.us = clock_wall_ns(t->session->rt->clock) / 1000;
    return e;
}

static void flush_task(struct loop_task *task);

/* Append one or two events as a whole; false: dropped.
 * a before b.  Takes both: on failure they are freed.  Any thread. */
static bool enqueue_event(struct telemetry *t, struct event *a, struct event *b, bool flush)
{
    size_t n = 1 + (b != NULL);
    pthread_mutex_lock(&t->lock);
    bool fits = !t->stopped && t->n_queued + n <= QUEUE_MAX;
    if (fits) {
        /* Under the lock, so the numbers rise in the order of the queue without gaps. */
        a->wire.event_session_index = t->next_index++;
        if (b)
            b->wire.event_session_index = t->next_index++;
        a->next = b;
        *t->last = a;
        t->last = b ? &b->next : &a->next;
        t->n_queued += n;
    }
    /* Post at most once until the task has run: the task structure can be in the loop's
     * stack only once. */
    bool post = fits && (flush || t->n_queued >= BATCH_MAX) && !t->posted;
    if (post) {
        t->posted = true;
        loop_post(t->session->rt->loop, &t->task);
    }
    pthread_mutex_unlock(&t->lock);
    if (fits)
        return true;
    /* Outside the lock: a log callback may take its time. */
    log_line(&t->session->log, LOG_WARNING, "telemetry queue is full, event dropped");
    metric_add(t->session->cfg->metrics.telemetry_dropped, (int64_t)n);
    free(a);
    free(b);
    return false;
}

/* Any thread.  false: dropped, not an object, or no telemetry. */
bool telemetry_generic(struct telemetry *t, const char *name, tinker_severity severity,
                       const char *json, size_t n)
{
    if (!t)
        return false;
    /* Data that the program gives is sent as it is, so it must be one JSON object and nothing
     * behind it. */
    struct arena scratch;
    struct json_reader r;
    arena_init(&scratch, 1 << 20);
    json_reader_init(&r, json ? json : "{}", json ? n : 2, &scratch);
    bool object = json_peek(&r) == JSON_OBJECT && json_skip(&r) && json_end(&r);
    arena_clear(&scratch);
    if (!object)
        return false;
    struct event *e =
        make_event(t, WIRE_EVENT_GENERIC, severity, name, json ? json : "{}", json ? n : 2);
    if (!e)
        return false;
    e->wire.event_name = e->text;
    e->wire.event_data = (struct json_str){ e->text + strlen(e->text) + 1, json ? n : 2 };
    return enqueue_event(t, e, NULL, false);
}

/* The duration is of this session, from telemetry_new() on. */
static struct event *make_session_end(struct telemetry *t)
{
    struct event *e = make_event(t, WIRE_EVENT_SESSION_END, TINKER_SEVERITY_INFO, "", "", 0);
    if (e) {
        wire_duration_format(e->wire.timestamp.us - t->started_us, e->duration);
        e->wire.duration = e->duration;
    }
    return e;
}

/* The event "user_error", with what the service answered, cut and redacted. */
static struct event *is_user_failure(struct telemetry *t, const tinker_error *err, const char *body)
{
    struct buf b;
    struct json_writer w;
    struct event *e = NULL;
    buf_init(&b, 1 << 16);
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    json_put_key(&w, "error_type");
    json_put_string(&w, telemetry_error_type(err));
    if (err->message[0]) {
        json_put_key(&w, "message");
        json_put_string(&w, err->message);
    }
    if (err->http_status) {
        json_put_key(&w, "status_code");
        json_put_int64(&w, err->http_status);
    }
    if (body && *body) {
        char text[2048];
        snprintf(text, sizeof(text), "%s", body);
        log_redact(text, sizeof(text));
        json_put_key(&w, "body");
        json_put_string(&w, text);
    }
    json_put_end_object(&w);
    if (buf_ok(&b))
        e = make_event(t, WIRE_EVENT_GENERIC, TINKER_SEVERITY_WARNING, "user_error", b.data, b.len);
    if (e) {
        e->wire.event_name = e->text;
        e->wire.event_data = (struct json_str){ e->text + sizeof("user_error"), b.len };
    }
    buf_clear(&b);
    return e;
}

/* Everything that is not the user's fault. */
static struct event *make_unhandled_event(struct telemetry *t, const tinker_error *err)
{
    const char *type = telemetry_error_type(err);
    struct event *e = make_event(t, WIRE_EVENT_UNHANDLED_EXCEPTION, TINKER_SEVERITY_ERROR,
                                 err->message, type, strlen(type));
    if (e) {
        e->wire.error_message = e->text;
        e->wire.error_type = e->text + strlen(err->message) + 1;
    }
    return e;
}

/* fatal: the program is about to end, so the end of the session is queued together with the
 * error. */
bool telemetry_error(struct telemetry *t, const tinker_error *err, const char *body, bool fatal)
{
    if (!t)
        return false;
    struct event *e =
        telemetry_is_user_error(err) ? is_user_failure(t, err, body) : make_unhandled_event(t, err);
    if (!e)
        return false;
    /* Flush at once: there may be no later. */
    struct event *end = fatal && t->with_session ? make_session_end(t) : NULL;
    if (fatal)
        log_line(&t->session->log, LOG_INFO, "Exception logged for session ID: %s", t->session_id);
    return enqueue_event(t, e, end, true);
}

/* ---- sending --------------------------------------------------------------------------- */

static void send_batch(struct telemetry *t);

static void on_flush_timer(struct timer *timer)
{
    send_batch(container_of(timer, struct telemetry, timer));
}

/* Forget the first n events; they were delivered or given up. */
static void drop_events(struct telemetry *t, size_t n)
{
    pthread_mutex_lock(&t->lock);
    while (n-- > 0) {
        struct event *e = t->first;
        t->first = e->next;
        t->n_queued--;
        free(e);
    }
    if (!t->first) {
        t->last = &t->first;
        pthread_cond_broadcast(&t->idle);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Loop thread.  Either everything was sent or the time for closing is over; what is left is
 * dropped by telemetry_free(). */
static void finish_close(struct telemetry *t)
{
    struct loop *l = t->session->rt->loop;
    void (*closed)(void *arg) = t->closed;
    /* Cancel first: no completion may come after closed(). */
    call_cancel(&t->call);
    loop_disarm(l, &t->timer);
    loop_disarm(l, &t->bound);
    pthread_mutex_lock(&t->lock);
    t->stopped = true;
    pthread_cond_broadcast(&t->idle);
    pthread_mutex_unlock(&t->lock);
    t->closed = NULL;
    /* Last, because the owner may free t here. */
    closed(t->closed_arg);
}

/* The batch leaves the queue only here, delivered or given up, so no event is lost between
 * two attempts. */
static void on_batch_sent(struct call *c)
{
    struct telemetry *t = container_of(c, struct telemetry, call);
    int64_t max = t->session->cfg->telemetry_max_retries;
    /* A 2xx alone does not count: a captive portal answers 200 with a page of its own. */
    const struct buf *body = &c->http.resp.body;
    struct wire_telemetry_response res;
    struct arena scratch;
    arena_init(&scratch, 1 << 16);
    bool ok = c->outcome == CALL_OK &&
              wire_decode_json(&wire_telemetry_response, body->data ? body->data : "", body->len,
                               WIRE_LENIENT, &scratch, &res, &c->err) == TINKER_OK;
    arena_clear(&scratch);
    /* max < 0: retry forever. */
    if (ok || (max >= 0 && ++t->failures > max)) {
        if (!ok) {
            log_line(&t->session->log, LOG_WARNING, "telemetry: %zu events given up: %s",
                     t->n_sending, c->err.message);
            metric_add(t->session->cfg->metrics.telemetry_dropped, (int64_t)t->n_sending);
        }
        t->failures = 0;
        drop_events(t, t->n_sending);
        t->n_sending = 0;
        /* The next batch at once: the queue may have filled meanwhile. */
        send_batch(t);
        return;
    }
    log_line(&t->session->log, LOG_WARNING, "telemetry not delivered, trying again: %s",
             c->err.message);
    loop_arm(t->session->rt->loop, &t->timer, RETRY_TELEMETRY_MS);
}

/* Copies the heads under the lock and encodes without it; events themselves stay, since only
 * this thread removes them. */
static bool encode_batch(struct telemetry *t)
{
    struct wire_telemetry_event events[BATCH_MAX];
    size_t n = 0;
    pthread_mutex_lock(&t->lock);
    for (const struct event *e = t->first; e && n < BATCH_MAX; e = e->next)
        events[n++] = e->wire;
    pthread_mutex_unlock(&t->lock);
    t->n_sending = n;
    struct wire_telemetry_send_request req = { events,
                                               n,
                                               user_agent_of_machine()->platform,
                                               t->session->cfg->sdk_version,
                                               t->session_id,
                                               t->process_uuid };
    tinker_error err;
    buf_reset(&t->body);
    /* Nothing to send is success, too. */
    if (n == 0 || wire_encode_json(&wire_telemetry_send_request, &req, &t->body, &err) == TINKER_OK)
        return true;
    log_line(&t->session->log, LOG_WARNING, "telemetry: %zu events cannot be sent: %s", n,
             err.message);
    metric_add(t->session->cfg->metrics.telemetry_dropped, (int64_t)n);
    return false;
}

/* Send the head of the queue, or rest until the next flush. */
static void send_batch(struct telemetry *t)
{
    /* One exchange at a time keeps the order of the events. */
    if (t->call.active)
        return;
    while (!encode_batch(t)) /* a batch that cannot be written is given up, the next may do */
        drop_events(t, t->n_sending);
    if (t->n_sending == 0) {
        if (t->closed)
            finish_close(t);
        else
            loop_arm(t->session->rt->loop, &t->timer, FLUSH_MS);
        return;
    }
    loop_disarm(t->session->rt->loop, &t->timer);
    struct call *c = &t->call;
    c->session = t->session;
    c->spec = &spec;
    c->path = "api/v1/telemetry";
    c->empty_ok = true;
    /* t->body must stay unchanged until on_batch_sent(). */
    c->body = t->body.data;
    c->body_len = t->body.len;
    c->done = on_batch_sent;
    call_start(c);
}

static void flush_task(struct loop_task *task)
{
    struct telemetry *t = container_of(task, struct telemetry, task);
    pthread_mutex_lock(&t->lock);
    t->posted = false;
    bool stopped = t->stopped;
    pthread_mutex_unlock(&t->lock);
    if (!stopped && !(t->timer.armed && t->n_sending > 0)) /* else it waits to try again */
        send_batch(t);
}

void telemetry_flush(struct telemetry *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    if (!t->posted && !t->stopped) {
        t->posted = true;
        loop_post(t->session->rt->loop, &t->task);
    }
    pthread_mutex_unlock(&t->lock);
}

/* The caller's thread.  true: everything was delivered or given up in time. */
bool telemetry_wait(struct telemetry *t, int64_t timeout_ms)
{
    if (!t)
        return true;
    int64_t deadline = future_deadline_ms(timeout_ms);
    bool in_time = timeout_ms > 0;
    pthread_mutex_lock(&t->lock);
    while (t->first && !t->stopped && in_time)
        in_time = future_cond_wait_on(&t->idle, &t->lock, deadline);
    bool empty = t->first == NULL;
    pthread_mutex_unlock(&t->lock);
    return empty;
}

/* ---- life ------------------------------------------------------------------------------- */

static void on_close_bound(struct timer *timer)
{
    finish_close(container_of(timer, struct telemetry, bound));
}

/* NULL when telemetry is turned off; every function here takes NULL. */
struct telemetry *telemetry_new(struct session *h)
{
    if (!h->cfg->telemetry)
        return NULL;
    struct telemetry *t = calloc(1, sizeof(*t));
    if (!t) {
        log_line(&h->log, LOG_WARNING, "no memory for telemetry, going on without");
        return NULL;
    }
    t->session = h;
    t->with_session = h->session_id != NULL;
    if (h->session_id)
        snprintf(t->session_id, sizeof(t->session_id), "%s", h->session_id);
    else {
        /* Without a session the events still need an id that groups them. */
        char uuid[37];
        rand_uuid(uuid);
        snprintf(t->session_id, sizeof(t->session_id), "sessionless-%s", uuid);
    }
    user_agent_process_uuid(t->process_uuid);
    t->started_us = clock_wall_ns(h->rt->clock) / 1000;
    pthread_mutex_init(&t->lock, NULL);
    future_cond_init(&t->idle);
    t->last = &t->first;
    t->task.run = flush_task;
    t->timer.fire = on_flush_timer;
    t->bound.fire = on_close_bound;
    buf_init(&t->body, 64 << 20);
    if (t->with_session) {
        struct event *e = make_event(t, WIRE_EVENT_SESSION_START, TINKER_SEVERITY_INFO, "", "", 0);
        if (e)
            enqueue_event(t, e, NULL, false);
    }
    loop_arm(h->rt->loop, &t->timer, FLUSH_MS);
    return t;
}

/* Loop thread.  closed() is called exactly once, at the latest after bound_ms. */
void telemetry_close(struct telemetry *t, int64_t bound_ms, void (*closed)(void *arg), void *arg)
{
    if (!t) {
        closed(arg);
        return;
    }
    t->closed = closed;
    t->closed_arg = arg;
    struct event *e = t->with_session ? make_session_end(t) : NULL;
    if (e)
        enqueue_event(t, e, NULL, false);
    /* Armed before sending, so that a server that does not answer cannot hold the end up. */
    loop_arm(t->session->rt->loop, &t->bound, bound_ms);
    if (!t->call.active)
        send_batch(t);
}

void telemetry_free(struct telemetry *t)
{
    if (!t)
        return;
    call_clear(&t->call);
    loop_disarm(t->session->rt->loop, &t->timer);
    loop_disarm(t->session->rt->loop, &t->bound);
    while (t->first) {
        struct event *e = t->first;
        t->first = e->next;
        free(e);
    }
    buf_clear(&t->body);
    pthread_cond_destroy(&t->idle);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
