/* rest_op.c - see rest_op.h. */
#include "client/rest/rest_op.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "wire/wire.h"

void rest_destroy(struct operation *op)
{
    struct rest_op *r = (struct rest_op *)op; /* first member */
    call_clear(&r->call);
    buf_clear(&r->body);
    free(r->path);
    free(r->token);
    free(r);
}

/* The future was canceled or freed: leave whichever list the operation is in. */
void rest_abandon(struct operation *op)
{
    struct rest_op *r = (struct rest_op *)op;
    session_forget(&r->wait);
    call_cancel(&r->call);
    operation_destroy(op);
}

/* Does the response only say that an attempt whose own response was lost has done the work?  A call
 * is sent again when a connection breaks, and the service may have executed it before: then a
 * second DELETE finds nothing (404), a second "publish" finds it public (409).  Only maybe_done
 * calls count: a first attempt that is answered so has failed. */
static bool was_done_before(const struct rest_op *r, const struct call *c)
{
    int status = c->outcome == CALL_STATUS ? c->http.resp.status : 0;
    return c->maybe_done && ((status == 404 && strcmp(r->kind->spec.method, "DELETE") == 0) ||
                             (status == 409 && r->kind->conflict == REST_CONFLICT_ALREADY));
}

/* For results that are converted: *wire is on the reader's stack, *out in the future's arena, as
 * are the texts that both point to. */
tinker_status rest_decode(struct rest_op *r, const char *body, size_t n, void *wire, size_t size,
                          void **out, tinker_error *err)
{
    struct tinker_future *f = r->op.future;
    tinker_status s = wire_decode_json(r->kind->type, body, n, WIRE_LENIENT, &f->arena, wire, err);
    if (s != TINKER_OK)
        return s;
    *out = arena_alloc(&f->arena, size);
    f->value = *out;
    return *out ? TINKER_OK : err_nomem(err, "result");
}

/* Exactly one of operation_succeed() and operation_fail(): behind it r may be gone. */
static void on_call_done(struct call *c)
{
    struct rest_op *r = container_of(c, struct rest_op, call);
    const struct buf *body = &c->http.resp.body;
    if (r->quiet) { /* nobody holds the future: a failure is for the log alone */
        if (c->outcome != CALL_OK)
            log_line(&r->op.session->log, LOG_DEBUG, "%s: %s", r->kind->class.name, c->err.message);
        operation_succeed(&r->op);
        return;
    }
    if (c->outcome == CALL_OK) {
        tinker_status s = TINKER_OK;
        if (r->kind->read)
            s = r->kind->read(r, body->data ? body->data : "", body->len, &c->err);
        else if (r->kind->type) {
            /* Read the body straight into the public struct, which the wire table describes. */
            struct tinker_future *f = r->op.future;
            void *value = arena_alloc(&f->arena, wire_type_size(r->kind->type));
            f->value = value;
            s = value ? wire_decode_json(r->kind->type, body->data ? body->data : "", body->len,
                                         WIRE_LENIENT, &f->arena, value, &c->err)
                      : err_nomem(&c->err, "result");
        }
        if (wire_as_answer(s, &c->err) == TINKER_OK) {
            operation_succeed(&r->op);
            return;
        }
    }
    if (was_done_before(r, c)) {
        log_line(&r->op.session->log, LOG_INFO, "%s: the response was lost; it was done before: %s",
                 r->kind->class.name, c->err.message);
        operation_succeed(&r->op);
        return;
    }
    operation_note_response(&r->op, c);
    operation_fail(&r->op, &c->err);
}

/* The session is ready, or cannot be: send the call, whose completion ends the operation. */
void rest_ready(struct session_wait *w, const tinker_error *err)
{
    struct rest_op *r = container_of(w, struct rest_op, wait);
    if (err) {
        operation_fail(&r->op, err);
        return;
    }
    struct call *c = &r->call;
    c->session = r->op.session;
    c->op = &r->op;
    c->spec = &r->kind->spec;
    c->path = r->path;
    c->body = r->body.data;
    c->body_len = r->body.len;
    c->conflict_final = r->kind->conflict != REST_CONFLICT_RETRIED;
    c->one_key = r->once;
    /* A call without a result is successful by its status; some services send no body then. */
    c->empty_ok = c->empty_ok || (!r->kind->read && !r->kind->type);
    if (r->token)
        c->extra[c->n_extra++] =
            (struct http_header){ "X-Tinker-Weights-Access-Token", r->token, true };
    c->done = on_call_done;
    call_start(c);
}

/* On the loop thread. The type is set before anything can complete: accessors compare with it. */
void rest_start(struct operation *op)
{
    struct rest_op *r = (struct rest_op *)op;
    r->op.future->type = r->kind->type;
    r->wait.ready = rest_ready;
    session_when_ready(op->session, &r->wait);
}

/* Takes over path and body as rest_submit() does. */
static struct rest_op *rest_new(struct session *h, const struct rest_kind *kind, char *path,
                                struct buf *body, tinker_error *err)
{
    struct rest_op *r = h && path ? calloc(1, sizeof(*r)) : NULL;
    if (r) {
        r->kind = kind;
        r->path = path;
        if (body)
            r->body = *body;
        return r;
    }
    if (h)
        err_nomem(err, kind->class.name);
    free(path);
    if (body)
        buf_clear(body);
    return NULL;
}

/* Hand the operation to the loop thread; it is freed here when that fails. */
static struct tinker_future *submit_op(struct session *h, struct rest_op *r,
                                       struct call_options *options, tinker_error *err)
{
    struct tinker_future *f =
        operation_submit(&r->op, &r->kind->class, h, r->kind->result, options, err);
    if (!f)
        rest_destroy(&r->op);
    return f;
}

struct tinker_future *rest_submit(struct session *h, const struct rest_kind *kind, char *path,
                                  struct buf *body, struct call_options *options, tinker_error *err)
{
    struct rest_op *r = rest_new(h, kind, path, body, err);
    return r ? submit_op(h, r, options, err) : NULL;
}

/* One idempotency key for all tries, and the credential of another account, if there is one. */
struct tinker_future *rest_submit_once(struct session *h, const struct rest_kind *kind, char *path,
                                       struct buf *body, const char *token,
                                       struct call_options *options, tinker_error *err)
{
    struct rest_op *r = rest_new(h, kind, path, body, err);
    if (!r)
        return NULL;
    r->once = true;
    r->token = token ? strdup(token) : NULL;
    if (token && !r->token) {
        rest_destroy(&r->op);
        err_nomem(err, kind->class.name);
        return NULL;
    }
    return submit_op(h, r, options, err);
}

/* Fire and forget: the future is freed at once, which does not cancel, and nobody learns how it
 * ended. */
void rest_tell(struct session *h, const struct rest_kind *kind, char *path, struct buf *body)
{
    struct rest_op *r = rest_new(h, kind, path, body, NULL);
    if (!r)
        return;
    r->quiet = true;
    tinker_future_free(submit_op(h, r, NULL, NULL));
}
