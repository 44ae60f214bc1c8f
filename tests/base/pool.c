/* pool.c - order, completeness at free, jobs that submit jobs. */
#include "base/pool.h"
#include <pthread.h>
#include <stdatomic.h>
#include "support/tap.h"

static atomic_int done;
static int order[1000], n_order;

static void append_number(void *job)
{
    order[n_order++] = *(int *)job;
}

static void count_job(void *job)
{
    (void)job;
    atomic_fetch_add(&done, 1);
}

static void test_one_thread_keeps_the_order(void)
{
    int id[1000];
    n_order = 0;
    struct pool *p = pool_new(1, "one");
    REQUIRE(p);
    for (int i = 0; i < 1000; i++) {
        id[i] = i;
        CHECK(pool_submit(p, append_number, &id[i]));
    }
    pool_free(p);
    CHECK_INT(n_order, 1000);
    for (int i = 0; i < n_order; i++)
        CHECK_INT(order[i], i);
}

static void test_free_finishes_what_was_queued(void)
{
    atomic_store(&done, 0);
    struct pool *p = pool_new(4, "a name that is too long");
    REQUIRE(p);
    for (int i = 0; i < 5000; i++)
        pool_submit(p, count_job, NULL);
    pool_free(p);
    CHECK_INT(atomic_load(&done), 5000);
    pool_free(NULL);
}

static struct pool *shared;

static void spawn_jobs(void *job)
{
    int depth = *(int *)job;
    static int depths[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    atomic_fetch_add(&done, 1);
    if (depth)
        for (int i = 0; i < 2; i++)
            pool_submit(shared, spawn_jobs, &depths[depth - 1]);
}

static void test_jobs_may_submit_jobs(void)
{
    int depth = 9;
    atomic_store(&done, 0);
    shared = pool_new(3, "spawn");
    REQUIRE(shared);
    pool_submit(shared, spawn_jobs, &depth);
    pool_free(shared);
    CHECK_INT(atomic_load(&done), 1023);
}

static pthread_barrier_t together;

static void meet_at_barrier(void *job)
{
    (void)job;
    pthread_barrier_wait(&together);
}

/* Two jobs that wait for each other end only when they run at the same time. */
static void test_jobs_run_side_by_side(void)
{
    pthread_barrier_init(&together, NULL, 2);
    struct pool *p = pool_new(2, "meet");
    REQUIRE(p);
    pool_submit(p, meet_at_barrier, NULL);
    pool_submit(p, meet_at_barrier, NULL);
    pool_free(p);
    pthread_barrier_destroy(&together);
}

static void *submit_many(void *arg)
{
    for (int i = 0; i < 500; i++)
        pool_submit(arg, count_job, NULL);
    return NULL;
}

static void test_many_threads_submit(void)
{
    atomic_store(&done, 0);
    struct pool *p = pool_new(2, "many");
    pthread_t t[4];
    REQUIRE(p);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, submit_many, p);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    pool_free(p);
    CHECK_INT(atomic_load(&done), 2000);
}

int main(void)
{
    RUN(test_one_thread_keeps_the_order);
    RUN(test_free_finishes_what_was_queued);
    RUN(test_jobs_may_submit_jobs);
    RUN(test_jobs_run_side_by_side);
    RUN(test_many_threads_submit);
    return tap_done();
}
