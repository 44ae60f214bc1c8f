/* sample_retry.h - layer 3: how samples of one sampling session share permits and progress.
 *
 * A permit covers a whole logical sample: dispatch, polling and back-off.  When no
 * sample of the group has completed for progress_ms, those under way are taken for
 * stuck.  Shared by clients of one session with equal settings.  Loop thread. */
#ifndef CLIENT_SAMPLE_RETRY_H
#define CLIENT_SAMPLE_RETRY_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/sampling.h>
#include "client/io/budget.h"

struct session;

enum { SAMPLE_RETRY_ERRORS = 8 };

struct sample_retry {
    struct sample_retry *next;
    struct session *session;
    int refs;
    char *session_id;
    tinker_retry_options opts;
    struct budget permits;
    int64_t progress_ns;                   /* when a sample last completed */
    int running;                           /* samples that hold a permit */
    int64_t waiting, completed, logged_ns; /* for the progress line */
    struct sample_retry_error {
        int n; /* since the last line; 0: free */
        char text[160];
    } errors[SAMPLE_RETRY_ERRORS]; /* the first few different ones */
};

struct sample_retry *sample_retry_ref(struct session *h, const char *session_id,
                                      const tinker_retry_options *opts, tinker_error *err);
void sample_retry_unref(struct sample_retry *h);
void sample_retry_enter(struct sample_retry *h); /* a sample got its permit */
void sample_retry_leave(struct sample_retry *h, bool completed);
void sample_retry_failed(struct sample_retry *h,
                         const tinker_error *err); /* an attempt, whatever follows */
/* Give the permit back, or wait for it no more; harmless without either.  h may be NULL then. */
void sample_retry_release(struct sample_retry *h, struct budget_wait *permit);
tinker_status sample_retry_check(const tinker_retry_options *o, tinker_error *err);

#endif
