/* routes.c - the table of endpoints, keys, bodies: see routes.h. */
#include "server/api/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/err.h"
#include "base/sha256.h"
#include "server/api/openai.h"
#include "server/work/submit.h"
#include "wire/path.h"
#include "wire/zstd.h"

#define API             "/api/v1/"
#define CHECKPOINT      API "training_runs/{}/checkpoints/{}/{}"
#define BARE_CHECKPOINT API "training_runs/{}/checkpoints/{}"

enum { WORKER_BODY_BYTES = 64 << 10 }; /* larger bodies take a while to read */

/* The frequent ones first. */
static const struct route table[] = {
    { "POST", API "retrieve_future", route_retrieve_future, 0 },
    { "POST", API "session_heartbeat", route_heartbeat, 0 },
    { "POST", API "cancel_future", route_cancel_future, 0 },
    { "POST", API "asample", route_asample, 0 },
    { "POST", API "stream_sample", route_stream_sample, 0 },
    { "POST", API "forward_backward", route_submit, ROUTE_CHANGES },
    { "POST", API "forward", route_submit, ROUTE_CHANGES },
    { "POST", API "optim_step", route_submit, ROUTE_CHANGES },
    { "POST", API "save_weights", route_submit, ROUTE_CHANGES },
    { "POST", API "save_weights_for_sampler", route_submit, ROUTE_CHANGES },
    { "POST", API "save_weights_external", route_submit, ROUTE_CHANGES },
    { "POST", API "copy_weights", route_copy_weights, ROUTE_CHANGES },
    { "POST", API "load_weights", route_load_weights, ROUTE_CHANGES },
    { "POST", API "create_model", route_create_model, ROUTE_CHANGES },
    { "POST", API "get_info", route_get_info, 0 },
    { "POST", API "unload_model", route_submit, ROUTE_CHANGES },
    { "POST", API "create_session", route_create_session, 0 },
    { "POST", API "create_sampling_session", route_create_sampling_session, 0 },
    { "POST", API "join_sampling_session", route_join_sampling_session, 0 },
    { "POST", API "telemetry", route_telemetry, 0 },
    { "POST", API "weights_info", route_weights_info, 0 },
    { "POST", API "client/config", route_client_config, 0 },
    { "POST", API "client/dynamic_config", route_dynamic_config, 0 },
    { "POST", API "auth/token", route_auth_token, 0 },
    { "GET", API "auth/apikey/me", route_own_key, 0 },
    { "GET", API "healthz", route_healthz, ROUTE_OPEN },
    { "GET", API "get_server_capabilities", route_capabilities, 0 },
    { "GET", API "sessions", route_list_sessions, 0 },
    { "POST", API "sessions/search", route_search_sessions, 0 },
    { "GET", API "sessions/{}", route_get_session, 0 },
    { "PUT", API "sessions/{}/project", route_set_project, ROUTE_CHANGES },
    { "POST", API "sessions/{}/finish", route_finish_session, 0 },
    { "GET", API "sessions/{}/trace_export", route_trace_export, 0 },
    { "GET", API "samplers/{}", route_get_sampler, 0 },
    { "GET", API "training_runs", route_list_runs, 0 },
    { "GET", API "training_runs/{}", route_get_run, 0 },
    { "GET", API "training_runs/{}/checkpoints", route_run_checkpoints, 0 },
    { "GET", API "models/{}/checkpoints", route_run_checkpoints, 0 },
    { "GET", API "checkpoints", route_list_checkpoints, 0 },
    { "DELETE", CHECKPOINT, route_delete_checkpoint, ROUTE_CHANGES },
    { "GET", CHECKPOINT "/archive", route_archive, 0 },
    { "GET", CHECKPOINT "/external_weights_urls", route_external_urls, 0 },
    { "POST", CHECKPOINT "/publish", route_publish, ROUTE_CHANGES },
    { "DELETE", CHECKPOINT "/publish", route_unpublish, ROUTE_CHANGES },
    { "PUT", CHECKPOINT "/ttl", route_set_ttl, ROUTE_CHANGES },
    { "DELETE", BARE_CHECKPOINT, route_bare_checkpoint, ROUTE_CHANGES },
    { "GET", BARE_CHECKPOINT "/archive", route_bare_archive, 0 },
    { "POST", BARE_CHECKPOINT "/publish", route_bare_checkpoint, ROUTE_CHANGES },
    { "PUT", BARE_CHECKPOINT "/ttl", route_bare_checkpoint, ROUTE_CHANGES },
    { "GET", API "billing/usage/events", route_billing, 0 },
    { "GET", API "billing/usage/checkpoints/current", route_checkpoint_usage, 0 },
    { "GET", API "audit", route_audit, 0 },
    { "GET", "/download/{}", route_download, ROUTE_OPEN },
    { "GET", "/file/{}/{}", route_file, ROUTE_OPEN },
    { "GET", "/trace/{}", route_trace, ROUTE_OPEN },
    { "GET", "/v1/models", route_openai_models, 0 },
    { "POST", "/v1/completions", route_openai_completions, 0 },
    { "POST", "/v1/chat/completions", route_openai_chat, 0 },
    { "GET", "/oai/api/v1/models", route_openai_models, 0 },
    { "POST", "/oai/api/v1/completions", route_openai_completions, 0 },
    { "POST", "/oai/api/v1/chat/completions", route_openai_chat, 0 },
    { "GET", "/metrics", route_metrics, 0 },
    { "GET", "/status", route_status, 0 },
    { "GET", "/", route_page, ROUTE_OPEN },
};

/* ---- matching --------------------------------------------------------------------------- */

/* Most paths are of nothing else, and are as they should be. */
static bool is_plain_path(const char *path)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~:/";
    return !path[strspn(path, plain)] && !strstr(path, "/.");
}

/* One spelling for a path: apart at its slashes, and only then each part without its escapes, so
 * that a slash which was escaped stays in its name.  false: a part can be no name, or no memory. */
static bool normalize_path(struct request *req)
{
    if (is_plain_path(req->path))
        return true;
    size_t n = strlen(req->path);
    char *part = arena_alloc(&req->arena, n + 1);
    struct buf b;
    buf_init(&b, 3 * n + 1);
    bool ok = part != NULL;
    for (const char *p = req->path; ok && *p;) {
        size_t len = strcspn(p, "/");
        if (len) {
            ok = wire_read_segment(p, len, part) &&
                 wire_check_segment("a part of the path", part, strlen(part), NULL) == TINKER_OK;
            wire_put_segment(&b, ok ? part : "", ok ? strlen(part) : 0);
        } else {
            buf_putc(&b, '/');
            len = 1;
        }
        p += len;
    }
    const char *path = ok && buf_ok(&b) ? arena_strndup(&req->arena, b.data, b.len) : NULL;
    buf_clear(&b);
    if (path)
        req->path = path;
    return path != NULL;
}

/* One part of a normalized path as the name that it stands for. */
static const char *read_param(struct request *req, const char *part, size_t n)
{
    char *name = arena_alloc(&req->arena, n + 1);
    return name && wire_read_segment(part, n, name) ? name : NULL;
}

/* Does path fit the pattern?  Parts are copied into req->param. */
static bool match_path(const char *pattern, const char *path, struct request *req)
{
    size_t n = 0;
    while (*pattern && *path) {
        if (*pattern != '{') {
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t len = strcspn(path, "/");
        if (!len || n == REQUEST_PARAMS)
            return false;
        req->param[n] = read_param(req, path, len);
        if (!req->param[n++])
            return false;
        path += len;
        pattern += 2;
    }
    return !*pattern && !*path;
}

/* The path below the prefix under which the server is reached; NULL: it is not below it. */
static const char *strip_prefix(const struct server *s, const char *path)
{
    const char *prefix = s->opts.path_prefix;
    size_t n = prefix ? strlen(prefix) : 0;
    if (!n)
        return path;
    if (strncmp(path, prefix, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return path[n] ? path + n : "/";
}

/* NULL: there is none, but perhaps some for the other methods that *allowed lists. */
static const struct route *find_route(struct server *s, struct request *req, const char **allowed)
{
    const char *path = strip_prefix(s, req->path);
    *allowed = NULL;
    for (size_t i = 0; path && i < ARRAY_LEN(table); i++) {
        if (!match_path(table[i].pattern, path, req))
            continue;
        if (strcmp(table[i].method, req->method) == 0 ||
            (strcmp(req->method, "HEAD") == 0 && strcmp(table[i].method, "GET") == 0))
            return &table[i];
        *allowed = *allowed ? arena_printf(&req->arena, "%s, %s", *allowed, table[i].method)
                            : table[i].method;
    }
    return NULL;
}

/* ---- who asks ------------------------------------------------------------------------------ */

static bool equal_keys(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned char diff = na != nb;
    for (size_t i = 0; i < na; i++)
        diff |= (unsigned char)(a[i] ^ b[nb ? i % nb : 0]);
    return diff == 0;
}

static const char *find_key(const struct request *req)
{
    if (req->api_key)
        return req->api_key;
    if (req->authorization && strncasecmp(req->authorization, "Bearer ", 7) == 0)
        return req->authorization + 7;
    return NULL;
}

/* A name for the owner of a key that does not give the key away. */
static const char *make_user_name(struct arena *arena, const char *key)
{
    struct sha256 h;
    uint8_t digest[32];
    char hex[65];
    sha256_init(&h);
    sha256_update(&h, key, strlen(key));
    sha256_final(&h, digest);
    hex_encode(digest, sizeof(digest), hex);
    return arena_printf(arena, "key-%.12s", hex);
}

static bool authenticate_user(struct server *s, struct request *req, struct response *res)
{
    req->user = "local";
    if (!s->opts.n_api_keys)
        return true;
    const char *key = find_key(req);
    if (!key) {
        response_error(res, 401, "Missing API key");
        return false;
    }
    for (size_t i = 0; i < s->opts.n_api_keys; i++)
        if (equal_keys(key, s->opts.api_keys[i])) {
            req->user = make_user_name(&req->arena, key);
            if (!req->user)
                response_error(res, 500, "out of memory");
            return req->user != NULL;
        }
    response_error(res, 401, "Invalid API key");
    return false;
}

/* A page of another site must not be able to drive this server from a browser. */
static bool is_same_site(const struct request *req)
{
    if (!req->origin)
        return true;
    const char *host = strstr(req->origin, "://");
    return host && req->host && strcasecmp(host + 3, req->host) == 0;
}

/* A site can let its own name lead to this machine; to a browser its pages are then of this
 * server.  Who has no key is told apart by the name alone. */
static bool is_host_allowed(const struct server *s, const struct request *req)
{
    return s->opts.n_api_keys || s->opts.insecure || s->opts.unix_path || !req->host ||
           listener_is_local_name(req->host);
}

/* ---- bodies --------------------------------------------------------------------------------- */

static bool decompress_body(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    struct buf b;
    if (!req->content_encoding || !*req->content_encoding ||
        strcasecmp(req->content_encoding, "identity") == 0)
        return true;
    if (strcasecmp(req->content_encoding, "zstd") != 0) {
        response_error(res, 415, "Content-Encoding %s is not supported; use zstd",
                       req->content_encoding);
        return false;
    }
    buf_init(&b, s->opts.max_decoded_body);
    tinker_status status =
        wire_zstd_decompress(req->body, req->n_body, s->opts.max_decoded_body, &b, &err);
    char *copy =
        status == TINKER_OK ? arena_memdup(&req->arena, b.data ? b.data : "", b.len + 1) : NULL;
    if (copy) {
        req->body = copy;
        req->n_body = b.len;
        req->content_encoding = NULL;
    } else if (err.status == TINKER_EINVAL) {
        route_invalid(res, err.message);
    } else {
        response_error(res, 413, "decompressed body is larger than %zu bytes",
                       s->opts.max_decoded_body);
    }
    buf_clear(&b);
    return copy != NULL;
}

static void refuse_route(struct response *res, const char *allowed)
{
    if (!allowed) {
        response_error(res, 404, "Not Found");
        return;
    }
    response_error(res, 405, "Method Not Allowed");
    response_header(res, "Allow", allowed);
}

/* The route of a request that may be made; NULL: the response says why it may not. */
static const struct route *admit_request(struct server *s, struct request *req,
                                         struct response *res)
{
    const char *allowed;
    if (req->route)
        return req->route;
    if (!normalize_path(req)) {
        response_error(res, 404, "Not Found: the path has a part that can be no name");
        return NULL;
    }
    const struct route *r = find_route(s, req, &allowed);
    if (!r)
        refuse_route(res, allowed);
    else if (!is_same_site(req))
        response_error(res, 403, "requests of other web sites are refused");
    else if (!is_host_allowed(s, req))
        response_error(res, 403,
                       "without an API key this server answers to localhost and to addresses, not "
                       "to the name %.100s; see --api-key",
                       req->host);
    else if ((r->flags & ROUTE_OPEN) || authenticate_user(s, req, res)) {
        if (!(r->flags & ROUTE_CHANGES) || !s->opts.read_only)
            return req->route = r;
        response_error(res, 403, "this server is read-only");
    }
    return NULL;
}

/* Clients of the OpenAI endpoints look for errors in another place. */
static void convert_openai_error(struct server *s, struct request *req, struct response *res)
{
    const char *path = strip_prefix(s, req->path);
    struct json_reader r;
    struct json_str key, raw = { 0 };
    char *text = NULL;
    if (res->status < 400 || !path ||
        (strncmp(path, "/v1/", 4) != 0 && strncmp(path, "/oai/", 5) != 0))
        return;
    json_reader_init(&r, res->body.data ? res->body.data : "", res->body.len, &req->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (json_str_is(key, "detail") && json_peek(&r) == JSON_STRING)
            json_cstring(&r, &text);
        else if (json_str_is(key, "detail") && json_raw(&r, &raw))
            text = arena_strndup(&req->arena, raw.s, raw.n);
        else
            json_skip(&r);
    if (text)
        openai_error(res, res->status, text);
}

void routes_handle(void *state, struct request *req, struct response *res)
{
    struct server *s = state;
    const struct route *r = admit_request(s, req, res);
    if (r && decompress_body(s, req, res)) {
        pthread_rwlock_rdlock(&s->evict_lock);
        r->handle(s, req, res);
        pthread_rwlock_unlock(&s->evict_lock);
    }
    convert_openai_error(state, req, res);
}

bool routes_check(void *state, struct request *req, struct response *res)
{
    bool ok = admit_request(state, req, res) != NULL;
    if (!ok)
        convert_openai_error(state, req, res);
    return ok;
}

enum listener_place routes_place(void *state, const struct request *req)
{
    const char *path = strip_prefix(state, req->path);
    static const char *const quick[] = { API "retrieve_future", API "session_heartbeat",
                                         API "healthz", API "telemetry" };
    if (!path)
        return LISTENER_INLINE;
    /* A compressed body may be large however few bytes it has. */
    if ((req->n_body && req->content_encoding) || strncmp(path, "/download/", 10) == 0 ||
        strncmp(path, "/trace/", 7) == 0)
        return LISTENER_WORKER;
    for (size_t i = 0; i < ARRAY_LEN(quick); i++)
        if (strcmp(path, quick[i]) == 0)
            return LISTENER_INLINE;
    return req->n_body >= WORKER_BODY_BYTES ? LISTENER_WORKER : LISTENER_EITHER;
}

/* ---- for handlers ---------------------------------------------------------------------------- */

void route_invalid(struct response *res, const char *message)
{
    struct json_writer w;
    buf_reset(&res->body);
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "detail");
    json_put_begin_array(&w);
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, "value_error");
    json_put_key(&w, "loc");
    json_put_begin_array(&w);
    json_put_string(&w, "body");
    json_put_end_array(&w);
    json_put_key(&w, "msg");
    json_put_string(&w, message);
    json_put_end_object(&w);
    json_put_end_array(&w);
    json_put_end_object(&w);
    res->status = 422;
    res->content_type = "application/json";
}

bool route_body(struct request *req, struct response *res, const struct wire_type *type, void *out)
{
    tinker_error err = { 0 };
    if (wire_decode_json(type, req->body, req->n_body, WIRE_LENIENT, &req->arena, out, &err) ==
        TINKER_OK)
        return true;
    route_invalid(res, err.message);
    return false;
}

void route_reply(struct response *res, const struct wire_type *type, const void *value)
{
    tinker_error err = { 0 };
    buf_reset(&res->body);
    if (wire_encode_json(type, value, &res->body, &err) != TINKER_OK) {
        response_error(res, 500, "%s", err.message);
        return;
    }
    res->status = 200;
    res->content_type = "application/json";
}

void route_store_error(struct server *s, struct response *res, const tinker_error *err)
{
    log_line(s->log, LOG_ERROR, "%s", err->message);
    response_error(res, 500, "%s", err->message);
}

bool route_query_int(struct request *req, struct response *res, const char *name, int64_t dflt,
                     int64_t max, int64_t *out)
{
    const char *text = req->query(req, name);
    char *end;
    *out = dflt;
    if (!text || !*text)
        return true;
    long long v = strtoll(text, &end, 10);
    if (*end || v < 0) {
        response_error(res, 422, "query parameter %s must be a number from 0", name);
        return false;
    }
    *out = v < max ? v : max;
    return true;
}

void route_submitted(struct server *s, struct response *res, int status, const char *id,
                     const char *model_id, const tinker_error *err)
{
    struct wire_untyped_api_future future = { id, model_id };
    switch ((enum submit_status)status) {
    case SUBMIT_OK:
        route_reply(res, &wire_untyped_api_future, &future);
        break;
    case SUBMIT_REUSED:
        response_error(res, 400, "Training request sequence number was reused (%s)", id);
        break;
    case SUBMIT_LATE: /* not 409: clients would try again for minutes */
        response_error(res, 400,
                       "request %s is unknown, and later ones have run: it came too late, or its "
                       "result was deleted; if it came too late, send it as a new request",
                       id);
        break;
    case SUBMIT_BAD_SEQ:
        response_error(res, 400, "seq_id is too large");
        break;
    case SUBMIT_NO_MODEL:
        response_error(res, 404, "Model not found");
        break;
    case SUBMIT_BUSY:
        response_header(res, "Retry-After", "1");
        response_error(res, 429, "too many requests are waiting");
        break;
    case SUBMIT_FAILED:
        if (err && err->message[0])
            route_store_error(s, res, err);
        else
            response_error(res, 500, "out of memory");
        break;
    }
}

const char *route_user_urn(struct request *req)
{
    return arena_printf(&req->arena, "urn:tinker:user:%s", req->user);
}

struct session *route_session(struct server *s, struct request *req, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, id);
    if (v && (v->expired || v->direct || strcmp(v->owner, req->user) != 0))
        v = NULL;
    pthread_mutex_unlock(&s->lock);
    return v;
}

struct store_checkpoint *route_checkpoint(struct server *s, struct request *req,
                                          struct response *res, const char *run, int kind,
                                          const char *name, bool public_too)
{
    struct store_checkpoint *c = NULL;
    tinker_error err = { 0 };
    if (store_get_checkpoint(s->store, run, kind, name, &req->arena, &c, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return NULL;
    }
    if (c && !c->hidden && (strcmp(c->owner, req->user) == 0 || (public_too && c->is_public)))
        return c;
    response_error(res, 404, "Checkpoint not found: %s/%s/%s", run, store_kind_name(kind), name);
    return NULL;
}

struct store_checkpoint *route_checkpoint_path(struct server *s, struct request *req,
                                               struct response *res, const char *text)
{
    struct wire_path path;
    tinker_error err = { 0 };
    if (wire_path_parse(text, &path, &err) != TINKER_OK) {
        response_error(res, 400, "%s", err.message);
        return NULL;
    }
    const char *run = arena_strndup(&req->arena, path.run, path.n_run);
    if (!run) {
        response_error(res, 500, "out of memory");
        return NULL;
    }
    return route_checkpoint(s, req, res, run, path.sampler ? STORE_SAMPLER : STORE_TRAINING,
                            path.name, true);
}
