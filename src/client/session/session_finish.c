/* session_finish.c - telling the service that a session is over, and how it ended.
 *
 * A session that was never opened has nothing to tell; one that is being opened is waited for.
 * Runs on the loop thread, except tinker_service_finish(). */
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/rest/rest_op.h"
#include "client/session/service.h"
#include "client/session/startup.h"
#include "client/rest/rest.h"
#include "wire/wire.h"

/* The path needs the id, which a session that is starting does not have yet. */
static void finish_ready(struct session_wait *w, const tinker_error *err)
{
    struct rest_op *r = container_of(w, struct rest_op, wait);
    const char *id = r->op.session->session_id;
    if (err) { /* there is no session */
        operation_succeed(&r->op);
        return;
    }
    tinker_error failed;
    free(r->path);
    r->path = rest_path_of_id("api/v1/sessions/", "session id", id, "/finish", &failed);
    if (!r->path) {
        operation_fail(&r->op, &failed);
        return;
    }
    rest_ready(w, NULL);
}

/* Nothing to finish is a success: a program calls this at its end, whether or not it came to a
 * request. */
static void finish_start(struct operation *op)
{
    struct rest_op *r = (struct rest_op *)op; /* first member */
    struct session *h = op->session;
    if (!h->with_session || h->state == SESSION_NEW) {
        operation_succeed(op);
        return;
    }
    r->wait.ready = finish_ready;
    session_when_ready(h, &r->wait);
}

/* The session is over: the service would answer further heartbeats with an error. */
static tinker_status read_finished(struct rest_op *r, const char *body, size_t n, tinker_error *err)
{
    (void)body, (void)n, (void)err;
    startup_stop_heartbeats(r->op.session->startup);
    return TINKER_OK;
}

static const struct rest_kind finish_kind = {
    .class = { .name = "finish_session",
               .start = finish_start,
               .abandon = rest_abandon,
               .destroy = rest_destroy },
    .spec = REST_SPEC("finish_session", "POST"),
    .result = RESULT_NONE,
    .read = read_finished,
    .conflict = REST_CONFLICT_ALREADY, /* an earlier attempt has finished it */
};

tinker_future *tinker_service_finish(tinker_service *s, tinker_finish how, const char *detail,
                                     tinker_error *err)
{
    /* By enum tinker_finish; the wire spells them so. */
    static const char *const reasons[] = { "success", "errored", "interrupted" };
    if ((int)how < 0 || (int)how > TINKER_FINISH_INTERRUPTED) {
        err_set(err, TINKER_EINVAL, "invalid finish reason %d", (int)how);
        return NULL;
    }
    struct wire_finish_session_request req = { { reasons[how] }, detail };
    struct buf body;
    buf_init(&body, 1 << 20);
    if (wire_encode_json(&wire_finish_session_request, &req, &body, err) != TINKER_OK) {
        buf_clear(&body);
        return NULL;
    }
    /* The path is empty until the session's id is known; finish_ready() replaces it. */
    return rest_submit(service_finish(s, err), &finish_kind, strdup(""), &body, s->options, err);
}
