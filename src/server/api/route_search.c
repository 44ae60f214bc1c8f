/* route_search.c - search for sessions and checkpoints, and disk usage of checkpoints.
 *
 * Each user finds only their own, whatever scope the request asks for.  Filters run here, over
 * batches of sessions in the order of the listing, so that a response is full whenever enough
 * sessions match. */
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "server/api/routes.h"

/* Sessions read from the store at once; the most that one response holds. */
enum { SEARCH_BATCH = 200, SEARCH_LIMIT = 200 };

/* Is the text one of the list? */
static bool in_list(const struct wire_strings *list, const char *text)
{
    for (size_t i = 0; text && i < list->n; i++)
        if (strcmp(list->v[i], text) == 0)
            return true;
    return false;
}

/* Are all words of the query in the name, in any order, ignoring the case of ASCII letters? */
static bool match_name(const char *name, const char *query)
{
    while (*query) {
        size_t n = strcspn(query, " ");
        bool found = n == 0;
        for (const char *p = name; p && *p && !found; p++)
            found = strncasecmp(p, query, n) == 0;
        if (!found)
            return false;
        query += n;
        query += strspn(query, " ");
    }
    return true;
}

/* Does the session have all the pairs that are asked for? */
static bool match_metadata(const struct wire_named_strings *asked, const tinker_named_string *have,
                           size_t n)
{
    for (size_t i = 0; i < asked->n; i++) {
        /* Few pairs on either side: no need for a map. */
        const tinker_named_string *want = &asked->v[i];
        bool found = false;
        for (size_t j = 0; j < n && !found; j++)
            found =
                strcmp(have[j].name, want->name) == 0 && strcmp(have[j].value, want->value) == 0;
        if (!found)
            return false;
    }
    return true;
}

/* Is the status one of those asked for?  Without any, all are. */
static bool match_status(const struct wire_session_search_request *in,
                         const struct wire_session_status *status)
{
    for (size_t i = 0; status && i < in->n_statuses; i++) {
        const struct wire_session_status_query *q = &in->statuses[i];
        if (strcmp(q->type, status->type) == 0 &&
            (!q->reasons.n || in_list(&q->reasons, status->reason ? status->reason->type : NULL)))
            return true;
    }
    return in->n_statuses == 0;
}

/* The status of a session; NULL: it expired, which the API has no word for. */
static const struct wire_session_status *make_status(struct arena *arena,
                                                     const struct store_session *v)
{
    struct wire_session_status *out = arena_alloc(arena, sizeof(*out));
    struct wire_status_reason *reason = arena_alloc(arena, sizeof(*reason));
    if (!out || !reason || (!v->finish_reason && v->expired))
        return NULL;
    *reason = (struct wire_status_reason){ .type = v->finish_reason };
    *out = (struct wire_session_status){ .type = v->finish_reason ? "client_finished" : "active",
                                         .reason = v->finish_reason ? reason : NULL,
                                         .detail = v->finish_detail };
    return out;
}

/* Does the session match?  Then *out is its summary. */
static bool match_session(struct server *s, struct request *req,
                          const struct wire_session_search_request *in,
                          const struct store_session *v, struct wire_session_summary *out)
{
    struct json_str raw = { v->user_metadata, v->user_metadata ? strlen(v->user_metadata) : 0 };
    *out = (struct wire_session_summary){ .session_id = v->id,
                                          .created_at = { 1, false, v->created_us },
                                          .owner = route_user_urn(req),
                                          .project_id = v->project_id ? v->project_id : "",
                                          .status = make_status(&req->arena, v),
                                          .display_name = v->display_name };
    /* Metadata of another shape cannot match, but does not hide the session. */
    if (wire_metadata_decode(raw, &req->arena, &out->user_metadata, NULL) != TINKER_OK)
        out->user_metadata = (struct wire_named_strings){ 0 };
    /* With both an id and a name, one of them is enough. */
    bool by_id = in->session_id && strcmp(in->session_id, v->id) == 0;
    bool by_name = in->display_name && match_name(v->display_name, in->display_name);
    bool any = !in->session_id && !in->display_name;
    if (!(any || by_id || by_name) ||
        !match_metadata(&in->user_metadata, out->user_metadata.v, out->user_metadata.n) ||
        !match_status(in, out->status) ||
        (in->project_ids.n && !in_list(&in->project_ids, out->project_id)))
        return false;
    /* Counted for matches only: it is a query of its own. */
    out->checkpoint_storage_bytes.has = 1;
    store_count_session(s->store, v->id, &out->checkpoints_count,
                        &out->checkpoint_storage_bytes.value, NULL);
    return true;
}

/* Up to limit + 1 summaries: the extra one says that there are more. */
static tinker_status search_sessions(struct server *s, struct request *req,
                                     const struct wire_session_search_request *in,
                                     struct wire_session_summary *out, size_t *n, tinker_error *err)
{
    int64_t at = in->cursor ? in->cursor->last_created_at.us : 0;
    const char *id = in->cursor ? in->cursor->last_session_id : "";
    struct store_session *list;
    size_t got = SEARCH_BATCH;
    *n = 0;
    /* Until the sessions or the space run out. */
    while (got == SEARCH_BATCH && *n <= (size_t)in->limit) {
        tinker_status status = store_sessions_after(s->store, req->user, at, id, SEARCH_BATCH,
                                                    &req->arena, &list, &got, err);
        if (status != TINKER_OK)
            return status;
        for (size_t i = 0; i < got && *n <= (size_t)in->limit; i++) {
            *n += match_session(s, req, in, &list[i], &out[*n]);
            at = list[i].created_us;
            id = list[i].id;
        }
    }
    return TINKER_OK;
}

/* POST sessions/search: filters, newest first, with a cursor for the next request. */
void route_search_sessions(struct server *s, struct request *req, struct response *res)
{
    struct wire_session_search_request in;
    struct wire_session_search_cursor next;
    tinker_error err = { 0 };
    size_t n = 0;
    if (!route_body(req, res, &wire_session_search_request, &in))
        return;
    if (in.limit < 1 || in.limit > SEARCH_LIMIT) {
        route_invalid(res, "limit: must be from 1 to 200");
        return;
    }
    struct wire_session_summary *out = arena_array(&req->arena, (size_t)in.limit + 1, sizeof(*out));
    /* A search among other users finds nothing. */
    bool mine =
        strcmp(in.owner.type, "user") != 0 || in_list(&in.owner.owner_urns, route_user_urn(req));
    if (!out || (mine && search_sessions(s, req, &in, out, &n, &err) != TINKER_OK)) {
        route_store_error(s, res, &err);
        return;
    }
    struct wire_session_search_response r = { .sessions = out, .n_sessions = n };
    if (n > (size_t)in.limit) { /* the extra one is not sent: it is the first of the next page */
        r.n_sessions = (size_t)in.limit;
        const struct wire_session_summary *last = &out[r.n_sessions - 1];
        next = (struct wire_session_search_cursor){ last->created_at, last->session_id };
        r.next_cursor = &next;
    }
    route_reply(res, &wire_session_search_response, &r);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

/* Name it in a cursor: the three parts of its key. */
static const char *cursor_name(struct arena *arena, const struct store_checkpoint *c)
{
    return arena_printf(arena, "%s/%s/%s", c->run, store_kind_name(c->kind), c->name);
}

/* Is the checkpoint behind the cursor?  Older ones are, so a page begins at its place even when the
 * checkpoint that the cursor names was deleted meanwhile.  Among those of its microsecond, those that
 * are listed after it: *passed says that it was seen. */
static bool is_behind(struct request *req, const struct wire_checkpoint_search_cursor *at,
                      const struct store_checkpoint *c, bool *passed)
{
    if (!at || c->created_us < at->last_created_at.us)
        return true;
    const char *name = cursor_name(&req->arena, c);
    if (*passed || c->created_us > at->last_created_at.us || !name)
        return *passed;
    *passed = strcmp(name, at->last_checkpoint_uuid) == 0;
    return false;
}

/* The project of the run's session; NULL: none, or the run was pruned. */
static const char *project_of(struct server *s, struct request *req, const char *run)
{
    struct store_model *m = NULL;
    struct store_session *v = NULL;
    if (store_get_model(s->store, run, &req->arena, &m, NULL) == TINKER_OK && m)
        store_get_session(s->store, m->session_id, &req->arena, &v, NULL);
    return v ? v->project_id : NULL;
}

static bool match_checkpoint(struct server *s, struct request *req,
                             const struct wire_checkpoint_search_request *in,
                             const struct store_checkpoint *c, bool *passed)
{
    /* In the order of enum store_kind, as the API calls them. */
    static const char *const types[] = { "training", "sampler", "external" };
    const tinker_named_string *pairs;
    size_t n;
    if (!is_behind(req, in->cursor, c, passed) || !route_knows_kind(req, c->kind) ||
        (in->base_models.n && !in_list(&in->base_models, c->base_model)) ||
        (in->checkpoint_type && strcmp(in->checkpoint_type, types[c->kind]) != 0))
        return false;
    route_metadata(c->user_metadata, &req->arena, &pairs, &n);
    /* The project last: it takes two queries. */
    return match_metadata(&in->user_metadata, pairs, n) &&
           (!in->project_ids.n || in_list(&in->project_ids, project_of(s, req, c->run)));
}

/* Up to limit + 1 checkpoints: the extra one says that there are more. */
static tinker_status search_checkpoints(struct server *s, struct request *req,
                                        const struct wire_checkpoint_search_request *in,
                                        struct store_checkpoint *out, size_t *n, tinker_error *err)
{
    size_t got = SEARCH_BATCH;
    bool passed = false;
    *n = 0;
    for (int64_t offset = 0; got == SEARCH_BATCH && *n <= (size_t)in->limit;
         offset += SEARCH_BATCH) {
        struct store_checkpoint *list;
        tinker_status status = store_list_checkpoints(s->store, req->user, NULL, SEARCH_BATCH,
                                                      offset, &req->arena, &list, &got, NULL, err);
        if (status != TINKER_OK)
            return status;
        for (size_t i = 0; i < got && *n <= (size_t)in->limit; i++)
            if (match_checkpoint(s, req, in, &list[i], &passed))
                out[(*n)++] = list[i];
    }
    return TINKER_OK;
}

/* POST checkpoints/search, as sessions/search. */
void route_search_checkpoints(struct server *s, struct request *req, struct response *res)
{
    struct wire_checkpoint_search_request in;
    struct wire_checkpoint_search_cursor next;
    tinker_error err = { 0 };
    size_t n = 0;
    if (!route_body(req, res, &wire_checkpoint_search_request, &in))
        return;
    if (in.limit < 1 || in.limit > SEARCH_LIMIT) {
        route_invalid(res, "limit: must be from 1 to 200");
        return;
    }
    struct store_checkpoint *found = arena_array(&req->arena, (size_t)in.limit + 1, sizeof(*found));
    tinker_checkpoint *out = arena_array(&req->arena, (size_t)in.limit + 1, sizeof(*out));
    bool mine =
        strcmp(in.owner.type, "user") != 0 || in_list(&in.owner.owner_urns, route_user_urn(req));
    if (!found || !out || (mine && search_checkpoints(s, req, &in, found, &n, &err) != TINKER_OK)) {
        route_store_error(s, res, &err);
        return;
    }
    struct wire_checkpoint_search_response r = { .checkpoints = out, .n_checkpoints = n };
    if (n > (size_t)in.limit) {
        r.n_checkpoints = (size_t)in.limit;
        const struct store_checkpoint *last = &found[r.n_checkpoints - 1];
        next = (struct wire_checkpoint_search_cursor){ { 1, false, last->created_us },
                                                       cursor_name(&req->arena, last) };
        r.next_cursor = &next;
    }
    for (size_t i = 0; i < r.n_checkpoints; i++)
        route_convert_checkpoint(s, &req->arena, &found[i], &out[i]);
    route_reply(res, &wire_checkpoint_search_response, &r);
}

/* Disk usage of the user's checkpoints per project. */
void route_checkpoint_usage(struct server *s, struct request *req, struct response *res)
{
    const char *project = req->query(req, "project_id");
    struct store_usage *list;
    size_t n, m = 0;
    tinker_error err = { 0 };
    if (store_checkpoint_usage(s->store, req->user, &req->arena, &list, &n, &err) != TINKER_OK) {
        route_store_error(s, res, &err);
        return;
    }
    struct wire_checkpoint_usage *out = arena_array(&req->arena, n + 1, sizeof(*out));
    if (!out) {
        response_no_memory(res);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (!project || (list[i].project_id && strcmp(project, list[i].project_id) == 0))
            out[m++] =
                (struct wire_checkpoint_usage){ .project_id = list[i].project_id,
                                                .org_user_urn = route_user_urn(req),
                                                .checkpoint_count = list[i].checkpoints,
                                                .size_bytes = list[i].bytes,
                                                .size_gigabytes = (double)list[i].bytes / 1e9 };
    struct wire_checkpoint_usage_response r = { .data = out, .n_data = m };
    route_reply(res, &wire_checkpoint_usage_response, &r);
}
