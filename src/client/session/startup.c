/* startup.c - the start-up sequence, heartbeats, configuration refreshes.
 *
 *   client/config -> (token) -> client/dynamic_config -> create_session -> timers
 *
 * Each step begins in the completion of the one before.  A heartbeat is sent 10 s after
 * the previous one ended; its failures are noted and otherwise ignored. */
#include "client/session/startup.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/session/session.h"
#include "client/sampling/sample_limits.h"
#include "client/observe/telemetry.h"
#include "wire/wire.h"

enum {
    HEARTBEAT_MS = 10000,
    HEARTBEAT_WARN_MS = 120000,
    REFRESH_FLOOR_SEC = 10,
    REFRESH_CEILING_SEC = 366 * 86400
};

/* Three requests may be under way at once: a step of the start, a heartbeat and a refresh of the
 * configuration.  `body` is shared by the steps and the refresh, which never overlap: a refresh
 * begins only when the session is ready. */
struct startup {
    struct session *session;
    struct call call;      /* of the step under way */
    struct call heartbeat; /* these two only once ready */
    struct call refresh;
    struct timer heartbeat_timer, refresh_timer;
    struct buf body, heartbeat_body;
};

/* Timeouts of the requests that repeat are short: the next one is never far, and a hung one would
 * hold up the state of the session. */
static const struct call_spec config_spec = {
    .name = "client/config",
    .method = "POST",
    .pool = POOL_CONFIG,
    .max_retries = CALL_DEFAULT,
    .outer = true,
};
static const struct call_spec dynamic_spec = {
    .name = "client/dynamic_config",
    .method = "POST",
    .pool = POOL_SESSION,
    .timeout_ms = 10000,
    .timeout_text = "10",
    .outer = true,
};
static const struct call_spec refresh_spec = {
    .name = "client/dynamic_config",
    .method = "POST",
    .pool = POOL_SESSION,
    .timeout_ms = 10000,
    .timeout_text = "10",
};
static const struct call_spec session_spec = {
    .name = "create_session",
    .method = "POST",
    .pool = POOL_SESSION,
    .max_retries = CALL_DEFAULT,
};
static const struct call_spec heartbeat_spec = {
    .name = "session_heartbeat",
    .method = "POST",
    .pool = POOL_SESSION,
    .timeout_ms = 10000,
    .timeout_text = "10",
};

/* The end of the sequence, success or failure: wake everything that waits for the session.
 * Telemetry begins with the first start that succeeds; `step` names the request that failed. */
static void finish_startup(struct startup *s, const tinker_error *err, const char *step)
{
    tinker_error named;
    if (!err && !s->session->telemetry)
        s->session->telemetry = telemetry_new(s->session);
    if (err) {
        named = *err;
        err_prefix(&named, "%s", step);
    }
    session_started(s->session, err ? &named : NULL);
}

/* Encode a request into s->body and send it. */
static void send_step(struct startup *s, const struct call_spec *spec, const char *path,
                      const struct wire_type *type, const void *request,
                      void (*done)(struct call *c))
{
    tinker_error err;
    struct call *c = &s->call;
    buf_reset(&s->body);
    if (wire_encode_json(type, request, &s->body, &err) != TINKER_OK) {
        finish_startup(s, &err, spec->name);
        return;
    }
    c->session = s->session;
    c->spec = spec;
    c->path = path;
    c->body = s->body.data;
    c->body_len = s->body.len;
    /* The configuration says which credential to use; its own request uses the raw one. */
    c->use = spec->pool == POOL_CONFIG ? AUTH_BOOTSTRAP : AUTH_NORMAL;
    c->done = done;
    call_start(c);
}

/* Decode the answer of a finished step into *out; false: it failed and was reported. */
static bool read_step(struct call *c, const struct wire_type *type, struct arena *arena, void *out)
{
    struct startup *s = container_of(c, struct startup, call);
    const struct buf *body = &c->http.resp.body;
    if (c->outcome == CALL_OK) {
        tinker_status status = wire_decode_json(type, body->data ? body->data : "", body->len,
                                                WIRE_LENIENT, arena, out, &c->err);
        if (wire_as_answer(status, &c->err) == TINKER_OK)
            return true;
    }
    finish_startup(s, &c->err, c->spec->name);
    return false;
}

/* ---- heartbeats --------------------------------------------------------------------- */

/* Counted from the end of the last one, so that heartbeats to a slow service do not pile up. */
static void arm_heartbeat(struct startup *s)
{
    loop_arm(s->session->rt->loop, &s->heartbeat_timer, HEARTBEAT_MS);
}

static void heartbeat_done(struct call *c)
{
    struct startup *s = container_of(c, struct startup, heartbeat);
    struct session *h = s->session;
    int64_t now = loop_now_ns(h->rt->loop);
    /* silent_ms below counts from here. */
    if (c->outcome == CALL_OK) {
        h->heartbeat_ok_ns = now;
        h->heartbeat_failures = 0;
        arm_heartbeat(s);
        return;
    }
    int64_t silent_ms = (now - h->heartbeat_ok_ns) / 1000000;
    h->heartbeat_failures++;
    if (silent_ms > HEARTBEAT_WARN_MS)
        log_line(&h->log, LOG_WARNING,
                 "no heartbeat of session %s got through for %lld s, it may be terminated if this "
                 "persists: %s",
                 h->session_id, (long long)(silent_ms / 1000), c->err.message);
    /* Both limits are the program's choice and off by default: the service may come back at any
     * time, and it is the one who decides when a silent session is over. */
    int64_t max = h->cfg->heartbeat_max_failures, max_ms = h->cfg->heartbeat_max_ms;
    if ((max > 0 && h->heartbeat_failures > max) || (max_ms > 0 && silent_ms > max_ms))
        log_line(&h->log, LOG_WARNING, "heartbeats of session %s stop after %d failures in a row",
                 h->session_id, h->heartbeat_failures);
    else
        arm_heartbeat(s);
}

/* No retries: the next heartbeat is one. */
static void heartbeat_send(struct timer *t)
{
    struct startup *s = container_of(t, struct startup, heartbeat_timer);
    struct call *c = &s->heartbeat;
    c->session = s->session;
    c->spec = &heartbeat_spec;
    c->path = "api/v1/session_heartbeat";
    c->empty_ok = true;
    c->body = s->heartbeat_body.data;
    c->body_len = s->heartbeat_body.len;
    c->done = heartbeat_done;
    call_start(c);
}

void startup_stop_heartbeats(struct startup *s)
{
    call_cancel(&s->heartbeat);
    loop_disarm(s->session->rt->loop, &s->heartbeat_timer);
}

/* ---- dynamic configuration ---------------------------------------------------------- */

/* The interval is the service's, within reason: 0 would refresh without end, and a huge one would
 * overflow the timer. */
static void arm_refresh(struct startup *s)
{
    int64_t sec = s->session->refresh_interval_sec;
    if (sec < REFRESH_FLOOR_SEC)
        sec = REFRESH_FLOOR_SEC;
    if (sec > REFRESH_CEILING_SEC)
        sec = REFRESH_CEILING_SEC;
    loop_arm(s->session->rt->loop, &s->refresh_timer, sec * 1000);
}

/* What may change while a session lives.  Kept as it was when the answer cannot be read. */
static tinker_status read_dynamic(struct session *h, struct call *c)
{
    struct wire_client_dynamic_config_response answer;
    struct arena scratch;
    const struct buf *body = &c->http.resp.body;
    arena_init(&scratch, 1 << 20);
    tinker_status s =
        wire_decode_json(&wire_client_dynamic_config_response, body->data ? body->data : "",
                         body->len, WIRE_LENIENT, &scratch, &answer, &c->err);
    if (s == TINKER_OK) {
        h->refresh_interval_sec = answer.refresh_interval_sec;
        h->cancels = answer.sample_cancel_enabled.has && answer.sample_cancel_enabled.value;
    }
    arena_clear(&scratch);
    return wire_as_answer(s, &c->err);
}

/* A refresh that fails changes nothing; the next one may succeed. */
static void refresh_done(struct call *c)
{
    struct startup *s = container_of(c, struct startup, refresh);
    if (c->outcome != CALL_OK || read_dynamic(s->session, c) != TINKER_OK)
        log_line(&s->session->log, LOG_DEBUG, "dynamic configuration not refreshed: %s",
                 c->err.message);
    arm_refresh(s);
}

/* s->body is free by now: the start, which used it, is over before the first refresh is armed. */
static void refresh_send(struct timer *t)
{
    struct startup *s = container_of(t, struct startup, refresh_timer);
    struct wire_client_config_request req = { s->session->cfg->sdk_version };
    tinker_error err;
    buf_reset(&s->body);
    if (wire_encode_json(&wire_client_config_request, &req, &s->body, &err) != TINKER_OK) {
        arm_refresh(s);
        return;
    }
    struct call *c = &s->refresh;
    c->session = s->session;
    c->spec = &refresh_spec;
    c->path = "api/v1/client/dynamic_config";
    c->body = s->body.data;
    c->body_len = s->body.len;
    c->done = refresh_done;
    call_start(c);
}

/* ---- the sequence, last step first --------------------------------------------------- */

/* Messages that the service has for people: printed, never interpreted. */
static void log_message(struct session *h, enum log_level level, const char *text)
{
    if (text && *text)
        log_line(&h->log, level, "%s", text);
}

/* All heartbeats of a session have the same body: it is encoded once, so none can fail for want of
 * memory later. */
static bool prepare_heartbeat(struct startup *s)
{
    struct wire_session_heartbeat_request req = { s->session->session_id };
    tinker_error err;
    buf_reset(&s->heartbeat_body);
    return wire_encode_json(&wire_session_heartbeat_request, &req, &s->heartbeat_body, &err) ==
           TINKER_OK;
}

/* From here on the service holds resources for the session until heartbeats stop. */
static void keep_alive(struct startup *s)
{
    s->session->heartbeat_ok_ns = loop_now_ns(s->session->rt->loop);
    arm_heartbeat(s);
    arm_refresh(s);
}

/* A sampler that another process exported: its session exists, so nothing is asked; both processes
 * keep it alive. */
tinker_status startup_adopt(struct startup *s, tinker_error *err)
{
    if (!prepare_heartbeat(s))
        return err_nomem(err, "session");
    s->session->is_shadow = true;
    s->session->telemetry = telemetry_new(s->session);
    keep_alive(s);
    return TINKER_OK;
}

/* The service may greet with messages for people; they go to the log as they are. */
static void on_session_created(struct call *c)
{
    struct startup *s = container_of(c, struct startup, call);
    struct session *h = s->session;
    struct wire_create_session_response res;
    if (!read_step(c, &wire_create_session_response, &h->arena, &res))
        return;
    h->session_id = arena_strdup(&h->arena, res.session_id);
    if (!h->session_id || !prepare_heartbeat(s)) {
        tinker_error err;
        err_nomem(&err, "session");
        finish_startup(s, &err, "create_session");
        return;
    }
    /* A service may announce maintenance, or that this SDK is too old. */
    log_message(h, LOG_INFO, res.info_message);
    log_message(h, LOG_WARNING, res.warning_message);
    log_message(h, LOG_ERROR, res.error_message);
    log_line(&h->log, LOG_INFO, "session %s initialized", h->session_id);
    keep_alive(s);
    finish_startup(s, NULL, NULL);
}

static void create_session(struct startup *s)
{
    const struct config *cfg = s->session->cfg;
    struct wire_create_session_request req = {
        .tags = { cfg->tags, cfg->n_tags },
        .user_metadata = { cfg->user_metadata, strlen(cfg->user_metadata) },
        .sdk_version = cfg->sdk_version,
        .project_id = cfg->project_id,
        .display_name = cfg->display_name,
    };
    send_step(s, &session_spec, "api/v1/create_session", &wire_create_session_request, &req,
              on_session_created);
}

/* 404: an older service without this request; the defaults hold.  Any other failure fails the
 * start. */
static void on_dynamic(struct call *c)
{
    struct startup *s = container_of(c, struct startup, call);
    struct session *h = s->session;
    h->refresh_interval_sec = 300;
    bool absent = c->outcome == CALL_STATUS && c->http.resp.status == 404;
    if (!absent && (c->outcome != CALL_OK || read_dynamic(h, c) != TINKER_OK)) {
        finish_startup(s, &c->err, c->spec->name);
        return;
    }
    if (h->with_session)
        create_session(s);
    else
        finish_startup(s, NULL, NULL);
}

/* auth_prepare() cannot be canceled, so this may come after the session was closed. */
static void on_auth(void *arg, const tinker_error *err)
{
    struct startup *s = arg;
    if (s->session->closed)
        return;
    if (err) {
        finish_startup(s, err, "credentials");
        return;
    }
    struct wire_client_config_request req = { s->session->cfg->sdk_version };
    send_step(s, &dynamic_spec, "api/v1/client/dynamic_config", &wire_client_config_request, &req,
              on_dynamic);
}

/* Budgets have the sizes that the service states; this is their only place of birth, so a start
 * that is tried again makes them anew. */
static void on_config(struct call *c)
{
    struct startup *s = container_of(c, struct startup, call);
    struct session *h = s->session;
    if (!read_step(c, &wire_client_config_response, &h->arena, &h->server))
        return;
    http_pool_free(h->pools[POOL_CONFIG]); /* a connection for this one request */
    h->pools[POOL_CONFIG] = NULL;
    budget_init_bytes(&h->response_bytes, h->server.inflight_response_bytes_semaphore_size);
    budget_init_bytes(&h->train_bytes, h->server.fwdbwd_dispatch_bytes_semaphore_size);
    sample_limits_unref(h->limits);
    h->limits = sample_limits_ref(h->cfg->base_url, h->cfg->api_key, h->cfg->isolate_limits,
                                  h->server.sample_dispatch_bytes_semaphore_size);
    if (!h->limits) {
        tinker_error err;
        err_nomem(&err, "session");
        finish_startup(s, &err, "client/config");
        return;
    }
    auth_prepare(h->auth, on_auth, s);
}

void startup_begin(struct startup *s)
{
    struct wire_client_config_request req = { s->session->cfg->sdk_version };
    send_step(s, &config_spec, "api/v1/client/config", &wire_client_config_request, &req,
              on_config);
}

struct startup *startup_new(struct session *h, tinker_error *err)
{
    struct startup *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "session");
        return NULL;
    }
    s->session = h;
    s->heartbeat_timer.fire = heartbeat_send;
    s->refresh_timer.fire = refresh_send;
    buf_init(&s->body, 16 << 20);
    buf_init(&s->heartbeat_body, 1 << 16);
    return s;
}

/* Safe in any state, also twice. */
void startup_stop(struct startup *s)
{
    struct loop *l = s->session->rt->loop;
    call_cancel(&s->call);
    call_cancel(&s->heartbeat);
    call_cancel(&s->refresh);
    loop_disarm(l, &s->heartbeat_timer);
    loop_disarm(l, &s->refresh_timer);
}

void startup_free(struct startup *s)
{
    if (!s)
        return;
    startup_stop(s);
    call_clear(&s->call);
    call_clear(&s->heartbeat);
    call_clear(&s->refresh);
    buf_clear(&s->body);
    buf_clear(&s->heartbeat_body);
    free(s);
}
