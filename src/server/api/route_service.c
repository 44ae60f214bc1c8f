/* route_service.c - configuration, sessions, telemetry and other small endpoints.
 *
 * Sessions are in the store for listings and restarts, and in memory while they live: heartbeats
 * touch memory only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "server/http/signed_url.h"
#include "server/api/routes.h"
#include "server/work/usage.h"
#include "server/api/user_token.h"
#include "server/store/timers.h"
#include "wire/zstd.h"

enum { TRACE_SPANS = 100000 }; /* the newest; older ones are left out */

/* Open to everybody: clients and load balancers call it before they have a key. */
void route_healthz(struct server *s, struct request *req, struct response *res)
{
    (void)s, (void)req;
    response_json(res, "{\"status\":\"ok\"}");
}

/* The base models that are served, with their context lengths. */
void route_capabilities(struct server *s, struct request *req, struct response *res)
{
    tinker_supported_model *list = arena_array(&req->arena, s->n_bases, sizeof(*list));
    if (!list) {
        response_no_memory(res);
        return;
    }
    for (size_t i = 0; i < s->n_bases; i++)
        list[i] = (tinker_supported_model){
            .name = s->bases[i].name,
            .max_context_length = tinker_engine_describe(s->bases[i].engine)->context,
            /* A read-only server still samples. */
            .trainable = !s->opts.read_only,
            .sampleable = 1,
        };
    tinker_capabilities r = { .n = s->n_bases, .items = list, .stream_sample = 1 };
    route_reply(res, &wire_get_server_capabilities_response, &r);
}

/* What the SDK should do with this server; unset fields keep the SDK's defaults. */
void route_client_config(struct server *s, struct request *req, struct response *res)
{
    (void)s, (void)req;
    struct wire_client_config_response r = wire_client_config_defaults;
    /* A CPU may be slow without being stuck; the plain transport is the safe one here.  The SDK
     * gives up on a sample after a time that suits a data center. */
    r.sample_enable_stuck_detection = false;
    r.use_pyqwest_transport = false;
    r.create_model_via_load_weights = true;
    r.proto_compress_fwdbwd = r.proto_compress_fwdbwd && wire_zstd_available();
    r.pjwt_auth_enabled = true; /* whoami() of the SDK reads the token, it asks nothing */
    /* Newer SDKs ask before they use these endpoints. */
    r.stream_sample = (struct wire_opt_bool){ 1, true };
    r.sample_join_sampling_session = (struct wire_opt_bool){ 1, true };
    r.sample_use_retrieve_futures = (struct wire_opt_bool){ 1, true };
    r.custom_loss_server_side = (struct wire_opt_bool){ 1, true };
    route_reply(res, &wire_client_config_response, &r);
}

/* Asked for again every five minutes. */
void route_dynamic_config(struct server *s, struct request *req, struct response *res)
{
    (void)s, (void)req;
    response_json(res, "{\"refresh_interval_sec\":300,\"sample_cancel_enabled\":true}");
}

/* A token that stands for the caller's key.  One that was given a token gets a fresh one. */
void route_auth_token(struct server *s, struct request *req, struct response *res)
{
    struct buf b;
    /* A token is a few hundred bytes. */
    buf_init(&b, 8192);
    if (user_token_make(s, req, &b)) {
        struct wire_auth_token_response r = { b.data };
        route_reply(res, &wire_auth_token_response, &r);
    } else {
        response_no_memory(res);
    }
    buf_clear(&b);
}

/* {"name": "value"} */
static void put_single_field(struct json_writer *w, const char *name, const char *value)
{
    json_put_begin_object(w);
    json_put_key(w, name);
    json_put_string(w, value);
    json_put_end_object(w);
}

/* `tinker auth login` of the official CLI asks this before it stores a key.  Keys have no number
 * here, but a name from which one can be made (see authenticate_user() in routes.c). */
void route_own_key(struct server *s, struct request *req, struct response *res)
{
    struct json_writer w;
    (void)s;
    buf_reset(&res->body);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "key_id");
    /* The name is "key-" and hexadecimal digits of a hash. */
    json_put_int64(&w, strncmp(req->user, "key-", 4) == 0 ? strtoll(req->user + 4, NULL, 16) : 0);
    json_put_key(&w, "name");
    json_put_string(&w, req->user);
    json_put_key(&w, "note");
    json_put_string(&w, "");
    json_put_key(&w, "details");
    json_put_begin_object(&w);
    json_put_key(&w, "org_details");
    put_single_field(&w, "name", "local");
    json_put_key(&w, "user_details");
    put_single_field(&w, "email", req->user);
    json_put_end_object(&w);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

/* ---- sessions ------------------------------------------------------------------------------ */

/* Tags as a JSON array, as the store keeps them; NULL: no memory, and no tags. */
static const char *encode_tags(struct arena *arena, const struct wire_strings *tags)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, 1 << 20);
    json_writer_init(&w, &b);
    json_put_begin_array(&w);
    for (size_t i = 0; i < tags->n; i++)
        json_put_string(&w, tags->v[i]);
    json_put_end_array(&w);
    const char *out = buf_ok(&b) ? arena_strdup(arena, b.data) : NULL;
    buf_clear(&b);
    return out;
}

/* Record first, then memory: a session that a client knows survives a restart. */
void route_create_session(struct server *s, struct request *req, struct response *res)
{
    struct wire_create_session_request in;
    char id[37];
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_create_session_request, &in))
        return;
    /* Random: an id is also what other requests name the session by. */
    rand_uuid(id);
    int64_t now = live_wall_us(s);
    struct store_session record = {
        .id = id,
        .owner = req->user,
        .tags = encode_tags(&req->arena, &in.tags),
        .user_metadata = in.user_metadata.s
                             ? arena_strndup(&req->arena, in.user_metadata.s, in.user_metadata.n)
                             : NULL,
        .sdk_version = in.sdk_version,
        .project_id = in.project_id,
        .display_name = in.display_name,
        .created_us = now,
        .seen_us = now
    };
    if (store_add_session(s->store, &record, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    /* Only after the record: a heartbeat finds either both or none. */
    pthread_mutex_lock(&s->lock);
    bool ok = live_add_session_locked(s, id, req->user) != NULL;
    pthread_mutex_unlock(&s->lock);
    struct wire_create_session_response r = { .session_id = id };
    usage_note(s, req->user, "session_create", NULL, NULL, NULL, id);
    if (ok)
        route_reply(res, &wire_create_session_response, &r);
    else
        response_no_memory(res);
}

/* Only memory changes.  A session whose client was silent for long remembers its return, because
 * gaps in its numbers wait from then on (queue.c). */
void route_heartbeat(struct server *s, struct request *req, struct response *res)
{
    struct wire_session_heartbeat_request in;
    if (!route_body(req, res, &wire_session_heartbeat_request, &in))
        return;
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, in.session_id);
    bool alive = v && !v->expired && !v->direct && strcmp(v->owner, req->user) == 0;
    int64_t now_ns = clock_now_ns(s->clock);
    /* Back after a silence: see SESSION_SILENCE_MS.  A retry of a request that was sent before the
     * silence may still come. */
    if (alive && now_ns - v->seen_ns > SESSION_SILENCE_MS * (int64_t)1000000)
        v->returned_ns = now_ns;
    if (alive)
        v->seen_ns = now_ns;
    pthread_mutex_unlock(&s->lock);
    if (alive)
        response_json(res, "{\"type\":\"session_heartbeat\"}");
    else
        response_error(res, 404, "Session not found");
}

/* Newest first, expired ones included. */
void route_list_sessions(struct server *s, struct request *req, struct response *res)
{
    int64_t limit, offset;
    struct store_session *list;
    size_t n;
    tinker_error err = { 0 };
    if (!route_query_int(req, res, "limit", 20, 1000, &limit) ||
        !route_query_int(req, res, "offset", 0, INT64_MAX, &offset))
        return;
    /* false: those that were made for requests without a session are left out. */
    if (store_list_sessions(s->store, req->user, false, limit, offset, &req->arena, &list, &n,
                            &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    const char **ids = arena_array(&req->arena, n + 1, sizeof(*ids));
    for (size_t i = 0; ids && i < n; i++)
        ids[i] = list[i].id;
    tinker_strings r = { ids, ids ? n : 0 };
    route_reply(res, &wire_list_sessions_response, &r);
}

/* The session of the path if it is the user's, alive or not; else 404. */
static struct store_session *find_own_session(struct server *s, struct request *req,
                                              struct response *res)
{
    struct store_session *v = NULL;
    tinker_error err = { 0 };
    if (store_get_session(s->store, req->param[0], &req->arena, &v, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return NULL;
    }
    if (v && strcmp(v->owner, req->user) == 0)
        return v;
    response_error(res, 404, "Session not found");
    return NULL;
}

/* The runs and samplers of a session. */
void route_get_session(struct server *s, struct request *req, struct response *res)
{
    struct store_model *models;
    struct store_sampler *samplers;
    size_t n_models, n_samplers;
    tinker_error err = { 0 };
    struct store_session *v = find_own_session(s, req, res);
    if (!v)
        return;
    if (store_list_models(s->store, req->user, v->id, -1, 10000, 0, &req->arena, &models, &n_models,
                          NULL, &err) != TINKER_OK ||
        store_list_samplers(s->store, v->id, &req->arena, &samplers, &n_samplers, &err) !=
            TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    const char **runs = arena_array(&req->arena, n_models + 1, sizeof(*runs));
    const char **ids = arena_array(&req->arena, n_samplers + 1, sizeof(*ids));
    if (!runs || !ids) {
        response_no_memory(res);
        return;
    }
    for (size_t i = 0; i < n_models; i++)
        runs[i] = models[i].id;
    for (size_t i = 0; i < n_samplers; i++)
        ids[i] = samplers[i].id;
    tinker_session r = { .training_run_ids = { runs, n_models },
                         .sampler_ids = { ids, n_samplers },
                         .display_name = v->display_name };
    route_metadata(v->user_metadata, &req->arena, &r.user_metadata, &r.n_user_metadata);
    route_reply(res, &wire_get_session_response, &r);
}

/* Checkpoints are counted under the project of their session. */
void route_set_project(struct server *s, struct request *req, struct response *res)
{
    struct wire_project_request in;
    tinker_error err = { 0 };
    if (!route_body(req, res, &wire_project_request, &in))
        return;
    struct store_session *v = find_own_session(s, req, res);
    if (!v)
        return;
    /* An empty id would take the session out of every project without saying so. */
    if (!in.project_id || !*in.project_id)
        response_error(res, 400, "project_id is missing");
    else if (store_set_session_project(s->store, v->id, in.project_id, &err) != TINKER_OK)
        route_store_error(s, res, &err);
    else {
        usage_note(s, req->user, "project_assign", NULL, NULL, in.project_id, v->id);
        response_no_content(res);
    }
}

/* The client is done with the session: end it as if it had timed out, but with its reason.  A
 * retry finds it expired and still gets 204. */
void route_finish_session(struct server *s, struct request *req, struct response *res)
{
    struct wire_finish_session_request in = { 0 };
    tinker_error err = { 0 };
    /* The body is optional: older SDKs send none. */
    if (req->n_body && !route_body(req, res, &wire_finish_session_request, &in))
        return;
    if (!find_own_session(s, req, res))
        return;
    /* The reason is recorded before the session ends: ending it is not undone. */
    if (in.reason.type && store_set_session_finished(s->store, req->param[0], in.reason.type,
                                                     in.detail, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    /* In memory only while it is alive. */
    struct session *v = route_session(s, req, req->param[0]);
    if (v)
        timers_expire_session(s, v, "was unloaded because its session was finished");
    if (v)
        usage_note(s, req->user, "session_finish", NULL, NULL, in.reason.type, req->param[0]);
    response_no_content(res);
}

/* ---- traces ------------------------------------------------------------------------------------ */

/* A signed URL for route_trace(): trace viewers have no API key. */
void route_trace_export(struct server *s, struct request *req, struct response *res)
{
    int64_t expires;
    struct store_session *v = find_own_session(s, req, res);
    if (!v)
        return;
    struct wire_trace_export_response r = { .status = "ready",
                                            .url =
                                                signed_url_make(s, req, "trace", v->id, &expires) };
    route_reply(res, &wire_trace_export_response, &r);
}

/* The requests of a session as complete events of the trace event format. */
static void put_span(struct json_writer *w, const struct store_span *v, int64_t now_us)
{
    json_put_begin_object(w);
    json_put_key(w, "name");
    /* X: an event with a beginning and a duration. */
    json_put_string(w, job_kind_name((enum job_kind)v->kind));
    json_put_key(w, "ph");
    json_put_string(w, "X");
    json_put_key(w, "ts");
    json_put_int64(w, v->created_us);
    json_put_key(w, "dur");
    json_put_int64(w, (v->done_us ? v->done_us : now_us) - v->created_us); /* waiting included */
    json_put_key(w, "pid");
    json_put_int64(w, 1);
    /* A row of the viewer per model: requests of one model never run at the same time. */
    json_put_key(w, "tid");
    json_put_string(w, v->model_id);
    json_put_key(w, "args");
    json_put_begin_object(w);
    json_put_key(w, "seq_id");
    json_put_int64(w, v->seq);
    json_put_key(w, "failed");
    json_put_bool(w, v->status == STORE_FAILED);
    json_put_end_object(w);
    json_put_end_object(w);
}

/* All requests of a session in the Chrome trace event format. */
void route_trace(struct server *s, struct request *req, struct response *res)
{
    struct store_span *list;
    size_t n;
    struct json_writer w;
    tinker_error err = { 0 };
    if (!signed_url_check(s, req, res, "trace", req->param[0]))
        return;
    if (store_list_spans(s->store, req->param[0], TRACE_SPANS, &req->arena, &list, &n, &err) !=
        TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "traceEvents");
    json_put_begin_array(&w);
    for (size_t i = 0; i < n; i++)
        put_span(&w, &list[i], live_wall_us(s));
    json_put_end_array(&w);
    json_put_end_object(&w);
    res->content_type = "application/json";
}

/* ---- accepted, without effect -------------------------------------------------------------------- */

/* The SDK sends usage events; a local server has nobody to pass them on to. */
void route_telemetry(struct server *s, struct request *req, struct response *res)
{
    (void)s, (void)req;
    response_json(res, "{\"status\":\"accepted\"}");
}
