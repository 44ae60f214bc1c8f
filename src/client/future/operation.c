/* operation.c - the life of an operation.  Everything after operation_submit() is on the loop thread. */
#include "client/future/operation.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "client/call/call.h"
#include "client/session/session.h"
#include "client/call/call_options.h"
#include "client/call/retry_policy.h"
#include "client/observe/instrument.h"
#include "client/io/runtime.h"
#include "client/observe/telemetry.h"
#include "client/call/last_error.h"

/* Links only; list stays, since operation_put() sets it right after.
 * `prev` is NULL for the first one, whose predecessor is the list's head. */
static void remove_from_list(struct operation *op)
{
    if (!op->list)
        return;
    *(op->prev ? &op->prev->next : op->list) = op->next;
    if (op->next)
        op->next->prev = op->prev;
}

/* An operation is in one list at a time, so that closing a session finds all of them.
 * Moving between lists (a session's, a queue of one training client) is one call for that
 * reason. */
void operation_put(struct operation *op, struct operation **list)
{
    remove_from_list(op);
    op->list = list;
    op->prev = NULL;
    op->next = *list;
    if (op->next)
        op->next->prev = op;
    *list = op;
}

/* Loop thread: from here on, only it touches the operation.
 * State: submitted -> started.  `class->start` either completes the operation or leaves it
 * waiting for an event of the loop. */
static void start_operation(struct loop_task *t)
{
    struct operation *op = (struct operation *)t; /* first member */
    struct session *h = op->session;
    operation_put(op, &h->ops);
    /* The session may have been closed between the submission and this turn. */
    if (h->closed)
        operation_cancel(op);
    else
        op->class->start(op);
}

/* p: the options of the handle, taken over; may be NULL.  false: no memory. */
static bool take_options(struct operation *op, struct tinker_future *f, struct call_options *p)
{
    /* Only futures that may call the user need a guard. */
    bool calls = op->calls_back || (p && p->on_response);
    if (calls)
        f->guard = callback_guard_new();
    if (calls && !f->guard) {
        call_options_unref(p);
        return false;
    }
    if (!p)
        return true;
    op->options = p;
    /* Numbers the uses of a handle, which keeps its idempotency keys apart. */
    op->number = atomic_fetch_add(&p->submits, 1);
    return true;
}

/* Everything but posting it.  p: taken over, may be NULL. */
static struct tinker_future *prepare_operation(struct operation *op,
                                               const struct operation_class *class,
                                               struct session *h, enum result_kind kind,
                                               struct call_options *p, tinker_error *err)
{
    struct tinker_future *f = future_new(h->rt, kind, err);
    if (!f) {
        call_options_unref(p);
        return NULL;
    }
    if (!take_options(op, f, p)) {
        future_unref(f);
        err_nomem(err, class->name);
        return NULL;
    }
    /* One reference is the caller's, one is the operation's. */
    future_ref(f);
    f->op = op;
    f->session = h;
    op->class = class;
    op->session = h;
    op->future = f;
    op->task.run = start_operation;
    return f;
}

/* The boundary between the user's thread and the loop: everything that can fail (memory, a fork,
 * options) fails here with an error; after loop_post() the outcome arrives in the future alone. */
struct tinker_future *operation_submit(struct operation *op, const struct operation_class *class,
                                       struct session *h, enum result_kind kind,
                                       struct call_options *options, tinker_error *err)
{
    if (h->rt->pid != getpid()) { /* its threads are the parent's */
        err_set(err, TINKER_ESTATE,
                "%s: the client was made before fork(); make a new service in this process, or "
                "import an exported sampler",
                class->name);
        return NULL;
    }
    struct tinker_future *f = prepare_operation(op, class, h, kind, call_options_ref(options), err);
    if (!f)
        return NULL;
    /* Read before the post: afterwards `op` may be gone. */
    int64_t deadline_ms = op->options ? op->options->deadline_ms : 0;
    /* After this the loop thread may have completed it already: only f, whose reference is
     * the caller's, may be touched. */
    loop_post(h->rt->loop, &op->task);
    if (deadline_ms)
        tinker_future_set_deadline(f, deadline_ms);
    return f;
}

/* An operation around another's future: freeing the outer one closes the guards of both. */
struct tinker_future *operation_submit_over(struct operation *op,
                                            const struct operation_class *class, struct session *h,
                                            enum result_kind kind, struct tinker_future *source,
                                            tinker_error *err)
{
    /* Always with a guard: the inner future may call the user on behalf of the outer one. */
    op->calls_back = true;
    struct tinker_future *f = prepare_operation(op, class, h, kind, NULL, err);
    if (!f) {
        tinker_future_cancel(source);
        return NULL;
    }
    callback_guard_chain(f->guard, source->guard);
    loop_post(h->rt->loop, &op->task);
    return f;
}

/* The outer future shows what the inner one met, and takes what it owns. */
void operation_inherit(struct operation *op, struct tinker_future *source)
{
    struct tinker_future *f = op->future;
    f->note = source->note;
    f->response = source->response;
    f->error_body = source->error_body;
    f->retry_after_ms = source->retry_after_ms;
    /* Moved, not copied: freeing the inner future must not free them twice. */
    source->response = NULL;
    source->error_body = NULL;
    if (source->name)
        future_set_request(f, source->name->id, source->request_type);
    op->told = source->err != NULL;
}

/* For messages; a label names the path of a raw call. */
static const char *operation_label(const struct operation *op)
{
    return op->label[0] ? op->label : op->class->name;
}

/* Exactly once, since op->future is cleared.  The operation itself goes on until it is
 * destroyed. */
void operation_complete(struct operation *op, const tinker_error *err)
{
    struct tinker_future *f = op->future;
    if (!f)
        return;
    /* Whoever comes later (a response that was under way, a timer) finds no future and has no
     * say. */
    op->future = NULL;
    f->op = NULL;
    loop_disarm(op->session->rt->loop, &f->deadline);
    tinker_error named;
    if (err) {
        named = *err;
        /* A cancel is the user's own doing and needs no explanation; told: the inner
         * operation has explained it. */
        if (named.status != TINKER_ECANCELED && !op->told)
            err_prefix(&named, "%s", operation_label(op));
    }
    if (err && named.status != TINKER_ECANCELED && !op->told)
        telemetry_error(op->session->telemetry, &named, f->error_body, true);
    future_complete(f, err ? &named : NULL);
    future_unref(f);
}

/* Complete first: destroying an operation frees memory that its completion still reads. */
void operation_succeed(struct operation *op)
{
    operation_complete(op, NULL);
    operation_destroy(op);
}

void operation_fail(struct operation *op, const tinker_error *err)
{
    operation_complete(op, err);
    operation_destroy(op);
}

/* complete before abandon: abandon frees the operation. */
void operation_cancel(struct operation *op)
{
    tinker_error err;
    err_set(&err, TINKER_ECANCELED, "%s was canceled", operation_label(op));
    operation_complete(op, &err);
    /* What is on the network is given up by the class, which alone knows what that is: a
     * request, a poll, a turn in the order of sending. */
    op->class->abandon(op);
}

/* The future's own deadline, not that of one HTTP request: polling ends, too. */
void operation_expire(struct operation *op, int64_t timeout_ms)
{
    tinker_error err;
    future_timeout_event(op->session, op->future, (double)timeout_ms / 1000);
    err_set(&err, TINKER_ETIMEDOUT, "not complete within its deadline of %g s",
            (double)timeout_ms / 1000);
    /* What the last attempt met is the likely reason for the delay. */
    last_error_append(&err, op->future);
    operation_complete(op, &err);
    op->class->abandon(op);
}

/* max_retries counts repetitions, so one attempt more is allowed.
 * A negative max_retries means the library's own limits. */
bool operation_is_spent(const struct operation *op)
{
    const struct call_options *p = op->options;
    return p && p->max_retries >= 0 && op->sent > p->max_retries;
}

/* Only a response of failure; a result needs no body for messages. */
void operation_note_response(struct operation *op, const struct call *c)
{
    struct tinker_future *f = op->future;
    const struct http_response *resp = &c->http.resp;
    if (!f || resp->failure != HTTP_OK || resp->status < 300)
        return;
    free(f->error_body);
    f->error_body = resp->body.data ? strdup(resp->body.data) : NULL;
    response_keep(op, c);
    /* The Retry-After of the last response is kept for the user: a program that schedules itself
     * wants to know when capacity returns. */
    int64_t ms = retry_after_ms(resp, clock_wall_ns(op->session->rt->clock));
    f->retry_after_ms = ms > 0 ? ms : -1;
}

/* Loop thread.  The future lives on by the caller's reference. */
void operation_destroy(struct operation *op)
{
    remove_from_list(op);
    call_options_unref(op->options);
    op->options = NULL;
    op->class->destroy(op);
}
