/* pool.h - a few worker threads and a queue of jobs.
 *
 * For compression and large encodes off the I/O thread.  Jobs run in submission
 * order, several at once.  pool_free() finishes what was queued.  Thread-safe. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

struct pool;
struct pool *pool_new(int threads, const char *name);
void pool_free(struct pool *p);
bool pool_submit(struct pool *p, void (*run)(void *job), void *job); /* false: no memory */

#endif
