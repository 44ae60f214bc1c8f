/* session.c - one session with a service.  See holder.h. */
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

/* ---- log lines go to the user on the courier's thread ---------------------------------- */

/* It may outlive its holder, and the holder's configuration unless that is the service's own. */
struct line {
    struct runtime *rt;
    const atomic_bool *muted;
    tinker_log_callback *call;
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
        l->call(l->state, (tinker_log_level)l->level, l->text);
    else if (wanted)
        log_stderr(NULL, l->level, l->text);
    free(l);
}

static void sink(void *state, enum log_level level, const char *text)
{
    struct holder *h = state;
    const struct config *cfg = h->cfg;
    size_t n = strlen(text) + 1;
    bool room = atomic_fetch_add(&h->rt->lines, 1) < LINES_MAX;
    struct line *l = room ? malloc(sizeof(*l) + n) : NULL;
    if (l) {
        *l = (struct line){ h->rt, cfg->muted_by, cfg->log_callback, cfg->log_state, level };
        memcpy(l->text, text, n);
        if (runtime_deliver(h->rt, deliver_line, l))
            return;
    }
    atomic_fetch_sub(&h->rt->lines, 1);
    metric_add(cfg->metrics.events_dropped, 1);
    free(l);
}

/* ---- life ------------------------------------------------------------------------------ */

struct holder *holder_new(struct runtime *rt, const struct config *cfg, bool with_session,
                          tinker_error *err)
{
    struct holder *h = calloc(1, sizeof(*h));
    if (!h) {
        err_nomem(err, "session");
        return NULL;
    }
    h->rt = rt;
    h->cfg = cfg;
    h->with_session = with_session;
    h->log = (struct log){ sink, h, cfg->log.level };
    h->server = wire_client_config_defaults;
    h->refresh_interval_sec = 300;
    arena_init(&h->arena, SIZE_MAX);
    h->auth = auth_new(h, err);
    h->startup = h->auth ? session_new(h, err) : NULL;
    if (!h->startup) {
        auth_free(h->auth);
        free(h);
        return NULL;
    }
    return h;
}

static void holder_free(struct holder *h)
{
    session_free(h->startup);
    telemetry_free(h->telemetry);
    auth_free(h->auth);
    sample_limits_unref(h->limits);
    for (int i = 0; i < POOL_COUNT; i++)
        http_pool_free(h->pools[i]);
    http_common_free(h->common);
    free(h->trouble);
    arena_clear(&h->arena);
    free(h);
}

static void put_last(struct holder_waits *l, struct holder_wait *w)
{
    w->next = NULL;
    w->prev = l->last;
    w->list = l;
    *(l->last ? &l->last->next : &l->first) = w;
    l->last = w;
}

void holder_forget(struct holder_wait *w)
{
    struct holder_waits *l = w->list;
    if (!l)
        return;
    *(w->prev ? &w->prev->next : &l->first) = w->next;
    *(w->next ? &w->next->prev : &l->last) = w->prev;
    w->list = NULL;
}

void holder_started(struct holder *h, const tinker_error *err)
{
    struct holder_wait *w;
    h->state = err ? HOLDER_NEW : HOLDER_READY;
    while ((w = h->waiting.first) != NULL) { /* who comes from now on waits for another start */
        holder_forget(w);
        put_last(&h->told, w);
    }
    while ((w = h->told.first) != NULL) {
        holder_forget(w);
        w->ready(w, err);
    }
}

void holder_when_ready(struct holder *h, struct holder_wait *w)
{
    if (h->state == HOLDER_READY) {
        w->list = NULL;
        w->ready(w, NULL);
        return;
    }
    put_last(&h->waiting, w);
    if (h->state == HOLDER_NEW) {
        h->state = HOLDER_STARTING;
        session_start(h->startup);
    }
}

/* Cancel every live operation, the latest first.  A cancelled one may stay until its turn comes,
 * which the cancellation of the others brings; it may also take others with it. */
static void cancel_all(struct holder *h)
{
    for (struct op *op; (op = h->ops) != NULL;) {
        op_put(op, &h->ending);
        if (op->future)
            op_cancel(op);
        else if (op->lingers)
            op->class->abandon(op);
    }
    assert(!h->ending);
}

static void free_later(struct loop_task *t)
{
    struct holder *h = container_of(t, struct holder, free_task);
    void (*closed)(void *arg) = h->on_closed;
    void *arg = h->on_closed_arg;
    holder_free(h);
    closed(arg);
}

static void said_goodbye(void *arg)
{
    struct holder *h = arg;
    auth_stop(h->auth);
    /* this may run inside a completion of the call that is to be freed */
    h->free_task.run = free_later;
    loop_post(h->rt->loop, &h->free_task);
}

void holder_close(struct holder *h, void (*closed)(void *arg), void *arg)
{
    h->closed = true;
    h->on_closed = closed;
    h->on_closed_arg = arg;
    session_stop(h->startup);
    cancel_all(h);
    telemetry_close(h->telemetry, h->cfg->close_ms, said_goodbye, h);
}

/* ---- pools and billing ------------------------------------------------------------------- */

/* Once for each reason, however many services and requests there are. */
static void on_wait(void *state, bool none_left)
{
    struct holder *h = state;
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

/* NULL: none; a heartbeat waits for nobody. */
static struct http_budget *budget_of(const struct holder *h, enum pool_kind kind)
{
    static const enum runtime_budget budgets[POOL_COUNT] = {
        [POOL_SESSION] = BUDGET_COUNT,   [POOL_TRAIN] = BUDGET_OTHER,
        [POOL_SAMPLE] = BUDGET_SAMPLE,   [POOL_RETRIEVE] = BUDGET_POLL,
        [POOL_TELEMETRY] = BUDGET_COUNT, [POOL_REDIRECT] = BUDGET_OTHER,
        [POOL_AUTH] = BUDGET_COUNT,      [POOL_CONFIG] = BUDGET_COUNT
    };
    return budgets[kind] == BUDGET_COUNT ? NULL : h->rt->budgets[budgets[kind]];
}

struct http_pool *holder_pool(struct holder *h, enum pool_kind kind, tinker_error *err)
{
    static const int per_client[POOL_COUNT] = {
        [POOL_SESSION] = 50,   [POOL_TRAIN] = 1,     [POOL_SAMPLE] = 50, [POOL_RETRIEVE] = 50,
        [POOL_TELEMETRY] = 50, [POOL_REDIRECT] = 50, [POOL_AUTH] = 1,    [POOL_CONFIG] = 1
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
        .budget = budget_of(h, kind),
        .on_wait = on_wait,
        .on_wait_state = h,
    };
    h->pools[kind] = http_pool_new(h->rt->loop, &o, err);
    return h->pools[kind];
}

bool holder_billing_pause(struct holder *h, const char *text)
{
    int64_t now = loop_now_ns(h->rt->loop);
    if (h->billing_logged_ns && now - h->billing_logged_ns > BILLING_NEW_INCIDENT_S * second_ns)
        h->billing_first_ns = h->billing_logged_ns = 0;
    int64_t max_s = h->server.billing_exception_max_pause_duration_sec;
    if (max_s > INT64_MAX / second_ns)
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
