/* future.c - completion and waiting.  See future.h for who may touch what.
 *
 * A future goes from pending to complete exactly once, under future_lock.  Until then its result,
 * error and op belong to the loop thread; afterwards they are constant, so that accessors need
 * the lock only to see `done`.  Requests of the user (cancel, deadline) do not touch the
 * operation: they are posted to the loop as tasks that live in the future itself, so they need
 * no memory and cannot fail. */
#include "client/future/future.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <tinker/custom_loss.h>
#include <tinker/tokenizer.h>
#include "base/array.h"
#include "base/err.h"
#include "client/io/wait_table.h"
#include "client/future/operation.h"
#include "client/future/result.h"
#include "client/io/runtime.h"
#include "client/sampling/sampling_client.h"
#include "client/training/training_client.h"
#include "client/call/last_error.h"
#include "client/call/retry_policy.h"

/* One lock for all futures and queues.  It is held for a few instructions, so it is no bottleneck,
 * and it spares every future a mutex and a condition variable of its own. */
pthread_mutex_t future_lock = PTHREAD_MUTEX_INITIALIZER;

static int any_waiting; /* the lock; its waiters: some future completed */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void lock_futures(void)
{
    pthread_mutex_lock(&future_lock);
}

static void unlock_futures(void)
{
    pthread_mutex_unlock(&future_lock);
}

/* The child has a copy of every queue; none of the parent's threads, which would deliver into
 * them, came along. */
static void unlock_in_child(void)
{
    queue_forked_locked();
    pthread_mutex_unlock(&future_lock);
}

/* A child made while another thread holds the lock would wait for that thread for ever. */
static void register_fork_handlers(void)
{
    pthread_atfork(lock_futures, unlock_futures, unlock_in_child);
}

/* Deadlines are on the monotonic clock: setting the time of day must not end or prolong a wait. */
int future_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
}

/* Negative means for ever, before and after.  Milliseconds of the monotonic clock. */
int64_t future_deadline_ms(int64_t timeout_ms)
{
    if (timeout_ms < 0)
        return -1;
    int64_t now = clock_now_ms(clock_real());
    /* a deadline past the end of the clock means no deadline */
    return timeout_ms > INT64_MAX / 2 - now ? -1 : now + timeout_ms;
}

/* false: the deadline has passed.  A spurious wake-up gives true, so callers look at their
 * condition again. */
bool future_cond_wait_on(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
    if (deadline_ms < 0) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    struct timespec ts = { .tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000 };
    return pthread_cond_timedwait(cond, lock, &ts) != ETIMEDOUT;
}

/* When there is not even memory for an error; never freed. */
static const tinker_error no_memory = { .status = TINKER_ENOMEM, .message = "out of memory" };

/* One reference, the caller's.  The arena has no limit of its own: what goes into it is bounded
 * by the limit of a response's size. */
struct tinker_future *future_new(struct runtime *rt, enum result_kind kind, tinker_error *err)
{
    struct tinker_future *f = calloc(1, sizeof(*f));
    /* before the first lock is taken, and so before a fork can copy a locked one */
    pthread_once(&fork_once, register_fork_handlers);
    if (!f) {
        err_nomem(err, "future");
        return NULL;
    }
    f->rt = rt;
    f->kind = kind;
    f->retry_after_ms = -1;
    atomic_init(&f->refs, 1);
    arena_init(&f->arena, SIZE_MAX);
    return f;
}

void future_ref(struct tinker_future *f)
{
    /* relaxed is enough to add one: whoever adds already has a reference */
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}

/* Handles that nobody took; other results live in the arena. */
static void free_result(struct tinker_future *f)
{
    /* The report of a custom loss is made on the client's side and is not part of the response's
     * arena. */
    tinker_loss_report_free(f->report);
    if (!f->value)
        return;
    if (f->kind == RESULT_TRAINING)
        tinker_training_free((tinker_training *)f->value);
    else if (f->kind == RESULT_SAMPLER)
        tinker_sampler_free((tinker_sampler *)f->value);
    else if (f->kind == RESULT_TOKENIZER)
        tinker_tokenizer_free((tinker_tokenizer *)f->value);
}

/* acq_rel: whoever frees must see all writes of those who have let go before. */
void future_unref(struct tinker_future *f)
{
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    free_result(f);
    arena_clear(&f->arena);
    free(f->error_body);
    free(f->last_error);
    response_unref(f->response);
    callback_guard_unref(f->guard);
    if (f->err != &no_memory)
        free((void *)f->err);
    while (f->name) {
        struct request_name *older = f->name->older;
        free(f->name);
        f->name = older;
    }
    free(f);
}

/* A copy that names the request. */
static const tinker_error *keep_error(const struct tinker_future *f, const tinker_error *err)
{
    tinker_error *copy = malloc(sizeof(*copy));
    if (!copy)
        return &no_memory;
    *copy = *err;
    if (!copy->request_id[0])
        snprintf(copy->request_id, sizeof(copy->request_id), "%s", future_request_id(f));
    return copy;
}

void future_complete(struct tinker_future *f, const tinker_error *err)
{
    pthread_mutex_lock(&future_lock);
    if (err && err->status != TINKER_OK)
        f->err = keep_error(f, err);
    f->done = true;
    /* State transition: pending -> complete.  From here on value, err and everything reachable
     * from them never change, so accessors read them without the lock once they have seen
     * `done`. */
    const tinker_queue *q = f->queue;
    /* Waiters are woken after the lock is released, so that they do not run into it.  They look at
     * addresses only: the user may free the future, and its queue, as soon as it is unlocked; f
     * itself lives on by the reference of the operation that completes it. */
    bool ring = q && queue_deliver_locked(f->queue, f, f->rt->loop);
    bool ring_any = any_waiting > 0;
    pthread_mutex_unlock(&future_lock);
    wait_table_wake(f);
    if (ring)
        wait_table_wake(q);
    if (ring_any)
        wait_table_wake(&any_waiting);
    /* Internal listeners (merged batches, wrapped futures) run on the loop thread, without the
     * lock. */
    if (f->notify)
        f->notify(f, f->notify_state);
}

/* Loop thread.  Older names are kept until the end, because tinker_future_request_id() may
 * have handed them out. */
void future_set_request(struct tinker_future *f, const char *id, const char *type)
{
    /* Without memory the future keeps its old name, or none: only messages suffer. */
    size_t n = strlen(id) + 1;
    struct request_name *name = malloc(sizeof(*name) + n);
    if (name)
        memcpy(name->id, id, n);
    pthread_mutex_lock(&future_lock);
    if (name) {
        name->older = f->name;
        f->name = name;
    }
    f->request_type = type;
    pthread_mutex_unlock(&future_lock);
}

const char *future_request_id(const struct tinker_future *f)
{
    return f->name ? f->name->id : "";
}

/* Is it the program's own doing?  Then the service is well, and trying again would not help. */
int tinker_error_is_user(const tinker_error *err)
{
    return err->category == TINKER_CATEGORY_USER || err->status == TINKER_EINVAL ||
           retry_status_is(err->http_status, RETRY_USER);
}

/* ---- public ------------------------------------------------------------------------- */

/* Never holds the lock while it sleeps: wait_table_wait() gives it back.  The future cannot go
 * away under a waiter, since freeing it while another call is in progress is not allowed. */
tinker_status tinker_future_wait(tinker_future *f, int64_t timeout_ms, tinker_error *err)
{
    /* timeout_ms 0 only looks, and is therefore allowed on every thread and in a fork */
    int64_t deadline = timeout_ms == 0 ? 0 : future_deadline_ms(timeout_ms);
    if (timeout_ms != 0 && !tinker_future_done(f)) {
        tinker_status s = runtime_may_block("waiting for a future", err);
        if (s != TINKER_OK)
            return s;
    }
    pthread_mutex_lock(&future_lock);
    bool in_time = timeout_ms != 0;
    /* the threads that would complete it are the parent's */
    bool lost = in_time && !f->done && f->rt->pid != getpid();
    while (!f->done && in_time && !lost)
        in_time = wait_table_wait(f, &future_lock, deadline);
    bool done = f->done;
    pthread_mutex_unlock(&future_lock);
    if (lost)
        return err_set(err, TINKER_ESTATE, "the request was submitted before fork()");
    if (!done) {
        if (timeout_ms)
            err_set(err, TINKER_ETIMEDOUT, "still pending after %lld ms; the request goes on",
                    (long long)timeout_ms);
        else
            err_set(err, TINKER_ETIMEDOUT, "pending");
        last_error_append(err, f);
        return TINKER_ETIMEDOUT;
    }
    /* err is written only on failure, also here. */
    if (f->err && err)
        *err = *f->err;
    return f->err ? f->err->status : TINKER_OK;
}

tinker_future *tinker_future_await(tinker_future *f, int64_t timeout_ms, tinker_error *err)
{
    if (!f)
        return NULL;
    tinker_status status = tinker_future_wait(f, timeout_ms, err);
    /* ETIMEDOUT has two meanings: this wait timed out, or the request did.  A future that is
     * complete by now has an outcome of its own, which counts. */
    if (status == TINKER_ETIMEDOUT && tinker_future_done(f))
        status = tinker_future_wait(f, 0, err); /* just now */
    else if (status == TINKER_ETIMEDOUT) {
        err_set(err, TINKER_ETIMEDOUT, "no response within %lld ms; the request was canceled",
                (long long)timeout_ms);
        last_error_append(err, f);
    }
    if (status == TINKER_OK)
        return f;
    tinker_future_cancel(f); /* the caller will not have it */
    tinker_future_free(f);
    return NULL;
}

/* The lock also orders memory: who sees done = 1 sees the result. */
int tinker_future_done(const tinker_future *f)
{
    pthread_mutex_lock(&future_lock);
    bool done = f->done;
    pthread_mutex_unlock(&future_lock);
    return done;
}

/* With -1 as deadline every wait is without a limit; otherwise what is left of the common one,
 * never less than 0. */
tinker_status tinker_future_wait_all(tinker_future *const *f, size_t n, int64_t timeout_ms,
                                     tinker_error *err)
{
    /* One after the other until the common deadline: the last to complete decides, and those behind
     * it are complete by then or get a look without a wait. */
    int64_t deadline = future_deadline_ms(timeout_ms);
    tinker_status first = TINKER_OK;
    for (size_t i = 0; i < n; i++) {
        int64_t left = deadline < 0 ? -1 : deadline - clock_now_ms(clock_real());
        tinker_error mine;
        tinker_status s = tinker_future_wait(f[i], deadline < 0 || left > 0 ? left : 0, &mine);
        if (s != TINKER_OK && first == TINKER_OK) {
            first = s;
            if (err)
                *err = mine;
        }
    }
    return first;
}

/* The first in the array, not the first in time: that is not recorded. */
static int64_t find_done_locked(tinker_future *const *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (f[i]->done)
            return (int64_t)i;
    return -1;
}

/* Those of the parent of a fork will never complete here. */
static bool is_any_ours_locked(tinker_future *const *f, size_t n)
{
    pid_t pid = getpid();
    for (size_t i = 0; i < n; i++)
        if (f[i]->done || f[i]->rt->pid == pid)
            return true;
    return false;
}

/* -1 for a timeout and for a thread that must not wait: there is no error to tell them apart,
 * and a caller does the same in both cases. */
int64_t tinker_future_wait_any(tinker_future *const *f, size_t n, int64_t timeout_ms)
{
    int64_t deadline = timeout_ms == 0 ? 0 : future_deadline_ms(timeout_ms);
    bool in_time = timeout_ms != 0 && runtime_may_block("waiting for a future", NULL) == TINKER_OK;
    pthread_mutex_lock(&future_lock);
    in_time = in_time && is_any_ours_locked(f, n);
    /* All threads in wait_any share one entry of the table and look again whenever any future
     * completes; the count keeps completions cheap while nobody waits like this. */
    any_waiting++;
    int64_t found = find_done_locked(f, n);
    while (found < 0 && in_time) {
        in_time = wait_table_wait(&any_waiting, &future_lock, deadline);
        found = find_done_locked(f, n);
    }
    any_waiting--;
    pthread_mutex_unlock(&future_lock);
    return found;
}

/* Is there a loop that works on f?  It goes away only after f is complete; in a fork it is the
 * parent's, whom nothing here may wake. */
static bool has_loop_locked(const struct tinker_future *f)
{
    return !f->done && f->rt->pid == getpid();
}

/* ---- requests to the operation ------------------------------------------------------------ */

/* Loop thread; op is NULL once the future is complete. */
static void on_deadline(struct timer *t)
{
    struct tinker_future *f = container_of(t, struct tinker_future, deadline);
    if (f->op)
        operation_expire(f->op, f->deadline_ms);
}

/* Runs for the last of several calls: the value is read here, not carried by the task. */
static void deadline_on_loop(struct loop_task *t)
{
    struct tinker_future *f = container_of(t, struct tinker_future, deadline_task);
    pthread_mutex_lock(&future_lock);
    /* Read together with clearing the flag: a later call posts again and cannot be lost. */
    f->deadline_asked = false;
    int64_t ms = f->deadline_ms;
    pthread_mutex_unlock(&future_lock);
    f->deadline.fire = on_deadline;
    if (f->op && ms < 0)
        loop_disarm(f->rt->loop, &f->deadline);
    else if (f->op)
        loop_arm(f->rt->loop, &f->deadline, ms);
    future_unref(f);
}

/* The timer belongs to the loop thread, so it is armed there.  If the future is complete, or its
 * loop is another process's, nothing is posted and nothing happens. */
void tinker_future_set_deadline(tinker_future *f, int64_t timeout_ms)
{
    pthread_mutex_lock(&future_lock);
    /* Several calls before the loop gets to it become one task, and the last of them counts. */
    f->deadline_ms = timeout_ms;
    if (has_loop_locked(f) && !f->deadline_asked) {
        f->deadline_asked = true;
        future_ref(f);
        f->deadline_task.run = deadline_on_loop;
        loop_post(f->rt->loop, &f->deadline_task);
    }
    pthread_mutex_unlock(&future_lock);
}

/* The reference was taken when the task was posted, so f is there even if the user has freed
 * it. */
static void cancel_on_loop(struct loop_task *t)
{
    struct tinker_future *f = container_of(t, struct tinker_future, cancel_task);
    if (f->op)
        operation_cancel(f->op);
    future_unref(f);
}

/* Any thread.  Only asks: on the loop thread the future then completes with
 * TINKER_ECANCELED, unless its result is faster. */
void tinker_future_cancel(tinker_future *f)
{
    pthread_mutex_lock(&future_lock);
    if (has_loop_locked(f) && !f->cancel_asked) {
        f->cancel_asked = true;
        future_ref(f);
        /* The task is a member of the future: asking needs no memory, so canceling works even
         * when memory has run out. */
        f->cancel_task.run = cancel_on_loop;
        loop_post(f->rt->loop, &f->cancel_task);
    }
    pthread_mutex_unlock(&future_lock);
}

/* Three owners may hold references: the user, the operation, and a task under way.  Freeing
 * gives back the user's; the last one frees the memory. */
void tinker_future_free(tinker_future *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&future_lock);
    /* Out of the queue first: it must not hand out what is being freed.  Then wait for a callback
     * under way, without the lock, because the callback may use futures itself. */
    queue_forget_locked(f);
    pthread_mutex_unlock(&future_lock);
    callback_guard_close(f->guard);
    future_unref(f);
}

const char *tinker_future_request_id(const tinker_future *f)
{
    pthread_mutex_lock(&future_lock);
    const char *id = future_request_id(f);
    pthread_mutex_unlock(&future_lock);
    return id;
}

/* Only types that tinker_service_resume() can read are returned. */
const char *tinker_future_request_type(const tinker_future *f)
{
    pthread_mutex_lock(&future_lock);
    const char *type = f->request_type && result_find(f->request_type) ? f->request_type : "";
    pthread_mutex_unlock(&future_lock);
    return type;
}

/* Constant once done, so it is read without the lock. */
const char *tinker_future_error_body(const tinker_future *f)
{
    return tinker_future_done(f) && f->error_body ? f->error_body : "";
}

int64_t tinker_future_retry_after_ms(const tinker_future *f)
{
    return tinker_future_done(f) ? f->retry_after_ms : -1;
}

/* ---- results ------------------------------------------------------------------------------ */

/* Types are told apart by the address of their wire type or name, so two modules cannot clash. */
const void *future_value(const tinker_future *f, const void *type)
{
    return f && f->kind == RESULT_VALUE && f->type == type && tinker_future_done(f) && !f->err
               ? f->value
               : NULL;
}

/* The result of a future of this kind, NULL while there is none. */
static const void *result_of(const tinker_future *f, enum result_kind kind)
{
    return f && f->kind == kind && tinker_future_done(f) && !f->err ? f->value : NULL;
}

const tinker_forward_backward *tinker_future_forward_backward(const tinker_future *f)
{
    return result_of(f, RESULT_FORWARD_BACKWARD);
}

/* Typed accessors: NULL unless the future is complete, succeeded, and is of this very kind.  So
 * a program that asks the wrong accessor gets NULL, never another type's bytes. */
const tinker_sample *tinker_future_sample(const tinker_future *f)
{
    return result_of(f, RESULT_SAMPLE);
}

const tinker_named_number *tinker_future_metrics(const tinker_future *f, size_t *n)
{
    const tinker_named_number *metrics = result_of(f, RESULT_METRICS);
    *n = metrics ? f->n : 0;
    return metrics;
}

const tinker_loss_report *tinker_future_loss_report(const tinker_future *f)
{
    return result_of(f, RESULT_FORWARD_BACKWARD) ? f->report : NULL;
}

const char *tinker_future_loss_id(const tinker_future *f)
{
    return result_of(f, RESULT_LOSS_ID);
}

const char *tinker_future_saved_path(const tinker_future *f)
{
    return result_of(f, RESULT_SAVED_PATH);
}

const char *tinker_future_loaded_path(const tinker_future *f)
{
    return result_of(f, RESULT_LOADED_PATH);
}

const char *tinker_future_base_model(const tinker_future *f)
{
    return result_of(f, RESULT_BASE_MODEL);
}

const char *tinker_future_file(const tinker_future *f)
{
    return result_of(f, RESULT_FILE);
}

/* The handle becomes the caller's; free_result() then finds nothing.
 * The field is written without the lock: a future that is complete belongs to its user, and
 * taking twice at once is the user's to avoid. */
static void *take_result(tinker_future *f, enum result_kind kind)
{
    void *value = (void *)result_of(f, kind);
    if (value)
        f->value = NULL;
    return value;
}

tinker_training *tinker_future_take_training(tinker_future *f)
{
    return take_result(f, RESULT_TRAINING);
}

tinker_sampler *tinker_future_take_sampler(tinker_future *f)
{
    return take_result(f, RESULT_SAMPLER);
}

tinker_tokenizer *tinker_future_take_tokenizer(tinker_future *f)
{
    return take_result(f, RESULT_TOKENIZER);
}
