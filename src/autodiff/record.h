/* record.h - what was computed on a tape, so that it can be written down as a graph.
 *
 * A tape that records keeps a list of its operations in order.  An operation that is made of others
 * whose numbers depend on lengths (a mean is a sum times 1/n) is recorded as itself: the others run
 * between record_begin() and record_end(). */
#ifndef AUTODIFF_RECORD_H
#define AUTODIFF_RECORD_H

#include "autodiff/tape.h"

struct record {
    struct record *next;
    const char *op;
    tinker_var *y, **parents;
    size_t n_parents;
    int axis, keep, correction; /* axis TINKER_ALL: over all elements */
    bool call;                  /* from record_end(): the three above say how it was called */
};

/* Record from now on; what was made before are the inputs of the graph. */
void record_start(tinker_tape *t);
const struct record *record_first(const tinker_tape *t);

/* A metric that is a value: on a tape that records, which one. */
struct record_metric {
    struct record_metric *next;
    const char *name;
    tinker_var *value;
};

/* false, or true when a call begins that hides what it is made of. */
bool record_begin(tinker_var *a);
/* y, which it returns. */
tinker_var *record_end(bool began, const char *op, tinker_var *a, tinker_var *y, int axis, int keep,
                       int correction);
/* Every node passes here. */
void record_node(tinker_var *y, const struct rule *rule, tinker_var *const *parents,
                 size_t n_parents);

#endif
