/* session.c - one session with a service.  See session.h. */
#include "client/session/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/sampling/sample_limits.h"
#include "client/session/startup.h"
#include "client/observe/telemetry.h"

enum {
    BILLING_NEW_INCIDENT_S = 300,
    BILLING_LOG_S = 60,
    LINES_MAX = 10000, /* on their way to the user */
};

static const int64_t second_ns = 1000000000;

/* ---- log lines are told on the callback thread ------------------------------------------ */

/* A line on its way to the program's callback.  It may outlive its session, and the session's
 * configuration unless that is the service's own, so it has copies of what it needs. */
struct line {
    struct runtime *rt;
    const atomic_bool *muted;
    tinker_log_fn *call;
    void *state;
    enum log_level level;
    char text[];
};

static void deliver_line(void *arg)
{
    struct line *l = arg;
    atomic_fetch_sub(&l->rt->lines, 1);
    bool wanted = !atomic_load(l->muted);
    if (wanted && l->call)
        l->call((tinker_log_level)l->level, l->text, l->state);
    else if (wanted)
        log_stderr(NULL, l->level, l->text);
    free(l);
}

/* Any thread.  The callback is the program's and may be slow: the I/O thread must not wait for it.
 * Lines that would pile up without bound are dropped and counted. */
static void queue_line(void *state, enum log_level level, const char *text)
{
    struct session *h = state;
    const struct config *cfg = h->cfg;
    size_t n = strlen(text) + 1;
    bool room = atomic_fetch_add(&h->rt->lines, 1) < LINES_MAX;
    struct line *l = room ? malloc(sizeof(*l) + n) : NULL;
    if (l) {
        *l = (struct line){ h->rt, cfg->muted_by, cfg->log_callback, cfg->log_state, level };
        memcpy(l->text, text, n);
        if (runtime_post_callback(h->rt, deliver_line, l))
            return;
    }
    atomic_fetch_sub(&h->rt->lines, 1);
    metric_add(cfg->metrics.events_dropped, 1);
    free(l);
}

/* ---- life ------------------------------------------------------------------------------ */

struct session *session_new(struct runtime *rt, const struct config *cfg, bool with_session,
                            tinker_error *err)
{
    struct session *h = calloc(1, sizeof(*h));
    if (!h) {
        err_nomem(err, "session");
        return NULL;
    }
    h->rt = rt;
    h->cfg = cfg;
    h->with_session = with_session;
    h->log = (struct log){ queue_line, h, cfg->log.level };
    h->server = wire_client_config_defaults;
    h->refresh_interval_sec = 300; /* until the service names its own */
    arena_init(&h->arena, SIZE_MAX);
    h->auth = auth_new(h, err);
    h->startup = h->auth ? startup_new(h, err) : NULL;
    if (!h->startup) {
        auth_free(h->auth);
        free(h);
        return NULL;
    }
    return h;
}

static void session_free(struct session *h)
{
    startup_free(h->startup);
    telemetry_free(h->telemetry);
    auth_free(h->auth);
    sample_limits_unref(h->limits);
    for (int i = 0; i < POOL_COUNT; i++)
        http_pool_free(h->pools[i]);
    http_common_free(h->common);
    free(h->last_error);
    arena_clear(&h->arena);
    free(h);
}

/* A wait is in at most one list, which it knows, so that its owner can leave it at any time. */
static void append_wait(struct session_waits *l, struct session_wait *w)
{
    w->next = NULL;
    w->prev = l->last;
    w->list = l;
    *(l->last ? &l->last->next : &l->first) = w;
    l->last = w;
}

void session_forget(struct session_wait *w)
{
    struct session_waits *l = w->list;
    if (!l)
        return;
    *(w->prev ? &w->prev->next : &l->first) = w->next;
    *(w->next ? &w->next->prev : &l->last) = w->prev;
    w->list = NULL;
}

/* Answer everything that waited for this start.  A callback may remove other waits, free their owners
 * or begin another start: so nothing is remembered from one turn of the loop to the next, and those
 * who come from now on are kept apart in `waiting`. */
void session_started(struct session *h, const tinker_error *err)
{
    struct session_wait *w;
    h->state = err ? SESSION_NEW : SESSION_READY;
    while ((w = h->waiting.first) != NULL) {
        session_forget(w);
        append_wait(&h->told, w);
    }
    while ((w = h->told.first) != NULL) {
        session_forget(w);
        w->ready(w, err);
    }
}

void session_when_ready(struct session *h, struct session_wait *w)
{
    if (h->state == SESSION_READY) {
        w->list = NULL;
        w->ready(w, NULL);
        return;
    }
    append_wait(&h->waiting, w);
    if (h->state == SESSION_NEW) {
        h->state = SESSION_STARTING;
        startup_begin(h->startup);
    }
}

static void run_free_task(struct loop_task *t)
{
    struct session *h = container_of(t, struct session, free_task);
    void (*closed)(void *arg) = h->on_closed;
    void *arg = h->on_closed_arg;
    session_free(h);
    closed(arg);
}

/* The last step of closing: nothing is under way any more. */
static void on_telemetry_closed(void *arg)
{
    struct session *h = arg;
    auth_stop(h->auth);
    /* this may run inside a completion of the call that is to be freed */
    h->free_task.run = run_free_task;
    loop_post(h->rt->loop, &h->free_task);
}

/* Order matters: no timer may start new work, then operations end and report what became of them,
 * then telemetry sends these reports, for at most close_ms. */
void session_close(struct session *h, void (*closed)(void *arg), void *arg)
{
    h->closed = true;
    h->on_closed = closed;
    h->on_closed_arg = arg;
    startup_stop(h->startup);
    /* Cancel every live operation, the latest first.  A training request that is canceled stays in
     * `ending` until those before it are gone, because requests leave in the order of their sequence
     * numbers; canceling one may also end others.  So take the first that is left until none is. */
    for (struct operation *op; (op = h->ops) != NULL;) {
        operation_put(op, &h->ending);
        if (op->future)
            operation_cancel(op);
        else if (op->lingers)
            op->class->abandon(op);
    }
    assert(!h->ending);
    telemetry_close(h->telemetry, h->cfg->close_ms, on_telemetry_closed, h);
}

/* ---- pools and billing ------------------------------------------------------------------- */

/* Once for each reason, however many services and requests there are. */
static void warn_file_limit(void *state, bool none_left)
{
    struct session *h = state;
    struct runtime *rt = h->rt;
    bool *told = none_left ? &rt->told_none : &rt->told_full;
    if (*told)
        return;
    *told = true;
    if (none_left)
        log_line(&h->log, LOG_WARNING,
                 "no file descriptor is free: requests wait until one is; the limit of open files "
                 "is %lld, raise it with ulimit -n",
                 (long long)rt->file_limit);
    else
        log_line(&h->log, LOG_WARNING,
                 "the limit of open files is %lld: at most %d connections at once, the rest waits; "
                 "raise it with ulimit -n",
                 (long long)rt->file_limit, rt->max_sockets);
}

struct http_pool *session_pool(struct session *h, enum pool_kind kind, tinker_error *err)
{
    /* Concurrent requests of one group of connections, as in the reference: each training request
     * has a group of its own, so that a large body does not hold up the others. */
    static const int per_client[POOL_COUNT] = {
        [POOL_SESSION] = 50,   [POOL_TRAIN] = 1,     [POOL_SAMPLE] = 50, [POOL_RETRIEVE] = 50,
        [POOL_TELEMETRY] = 50, [POOL_REDIRECT] = 50, [POOL_AUTH] = 1,    [POOL_CONFIG] = 1
    };
    /* The share of the open files that a pool may use.  BUDGET_COUNT: no share; heartbeats,
     * telemetry and credentials are few, and a heartbeat that waits behind samples would cost the
     * session. */
    static const enum runtime_budget budgets[POOL_COUNT] = {
        [POOL_SESSION] = BUDGET_COUNT,   [POOL_TRAIN] = BUDGET_OTHER,
        [POOL_SAMPLE] = BUDGET_SAMPLE,   [POOL_RETRIEVE] = BUDGET_POLL,
        [POOL_TELEMETRY] = BUDGET_COUNT, [POOL_REDIRECT] = BUDGET_OTHER,
        [POOL_AUTH] = BUDGET_COUNT,      [POOL_CONFIG] = BUDGET_COUNT
    };
    if (h->pools[kind])
        return h->pools[kind];
    const struct config *cfg = h->cfg;
    struct http_pool_options o = {
        .per_client = per_client[kind],
        .max_active = kind <= POOL_REDIRECT ? cfg->pool_max[kind] : 0,
        .proxy = cfg->proxy,
        .no_proxy = cfg->no_proxy,
        .proxy_headers = cfg->proxy_headers,
        .n_proxy_headers = cfg->n_proxy_headers,
        .ca_file = cfg->ca_file,
        .only_http1 = kind == POOL_CONFIG,
        .budget = budgets[kind] == BUDGET_COUNT ? NULL : h->rt->budgets[budgets[kind]],
        .on_wait = warn_file_limit,
        .on_wait_state = h,
    };
    h->pools[kind] = http_pool_new(h->rt->loop, &o, err);
    return h->pools[kind];
}

/* States of an incident: none (both times 0) -> paused since billing_first_ns -> given up, or
 * forgotten when no 402 came for BILLING_NEW_INCIDENT_S.  All requests of the session share it, so
 * the warning is logged once a minute and not once per request. */
bool session_billing_pause(struct session *h, const char *text)
{
    int64_t now = loop_now_ns(h->rt->loop);
    if (h->billing_logged_ns && now - h->billing_logged_ns > BILLING_NEW_INCIDENT_S * second_ns)
        h->billing_first_ns = h->billing_logged_ns = 0;
    int64_t max_s = h->server.billing_exception_max_pause_duration_sec;
    if (max_s > INT64_MAX / second_ns) /* the number is the service's: no overflow below */
        max_s = INT64_MAX / second_ns;
    if (h->billing_first_ns && (max_s < 0 || now - h->billing_first_ns > max_s * second_ns)) {
        log_line(&h->log, LOG_ERROR, "billing: gave up after %lld s: %s", (long long)max_s, text);
        return false;
    }
    if (!h->billing_logged_ns || now - h->billing_logged_ns >= BILLING_LOG_S * second_ns) {
        log_line(&h->log, LOG_WARNING, "billing: paused until the account is in order: %s", text);
        h->billing_logged_ns = now;
    }
    if (!h->billing_first_ns)
        h->billing_first_ns = now;
    return true;
}
