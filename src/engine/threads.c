/* threads.c - a fork-join pool with short waits.
 *
 * One 64-bit word, the gate, synchronizes everything: its upper half counts phases (odd
 * while a run is open), its lower half counts the workers inside.  threads_run() opens
 * the gate, takes part in the work, closes the gate and waits until no worker is inside.
 * A worker that wakes too late finds the gate closed and misses the run, so a busy
 * machine never delays a run by more than the help it could not give.  Workers spin
 * briefly between runs (a layer of the model is many runs in a row), then sleep.
 *
 * A run is cut into one part per thread; a thread that finishes early steals work. */
#include "engine/threads.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include "engine/kernels/cpu.h"

enum {
    SPINS = 2000, /* calls of cpu_relax() before a worker sleeps */
    SHARE = 2,    /* a slice is 1/SHARE of what is left of a part */
    COARSE = 16,  /* but at least 1/COARSE of a thread's part (threads_run), */
    FINE = 64     /* or 1/FINE (threads_run_fine) */
};
#define PHASE ((uint64_t)1 << 32)

/* What is left of a thread's part of a run: grains [low half, high half) in one word, so that
 * owner and thieves can take from both ends with a compare-and-swap.  Each has a cache line. */
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

/* Grains [begin, end) as one word. */
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

/* First the thread's own part, from front to back, so that its slices follow each other in memory
 * and prefetches across their borders hit; then what the others have left. */
static void run_own_and_steal(struct threads *t, size_t index)
{
    size_t count = (size_t)t->count, begin, end;
    for (size_t i = 0; i < count; i++)
        while (take_slice(t, (index + i) % count, i == 0, &begin, &end)) {
            end *= t->grain;
            t->job(t->arg, begin * t->grain, end < t->n ? end : t->n);
        }
}

/* Wait until the gate is open in a phase other than *phase, and enter: from then on the run waits
 * for this worker.  The compare-and-swap fails if the gate was closed meanwhile.  0: stop. */
static int enter_run(struct threads *t, uint64_t *phase)
{
    for (int spins = 0;; spins++) {
        uint64_t gate = atomic_load(&t->gate);
        int open = gate / PHASE % 2 == 1;
        if (open && gate / PHASE != *phase) { /* not a run that this worker has finished */
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
        /* No wake-up is lost: this announces the sleeper and then reads the gate, run_slices()
         * moves the gate and then reads `sleepers`, so at least one of them sees the other (all
         * atomics here are sequentially consistent).  The lock keeps the broadcast from falling
         * between the check and the wait. */
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

/* No slice is shorter than 1/cuts of a thread's part. */
static void run_slices(struct threads *t, size_t n, size_t grain, size_t cuts,
                       void (*job)(void *arg, size_t begin, size_t end), void *arg)
{
    if (grain == 0)
        grain = 1;
    if (n == 0)
        return;
    size_t grains = (n - 1) / grain + 1, count = (size_t)t->count;
    assert(grains <= UINT32_MAX);
    /* nothing to share: no hand-over */
    if (t->started == 0 || n <= grain) {
        job(arg, 0, n);
        return;
    }
    /* Plain stores: opening the gate publishes them to the workers that enter. */
    t->job = job;
    t->arg = arg;
    t->n = n;
    t->grain = grain;
    t->slice = grains / (count * cuts) + 1;
    for (size_t i = 0; i < count; i++)
        atomic_store(&t->parts[i].left, pack_part(grains * i / count, grains * (i + 1) / count));
    atomic_fetch_add(&t->gate, PHASE); /* open */
    if (atomic_load(&t->sleepers) > 0) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
    run_own_and_steal(t, 0);
    atomic_fetch_add(&t->gate, PHASE); /* close */
    /* Workers inside finish their last slices.  After some spins give up the core: a worker may
     * need it. */
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
