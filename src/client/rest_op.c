/* rest_op.c - see rest_op.h. */
#include "client/rest_op.h"

#include <stdlib.h>
#include "base/err.h"
#include "wire/wire.h"

#define CONTAINER(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

void rest_destroy(struct op *op)
{
    struct rest_op *r = (struct rest_op *)op; /* first member */
    call_clear(&r->call);
    buf_clear(&r->body);
    free(r->path);
    free(r);
}

void rest_abandon(struct op *op)
{
    struct rest_op *r = (struct rest_op *)op;
    holder_forget(&r->wait);
    call_cancel(&r->call);
    op_destroy(op);
}

static void on_done(struct call *c)
{
    struct rest_op *r = CONTAINER(c, struct rest_op, call);
    const struct buf *body = &c->http.resp.body;
    if (c->outcome == CALL_OK) {
        tinker_status s = TINKER_OK;
        if (r->kind->read)
            s = r->kind->read(r, body->data ? body->data : "", body->len, &c->err);
        if (wire_as_answer(s, &c->err) == TINKER_OK) {
            op_succeed(&r->op);
            return;
        }
    }
    op_note_response(&r->op, c);
    op_fail(&r->op, &c->err);
}

static void on_ready(struct holder_wait *w, const tinker_error *err)
{
    struct rest_op *r = CONTAINER(w, struct rest_op, wait);
    if (err) {
        op_fail(&r->op, err);
        return;
    }
    struct call *c = &r->call;
    c->holder = r->op.holder;
    c->op = &r->op;
    c->spec = &r->kind->spec;
    c->path = r->path;
    c->body = r->body.data;
    c->body_len = r->body.len;
    c->conflict_final = r->kind->conflict_final;
    c->done = on_done;
    call_start(c);
}

void rest_start(struct op *op)
{
    struct rest_op *r = (struct rest_op *)op;
    r->op.future->type = r->kind->type;
    r->wait.ready = on_ready;
    holder_when_ready(op->holder, &r->wait);
}

struct tinker_future *rest_submit(struct holder *h, const struct rest_kind *kind, char *path,
                                  struct buf *body, tinker_error *err)
{
    struct rest_op *r = h && path ? calloc(1, sizeof(*r)) : NULL;
    struct tinker_future *f = NULL;
    if (r) {
        r->kind = kind;
        r->path = path;
        if (body)
            r->body = *body;
        f = op_submit(&r->op, &kind->class, h, kind->result, err);
        if (!f)
            rest_destroy(&r->op);
        return f;
    }
    if (h)
        err_nomem(err, kind->class.name);
    free(path);
    if (body)
        buf_clear(body);
    return NULL;
}
