/* download_progress.h - how far a download is, told to the user on the callback thread.
 *
 * A NULL progress, of a download that nobody watches, is allowed everywhere.  Loop thread, except
 * download_progress_new(). */
#ifndef CLIENT_DOWNLOAD_PROGRESS_H
#define CLIENT_DOWNLOAD_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/rest.h>
#include "client/future/operation.h"

struct download_progress;

/* *out NULL: the options want none.  false: no memory.  Marks the operation as one that calls back. */
bool download_progress_new(struct download_progress **out, const tinker_download_options *opts,
                           struct operation *op);
/* The operation has its future now. */
void download_progress_begin(struct download_progress *p, struct operation *op);
/* Tell how far it is, one message at a time; total -1: nothing is told yet.  false: the user wants to
 * stop. */
bool download_progress_tell(struct download_progress *p, struct runtime *rt, int64_t done,
                            int64_t total);
void download_progress_unref(struct download_progress *p);

#endif
