/* receive.c - see <tinker/receive.h>: any request, whose answer goes to a callback as it comes.
 *
 * The transfer ends before its pieces are taken; the future completes when both are over, or at
 * once when the user stops, cancels or is out of time.  Runs on the loop thread, except the
 * user's side. */
#include <tinker/extra/http.h>

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include <unistd.h>
#include "base/err.h"
#include "client/call/receive_buffer.h"
#include "client/call/call_options.h"
#include "client/call/raw_call.h"
#include "client/rest/rest_op.h"
#include "client/session/service.h"

struct receive_op {
    struct operation op; /* first */
    struct session_wait wait;
    struct call call;
    struct call_spec spec;
    char *path, *content_type, *accept;
    struct buf body;
    struct receive_buffer *in;
    struct receive_buffer_owner owner;
    bool paused, over; /* the transfer */
    tinker_error err;  /* of the transfer, once over; TINKER_OK: none */
};

/* Loop thread, or the submitter's when it was never submitted. */
static void receive_destroy(struct operation *op)
{
    struct receive_op *o = (struct receive_op *)op;
    call_clear(&o->call);
    receive_buffer_free(o->in);
    buf_clear(&o->body);
    free(o->path);
    free(o->content_type);
    free(o->accept);
    free(o);
}

/* The user canceled or freed the future. */
static void receive_abandon(struct operation *op)
{
    struct receive_op *o = (struct receive_op *)op;
    session_forget(&o->wait);
    call_cancel(&o->call);
    operation_destroy(op);
}

/* ---- the transfer -------------------------------------------------------------------------- */

/* What is to be done now?  May end the operation. */
static void update_receive(struct receive_op *o)
{
    enum receive_buffer_state state = receive_buffer_state(o->in);
    if (state == RECEIVE_BROKEN) {
        tinker_error err;
        /* A broken buffer ends it even while the transfer runs: nothing reads the rest. */
        receive_buffer_error(o->in, &err);
        call_cancel(&o->call);
        operation_fail(&o->op, &err);
        /* Both the transfer and the deliveries are over. */
    } else if (o->over && state == RECEIVE_EMPTY) {
        if (o->err.status == TINKER_OK)
            operation_succeed(&o->op);
        else
            operation_fail(&o->op, &o->err);
    } else if (o->paused && state != RECEIVE_FULL) {
        o->paused = false;
        http_pause(&o->call.http, false);
    }
}

static void on_buffer_moved(struct receive_buffer_owner *owner)
{
    update_receive(container_of(owner, struct receive_op, owner));
}

static bool on_body_data(struct http_request *r, const void *p, size_t n)
{
    struct receive_op *o =
        container_of(container_of(r, struct call, http), struct receive_op, call);
    o->call.last = true; /* another attempt would begin again with the first piece */
    /* The head is complete before the first byte of the body, and every piece shows it. */
    if (!receive_buffer_has_head(o->in))
        receive_buffer_set_head(o->in, response_begin(&o->call));
    receive_buffer_put(o->in, p, n);
    enum receive_buffer_state state = receive_buffer_state(o->in);
    /* Backpressure: curl stops reading, TCP's window fills, and the server waits. */
    if (state == RECEIVE_FULL && !o->paused) {
        o->paused = true;
        http_pause(r, true);
    }
    return state != RECEIVE_BROKEN;
}

static void on_transfer_done(struct call *c)
{
    struct receive_op *o = container_of(c, struct receive_op, call);
    o->over = true;
    /* An error ends the future only when the pieces before it have been taken. */
    if (c->outcome != CALL_OK) {
        o->err = c->err;
        operation_note_response(&o->op, c);
    }
    update_receive(o);
}

static void on_session_ready(struct session_wait *w, const tinker_error *err)
{
    struct receive_op *o = container_of(w, struct receive_op, wait);
    if (err) {
        operation_fail(&o->op, err);
        return;
    }
    struct call *c = &o->call;
    c->session = o->op.session;
    c->op = &o->op;
    c->spec = &o->spec;
    c->path = o->path;
    c->body = o->body.data;
    c->body_len = o->body.len;
    c->content_type = o->content_type;
    c->accept = o->accept;
    c->http.on_data = on_body_data;
    c->done = on_transfer_done;
    call_start(c);
}

static void receive_start(struct operation *op)
{
    struct receive_op *o = (struct receive_op *)op;
    o->owner.moved = on_buffer_moved;
    receive_buffer_bind(o->in, &o->owner, op->future->guard);
    o->wait.ready = on_session_ready;
    session_when_ready(op->session, &o->wait);
}

/* Also tells operations of this kind apart in resume_on_loop(). */
static const struct operation_class receive_class = {
    .name = "receive",
    .start = receive_start,
    .abandon = receive_abandon,
    .destroy = receive_destroy,
};

/* ---- the user's side ----------------------------------------------------------------------- */

static bool fill_receive(struct receive_op *o, const char *method, const char *path,
                         const void *body, size_t n, const tinker_receive_options *opts)
{
    const char *any = opts->events ? "text/event-stream" : "*/*";
    o->spec = (struct call_spec)REST_SPEC("receive", method);
    o->op.calls_back = true;
    raw_call_label(&o->op, method, path);
    o->path = strdup(path + 1);
    o->content_type = opts->content_type ? strdup(opts->content_type) : NULL;
    o->accept = strdup(opts->accept ? opts->accept : any);
    buf_init(&o->body, SIZE_MAX / 4);
    buf_append(&o->body, body ? body : "", body ? n : 0);
    return o->path && o->accept && (o->content_type || !opts->content_type) && buf_ok(&o->body);
}

/* The method as a static text; NULL: something cannot be sent. */
static const char *check_receive(const char *method, const char *path, tinker_receive_options *ours,
                                 const tinker_receive_options *opts, tinker_receive_fn *on_piece,
                                 tinker_error *err)
{
    if (opts_copy(ours, sizeof(*ours), opts, "tinker_receive_options", err) != TINKER_OK)
        return NULL;
    const tinker_named_string accept = { "accept", ours->accept };
    if (ours->accept && call_options_check_header(&accept, err) != TINKER_OK)
        return NULL;
    if (!on_piece) {
        err_set(err, TINKER_EINVAL, "on_piece must not be NULL");
        return NULL;
    }
    return raw_call_check(method, path, ours->content_type, err);
}

tinker_future *tinker_service_receive(tinker_service *s, const char *method, const char *path,
                                      const void *body, size_t n,
                                      const tinker_receive_options *opts,
                                      tinker_receive_fn *on_piece, void *state, tinker_error *err)
{
    tinker_receive_options ours = TINKER_RECEIVE_OPTIONS_INIT;
    const char *known = check_receive(method, path, &ours, opts, on_piece, err);
    struct session *h = known ? service_rest(s, err) : NULL;
    if (!h)
        return NULL;
    struct receive_op *o = calloc(1, sizeof(*o));
    tinker_future *f = NULL;
    if (o)
        o->in = receive_buffer_new(h, ours.events != 0, on_piece, state);
    if (o && o->in && fill_receive(o, known, path, body, n, &ours))
        f = operation_submit(&o->op, &receive_class, h, RESULT_NONE, s->options, err);
    else
        err_nomem(err, "receive");
    if (!f && o)
        receive_destroy(&o->op);
    return f;
}

struct resume_task {
    struct loop_task task; /* first */
    tinker_future *future; /* a reference */
};

/* The future may be complete by now, or be one of another kind: both are harmless. */
static void resume_on_loop(struct loop_task *t)
{
    struct resume_task *r = (struct resume_task *)t;
    struct receive_op *o = (struct receive_op *)r->future->op;
    if (o && o->op.class == &receive_class) {
        receive_buffer_resume(o->in);
        update_receive(o);
    }
    future_unref(r->future);
    free(r);
}

tinker_status tinker_receive_resume(tinker_future *f, tinker_error *err)
{
    struct resume_task *r = malloc(sizeof(*r));
    if (!r)
        return err_nomem(err, "receive");
    *r = (struct resume_task){ .task.run = resume_on_loop, .future = f };
    pthread_mutex_lock(&future_lock); /* until it is complete its loop is there */
    bool post = !f->done && f->rt->pid == getpid();
    if (post) {
        future_ref(f);
        loop_post(f->rt->loop, &r->task);
    }
    pthread_mutex_unlock(&future_lock);
    if (!post)
        free(r);
    return TINKER_OK;
}
