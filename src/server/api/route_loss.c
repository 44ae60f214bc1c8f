/* route_loss.c - create_custom_loss: a loss as a graph, kept for the session.
 *
 * Checking a graph takes no time, so the future that the protocol wants is over when it is made.
 * What is wrong with a graph is told by the future: clients raise that where the loss is made. */
#include <string.h>

#include "base/err.h"
#include "server/api/routes.h"
#include "server/training/custom_loss.h"

enum { LOSSES_MAX = 256 }; /* of a session */

/* A future that waits for its outcome, or the one of a retry.  false: no memory. */
static bool add_future(struct server *s, struct request *req, struct session *session,
                       const char *id, uint64_t hash, struct future **out, bool *reused)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = live_find_future_locked(s, id);
    bool known = f != NULL;
    *reused = known && f->hash != hash;
    if (!f && (f = live_add_future_locked(s, id, req->user, JOB_CUSTOM_LOSS, NULL))) {
        f->session = session;
        f->hash = hash;
    }
    bool ok = f != NULL;
    *out = known ? NULL : f;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void finish_future(struct server *s, struct future *f, const char *loss_id)
{
    struct buf b;
    tinker_error err = { 0 };
    struct wire_create_custom_loss_response r = { .loss_id = loss_id };
    buf_init(&b, 4096);
    if (wire_encode_json(&wire_create_custom_loss_response, &r, &b, &err) == TINKER_OK) {
        size_t n;
        char *data = buf_detach(&b, &n);
        future_finish(s, f, false, data, n, false, 0);
    } else {
        future_fail(s, f, future_category(&err), "%s", err.message);
    }
    buf_clear(&b);
}

void route_create_custom_loss(struct server *s, struct request *req, struct response *res)
{
    struct wire_create_custom_loss_request in;
    struct store_loss *stored = NULL;
    struct future *f;
    tinker_error err = { 0 };
    bool reused = false;
    if (!route_body(req, res, &wire_create_custom_loss_request, &in))
        return;
    struct session *session = route_session(s, req, in.session_id);
    if (!session) {
        response_error(res, 404, "Session not found");
        return;
    }
    if (in.custom_loss_seq_id < 0 || in.custom_loss_seq_id >= LOSSES_MAX) {
        response_error(res, 400, "a session has at most %d custom losses, numbered from 0",
                       LOSSES_MAX);
        return;
    }
    const char *id = custom_loss_id(&req->arena, in.session_id, in.custom_loss_seq_id);
    uint64_t hash = wire_hash(&wire_create_custom_loss_request, &in);
    struct store_loss loss = { .session_id = in.session_id,
                               .seq = in.custom_loss_seq_id,
                               .hash = hash,
                               .body = req->body,
                               .n_body = req->n_body };
    tinker_status checked = custom_loss_check(&in, NULL, &err);
    tinker_error problem = err;
    if (!id || checked == TINKER_ENOMEM) {
        response_no_memory(res);
        return;
    }
    /* In the store before a client knows it: a pass may run again after a restart. */
    if (checked == TINKER_OK && (store_add_loss(s->store, &loss, &err) != TINKER_OK ||
                                 store_get_loss(s->store, in.session_id, in.custom_loss_seq_id,
                                                &req->arena, &stored, &err) != TINKER_OK)) {
        route_store_error(s, res, &err);
        return;
    }
    reused = stored && stored->hash != hash;
    if (!reused && !add_future(s, req, session, id, hash, &f, &reused)) {
        response_no_memory(res);
        return;
    }
    if (reused) {
        response_error(res, 409, "Custom loss number was reused (%s)", id);
        return;
    }
    if (f && checked == TINKER_OK)
        finish_future(s, f, id);
    else if (f)
        future_fail(s, f, TINKER_CATEGORY_USER, "%s", problem.message);
    struct wire_untyped_api_future r = { .request_id = id };
    route_reply(res, &wire_untyped_api_future, &r);
}
