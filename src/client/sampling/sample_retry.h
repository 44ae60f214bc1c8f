/* sample_retry.h - layer 3: how samples of one sampling session share permits and progress.
 *
 * A permit covers a whole logical sample: dispatch, polling and back-off.  When no
 * sample of the handler has completed for progress_ms, those under way are taken for
 * stuck.  Shared by clients of one session with equal settings.  Loop thread. */
#ifndef CLIENT_HANDLER_H
#define CLIENT_HANDLER_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/sampling.h>
#include "client/io/budget.h"

struct session;

enum { HANDLER_ERRORS = 8 };

struct handler {
    struct handler *next;
    struct session *session;
    int refs;
    char *session_id;
    tinker_retry_options opts;
    struct budget permits;
    int64_t progress_ns;                   /* when a sample last completed */
    int running;                           /* samples that hold a permit */
    int64_t waiting, completed, logged_ns; /* for the progress line */
    struct handler_error {
        int n; /* since the last line; 0: free */
        char text[160];
    } errors[HANDLER_ERRORS]; /* the first few different ones */
};

struct handler *handler_ref(struct session *h, const char *session_id,
                            const tinker_retry_options *opts, tinker_error *err);
void handler_unref(struct handler *h);
void handler_enter(struct handler *h); /* a sample got its permit */
void handler_leave(struct handler *h, bool completed);
void handler_failed(struct handler *h, const tinker_error *err); /* an attempt, whatever follows */
/* Give the permit back, or wait for it no more; harmless without either.  h may be NULL then. */
void handler_release(struct handler *h, struct budget_wait *permit);
tinker_status handler_check(const tinker_retry_options *o, tinker_error *err);

#endif
