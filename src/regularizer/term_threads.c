/* term_threads.c - several terms at once, each within its time.
 *
 * Ordinary terms share max_concurrency threads, in order; an async one, which waits for
 * something else, has its own.  A thread cannot be ended from outside without leaving the
 * user's memory in an unknown state, so a term that overruns is cancelled through its tape
 * and waited for. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "regularizer/term.h"

struct crew {
    struct term *terms;
    size_t n;
    const struct batch *batch;
    atomic_size_t next;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a term started or is done */
};

struct hand {
    struct crew *crew;
    struct term *only; /* NULL: any ordinary term */
    pthread_t thread;
};

static void run_one(struct crew *c, struct term *t)
{
    pthread_mutex_lock(&c->lock);
    t->deadline_ns = clock_deadline_ns(clock_real(), c->batch->opts->regularizer_timeout_ms);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    term_run(t, c->batch);
    pthread_mutex_lock(&c->lock);
    t->done = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void *work(void *arg)
{
    struct hand *h = arg;
    struct crew *c = h->crew;
    if (h->only)
        run_one(c, h->only);
    else
        for (size_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;)
            if (!c->terms[i].spec.async)
                run_one(c, &c->terms[i]);
    return NULL;
}

/* Cancel what is over its time.  When to look again, INT64_MAX: no need; *open: how many
 * are not done. */
static int64_t look_locked(struct crew *c, size_t *open)
{
    int64_t now = clock_now_ns(clock_real()), next = INT64_MAX;
    *open = 0;
    for (size_t i = 0; i < c->n; i++) {
        struct term *t = &c->terms[i];
        *open += !t->done;
        if (t->done || t->timed_out || t->deadline_ns == 0)
            continue;
        if (t->deadline_ns <= now) {
            t->timed_out = true;
            atomic_store(&t->cancel, true);
        } else if (t->deadline_ns < next)
            next = t->deadline_ns;
    }
    return next;
}

static void watch(struct crew *c)
{
    size_t open;
    pthread_mutex_lock(&c->lock);
    for (int64_t next; next = look_locked(c, &open), open > 0;) {
        struct timespec ts = { next / 1000000000, next % 1000000000 };
        if (next == INT64_MAX)
            pthread_cond_wait(&c->changed, &c->lock);
        else
            pthread_cond_timedwait(&c->changed, &c->lock, &ts);
    }
    pthread_mutex_unlock(&c->lock);
}

static size_t count_async(const struct crew *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += c->terms[i].spec.async != 0;
    return n;
}

/* Start the threads; what cannot be started runs here.  How many were. */
static size_t start(struct crew *c, struct hand *hands, size_t ordinary)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        hands[n] = (struct hand){ .crew = c, .only = &c->terms[i] };
        if (!c->terms[i].spec.async)
            continue;
        if (pthread_create(&hands[n].thread, NULL, work, &hands[n]) == 0)
            n++;
        else
            work(&hands[n]);
    }
    size_t loners = n;
    for (size_t i = 0; i < ordinary; i++) {
        hands[n] = (struct hand){ .crew = c };
        if (pthread_create(&hands[n].thread, NULL, work, &hands[n]) == 0)
            n++;
    }
    if (n == loners) {
        hands[n] = (struct hand){ .crew = c };
        work(&hands[n]);
    }
    return n;
}

static void one_by_one(struct term *terms, size_t n, const struct batch *b)
{
    for (size_t i = 0; i < n && (i == 0 || terms[i - 1].err.status == TINKER_OK); i++)
        term_run(&terms[i], b);
}

static void name_timeouts(struct term *terms, size_t n, const struct batch *b)
{
    for (size_t i = 0; i < n; i++)
        if (terms[i].timed_out)
            err_set(&terms[i].err, TINKER_ETIMEDOUT,
                    "regularizer \"%s\" did not finish within %lld ms", terms[i].spec.name,
                    (long long)b->opts->regularizer_timeout_ms);
}

void crew_run(struct term *terms, size_t n, const struct batch *b)
{
    struct crew c = { .terms = terms, .n = n, .batch = b };
    size_t async = count_async(&c), ordinary = n - async;
    size_t most =
        b->opts->max_concurrency > 0 ? (size_t)b->opts->max_concurrency : (size_t)os_cpu_count();
    if (ordinary > most)
        ordinary = most;
    struct hand *hands = calloc(async + ordinary + 1, sizeof(*hands));
    if (!hands) { /* no memory for threads */
        one_by_one(terms, n, b);
        return;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c.lock, NULL);
    size_t n_hands = start(&c, hands, ordinary);
    watch(&c);
    for (size_t i = 0; i < n_hands; i++)
        pthread_join(hands[i].thread, NULL);
    name_timeouts(terms, n, b);
    pthread_mutex_destroy(&c.lock);
    pthread_cond_destroy(&c.changed);
    free(hands);
}
