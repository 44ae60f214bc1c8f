/* rest.c - the REST calls about checkpoints, training runs, and the service itself.
 *
 * Each call is together here: its rest_kind, which names the wire table that reads the answer into
 * the public struct, the submit function, which checks arguments and builds the path, and the
 * accessor of the result.  A new call needs its struct in the public header, a table in
 * wire/rest_types.c and these three.  Runs in the caller's thread. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "client/training/training_client.h"
#include "client/call/call_options.h"
#include "wire/path.h"
#include "wire/wire.h"

struct tinker_rest {
    tinker_service *service;
    struct call_options *options; /* a reference; NULL: none */
};

/* Any thread. The handle is only a pair of pointers: sessions and connections belong to the
 * service, so making many costs nothing. */
tinker_rest *tinker_service_create_rest(tinker_service *s, tinker_error *err)
{
    tinker_rest *r = malloc(sizeof(*r));
    if (r)
        *r = (tinker_rest){ .service = s, .options = call_options_ref(s->options) };
    else
        err_nomem(err, "REST client");
    return r;
}

/* A second handle with its own options: it replaces all options of r, it does not add to them. */
tinker_rest *tinker_rest_with(tinker_rest *r, const tinker_call_options *opts, tinker_error *err)
{
    struct call_options *p = call_options_make(opts, err);
    tinker_rest *made = p ? malloc(sizeof(*made)) : NULL;
    if (made)
        *made = (tinker_rest){ .service = r->service, .options = p };
    else if (p) {
        call_options_unref(p);
        err_nomem(err, "REST client");
    }
    return made;
}

void tinker_rest_free(tinker_rest *r)
{
    if (r)
        call_options_unref(r->options);
    free(r);
}

struct session *rest_session(tinker_rest *r, tinker_error *err)
{
    return service_rest(r->service, err);
}

struct call_options *rest_options(const tinker_rest *r)
{
    return r->options;
}

/* ---- paths ---------------------------------------------------------------------------------- */

/* The caller frees. NULL: no memory, which rest_new() reports. */
char *rest_format_path(const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    buf_init(&b, 1 << 16);
    va_start(ap, fmt);
    buf_vprintf(&b, fmt, ap);
    va_end(ap);
    return buf_detach(&b, NULL);
}

/* An id is one part of the path: escaped, so that no id can reach another endpoint. */
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

/* Lists say "owned"; searches say "own", see checkpoint_search.c. */
const char *rest_scope_name(tinker_scope scope)
{
    return scope == TINKER_SCOPE_ACCESSIBLE ? "accessible" : "owned";
}

/* limit: the default of the call, since each list has its own. */
tinker_status rest_check_page(tinker_page *ours, const tinker_page *page, int64_t limit,
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

/* The endpoint of a checkpoint.  Kinds are not checked: the service knows what it can do with which,
 * and paths of other services name none. */
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

/* Takes over path and body, also on failure; a NULL path is reported as out of memory. */
tinker_future *rest_send(tinker_rest *r, const struct rest_kind *kind, char *path, struct buf *body,
                         tinker_error *err)
{
    return rest_submit(rest_session(r, err), kind, path, body, r->options, err);
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static const struct rest_kind list_checkpoints_kind = { REST_KIND("list_checkpoints", "GET"),
                                                        .result = RESULT_VALUE,
                                                        .type = &wire_checkpoints_list_response };
/* 409 is final for these three: it says how things are, and waiting does not change that.  To
 * publish and unpublish it also says that all is already as it should be. */
static const struct rest_kind delete_kind = { REST_KIND("delete_checkpoint", "DELETE"),
                                              .result = RESULT_NONE,
                                              .conflict = REST_CONFLICT_FINAL };
static const struct rest_kind publish_kind = { REST_KIND("publish_checkpoint", "POST"),
                                               .result = RESULT_NONE,
                                               .conflict = REST_CONFLICT_ALREADY };
static const struct rest_kind unpublish_kind = { REST_KIND("unpublish_checkpoint", "DELETE"),
                                                 .result = RESULT_NONE,
                                                 .conflict = REST_CONFLICT_ALREADY };
static const struct rest_kind ttl_kind = { REST_KIND("set_checkpoint_ttl", "PUT"),
                                           .result = RESULT_NONE };

/* GET training_runs/{run}/checkpoints: the whole list, without pages. */
tinker_future *tinker_rest_list_checkpoints(tinker_rest *r, const char *run_id, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/training_runs/", "run id", run_id, "/checkpoints", err);
    return path ? rest_send(r, &list_checkpoints_kind, path, NULL, err) : NULL;
}

/* GET checkpoints?limit&offset */
tinker_future *tinker_rest_list_user_checkpoints(tinker_rest *r, const tinker_page *page,
                                                 tinker_error *err)
{
    tinker_page p;
    if (rest_check_page(&p, page, 100, err) != TINKER_OK)
        return NULL;
    return rest_send(r, &list_checkpoints_kind,
                     rest_format_path("api/v1/checkpoints?limit=%lld&offset=%lld",
                                      (long long)p.limit, (long long)p.offset),
                     NULL, err);
}

/* The wire table of the response is the tag of the result: a future of another call has another
 * table and gives NULL. */
const tinker_checkpoints *tinker_future_checkpoints(const tinker_future *f)
{
    return future_value(f, &wire_checkpoints_list_response);
}

/* items is an array of the library's own element type, whose size the program does not know. */
const tinker_checkpoint *tinker_checkpoint_at(const tinker_checkpoints *list, size_t i)
{
    return i < list->n ? (const tinker_checkpoint *)list->items + i : NULL;
}

/* Calls whose whole argument is the path of a checkpoint.  Takes over body (may be NULL). */
static tinker_future *submit_for_checkpoint(tinker_rest *r, const struct rest_kind *kind,
                                            const char *path, const char *tail, struct buf *body,
                                            tinker_error *err)
{
    char *endpoint = rest_checkpoint_path(path, tail, err);
    if (endpoint)
        return rest_send(r, kind, endpoint, body, err);
    if (body)
        buf_clear(body);
    return NULL;
}

/* DELETE training_runs/{run}/checkpoints/{kind}/{name} */
tinker_future *tinker_rest_delete_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return submit_for_checkpoint(r, &delete_kind, path, "", NULL, err);
}

/* POST .../publish makes it public, DELETE .../publish private again. */
tinker_future *tinker_rest_publish_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return submit_for_checkpoint(r, &publish_kind, path, "/publish", NULL, err);
}

tinker_future *tinker_rest_unpublish_checkpoint(tinker_rest *r, const char *path, tinker_error *err)
{
    return submit_for_checkpoint(r, &unpublish_kind, path, "/publish", NULL, err);
}

/* On success the caller owns out; on failure it is empty and err says which field. */
bool rest_encode(struct buf *out, const struct wire_type *type, const void *value,
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
    /* PUT .../ttl; null removes the limit. */
    struct wire_ttl_request req = { { ttl_seconds > 0, ttl_seconds } };
    struct buf body;
    if (ttl_seconds < 0) {
        err_set(err, TINKER_EINVAL, "ttl_seconds is %lld, expected at least 0",
                (long long)ttl_seconds);
        return NULL;
    }
    if (!rest_encode(&body, &wire_ttl_request, &req, err))
        return NULL;
    return submit_for_checkpoint(r, &ttl_kind, path, "/ttl", &body, err);
}

/* The result is a text and no struct: the path of the copy. */
static tinker_status read_copied(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_copy_weights_response w;
    struct tinker_future *f = r->op.future;
    tinker_status s =
        wire_decode_json(&wire_copy_weights_response, b, n, WIRE_LENIENT, &f->arena, &w, err);
    if (s == TINKER_OK)
        f->value = w.tinker_path;
    return s;
}

static const struct rest_kind copy_kind = { REST_KIND("copy_weights", "POST"),
                                            .result = RESULT_SAVED_PATH, .read = read_copied };

/* Sent with one idempotency key for all attempts: a copy costs storage, and a lost response must not
 * make a second one.  The token belongs to another account and goes into a header of this call
 * only, redacted in logs and dumps. */
tinker_future *tinker_rest_copy_checkpoint(tinker_rest *r, const char *path,
                                           const tinker_copy_options *opts, tinker_error *err)
{
    tinker_copy_options o = TINKER_COPY_OPTIONS_INIT;
    struct wire_path p;
    struct buf body;
    if (opts_copy(&o, sizeof(o), opts, "tinker_copy_options", err) != TINKER_OK ||
        wire_path_parse_known(path, &p, err) != TINKER_OK)
        return NULL;
    /* POST copy_weights */
    /* A copy is billed to a project, so the default of the service applies, as it does to
     * sessions. */
    const char *project =
        o.project_id && *o.project_id ? o.project_id : r->service->base->cfg.project_id;
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
    /* The token becomes a header: what no header may hold, such as a line break, is refused
     * here. */
    const tinker_named_string token = { "X-Tinker-Weights-Access-Token", o.access_token };
    log_secret(o.access_token);
    if (o.access_token && call_options_check_header(&token, err) != TINKER_OK)
        return NULL;
    if (!rest_encode(&body, &wire_copy_weights_request, &req, err))
        return NULL;
    return rest_submit_once(rest_session(r, err), &copy_kind,
                            rest_format_path("api/v1/copy_weights"), &body, o.access_token,
                            r->options, err);
}

static const struct rest_kind files_kind = { REST_KIND("external_weights_urls", "GET"),
                                             .result = RESULT_VALUE,
                                             .type = &wire_external_weights_urls_response };

/* Only external weights have addresses per file; the message says what to do with others. */
tinker_future *tinker_rest_get_checkpoint_files(tinker_rest *r, const char *path, tinker_error *err)
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
    return submit_for_checkpoint(r, &files_kind, path, "/external_weights_urls", NULL, err);
}

const tinker_files *tinker_future_files(const tinker_future *f)
{
    return future_value(f, &wire_external_weights_urls_response);
}

/* ---- training runs ------------------------------------------------------------------------------ */

/* Converted, because a service that does not say which parts are trained trains all of them. */
static tinker_status read_weights_info(struct rest_op *r, const char *b, size_t n,
                                       tinker_error *err)
{
    struct wire_weights_info_response w;
    tinker_weights_info *out;
    tinker_status s = rest_decode(r, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_weights_info){
            .base_model = w.base_model,
            .is_lora = w.is_lora,
            .lora_rank = (w.lora_rank.has ? w.lora_rank.value : -1),
            .train_unembed = !w.train_unembed.has || w.train_unembed.value,
            .train_mlp = !w.train_mlp.has || w.train_mlp.value,
            .train_attn = !w.train_attn.has || w.train_attn.value,
        };
    return s;
}

static const struct rest_kind run_kind = { REST_KIND("get_training_run", "GET"),
                                           .result = RESULT_VALUE, .type = &wire_training_run };
static const struct rest_kind runs_kind = { REST_KIND("list_training_runs", "GET"),
                                            .result = RESULT_VALUE,
                                            .type = &wire_training_runs_response };
static const struct rest_kind weights_info_kind = { REST_KIND("weights_info", "POST"),
                                                    .result = RESULT_VALUE,
                                                    .type = &wire_weights_info_response,
                                                    .read = read_weights_info };

/* GET training_runs?limit&offset&access_scope&project_id */
tinker_future *tinker_rest_list_training_runs(tinker_rest *r, const tinker_page *page,
                                              tinker_error *err)
{
    tinker_page p;
    struct buf b;
    if (rest_check_page(&p, page, 20, err) != TINKER_OK)
        return NULL;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "api/v1/training_runs?limit=%lld&offset=%lld&access_scope=%s",
               (long long)p.limit, (long long)p.offset, rest_scope_name(p.scope));
    if (p.project_id && *p.project_id) {
        buf_puts(&b, "&project_id=");
        http_query_escape(&b, p.project_id);
    }
    return rest_send(r, &runs_kind, buf_detach(&b, NULL), NULL, err);
}

const tinker_training_runs *tinker_future_training_runs(const tinker_future *f)
{
    return future_value(f, &wire_training_runs_response);
}

const tinker_training_run *tinker_training_run_at(const tinker_training_runs *list, size_t i)
{
    return i < list->n ? (const tinker_training_run *)list->items + i : NULL;
}

/* A path stands for its run, so that callers need not take it apart. */
tinker_future *tinker_rest_get_training_run(tinker_rest *r, const char *id_or_path,
                                            tinker_scope scope, tinker_error *err)
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
    snprintf(tail, sizeof(tail), "?access_scope=%s", rest_scope_name(scope));
    char *path =
        rest_path_of_id("api/v1/training_runs/", "run id", id ? id : id_or_path, tail, err);
    free(id);
    return path ? rest_send(r, &run_kind, path, NULL, err) : NULL;
}

const tinker_training_run *tinker_future_training_run(const tinker_future *f)
{
    return future_value(f, &wire_training_run);
}

/* POST weights_info: which base model and which LoRA a checkpoint was made with, needed before a
 * client can be made from it. */
tinker_future *tinker_rest_get_weights_info(tinker_rest *r, const char *path, tinker_error *err)
{
    struct wire_weights_info_request req = { path };
    struct wire_path p;
    struct buf body;
    if (!path)
        err_set(err, TINKER_EINVAL, "no checkpoint path given");
    if (!path || wire_path_parse_known(path, &p, err) != TINKER_OK)
        return NULL;
    if (!rest_encode(&body, &wire_weights_info_request, &req, err))
        return NULL;
    return rest_send(r, &weights_info_kind, rest_format_path("api/v1/weights_info"), &body, err);
}

const tinker_weights_info *tinker_future_weights_info(const tinker_future *f)
{
    return future_value(f, &wire_weights_info_response);
}

/* ---- the service, and models being trained ---------------------------------------------------------- */

/* Checked, but without a result: a proxy may answer 200 with a page of its own. */
static tinker_status read_health(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_health_response w;
    return wire_decode_json(&wire_health_response, b, n, WIRE_LENIENT, &r->op.future->arena, &w,
                            err);
}

/* Converted: names may be at two places of the answer, and the id of a tokenizer may have a
 * revision behind a colon, which loaders do not know. */
static tinker_status read_model_info(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_info_response w;
    tinker_model_info *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s = rest_decode(r, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    const char *tokenizer = w.model_data.tokenizer_id;
    if (tokenizer) { /* without its revision */
        tokenizer = arena_strndup(a, tokenizer, strcspn(tokenizer, ":"));
        if (!tokenizer)
            return err_nomem(err, "result");
    }
    *out = (tinker_model_info){
        .model_id = w.model_id,
        .model_name = w.model_data.model_name ? w.model_data.model_name : w.model_name,
        .base_model = w.model_data.base_model,
        .arch = w.model_data.arch,
        .tokenizer_id = tokenizer,
        .is_lora = w.is_lora.has ? w.is_lora.value : -1,
        .lora_rank = (w.lora_rank.has ? w.lora_rank.value : -1),
    };
    return TINKER_OK;
}

static const struct rest_kind capabilities_kind = { REST_KIND("get_server_capabilities", "GET"),
                                                    .result = RESULT_VALUE,
                                                    .type =
                                                        &wire_get_server_capabilities_response };
static const struct rest_kind health_kind = {
    .class = REST_CLASS("healthz"),
    .spec = { .name = "healthz", .method = "GET", .pool = POOL_TRAIN, .max_retries = CALL_DEFAULT },
    .result = RESULT_NONE,
    .read = read_health
};
static const struct rest_kind info_kind = { REST_KIND("get_info", "POST"), .result = RESULT_VALUE,
                                            .type = &wire_get_info_response,
                                            .read = read_model_info };

/* GET get_server_capabilities. Sent in the session of REST calls, so it needs no model. */
tinker_future *tinker_service_get_capabilities(tinker_service *s, tinker_error *err)
{
    return rest_submit(service_rest(s, err), &capabilities_kind,
                       rest_format_path("api/v1/get_server_capabilities"), NULL, s->options, err);
}

const tinker_capabilities *tinker_future_capabilities(const tinker_future *f)
{
    return future_value(f, &wire_get_server_capabilities_response);
}

const tinker_supported_model *tinker_supported_model_at(const tinker_capabilities *list, size_t i)
{
    return i < list->n ? (const tinker_supported_model *)list->items + i : NULL;
}

/* GET healthz, without the outer layer of retries: the question is whether it works now. */
tinker_future *tinker_service_check_health(tinker_service *s, tinker_error *err)
{
    return rest_submit(service_rest(s, err), &health_kind, rest_format_path("api/v1/healthz"), NULL,
                       s->options, err);
}

/* The same request without the outer layer of retries, sent to find the tokenizer of a model. */
static const struct rest_kind name_kind = { .class = REST_CLASS("get_info"),
                                            .spec = { .name = "get_info",
                                                      .method = "POST",
                                                      .pool = POOL_TRAIN,
                                                      .max_retries = CALL_DEFAULT },
                                            .result = RESULT_VALUE,
                                            .type = &wire_get_info_response,
                                            .read = read_model_info };

/* POST get_info.  It belongs to the session of the training client, not to that of REST calls. */
static tinker_future *ask_info(tinker_training *t, const struct rest_kind *kind, tinker_error *err)
{
    struct wire_get_info_request req = { t->model_id };
    struct buf body;
    if (!rest_encode(&body, &wire_get_info_request, &req, err))
        return NULL;
    return rest_submit(t->session, kind, rest_format_path("api/v1/get_info"), &body, t->options,
                       err);
}

tinker_future *tinker_training_get_info(tinker_training *t, tinker_error *err)
{
    return ask_info(t, &info_kind, err);
}

const tinker_model_info *tinker_future_model_info(const tinker_future *f)
{
    return future_value(f, &wire_get_info_response);
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
    /* Part lengths are checked before anything is copied, so nothing is ever cut silently. */
    if (p.n_run >= sizeof(out->training_run) ||
        strlen(p.checkpoint_id) >= sizeof(out->checkpoint_id))
        return err_set(err, TINKER_EINVAL, "the path has a part of more than 255 bytes");
    *out = (tinker_checkpoint_path){ .kind = p.bare       ? TINKER_CHECKPOINT_UNKNOWN
                                             : p.external ? TINKER_CHECKPOINT_EXTERNAL
                                             : p.sampler  ? TINKER_CHECKPOINT_SAMPLER
                                                          : TINKER_CHECKPOINT_TRAINING };
    memcpy(out->training_run, p.run, p.n_run);
    snprintf(out->checkpoint_id, sizeof(out->checkpoint_id), "%s", p.checkpoint_id);
    snprintf(out->name, sizeof(out->name), "%s", p.name);
    return TINKER_OK;
}
