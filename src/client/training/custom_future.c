/* custom_future.c - a custom loss in the background: forward pass, the user's function on a thread
 * of its own, backward pass.
 *
 *   caller: copies the data, submits both passes; the second has no bodies yet
 *   thread: waits for the first, runs the loss, writes the bodies, posts itself to the loop
 *   loop:   hands the bodies to the second, which may be in its turn already
 *
 * The job is shared by its thread and by the second pass.  job->op says whether that is alive; it
 * is written under the lock by the loop, so whoever finds it under the lock may post. */
#include <stdlib.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "base/array.h"
#include "base/err.h"
#include "client/training/custom.h"
#include "client/training/training_op.h"
#include "regularizer/evaluate.h"
#include "wire/check.h"
#include "wire/proto.h"

/* A job whose user code may still run. tinker_service_free() waits for those of its service. */
struct running {
    struct running *next;
    const void *session; /* only to tell services apart */
};

struct custom_job {
    atomic_int refs;
    struct running run;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct training_op *op;                   /* lock; the second pass, NULL: over */
    enum { JOB_NEW, JOB_GO, JOB_NONE } state; /* lock; is there anything to do? */
    struct loop *loop;
    struct loop_task task;
    struct hooks *hooks;
    /* the work: */
    struct arena arena;
    tinker_datum *data, *plain;
    size_t n;
    tinker_loss_fn *fn;
    void *fn_state;
    tinker_custom_options opts;
    tinker_future *forward;
    char *model_id;
    int64_t first_id;
    size_t *ends;
    size_t n_parts;
    /* what came of it: */
    struct buf *bodies;
    tinker_loss_report *report;
    struct custom_metrics *metrics;
    tinker_error err;
};

/* ---- how many run ------------------------------------------------------------------------ */

/* One list for the process: a service that is being freed cannot keep the list of those that
 * outlive it. */
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t running_changed = PTHREAD_COND_INITIALIZER;
static struct running *running; /* running_lock */

/* The user's function has returned, or will not be called. */
static void unregister_running(struct running *r)
{
    pthread_mutex_lock(&running_lock);
    struct running **at = &running;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    pthread_cond_broadcast(&running_changed);
    pthread_mutex_unlock(&running_lock);
}

/* Not on a library thread: the loss may be waiting for something that this thread does. */
void custom_jobs_wait(const void *session)
{
    pthread_mutex_lock(&running_lock);
    const struct running *r = session ? running : NULL;
    while (r) {
        if (r->session == session) { /* wait, and look at the whole list again */
            pthread_cond_wait(&running_changed, &running_lock);
            r = running;
        } else {
            r = r->next;
        }
    }
    pthread_mutex_unlock(&running_lock);
}

/* ---- life --------------------------------------------------------------------------------- */

/* Two references: the thread's (handed to deliver_bodies() when it posts) and the backward
 * pass's. */
static void job_unref(struct custom_job *j)
{
    if (!j || atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; j->bodies && i < j->n_parts; i++)
        buf_clear(&j->bodies[i]);
    tinker_future_free(j->forward);
    tinker_loss_report_free(j->report);
    custom_metrics_free(j->metrics);
    arena_clear(&j->arena);
    pthread_cond_destroy(&j->cond);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

/* How the data was cut, decided by the forward pass. A failed allocation shows as NULL in `ends`
 * or `bodies` and is reported by compute_gradient(), because here it is too late to refuse the
 * request. */
void custom_job_plan(struct custom_job *j, int64_t first_id, const size_t *ends, size_t n_parts)
{
    j->first_id = first_id;
    j->n_parts = n_parts;
    j->ends = arena_memdup(&j->arena, ends, n_parts * sizeof(*ends));
    j->bodies = arena_array(&j->arena, n_parts, sizeof(*j->bodies));
    for (size_t i = 0; j->bodies && i < n_parts; i++)
        buf_init(&j->bodies[i], SIZE_MAX / 4);
}

/* Which backward pass gets the bodies; NULL: none any more. */
void custom_job_bind(struct custom_job *j, struct training_op *backward)
{
    pthread_mutex_lock(&j->lock);
    j->op = backward;
    pthread_mutex_unlock(&j->lock);
}

/* The backward pass is going: it is not to be found any more, and its reference goes. */
void custom_job_leave(struct custom_job *j)
{
    if (!j)
        return;
    custom_job_bind(j, NULL);
    job_unref(j);
}

/* ---- a copy of the data --------------------------------------------------------------------- */

/* *p, n bytes, in the arena; false: no memory. */
static bool copy_bytes(struct arena *a, const void **p, size_t n)
{
    if (!*p)
        return true;
    *p = arena_memdup(a, *p, n);
    return *p != NULL;
}

/* A text in place of the caller's; a failed allocation shows in the arena and in the NULL that is
 * left. */
static bool copy_text(struct arena *a, const char **s)
{
    if (*s)
        *s = arena_strdup(a, *s);
    return true;
}

/* Everything a tensor points to. crow has one entry more than there are rows. */
static bool copy_tensor(struct arena *a, tinker_tensor *t)
{
    size_t rows = t->shape && t->ndim ? (size_t)t->shape[0] : 0;
    return copy_bytes(a, &t->data, t->n * wire_dtype_size(t->dtype)) &&
           copy_bytes(a, (const void **)&t->shape, t->ndim * sizeof(*t->shape)) &&
           copy_bytes(a, (const void **)&t->crow, (rows + 1) * sizeof(*t->crow)) &&
           copy_bytes(a, (const void **)&t->col, t->n * sizeof(*t->col));
}

static bool copy_chunk(struct arena *a, tinker_chunk *c)
{
    return copy_bytes(a, (const void **)&c->tokens, c->n_tokens * sizeof(*c->tokens)) &&
           copy_bytes(a, &c->bytes, c->n_bytes) && copy_text(a, &c->format) &&
           copy_text(a, &c->location);
}

/* The structs were copied by value; what they point to follows, so the casts write to our own
 * copies. */
static bool copy_datum(struct arena *a, tinker_datum *d)
{
    tinker_model_input *m = &d->model_input;
    if (!copy_bytes(a, (const void **)&m->chunks, m->n_chunks * sizeof(*m->chunks)) ||
        !copy_bytes(a, (const void **)&d->inputs, d->n_inputs * sizeof(*d->inputs)))
        return false;
    bool ok = true;
    for (size_t i = 0; ok && i < m->n_chunks; i++)
        ok = copy_chunk(a, (tinker_chunk *)&m->chunks[i]);
    for (size_t i = 0; ok && i < d->n_inputs; i++) {
        tinker_named_tensor *in = (tinker_named_tensor *)&d->inputs[i];
        in->name = arena_strdup(a, in->name);
        ok = in->name && copy_tensor(a, &in->tensor);
    }
    return ok;
}

/* The caller may free the data when the submit returns, and the loss reads it much later. */
static bool copy_data(struct custom_job *j, const tinker_datum *data, size_t n)
{
    j->data = arena_memdup(&j->arena, data, n * sizeof(*data));
    j->n = n;
    bool ok = j->data != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = copy_datum(&j->arena, &j->data[i]);
    if (ok)
        j->plain = custom_forward_data(&j->arena, j->data, n);
    return j->plain != NULL;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* The backward pass, cut as the forward pass was: its parts have these numbers and no others. */
static tinker_status write_bodies(struct custom_job *j, const tinker_datum *data, tinker_error *err)
{
    size_t from = 0;
    tinker_status s = TINKER_OK;
    for (size_t i = 0; s == TINKER_OK && i < j->n_parts; i++) {
        struct wire_forward_backward_request req = {
            .model_id = j->model_id,
            .seq_id = { 1, j->first_id + (int64_t)i + 1 },
            .data = data + from,
            .n_data = j->ends[i] - from,
            .loss = custom_cross_entropy,
            .shaped = true,
        };
        buf_reset(&j->bodies[i]);
        s = wire_encode_forward_backward_request(&req, &j->bodies[i], err);
        from = j->ends[i];
    }
    return s;
}

/* The work of the thread: logprobs of the forward pass, loss and gradient, bodies of the backward
 * pass. j->err has the reason of a failure. */
static tinker_status compute_gradient(struct custom_job *j)
{
    tinker_tensor *logprobs = arena_array(&j->arena, j->n, sizeof(*logprobs));
    if (!logprobs || !j->ends || !j->bodies)
        return err_nomem(&j->err, "logprobs");
    tinker_status s =
        custom_logprobs(tinker_future_forward_backward(j->forward), j->n, logprobs, &j->err);
    if (s != TINKER_OK)
        return s;
    j->report =
        custom_evaluate(j->hooks, j->fn, j->fn_state, j->data, logprobs, j->n, &j->opts, &j->err);
    if (!j->report)
        return j->err.status;
    const tinker_datum *weighted = custom_backward_data(&j->arena, j->data, j->report);
    j->metrics = custom_metrics_new(j->report->metrics, j->report->n_metrics);
    if (!weighted || !j->metrics)
        return err_nomem(&j->err, "gradients of a custom loss");
    return write_bodies(j, weighted, &j->err);
}

/* On the loop thread. From here on only this thread writes op->job, so the op found here is
 * alive. The order matters: the job lets go of the op before the op goes on, since going on may
 * end it. */
static void deliver_bodies(struct loop_task *t)
{
    struct custom_job *j = container_of(t, struct custom_job, task);
    struct training_op *op = j->op; /* written by this thread only, from now on */
    if (op && !op->op.future) {
        op = NULL; /* canceled; what is left of it will leave */
    } else if (op) {
        bool made = j->err.status == TINKER_OK;
        tinker_error err = j->err;
        for (size_t i = 0; made && i < j->n_parts; i++) {
            buf_clear(&op->parts[i].body);
            op->parts[i].body = j->bodies[i];
            memset(&j->bodies[i], 0, sizeof(j->bodies[i]));
        }
        training_op_count(op);
        op->overlay = j->metrics;
        op->op.future->report = j->report;
        j->metrics = NULL;
        j->report = NULL;
        custom_job_leave(j);
        op->job = NULL;
        if (made)
            training_op_resume(op);
        else
            training_op_refuse(op, &err); /* the next request fills its numbers: see seq_gap.h */
    }
    job_unref(j);
}

/* The thread of one loss. It starts before the passes are submitted, because starting a thread
 * may fail and a submitted pass cannot be taken back; JOB_NEW is the wait for that decision. It
 * may wait for the forward pass; once that is there it is marked as a library thread, and the
 * user's function, which could otherwise deadlock, may not wait. */
static void *run_job(void *arg)
{
    struct custom_job *j = arg;
    pthread_mutex_lock(&j->lock);
    while (j->state == JOB_NEW)
        pthread_cond_wait(&j->cond, &j->lock);
    bool go = j->state == JOB_GO;
    pthread_mutex_unlock(&j->lock);
    bool forwarded = go && tinker_future_wait(j->forward, -1, &j->err) == TINKER_OK;
    runtime_mark_thread();
    if (forwarded)
        compute_gradient(j);
    unregister_running(&j->run); /* the user's code is through */
    pthread_mutex_lock(&j->lock);
    bool posted = j->op != NULL;
    j->task.run = deliver_bodies;
    if (posted)
        loop_post(j->loop, &j->task);
    pthread_mutex_unlock(&j->lock);
    if (!posted)
        job_unref(j);
    return NULL;
}

/* ---- submitting, in the caller's thread -------------------------------------------------------- */

/* With both references; on failure both are given back. */
static struct custom_job *job_new(tinker_training *t, const tinker_datum *data, size_t n,
                                  const tinker_custom_options *opts, tinker_error *err)
{
    struct custom_job *j = calloc(1, sizeof(*j));
    if (!j) {
        err_nomem(err, "custom loss");
        return NULL;
    }
    atomic_init(&j->refs, 2);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->cond, NULL);
    arena_init(&j->arena, SIZE_MAX);
    j->loop = t->session->rt->loop;
    j->run.session = t->session;
    j->hooks = t->session->hooks;
    j->opts = *opts;
    j->model_id = arena_strdup(&j->arena, t->model_id);
    const tinker_regularizer *regs =
        arena_memdup(&j->arena, opts->regularizers, opts->n_regularizers * sizeof(*regs));
    j->opts.regularizers = opts->n_regularizers ? regs : NULL;
    if (j->model_id && copy_data(j, data, n) && (regs || !opts->n_regularizers))
        return j;
    err_nomem(err, "custom loss");
    job_unref(j);
    job_unref(j);
    return NULL;
}

/* Check, copy, start the thread, submit both passes with consecutive numbers, let the thread go. */
tinker_future *tinker_training_forward_backward_custom(tinker_training *t, const tinker_datum *data,
                                                       size_t n, tinker_loss_fn *fn, void *state,
                                                       const tinker_custom_options *opts,
                                                       tinker_error *err)
{
    tinker_custom_options ours;
    pthread_t thread;
    if (evaluate_check(opts, fn, &ours, err) != TINKER_OK ||
        custom_check(data, n, &ours, err) != TINKER_OK)
        return NULL;
    struct custom_job *j = job_new(t, data, n, &ours, err);
    if (!j)
        return NULL;
    j->fn = fn;
    j->fn_state = state;
    pthread_mutex_lock(&running_lock); /* before the thread starts, so that no moment is missed */
    j->run.next = running;
    running = &j->run;
    pthread_mutex_unlock(&running_lock);
    if (pthread_create(&thread, NULL, run_job, j) != 0) {
        unregister_running(&j->run);
        err_set(err, TINKER_ESTATE, "no thread for a custom loss");
        job_unref(j);
        job_unref(j);
        return NULL;
    }
    pthread_detach(thread);
    tinker_future *f = training_submit_custom(t, j->plain, n, j, &j->forward, err);
    if (!f && j->forward)
        tinker_future_cancel(j->forward);
    pthread_mutex_lock(&j->lock); /* the passes are submitted, or the thread has nothing to do */
    j->state = f ? JOB_GO : JOB_NONE;
    pthread_cond_signal(&j->cond);
    pthread_mutex_unlock(&j->lock);
    if (!f)
        job_unref(j); /* the second pass's */
    return f;
}
