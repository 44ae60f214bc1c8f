/* service.c - tinker_service: configuration, and two sessions made on first use. */
#include "client/session/service.h"

#include "client/call/call_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "client/training/custom.h"
#include "client/observe/telemetry.h"
#include "wire/wire.h"

tinker_service *tinker_service_new(const tinker_service_options *opts, tinker_error *err)
{
    tinker_service *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "service");
        return NULL;
    }
    if (config_init(&s->cfg, opts, err) != TINKER_OK) {
        free(s);
        return NULL;
    }
    s->rt = runtime_ref(err);
    if (!s->rt) {
        config_clear(&s->cfg);
        free(s);
        return NULL;
    }
    s->base = s;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->importing, NULL);
    pthread_mutex_init(&s->observer.lock, NULL);
    hooks_init(&s->hooks, s->rt, &s->cfg);
    return s;
}

/* A handle that shares everything with its base but the options of calls. Calls go to s->base; only
 * `options` is its own. */
tinker_service *tinker_service_with(tinker_service *s, const tinker_call_options *opts,
                                    tinker_error *err)
{
    struct call_options *p = call_options_make(opts, err);
    tinker_service *made = p ? calloc(1, sizeof(*made)) : NULL;
    if (made) {
        made->base = s->base;
        made->options = p;
    } else if (p) {
        call_options_unref(p);
        err_nomem(err, "service");
    }
    return made;
}

/* The session for training and sampling, or the one for REST calls, made on first use.  A child
 * process has the memory of its parent but none of its threads: nothing would ever be sent. */
static struct session *find_session(tinker_service *s, bool with_session, tinker_error *err)
{
    s = s->base;
    if (s->rt->pid != getpid()) {
        err_set(err, TINKER_ESTATE,
                "the service was made before fork(); make a new one in this process");
        return NULL;
    }
    struct session **h = with_session ? &s->session : &s->rest;
    pthread_mutex_lock(&s->lock);
    if (with_session && s->finished) {
        pthread_mutex_unlock(&s->lock);
        err_set(err, TINKER_ESTATE, "the session was ended with tinker_service_finish()");
        return NULL;
    }
    if (!*h) {
        *h = session_new(s->rt, &s->cfg, with_session, err);
        if (*h) {
            (*h)->observer = &s->observer;
            (*h)->hooks = &s->hooks;
        }
    }
    struct session *found = *h;
    pthread_mutex_unlock(&s->lock);
    return found;
}

struct session *service_session(tinker_service *s, tinker_error *err)
{
    return find_session(s, true, err);
}

struct session *service_rest(tinker_service *s, tinker_error *err)
{
    return find_session(s, false, err);
}

/* The session to end. From here on find_session() refuses to make clients; REST calls go on. */
struct session *service_finish(tinker_service *s, tinker_error *err)
{
    s = s->base;
    pthread_mutex_lock(&s->lock);
    struct session *h = s->session;
    s->finished = true;
    pthread_mutex_unlock(&s->lock);
    return h ? h : service_rest(s, err);
}

/* The id lives as long as the session, which ends with the service. */
const char *tinker_service_session_id(tinker_service *s)
{
    s = s->base;
    pthread_mutex_lock(&s->lock);
    const char *id = s->session ? s->session->session_id : NULL;
    pthread_mutex_unlock(&s->lock);
    return id ? id : "";
}

tinker_status tinker_service_observe(tinker_service *s, tinker_queue_state_fn *observer,
                                     int transitions_only, void *state)
{
    s = s->base;
    if (s->rt->pid != getpid())
        return TINKER_ESTATE;
    pthread_mutex_lock(&s->observer.lock);
    s->observer.call = observer;
    s->observer.transitions_only = transitions_only != 0;
    s->observer.state = state;
    pthread_mutex_unlock(&s->observer.lock);
    runtime_drain_callbacks(s->rt); /* the old one is not called any more */
    return TINKER_OK;
}

/* ---- telemetry ------------------------------------------------------------------------ */

/* That of the session, else of the REST calls; NULL: none has started. */
static struct telemetry *find_telemetry(tinker_service *s)
{
    s = s->base;
    if (s->rt->pid != getpid()) /* its loop sends for the parent alone */
        return NULL;
    pthread_mutex_lock(&s->lock);
    struct telemetry *t = s->session ? s->session->telemetry : NULL;
    if (!t && s->rest)
        t = s->rest->telemetry;
    pthread_mutex_unlock(&s->lock);
    return t;
}

/* What the program says is redacted as well.  A text without secrets stays as it is; one that is
 * no longer JSON afterwards is dropped. */
int tinker_service_log_event(tinker_service *s, const char *name, const char *json,
                             tinker_severity severity)
{
    size_t size = json ? 3 * strlen(json) + 1 : 0; /* the mark is at most three times the secret */
    char *clean = json ? malloc(size) : NULL;
    if (json && !clean)
        return 0;
    if (clean) {
        snprintf(clean, size, "%s", json);
        log_redact(clean, size);
    }
    int queued =
        telemetry_generic(find_telemetry(s), name, severity, clean, clean ? strlen(clean) : 0);
    free(clean);
    return queued;
}

/* The message is the program's: it may quote a key. */
int tinker_service_log_error(tinker_service *s, const tinker_error *error, int fatal)
{
    tinker_error clean = *error;
    log_redact(clean.message, sizeof(clean.message));
    return telemetry_error(find_telemetry(s), &clean, NULL, fatal != 0);
}

int tinker_service_flush_telemetry(tinker_service *s, int64_t timeout_ms)
{
    struct telemetry *t = find_telemetry(s);
    telemetry_flush(t);
    if (timeout_ms > 0 && runtime_may_block("flushing telemetry", NULL) != TINKER_OK)
        timeout_ms = 0;
    return telemetry_wait(t, timeout_ms);
}

/* ---- closing ------------------------------------------------------------------------ */

/* Lives on the stack of end_service(), which waits until all sessions are closed. */
struct closing {
    tinker_service *service;
    const void *session; /* its session, which is gone by then */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int open;
};

/* On the loop thread, once per session; the last one wakes end_service(). */
static void on_session_closed(void *arg)
{
    struct closing *c = arg;
    pthread_mutex_lock(&c->lock);
    c->open--;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

/* On the loop thread, because a session belongs to it. */
static void close_sessions(void *arg)
{
    struct closing *c = arg;
    if (c->service->session)
        session_close(c->service->session, on_session_closed, c);
    if (c->service->rest)
        session_close(c->service->rest, on_session_closed, c);
    sampler_export_close_all(c->service, on_session_closed, c);
}

/* Close the sessions on the loop thread, wait, then wait for callbacks of custom losses and for
 * lines on their way to the program: after this call nothing of the service runs.  In a child
 * process none of that exists, and only memory is freed. */
static void end_service(tinker_service *s)
{
    if (s->rt->pid == getpid()) {
        struct closing c = { s, s->session, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
                             (s->session != NULL) + (s->rest != NULL) + sampler_export_count(s) };
        runtime_sync(s->rt, close_sessions, &c);
        pthread_mutex_lock(&c.lock);
        while (c.open > 0)
            pthread_cond_wait(&c.cond, &c.lock);
        pthread_mutex_unlock(&c.lock);
        custom_jobs_wait(c.session);
        runtime_drain_callbacks(s->rt);
        runtime_unref(s->rt);
        sampler_export_free_all(s);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->importing);
    pthread_mutex_destroy(&s->observer.lock);
    hooks_clear(&s->hooks);
    config_clear(&s->cfg);
    free(s);
}

static void *run_service_end(void *arg)
{
    end_service(arg);
    return NULL;
}

void tinker_service_free(tinker_service *s)
{
    if (s && s->base != s) { /* only options; the service itself goes on */
        call_options_unref(s->options);
        free(s);
        return;
    }
    if (s && runtime_is_own_thread()) {
        /* In a callback the end would wait for the callback itself: another thread does it, and the program
         * is told nothing more (muted), because it may have freed what its callbacks use.  Without memory
         * for a thread the service leaks, which is better than a deadlock. */
        pthread_t thread;
        atomic_store(&s->cfg.muted, true);
        pthread_mutex_lock(&s->observer.lock);
        s->observer.call = NULL;
        pthread_mutex_unlock(&s->observer.lock);
        if (pthread_create(&thread, NULL, run_service_end, s) == 0)
            pthread_detach(thread);
    } else if (s)
        end_service(s);
}

/* ---- shared by the clients ------------------------------------------------------------ */

tinker_training *service_await_training(tinker_future *f, int64_t timeout_ms, tinker_error *err)
{
    f = tinker_future_await(f, timeout_ms, err);
    tinker_training *t = f ? tinker_future_take_training(f) : NULL;
    tinker_future_free(f);
    return t;
}

tinker_sampler *service_await_sampler(tinker_future *f, int64_t timeout_ms, tinker_error *err)
{
    f = tinker_future_await(f, timeout_ms, err);
    tinker_sampler *s = f ? tinker_future_take_sampler(f) : NULL;
    tinker_future_free(f);
    return s;
}

/* A submission is answered with an id, under which the result is polled for. */
tinker_status submission_id(struct call *c, char *out, size_t size)
{
    struct wire_untyped_api_future res;
    struct arena scratch;
    const struct buf *body = &c->http.resp.body;
    arena_init(&scratch, 1 << 20);
    tinker_status s = wire_decode_json(&wire_untyped_api_future, body->data ? body->data : "",
                                       body->len, WIRE_LENIENT, &scratch, &res, &c->err);
    size_t n = s == TINKER_OK ? strlen(res.request_id) : 0;
    if (s == TINKER_OK && n < size)
        memcpy(out, res.request_id, n + 1);
    else if (s == TINKER_OK)
        s = err_set(&c->err, TINKER_EPROTOCOL, "the request id has more than %zu bytes", size - 1);
    arena_clear(&scratch);
    return wire_as_answer(s, &c->err);
}
