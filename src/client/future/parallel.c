/* parallel.c - see <tinker/map.h>.  Everything runs in the caller's thread; a queue of its own tells it
 * which item is over. */
#include <tinker/extra/parallel.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "client/future/future.h"
#include "client/io/runtime.h"

enum { CHECK_MS = 50 };

struct tinker_canceller {
    atomic_bool wanted;
};

struct item {
    tinker_future *future; /* owned */
    tinker_error *err;     /* of a submission that failed, owned */
};

/* Why what was not over is over. */
enum ending { GOING_ON, TIME_IS_UP, CANCELED };

struct tinker_map {
    size_t n, started, failed;
    enum ending ending;
    int64_t timeout_ms;
    struct item items[];
};

/* One run of a map. */
struct run {
    tinker_map *m;
    tinker_queue *queue;
    const tinker_map_options *how;
    tinker_map_submit *submit;
    void *state;
    size_t running, max;
    int64_t deadline_ms; /* -1: none */
};

/* ---- what came of it ---------------------------------------------------------------------- */

static tinker_status unfinished_status(const tinker_map *m, size_t i, tinker_error *err)
{
    if (m->ending == TIME_IS_UP)
        return err_set(err, TINKER_ETIMEDOUT, "item %zu: all items together had %lld ms", i,
                       (long long)m->timeout_ms);
    return err_set(err, TINKER_ECANCELED, "item %zu: the rest of the items was canceled", i);
}

tinker_status tinker_map_status(const tinker_map *m, size_t i, tinker_error *err)
{
    if (i >= m->n)
        return err_set(err, TINKER_EINVAL, "the map has %zu items, and no item %zu", m->n, i);
    const struct item *item = &m->items[i];
    if (item->err && err)
        *err = *item->err;
    if (item->err)
        return item->err->status;
    if (!item->future)
        return unfinished_status(m, i, err);
    tinker_status s = tinker_future_wait(item->future, 0, err);
    bool ours = s == TINKER_ECANCELED || !tinker_future_done(item->future);
    return ours && m->ending != GOING_ON ? unfinished_status(m, i, err) : s;
}

const tinker_future *tinker_map_future(const tinker_map *m, size_t i)
{
    return i < m->n ? m->items[i].future : NULL;
}

const tinker_sample *tinker_map_sample(const tinker_map *m, size_t i)
{
    return tinker_future_sample(tinker_map_future(m, i));
}

size_t tinker_map_failed(const tinker_map *m)
{
    return m->failed;
}

void tinker_map_free(tinker_map *m)
{
    for (size_t i = 0; m && i < m->n; i++) {
        tinker_future_free(m->items[i].future);
        free(m->items[i].err);
    }
    free(m);
}

/* ---- running ------------------------------------------------------------------------------- */

/* Item i is over. */
static void finish_item(struct run *r, size_t i)
{
    tinker_map *m = r->m;
    tinker_error err;
    bool ok = tinker_map_status(m, i, &err) == TINKER_OK;
    m->failed += !ok;
    bool enough = r->how->on_item && r->how->on_item(r->how->on_item_state, i, m->items[i].future,
                                                     ok ? NULL : &err) != 0;
    if ((enough || (!ok && r->how->stop_on_error)) && m->ending == GOING_ON)
        m->ending = CANCELED;
}

static void start_item(struct run *r)
{
    static const tinker_error no_memory = { .status = TINKER_ENOMEM, .message = "out of memory" };
    size_t i = r->m->started++;
    struct item *item = &r->m->items[i];
    tinker_error err = no_memory;
    item->future = r->submit(r->state, i, &err);
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

static void cancel_items(struct run *r)
{
    for (size_t i = 0; i < r->m->started; i++)
        if (r->m->items[i].future)
            tinker_future_cancel(r->m->items[i].future);
}

/* How long to wait for the next item: until it is time to look at the clock or the canceller. */
static int64_t next_wait_ms(const struct run *r)
{
    int64_t left = -1;
    if (r->deadline_ms >= 0 && r->m->ending == GOING_ON) {
        left = r->deadline_ms - clock_now_ms(clock_real());
        left = left > 0 ? left : 0;
    }
    bool looks = r->how->canceller && r->m->ending == GOING_ON;
    return looks && (left < 0 || left > CHECK_MS) ? CHECK_MS : left;
}

static void check_limits(struct run *r)
{
    if (r->m->ending != GOING_ON)
        return;
    if (r->how->canceller && atomic_load(&r->how->canceller->wanted))
        r->m->ending = CANCELED;
    else if (r->deadline_ms >= 0 && clock_now_ms(clock_real()) >= r->deadline_ms)
        r->m->ending = TIME_IS_UP;
}

static void run_items(struct run *r)
{
    tinker_map *m = r->m;
    bool canceled = false;
    for (;;) {
        check_limits(r);
        while (m->ending == GOING_ON && m->started < m->n && r->running < r->max)
            start_item(r);
        if (m->ending != GOING_ON && !canceled) {
            cancel_items(r);
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
    m->failed += m->n - m->started;
}

tinker_map *tinker_map_run(tinker_map_submit *submit, void *state, size_t n,
                           const tinker_map_options *how, tinker_error *err)
{
    tinker_map_options o = TINKER_MAP_OPTIONS_INIT;
    if (opts_copy(&o, sizeof(o), how, "tinker_map_options", err) != TINKER_OK ||
        runtime_may_block("a map", err) != TINKER_OK)
        return NULL;
    if (!submit || o.timeout_ms < 0) {
        err_set(err, TINKER_EINVAL, "a map needs a function, and a time that is not negative");
        return NULL;
    }
    tinker_map *m = n < SIZE_MAX / sizeof(struct item) / 2
                        ? calloc(1, sizeof(*m) + n * sizeof(struct item))
                        : NULL;
    tinker_queue *q = m ? tinker_queue_new(err) : NULL;
    if (!q) {
        if (!m)
            err_nomem(err, "map");
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

static tinker_future *submit_prompt(void *state, size_t i, tinker_error *err)
{
    const struct prompts *p = state;
    return tinker_sampler_sample(p->sampler, &p->v[i], p->params, p->opts, err);
}

tinker_map *tinker_sampler_map(tinker_sampler *s, const tinker_model_input *prompts, size_t n,
                               const tinker_sampling_params *params,
                               const tinker_sample_options *opts, const tinker_map_options *how,
                               tinker_error *err)
{
    struct prompts p = { s, prompts, params, opts };
    if (n && !prompts) {
        err_set(err, TINKER_EINVAL, "no prompts to sample from");
        return NULL;
    }
    return tinker_map_run(submit_prompt, &p, n, how, err);
}

/* ---- cancellers ---------------------------------------------------------------------------- */

tinker_canceller *tinker_canceller_new(tinker_error *err)
{
    tinker_canceller *c = calloc(1, sizeof(*c));
    if (!c)
        err_nomem(err, "canceller");
    else
        atomic_init(&c->wanted, false);
    return c;
}

void tinker_canceller_request(tinker_canceller *c)
{
    atomic_store(&c->wanted, true);
}

void tinker_canceller_free(tinker_canceller *c)
{
    free(c);
}
