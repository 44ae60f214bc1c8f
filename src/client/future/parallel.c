/* parallel.c - see <tinker/extra/parallel.h>.
 *
 * Everything runs in the caller's thread; a completion queue of its own tells it which item is
 * over.  At most max_concurrency items have been started and not come back. */
#include <tinker/extra/parallel.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "client/future/future.h"
#include "client/io/runtime.h"

/* Milliseconds between two looks at the canceller, which has no way to wake a waiting
 * thread. */
enum { CHECK_MS = 50 };

/* Shared by the thread that runs and the ones that may cancel; nothing but this flag. */
struct tinker_canceler {
    atomic_bool wanted;
};

struct item {
    tinker_future *future; /* owned */
    tinker_error *err;     /* of a submission that failed, owned */
};

/* Why what was not over is over. */
enum ending { RUNNING, TIMED_OUT, CANCELED };

/* The report: all items in the order of their numbers, with what became of each.  Read by one
 * thread after the run. */
struct tinker_parallel {
    size_t n, started, failed;
    enum ending ending;
    int64_t timeout_ms;
    struct item items[];
};

/* One call of tinker_parallel_run(). */
struct run {
    tinker_parallel *m;
    tinker_queue *queue;
    const tinker_parallel_options *how;
    tinker_parallel_submit_fn *submit;
    void *state;
    size_t running, max;
    int64_t deadline_ms; /* -1: none */
};

/* ---- what came of it ---------------------------------------------------------------------- */

/* For an item that was never started or was canceled by us.
 * One reason for all of them: which item was under way when time ran out is chance. */
static tinker_status unfinished_status(const tinker_parallel *m, size_t i, tinker_error *err)
{
    if (m->ending == TIMED_OUT)
        return err_set(err, TINKER_ETIMEDOUT, "item %zu: all items together had %lld ms", i,
                       (long long)m->timeout_ms);
    return err_set(err, TINKER_ECANCELED, "item %zu: the rest of the items was canceled", i);
}

tinker_status tinker_parallel_status(const tinker_parallel *m, size_t i, tinker_error *err)
{
    if (i >= m->n)
        return err_set(err, TINKER_EINVAL, "there are %zu items, and no item %zu", m->n, i);
    const struct item *item = &m->items[i];
    if (item->err && err)
        *err = *item->err;
    if (item->err)
        return item->err->status;
    if (!item->future)
        return unfinished_status(m, i, err);
    /* A wait of 0 only looks; every future is complete when the run has ended. */
    tinker_status s = tinker_future_wait(item->future, 0, err);
    /* A cancel of ours is reported with its reason. */
    bool ours = s == TINKER_ECANCELED || !tinker_future_done(item->future);
    return ours && m->ending != RUNNING ? unfinished_status(m, i, err) : s;
}

const tinker_future *tinker_parallel_future(const tinker_parallel *m, size_t i)
{
    return i < m->n ? m->items[i].future : NULL;
}

const tinker_sample *tinker_parallel_sample(const tinker_parallel *m, size_t i)
{
    return tinker_future_sample(tinker_parallel_future(m, i));
}

size_t tinker_parallel_failed(const tinker_parallel *m)
{
    return m->failed;
}

void tinker_parallel_free(tinker_parallel *m)
{
    for (size_t i = 0; m && i < m->n; i++) {
        tinker_future_free(m->items[i].future);
        free(m->items[i].err);
    }
    free(m);
}

/* ---- running ------------------------------------------------------------------------------- */

/* Item i is over.
 * The callback sees items in order of completion, in the caller's thread, and may end the run. */
static void finish_item(struct run *r, size_t i)
{
    tinker_parallel *m = r->m;
    tinker_error err;
    bool ok = tinker_parallel_status(m, i, &err) == TINKER_OK;
    m->failed += !ok;
    /* Called for failures of a submission as well, so every started item is reported exactly
     * once. */
    bool enough = r->how->on_item && r->how->on_item(i, m->items[i].future, ok ? NULL : &err,
                                                     r->how->on_item_state) != 0;
    if ((enough || (!ok && r->how->stop_on_error)) && m->ending == RUNNING)
        m->ending = CANCELED;
}

/* A submission that fails is an item that failed; the others go on.
 * `no_memory` stands in `err` until the callback writes it: a submit function that returns NULL
 * without an error is reported as this. */
static void start_item(struct run *r)
{
    static const tinker_error no_memory = { .status = TINKER_ENOMEM, .message = "out of memory" };
    size_t i = r->m->started++;
    struct item *item = &r->m->items[i];
    tinker_error err = no_memory;
    item->future = r->submit(i, &err, r->state);
    if (item->future && tinker_queue_add(r->queue, item->future, item, &err) == TINKER_OK) {
        r->running++;
        return;
    }
    tinker_future_free(item->future);
    item->future = NULL;
    item->err = malloc(sizeof(*item->err));
    if (item->err)
        *item->err = err;
    finish_item(r, i);
}

/* How long to wait for the next item: until it is time to look at the clock or the canceler. */
static int64_t next_wait_ms(const struct run *r)
{
    int64_t left = -1;
    if (r->deadline_ms >= 0 && r->m->ending == RUNNING) {
        left = r->deadline_ms - clock_now_ms(clock_real());
        left = left > 0 ? left : 0;
    }
    bool looks = r->how->canceler && r->m->ending == RUNNING;
    return looks && (left < 0 || left > CHECK_MS) ? CHECK_MS : left;
}

/* Even after the end it waits for items under way: their futures must be complete before the
 * caller gets the report, and a cancel completes them soon.
 * RUNNING -> TIMED_OUT or CANCELED, once; the first reason stays.  Every state ends when nothing
 * is running. */
static void run_items(struct run *r)
{
    tinker_parallel *m = r->m;
    bool canceled = false;
    for (;;) {
        if (m->ending == RUNNING && r->how->canceler && atomic_load(&r->how->canceler->wanted))
            m->ending = CANCELED;
        else if (m->ending == RUNNING && r->deadline_ms >= 0 &&
                 clock_now_ms(clock_real()) >= r->deadline_ms)
            m->ending = TIMED_OUT;
        while (m->ending == RUNNING && m->started < m->n && r->running < r->max)
            start_item(r);
        if (m->ending != RUNNING && !canceled) {
            /* Canceling a complete future has no effect. */
            for (size_t i = 0; i < r->m->started; i++)
                if (r->m->items[i].future)
                    tinker_future_cancel(r->m->items[i].future);
            canceled = true;
        }
        if (r->running == 0)
            break;
        void *tag;
        tinker_future *f = tinker_queue_next(r->queue, next_wait_ms(r), &tag);
        if (f) {
            r->running--;
            finish_item(r, (size_t)((struct item *)tag - m->items));
        }
    }
    /* What was not started has failed, too. */
    m->failed += m->n - m->started;
}

/* NULL only if nothing was started.  From the first submission on there is a report, whatever
 * failed. */
tinker_parallel *tinker_parallel_run(tinker_parallel_submit_fn *submit, void *state, size_t n,
                                     const tinker_parallel_options *how, tinker_error *err)
{
    tinker_parallel_options o = TINKER_PARALLEL_OPTIONS_INIT;
    if (opts_copy(&o, sizeof(o), how, "tinker_parallel_options", err) != TINKER_OK ||
        runtime_may_block("tinker_parallel_run", err) != TINKER_OK)
        return NULL;
    if (!submit || o.timeout_ms < 0) {
        err_set(err, TINKER_EINVAL,
                "tinker_parallel_run() needs a function and a timeout that is not negative");
        return NULL;
    }
    /* Half of the address space is a bound that no sum below can overflow. */
    tinker_parallel *m = n < SIZE_MAX / sizeof(struct item) / 2
                             ? calloc(1, sizeof(*m) + n * sizeof(struct item))
                             : NULL;
    tinker_queue *q = m ? tinker_queue_new(err) : NULL;
    if (!q) {
        if (!m)
            err_nomem(err, "items");
        free(m);
        return NULL;
    }
    m->n = n;
    m->timeout_ms = o.timeout_ms;
    struct run r = { .m = m, .queue = q, .how = &o, .submit = submit, .state = state };
    r.max = o.max_concurrency ? o.max_concurrency : SIZE_MAX;
    r.deadline_ms = o.timeout_ms ? future_deadline_ms(o.timeout_ms) : -1;
    run_items(&r);
    tinker_queue_free(q);
    return m;
}

/* ---- samples ------------------------------------------------------------------------------- */

struct prompts {
    tinker_sampler *sampler;
    const tinker_model_input *v;
    const tinker_sampling_params *params;
    const tinker_sample_options *opts;
};

static tinker_future *submit_prompt(size_t i, tinker_error *err, void *state)
{
    const struct prompts *p = state;
    return tinker_sampler_sample(p->sampler, &p->v[i], p->params, p->opts, err);
}

tinker_parallel *tinker_sampler_sample_parallel(tinker_sampler *s,
                                                const tinker_model_input *prompts, size_t n,
                                                const tinker_sampling_params *params,
                                                const tinker_sample_options *opts,
                                                const tinker_parallel_options *how,
                                                tinker_error *err)
{
    struct prompts p = { s, prompts, params, opts };
    if (n && !prompts) {
        err_set(err, TINKER_EINVAL, "no prompts to sample from");
        return NULL;
    }
    return tinker_parallel_run(submit_prompt, &p, n, how, err);
}

/* ---- cancelers ---------------------------------------------------------------------------- */

tinker_canceler *tinker_canceler_new(tinker_error *err)
{
    tinker_canceler *c = calloc(1, sizeof(*c));
    if (!c)
        err_nomem(err, "canceler");
    else
        atomic_init(&c->wanted, false);
    return c;
}

/* Any thread: an atomic store and nothing else.  The run looks at it every CHECK_MS. */
void tinker_canceler_request(tinker_canceler *c)
{
    atomic_store(&c->wanted, true);
}

void tinker_canceler_free(tinker_canceler *c)
{
    free(c);
}
