/* train_view.h - what `tinker train` shows on stderr: the plan, a line that moves, results.
 *
 * On a terminal one line is redrawn and fits its width; elsewhere every step has a line. */
#ifndef CLI_TRAIN_VIEW_H
#define CLI_TRAIN_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/recipe.h>
#include "base/buf.h"

struct train_view {
    bool live;      /* one line that is redrawn */
    bool line_open; /* it stands there */
    double *values; /* of the sparkline */
    size_t n, cap;
    int64_t start_ns;
    size_t tokens; /* since the start */
};

void train_view_init(struct train_view *v);
void train_view_clear(struct train_view *v);
/* "label  text", unless --quiet; on a line of its own. */
void train_view_say(struct train_view *v, const char *label, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Step number done (from 1) of total, with the value that the sparkline shows; `numbers` are
 * further parts, "acc 0.88  margin 1.30", or "". */
void train_view_step(struct train_view *v, size_t done, size_t total, size_t first,
                     const char *name, double value, const char *numbers, double rate,
                     size_t tokens);
/* The tokens of a rendered row, those that are trained in green (or between ‹ ›). */
void train_view_example(struct train_view *v, const tinker_datum *d,
                        const tinker_tokenizer *tokenizer, size_t number, size_t of);
/* "1,234,567" */
void train_view_count(struct buf *out, size_t n);
double train_view_seconds(const struct train_view *v);

#endif
