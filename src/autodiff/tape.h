/* tape.h - the inside of tinker_tape and tinker_var.
 *
 * A var is a node: its numbers, and how it came about if a loss is differentiated by
 * what it was made of.  Gradient rules are written with the same operations as losses, so
 * a gradient is an ordinary value and can be differentiated again.  Nodes that need a
 * gradient are linked in order of creation, which is a topological order.
 *
 * Errors stick: after the first, operations return `broken`, a scalar NaN. */
#ifndef AUTODIFF_TAPE_H
#define AUTODIFF_TAPE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <tinker/custom_loss.h>
#include <tinker/extra/autodiff.h>
#include "base/arena.h"

enum { RANK_MAX = 4 };

struct shape {
    size_t ndim, n; /* n: elements */
    size_t dim[RANK_MAX];
};

/* How an operation passes its gradient g on: grad_push() for each parent. */
struct rule {
    const char *name;
    void (*back)(tinker_var *y, tinker_var *g);
};

struct tinker_var {
    tinker_tape *tape;
    struct shape shape;
    const double *data;      /* NULL: still in floats; see tape_numbers() */
    const float *floats;     /* of the caller: what a dot product reads as it is */
    const struct rule *rule; /* NULL: a leaf or a constant */
    tinker_var **parents;    /* NULL unless needs_grad */
    size_t n_parents;
    bool needs_grad;
    tinker_var *earlier; /* that needs a gradient */
    tinker_var *grad;    /* of the last walk */
    double *sum;         /* its numbers, while not shared; see grad_sum() */
    /* parameters of the operation */
    double p[3];
    int axis;
    size_t start, step, k;
    const int64_t *index;
    const int *axes;
};

struct tape_metric {
    struct tape_metric *next;
    const char *name, *text; /* text NULL: a number */
    double value;
};

struct tinker_tape {
    struct arena arena;
    tinker_error err;
    tinker_var broken;
    double nan;
    tinker_var *last;          /* that needs a gradient */
    bool constants_only;       /* during a walk whose result is final */
    const atomic_bool *cancel; /* may be NULL */
    struct tape_metric *metrics, **metrics_end;
    /* see record.h */
    bool recording;
    unsigned hidden; /* calls that are recorded as themselves, one within the other */
    struct record *records, **records_end;
    struct record_metric *recorded_metrics;
    bool sums_metrics; /* those of several datums add up */
};

/* ---- making nodes ------------------------------------------------------------------------ */

/* A node with space for its numbers in *data, or tape->broken with *data NULL: then the
 * operation returns it at once. */
tinker_var *tape_node(tinker_tape *t, const struct rule *rule, const struct shape *shape,
                      tinker_var *const *parents, size_t n_parents, double **data);
tinker_var *tape_node1(const struct rule *rule, const struct shape *shape, tinker_var *a,
                       double **data);
tinker_var *tape_node2(const struct rule *rule, const struct shape *shape, tinker_var *a,
                       tinker_var *b, double **data);
/* As tape_node(), for an operation that reads its operands itself and fills all of *data. */
tinker_var *tape_node_unfilled(tinker_tape *t, const struct rule *rule, const struct shape *shape,
                               tinker_var *const *parents, size_t n_parents, double **data);
/* The same numbers in another shape; not copied. */
tinker_var *tape_view(const struct rule *rule, const struct shape *shape, tinker_var *a);
tinker_var *tape_constant(tinker_tape *t, const struct shape *shape, double **data);
/* A constant whose numbers stay where they are; they outlive the tape. */
tinker_var *tape_floats(tinker_tape *t, const struct shape *shape, const float *v);
tinker_var *tape_error(tinker_tape *t, tinker_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The numbers of v as doubles, converted when they are first asked for; NULL after an error.  Node
 * makers and tape_usable() ask for those of their operands. */
const double *tape_numbers(tinker_var *v);
/* Are a and b values of one tape that has no error yet?  NULL counts as an error. */
bool tape_usable(tinker_var *a, tinker_var *b, const char *op);
/* The same without asking for their numbers. */
bool tape_same(tinker_var *a, tinker_var *b, const char *op);
/* What an operation on a, b returns when they are not usable. */
tinker_var *tape_broken(tinker_var *a, tinker_var *b);

/* ---- walking back ------------------------------------------------------------------------ */

void grad_push(tinker_var *parent, tinker_var *g);
/* The gradient of v so far, to add to in place: what many operations use, element by element
 * perhaps, must not cost an array for each of them.  NULL: use grad_push(), because the gradient
 * will be differentiated or v needs none, or after an error. */
double *grad_sum(tinker_var *v);

/* ---- shapes ------------------------------------------------------------------------------ */

bool shape_set(struct shape *s, const int64_t *dim, size_t ndim); /* false: not a shape */
bool shape_equal(const struct shape *a, const struct shape *b);
/* The shape both broadcast to; false: none. */
bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out);
/* "[2, 3]" */
const char *shape_text(const struct shape *s, char out[96]);
/* axis counted from 0; false: no such axis. */
bool shape_axis(const struct shape *s, int axis, size_t *out);
/* Numbers before, along and after an axis: element (o, k, i) is at (o*n + k)*inner + i. */
struct span {
    size_t outer, n, inner;
};
/* s with another length of one axis; false: too large. */
bool shape_resize(const struct shape *s, size_t axis, size_t n, struct shape *out);
struct span shape_span(const struct shape *s, size_t axis);

/* ---- shared between the operations ------------------------------------------------------- */

tinker_var *var_broadcast_to(tinker_var *a, const struct shape *s); /* repeats */
tinker_var *var_sum_to(tinker_var *a, const struct shape *s);       /* its reverse: adds up */
tinker_var *var_reshape(tinker_var *a, const struct shape *s);
tinker_var *var_recip(tinker_var *a); /* 1/a, 0 at 0 */
tinker_var *var_erf(tinker_var *a);
tinker_var *var_keep(tinker_var *g, tinker_var *mask); /* g where mask, else 0 */
tinker_var *tape_leaf_tensor(tinker_tape *t, const tinker_tensor *x);
tinker_var *var_zeros(tinker_tape *t, const struct shape *s);

#endif
