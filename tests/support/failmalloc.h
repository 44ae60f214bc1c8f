/* failmalloc.h - make the n-th allocation of the program fail.
 *
 *     for (long n = 1;; n++) {
 *         failmalloc_at(n);
 *         bool ok = work();
 *         if (!failmalloc_stop())
 *             break;             // it made fewer than n allocations: all were tried
 *         CHECK(!ok);
 *     }
 *
 * A test whose name ends in _nomem.c is linked with failmalloc.c.  Thread-safe. */
#ifndef SUPPORT_FAILMALLOC_H
#define SUPPORT_FAILMALLOC_H

#include <stdbool.h>

void failmalloc_at(long n);    /* the n-th from now fails, others succeed */
void failmalloc_after(long n); /* every one after the next n fails */
bool failmalloc_stop(void);    /* back to normal; true: something failed */
long failmalloc_count(void);   /* allocations since at() or after() */

#endif
