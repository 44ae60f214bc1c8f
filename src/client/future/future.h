/* future.h - the inside of tinker_future: completion, waiting, results.
 *
 * A future is shared by its owner and by the operation that will complete it; each has
 * a reference.  Until completion only the loop thread writes the result; afterwards
 * nobody does.  One process-wide lock guards completion and queue membership of all
 * futures: it is held for a few instructions and nothing is called under it. */
#ifndef CLIENT_FUTURE_H
#define CLIENT_FUTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tinker/future.h>
#include <tinker/custom_loss.h>
#include "base/arena.h"
#include "client/call/response.h"
#include "http/loop.h"

enum result_kind {
    RESULT_NONE, /* nothing but success */
    RESULT_FORWARD_BACKWARD,
    RESULT_SAMPLE,
    RESULT_METRICS,
    RESULT_SAVED_PATH,
    RESULT_LOADED_PATH,
    RESULT_BASE_MODEL,
    RESULT_FILE,
    RESULT_TRAINING,
    RESULT_SAMPLER,
    RESULT_TOKENIZER,
    RESULT_LOSS_ID,
    RESULT_VALUE /* a public struct, told apart by `type` */
};

struct session;
struct operation;
struct runtime;

/* What the service calls the request.  A sample that is sent again gets a new one; the old
 * texts stay, because the user may hold them. */
struct request_name {
    struct request_name *older;
    char id[];
};

struct tinker_future {
    atomic_int refs;
    struct runtime *rt; /* these two only while not complete: they may be gone later */
    struct session *session;
    char *last_error;          /* the lock: why the last attempt failed, NULL: it did not */
    bool done;                 /* the lock of future.c */
    const tinker_error *err;   /* NULL: success; owned; written before done */
    struct request_name *name; /* the lock; NULL: none yet */
    enum result_kind kind;
    const void *type;             /* RESULT_VALUE: address of the name of the type */
    const void *value;            /* into the arena; what can be taken: owned until then */
    size_t n;                     /* METRICS */
    char *error_body;             /* of an HTTP error, NULL: none */
    int64_t retry_after_ms;       /* stated by the service, -1 */
    struct response_note note;    /* of the last answer */
    struct response *response;    /* the same in full, NULL: not kept; the lock, once complete */
    struct callback_guard *guard; /* of the options' on_response, NULL: none */
    struct arena arena;
    struct tinker_loss_report *report; /* of a custom loss, owned; NULL: none */
    struct operation *op;              /* loop thread: what works on it, NULL once complete */
    /* Loop thread: called once complete, for an operation that waits.  NULL: none. */
    void (*notify)(struct tinker_future *f, void *state);
    void *notify_state;
    const char *request_type; /* static text, NULL: none yet; written by the loop once */
    int64_t iteration;        /* of its poll */
    struct timer deadline;
    struct loop_task cancel_task, deadline_task;
    int64_t deadline_ms;
    /* the lock: */
    bool deadline_asked;
    bool cancel_asked;
    struct tinker_queue *queue;
    struct tinker_future *next, *prev; /* in the queue's ready or pending list */
    bool ready;                        /* which of the two */
    tinker_future_fn *callback;
    void *tag;
};

struct tinker_future *future_new(struct runtime *rt, enum result_kind kind, tinker_error *err);
void future_ref(struct tinker_future *f);
void future_unref(struct tinker_future *f);
/* Complete with success (err NULL) or failure, exactly once.  Loop thread. */
void future_complete(struct tinker_future *f, const tinker_error *err);
void future_set_request(struct tinker_future *f, const char *id, const char *type);
const char *future_request_id(const struct tinker_future *f); /* loop thread; "" for none */

/* The result of a future of kind RESULT_VALUE and this type (by address), or NULL. */
const void *future_value(const struct tinker_future *f, const void *type);

/* queue.c, with the lock held: */
/* loop: of a future that completes, NULL: it was complete already.  True: wake the waiters of
 * the queue once the lock is released. */
bool queue_deliver_locked(struct tinker_queue *q, struct tinker_future *f, struct loop *loop);
void queue_forget_locked(struct tinker_future *f);
void queue_forked_locked(void); /* in a child: the turn that would wake owners is the parent's */
extern pthread_mutex_t future_lock;
/* Wait on cond under lock until deadline (CLOCK_MONOTONIC ms, -1: none); false: passed. */
bool future_cond_wait_on(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms);
int64_t future_deadline_ms(int64_t timeout_ms);
int future_cond_init(pthread_cond_t *cond);

#endif
