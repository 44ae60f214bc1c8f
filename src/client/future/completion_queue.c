/* completion_queue.c - many futures, one descriptor.
 *
 * A future that was added is in the pending list until it completes, then in one of the
 * ready lists, in order of completion.  The event descriptor, once somebody has asked for
 * it, is signalled when a ready list gets its first entry and drained when both are empty.
 * Completions of one turn of the I/O thread wake the owner once, at its end.  future_lock
 * guards it all. */
#include <stdlib.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "client/io/wait_table.h"
#include "client/future/future.h"
#include "client/io/runtime.h"

/* Doubly linked through the futures themselves: adding and removing need no memory. */
struct future_list {
    tinker_future *first, *last;
};

struct tinker_queue {
    int fd;
    pid_t owner; /* process whose descriptor it is; a child gets one of its own when it needs it */
    bool fd_used, fd_signalled;
    struct future_list pending, tagged, callbacks;
    tinker_queue *next_due;
    bool due; /* in the list below */
};

/* Queues whose owners are to be woken at the end of the turn.  The list may become empty before,
 * when they are freed, and get new entries: whether the end of the turn knows is noted apart. */
static tinker_queue *due_queues;
static bool wake_planned;

/* A future that is in no list has both links NULL. */
static void list_push(struct future_list *l, tinker_future *f)
{
    f->next = NULL;
    f->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = f;
    l->last = f;
}

static void list_remove(struct future_list *l, tinker_future *f)
{
    *(f->prev ? &f->prev->next : &l->first) = f->next;
    *(f->next ? &f->next->prev : &l->last) = f->prev;
    f->next = f->prev = NULL;
}

static struct future_list *find_list(tinker_queue *q, const tinker_future *f)
{
    /* Tagged futures and callbacks have a list each, so that next and dispatch can be mixed without
     * taking each other's. */
    if (!f->ready)
        return &q->pending;
    return f->callback ? &q->callbacks : &q->tagged;
}

static bool nothing_ready(const tinker_queue *q)
{
    return !q->tagged.first && !q->callbacks.first;
}

/* Is the descriptor, which is about to change its state, this process's alone?  A child that did
 * without would take the parent's signal away, or wake it for nothing. */
static bool ensure_own_fd(tinker_queue *q)
{
    if (q->owner == getpid())
        return true;
    if (os_event_renew(q->fd) != 0)
        return false;
    q->owner = getpid();
    q->fd_signalled = false;
    return true;
}

/* Make the descriptor readable, once, if anybody has asked for it: programs that only use next and
 * dispatch pay no system call per completion. */
static void signal_fd(tinker_queue *q)
{
    if (!q->fd_used || nothing_ready(q) || !ensure_own_fd(q) || q->fd_signalled)
        return;
    q->fd_signalled = true;
    os_event_signal(q->fd);
}

/* At the end of a turn of the loop: a batch of responses that arrived together wakes its owner once
 * and not once each. */
static void wake_due(struct loop_task *t)
{
    (void)t;
    pthread_mutex_lock(&future_lock);
    wake_planned = false;
    while (due_queues) {
        tinker_queue *q = due_queues;
        due_queues = q->next_due;
        q->due = false;
        signal_fd(q);
        /* q was unlinked above, so that a new completion meanwhile can make it due again */
        pthread_mutex_unlock(&future_lock);
        wait_table_wake(q); /* it may be gone, the condition variable is not */
        pthread_mutex_lock(&future_lock);
    }
    pthread_mutex_unlock(&future_lock);
}

/* The task is static, so it can be planned only once at a time: wake_planned guards that. */
static void wake_later_locked(tinker_queue *q, struct loop *loop)
{
    static struct loop_task task = { NULL, wake_due };
    if (q->due)
        return;
    if (!wake_planned)
        loop_at_turn_end(loop, &task);
    wake_planned = true;
    q->due = true;
    q->next_due = due_queues;
    due_queues = q;
}

/* A queue that is being freed must not be woken at the end of the turn. */
static void remove_due_locked(const tinker_queue *q)
{
    for (tinker_queue **at = &due_queues; *at; at = &(*at)->next_due)
        if (*at == q) {
            *at = q->next_due;
            return;
        }
}

/* In a forked child: the turn of the loop that would have woken them is the parent's. */
void queue_forked_locked(void)
{
    for (; due_queues; due_queues = due_queues->next_due)
        due_queues->due = false;
    wake_planned = false;
}

bool queue_deliver_locked(tinker_queue *q, tinker_future *f, struct loop *loop)
{
    /* pending -> ready; the order in which futures become ready is the order of delivery */
    list_remove(&q->pending, f);
    f->ready = true;
    list_push(find_list(q, f), f);
    if (loop && loop_on_thread(loop)) {
        wake_later_locked(q, loop);
        return false;
    }
    /* Not on the loop thread: the future was complete when it was added.  There is no end of a turn
     * to wait for, so the caller wakes. */
    signal_fd(q);
    return true;
}

/* Harmless for a future that is in no queue. */
void queue_forget_locked(tinker_future *f)
{
    tinker_queue *q = f->queue;
    if (!q)
        return;
    list_remove(find_list(q, f), f);
    f->queue = NULL;
    f->ready = false;
    /* The descriptor is level-triggered for the user: readable exactly while something is ready. */
    if (q->fd_signalled && nothing_ready(q) && ensure_own_fd(q)) {
        q->fd_signalled = false;
        os_event_drain(q->fd);
    }
}

tinker_queue *tinker_queue_new(tinker_error *err)
{
    tinker_queue *q = calloc(1, sizeof(*q));
    if (!q) {
        err_nomem(err, "queue");
        return NULL;
    }
    q->owner = getpid();
    q->fd = os_event_open();
    if (q->fd < 0) {
        err_errno(err, "event descriptor of a queue", NULL);
        free(q);
        return NULL;
    }
    return q;
}

static void forget_all_locked(struct future_list *l)
{
    while (l->first)
        queue_forget_locked(l->first);
}

/* The futures stay with their owners. */
void tinker_queue_free(tinker_queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&future_lock);
    forget_all_locked(&q->pending);
    forget_all_locked(&q->tagged);
    forget_all_locked(&q->callbacks);
    remove_due_locked(q);
    pthread_mutex_unlock(&future_lock);
    close(q->fd);
    free(q);
}

/* From the first call on, completions signal the descriptor. */
int tinker_queue_fd(const tinker_queue *q)
{
    tinker_queue *own = (tinker_queue *)q; /* const to the user, who sees no difference */
    pthread_mutex_lock(&future_lock);
    own->fd_used = true;
    signal_fd(own);
    pthread_mutex_unlock(&future_lock);
    return q->fd;
}

static tinker_status add_future(tinker_queue *q, tinker_future *f, tinker_future_fn *callback,
                                void *tag, tinker_error *err)
{
    pthread_mutex_lock(&future_lock);
    /* Into pending even when it is complete: delivery then has one way, from pending to ready. */
    bool taken = f->queue != NULL, ring = false;
    if (!taken) {
        f->queue = q;
        f->callback = callback;
        f->tag = tag;
        f->ready = false;
        list_push(&q->pending, f);
        if (f->done)
            ring = queue_deliver_locked(q, f, NULL); /* its loop may be gone */
    }
    pthread_mutex_unlock(&future_lock);
    if (ring)
        wait_table_wake(q);
    if (taken)
        return err_set(err, TINKER_ESTATE, "the future is already in a queue");
    return TINKER_OK;
}

tinker_status tinker_queue_add(tinker_queue *q, tinker_future *f, void *tag, tinker_error *err)
{
    return add_future(q, f, NULL, tag, err);
}

tinker_status tinker_queue_add_callback(tinker_queue *q, tinker_future *f,
                                        tinker_future_fn *callback, void *state, tinker_error *err)
{
    if (!callback)
        return err_set(err, TINKER_EINVAL, "tinker_queue_add_callback needs a callback");
    return add_future(q, f, callback, state, err);
}

/* The first entry of a ready list, waiting for one; it leaves the queue. */
static tinker_future *take_ready(tinker_queue *q, const struct future_list *l, int64_t timeout_ms)
{
    int64_t deadline = timeout_ms == 0 ? 0 : future_deadline_ms(timeout_ms);
    bool in_time = timeout_ms != 0 && runtime_may_block("waiting for a queue", NULL) == TINKER_OK;
    pthread_mutex_lock(&future_lock);
    /* A wait may end for another object of the same table entry; only the list says what is true. */
    while (!l->first && in_time)
        in_time = wait_table_wait(q, &future_lock, deadline);
    tinker_future *f = l->first;
    if (f)
        queue_forget_locked(f);
    pthread_mutex_unlock(&future_lock);
    return f;
}

tinker_future *tinker_queue_next(tinker_queue *q, int64_t timeout_ms, void **tag)
{
    tinker_future *f = take_ready(q, &q->tagged, timeout_ms);
    if (f && tag)
        *tag = f->tag;
    return f;
}

int tinker_queue_dispatch(tinker_queue *q, int64_t timeout_ms)
{
    int n = 0;
    /* Wait for the first only; then take what is there.  Each future leaves the queue before its
     * callback runs, which may therefore free it or add it again. */
    for (tinker_future *f; (f = take_ready(q, &q->callbacks, n ? 0 : timeout_ms)) != NULL; n++)
        f->callback(f, f->tag); /* may free it */
    return n;
}
