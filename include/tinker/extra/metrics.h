/* metrics.h - numbers about this process, kept in this process.
 *
 * A metric is a counter, a gauge or a histogram, known by its name; the first record
 * makes it.  The library counts its own requests (see tinker_service_options), and a
 * program may add what it likes.  Nothing of it leaves the machine.
 *
 * Recording takes no lock and never waits.  At most 4096 names of at most 200 bytes are
 * kept; records under further or longer names are ignored. */
#ifndef TINKER_EXTRA_METRICS_H
#define TINKER_EXTRA_METRICS_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/tokenizer.h> /* tinker_text */

#ifdef __cplusplus
extern "C" {
#endif

/* Thread safety of the functions that record: any thread, any time. */
TINKER_API void tinker_counter_add(const char *name, int64_t delta);
TINKER_API void tinker_gauge_set(const char *name, double value);
/* A value that is not finite is ignored. */
TINKER_API void tinker_histogram_record(const char *name, double ms);

/* How many of its last values a histogram keeps for its percentiles: 1000 by
 * default, at most a million.  For histograms that are first recorded from now on. */
TINKER_API void tinker_metrics_retain(size_t n);

/* Every record made before this call, by any thread, is part of later snapshots. */
TINKER_API void tinker_metrics_flush(void);
/* Counters and gauges back to 0, histograms back to empty; the names stay.  What other
 * threads record meanwhile may or may not survive. */
TINKER_API void tinker_metrics_reset(void);

/* ---- reading -------------------------------------------------------------------------- */

enum { TINKER_HISTOGRAM_BUCKETS = 13 };

typedef struct tinker_counter {
    const char *name;
    int64_t value;
} tinker_counter;

typedef struct tinker_histogram {
    const char *name;
    int64_t count;
    double sum;
    /* NaN as long as count is 0.  Percentiles are of the values that are kept: p50 is the
     * median, the others the smallest value that is not below p percent of them. */
    double mean, min, max, p50, p95, p99;
    /* Values at most 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000 ms and not in
     * the one before; the last: larger ones. */
    int64_t buckets[TINKER_HISTOGRAM_BUCKETS];
} tinker_histogram;

/* All metrics, each list in the order of names.  Thread safety: plain data. */
typedef struct tinker_metrics {
    const tinker_counter *counters;
    size_t n_counters;
    const tinker_named_number *gauges;
    size_t n_gauges;
    const tinker_histogram *histograms;
    size_t n_histograms;
} tinker_metrics;

/* Returns a new snapshot, or NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_metrics *tinker_metrics_snapshot(tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_metrics_free(tinker_metrics *m);

/* One metric of a snapshot: 0 for a counter that is not there, NULL for a histogram.  For
 * gauges: tinker_metric(). */
TINKER_API int64_t tinker_metrics_counter(const tinker_metrics *m, const char *name);
TINKER_API const tinker_histogram *tinker_metrics_histogram(const tinker_metrics *m,
                                                            const char *name);
/* Append the snapshot in the text format of Prometheus to *out, which stays yours:
 *
 *     tinker_text text = TINKER_TEXT_INIT;
 *     if (tinker_metrics_text(m, &text, &err) == TINKER_OK)
 *         fputs(text.s, stdout);
 *     tinker_text_clear(&text);
 *
 * TINKER_ENOMEM; *out is unchanged then.  Does not block. */
TINKER_API tinker_status tinker_metrics_text(const tinker_metrics *m, tinker_text *out,
                                             tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
