/* runtime.h - what all services of a process share: the I/O thread and two helpers.
 *
 * Started by the first service, ended by the last.  The workers compress, decode and
 * run commands; the callback thread calls the user's callbacks (log, queue state, progress),
 * one at a time and in order, so that no code of the user ever runs on the I/O thread.
 *
 * Thread safety: any thread, any time, except `rng`, which belongs to the loop. */
#ifndef CLIENT_RUNTIME_H
#define CLIENT_RUNTIME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <tinker/error.h>
#include "base/clock.h"
#include "base/pool.h"
#include "base/rand.h"
#include "http/http.h"
#include "http/loop.h"

/* Connections of all services, by what they are for.  Those that keep sessions alive are few, and
 * belong to none: nothing else can keep them waiting. */
enum runtime_budget { BUDGET_SAMPLE, BUDGET_POLL, BUDGET_OTHER, BUDGET_COUNT };

struct runtime {
    struct loop *loop;
    struct clock *clock;
    struct pool *workers, *callback_thread;
    struct rng rng;                              /* jitter; loop thread */
    double (*uniform)(struct runtime *rt);       /* [0, 1); tests replace it */
    int refs;                                    /* under the lock of runtime.c */
    pid_t pid;                                   /* of the process that started it */
    atomic_int lines;                            /* of logs, with the callback thread */
    int64_t file_limit;                          /* of the process when it started */
    int max_sockets;                             /* of all budgets together */
    struct socket_budget *budgets[BUDGET_COUNT]; /* NULL: no bound */
    bool told_full, told_none;                   /* loop thread: that connections wait, and why */
    struct loop_task mark;
};

struct runtime *runtime_ref(tinker_error *err);
void runtime_unref(struct runtime *rt);
/* The clock of runtimes started from now on; NULL: the real one.  For tests. */
void runtime_use_clock(struct clock *clock);
struct runtime *runtime_current(void); /* NULL: none runs; not counted */

/* A job off the loop; the loop counts as busy until it is back.  On the loop thread. */
struct runtime_job {
    struct loop_task back;
    struct runtime *rt;
    void (*work)(struct runtime_job *j); /* on a worker */
    void (*done)(struct runtime_job *j); /* on the loop thread */
};
bool runtime_work(struct runtime *rt, struct runtime_job *j); /* false: no memory */

/* Run fn(arg) on the callback thread, in order with everything handed to it before. */
bool runtime_post_callback(struct runtime *rt, void (*fn)(void *arg), void *arg);
void runtime_drain_callbacks(struct runtime *rt); /* wait for what was handed over; not on it */

/* Run fn(arg) on the loop thread and wait for it; not on the loop thread. */
void runtime_sync(struct runtime *rt, void (*fn)(void *arg), void *arg);

/* TINKER_ESTATE when the calling thread is one of the library's, where waiting would
 * block what is waited for, or the process is a fork of the one that started it. */
bool runtime_is_own_thread(void); /* the loop's, the callback thread's, or one marked */
/* This thread runs the user's code for the library: it may not block from here on. */
void runtime_mark_thread(void);
tinker_status runtime_may_block(const char *what, tinker_error *err);

#endif
