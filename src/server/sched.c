/* sched.c - the one thread that computes: see sched.h.
 *
 * Work comes in small slices: a micro-batch of a pass, one token of every sequence.
 * While training and sampling both have work, each gets its share of the time; among
 * passes, slices go round, so a huge batch of one model does not stop another. */
#include "server/sched.h"

#include <string.h>

#include "base/err.h"
#include "base/os.h"
#include "server/sample.h"
#include "server/train.h"

enum { PASSES = 4 }; /* passes in progress at once */

struct sched {
    struct server *s;
    struct weights_cache weights;
    struct sampling sampling;
    struct train_task tasks[PASSES];
    size_t n_tasks, turn;
    double train_ns, sample_ns; /* weighted time each side has had */
};

static int64_t now(void)
{
    return clock_now_ns(clock_real());
}

static void charge_model(struct server *s, struct model *m, int64_t ns)
{
    pthread_mutex_lock(&s->lock);
    m->session->used_ns += (uint64_t)ns;
    pthread_mutex_unlock(&s->lock);
}

/* Start what is ready until all task slots are taken.  Short requests end here. */
static bool start_training(struct sched *d)
{
    struct server *s = d->s;
    if (d->n_tasks == PASSES)
        return false;
    pthread_mutex_lock(&s->lock);
    struct future *f = queue_next_train_locked(s);
    pthread_mutex_unlock(&s->lock);
    if (!f)
        return false;
    struct model *m = f->model;
    int64_t start = now();
    if (train_start(s, &d->weights, f, &d->tasks[d->n_tasks]))
        d->n_tasks++;
    int64_t ns = now() - start;
    charge_model(s, m, ns);
    d->train_ns += (double)ns;
    return true;
}

static void step_training(struct sched *d)
{
    d->turn = (d->turn + 1) % d->n_tasks;
    struct train_task *t = &d->tasks[d->turn];
    struct model *m = t->f->model;
    int64_t start = now();
    bool more = train_step(d->s, t, d->n_tasks == 1);
    int64_t ns = now() - start;
    charge_model(d->s, m, ns);
    d->train_ns += (double)ns;
    atomic_fetch_add(&d->s->counters.train_ns, (uint64_t)ns);
    if (!more)
        d->tasks[d->turn] = d->tasks[--d->n_tasks];
}

static void step_sampling(struct sched *d)
{
    double share = d->s->opts.train_share;
    int64_t start = now();
    sample_step(d->s, &d->sampling, &d->weights);
    int64_t ns = now() - start;
    d->sample_ns += (double)ns * share / (1 - share);
    atomic_fetch_add(&d->s->counters.sample_ns, (uint64_t)ns);
}

/* Sleep until there is something to do; false: stop. */
static bool wait_for_work(struct sched *d)
{
    struct server *s = d->s;
    bool running = d->n_tasks || d->sampling.active;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && !running && !s->first_ready && !s->waiting &&
           s->drops == d->sampling.drops)
        pthread_cond_wait(&s->work_ready, &s->lock);
    bool go_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void run_slice(struct sched *d)
{
    while (start_training(d)) {
        /* Short requests must not keep samples waiting. */
        if (d->sampling.active && d->train_ns > d->sample_ns)
            break;
    }
    sample_drop(d->s, &d->sampling, &d->weights);
    sample_admit(d->s, &d->sampling, &d->weights);
    bool train = d->n_tasks > 0, sample = d->sampling.active > 0;
    if (train && (!sample || d->train_ns <= d->sample_ns))
        step_training(d);
    else if (sample)
        step_sampling(d);
    /* A side that had nothing to do earns no credit for it. */
    if (!train && d->train_ns < d->sample_ns)
        d->train_ns = d->sample_ns;
    if (!sample && d->sample_ns < d->train_ns)
        d->sample_ns = d->train_ns;
}

static void *run(void *arg)
{
    struct sched d = { .s = arg };
    os_thread_name("engine");
    while (wait_for_work(&d))
        run_slice(&d);
    for (size_t i = 0; i < d.n_tasks; i++)
        train_abandon(&d.tasks[i]);
    sample_abandon(d.s, &d.sampling, &d.weights);
    weights_clear(&d.weights);
    return NULL;
}

tinker_status sched_start(struct server *s, tinker_error *err)
{
    if (pthread_create(&s->engine_thread, NULL, run, s) != 0)
        return err_set(err, TINKER_ESTATE, "cannot start the engine thread");
    s->engine_started = true;
    return TINKER_OK;
}

void sched_stop(struct server *s)
{
    if (!s->engine_started)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work_ready);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->engine_thread, NULL);
    s->engine_started = false;
}
