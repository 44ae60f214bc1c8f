/* rest.c - the REST calls: checking arguments, building paths, one rest_op each. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/rest/rest_types.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "client/training/training_client.h"
#include "client/call/call_options.h"
#include "wire/path.h"
#include "wire/wire.h"

struct tinker_rest {
    tinker_service *service;
};

tinker_rest *tinker_service_create_rest(tinker_service *s, tinker_error *err)
{
    tinker_rest *r = malloc(sizeof(*r));
    if (r)
        r->service = s;
    else
        err_nomem(err, "REST client");
    return r;
}

void tinker_rest_free(tinker_rest *r)
{
    free(r);
}

struct holder *rest_holder(tinker_rest *r, tinker_error *err)
{
    return service_rest(r->service, err);
}

/* ---- paths ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static char *path_of(const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    buf_init(&b, 1 << 16);
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    return buf_detach(&b, NULL);
}

char *rest_path_of_id(const char *head, const char *what, const char *id, const char *tail,
                      tinker_error *err)
{
    struct buf b;
    if (wire_check_segment(what, id ? id : "", id ? strlen(id) : 0, err) != TINKER_OK)
        return NULL;
    if (strchr(id, '/')) {
        err_set(err, TINKER_EINVAL, "%s \"%.120s\" has a slash, which no id has", what, id);
        return NULL;
    }
    buf_init(&b, 1 << 16);
    buf_puts(&b, head);
    wire_put_segment(&b, id, strlen(id));
    buf_puts(&b, tail);
    char *path = buf_detach(&b, NULL);
    if (!path)
        err_nomem(err, "path");
    return path;
}

static const char *scope_name(tinker_scope scope)
{
    return scope == TINKER_SCOPE_ACCESSIBLE ? "accessible" : "owned";
}

static tinker_status check_page(tinker_page *ours, const tinker_page *page, int64_t limit,
                                tinker_error *err)
{
    *ours = (tinker_page)TINKER_PAGE_INIT;
    tinker_status s = opts_copy(ours, sizeof(*ours), page, "tinker_page", err);
    if (s != TINKER_OK)
        return s;
    if (ours->limit < 0 || ours->offset < 0)
        return err_set(err, TINKER_EINVAL, "limit and offset of a page must not be negative");
    if (!ours->limit)
        ours->limit = limit;
    return TINKER_OK;
}

char *rest_checkpoint_path(const char *path, const char *tail, tinker_error *err)
{
    struct wire_path p;
    if (!path || wire_path_parse_any(path, &p, err) != TINKER_OK) {
        if (!path)
            err_set(err, TINKER_EINVAL, "no checkpoint path given");
        return NULL;
    }
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_puts(&b, "api/v1/training_runs/");
    wire_put_segment(&b, p.run, p.n_run);
    buf_puts(&b, "/checkpoints/");
    if (!p.bare) /* kind and name are two parts of the path */
        buf_append(&b, p.checkpoint_id, (size_t)(p.name - p.checkpoint_id));
    wire_put_segment(&b, p.name, strlen(p.name));
    buf_puts(&b, tail);
    char *out = buf_detach(&b, NULL);
    if (!out)
        err_nomem(err, "path");
    return out;
}

static tinker_future *submit(tinker_rest *r, const struct rest_kind *kind, char *path,
                             struct buf *body, tinker_error *err)
{
    return rest_submit(rest_holder(r, err), kind, path, body, err);
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static const struct rest_kind list_checkpoints_kind = { REST_CLASS("list_checkpoints"),
                                                        REST_SPEC("list_checkpoints", "GET"),
                                                        RESULT_VALUE,
                                                        type_checkpoints,
                                                        read_checkpoints,
                                                        false };
static const struct rest_kind delete_kind = { REST_CLASS("delete_checkpoint"),
                                              REST_SPEC("delete_checkpoint", "DELETE"),
                                              RESULT_NONE,
                                              NULL,
                                              NULL,
                                              true };
static const struct rest_kind publish_kind = { REST_CLASS("publish_checkpoint"),
                                               REST_SPEC("publish_checkpoint", "POST"),
                                               RESULT_NONE,
                                               NULL,
                                               NULL,
                                               REST_CONFLICT_ALREADY };
static const struct rest_kind unpublish_kind = { REST_CLASS("unpublish_checkpoint"),
                                                 REST_SPEC("unpublish_checkpoint", "DELETE"),
                                                 RESULT_NONE,
                                                 NULL,
                                                 NULL,
                                                 REST_CONFLICT_ALREADY };
static const struct rest_kind ttl_kind = { REST_CLASS("set_checkpoint_ttl"),
                                           REST_SPEC("set_checkpoint_ttl", "PUT"),
                                           RESULT_NONE,
                                           NULL,
                                           NULL,
                                           false };

tinker_future *tinker_rest_list_checkpoints(tinker_rest *r, const char *run_id, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/training_runs/", "run id", run_id, "/checkpoints", err);
    return path ? submit(r, &list_checkpoints_kind, path, NULL, err) : NULL;
}

tinker_future *tinker_rest_list_user_checkpoints(tinker_rest *r, const tinker_page *page,
                                                 tinker_error *err)
{
    tinker_page p;
    if (check_page(&p, page, 100, err) != TINKER_OK)
        return NULL;
    return submit(r, &list_checkpoints_kind,
                  path_of("api/v1/checkpoints?limit=%lld&offset=%lld", (long long)p.limit,
                          (long long)p.offset),
                  NULL, err);
}

static tinker_future *on_checkpoint(tinker_rest *r, const struct rest_kind *kind, const char *path,
                                    const char *tail, struct buf *body, tinker_error *err)
{
    char *endpoint = rest_checkpoint_path(path, tail, err);
    if (endpoint)
        return submit(r, kind, endpoint, body, err);
    if (body)
        buf_clear(body);
    return NULL;
}

tinker_future *tinker_rest_delete_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return on_checkpoint(r, &delete_kind, path, "", NULL, err);
}

tinker_future *tinker_rest_publish_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return on_checkpoint(r, &publish_kind, path, "/publish", NULL, err);
}

tinker_future *tinker_rest_unpublish_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return on_checkpoint(r, &unpublish_kind, path, "/publish", NULL, err);
}

/* A body from a request struct; false: *err says why. */
static bool encode(struct buf *out, const struct wire_type *type, const void *value,
                   tinker_error *err)
{
    buf_init(out, 1 << 20);
    if (wire_encode_json(type, value, out, err) == TINKER_OK)
        return true;
    buf_clear(out);
    return false;
}

tinker_future *tinker_rest_set_checkpoint_ttl(tinker_rest *r, const char *path, int64_t ttl_seconds,
                                              tinker_error *err)
{
    struct wire_ttl_request req = { { ttl_seconds > 0, ttl_seconds } };
    struct buf body;
    if (ttl_seconds < 0) {
        err_set(err, TINKER_EINVAL, "ttl_seconds is %lld, expected at least 0",
                (long long)ttl_seconds);
        return NULL;
    }
    if (!encode(&body, &wire_ttl_request, &req, err))
        return NULL;
    return on_checkpoint(r, &ttl_kind, path, "/ttl", &body, err);
}

static const struct rest_kind copy_kind = { REST_CLASS("copy_weights"),
                                            REST_SPEC("copy_weights", "POST"),
                                            RESULT_PATH,
                                            NULL,
                                            read_copied,
                                            false };

tinker_future *tinker_rest_copy_checkpoint(tinker_rest *r, const char *path,
                                           const tinker_copy_options *opts, tinker_error *err)
{
    tinker_copy_options o = TINKER_COPY_OPTIONS_INIT;
    struct wire_path p;
    struct buf body;
    if (opts_copy(&o, sizeof(o), opts, "tinker_copy_options", err) != TINKER_OK ||
        wire_path_parse_known(path, &p, err) != TINKER_OK)
        return NULL;
    const char *project = o.project_id && *o.project_id ? o.project_id : r->service->cfg.project_id;
    if (o.ttl_seconds < 0 || !project) {
        if (!project)
            err_set(err, TINKER_EINVAL,
                    "a copy needs a project: project_id of its options or of the service, or "
                    "TINKER_PROJECT_ID");
        else
            err_set(err, TINKER_EINVAL, "ttl_seconds is %lld, expected at least 0",
                    (long long)o.ttl_seconds);
        return NULL;
    }
    struct wire_copy_weights_request req = {
        .destination_project_id = project,
        .source_path = path,
        .ttl_seconds = { o.ttl_seconds > 0, o.ttl_seconds },
    };
    const tinker_named_string token = { "X-Tinker-Weights-Access-Token", o.access_token };
    log_secret(o.access_token);
    if (o.access_token && prefs_check_header(&token, err) != TINKER_OK)
        return NULL;
    if (!encode(&body, &wire_copy_weights_request, &req, err))
        return NULL;
    return rest_submit_once(rest_holder(r, err), &copy_kind, path_of("api/v1/copy_weights"), &body,
                            o.access_token, err);
}

static const struct rest_kind files_kind = { REST_CLASS("external_weights_urls"),
                                             REST_SPEC("external_weights_urls", "GET"),
                                             RESULT_VALUE,
                                             type_files,
                                             read_files,
                                             false };

tinker_future *tinker_rest_checkpoint_files(tinker_rest *r, const char *path, tinker_error *err)
{
    struct wire_path p;
    if (wire_path_parse_any(path, &p, err) != TINKER_OK)
        return NULL;
    if (!p.external) {
        err_set(err, TINKER_EINVAL,
                "%.150s is not tinker://<training run>/external_weights/<name>; other checkpoints "
                "are downloaded as archives",
                path);
        return NULL;
    }
    return on_checkpoint(r, &files_kind, path, "/external_weights_urls", NULL, err);
}

/* ---- training runs ------------------------------------------------------------------------------ */

static const struct rest_kind run_kind = { REST_CLASS("get_training_run"),
                                           REST_SPEC("get_training_run", "GET"),
                                           RESULT_VALUE,
                                           type_training_run,
                                           read_training_run,
                                           false };
static const struct rest_kind runs_kind = { REST_CLASS("list_training_runs"),
                                            REST_SPEC("list_training_runs", "GET"),
                                            RESULT_VALUE,
                                            type_training_runs,
                                            read_training_runs,
                                            false };
static const struct rest_kind weights_info_kind = { REST_CLASS("weights_info"),
                                                    REST_SPEC("weights_info", "POST"),
                                                    RESULT_VALUE,
                                                    type_weights_info,
                                                    read_weights_info,
                                                    false };

tinker_future *tinker_rest_list_training_runs(tinker_rest *r, const tinker_page *page,
                                              tinker_error *err)
{
    tinker_page p;
    struct buf b;
    if (check_page(&p, page, 20, err) != TINKER_OK)
        return NULL;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "api/v1/training_runs?limit=%lld&offset=%lld&access_scope=%s",
               (long long)p.limit, (long long)p.offset, scope_name(p.scope));
    if (p.project_id && *p.project_id) {
        buf_puts(&b, "&project_id=");
        http_query_escape(&b, p.project_id);
    }
    return submit(r, &runs_kind, buf_detach(&b, NULL), NULL, err);
}

tinker_future *tinker_rest_training_run(tinker_rest *r, const char *id_or_path, tinker_scope scope,
                                        tinker_error *err)
{
    struct wire_path p = { 0 };
    char *id = NULL, tail[48];
    if (id_or_path && wire_path_is(id_or_path)) {
        if (wire_path_parse_any(id_or_path, &p, err) != TINKER_OK)
            return NULL;
        id = strndup(p.run, p.n_run);
        if (!id) {
            err_nomem(err, "path");
            return NULL;
        }
    }
    snprintf(tail, sizeof(tail), "?access_scope=%s", scope_name(scope));
    char *path =
        rest_path_of_id("api/v1/training_runs/", "run id", id ? id : id_or_path, tail, err);
    free(id);
    return path ? submit(r, &run_kind, path, NULL, err) : NULL;
}

tinker_future *tinker_rest_weights_info(tinker_rest *r, const char *path, tinker_error *err)
{
    struct wire_weights_info_request req = { path };
    struct wire_path p;
    struct buf body;
    if (!path)
        err_set(err, TINKER_EINVAL, "no checkpoint path given");
    if (!path || wire_path_parse_known(path, &p, err) != TINKER_OK)
        return NULL;
    if (!encode(&body, &wire_weights_info_request, &req, err))
        return NULL;
    return submit(r, &weights_info_kind, path_of("api/v1/weights_info"), &body, err);
}

/* ---- sessions and samplers ------------------------------------------------------------------------ */

static const struct rest_kind sessions_kind = { REST_CLASS("list_sessions"),
                                                REST_SPEC("list_sessions", "GET"),
                                                RESULT_VALUE,
                                                type_strings,
                                                read_sessions,
                                                false };
static const struct rest_kind session_kind = { REST_CLASS("get_session"),
                                               REST_SPEC("get_session", "GET"),
                                               RESULT_VALUE,
                                               type_session,
                                               read_session,
                                               false };
static const struct rest_kind project_kind = { REST_CLASS("assign_session_project"),
                                               REST_SPEC("assign_session_project", "PUT"),
                                               RESULT_NONE,
                                               NULL,
                                               NULL,
                                               false };
static const struct rest_kind sampler_kind = { REST_CLASS("get_sampler"),
                                               REST_SPEC("get_sampler", "GET"),
                                               RESULT_VALUE,
                                               type_sampler_info,
                                               read_sampler_info,
                                               false };
static const struct rest_kind base_model_kind = { REST_CLASS("get_base_model"),
                                                  REST_SPEC("get_sampler", "GET"),
                                                  RESULT_PATH,
                                                  NULL,
                                                  read_base_model,
                                                  false };

tinker_future *tinker_rest_list_sessions(tinker_rest *r, const tinker_page *page, tinker_error *err)
{
    tinker_page p;
    if (check_page(&p, page, 20, err) != TINKER_OK)
        return NULL;
    return submit(r, &sessions_kind,
                  path_of("api/v1/sessions?limit=%lld&offset=%lld&access_scope=%s",
                          (long long)p.limit, (long long)p.offset, scope_name(p.scope)),
                  NULL, err);
}

tinker_future *tinker_rest_session(tinker_rest *r, const char *session_id, tinker_scope scope,
                                   tinker_error *err)
{
    char tail[48];
    snprintf(tail, sizeof(tail), "?access_scope=%s", scope_name(scope));
    char *path = rest_path_of_id("api/v1/sessions/", "session id", session_id, tail, err);
    return path ? submit(r, &session_kind, path, NULL, err) : NULL;
}

static const struct rest_kind search_kind = { REST_CLASS("search_sessions"),
                                              REST_SPEC("search_sessions", "POST"),
                                              RESULT_VALUE,
                                              type_sessions,
                                              read_search,
                                              false };

enum { FINISHED = TINKER_SESSION_SUCCEEDED | TINKER_SESSION_ERRORED | TINKER_SESSION_INTERRUPTED };

static tinker_status check_texts(const char *what, const char *const *v, size_t n,
                                 tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!v || !v[i] || !*v[i])
            return err_set(err, TINKER_EINVAL, "%s: entry %zu is empty", what, i);
    return TINKER_OK;
}

static tinker_status check_query(const tinker_session_query *q, tinker_error *err)
{
    if (q->limit < 0 || q->limit > 200)
        return err_set(err, TINKER_EINVAL, "limit of a search is %lld, expected 1 to 200",
                       (long long)q->limit);
    if (q->states &
        ~(TINKER_SESSION_ACTIVE | FINISHED | TINKER_SESSION_FAILED | TINKER_SESSION_CANCELLED))
        return err_set(err, TINKER_EINVAL, "states: %d has a bit that is no state", q->states);
    if (q->n_owner_urns > 10)
        return err_set(err, TINKER_EINVAL, "%zu owner_urns, expected at most 10", q->n_owner_urns);
    if (q->cursor && (!q->cursor->session_id || !*q->cursor->session_id))
        return err_set(err, TINKER_EINVAL, "the cursor has no session id");
    for (size_t i = 0; i < q->n_user_metadata; i++)
        if (!q->user_metadata || !q->user_metadata[i].name || !q->user_metadata[i].value)
            return err_set(err, TINKER_EINVAL, "user_metadata: entry %zu has no name or no value",
                           i);
    tinker_status s = check_texts("project_ids", q->project_ids, q->n_project_ids, err);
    return s == TINKER_OK ? check_texts("owner_urns", q->owner_urns, q->n_owner_urns, err) : s;
}

/* At most four; the ends that a client reports are one of them, narrowed unless all are wanted. */
static size_t put_states(int states, struct wire_session_status_query *out, const char **reasons)
{
    size_t n = 0, k = 0;
    if (states & TINKER_SESSION_ACTIVE)
        out[n++].type = "active";
    if (states & TINKER_SESSION_CANCELLED)
        out[n++].type = "cancelled";
    if (states & TINKER_SESSION_FAILED)
        out[n++].type = "failed";
    if (!(states & FINISHED))
        return n;
    if (states & TINKER_SESSION_SUCCEEDED)
        reasons[k++] = "success";
    if (states & TINKER_SESSION_ERRORED)
        reasons[k++] = "errored";
    if (states & TINKER_SESSION_INTERRUPTED)
        reasons[k++] = "interrupted";
    out[n++] = (struct wire_session_status_query){ "client_finished", { reasons, k < 3 ? k : 0 } };
    return n;
}

tinker_future *tinker_rest_search_sessions(tinker_rest *r, const tinker_session_query *query,
                                           tinker_error *err)
{
    tinker_session_query q = TINKER_SESSION_QUERY_INIT;
    struct wire_session_status_query statuses[4] = { { NULL, { NULL, 0 } } };
    const char *reasons[3];
    struct wire_session_search_cursor cursor;
    struct buf body;
    if (opts_copy(&q, sizeof(q), query, "tinker_session_query", err) != TINKER_OK ||
        check_query(&q, err) != TINKER_OK)
        return NULL;
    struct wire_session_search_request req = {
        .session_id = q.session_id && *q.session_id ? q.session_id : NULL,
        .project_ids = { q.project_ids, q.n_project_ids },
        .user_metadata = { q.n_user_metadata > 0, q.user_metadata, q.n_user_metadata },
        .display_name = q.display_name && *q.display_name ? q.display_name : NULL,
        .owner = { q.n_owner_urns                       ? "user"
                   : q.scope == TINKER_SCOPE_ACCESSIBLE ? "accessible"
                                                        : "own",
                   { q.owner_urns, q.n_owner_urns } },
        .statuses = statuses,
        .n_statuses = put_states(q.states, statuses, reasons),
        .limit = q.limit ? q.limit : 50,
    };
    if (q.cursor) {
        cursor = (struct wire_session_search_cursor){ { 1, false, q.cursor->created_us },
                                                      q.cursor->session_id };
        req.cursor = &cursor;
    }
    if (!encode(&body, &wire_session_search_request, &req, err))
        return NULL;
    return submit(r, &search_kind, path_of("api/v1/sessions/search"), &body, err);
}

tinker_future *tinker_rest_assign_project(tinker_rest *r, const char *session_id,
                                          const char *project_id, tinker_error *err)
{
    struct wire_project_request req = { project_id };
    struct buf body;
    if (!project_id || !*project_id) {
        err_set(err, TINKER_EINVAL, "project id must not be empty");
        return NULL;
    }
    char *path = rest_path_of_id("api/v1/sessions/", "session id", session_id, "/project", err);
    if (!path)
        return NULL;
    if (encode(&body, &wire_project_request, &req, err))
        return submit(r, &project_kind, path, &body, err);
    free(path);
    return NULL;
}

tinker_future *tinker_rest_sampler(tinker_rest *r, const char *sampler_id, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/samplers/", "sampler id", sampler_id, "", err);
    return path ? submit(r, &sampler_kind, path, NULL, err) : NULL;
}

tinker_future *tinker_sampler_get_base_model(tinker_sampler *s, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/samplers/", "sampler id", s->id, "", err);
    return path ? rest_submit(s->holder, &base_model_kind, path, NULL, err) : NULL;
}

/* ---- the service, and models being trained ---------------------------------------------------------- */

static const struct rest_kind capabilities_kind = { REST_CLASS("get_server_capabilities"),
                                                    REST_SPEC("get_server_capabilities", "GET"),
                                                    RESULT_VALUE,
                                                    type_capabilities,
                                                    read_capabilities,
                                                    false };
static const struct rest_kind health_kind = {
    REST_CLASS("healthz"), { "healthz", "GET", POOL_TRAIN, 0, NULL, CALL_DEFAULT, false, false },
    RESULT_NONE,           NULL,
    read_health,           false
};
static const struct rest_kind info_kind = { REST_CLASS("get_info"), REST_SPEC("get_info", "POST"),
                                            RESULT_VALUE,           type_model_info,
                                            read_model_info,        false };

tinker_future *tinker_service_capabilities(tinker_service *s, tinker_error *err)
{
    return rest_submit(service_rest(s, err), &capabilities_kind,
                       path_of("api/v1/get_server_capabilities"), NULL, err);
}

tinker_future *tinker_service_health(tinker_service *s, tinker_error *err)
{
    return rest_submit(service_rest(s, err), &health_kind, path_of("api/v1/healthz"), NULL, err);
}

static const struct rest_kind name_kind = {
    REST_CLASS("get_info"), { "get_info", "POST", POOL_TRAIN, 0, NULL, CALL_DEFAULT, false, false },
    RESULT_VALUE,           type_model_info,
    read_model_info,        false
};

static tinker_future *ask_info(tinker_training *t, const struct rest_kind *kind, tinker_error *err)
{
    struct wire_get_info_request req = { t->model_id };
    struct buf body;
    if (!encode(&body, &wire_get_info_request, &req, err))
        return NULL;
    return rest_submit(t->holder, kind, path_of("api/v1/get_info"), &body, err);
}

tinker_future *tinker_training_get_info(tinker_training *t, tinker_error *err)
{
    return ask_info(t, &info_kind, err);
}

tinker_future *training_client_ask_name(tinker_training *t, tinker_error *err)
{
    return ask_info(t, &name_kind, err);
}

/* ---- paths, for the user ------------------------------------------------------------------------ */

tinker_status tinker_checkpoint_path_parse(const char *path, tinker_checkpoint_path *out,
                                           tinker_error *err)
{
    struct wire_path p;
    tinker_status s = wire_path_parse_any(path, &p, err);
    if (s != TINKER_OK)
        return s;
    if (p.bare)
        return err_set(err, TINKER_EINVAL, "\"%.120s\" does not say which kind of checkpoint it is",
                       path);
    if (p.n_run >= sizeof(out->training_run) ||
        strlen(p.checkpoint_id) >= sizeof(out->checkpoint_id))
        return err_set(err, TINKER_EINVAL, "the path has a part of more than 255 bytes");
    *out = (tinker_checkpoint_path){ .sampler = p.sampler,
                                     .kind = p.external  ? TINKER_CHECKPOINT_EXTERNAL
                                             : p.sampler ? TINKER_CHECKPOINT_SAMPLER
                                                         : TINKER_CHECKPOINT_TRAINING };
    memcpy(out->training_run, p.run, p.n_run);
    snprintf(out->checkpoint_id, sizeof(out->checkpoint_id), "%s", p.checkpoint_id);
    snprintf(out->name, sizeof(out->name), "%s", p.name);
    return TINKER_OK;
}
