/* engine_thread.c - the one thread that computes: see engine_thread.h.
 *
 * Work comes in small slices: a micro-batch of a pass, one token of every sequence.
 * While training and sampling both have work, each gets its share of the time; among
 * passes the next slice is of the session that has had least, so a huge batch of one
 * does not stop another. */
#include "server/work/engine_thread.h"

#include <string.h>

#include "base/err.h"
#include "base/os.h"
#include "server/work/adapter_limit.h"
#include "server/work/sample.h"
#include "server/work/train.h"

enum { PASSES = 64 }; /* in progress at once */

struct engine_loop {
    struct server *s;
    struct weights_cache weights;
    struct sampling sampling;
    struct train_task tasks[PASSES];
    size_t n_tasks, turn;
    uint64_t drops;             /* of the server, when we last looked */
    double train_ns, sample_ns; /* weighted time each side has had */
};

static int64_t real_now_ns(void)
{
    return clock_now_ns(clock_real());
}

static void charge_training(struct engine_loop *d, struct session *session, int64_t ns)
{
    pthread_mutex_lock(&d->s->lock);
    session->used_ns += (uint64_t)ns;
    pthread_mutex_unlock(&d->s->lock);
    d->train_ns += (double)ns;
}

static void count_pass(struct server *s, struct model *m, bool in)
{
    pthread_mutex_lock(&s->lock);
    m->session->passes += in ? 1 : (size_t)-1;
    pthread_mutex_unlock(&s->lock);
}

/* Nothing here looks at the model or its session any more. */
static void unpin_model(struct server *s, struct model *m)
{
    pthread_mutex_lock(&s->lock);
    m->pins--;
    pthread_mutex_unlock(&s->lock);
}

/* Start what is ready until all task slots are taken.  Short requests end here. */
static bool start_training(struct engine_loop *d)
{
    struct server *s = d->s;
    bool running = d->n_tasks || d->sampling.active;
    d->sampling.yields = false;
    if (d->n_tasks == PASSES || (d->sampling.starves && running))
        return false;
    bool room = adapter_limit_has_space(s, &d->weights);
    pthread_mutex_lock(&s->lock);
    struct future *f = queue_next_train_locked(s, !room);
    d->sampling.yields = !room && !f && s->first_ready;
    struct model *m = f ? f->model : NULL;
    if (m)
        m->pins++;
    pthread_mutex_unlock(&s->lock);
    if (!f)
        return false;
    int64_t start = real_now_ns();
    bool task = train_start(s, &d->weights, f, &d->tasks[d->n_tasks]);
    if (task) {
        d->n_tasks++;
        count_pass(s, m, true);
    }
    charge_training(d, m->session, real_now_ns() - start);
    if (!task)
        unpin_model(s, m);
    return true;
}

/* The task of the session that has had least, in turn among its own.  Those that wait for
 * memory do not count while another one holds some. */
static size_t choose_task(struct engine_loop *d, bool *alone)
{
    size_t best = PASSES;
    *alone = true;
    for (size_t i = 0; i < d->n_tasks; i++)
        *alone = *alone && !d->tasks[i].pass;
    pthread_mutex_lock(&d->s->lock);
    for (size_t i = 1; i <= d->n_tasks; i++) {
        size_t at = (d->turn + i) % d->n_tasks;
        const struct train_task *t = &d->tasks[at];
        if (!t->pass && !*alone)
            continue;
        if (best == PASSES || t->f->session->used_ns < d->tasks[best].f->session->used_ns)
            best = at;
    }
    pthread_mutex_unlock(&d->s->lock);
    return best;
}

static void remove_task(struct engine_loop *d, size_t i, struct model *m)
{
    d->tasks[i] = d->tasks[--d->n_tasks];
    count_pass(d->s, m, false);
    unpin_model(d->s, m);
}

/* One slice of task i; false: it is over. */
static bool step_task(struct engine_loop *d, size_t i, bool alone)
{
    struct model *m = d->tasks[i].f->model;
    int64_t start = real_now_ns();
    bool more = train_step(d->s, &d->tasks[i], alone);
    int64_t ns = real_now_ns() - start;
    charge_training(d, m->session, ns);
    atomic_fetch_add(&d->s->counters.train_ns, (uint64_t)ns);
    if (!more)
        remove_task(d, i, m);
    return more;
}

static void step_training(struct engine_loop *d)
{
    bool alone;
    size_t i = choose_task(d, &alone);
    d->turn = i;
    if (step_task(d, i, alone))
        return;
    /* Memory was freed: who waits for it tries again. */
    for (i = d->n_tasks; i-- > 0;)
        if (!d->tasks[i].pass)
            step_task(d, i, false);
}

/* End the passes of sessions that ended. */
static void drop_training(struct engine_loop *d)
{
    struct server *s = d->s;
    pthread_mutex_lock(&s->lock);
    bool news = s->drops != d->drops;
    d->drops = s->drops;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = d->n_tasks; news && i-- > 0;) {
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
}

static void step_sampling(struct engine_loop *d)
{
    double share = d->s->opts.train_share;
    int64_t start = real_now_ns();
    sample_step(d->s, &d->sampling, &d->weights);
    int64_t ns = real_now_ns() - start;
    d->sample_ns += (double)ns * share / (1 - share);
    atomic_fetch_add(&d->s->counters.sample_ns, (uint64_t)ns);
}

/* Sleep until there is something to do; false: stop. */
static bool wait_for_work(struct engine_loop *d)
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

static bool samples_wait(struct engine_loop *d)
{
    pthread_mutex_lock(&d->s->lock);
    bool wait = d->sampling.active || d->s->waiting;
    pthread_mutex_unlock(&d->s->lock);
    return wait;
}

static void run_slice(struct engine_loop *d)
{
    while (start_training(d)) {
        /* Short requests must not keep samples waiting. */
        if (d->train_ns > d->sample_ns && samples_wait(d))
            break;
    }
    drop_training(d);
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

static void *run_engine_thread(void *arg)
{
    struct engine_loop d = { .s = arg };
    os_thread_name("engine");
    while (wait_for_work(&d))
        run_slice(&d);
    for (size_t i = 0; i < d.n_tasks; i++)
        train_abandon(&d.tasks[i]);
    sample_abandon(d.s, &d.sampling, &d.weights);
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
    s->stopping = true;
    pthread_cond_broadcast(&s->work_ready);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->engine_thread, NULL);
    s->engine_started = false;
}
