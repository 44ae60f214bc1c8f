/* runtime.c - one runtime per process, counted.
 *
 * Lock: `lock` guards `current`, `test_clock` and the count; it is held over starting
 * and ending the threads so that two services never start two. */
#include "client/io/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "http/http.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct runtime *current;
static struct clock *test_clock;
static _Thread_local bool library_thread; /* set on the loop's and the callback thread's */
static pid_t owner;                       /* process of the last runtime, under the lock */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* In a child: a thread of the parent may hold it forever, perhaps while ending threads. */
static void reset_lock_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

static void register_fork_handler(void)
{
    pthread_atfork(NULL, NULL, reset_lock_in_child);
}

/* For jitter.  Tests replace rt->uniform to know the delays. */
static double draw_uniform(struct runtime *rt)
{
    return rng_uniform(&rt->rng);
}

/* The order matters: first the loop, which gives work to the others; then the workers and
 * the callback thread, whose last tasks go to the loop's stack; then what is left in it. */
static void runtime_free(struct runtime *rt)
{
    if (rt->loop) {
        loop_stop(rt->loop);
        loop_join(rt->loop);
    }
    pool_free(rt->workers); /* one may still be about to wake the loop for its last task */
    rt->workers = NULL;     /* which may ask for more work */
    pool_free(rt->callback_thread);
    if (rt->loop)
        loop_drain(rt->loop); /* jobs that came back to nobody are freed by it */
    for (int i = 0; i < BUDGET_COUNT; i++)
        socket_budget_free(rt->budgets[i]);
    loop_free(rt->loop);
    free(rt);
}

/* The first job of the callback thread; so runtime_may_block() knows it. */
static void mark_callback_thread(void *arg)
{
    (void)arg;
    library_thread = true;
}

static void mark_loop(struct loop_task *t)
{
    (void)t;
    library_thread = true;
}

enum {
    FILES_KEPT = 16,   /* for sessions, credentials, telemetry, downloads */
    CLIENT_FILES = 3,  /* of a connection that shares nothing: its socket, and curl's own two */
    SAMPLE_EIGHTHS = 3 /* of the sockets; as many for polls, the rest for all others */
};

/* Half of the descriptors that are free now; the other half is the program's.  false: no memory. */
static bool make_budgets(struct runtime *rt)
{
    int64_t unused;
    /* Without a known limit there is no budget, and sockets are not counted. */
    if (!os_file_limit(&rt->file_limit, &unused))
        return true;
    int64_t n = unused > FILES_KEPT ? (unused - FILES_KEPT) / 2 : 0;
    int sampling = (int)(n * SAMPLE_EIGHTHS / 8);
    int other = ((int)n - 2 * sampling) / CLIENT_FILES;
    sampling = sampling > 0 ? sampling : 1;
    other = other > 0 ? other : 1;
    rt->max_sockets = 2 * sampling + other;
    rt->budgets[BUDGET_SAMPLE] = socket_budget_new(rt->loop, sampling);
    rt->budgets[BUDGET_POLL] = socket_budget_new(rt->loop, sampling);
    rt->budgets[BUDGET_OTHER] = socket_budget_new(rt->loop, other);
    return rt->budgets[BUDGET_SAMPLE] && rt->budgets[BUDGET_POLL] && rt->budgets[BUDGET_OTHER];
}

static struct runtime *runtime_new(tinker_error *err)
{
    if (http_global_init(err) != TINKER_OK)
        return NULL;
    struct runtime *rt = calloc(1, sizeof(*rt));
    if (!rt) {
        err_nomem(err, "runtime");
        return NULL;
    }
    rt->clock = test_clock ? test_clock : clock_real();
    rt->uniform = draw_uniform;
    rt->pid = getpid();
    rng_seed_os(&rt->rng);
    rt->loop = loop_new(rt->clock, err);
    /* Two workers decode and encode large bodies.  One callback thread: the user's functions
     * never run at the same time. */
    rt->workers = rt->loop ? pool_new(2, "tinker-work") : NULL;
    rt->callback_thread = rt->workers ? pool_new(1, "tinker-user") : NULL;
    /* loop_new() has set err when there is no loop. */
    if (rt->loop && !rt->callback_thread)
        err_nomem(err, "worker threads");
    if (rt->callback_thread && !make_budgets(rt)) {
        err_nomem(err, "runtime");
        runtime_free(rt);
        return NULL;
    }
    if (!rt->callback_thread || !pool_submit(rt->callback_thread, mark_callback_thread, rt) ||
        loop_start(rt->loop, err) != TINKER_OK) {
        runtime_free(rt);
        return NULL;
    }
    rt->mark.run = mark_loop;
    loop_post(rt->loop, &rt->mark);
    owner = rt->pid;
    return rt;
}

struct runtime *runtime_ref(tinker_error *err)
{
    /* Before the first lock, so that a fork can never copy a locked one unhandled. */
    pthread_once(&fork_once, register_fork_handler);
    pthread_mutex_lock(&lock);
    /* threads do not survive a fork: the child's first service starts its own */
    if (current && current->pid != getpid())
        current = NULL;
    if (!current)
        current = runtime_new(err);
    if (current)
        current->refs++;
    struct runtime *rt = current;
    pthread_mutex_unlock(&lock);
    return rt;
}

void runtime_unref(struct runtime *rt)
{
    /* In a fork the threads are the parent's, and so is the memory that they use: it is left
     * alone. */
    if (!rt || rt->pid != getpid())
        return;
    pthread_mutex_lock(&lock);
    if (--rt->refs == 0) {
        runtime_free(rt);
        current = NULL;
    }
    pthread_mutex_unlock(&lock);
}

struct runtime *runtime_current(void)
{
    pthread_mutex_lock(&lock);
    struct runtime *rt = current;
    pthread_mutex_unlock(&lock);
    return rt;
}

void runtime_use_clock(struct clock *clock)
{
    pthread_mutex_lock(&lock);
    test_clock = clock;
    pthread_mutex_unlock(&lock);
}

/* Loop thread again: done() may touch the operation. */
static void end_worker_job(struct loop_task *t)
{
    struct runtime_job *j = (struct runtime_job *)t; /* first member */
    loop_busy(j->rt->loop, -1);
    j->done(j);
}

static void run_worker_job(void *arg)
{
    struct runtime_job *j = arg;
    j->work(j);
    j->back.run = end_worker_job;
    loop_post(j->rt->loop, &j->back);
}

/* j belongs to the caller and lives until done(). */
bool runtime_work(struct runtime *rt, struct runtime_job *j)
{
    j->rt = rt;
    loop_busy(rt->loop, 1);
    if (rt->workers && pool_submit(rt->workers, run_worker_job, j))
        return true;
    loop_busy(rt->loop, -1);
    return false;
}

/* Any thread.  Functions run in the order of their posting.  false: no memory. */
bool runtime_post_callback(struct runtime *rt, void (*fn)(void *arg), void *arg)
{
    return pool_submit(rt->callback_thread, fn, arg);
}

/* A door that opens once: for waiting until another thread has come this far. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
};

static void gate_wait(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->cond);
}

static void gate_open(void *arg)
{
    struct gate *g = arg;
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_signal(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

/* When it returns, everything that was posted before has run.  On a thread of the library
 * waiting could never end, so it does not wait. */
void runtime_drain_callbacks(struct runtime *rt)
{
    struct gate g = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
    if (!library_thread && rt->pid == getpid() && pool_submit(rt->callback_thread, gate_open, &g))
        gate_wait(&g);
}

struct sync_task {
    struct loop_task task;
    void (*fn)(void *arg);
    void *arg;
    struct gate gate;
};

static void run_sync_task(struct loop_task *t)
{
    struct sync_task *s = (struct sync_task *)t; /* first member */
    s->fn(s->arg);
    gate_open(&s->gate);
}

/* Never on the loop thread itself, which would wait for its own task. */
void runtime_sync(struct runtime *rt, void (*fn)(void *arg), void *arg)
{
    struct sync_task s = { .task.run = run_sync_task,
                           .fn = fn,
                           .arg = arg,
                           .gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false } };
    loop_post(rt->loop, &s.task);
    gate_wait(&s.gate);
}

bool runtime_is_own_thread(void)
{
    return library_thread;
}

void runtime_mark_thread(void)
{
    library_thread = true;
}

tinker_status runtime_may_block(const char *what, tinker_error *err)
{
    if (library_thread)
        return err_set(err, TINKER_ESTATE,
                       "%s would block one of the library's own threads; use the form that "
                       "returns a future",
                       what);
    pthread_mutex_lock(&lock);
    bool forked = owner != 0 && owner != getpid();
    pthread_mutex_unlock(&lock);
    if (forked)
        return err_set(err, TINKER_ESTATE,
                       "%s: this process is a fork of the one that made the service; make a new "
                       "service here",
                       what);
    return TINKER_OK;
}
