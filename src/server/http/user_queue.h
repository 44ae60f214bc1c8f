/* user_queue.h - a few worker threads that users share fairly.
 *
 * A free thread takes the oldest job of the user with the fewest jobs running, so a user who sends
 * a hundred large bodies delays the next user by one of them, not by all.
 *
 * Thread safety: any thread, any time; freeing by the thread that made it. */
#ifndef SERVER_USER_QUEUE_H
#define SERVER_USER_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct user_queue;

/* Part of what it is about; its owner keeps it until run() was called. */
struct user_job {
    void (*run)(struct user_job *job); /* on a worker thread; job may be gone afterwards */
    uint64_t user;                     /* whose work it is: any number per user */
    struct user_job *next;             /* the queue's */
};

struct user_queue *user_queue_new(int threads, const char *name); /* NULL: no memory or threads */
/* Runs what was submitted, then ends the threads. */
void user_queue_free(struct user_queue *q);
bool user_queue_submit(struct user_queue *q, struct user_job *job); /* false: no memory */

#endif
