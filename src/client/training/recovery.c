/* recovery.c - watching runs, and recovering those that the service calls corrupted.
 *
 *   WATCHED --interval--> POLLED --corrupted--> QUEUED --a place is free--> RECOVERING
 *      ^----- not corrupted, or no answer ----'      ^--- delay --- DELAYED <-- failed --'
 *
 * Everything is on the loop thread; the public functions go there and wait, which is safe
 * because the loop never waits. */
#include "client/training/recovery.h"

#include <stdlib.h>
#include <string.h>
#include <tinker/rest.h>
#include <tinker/training.h>
#include <tinker/extra/recovery.h>
#include <unistd.h>
#include "base/array.h"
#include "base/err.h"
#include "client/training/recovery_callback.h"
#include "client/future/future.h"
#include "client/session/service.h"

/* Where a run stands; see the diagram above. In WATCHED and DELAYED the timer runs, in POLLED and
 * RECOVERING there is a future, in QUEUED neither. */
enum run_state { WATCHED, POLLED, QUEUED, RECOVERING, DELAYED };

/* A run that is watched or recovered. Everything of it belongs to the loop thread. */
struct run {
    struct run *next;
    struct tinker_recovery *recovery;
    enum run_state state;
    char *id;
    char *given; /* the checkpoint to start from, NULL: to be found out */
    char *path;  /* the one of this attempt */
    tinker_training *old;
    int attempt;
    uint64_t queued; /* order of the queue */
    struct timer timer;
    tinker_future *future; /* of the request under way */
};

struct tinker_recovery {
    tinker_service *service;
    tinker_rest *rest;
    tinker_recovery_options policy;
    char *checkpoint; /* of the policy */
    struct recovery_callback *callback;
    struct run *runs;
    int recovering;
    bool starting;
    uint64_t next_queued;
};

static void start_next(tinker_recovery *r);

/* ---- the policy ---------------------------------------------------------------------------- */

/* The user's options over the defaults. A number that makes no sense means the default, as in the
 * reference; a strategy that needs a checkpoint and has none falls back to the latest. */
tinker_status recovery_policy(tinker_recovery_options *ours, const tinker_recovery_options *theirs,
                              tinker_error *err)
{
    const tinker_recovery_options dflt = TINKER_RECOVERY_OPTIONS_INIT;
    *ours = dflt;
    tinker_status s = opts_copy(ours, sizeof(*ours), theirs, "tinker_recovery_options", err);
    if (s != TINKER_OK)
        return s;
    if (ours->strategy == TINKER_RECOVERY_BEST)
        return err_set(err, TINKER_EINVAL, "recovery from the best checkpoint is not supported");
    if (ours->max_attempts <= 0)
        ours->max_attempts = dflt.max_attempts;
    if (ours->backoff_ms <= 0)
        ours->backoff_ms = dflt.backoff_ms;
    if (ours->max_backoff_ms <= 0)
        ours->max_backoff_ms = dflt.max_backoff_ms;
    if (ours->poll_interval_ms <= 0)
        ours->poll_interval_ms = dflt.poll_interval_ms;
    if (ours->max_concurrent <= 0)
        ours->max_concurrent = dflt.max_concurrent;
    if (ours->attempt_timeout_ms <= 0)
        ours->attempt_timeout_ms = dflt.attempt_timeout_ms;
    if (ours->strategy != TINKER_RECOVERY_SPECIFIC || !ours->checkpoint || !*ours->checkpoint)
        ours->strategy = TINKER_RECOVERY_LATEST;
    return TINKER_OK;
}

/* backoff_ms * 2^(k-1), at most max_backoff_ms; doubling stops before it could overflow. */
int64_t recovery_delay_ms(const tinker_recovery_options *p, int k)
{
    int64_t delay = p->backoff_ms;
    while (--k > 0 && delay < p->max_backoff_ms)
        delay = delay > INT64_MAX / 2 ? INT64_MAX : delay * 2;
    return delay < p->max_backoff_ms ? delay : p->max_backoff_ms;
}

/* ---- telling --------------------------------------------------------------------------------- */

/* One event of the story of a run, with what is known at this point; NULL texts are left out. */
static void send_recovery_event(const struct run *run, const char *name, const char *model_id,
                                const tinker_error *err)
{
    const tinker_recovery *r = run->recovery;
    struct event *e = event_new(&r->service->hooks, name);
    event_number(e, "attempt", run->attempt);
    event_text(e, "run_id", run->id);
    event_text(e, "strategy", r->policy.strategy == TINKER_RECOVERY_LATEST ? "latest" : "specific");
    event_text(e, "checkpoint", run->path ? run->path : run->given);
    event_text(e, "model_id", model_id);
    event_text(e, "error", err ? err->message : NULL);
    event_send(e);
}

/* ---- runs -------------------------------------------------------------------------------------- */

/* Programs watch a handful of runs: a list will do. */
static struct run *run_find(tinker_recovery *r, const char *id)
{
    struct run *run = r->runs;
    while (run && strcmp(run->id, id) != 0)
        run = run->next;
    return run;
}

static struct run *run_add(tinker_recovery *r, const char *id)
{
    struct run *run = calloc(1, sizeof(*run));
    if (run)
        run->id = strdup(id);
    if (!run || !run->id) {
        free(run);
        return NULL;
    }
    run->recovery = r;
    run->next = r->runs;
    r->runs = run;
    return run;
}

/* Stop what is under way; nothing of it comes back. `notify` goes first, because canceling
 * completes the future. */
static void run_stop(struct run *run)
{
    loop_disarm(run->recovery->service->rt->loop, &run->timer);
    if (!run->future)
        return;
    run->future->notify = NULL;
    tinker_future_cancel(run->future);
    tinker_future_free(run->future);
    run->future = NULL;
}

/* Stop it and forget it. The caller must not touch the run afterwards. */
static void run_remove(struct run *run)
{
    run_stop(run);
    for (struct run **at = &run->recovery->runs; *at; at = &(*at)->next)
        if (*at == run) {
            *at = run->next;
            break;
        }
    free(run->id);
    free(run->given);
    free(run->path);
    free(run);
}

/* Have notify called when f is complete, at the latest after timeout_ms; false: there is no f.
 * Futures complete on the loop thread, which is this one, so setting notify after submitting
 * cannot be too late. */
static bool watch_future(struct run *run, tinker_future *f, int64_t timeout_ms,
                         void (*notify)(tinker_future *f, void *state))
{
    if (!f)
        return false;
    run->future = f;
    f->notify = notify; /* on the loop thread, where it would be called: not too late */
    f->notify_state = run;
    tinker_future_set_deadline(f, timeout_ms);
    return true;
}

/* Ask the service about a run. */
static bool request_run_info(struct run *run, int64_t timeout_ms,
                             void (*notify)(tinker_future *f, void *state), tinker_error *err)
{
    tinker_future *f =
        tinker_rest_get_training_run(run->recovery->rest, run->id, TINKER_SCOPE_OWNED, err);
    return watch_future(run, f, timeout_ms, notify);
}

/* ---- recovering ---------------------------------------------------------------------------------- */

/* Recoveries start in the order in which they were asked for. */
static void enqueue_recovery(struct run *run)
{
    run->state = QUEUED;
    run->queued = run->recovery->next_queued++;
    start_next(run->recovery);
}

static void on_delay_over(struct timer *t)
{
    enqueue_recovery(container_of(t, struct run, timer));
}

/* RECOVERING -> DELAYED, or the end of it: told to the hooks, then to the user. Either way a
 * place is free for another run. */
static void attempt_failed(struct run *run, const tinker_error *err)
{
    tinker_recovery *r = run->recovery;
    r->recovering--;
    send_recovery_event(run, "recovery.failed", NULL, err);
    if (run->attempt >= r->policy.max_attempts) {
        send_recovery_event(run, "recovery.exhausted", NULL, err);
        recovery_callback_failed(r->callback, run->id, err);
        run_remove(run);
    } else {
        run->state = DELAYED;
        run->timer.fire = on_delay_over;
        loop_arm(r->service->rt->loop, &run->timer, recovery_delay_ms(&r->policy, run->attempt));
    }
    start_next(r);
}

/* There is a new training client, or none. The callback owns it from now on; the run is not
 * watched any more, since its successor has another id. */
static void on_created(tinker_future *f, void *state)
{
    struct run *run = state;
    tinker_recovery *r = run->recovery;
    tinker_error err;
    run->future = NULL; /* freed below */
    tinker_training *t =
        tinker_future_wait(f, 0, &err) == TINKER_OK ? tinker_future_take_training(f) : NULL;
    tinker_future_free(f);
    if (!t) {
        attempt_failed(run, &err);
        return;
    }
    send_recovery_event(run, "recovery.client_created", tinker_training_model_id(t), NULL);
    send_recovery_event(run, "recovery.completed", tinker_training_model_id(t), NULL);
    recovery_callback_recovered(r->callback, run->id, run->old, t, run->path);
    r->recovering--;
    run_remove(run);
    start_next(r);
}

/* Second half of an attempt: a new training client from this checkpoint, within
 * attempt_timeout_ms. */
static void create_client(struct run *run, const char *checkpoint)
{
    const tinker_recovery *r = run->recovery;
    tinker_from_state_options opts = TINKER_FROM_STATE_OPTIONS_INIT;
    tinker_error err;
    free(run->path);
    run->path = strdup(checkpoint);
    if (!run->path) {
        err_nomem(&err, "checkpoint");
        attempt_failed(run, &err);
        return;
    }
    send_recovery_event(run, "recovery.checkpoint_selected", NULL, NULL);
    opts.optimizer = r->policy.restore_optimizer != 0;
    tinker_future *f = tinker_service_request_from_state(r->service, run->path, &opts, &err);
    if (!watch_future(run, f, r->policy.attempt_timeout_ms, on_created))
        attempt_failed(run, &err);
}

/* First half of an attempt without a given checkpoint: the last one that the service knows of. */
static void on_fetched(tinker_future *f, void *state)
{
    struct run *run = state;
    tinker_error err;
    run->future = NULL; /* freed below */
    const tinker_training_run *info =
        tinker_future_wait(f, 0, &err) == TINKER_OK ? tinker_future_training_run(f) : NULL;
    if (info && info->last_checkpoint)
        create_client(run, info->last_checkpoint->path);
    else {
        if (info)
            err_set(&err, TINKER_ESTATE, "training run %s: missing checkpoint", run->id);
        attempt_failed(run, &err);
    }
    tinker_future_free(f);
}

/* QUEUED -> RECOVERING. */
static void begin_attempt(struct run *run)
{
    tinker_recovery *r = run->recovery;
    tinker_error err;
    run->state = RECOVERING;
    run->attempt++;
    r->recovering++;
    send_recovery_event(run, "recovery.started", NULL, NULL);
    if (run->given)
        create_client(run, run->given);
    else if (!request_run_info(run, r->policy.attempt_timeout_ms, on_fetched, &err))
        attempt_failed(run, &err);
}

/* An attempt that fails at once comes back here; the loop that began it sees to the rest. */
static void start_next(tinker_recovery *r)
{
    struct run *run;
    if (r->starting)
        return;
    r->starting = true;
    do { /* the run that has been waiting longest, as long as there is a place */
        run = NULL;
        for (struct run *at = r->runs; at; at = at->next)
            if (at->state == QUEUED && (!run || at->queued < run->queued))
                run = at;
        if (run && r->recovering < r->policy.max_concurrent)
            begin_attempt(run);
        else
            run = NULL;
    } while (run);
    r->starting = false;
}

/* What to recover the run from: a specific checkpoint of the policy beats the one at hand, and
 * without either the attempt asks. Replaces what was chosen before only when there is memory.
 * false: no memory. */
static bool choose_checkpoint(struct run *run, const char *checkpoint)
{
    const tinker_recovery *r = run->recovery;
    if (r->policy.strategy == TINKER_RECOVERY_SPECIFIC)
        checkpoint = r->checkpoint;
    char *given = checkpoint ? strdup(checkpoint) : NULL;
    if (checkpoint && !given)
        return false;
    free(run->given);
    run->given = given;
    return true;
}

/* ---- watching ------------------------------------------------------------------------------------ */

static void poll_run(struct timer *t);

/* -> WATCHED: the next look is one interval from now, not from the last answer's time, so that a
 * slow service is not asked more often. */
static void schedule_poll(struct run *run)
{
    const tinker_recovery *r = run->recovery;
    run->state = WATCHED;
    run->timer.fire = poll_run;
    loop_arm(r->service->rt->loop, &run->timer, r->policy.poll_interval_ms);
}

/* A look that fails is no sign of corruption: it is reported, and watching goes on. */
static void report_poll_error(struct run *run, const tinker_error *err)
{
    send_recovery_event(run, "recovery.poll_error", NULL, err);
    schedule_poll(run);
}

/* POLLED -> WATCHED or QUEUED. Without memory to remember the checkpoint the run is looked at
 * again, as if it were well. */
static void on_run_polled(tinker_future *f, void *state)
{
    struct run *run = state;
    tinker_error err;
    run->future = NULL; /* freed below */
    const tinker_training_run *info =
        tinker_future_wait(f, 0, &err) == TINKER_OK ? tinker_future_training_run(f) : NULL;
    if (!info)
        report_poll_error(run, &err);
    else if (!info->corrupted)
        schedule_poll(run);
    else {
        const char *last = info->last_checkpoint ? info->last_checkpoint->path : NULL;
        if (choose_checkpoint(run, last)) {
            send_recovery_event(run, "recovery.detected", NULL, NULL);
            enqueue_recovery(run);
        } else
            schedule_poll(run);
    }
    tinker_future_free(f);
}

/* WATCHED -> POLLED, from the timer. A look may take no longer than an interval. */
static void poll_run(struct timer *t)
{
    struct run *run = container_of(t, struct run, timer);
    tinker_error err;
    run->state = POLLED;
    if (!request_run_info(run, run->recovery->policy.poll_interval_ms, on_run_polled, &err))
        report_poll_error(run, &err);
}

/* ---- public: over to the loop thread ---------------------------------------------------------------- */

/* A call of the user on its way to the loop thread; lives on the stack of the caller, who waits. */
struct request {
    tinker_recovery *recovery;
    const char *run_id, *checkpoint;
    tinker_training *old;
    bool now; /* start, do not watch */
    bool found;
    tinker_status status;
    tinker_error err;
};

/* Watch or recover. A run may be watched again, or recovered while it is watched, but not
 * recovered twice at once. */
static void admit_on_loop(void *arg)
{
    struct request *q = arg;
    struct run *run = run_find(q->recovery, q->run_id);
    if (run && run->state != WATCHED && run->state != POLLED) {
        q->status =
            err_set(&q->err, TINKER_ESTATE, "training run %s: its recovery is pending", q->run_id);
        return;
    }
    if (!run)
        run = run_add(q->recovery, q->run_id);
    if (!run) {
        q->status = err_nomem(&q->err, "recovery");
        return;
    }
    run->old = q->old;
    run_stop(run);
    if (!q->now)
        schedule_poll(run);
    else if (choose_checkpoint(run, q->checkpoint))
        enqueue_recovery(run);
    else {
        q->status = err_nomem(&q->err, "recovery");
        run_remove(run);
    }
}

/* Everything that can be refused without the loop thread is refused here. */
static tinker_status admit_run(struct request *q, tinker_error *err)
{
    const tinker_recovery *r = q->recovery;
    if (!q->run_id || !*q->run_id)
        return err_set(err, TINKER_EINVAL, "a recovery needs the id of a training run");
    if (!r->policy.enabled)
        return err_set(err, TINKER_ESTATE, "recovery is disabled: the policy does not say enabled");
    if (r->service->rt->pid != getpid())
        return err_set(err, TINKER_ESTATE, "the service was made before fork()");
    runtime_sync(r->service->rt, admit_on_loop, q);
    if (q->status != TINKER_OK && err)
        *err = q->err;
    return q->status;
}

tinker_status tinker_recovery_watch(tinker_recovery *r, const char *run_id, tinker_training *old,
                                    tinker_error *err)
{
    struct request q = { .recovery = r, .run_id = run_id, .old = old };
    return admit_run(&q, err);
}

tinker_status tinker_recovery_start(tinker_recovery *r, const char *run_id, const char *checkpoint,
                                    tinker_training *old, tinker_error *err)
{
    struct request q = {
        .recovery = r, .run_id = run_id, .checkpoint = checkpoint, .old = old, .now = true
    };
    return admit_run(&q, err);
}

/* Only a run that is watched: a recovery that has begun goes on. */
static void unwatch_on_loop(void *arg)
{
    struct request *q = arg;
    struct run *run = run_find(q->recovery, q->run_id);
    q->found = run && (run->state == WATCHED || run->state == POLLED);
    if (q->found)
        run_remove(run);
}

int tinker_recovery_unwatch(tinker_recovery *r, const char *run_id)
{
    struct request q = { .recovery = r, .run_id = run_id };
    if (r->service->rt->pid == getpid())
        runtime_sync(r->service->rt, unwatch_on_loop, &q);
    return q.found;
}

static void recovery_destroy(tinker_recovery *r)
{
    tinker_rest_free(r->rest);
    recovery_callback_unref(r->callback);
    free(r->checkpoint);
    free(r);
}

tinker_recovery *tinker_recovery_new(tinker_service *s, const tinker_recovery_options *policy,
                                     tinker_error *err)
{
    tinker_recovery_options ours;
    if (recovery_policy(&ours, policy, err) != TINKER_OK)
        return NULL;
    tinker_recovery *r = calloc(1, sizeof(*r));
    if (!r) {
        err_nomem(err, "recovery");
        return NULL;
    }
    r->service = s->base;
    r->policy = ours;
    r->policy.checkpoint = r->checkpoint = ours.checkpoint ? strdup(ours.checkpoint) : NULL;
    r->callback = recovery_callback_new(s->base->rt, &ours);
    r->rest = tinker_service_create_rest(s, err);
    if (r->rest && r->callback && (r->checkpoint || !ours.checkpoint))
        return r;
    if (r->rest)
        err_nomem(err, "recovery");
    recovery_destroy(r);
    return NULL;
}

static void stop_on_loop(void *arg)
{
    tinker_recovery *r = arg;
    while (r->runs)
        run_remove(r->runs);
}

void tinker_recovery_free(tinker_recovery *r)
{
    if (!r)
        return;
    struct runtime *rt = r->service->rt;
    if (rt->pid == getpid()) {
        runtime_sync(rt, stop_on_loop, r);
        recovery_callback_close(r->callback);
    }
    recovery_destroy(r);
}
