/* operation.c - the life of an operation.  Everything after op_submit() is on the loop thread. */
#include "client/future/operation.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "client/call/call.h"
#include "client/session/session.h"
#include "client/call/call_options.h"
#include "client/observe/report.h"
#include "client/io/runtime.h"
#include "client/observe/telemetry.h"
#include "client/call/last_error.h"

static void take_out(struct op *op)
{
    if (!op->list)
        return;
    *(op->prev ? &op->prev->next : op->list) = op->next;
    if (op->next)
        op->next->prev = op->prev;
}

void op_put(struct op *op, struct op **list)
{
    take_out(op);
    op->list = list;
    op->prev = NULL;
    op->next = *list;
    if (op->next)
        op->next->prev = op;
    *list = op;
}

static void op_start(struct loop_task *t)
{
    struct op *op = (struct op *)t; /* first member */
    struct session *h = op->session;
    op_put(op, &h->ops);
    if (h->closed)
        op_cancel(op);
    else
        op->class->start(op);
}

/* Options that the thread has pushed; false: no memory. */
static bool take_prefs(struct op *op, struct tinker_future *f, struct prefs *p)
{
    bool calls = op->calls_back || (p && p->on_response);
    if (calls)
        f->tap = tap_new(p);
    if (calls && !f->tap) {
        prefs_unref(p);
        return false;
    }
    if (!p)
        return true;
    op->prefs = p;
    op->number = atomic_fetch_add(&p->submits, 1);
    return true;
}

/* Everything but posting it.  p: taken over, may be NULL. */
static struct tinker_future *prepare(struct op *op, const struct op_class *class, struct session *h,
                                     enum result_kind kind, struct prefs *p, tinker_error *err)
{
    struct tinker_future *f = future_new(h->rt, kind, err);
    if (!f) {
        prefs_unref(p);
        return NULL;
    }
    if (!take_prefs(op, f, p)) {
        future_unref(f);
        err_nomem(err, class->name);
        return NULL;
    }
    future_ref(f);
    f->op = op;
    f->session = h;
    op->class = class;
    op->session = h;
    op->future = f;
    op->task.run = op_start;
    return f;
}

struct tinker_future *op_submit(struct op *op, const struct op_class *class, struct session *h,
                                enum result_kind kind, tinker_error *err)
{
    if (h->rt->pid != getpid()) { /* its threads are the parent's */
        err_set(err, TINKER_ESTATE,
                "%s: the client was made before fork(); make a new service in this process, or "
                "import an exported sampler",
                class->name);
        return NULL;
    }
    struct tinker_future *f = prepare(op, class, h, kind, prefs_current(), err);
    if (!f)
        return NULL;
    int64_t deadline_ms = op->prefs ? op->prefs->deadline_ms : 0;
    loop_post(h->rt->loop, &op->task);
    if (deadline_ms)
        tinker_future_set_deadline(f, deadline_ms);
    return f;
}

struct tinker_future *op_submit_over(struct op *op, const struct op_class *class, struct session *h,
                                     enum result_kind kind, struct tinker_future *source,
                                     tinker_error *err)
{
    op->calls_back = true;
    struct tinker_future *f = prepare(op, class, h, kind, NULL, err);
    if (!f) {
        tinker_future_cancel(source);
        return NULL;
    }
    tap_chain(f->tap, source->tap);
    loop_post(h->rt->loop, &op->task);
    return f;
}

void op_inherit(struct op *op, struct tinker_future *source)
{
    struct tinker_future *f = op->future;
    f->note = source->note;
    f->answer = source->answer;
    f->error_body = source->error_body;
    f->retry_after_ms = source->retry_after_ms;
    source->answer = NULL;
    source->error_body = NULL;
    if (source->name)
        future_set_request(f, source->name->id, source->request_type);
    op->told = source->err != NULL;
}

static const char *op_label(const struct op *op)
{
    return op->label[0] ? op->label : op->class->name;
}

void op_report(struct op *op, const tinker_error *err)
{
    struct tinker_future *f = op->future;
    if (!f)
        return;
    op->future = NULL;
    f->op = NULL;
    loop_disarm(op->session->rt->loop, &f->deadline);
    tinker_error named;
    if (err) {
        named = *err;
        if (named.status != TINKER_ECANCELED && !op->told)
            err_prefix(&named, "%s", op_label(op));
    }
    if (err && named.status != TINKER_ECANCELED && !op->told)
        telemetry_error(op->session->telemetry, &named, f->error_body, true);
    future_complete(f, err ? &named : NULL);
    future_unref(f);
}

void op_succeed(struct op *op)
{
    op_report(op, NULL);
    op_destroy(op);
}

void op_fail(struct op *op, const tinker_error *err)
{
    op_report(op, err);
    op_destroy(op);
}

void op_cancel(struct op *op)
{
    tinker_error err;
    err_set(&err, TINKER_ECANCELED, "%s was cancelled", op_label(op));
    op_report(op, &err);
    op->class->abandon(op);
}

void op_expire(struct op *op, int64_t timeout_ms)
{
    tinker_error err;
    report_timeout(op->session, op->future, (double)timeout_ms / 1000);
    err_set(&err, TINKER_ETIMEDOUT, "not complete within its deadline of %g s",
            (double)timeout_ms / 1000);
    trouble_append(&err, op->future);
    op_report(op, &err);
    op->class->abandon(op);
}

bool op_is_spent(const struct op *op)
{
    const struct prefs *p = op->prefs;
    return p && p->max_retries >= 0 && op->sent > p->max_retries;
}

void op_note_response(struct op *op, const struct call *c)
{
    struct tinker_future *f = op->future;
    const struct http_response *resp = &c->http.resp;
    if (!f || resp->failure != HTTP_OK || resp->status < 300)
        return;
    free(f->error_body);
    f->error_body = resp->body.data ? strdup(resp->body.data) : NULL;
    answer_keep(op, c);
    double s = call_retry_after(resp, clock_wall_ns(op->session->rt->clock));
    f->retry_after_ms = s > 0 ? (int64_t)(s * 1000) : -1;
}

void op_destroy(struct op *op)
{
    take_out(op);
    prefs_unref(op->prefs);
    op->prefs = NULL;
    op->class->destroy(op);
}
