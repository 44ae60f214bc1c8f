/* checkpoint_search.c - the REST call that searches checkpoints.
 *
 * The items of the answer are read straight into the public struct; only the cursor is converted,
 * because its time may be absent on the wire.  Runs in the caller's thread, except the reader. */
#include <tinker/rest.h>
#include "base/err.h"
#include "client/rest/rest.h"
#include "client/rest/rest_op.h"
#include "wire/wire.h"

static tinker_status read_matches(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_checkpoint_search_response w;
    tinker_checkpoint_matches *out;
    tinker_status s = rest_decode(r, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    *out = (tinker_checkpoint_matches){ .list = { w.n_checkpoints, w.checkpoints, NULL } };
    const struct wire_checkpoint_search_cursor *c = w.next_cursor;
    if (!c)
        return TINKER_OK;
    tinker_checkpoint_cursor *next = arena_alloc(&r->op.future->arena, sizeof(*next));
    if (!next)
        return err_nomem(err, "result");
    *next = (tinker_checkpoint_cursor){
        .created_us = c->last_created_at.has ? c->last_created_at.us : TINKER_NO_TIME,
        .uuid = c->last_checkpoint_uuid,
    };
    out->next = next;
    return TINKER_OK;
}

/* A POST because the query does not fit an address, but it changes nothing, so it is sent again
 * like a GET. */
static const struct rest_kind search_kind = { REST_KIND("search_checkpoints", "POST"),
                                              .result = RESULT_VALUE,
                                              .type = &wire_checkpoint_search_response,
                                              .read = read_matches };

/* What the service would refuse with a 422 that names no field of ours. */
static tinker_status check_checkpoint_query(const tinker_checkpoint_query *q, tinker_error *err)
{
    tinker_status s =
        rest_check_search(q->limit, q->n_owner_urns, q->user_metadata, q->n_user_metadata, err);
    if (s == TINKER_OK)
        s = rest_check_texts("project_ids", q->project_ids, q->n_project_ids, err);
    if (s == TINKER_OK)
        s = rest_check_texts("base_models", q->base_models, q->n_base_models, err);
    if (s == TINKER_OK)
        s = rest_check_texts("owner_urns", q->owner_urns, q->n_owner_urns, err);
    if (s != TINKER_OK)
        return s;
    /* Unknown is the default, which asks for every kind. */
    if (q->kind != TINKER_CHECKPOINT_UNKNOWN && !tinker_checkpoint_kind_name(q->kind))
        return err_set(err, TINKER_EINVAL, "kind: %d is no kind of checkpoint", (int)q->kind);
    if (q->cursor && (!q->cursor->uuid || !*q->cursor->uuid))
        return err_set(err, TINKER_EINVAL, "the cursor has no checkpoint");
    return TINKER_OK;
}

tinker_future *tinker_rest_search_checkpoints(tinker_rest *r, const tinker_checkpoint_query *query,
                                              tinker_error *err)
{
    tinker_checkpoint_query q = TINKER_CHECKPOINT_QUERY_INIT;
    struct wire_checkpoint_search_cursor cursor;
    struct buf body;
    if (opts_copy(&q, sizeof(q), query, "tinker_checkpoint_query", err) != TINKER_OK ||
        check_checkpoint_query(&q, err) != TINKER_OK)
        return NULL;
    struct wire_checkpoint_search_request req = {
        .project_ids = { q.project_ids, q.n_project_ids },
        .base_models = { q.base_models, q.n_base_models },
        .user_metadata = { q.n_user_metadata > 0, q.user_metadata, q.n_user_metadata },
        .checkpoint_type = tinker_checkpoint_kind_name(q.kind), /* NULL: any */
        .owner = { q.n_owner_urns                       ? "user"
                   : q.scope == TINKER_SCOPE_ACCESSIBLE ? "accessible"
                                                        : "own",
                   { q.owner_urns, q.n_owner_urns } },
        /* The same page as a search of sessions. */
        .limit = q.limit ? q.limit : 50,
    };
    /* Time and id together: many checkpoints may be of the same microsecond. */
    if (q.cursor) {
        cursor = (struct wire_checkpoint_search_cursor){ { 1, false, q.cursor->created_us },
                                                         q.cursor->uuid };
        req.cursor = &cursor;
    }
    if (!rest_encode(&body, &wire_checkpoint_search_request, &req, err))
        return NULL;
    return rest_send(r, &search_kind, rest_format_path("api/v1/checkpoints/search"), &body, err);
}

const tinker_checkpoint_matches *tinker_future_checkpoint_matches(const tinker_future *f)
{
    return future_value(f, &wire_checkpoint_search_response);
}
