/* report.h - what the state machines tell about their failures: telemetry events, local
 * metrics and debug lines, in one place so that the machines stay readable.
 * Runs on the loop thread. */
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include "client/call.h"

/* An HTTP attempt is about to be sent. */
void report_attempt(struct call *c);
/* A whole try of layer 2 failed. */
void report_try(struct call *c, bool retryable, int64_t elapsed_ms);

#endif
