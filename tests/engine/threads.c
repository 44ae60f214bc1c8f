/* The pool covers every index exactly once, at any count, with and without pauses. */
#include "engine/threads.h"
#include "support/tap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 5000 };

struct coverage {
    _Atomic int seen[MOST];
    _Atomic int off_grain;
    size_t n, grain;
};

static void cover_slice(void *arg, size_t begin, size_t end)
{
    struct coverage *c = arg;
    if (begin % c->grain != 0 || (end % c->grain != 0 && end != c->n))
        atomic_fetch_add(&c->off_grain, 1);
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&c->seen[i], 1);
}

static void cover_every_index(int fine)
{
    static struct coverage c;
    static const size_t sizes[] = { 0, 1, 2, 15, 16, 17, 100, 4097, MOST };
    static const size_t grains[] = { 1, 16, 33 };
    for (int count = 1; count <= 4; count++) {
        struct threads *t = threads_new(count);
        CHECK(t != NULL && threads_count(t) == count);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                c.n = sizes[s];
                c.grain = grains[g];
                for (size_t i = 0; i < MOST; i++)
                    atomic_store(&c.seen[i], 0);
                if (fine)
                    threads_run_fine(t, c.n, c.grain, cover_slice, &c);
                else
                    threads_run(t, c.n, c.grain, cover_slice, &c);
                int wrong = 0;
                for (size_t i = 0; i < MOST; i++)
                    wrong += atomic_load(&c.seen[i]) != (i < c.n);
                CHECK(wrong == 0 && atomic_load(&c.off_grain) == 0);
            }
        threads_free(t);
    }
}

static void every_index_once(void)
{
    cover_every_index(0);
    cover_every_index(1);
}

struct sums {
    long *values; /* plain memory: the join must make it visible */
};

static void square_slice(void *arg, size_t begin, size_t end)
{
    struct sums *s = arg;
    for (size_t i = begin; i < end; i++)
        s->values[i] += (long)i;
}

static void results_are_visible_after_each_run(void)
{
    enum { N = 256, RUNS = 3000 };
    long values[N] = { 0 };
    struct sums s = { values };
    struct threads *t = threads_new(3);
    for (int r = 0; r < RUNS; r++) {
        threads_run(t, N, 1, square_slice, &s);
        if (r % 1000 == 0) { /* long enough for the workers to fall asleep */
            struct timespec pause = { 0, 20000000 };
            nanosleep(&pause, NULL);
        }
    }
    int wrong = 0;
    for (long i = 0; i < N; i++)
        wrong += values[i] != i * RUNS;
    CHECK(wrong == 0);
    threads_free(t);
    threads_free(NULL);
}

int main(void)
{
    RUN(every_index_once);
    RUN(results_are_visible_after_each_run);
    return tap_done();
}
