/* term_threads.c - several terms at once, each within its time.
 *
 * Ordinary terms share max_concurrency threads, in order; an async one, which waits for
 * something else, has its own.  A thread cannot be ended from outside without leaving the
 * user's memory in an unknown state, so a term that overruns is canceled through its tape
 * and waited for.  Every operation on a canceled tape fails, so it ends at its next one. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/os.h"
#include "regularizer/term.h"

struct term_threads {
    struct term *terms;
    size_t n;
    const struct batch *batch;
    atomic_size_t next;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a term started or is done */
};

struct term_thread {
    struct term_threads *all;
    struct term *only; /* NULL: any ordinary term */
    pthread_t thread;
};

/* A term's time begins when it starts, not while it waits for a thread. */
static void run_one(struct term_threads *c, struct term *t)
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

static void *run_terms(void *arg)
{
    struct term_thread *h = arg;
    struct term_threads *c = h->all;
    if (h->only)
        run_one(c, h->only);
    else
        /* Threads take the next ordinary term as they become free. */
        for (size_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;)
            if (!c->terms[i].spec.async)
                run_one(c, &c->terms[i]);
    return NULL;
}

/* Cancel what is over its time.  When to look again, INT64_MAX: no need; *open: how many
 * are not done. */
static int64_t cancel_overdue_locked(struct term_threads *c, size_t *open)
{
    int64_t now = clock_now_ns(clock_real()), next = INT64_MAX;
    *open = 0;
    for (size_t i = 0; i < c->n; i++) {
        struct term *t = &c->terms[i];
        *open += !t->done;
        /* Done, canceled already, or still waiting for a thread. */
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

/* Start the threads; what cannot be started runs here.  How many were. */
static size_t start_threads(struct term_threads *c, struct term_thread *threads, size_t ordinary)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        threads[n] = (struct term_thread){ .all = c, .only = &c->terms[i] };
        if (!c->terms[i].spec.async)
            continue;
        if (pthread_create(&threads[n].thread, NULL, run_terms, &threads[n]) == 0)
            n++;
        else
            run_terms(&threads[n]);
    }
    /* Async terms wait for something else, so they do not count as concurrent. */
    size_t loners = n;
    for (size_t i = 0; i < ordinary; i++) {
        threads[n] = (struct term_thread){ .all = c };
        if (pthread_create(&threads[n].thread, NULL, run_terms, &threads[n]) == 0)
            n++;
    }
    /* Not one thread for the ordinary terms: this one runs them, and watches no deadline. */
    if (n == loners) {
        threads[n] = (struct term_thread){ .all = c };
        run_terms(&threads[n]);
    }
    return n;
}

void term_threads_run(struct term *terms, size_t n, const struct batch *b)
{
    struct term_threads c = { .terms = terms, .n = n, .batch = b };
    size_t async = 0;
    for (size_t i = 0; i < n; i++)
        async += terms[i].spec.async != 0;
    size_t ordinary = n - async;
    size_t most =
        b->opts->max_concurrency > 0 ? (size_t)b->opts->max_concurrency : (size_t)os_cpu_count();
    if (ordinary > most)
        ordinary = most;
    struct term_thread *threads = calloc(async + ordinary + 1, sizeof(*threads));
    if (!threads) { /* no memory for threads: one after the other, here */
        for (size_t i = 0; i < n && (i == 0 || terms[i - 1].err.status == TINKER_OK); i++)
            term_run(&terms[i], b);
        return;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    /* Deadlines are on the monotonic clock: setting the date must not end a term. */
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c.changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&c.lock, NULL);
    size_t n_started = start_threads(&c, threads, ordinary);
    /* Sleep until the next deadline, or until a term starts or is done. */
    size_t open;
    pthread_mutex_lock(&c.lock);
    for (int64_t next; next = cancel_overdue_locked(&c, &open), open > 0;) {
        struct timespec ts = { next / 1000000000, next % 1000000000 };
        if (next == INT64_MAX)
            pthread_cond_wait(&c.changed, &c.lock);
        else
            pthread_cond_timedwait(&c.changed, &c.lock, &ts);
    }
    pthread_mutex_unlock(&c.lock);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i].thread, NULL);
    /* A canceled term failed with "canceled" or may even have succeeded; either way it was late. */
    for (size_t i = 0; i < n; i++)
        if (terms[i].timed_out)
            err_set(&terms[i].err, TINKER_ETIMEDOUT,
                    "regularizer \"%s\" did not finish within %lld ms", terms[i].spec.name,
                    (long long)b->opts->regularizer_timeout_ms);
    pthread_mutex_destroy(&c.lock);
    pthread_cond_destroy(&c.changed);
    free(threads);
}
