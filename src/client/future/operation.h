/* operation.h - an operation: what works towards completing one future, on the loop thread.
 *
 * An op is the first member of a larger struct, the state machine of one kind of
 * request.  It is submitted from any thread, started on the loop, and ends by exactly
 * one operation_succeed(), operation_fail() or operation_cancel(); its destroy may be later, when it still
 * has a turn to take. */
#ifndef CLIENT_OPERATION_H
#define CLIENT_OPERATION_H

#include <tinker/error.h>
#include "client/future/future.h"
#include "http/loop.h"

struct call;
struct session;
struct call_options;

struct operation_class {
    const char *name; /* for messages: "optim_step" */
    void (*start)(struct operation *op);
    /* The future is complete (canceled, or the session closes): stop everything under
     * way and, now or when its turn has passed, operation_destroy(). */
    void (*abandon)(struct operation *op);
    void (*destroy)(
        struct operation *op); /* free the struct and all it holds; nothing is under way */
};

struct operation {
    struct loop_task task;
    const struct operation_class *class;
    struct session *session;
    struct tinker_future *future;  /* a reference, NULL once complete */
    struct operation *next, *prev; /* the session's live operations */
    struct operation **list;       /* which of its lists: where that begins; NULL: none yet */
    bool calls_back;               /* its future needs a callback guard */
    bool lingers; /* complete; only a connection ends in order, and abandon may cut that */
    bool told;    /* its error is another operation's, and was named and reported there */
    struct call_options *options; /* the caller's options for it, a reference; NULL: none */
    int number;                   /* among those with the same options, from 0 */
    int sent;                     /* attempts so far, all calls together, polls not counted */
    char label[128];              /* for messages; "" means the name of the class */
};

/* options: of the handle it is submitted through, borrowed; NULL: none.
 * Give op (allocated, otherwise set up) its future; the caller's reference is returned by
 * operation_submit.  NULL: out of memory, or in a fork; op is the caller's to destroy. */
struct tinker_future *operation_submit(struct operation *op, const struct operation_class *class,
                                       struct session *h, enum result_kind kind,
                                       struct call_options *options, tinker_error *err);
/* For an operation that waits for another, whose future (`source`) is nobody else's: that has the
 * options of the call, so this one has none, and freeing the new future silences both.  source is
 * canceled when this fails. */
struct tinker_future *operation_submit_over(struct operation *op,
                                            const struct operation_class *class, struct session *h,
                                            enum result_kind kind, struct tinker_future *source,
                                            tinker_error *err);
/* What is known of the answers to source, which is complete, is known of op's future from now on;
 * its error, if op fails with that, is not reported again. */
void operation_inherit(struct operation *op, struct tinker_future *source);
void operation_succeed(struct operation *op);                       /* destroys op */
void operation_fail(struct operation *op, const tinker_error *err); /* destroys op */
void operation_complete(struct operation *op,
                        const tinker_error *err); /* completes the future; op lives on */
void operation_expire(struct operation *op,
                      int64_t timeout_ms);   /* completes as timed out, abandons */
void operation_cancel(struct operation *op); /* completes as canceled, abandons */
void operation_destroy(struct operation *op);
void operation_put(struct operation *op,
                   struct operation **list); /* into this list of its session's */
/* Has it made all the attempts that the caller's options allow? */
bool operation_is_spent(const struct operation *op);
/* Keep the body and the Retry-After of a failed exchange for the future's accessors. */
void operation_note_response(struct operation *op, const struct call *c);

#endif
