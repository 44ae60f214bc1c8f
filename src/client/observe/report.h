/* report.h - what the state machines tell about their failures: telemetry events and
 * log lines, in one place so that the machines stay readable.  Loop thread. */
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include "client/call/call.h"

struct poll;

/* An HTTP attempt is about to be sent; headers are in c->http. */
void report_attempt(struct call *c);
/* A whole try of layer 2 failed. */
void report_try(struct call *c, bool retryable);

struct report_failure {
    const tinker_error *err;
    bool should_retry;
    int attempt; /* from 1 */
    int64_t start_ns;
};
/* An attempt of layer 3 failed. */
void report_sample(struct session *h, const struct report_failure *a);

enum report_kind { /* what a poll does about a status */
                   REPORT_RETRY,
                   REPORT_BACKOFF,
                   REPORT_BUDGET,
                   REPORT_GONE,
                   REPORT_FATAL,
                   REPORT_CONNECTION
};
void report_poll_status(struct poll *p, enum report_kind kind);
void report_poll_failed(struct poll *p, const char *error, int category);
void report_poll_decode(struct poll *p, const tinker_error *err, bool proto, size_t n);
/* The deadline of a future passed. */
void report_timeout(struct session *h, const struct tinker_future *f, double timeout_s);

#endif
