/* wait_table.h - waiting for an object and waking its waiters, by its address.
 *
 * Bells are shared and never destroyed.  So one may be rung after the lock is released,
 * when the object may already be gone: a thread that wakes finds the lock free.  Waiters
 * of another object may hear the ring; everybody looks again. */
#ifndef CLIENT_WAIT_TABLE_H
#define CLIENT_WAIT_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Release lock, wait, take it again; until deadline (CLOCK_MONOTONIC ms, -1: none), false:
 * it has passed. */
bool wait_table_wait(const void *object, pthread_mutex_t *lock, int64_t deadline_ms);
void wait_table_wake(const void *object); /* wakes all waiters; any thread */

#endif
