/* sessions.c - the REST calls about sessions and samplers: one, all, and the search.
 *
 * The state of a session is a tagged union on the wire and one bit here, so the answers of a
 * search are converted; other results are read straight into their public structs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/rest.h>
#include "base/array.h"
#include "base/err.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "wire/wire.h"

/* Method and name of each call; its path is built where it is submitted. */
static const struct rest_kind sessions_kind = { REST_KIND("list_sessions", "GET"),
                                                .result = RESULT_VALUE,
                                                .type = &wire_list_sessions_response };
static const struct rest_kind session_kind = { REST_KIND("get_session", "GET"),
                                               .result = RESULT_VALUE,
                                               .type = &wire_get_session_response };
static const struct rest_kind project_kind = { REST_KIND("assign_session_project", "PUT"),
                                               .result = RESULT_NONE };
static const struct rest_kind sampler_kind = { REST_KIND("get_sampler", "GET"),
                                               .result = RESULT_VALUE,
                                               .type = &wire_get_sampler_response };
/* The result is a text and no struct: the name of the model. */
static tinker_status read_base_model(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    tinker_sampler_info w;
    struct tinker_future *f = r->op.future;
    tinker_status s =
        wire_decode_json(&wire_get_sampler_response, b, n, WIRE_LENIENT, &f->arena, &w, err);
    if (s == TINKER_OK)
        f->value = w.base_model;
    return s;
}

static const struct rest_kind base_model_kind = { .class = REST_CLASS("get_base_model"),
                                                  .spec = REST_SPEC("get_sampler", "GET"),
                                                  .result = RESULT_BASE_MODEL,
                                                  .read = read_base_model };

/* GET sessions?limit&offset&access_scope: ids only. */
tinker_future *tinker_rest_list_sessions(tinker_rest *r, const tinker_page *page, tinker_error *err)
{
    tinker_page p;
    if (rest_check_page(&p, page, 20, err) != TINKER_OK)
        return NULL;
    return rest_send(r, &sessions_kind,
                     rest_format_path("api/v1/sessions?limit=%lld&offset=%lld&access_scope=%s",
                                      (long long)p.limit, (long long)p.offset,
                                      rest_scope_name(p.scope)),
                     NULL, err);
}

const tinker_strings *tinker_future_strings(const tinker_future *f)
{
    return future_value(f, &wire_list_sessions_response);
}

/* GET sessions/{id}: its training runs and samplers. */
tinker_future *tinker_rest_get_session(tinker_rest *r, const char *session_id, tinker_scope scope,
                                       tinker_error *err)
{
    char tail[48];
    snprintf(tail, sizeof(tail), "?access_scope=%s", rest_scope_name(scope));
    char *path = rest_path_of_id("api/v1/sessions/", "session id", session_id, tail, err);
    return path ? rest_send(r, &session_kind, path, NULL, err) : NULL;
}

const tinker_session *tinker_future_session(const tinker_future *f)
{
    return future_value(f, &wire_get_session_response);
}

/* The state as one bit.  A type or reason that is newer than this library gives 0, as does a session
 * whose end has no recorded reason. */
static int state_of(const struct wire_session_status *w)
{
    static const struct {
        const char *type, *reason;
        int state;
    } all[] = {
        { "active", NULL, TINKER_SESSION_ACTIVE },
        { "failed", NULL, TINKER_SESSION_FAILED },
        { "cancelled", NULL, TINKER_SESSION_CANCELED },
        { "client_finished", "success", TINKER_SESSION_SUCCEEDED },
        { "client_finished", "errored", TINKER_SESSION_ERRORED },
        { "client_finished", "interrupted", TINKER_SESSION_INTERRUPTED },
    };
    const char *reason = w->reason ? w->reason->type : "";
    /* A row without a reason matches any. */
    for (size_t i = 0; w->type && i < ARRAY_LEN(all); i++)
        if (strcmp(all[i].type, w->type) == 0 &&
            (!all[i].reason || strcmp(all[i].reason, reason) == 0))
            return all[i].state;
    return 0;
}

/* A failure has one cause: at most one of the three is given. */
static const char *failed_id_of(const struct wire_status_reason *w)
{
    return w->request_id        ? w->request_id
           : w->training_run_id ? w->training_run_id
                                : w->sampling_session_id;
}

/* Texts stay where they were decoded, in the arena of the future. */
static tinker_session_summary summary_of(const struct wire_session_summary *w)
{
    const struct wire_session_status *status = w->status;
    return (tinker_session_summary){
        .id = w->session_id,
        .owner = w->owner,
        .project_id = w->project_id,
        .created_us = (w->created_at.has ? w->created_at.us : TINKER_NO_TIME),
        .state = status ? state_of(status) : 0,
        .detail = !status          ? NULL
                  : status->detail ? status->detail
                                   : status->message,
        .failed_id = status && status->reason ? failed_id_of(status->reason) : NULL,
        .display_name = w->display_name,
        .user_metadata = w->user_metadata.v,
        .n_user_metadata = w->user_metadata.has ? w->user_metadata.n : 0,
        .n_checkpoints = w->checkpoints_count,
        .checkpoint_bytes =
            (w->checkpoint_storage_bytes.has ? w->checkpoint_storage_bytes.value : -1),
    };
}

/* The response holds at most one page; next_cursor is null on the last. One element more is
 * allocated, so that an empty page is an array, too. */
static tinker_status read_search(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_session_search_response w;
    tinker_session_summaries *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s = rest_decode(r, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_session_summary *v = arena_array(a, w.n_sessions + 1, sizeof(*v));
    /* Allocated whether or not there is another page: one check for both. */
    tinker_session_cursor *next = arena_alloc(a, sizeof(*next));
    if (!v || !next)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_sessions; i++)
        v[i] = summary_of(&w.sessions[i]);
    const struct wire_session_search_cursor *c = w.next_cursor;
    if (c)
        *next =
            (tinker_session_cursor){ .created_us = c->last_created_at.has ? c->last_created_at.us
                                                                          : TINKER_NO_TIME,
                                     .session_id = c->last_session_id };
    *out = (tinker_session_summaries){ .n = w.n_sessions, .items = v, .next = c ? next : NULL };
    return TINKER_OK;
}

static const struct rest_kind search_kind = { REST_KIND("search_sessions", "POST"),
                                              .result = RESULT_VALUE,
                                              .type = &wire_session_search_response,
                                              .read = read_search };

/* The three ends that a client can report. */
enum { FINISHED = TINKER_SESSION_SUCCEEDED | TINKER_SESSION_ERRORED | TINKER_SESSION_INTERRUPTED };

/* An empty id would match nothing, or everything: refuse it before it is sent. */
tinker_status rest_check_texts(const char *what, const char *const *v, size_t n, tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!v || !v[i] || !*v[i])
            return err_set(err, TINKER_EINVAL, "%s: entry %zu is empty", what, i);
    return TINKER_OK;
}

/* The limits are those of the service, which would answer with a 422 that names no field of ours. */
tinker_status rest_check_search(int64_t limit, size_t n_owner_urns,
                                const tinker_named_string *metadata, size_t n_metadata,
                                tinker_error *err)
{
    if (limit < 0 || limit > 200)
        return err_set(err, TINKER_EINVAL, "limit of a search is %lld, expected 1 to 200",
                       (long long)limit);
    if (n_owner_urns > 10)
        return err_set(err, TINKER_EINVAL, "%zu owner_urns, expected at most 10", n_owner_urns);
    for (size_t i = 0; i < n_metadata; i++)
        if (!metadata || !metadata[i].name || !metadata[i].value)
            return err_set(err, TINKER_EINVAL, "user_metadata: entry %zu has no name or no value",
                           i);
    return TINKER_OK;
}

static tinker_status check_session_query(const tinker_session_query *q, tinker_error *err)
{
    tinker_status status =
        rest_check_search(q->limit, q->n_owner_urns, q->user_metadata, q->n_user_metadata, err);
    if (status != TINKER_OK)
        return status;
    /* A bit that this library does not know would be dropped silently by put_states(). */
    if (q->states &
        ~(TINKER_SESSION_ACTIVE | FINISHED | TINKER_SESSION_FAILED | TINKER_SESSION_CANCELED))
        return err_set(err, TINKER_EINVAL, "states: %d has a bit that is no state", q->states);
    if (q->cursor && (!q->cursor->session_id || !*q->cursor->session_id))
        return err_set(err, TINKER_EINVAL, "the cursor has no session id");
    tinker_status s = rest_check_texts("project_ids", q->project_ids, q->n_project_ids, err);
    return s == TINKER_OK ? rest_check_texts("owner_urns", q->owner_urns, q->n_owner_urns, err) : s;
}

/* Bits to the query of the service: at most four types.  The three ends that a client reports are
 * one type, "client_finished", whose reasons narrow it; all three, or none, means any reason. */
static size_t put_states(int states, struct wire_session_status_query *out, const char **reasons)
{
    size_t n = 0, k = 0;
    if (states & TINKER_SESSION_ACTIVE)
        out[n++].type = "active";
    if (states & TINKER_SESSION_CANCELED)
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
    /* No reasons means any, so all three need not be listed. */
    out[n++] = (struct wire_session_status_query){ "client_finished", { reasons, k < 3 ? k : 0 } };
    return n;
}

tinker_future *tinker_rest_search_sessions(tinker_rest *r, const tinker_session_query *query,
                                           tinker_error *err)
{
    /* POST sessions/search. Empty lists and texts mean "any"; the arrays live on this stack until
     * rest_encode() has written them. */
    tinker_session_query q = TINKER_SESSION_QUERY_INIT;
    /* Active, canceled, failed, and one for the three ends that clients report. */
    struct wire_session_status_query statuses[4] = { { NULL, { NULL, 0 } } };
    const char *reasons[3];
    struct wire_session_search_cursor cursor;
    struct buf body;
    if (opts_copy(&q, sizeof(q), query, "tinker_session_query", err) != TINKER_OK ||
        check_session_query(&q, err) != TINKER_OK)
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
    if (!rest_encode(&body, &wire_session_search_request, &req, err))
        return NULL;
    return rest_send(r, &search_kind, rest_format_path("api/v1/sessions/search"), &body, err);
}

const tinker_session_summaries *tinker_future_session_summaries(const tinker_future *f)
{
    return future_value(f, &wire_session_search_response);
}

const tinker_session_summary *tinker_session_summary_at(const tinker_session_summaries *list,
                                                        size_t i)
{
    return i < list->n ? (const tinker_session_summary *)list->items + i : NULL;
}

/* The path and the body are made one after the other; whichever fails frees the other. */
tinker_future *tinker_rest_assign_project(tinker_rest *r, const char *session_id,
                                          const char *project_id, tinker_error *err)
{
    struct wire_project_request req = { project_id };
    struct buf body;
    if (!project_id || !*project_id) {
        err_set(err, TINKER_EINVAL, "project id must not be empty");
        return NULL;
    }
    /* PUT sessions/{id}/project */
    char *path = rest_path_of_id("api/v1/sessions/", "session id", session_id, "/project", err);
    if (!path)
        return NULL;
    if (rest_encode(&body, &wire_project_request, &req, err))
        return rest_send(r, &project_kind, path, &body, err);
    free(path);
    return NULL;
}

/* GET samplers/{id} */
tinker_future *tinker_rest_get_sampler(tinker_rest *r, const char *sampler_id, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/samplers/", "sampler id", sampler_id, "", err);
    return path ? rest_send(r, &sampler_kind, path, NULL, err) : NULL;
}

const tinker_sampler_info *tinker_future_sampler_info(const tinker_future *f)
{
    return future_value(f, &wire_get_sampler_response);
}

/* The same request in the session of the sampler, reduced to one text. */
tinker_future *tinker_sampler_get_base_model(tinker_sampler *s, tinker_error *err)
{
    char *path = rest_path_of_id("api/v1/samplers/", "sampler id", s->id, "", err);
    return path ? rest_submit(s->session, &base_model_kind, path, NULL, s->options, err) : NULL;
}
