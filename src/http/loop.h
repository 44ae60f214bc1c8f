/* loop.h - the I/O thread: descriptors, deadlines and tasks from other threads.
 *
 * One thread runs everything that belongs to a loop, so what it owns needs no lock.
 * Timers follow the loop's clock, which a test may drive; "real" timers follow the
 * machine's and serve only the transport's own needs.
 *
 * Thread safety: loop_post(), loop_busy() and loop_on_thread() from any thread;
 * everything else on the loop thread (or before it starts). */
#ifndef HTTP_LOOP_H
#define HTTP_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/clock.h"
#include "http/timers.h"

struct loop;

/* A member of its owner; posted at most once until it runs. */
struct loop_task {
    struct loop_task *next;
    void (*run)(struct loop_task *t);
};

typedef void loop_ready(void *arg, int fd, unsigned epoll_events);

struct loop *loop_new(struct clock *clock, tinker_error *err); /* not running yet */
tinker_status loop_start(struct loop *l, tinker_error *err);   /* on a thread of its own */
void loop_run(struct loop *l);   /* on the calling thread, until loop_stop() */
void loop_stop(struct loop *l);  /* any thread; queued tasks are run before it ends */
void loop_join(struct loop *l);  /* until the thread of loop_start() has ended */
void loop_drain(struct loop *l); /* after that: run what was posted too late for it, here */
void loop_free(struct loop *l);  /* after its thread has ended, and nobody posts; joins */

struct clock *loop_clock(const struct loop *l);
int64_t loop_now_ns(struct loop *l); /* on its thread: when this step began */
bool loop_on_thread(const struct loop *l);
void loop_post(struct loop *l, struct loop_task *t);
void loop_wake(struct loop *l); /* any thread; look at the clock again */
/* Run t when this turn's events, tasks and timers are done: for what several of them ask for. */
void loop_at_turn_end(struct loop *l, struct loop_task *t);

/* Work that is under way outside the loop (a worker's job, an HTTP exchange) and will
 * come back: what a test must wait for before it moves the clock.  delta +1 or -1. */
void loop_busy(struct loop *l, int delta);
int loop_busy_count(const struct loop *l);
/* Exchanges that were given up before they ended; loop thread. */
void loop_note_aborted(struct loop *l);
int loop_aborted(const struct loop *l);

/* Has this process a descriptor left? */
bool loop_can_open(const struct loop *l);

void loop_arm(struct loop *l, struct timer *t, int64_t delay_ms);
void loop_disarm(struct loop *l, struct timer *t);
int64_t loop_next_ns(const struct loop *l); /* of the timers on the clock */
void loop_arm_real(struct loop *l, struct timer *t, int64_t delay_ms);
void loop_disarm_real(struct loop *l, struct timer *t);

/* Watch fd for EPOLLIN and EPOLLOUT bits; again: changes them.  false: no memory. */
bool loop_watch(struct loop *l, int fd, unsigned events, loop_ready *ready, void *arg);
void loop_unwatch(struct loop *l, int fd);
/* As loop_unwatch(), but the kernel is not told: watching fd again for the same costs
 * nothing.  For a descriptor that is certain to be unwatched before it is closed. */
void loop_park(struct loop *l, int fd);

#endif
