/* history.h - the metrics of every run, recorded while it trains and kept in the store.
 *
 * history_add() only touches memory, so the engine thread never waits for the disk; the timer
 * thread writes what is new every half second, and whoever reads does so first.  A process that is
 * killed loses at most the last half second of points, never of training.
 *
 * A long series is thinned: its newest points stay as they are, older ones are merged, with
 * minimum, maximum and mean.  Thread-safe. */
#ifndef SERVER_HISTORY_H
#define SERVER_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/log.h"
#include "server/store/store.h"

enum {
    HISTORY_MAX_POINTS = 7168,   /* of a series in the store; above, it is thinned */
    HISTORY_MAX_SERIES = 256,    /* of a run */
    HISTORY_MAX_NAME = 128,      /* bytes of a metric's name */
    HISTORY_MAX_TEXTS = 1000,    /* of a run; older ones are deleted */
    HISTORY_MAX_TEXT = 64 << 10, /* bytes of one */
};

struct history;

/* What a second value of the same step does to the first: a batch may come in several requests. */
enum history_merge { HISTORY_REPLACE, HISTORY_SUM, HISTORY_MEAN, HISTORY_MIN, HISTORY_MAX };

struct history_value {
    const char *name;
    double value;
    enum history_merge merge;
    double weight; /* HISTORY_MEAN: how much the value counts */
};

struct history *history_new(struct store *store, const struct log *log); /* NULL: no memory */
void history_free(struct history *h); /* what was not flushed is lost */
/* Record values of a step.  Those over the limit of a run are left out; false says so. */
bool history_add(struct history *h, const char *run, int64_t step, const struct history_value *v,
                 size_t n);
/* Nothing more is expected of a run: it leaves memory with the next flush.  Takes only a leaf lock,
 * so it may be called under any other. */
void history_finish(struct history *h, const char *run);
/* Write everything that is new.  Does I/O. */
tinker_status history_flush(struct history *h, tinker_error *err);

#endif
