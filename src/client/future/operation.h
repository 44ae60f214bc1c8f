/* operation.h - an operation: what works towards completing one future, on the loop thread.
 *
 * An op is the first member of a larger struct, the state machine of one kind of
 * request.  It is submitted from any thread, started on the loop, and ends by exactly
 * one op_succeed(), op_fail() or op_cancel(); its destroy may be later, when it still
 * has a turn to take. */
#ifndef CLIENT_OP_H
#define CLIENT_OP_H

#include <tinker/error.h>
#include "client/future/future.h"
#include "http/loop.h"

struct call;
struct session;
struct prefs;

struct op_class {
    const char *name; /* for messages: "optim_step" */
    void (*start)(struct op *op);
    /* The future is complete (cancelled, or the session closes): stop everything under
     * way and, now or when its turn has passed, op_destroy(). */
    void (*abandon)(struct op *op);
    void (*destroy)(struct op *op); /* free the struct and all it holds; nothing is under way */
};

struct op {
    struct loop_task task;
    const struct op_class *class;
    struct session *session;
    struct tinker_future *future; /* a reference, NULL once complete */
    struct op *next, *prev;       /* the session's live operations */
    struct op **list;             /* which of its lists: where that begins; NULL: none yet */
    bool calls_back;              /* its future needs a tap */
    bool lingers;        /* complete; only a connection ends in order, and abandon may cut that */
    bool told;           /* its error is another operation's, and was named and reported there */
    struct prefs *prefs; /* the caller's options for it, a reference; NULL: none */
    int number;          /* among those with the same options, from 0 */
    int sent;            /* attempts so far, all calls together, polls not counted */
    char label[128];     /* for messages; "" means the name of the class */
};

/* Give op (allocated, otherwise set up) its future; the caller's reference is returned by
 * op_submit.  NULL: out of memory, or in a fork; op is the caller's to destroy. */
struct tinker_future *op_submit(struct op *op, const struct op_class *class, struct session *h,
                                enum result_kind kind, tinker_error *err);
/* For an operation that waits for another, whose future (`source`) is nobody else's: that has the
 * options of the call, so this one has none, and freeing the new future silences both.  source is
 * cancelled when this fails. */
struct tinker_future *op_submit_over(struct op *op, const struct op_class *class, struct session *h,
                                     enum result_kind kind, struct tinker_future *source,
                                     tinker_error *err);
/* What is known of the answers to source, which is complete, is known of op's future from now on;
 * its error, if op fails with that, is not reported again. */
void op_inherit(struct op *op, struct tinker_future *source);
void op_succeed(struct op *op);                         /* destroys op */
void op_fail(struct op *op, const tinker_error *err);   /* destroys op */
void op_report(struct op *op, const tinker_error *err); /* completes the future; op lives on */
void op_expire(struct op *op, int64_t timeout_ms);      /* completes as timed out, abandons */
void op_cancel(struct op *op);                          /* completes as cancelled, abandons */
void op_destroy(struct op *op);
void op_put(struct op *op, struct op **list); /* into this list of its session's */
/* Has it made all the attempts that the caller's options allow? */
bool op_is_spent(const struct op *op);
/* Keep the body and the Retry-After of a failed exchange for the future's accessors. */
void op_note_response(struct op *op, const struct call *c);

#endif
