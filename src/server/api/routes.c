/* routes.c - the table of endpoints, keys, bodies: see routes.h.
 *
 * A request is admitted once, before its body is read (routes_check): path, route, origin, key.
 * When the body is there it is decompressed and handed to the route (routes_handle), which may be
 * called again after a hold; the admission is remembered in the request. */
#include "server/api/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/err.h"
#include "server/api/anthropic.h"
#include "server/api/openai.h"
#include "server/api/user_token.h"
#include "server/work/submit.h"
#include "wire/path.h"
#include "wire/zstd.h"

/* "{}" stands for one segment. */
#define API             "/api/v1/"
#define CHECKPOINT      API "training_runs/{}/checkpoints/{}/{}"
#define BARE_CHECKPOINT API "training_runs/{}/checkpoints/{}"

enum { WORKER_BODY_BYTES = 64 << 10 }; /* larger bodies take a while to decode */

/* Searched from the top, so the frequent ones come first.  `changes` is what a read-only server
 * refuses, `open` what needs no key, `large` what may have a body beyond ROUTE_BODY_MAX. */
static const struct route table[] = {
    /* the life of a training run and its samples */
    { .method = "POST", .path = API "retrieve_future", .handle = route_retrieve_future },
    { .method = "POST", .path = API "retrieve_futures", .handle = route_retrieve_futures },
    { .method = "POST", .path = API "session_heartbeat", .handle = route_heartbeat },
    { .method = "POST", .path = API "cancel_future", .handle = route_cancel_future },
    { .method = "POST", .path = API "asample", .handle = route_asample, .large = true },
    { .method = "POST", .path = API "stream_sample", .handle = route_stream_sample, .large = true },
    { .method = "POST",
      .path = API "forward_backward",
      .handle = route_submit,
      .changes = true,
      .large = true },
    { .method = "POST",
      .path = API "forward",
      .handle = route_submit,
      .changes = true,
      .large = true },
    { .method = "POST", .path = API "optim_step", .handle = route_submit, .changes = true },
    { .method = "POST", .path = API "save_weights", .handle = route_submit, .changes = true },
    { .method = "POST",
      .path = API "save_weights_for_sampler",
      .handle = route_submit,
      .changes = true },
    { .method = "POST",
      .path = API "save_weights_external",
      .handle = route_submit,
      .changes = true },
    { .method = "POST", .path = API "copy_weights", .handle = route_copy_weights, .changes = true },
    { .method = "POST", .path = API "load_weights", .handle = route_load_weights, .changes = true },
    { .method = "POST", .path = API "create_model", .handle = route_create_model, .changes = true },
    { .method = "POST", .path = API "get_info", .handle = route_get_info },
    { .method = "POST", .path = API "unload_model", .handle = route_submit, .changes = true },
    { .method = "POST", .path = API "create_session", .handle = route_create_session },
    { .method = "POST", .path = API "create_custom_loss", .handle = route_create_custom_loss },
    { .method = "POST",
      .path = API "create_sampling_session",
      .handle = route_create_sampling_session },
    { .method = "POST",
      .path = API "join_sampling_session",
      .handle = route_join_sampling_session },
    { .method = "POST", .path = API "telemetry", .handle = route_telemetry, .large = true },
    { .method = "POST", .path = API "weights_info", .handle = route_weights_info },
    /* configuration and identity.  The SDK asks for these before anything else; what they say
     * decides which endpoints it uses. */
    { .method = "POST", .path = API "client/config", .handle = route_client_config },
    { .method = "POST", .path = API "client/dynamic_config", .handle = route_dynamic_config },
    { .method = "POST", .path = API "auth/token", .handle = route_auth_token },
    { .method = "GET", .path = API "auth/apikey/me", .handle = route_own_key },
    { .method = "GET", .path = API "healthz", .handle = route_healthz, .open = true },
    { .method = "GET", .path = API "get_server_capabilities", .handle = route_capabilities },
    /* sessions, runs and checkpoints */
    { .method = "GET", .path = API "sessions", .handle = route_list_sessions },
    { .method = "POST", .path = API "sessions/search", .handle = route_search_sessions },
    { .method = "GET", .path = API "sessions/{}", .handle = route_get_session },
    { .method = "PUT",
      .path = API "sessions/{}/project",
      .handle = route_set_project,
      .changes = true },
    { .method = "POST", .path = API "sessions/{}/finish", .handle = route_finish_session },
    { .method = "GET", .path = API "sessions/{}/trace_export", .handle = route_trace_export },
    { .method = "GET", .path = API "samplers/{}", .handle = route_get_sampler },
    { .method = "GET", .path = API "training_runs", .handle = route_list_runs },
    { .method = "GET", .path = API "training_runs/{}", .handle = route_get_run },
    { .method = "GET",
      .path = API "training_runs/{}/checkpoints",
      .handle = route_run_checkpoints },
    { .method = "GET", .path = API "training_runs/{}/metrics", .handle = route_read_metrics },
    { .method = "POST",
      .path = API "training_runs/{}/metrics",
      .handle = route_log_metrics,
      .changes = true },
    { .method = "GET", .path = API "training_runs/{}/texts", .handle = route_read_texts },
    { .method = "GET", .path = API "training_runs/{}/note", .handle = route_read_note },
    { .method = "PUT",
      .path = API "training_runs/{}/note",
      .handle = route_put_note,
      .changes = true },
    { .method = "GET", .path = API "training_run_summaries", .handle = route_run_summaries },
    { .method = "GET", .path = API "models/{}/checkpoints", .handle = route_run_checkpoints },
    { .method = "GET", .path = API "checkpoints", .handle = route_list_checkpoints },
    { .method = "POST", .path = API "checkpoints/search", .handle = route_search_checkpoints },
    { .method = "DELETE", .path = CHECKPOINT, .handle = route_delete_checkpoint, .changes = true },
    { .method = "GET", .path = CHECKPOINT "/archive", .handle = route_archive },
    { .method = "GET", .path = CHECKPOINT "/external_weights_urls", .handle = route_external_urls },
    { .method = "POST", .path = CHECKPOINT "/publish", .handle = route_publish, .changes = true },
    { .method = "DELETE",
      .path = CHECKPOINT "/publish",
      .handle = route_unpublish,
      .changes = true },
    { .method = "PUT", .path = CHECKPOINT "/ttl", .handle = route_set_ttl, .changes = true },
    /* The same with ids that have no kind, which --bare-checkpoint-ids gives out. */
    { .method = "DELETE",
      .path = BARE_CHECKPOINT,
      .handle = route_bare_checkpoint,
      .changes = true },
    { .method = "GET", .path = BARE_CHECKPOINT "/archive", .handle = route_bare_archive },
    { .method = "POST",
      .path = BARE_CHECKPOINT "/publish",
      .handle = route_bare_checkpoint,
      .changes = true },
    { .method = "PUT",
      .path = BARE_CHECKPOINT "/ttl",
      .handle = route_bare_checkpoint,
      .changes = true },
    /* for clients that ask; little of it means anything here */
    { .method = "GET", .path = API "billing/usage/events", .handle = route_billing },
    { .method = "GET",
      .path = API "billing/usage/checkpoints/current",
      .handle = route_checkpoint_usage },
    { .method = "GET", .path = API "audit", .handle = route_audit },
    /* targets of signed URLs: the signature replaces the key */
    { .method = "GET", .path = "/download/{}", .handle = route_download, .open = true },
    { .method = "GET", .path = "/file/{}/{}", .handle = route_file, .open = true },
    { .method = "GET", .path = "/trace/{}", .handle = route_trace, .open = true },
    /* the OpenAI API, under the usual path and under Tinker's */
    { .method = "GET", .path = "/v1/models", .handle = route_openai_models },
    { .method = "POST",
      .path = "/v1/completions",
      .handle = route_openai_completions,
      .large = true },
    { .method = "POST",
      .path = "/v1/chat/completions",
      .handle = route_openai_chat,
      .large = true },
    { .method = "GET", .path = "/oai/api/v1/models", .handle = route_openai_models },
    { .method = "POST",
      .path = "/oai/api/v1/completions",
      .handle = route_openai_completions,
      .large = true },
    { .method = "POST",
      .path = "/oai/api/v1/chat/completions",
      .handle = route_openai_chat,
      .large = true },
    /* the Messages API of Anthropic, the same way */
    { .method = "POST", .path = "/v1/messages", .handle = route_messages, .large = true },
    { .method = "POST",
      .path = "/v1/messages/count_tokens",
      .handle = route_count_tokens,
      .large = true },
    { .method = "POST",
      .path = "/anthropic/api/v1/messages",
      .handle = route_messages,
      .large = true },
    { .method = "POST",
      .path = "/anthropic/api/v1/messages/count_tokens",
      .handle = route_count_tokens,
      .large = true },
    /* the model's tokenizer, as lm-evaluation-harness asks for it.  Not under a prefix of an API,
     * as that program has its own. */
    { .method = "GET", .path = "/tokenizer_info", .handle = route_tokenizer_info },
    { .method = "POST", .path = "/tokenize", .handle = route_tokenize, .large = true },
    { .method = "POST", .path = "/detokenize", .handle = route_detokenize, .large = true },
    /* for people and monitors */
    { .method = "GET", .path = "/metrics", .handle = route_metrics },
    { .method = "GET", .path = "/status", .handle = route_status },
    { .method = "GET", .path = API "system", .handle = route_system },
    { .method = "GET", .path = "/page/{}", .handle = route_page_file, .open = true },
    { .method = "GET", .path = "/", .handle = route_page, .open = true },
};

/* ---- matching --------------------------------------------------------------------------- */

/* Bring a path into one spelling: split it at its slashes, and only then decode and encode each
 * segment, so that an escaped slash stays part of its segment.  false: a segment is not a valid
 * name ("..", a NUL), or there is no memory. */
static bool normalize_path(struct request *req)
{
    /* Nearly all paths need nothing. */
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~:/";
    if (!req->path[strspn(req->path, plain)] && !strstr(req->path, "/."))
        return true;
    size_t n = strlen(req->path);
    char *part = arena_alloc(&req->arena, n + 1);
    struct buf b;
    /* The buffer's maximum is exact, so a mistake in this count would be an error and not a longer
     * path. */
    buf_init(&b, 3 * n + 1); /* each byte may become %XX */
    bool ok = part != NULL;
    for (const char *p = req->path; ok && *p;) {
        size_t len = strcspn(p, "/");
        if (len) {
            /* wire_check_segment() refuses what a store or a file system could take for something
             * else. */
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
    /* Kept in the request: find_route() and the access log read the same spelling. */
    if (path)
        req->path = path;
    return path != NULL;
}

/* Does the path match the pattern of a route?  Segments at "{}" go to req->param, decoded. */
static bool match_path(const char *pattern, const char *path, struct request *req)
{
    size_t n = 0;
    while (*pattern && *path) {
        if (*pattern != '{') { /* literal characters have to be equal */
            if (*pattern++ != *path++)
                return false;
            continue;
        }
        size_t len = strcspn(path, "/");
        /* A segment must not be empty.  Matching fills req->param even where it fails later; the
         * last match overwrites all of it. */
        if (!len || n == REQUEST_PARAMS)
            return false;
        char *name = arena_alloc(&req->arena, len + 1);
        if (!name || !wire_read_segment(path, len, name))
            return false;
        req->param[n++] = name;
        path += len;
        pattern += 2;
    }
    return !*pattern && !*path;
}

/* The path without --path-prefix; NULL: it does not start with the prefix. */
static const char *strip_prefix(const struct server *s, const char *path)
{
    /* "/tinker" must not match "/tinkering". */
    const char *prefix = s->opts.path_prefix;
    size_t n = prefix ? strlen(prefix) : 0;
    if (!n)
        return path;
    if (strncmp(path, prefix, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return path[n] ? path + n : "/";
}

/* NULL: no route.  *allowed then lists the methods that the path has, NULL: none. */
static const struct route *find_route(struct server *s, struct request *req, const char **allowed)
{
    /* A path outside of the prefix is as unknown as one that no route has. */
    const char *path = strip_prefix(s, req->path);
    *allowed = NULL;
    for (size_t i = 0; path && i < ARRAY_LEN(table); i++) {
        if (!match_path(table[i].path, path, req))
            continue;
        if (strcmp(table[i].method, req->method) == 0 ||
            /* The library leaves out the body of a HEAD response. */
            (strcmp(req->method, "HEAD") == 0 && strcmp(table[i].method, "GET") == 0))
            return &table[i];
        /* Goes on after a match with another method: 405 must list all that the path has. */
        *allowed = *allowed ? arena_printf(&req->arena, "%s, %s", *allowed, table[i].method)
                            : table[i].method;
    }
    return NULL;
}

/* ---- admission ----------------------------------------------------------------------------- */

/* Is the key one of the list?  Compared in constant time, and with all of them: neither how much of
 * a key is right nor which one it is shows in the time. */
static bool has_key(const char *const *keys, size_t n_keys, const char *key)
{
    bool found = false;
    size_t n = strlen(key);
    for (size_t i = 0; i < n_keys; i++) {
        size_t n_want = strlen(keys[i]);
        unsigned char diff = n != n_want;
        /* The length of the caller's key decides how long this takes, never that of ours. */
        for (size_t k = 0; k < n; k++)
            diff |= (unsigned char)(key[k] ^ keys[i][n_want ? k % n_want : 0]);
        found = found || diff == 0;
    }
    return found;
}

/* Set req->user from a token, whose key must still be one of ours. */
static bool authenticate_token(struct server *s, struct request *req, struct response *res,
                               const char *token)
{
    /* Signed by this server: its user is believed, but a key that was taken from the list must stop
     * working at once. */
    const char *problem, *user = user_token_read(s, token, &req->arena, &problem);
    for (size_t i = 0; user && i < s->opts.n_api_keys; i++) {
        const char *name = user_name_of_key(&req->arena, s->opts.api_keys[i]);
        if (!name) {
            response_no_memory(res);
            return false;
        }
        /* The user's name is derived from the key, so the key need not be in the token. */
        if (strcmp(name, user) != 0)
            continue;
        req->user = user;
        if (has_key(s->opts.admin_keys, s->opts.n_admin_keys, s->opts.api_keys[i]))
            req->admin = true;
        return true;
    }
    response_error(res, 401, "%s", user ? "the key of this token is no longer valid" : problem);
    return false;
}

/* Set req->user from the API key; false: the response says why not. */
static bool authenticate_user(struct server *s, struct request *req, struct response *res)
{
    req->user = "local";
    req->admin = s->opts.n_api_keys <= 1; /* there is one user: all numbers are theirs */
    if (!s->opts.n_api_keys)
        return true;
    const char *key = req->api_key;
    /* SDKs send X-API-Key, programs for the other APIs a bearer token. */
    if (!key && req->authorization && strncasecmp(req->authorization, "Bearer ", 7) == 0)
        key = req->authorization + 7;
    if (!key) {
        response_error(res, 401, "Missing API key");
        return false;
    }
    /* A key may by chance look like a token; the list of keys decides first. */
    if (user_token_is_one(key) && !has_key(s->opts.api_keys, s->opts.n_api_keys, key))
        return authenticate_token(s, req, res, key);
    bool found = has_key(s->opts.api_keys, s->opts.n_api_keys, key);
    if (!found) {
        response_error(res, 401, "Invalid API key");
        return false;
    }
    if (has_key(s->opts.admin_keys, s->opts.n_admin_keys, key))
        req->admin = true;
    /* The user's name must not reveal the key: it appears in records and logs. */
    req->user = user_name_of_key(&req->arena, key);
    if (!req->user)
        response_no_memory(res);
    return req->user != NULL;
}

/* ---- bodies --------------------------------------------------------------------------------- */

/* The largest body of a request, compressed or not. */
static size_t decoded_limit(const struct server *s, const struct request *req)
{
    /* A route's own limit never raises that of the server. */
    return req->max_body && req->max_body < s->opts.max_decoded_body ? req->max_body
                                                                     : s->opts.max_decoded_body;
}

/* Replace a compressed body by its content; false: the response says why not.  The content counts
 * as held before there is memory for it, and the compressed form goes when it is there. */
static bool decompress_body(struct server *s, struct request *req, struct response *res)
{
    tinker_error err = { 0 };
    /* A request that is called again after a hold was decompressed the first time. */
    if (req->again || !req->content_encoding || !*req->content_encoding ||
        strcasecmp(req->content_encoding, "identity") == 0)
        return true;
    /* Only zstd: it is what the SDKs send, and each further format is code that reads hostile
     * bytes. */
    if (strcasecmp(req->content_encoding, "zstd") != 0) {
        response_error(res, 415, "Content-Encoding %s is not supported; use zstd",
                       req->content_encoding);
        return false;
    }
    size_t n = 0, max = decoded_limit(s, req);
    struct buf b;
    buf_init(&b, max);
    /* The frame states the size of its content, so that memory is asked for before it is used. */
    tinker_status status = wire_zstd_content_size(req->body, req->n_body, max, &n, &err);
    if (status == TINKER_OK && !req->charge(req, n)) {
        response_error(res, 429, "too many request bodies are being read at once; retry later");
        response_header(res, "Retry-After", "1");
        return false;
    }
    /* The two kinds of no memory: a limit of ours is the client's fault, the machine's is not. */
    bool too_large = status == TINKER_ENOMEM && n > max;
    if (status == TINKER_OK)
        status = wire_zstd_decompress(req->body, req->n_body, max, &b, &err);
    if (status == TINKER_OK) {
        buf_clear(req->buffer);
        *req->buffer = b;
        req->body = b.data ? b.data : ""; /* with the NUL that buffers end with */
        req->n_body = b.len;
        return true;
    }
    buf_clear(&b);
    if (err.status == TINKER_EINVAL)
        route_invalid(res, err.message);
    else if (too_large)
        response_error(res, 413, "decompressed body is larger than %zu bytes", max);
    else
        response_no_memory(res);
    return false;
}

/* Find the route and check that the request may be made; NULL: the response says why not. */
static const struct route *admit_request(struct server *s, struct request *req,
                                         struct response *res)
{
    const char *allowed;
    if (req->route) /* admitted before */
        return req->route;
    /* Before the routes are searched: no handler ever sees ".." or a NUL. */
    if (!normalize_path(req)) {
        response_error(res, 404, "Not Found: the path has an invalid segment");
        return NULL;
    }
    const struct route *r = find_route(s, req, &allowed);
    /* CSRF: a page of another site must not drive this server from a browser.  Browsers send Origin
     * with every request that changes something. */
    const char *origin = req->origin ? strstr(req->origin, "://") : NULL;
    bool same_site =
        !req->origin || (origin && req->host && strcasecmp(origin + 3, req->host) == 0);
    /* DNS rebinding: a site can make its own name resolve to this machine, and its pages are then
     * same-site.  Without a key only the Host header tells them apart. */
    bool host_allowed = s->opts.n_api_keys || s->opts.insecure || s->opts.unix_path || !req->host ||
                        listener_is_local_name(req->host);
    if (!r && !allowed) {
        response_error(res, 404, "Not Found");
    } else if (!r) {
        response_error(res, 405, "Method Not Allowed");
        response_header(res, "Allow", allowed);
    } else if (!same_site) {
        response_error(res, 403, "requests from other web sites are refused");
    } else if (!host_allowed) {
        response_error(res, 403,
                       "without an API key this server answers to localhost and to addresses, not "
                       "to the name %.100s; see --api-key",
                       req->host);
    } else if (r->open || authenticate_user(s, req, res)) {
        /* The key comes last: a request without a route costs no comparison. */
        if (!r->changes || !s->opts.read_only) {
            /* 0: the limit of the server alone. */
            req->max_body = r->large ? 0 : ROUTE_BODY_MAX;
            /* Kept for the second call, after the body. */
            return req->route = r;
        }
        response_error(res, 403, "this server is read-only");
    }
    return NULL;
}

/* Clients of the OpenAI endpoints expect {"error": {...}} instead of {"detail": ...}: convert what
 * the common code has written. */
static void convert_openai_error(struct server *s, struct request *req, struct response *res)
{
    const char *path = strip_prefix(s, req->path);
    struct json_reader r;
    struct json_str key, raw = { 0 };
    char *text = NULL;
    bool anthropic =
        path && (strncmp(path, "/anthropic/", 11) == 0 || strncmp(path, "/v1/messages", 12) == 0);
    /* Successes are written by the routes themselves. */
    if (res->status < 400 || !path ||
        (strncmp(path, "/v1/", 4) != 0 && strncmp(path, "/oai/", 5) != 0 && !anthropic))
        return;
    /* The body was written by code that both kinds of routes share, so it is read back here. */
    json_reader_init(&r, res->body.data ? res->body.data : "", res->body.len, &req->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        if (json_str_is(key, "detail") && json_peek(&r) == JSON_STRING)
            json_cstring(&r, &text);
        else if (json_str_is(key, "detail") && json_raw(&r, &raw))
            text = arena_strndup(&req->arena, raw.s, raw.n);
        else if (json_str_is(key, "error") && anthropic) {
            /* what the code that both APIs share has written */
            json_begin_object(&r);
            while (json_next_key(&r, &key))
                if (json_str_is(key, "message"))
                    json_cstring(&r, &text);
                else
                    json_skip(&r);
        } else
            json_skip(&r);
    if (text && anthropic)
        anthropic_error(res, res->status, text);
    else if (text)
        openai_error(res, res->status, text);
}

void routes_handle(void *state, struct request *req, struct response *res)
{
    struct server *s = state;
    const struct route *r = admit_request(s, req, res);
    if (r && decompress_body(s, req, res)) {
        /* Pointers to sessions and models stay valid while the handler runs.  Held for reading by
         * every handler, for writing by the one that frees sessions and models. */
        pthread_rwlock_rdlock(&s->evict_lock);
        r->handle(s, req, res);
        pthread_rwlock_unlock(&s->evict_lock);
    }
    /* Also where there was no route: under /v1/ everything must have that form. */
    convert_openai_error(state, req, res);
}

/* Called before the body is read, so that a refused upload costs nothing. */
bool routes_check(void *state, struct request *req, struct response *res)
{
    bool ok = admit_request(state, req, res) != NULL;
    if (!ok)
        convert_openai_error(state, req, res);
    return ok;
}

/* A health check is answered even when all connections are in use: see listener.c. */
bool routes_is_check(void *state, const struct request *req)
{
    const char *path = strip_prefix(state, req->path);
    return path && strcmp(path, API "healthz") == 0;
}

/* Archives, traces and large bodies take long; polls and heartbeats must never wait; everything
 * else is quick unless a worker holds the store's lock. */
enum listener_place routes_place(void *state, const struct request *req)
{
    const char *path = strip_prefix(state, req->path);
    static const char *const quick[] = { API "retrieve_future", API "session_heartbeat",
                                         API "healthz", API "telemetry" };
    if (!path)
        return LISTENER_INLINE;
    size_t n = strlen(path);
    /* All points of a long run take a while to read. */
    if (n > 8 && strcmp(path + n - 8, "/metrics") == 0 && strncmp(path, API, strlen(API)) == 0)
        return LISTENER_WORKER;
    /* A compressed body may be large although it has few bytes. */
    if ((req->n_body && req->content_encoding && !req->max_body) ||
        strncmp(path, "/download/", 10) == 0 || strncmp(path, "/trace/", 7) == 0)
        return LISTENER_WORKER;
    for (size_t i = 0; i < ARRAY_LEN(quick); i++)
        if (strcmp(path, quick[i]) == 0)
            return LISTENER_INLINE;
    return req->n_body >= WORKER_BODY_BYTES ? LISTENER_WORKER : LISTENER_EITHER;
}

/* ---- for handlers ---------------------------------------------------------------------------- */

/* The shape that FastAPI gives validation errors, which the Python SDK reads. */
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
    /* The SDK prints `loc`; the message says the member itself. */
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

/* No memory is not the fault of the body, and a client may try again. */
void route_bad_body(struct response *res, const tinker_error *err)
{
    if (err->status == TINKER_ENOMEM)
        response_no_memory(res);
    else
        route_invalid(res, err->message);
}

/* Lenient: unknown members are ignored, so newer clients work. */
bool route_body(struct request *req, struct response *res, const struct wire_type *type, void *out)
{
    tinker_error err = { 0 };
    /* Strings point into the request's arena and live as long as the request. */
    if (wire_decode_json(type, req->body, req->n_body, WIRE_LENIENT, &req->arena, out, &err) ==
        TINKER_OK)
        return true;
    route_bad_body(res, &err);
    return false;
}

void route_reply(struct response *res, const struct wire_type *type, const void *value)
{
    tinker_error err = { 0 };
    buf_reset(&res->body); /* a handler may have begun another response */
    /* Encoding fails only for no memory and for a time that has no date; both are ours. */
    if (wire_encode_json(type, value, &res->body, &err) != TINKER_OK) {
        if (err.status == TINKER_ENOMEM)
            response_no_memory(res);
        else
            response_error(res, 500, "%s", err.message);
        return;
    }
    res->status = 200;
    res->content_type = "application/json";
}

/* The log gets it too: the client cannot do anything about it. */
void route_store_error(struct server *s, struct response *res, const tinker_error *err)
{
    log_line(s->log, LOG_ERROR, "%s", err->message);
    if (err->status == TINKER_ENOMEM || !err->status)
        response_no_memory(res);
    else
        response_error(res, 500, "%s", err->message);
}

bool route_query_int(struct request *req, struct response *res, const char *name, int64_t dflt,
                     int64_t max, int64_t *out)
{
    /* An empty value is what forms of web pages send. */
    const char *text = req->query(req, name);
    char *end;
    *out = dflt;
    if (!text || !*text) /* absent, or "limit=" */
        return true;
    /* strtoll() takes "-1" and " 1"; the rest of the text must be empty. */
    long long v = strtoll(text, &end, 10);
    if (*end || v < 0) {
        response_error(res, 422, "query parameter %s must be a non-negative integer", name);
        return false;
    }
    *out = v < max ? v : max; /* too many is not an error: the response says how many it has */
    return true;
}

void route_submitted(struct server *s, struct response *res, int status, const char *id,
                     const char *model_id, const tinker_error *err)
{
    /* The same envelope for a new request and for a retry.  Both name the same future, so a client
     * that lost the first response loses nothing. */
    struct wire_untyped_api_future future = { id, model_id };
    switch ((enum submit_status)status) {
    case SUBMIT_OK:
        route_reply(res, &wire_untyped_api_future, &future);
        break;
    case SUBMIT_REUSED:
        response_error(res, 400, "Training request sequence number was reused (%s)", id);
        break;
    case SUBMIT_LATE: /* not 409: clients would retry for minutes */
        response_error(res, 400,
                       "request %s is unknown, and later requests have run: it came too late, or "
                       "its result was deleted; if it came too late, send it as a new request",
                       id);
        break;
    case SUBMIT_BAD_SEQ:
        response_error(res, 400, "seq_id is too large");
        break;
    case SUBMIT_NO_MODEL:
        response_error(res, 404, "Model not found");
        break;
    case SUBMIT_NO_BASE:
        response_error(res, 404,
                       "the base model of %s is not served here now; start the server with it",
                       model_id);
        break;
    case SUBMIT_BUSY: /* SDKs back off and send it again */
        response_header(res, "Retry-After", "1");
        response_error(res, 429, "too many requests are waiting");
        break;
    case SUBMIT_FAILED:
        if (err && err->message[0])
            route_store_error(s, res, err);
        else
            response_no_memory(res);
        break;
    }
}

/* The form in which tokens and search results name users. */
const char *route_user_urn(struct request *req)
{
    /* The prefix tells a user from other things that tokens can stand for. */
    return arena_printf(&req->arena, "urn:tinker:user:%s", req->user);
}

/* Without lock for the caller: evict_lock keeps the session valid until the handler returns. */
struct session *route_session(struct server *s, struct request *req, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, id);
    /* "direct": the session that requests without one share; it has no id that a client could
     * name. */
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
    /* The same 404 for a missing and a foreign checkpoint.  A different one would tell strangers
     * which names exist. */
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
    /* The parsed path points into the text; the store wants a string. */
    const char *run = arena_strndup(&req->arena, path.run, path.n_run);
    if (!run) {
        response_no_memory(res);
        return NULL;
    }
    return route_checkpoint(s, req, res, run, path.sampler ? STORE_SAMPLER : STORE_TRAINING,
                            path.name, true);
}
