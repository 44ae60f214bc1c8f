/* threads.c - a fork-join pool with short waits.
 *
 * One word, the gate, carries the whole hand-over: its upper half counts phases (odd
 * while a run is open), its lower half counts the workers inside.  A run opens the
 * gate, works along, closes it and waits until nobody is inside.  A worker that
 * wakes too late finds the gate closed and simply misses the run, so a busy machine
 * costs no more than the help it could not give.  Workers spin briefly between runs
 * (a layer of the model is many runs in a row), then sleep. */
#include "engine/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

enum { SPINS = 2000, SHARE = 2, COARSE = 16, FINE = 64 };
#define PHASE ((uint64_t)1 << 32)

struct threads {
    int count;
    int started; /* workers that run */
    pthread_t *workers;
    float *memory;

    void (*job)(void *arg, size_t begin, size_t end); /* written while the gate is closed */
    void *arg;
    size_t n, grain, slice; /* slice: the smallest worth taking */
    _Atomic size_t next;
    _Atomic uint64_t gate;

    _Atomic int sleepers;
    pthread_mutex_t lock; /* only for sleeping and waking */
    pthread_cond_t wake;
    _Atomic int stop;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static int is_open(uint64_t gate)
{
    return gate / PHASE % 2 == 1;
}

static size_t whole_grains(size_t n, size_t grain)
{
    return (n + grain - 1) / grain * grain;
}

/* A slice is a share of what is left: the first ones are long, which keeps their fixed
 * costs small, the last ones short, so that nobody waits long for the others. */
static size_t slice_length(const struct threads *t, size_t left)
{
    size_t length = left / ((size_t)t->count * SHARE);
    return length > t->slice ? whole_grains(length, t->grain) : t->slice;
}

static void take_slices(struct threads *t)
{
    size_t begin = atomic_load(&t->next);
    while (begin < t->n) {
        size_t left = t->n - begin, length = slice_length(t, left);
        size_t end = left > length ? begin + length : t->n;
        if (!atomic_compare_exchange_weak(&t->next, &begin, end))
            continue;
        t->job(t->arg, begin, end);
        begin = atomic_load(&t->next);
    }
}

/* Wait until the gate is open in a phase later than *phase, and go in.  0: stop. */
static int enter(struct threads *t, uint64_t *phase)
{
    for (int spins = 0;; spins++) {
        uint64_t gate = atomic_load(&t->gate);
        if (is_open(gate) && gate / PHASE != *phase) {
            if (!atomic_compare_exchange_weak(&t->gate, &gate, gate + 1))
                continue;
            *phase = gate / PHASE;
            return 1;
        }
        if (atomic_load(&t->stop))
            return 0;
        if (spins < SPINS) {
            relax();
            continue;
        }
        pthread_mutex_lock(&t->lock);
        atomic_fetch_add(&t->sleepers, 1);
        while (atomic_load(&t->gate) / PHASE == gate / PHASE && !atomic_load(&t->stop))
            pthread_cond_wait(&t->wake, &t->lock);
        atomic_fetch_sub(&t->sleepers, 1);
        pthread_mutex_unlock(&t->lock);
        spins = 0;
    }
}

static void *worker(void *arg)
{
    struct threads *t = arg;
    uint64_t phase = 0;
    while (enter(t, &phase)) {
        take_slices(t);
        atomic_fetch_sub(&t->gate, 1);
    }
    return NULL;
}

static void wake_sleepers(struct threads *t)
{
    if (atomic_load(&t->sleepers) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

struct threads *threads_new(int count)
{
    struct threads *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->count = count < 1 ? 1 : count;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->workers = calloc((size_t)t->count, sizeof *t->workers);
    t->memory = aligned_alloc(64, THREADS_MEMORY * sizeof *t->memory);
    if (t->workers == NULL || t->memory == NULL) {
        threads_free(t);
        return NULL;
    }
    while (t->started < t->count - 1) {
        if (pthread_create(&t->workers[t->started], NULL, worker, t) != 0) {
            threads_free(t);
            return NULL;
        }
        t->started++;
    }
    return t;
}

void threads_free(struct threads *t)
{
    if (t == NULL)
        return;
    atomic_store(&t->stop, 1);
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->workers[i], NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t->memory);
    free(t);
}

int threads_count(const struct threads *t)
{
    return t->count;
}

float *threads_memory(struct threads *t)
{
    return t->memory;
}

/* No slice is less than a part in `cuts` of what falls to a thread. */
static void run(struct threads *t, size_t n, size_t grain, size_t cuts,
                void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    if (grain == 0)
        grain = 1;
    if (n == 0)
        return;
    if (t->started == 0 || n <= grain) {
        job(arg, 0, n);
        return;
    }
    t->job = job;
    t->arg = arg;
    t->n = n;
    t->grain = grain;
    t->slice = whole_grains(n / ((size_t)t->count * cuts) + 1, grain);
    atomic_store(&t->next, 0);
    atomic_fetch_add(&t->gate, PHASE); /* open */
    wake_sleepers(t);
    take_slices(t);
    atomic_fetch_add(&t->gate, PHASE); /* close */
    for (int spins = 0; atomic_load(&t->gate) % PHASE != 0; spins++) {
        if (spins < SPINS)
            relax();
        else
            sched_yield();
    }
}

void threads_run(struct threads *t, size_t n, size_t grain,
                 void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    run(t, n, grain, COARSE, job, arg);
}

void threads_run_fine(struct threads *t, size_t n, size_t grain,
                      void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    run(t, n, grain, FINE, job, arg);
}
