/* run_history.h - the metrics of a run as the commands `run metrics`, `plot` and `watch` see them. */
#ifndef CLI_RUN_HISTORY_H
#define CLI_RUN_HISTORY_H

#include "base/arena.h"
#include "cli/service/api.h"
#include "recipe/plot.h"

enum { HISTORY_SERIES_MAX = 512 };

/* One metric: values over steps; min and max of each point where the server thinned. */
struct history_metric {
    const char *name;
    double *steps, *values;
    size_t n;
    double low, top; /* of all values, thinned ones included */
};

struct run_history {
    struct arena arena;
    struct history_metric metrics[HISTORY_SERIES_MAX];
    size_t n;
};

/* Where a run is. */
struct run_progress {
    const char *id, *name, *state; /* name "": none */
    int64_t step, planned_steps;
    double loss, tokens_per_second, seconds_left; /* NAN: not known */
};

/* What to ask for; zero: everything. */
struct run_query {
    const char *names; /* separated by commas */
    int64_t from, to, max_points;
};

/* The run that the user means: an id, a name, or "last".  Strings live in the arena.  false after
 * the error was printed. */
bool run_history_find(struct api *a, const char *text, struct arena *arena,
                      struct run_progress *out, int *status);
/* Fetch metrics; free with run_history_clear() in either case. */
bool run_history_fetch(struct api *a, const char *id, const struct run_query *q,
                       struct run_history *out, int *status);
void run_history_clear(struct run_history *h);
/* The body of the server's own answer, for --json and --format csv: a future, or NULL. */
tinker_future *run_history_ask(struct api *a, const char *id, const struct run_query *q,
                               const char *format, int *status);
const struct history_metric *run_history_metric(const struct run_history *h, const char *name);

#endif
