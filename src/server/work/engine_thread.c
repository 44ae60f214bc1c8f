/* engine_thread.c - the one thread that computes: see engine_thread.h.
 *
 * Work comes in small slices: a micro-batch of a pass, one token of every sequence.
 * While training and sampling both have work, each gets its share of the time.  Among
 * passes the next slice goes to the session that has had least, so that a huge batch of
 * one session does not stop another.
 *
 * Thread: everything below but start and stop runs on the engine thread.  It takes
 * server.lock for moments only, never while it computes. */
#include "server/work/engine_thread.h"

#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/os.h"
#include "server/work/adapter_limit.h"
#include "server/sampling/sample.h"
#include "server/training/train.h"

enum { PASSES = 64 }; /* in progress at once */

/* What the engine thread remembers from slice to slice; on its stack. */
struct engine_loop {
    struct server *s;
    struct weights_cache weights; /* adapters loaded for sampling */
    struct sampling sampling;     /* samples in the generators */
    struct train_task tasks[PASSES];
    size_t n_tasks;
    size_t turn;     /* index of the task that ran last */
    uint64_t drops;  /* server.drops when we last looked */
    bool trimmed;    /* unused memory was given back since the last work */
    int64_t trim_ns; /* when memory that was unused for long last was */
    size_t tried;    /* sequences that ran when a pass last did not fit beside them */
    /* Virtual time of the two sides: the one with less runs next.  Sampling time is weighted
     * by train_share / (1 - train_share), so equal values mean that each had its share. */
    double train_ns, sample_ns;
};

/* Durations are measured with the real clock even when tests fake the server's. */
static int64_t real_now_ns(void)
{
    return clock_now_ns(clock_real());
}

/* Account ns of engine time to the session and to the training side. */
static void charge_training(struct engine_loop *d, struct session *session, int64_t ns)
{
    pthread_mutex_lock(&d->s->lock);
    session->used_ns += (uint64_t)ns;
    pthread_mutex_unlock(&d->s->lock);
    d->train_ns += (double)ns;
}

/* Start the next training request.  A short one (optimizer step, save, load) also ends here; a
 * pass becomes a task that needs slices.  false: nothing could be started. */
static bool start_training(struct engine_loop *d)
{
    struct server *s = d->s;
    bool running = d->n_tasks || d->sampling.active;
    d->sampling.yields = false;
    /* A sample that waits for an adapter goes first, unless nothing runs whose end would free
     * one: then training has to go on, or nobody would. */
    if (d->n_tasks == PASSES || (d->sampling.starves && running))
        return false;
    bool has_space = adapter_limit_has_space(s, &d->weights);
    pthread_mutex_lock(&s->lock);
    struct future *f = queue_next_train_locked(s, !has_space);
    /* Models are ready, but all need an adapter: admit no more samples that would take one. */
    d->sampling.yields = !has_space && !f && s->first_ready;
    struct model *m = f ? f->model : NULL;
    if (m)
        m->pins++; /* f is gone once it has finished, its model must not be */
    pthread_mutex_unlock(&s->lock);
    if (!f)
        return false;
    /* Without the lock: the request may compute and write files for seconds. */
    int64_t start = real_now_ns();
    bool is_task = train_start(s, &d->weights, f, &d->tasks[d->n_tasks]);
    charge_training(d, m->session, real_now_ns() - start);
    if (is_task)
        d->n_tasks++;
    pthread_mutex_lock(&s->lock);
    if (is_task)
        m->session->passes++;
    else
        m->pins--;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Task i is over.  m is its model; the future may be freed already. */
static void remove_task(struct engine_loop *d, size_t i, struct model *m)
{
    d->tasks[i] = d->tasks[--d->n_tasks];
    pthread_mutex_lock(&d->s->lock);
    m->session->passes--;
    m->pins--;
    pthread_mutex_unlock(&d->s->lock);
}

/* Run one slice of task i; false: it is over.  alone: see train_step(). */
static bool step_task(struct engine_loop *d, size_t i, bool alone)
{
    struct model *m = d->tasks[i].f->model;
    int64_t start = real_now_ns();
    bool more = train_step(d->s, &d->tasks[i], alone);
    int64_t ns = real_now_ns() - start;
    charge_training(d, m->session, ns);
    live_count(&d->s->counters.train_ns, &m->session->tenant->counters.train_ns, (uint64_t)ns);
    if (!more)
        remove_task(d, i, m);
    return more;
}

static bool has_pass(const struct engine_loop *d)
{
    for (size_t i = 0; i < d->n_tasks; i++)
        if (d->tasks[i].pass)
            return true;
    return false;
}

/* Does training have work?  A pass that does not fit beside the samples is tried again when some of
 * them are done; until then no more are admitted. */
static bool can_train(struct engine_loop *d)
{
    if (!d->n_tasks || has_pass(d))
        d->tried = SIZE_MAX;
    bool can = d->n_tasks && (!d->sampling.active || d->sampling.active < d->tried);
    d->sampling.drains = d->n_tasks && !can;
    return can;
}

/* One slice for the task of the session that has had least engine time. */
static void step_training(struct engine_loop *d)
{
    size_t best = PASSES;
    /* A task without a pass waits for memory.  It is only tried while no other task holds
     * some; if it then fails for lack of memory beside no samples either, it never fits. */
    bool wait = !has_pass(d), alone = wait && !d->sampling.active;
    pthread_mutex_lock(&d->s->lock);
    /* Start behind the task that ran last, so that the tasks of one session take turns. */
    for (size_t i = 1; i <= d->n_tasks; i++) {
        size_t at = (d->turn + i) % d->n_tasks;
        const struct train_task *t = &d->tasks[at];
        if (!t->pass && !wait)
            continue;
        if (best == PASSES || t->f->session->used_ns < d->tasks[best].f->session->used_ns)
            best = at;
    }
    pthread_mutex_unlock(&d->s->lock);
    d->turn = best;
    if (step_task(d, best, alone)) {
        if (!d->tasks[best].pass)
            d->tried = d->sampling.active;
        return;
    }
    /* The task is over and its memory free: the tasks that wait for some try again.  Backward,
     * because removing one moves the last task into its place. */
    for (size_t i = d->n_tasks; i-- > 0;)
        if (!d->tasks[i].pass)
            step_task(d, i, false);
}

/* One round: start what can be started, then compute one slice of training or sampling. */
static void run_slice(struct engine_loop *d)
{
    struct server *s = d->s;
    while (start_training(d)) {
        pthread_mutex_lock(&s->lock);
        bool samples_wait = d->sampling.active || s->waiting;
        pthread_mutex_unlock(&s->lock);
        /* A row of short requests must not keep samples waiting beyond training's share. */
        if (d->train_ns > d->sample_ns && samples_wait)
            break;
    }
    /* Sessions have ended since the last look?  End their passes; backward, because removing a
     * task moves the last one into its place. */
    pthread_mutex_lock(&s->lock);
    bool changed = s->drops != d->drops;
    d->drops = s->drops;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = d->n_tasks; changed && i-- > 0;) {
        struct future *f = d->tasks[i].f;
        struct model *m = f->model;
        pthread_mutex_lock(&s->lock);
        bool expired = m->session->expired;
        pthread_mutex_unlock(&s->lock);
        if (!expired)
            continue;
        train_abandon(&d->tasks[i]);
        future_fail(s, f, TINKER_CATEGORY_USER, "the session has expired");
        remove_task(d, i, m);
    }
    sample_drop(s, &d->sampling, &d->weights);
    sample_admit(s, &d->sampling, &d->weights);
    bool train = can_train(d), sample = d->sampling.active > 0;
    if (train && (!sample || d->train_ns <= d->sample_ns)) {
        step_training(d);
    } else if (sample) {
        double share = s->opts.train_share;
        int64_t start = real_now_ns();
        sample_step(s, &d->sampling, &d->weights);
        int64_t ns = real_now_ns() - start;
        d->sample_ns += (double)ns * share / (1 - share);
        atomic_fetch_add(&s->counters.sample_ns, (uint64_t)ns);
    }
    /* A side that had nothing to do earns no credit: it starts level when it has work again. */
    if (!train && d->train_ns < d->sample_ns)
        d->train_ns = d->sample_ns;
    if (!sample && d->sample_ns < d->train_ns)
        d->sample_ns = d->train_ns;
}

/* Wait for a signal; ETIMEDOUT: nothing came for so long that unused memory should go. */
static int wait_for_work_locked(struct engine_loop *d)
{
    struct server *s = d->s;
    struct timespec until;
    if (d->trimmed)
        return pthread_cond_wait(&s->work_ready, &s->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += s->opts.idle_memory_s;
    return pthread_cond_timedwait(&s->work_ready, &s->lock, &until);
}

/* The generator belongs to this thread; others read what it holds from here. */
static void publish_memory(struct server *s)
{
    for (size_t i = 0; i < s->n_bases; i++)
        atomic_store(&s->bases[i].kv_bytes, tinker_generator_memory(s->bases[i].generator));
}

/* Cached prefixes are worth their memory only while somebody samples. */
static void give_memory_back(struct engine_loop *d)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->s->n_bases; i++)
        bytes += tinker_generator_trim(d->s->bases[i].generator, 0);
    os_memory_return();
    d->trimmed = true;
    publish_memory(d->s);
    if (bytes)
        log_line(d->s->log, LOG_INFO, "idle: %llu bytes of cached prefixes given back",
                 (unsigned long long)bytes);
}

/* While others sample: cached prefixes that nobody came back to.  So what a busy server keeps is
 * what a minute of prompts takes, not all that the limit allows. */
static void give_old_memory_back(struct engine_loop *d)
{
    int64_t unused_ms = d->s->opts.idle_memory_s * 1000, now = real_now_ns();
    if (unused_ms <= 0 || now - d->trim_ns < unused_ms * 1000000 / 4)
        return;
    d->trim_ns = now;
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->s->n_bases; i++)
        bytes += tinker_generator_trim(d->s->bases[i].generator, unused_ms);
    if (bytes)
        os_memory_return();
}

static void *run_engine_thread(void *arg)
{
    struct server *s = arg;
    struct engine_loop d = { .s = s, .tried = SIZE_MAX };
    os_thread_name("engine");
    for (;;) {
        bool running = d.n_tasks || d.sampling.active;
        pthread_mutex_lock(&s->lock);
        /* Sleep while nothing runs, waits or was canceled.  Whoever changes one of these signals
         * work_ready under the lock. */
        int waited = 0;
        while (!s->stopping && !running && !s->first_ready && !s->waiting &&
               s->drops == d.sampling.drops && waited == 0)
            waited = wait_for_work_locked(&d);
        bool stopping = s->stopping;
        pthread_mutex_unlock(&s->lock);
        if (stopping)
            break;
        if (waited != 0) {
            give_memory_back(&d);
            continue;
        }
        d.trimmed = false;
        run_slice(&d);
        give_old_memory_back(&d);
        publish_memory(s);
    }
    /* Unfinished passes stay in the journal and run again after the restart; samples are lost. */
    for (size_t i = 0; i < d.n_tasks; i++)
        train_abandon(&d.tasks[i]);
    sample_abandon(s, &d.sampling, &d.weights);
    weights_clear(&d.weights);
    return NULL;
}

tinker_status engine_thread_start(struct server *s, tinker_error *err)
{
    if (pthread_create(&s->engine_thread, NULL, run_engine_thread, s) != 0)
        return err_set(err, TINKER_ESTATE, "cannot start the engine thread");
    s->engine_started = true;
    return TINKER_OK;
}

void engine_thread_stop(struct server *s)
{
    if (!s->engine_started)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true; /* seen after the slice that runs now */
    pthread_cond_broadcast(&s->work_ready);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->engine_thread, NULL);
    s->engine_started = false;
}
