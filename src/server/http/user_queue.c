/* user_queue.c - see user_queue.h.
 *
 * The threads are those of base/pool.h.  For every job that is submitted the pool gets one order to
 * run "the next job"; which one that is, is decided when a thread has time for it.  A user has a
 * line while jobs of theirs wait or run; there are only as many lines as users with large requests
 * at the same time, so they are a list. */
#include "server/http/user_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/pool.h"

/* The jobs of one user. */
struct line {
    uint64_t user;
    size_t running;
    struct user_job *first, **last; /* waiting */
    struct line *next;
};

struct user_queue {
    struct pool *threads;
    pthread_mutex_t lock;
    struct line *lines; /* lock */
};

struct user_queue *user_queue_new(int threads, const char *name)
{
    struct user_queue *q = calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    pthread_mutex_init(&q->lock, NULL);
    q->threads = pool_new(threads, name);
    if (q->threads)
        return q;
    user_queue_free(q);
    return NULL;
}

void user_queue_free(struct user_queue *q)
{
    if (!q)
        return;
    pool_free(q->threads); /* every line is empty then, and was freed */
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* The line whose turn it is; one with a waiting job exists. */
static struct line *choose_line_locked(struct user_queue *q)
{
    struct line *best = NULL;
    for (struct line *l = q->lines; l; l = l->next)
        if (l->first && (!best || l->running < best->running))
            best = l;
    return best;
}

static void unlink_line_locked(struct user_queue *q, struct line *line)
{
    struct line **p = &q->lines;
    while (*p != line)
        p = &(*p)->next;
    *p = line->next;
}

/* At the end, so that lines of equal right take turns. */
static void append_line_locked(struct user_queue *q, struct line *line)
{
    struct line **p = &q->lines;
    while (*p)
        p = &(*p)->next;
    line->next = NULL;
    *p = line;
}

/* Free the line unless it has work. */
static void close_line_locked(struct user_queue *q, struct line *line)
{
    if (line->first || line->running)
        return;
    unlink_line_locked(q, line);
    free(line);
}

static void run_next(void *arg)
{
    struct user_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    struct line *l = choose_line_locked(q);
    struct user_job *job = l->first;
    l->first = job->next;
    if (!l->first)
        l->last = &l->first;
    l->running++;
    unlink_line_locked(q, l);
    append_line_locked(q, l);
    pthread_mutex_unlock(&q->lock);
    job->run(job);
    pthread_mutex_lock(&q->lock);
    l->running--;
    close_line_locked(q, l);
    pthread_mutex_unlock(&q->lock);
}

/* Find the user's line, or add one; NULL: no memory. */
static struct line *find_line_locked(struct user_queue *q, uint64_t user)
{
    struct line *l = q->lines;
    while (l && l->user != user)
        l = l->next;
    if (l)
        return l;
    l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->user = user;
    l->last = &l->first;
    append_line_locked(q, l);
    return l;
}

bool user_queue_submit(struct user_queue *q, struct user_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    struct line *l = find_line_locked(q, job->user);
    struct user_job **at = l ? l->last : NULL;
    if (l) {
        *at = job;
        l->last = &job->next;
    }
    /* Under the lock: no thread looks for the job before it is there. */
    bool ok = l && pool_submit(q->threads, run_next, q);
    if (l && !ok) { /* it was the last in its line */
        *at = NULL;
        l->last = at;
        close_line_locked(q, l);
    }
    pthread_mutex_unlock(&q->lock);
    return ok;
}
