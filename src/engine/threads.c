/* threads.c - a fork-join pool with short waits.
 *
 * One word, the gate, carries the whole hand-over: its upper half counts phases (odd
 * while a run is open), its lower half counts the workers inside.  A run opens the
 * gate, works along, closes it and waits until nobody is inside.  A worker that
 * wakes too late finds the gate closed and simply misses the run, so a busy machine
 * costs no more than the help it could not give.  Workers spin briefly between runs
 * (a layer of the model is many runs in a row), then sleep.
 *
 * A run is cut into one part per thread; who is done with his own helps the others. */
#include "engine/threads.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include "engine/kernels/cpu.h"

enum { SPINS = 2000, SHARE = 2, COARSE = 16, FINE = 64 };
#define PHASE ((uint64_t)1 << 32)

/* What is left of a thread's part of a run: grains [low half, high half). */
struct part {
    _Alignas(64) _Atomic uint64_t left;
};

struct worker {
    struct threads *threads;
    size_t index; /* of its part; the caller's is 0 */
    pthread_t id;
};

struct threads {
    int count;
    int started; /* workers that run */
    struct worker *workers;
    struct part *parts; /* (count) */
    float *memory;

    void (*job)(void *arg, size_t begin, size_t end); /* written while the gate is closed */
    void *arg;
    size_t n, grain, slice; /* slice: the fewest grains worth taking */
    _Atomic uint64_t gate;

    _Atomic int sleepers;
    pthread_mutex_t lock; /* only for sleeping and waking */
    pthread_cond_t wake;
    _Atomic int stop;
};

static int is_open(uint64_t gate)
{
    return gate / PHASE % 2 == 1;
}

static uint64_t pack_part(uint64_t begin, uint64_t end)
{
    return end << 32 | begin;
}

/* Take grains from one part: its owner from the front, others from the back.  A slice is a
 * share of what is left: the first ones are long, which keeps their fixed costs small, the last
 * ones short, so that nobody waits long for the others. */
static int take_slice(struct threads *t, size_t index, int owner, size_t *begin, size_t *end)
{
    _Atomic uint64_t *left = &t->parts[index].left;
    uint64_t part = atomic_load(left), rest;
    do {
        uint64_t low = part & UINT32_MAX, high = part >> 32, length = (high - low) / SHARE;
        if (low == high)
            return 0;
        if (length < t->slice)
            length = high - low < t->slice ? high - low : t->slice;
        *begin = owner ? low : high - length;
        *end = *begin + length;
        rest = owner ? pack_part(*end, high) : pack_part(low, *begin);
    } while (!atomic_compare_exchange_weak(left, &part, rest));
    return 1;
}

/* First the own part, whose slices lie one after the other, then what others have left. */
static void run_own_and_steal(struct threads *t, size_t index)
{
    size_t count = (size_t)t->count, begin, end;
    for (size_t i = 0; i < count; i++)
        while (take_slice(t, (index + i) % count, i == 0, &begin, &end)) {
            end *= t->grain;
            t->job(t->arg, begin * t->grain, end < t->n ? end : t->n);
        }
}

/* Wait until the gate is open in a phase later than *phase, and go in.  0: stop. */
static int enter_run(struct threads *t, uint64_t *phase)
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
            cpu_relax();
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

static void *run_worker(void *arg)
{
    const struct worker *w = arg;
    struct threads *t = w->threads;
    uint64_t phase = 0;
    while (enter_run(t, &phase)) {
        run_own_and_steal(t, w->index);
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
    t->parts = aligned_alloc(_Alignof(struct part), (size_t)t->count * sizeof *t->parts);
    t->memory = aligned_alloc(64, THREADS_MEMORY * sizeof *t->memory);
    if (t->workers == NULL || t->parts == NULL || t->memory == NULL) {
        threads_free(t);
        return NULL;
    }
    while (t->started < t->count - 1) {
        struct worker *w = &t->workers[t->started];
        w->threads = t;
        w->index = (size_t)t->started + 1;
        if (pthread_create(&w->id, NULL, run_worker, w) != 0) {
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
        pthread_join(t->workers[i].id, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t->parts);
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
static void run_slices(struct threads *t, size_t n, size_t grain, size_t cuts,
                       void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    if (grain == 0)
        grain = 1;
    if (n == 0)
        return;
    size_t grains = (n - 1) / grain + 1, count = (size_t)t->count;
    assert(grains <= UINT32_MAX);
    if (t->started == 0 || n <= grain) {
        job(arg, 0, n);
        return;
    }
    t->job = job;
    t->arg = arg;
    t->n = n;
    t->grain = grain;
    t->slice = grains / (count * cuts) + 1;
    for (size_t i = 0; i < count; i++)
        atomic_store(&t->parts[i].left, pack_part(grains * i / count, grains * (i + 1) / count));
    atomic_fetch_add(&t->gate, PHASE); /* open */
    wake_sleepers(t);
    run_own_and_steal(t, 0);
    atomic_fetch_add(&t->gate, PHASE); /* close */
    for (int spins = 0; atomic_load(&t->gate) % PHASE != 0; spins++) {
        if (spins < SPINS)
            cpu_relax();
        else
            sched_yield();
    }
}

void threads_run(struct threads *t, size_t n, size_t grain,
                 void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    run_slices(t, n, grain, COARSE, job, arg);
}

void threads_run_fine(struct threads *t, size_t n, size_t grain,
                      void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    run_slices(t, n, grain, FINE, job, arg);
}
