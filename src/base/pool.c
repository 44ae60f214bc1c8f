/* pool.c - a few worker threads and a queue of jobs.
 *
 * One lock guards the list; workers wait on one condition.  Jobs run without the
 * lock held and may submit others.  Workers block every signal: handlers belong
 * to the program's own threads. */
#include "base/pool.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/os.h"

struct job {
    struct job *next;
    void (*run)(void *job);
    void *arg;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *head, **tail; /* lock */
    bool stopping;            /* lock */
    int n_threads;
    char name[16];
    pthread_t threads[];
};

static void *run_worker(void *arg)
{
    struct pool *p = arg;
    os_thread_name(p->name);
    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (!p->head && !p->stopping)
            pthread_cond_wait(&p->more, &p->lock);
        struct job *j = p->head;
        if (j) {
            p->head = j->next;
            if (!p->head)
                p->tail = &p->head;
        }
        pthread_mutex_unlock(&p->lock);
        if (!j) /* stopping, and every job that was submitted has run */
            return NULL;
        j->run(j->arg);
        free(j);
    }
}

/* NULL: not even one thread could be started. */
struct pool *pool_new(int threads, const char *name)
{
    if (threads < 1)
        threads = 1;
    struct pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof *p->threads);
    if (!p)
        return NULL;
    p->tail = &p->head;
    snprintf(p->name, sizeof p->name, "%s", name);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    /* A new thread inherits the mask, so no signal can reach it before it has blocked them. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n_threads < threads &&
           pthread_create(&p->threads[p->n_threads], NULL, run_worker, p) == 0)
        p->n_threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->n_threads) /* fewer than asked for will do */
        return p;
    pool_free(p);
    return NULL;
}

/* Waits for all jobs.  Not from a job: a thread cannot join itself. */
void pool_free(struct pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    /* Workers finish the jobs that are queued before they end. */
    p->stopping = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Any thread, also from a job.  false: no memory, and job stays the caller's. */
bool pool_submit(struct pool *p, void (*run)(void *job), void *job)
{
    struct job *j = malloc(sizeof *j);
    if (!j)
        return false;
    /* A job goes to the end: they start in the order of submission. */
    *j = (struct job){ NULL, run, job };
    pthread_mutex_lock(&p->lock);
    *p->tail = j;
    p->tail = &j->next;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
    return true;
}
