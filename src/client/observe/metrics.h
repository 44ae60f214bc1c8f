/* metrics.h - the process-wide registry of metrics, and those the client itself keeps.
 *
 * Metrics live as long as the process, so a pointer to one never dangles and recording
 * needs no lock.  Thread safety: any thread, any time. */
#ifndef CLIENT_METRICS_H
#define CLIENT_METRICS_H

#include <stdint.h>

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric;

/* Find or make; NULL: no memory, or too many names.  The three below ignore NULL. */
struct metric *metric_get(enum metric_kind kind, const char *name);
void metric_add(struct metric *m, int64_t delta);
void metric_set(struct metric *m, double value);
void metric_record(struct metric *m, double ms);

/* What is recorded about every service that does not say otherwise. */
struct own_metrics {
    struct metric *requests, *successes, *failures, *duration;
    struct metric *attempt_retries, *try_retries, *sample_retries; /* layers 1, 2, 3 */
    struct metric *polls, *rate_limited, *queue_pauses;
    struct metric *telemetry_dropped, *events_dropped, *circuit_refused;
};

/* Names begin with prefix and "_".  What cannot be had stays NULL and is not recorded. */
void own_metrics_init(struct own_metrics *o, const char *prefix);

#endif
