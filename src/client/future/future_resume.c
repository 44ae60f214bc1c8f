/* future_resume.c - asking for the result of a request that another process submitted.
 * Needs no session: the request id says it all.  Loop thread, except the submit. */
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/poll.h"
#include "client/future/result.h"
#include "client/session/service.h"

/* submitted -> waiting for the session -> polling -> done.  The request itself was sent by
 * another process, so nothing here is ever sent twice. */
struct resume_op {
    struct operation op;
    struct session_wait wait;
    const struct result_reader *reader;
    char *request_id;
    struct poll poll;
    struct queue_state watch;
};

/* Also when submitting fails, so nothing here may rely on the loop. */
static void resume_destroy(struct operation *op)
{
    struct resume_op *r = (struct resume_op *)op; /* first member */
    poll_clear(&r->poll);
    free(r->request_id);
    free(r);
}

/* Canceled or expired: stop what is pending, whichever it is. */
static void resume_abandon(struct operation *op)
{
    struct resume_op *r = (struct resume_op *)op;
    session_forget(&r->wait);
    poll_cancel(&r->poll);
    operation_destroy(op);
}

/* The type was given by the caller; a wrong one shows as a result that cannot be read. */
static tinker_status decode_resumed(struct poll *p, const char *body, size_t n, bool proto,
                                    tinker_error *err)
{
    struct resume_op *r = container_of(p, struct resume_op, poll);
    return r->reader->read(r->op.future, body, n, proto, err);
}

/* The kind only chooses the words of the message. */
static void on_resume_queue_state(struct poll *p, enum wire_queue_state state, const char *reason,
                                  bool changed)
{
    struct resume_op *r = container_of(p, struct resume_op, poll);
    queue_state_report(&r->watch, r->op.session, QUEUE_STATE_TRAINING, r->request_id, state, reason,
                       changed);
}

/* Exactly once, from the poll's end. */
static void on_resumed_result(struct poll *p)
{
    struct resume_op *r = container_of(p, struct resume_op, poll);
    if (p->ok) {
        operation_succeed(&r->op);
        return;
    }
    operation_note_response(&r->op, &p->call);
    operation_fail(&r->op, &p->call.err);
}

/* The session only lends its credentials and its pool of connections; the request need not
 * belong to it. */
static void on_resume_ready(struct session_wait *w, const tinker_error *err)
{
    struct resume_op *r = container_of(w, struct resume_op, wait);
    if (err) {
        operation_fail(&r->op, err);
        return;
    }
    r->poll.session = r->op.session;
    r->poll.kind = &r->reader->poll;
    r->poll.future = r->op.future;
    /* The submission was another process's, so its round trip is reported as none. */
    r->poll.started_ns = loop_now_ns(r->op.session->rt->loop);
    r->poll.decode = decode_resumed;
    r->poll.queue_state = on_resume_queue_state;
    r->poll.done = on_resumed_result;
    poll_start(&r->poll, r->request_id);
}

static void resume_start(struct operation *op)
{
    struct resume_op *r = (struct resume_op *)op;
    r->wait.ready = on_resume_ready;
    session_when_ready(op->session, &r->wait);
}

static const struct operation_class resume_class = {
    .name = "resume",
    .start = resume_start,
    .abandon = resume_abandon,
    .destroy = resume_destroy,
};

/* The type selects the reader: the service does not say what the result is. */
tinker_future *tinker_service_resume(tinker_service *s, const char *request_id,
                                     const char *request_type, tinker_error *err)
{
    const struct result_reader *reader = request_type ? result_find(request_type) : NULL;
    /* Bounded, because the id travels in errors and messages. */
    if (!request_id || !*request_id || strlen(request_id) >= 112 || !reader) {
        err_set(err, TINKER_EINVAL, "\"%s\" of type \"%s\" is not a request that can be resumed",
                request_id ? request_id : "", request_type ? request_type : "");
        return NULL;
    }
    /* The service's own session for calls without a training run or sampler. */
    struct session *h = service_rest(s, err);
    struct resume_op *r = h ? calloc(1, sizeof(*r)) : NULL;
    char *id = r ? strdup(request_id) : NULL;
    if (!id) {
        if (h)
            err_nomem(err, "resume");
        free(r);
        return NULL;
    }
    r->reader = reader;
    r->request_id = id;
    tinker_future *f = operation_submit(&r->op, &resume_class, h, reader->kind, s->options, err);
    if (!f)
        resume_destroy(&r->op);
    return f;
}
