/* term.h - one term of a loss, the loss itself or a regularizer, and its evaluation.
 *
 * A term has a tape of its own, so several can run at once; they share nothing but the
 * batch, which is read-only. */
#ifndef REGULARIZER_TERM_H
#define REGULARIZER_TERM_H

#include <tinker/custom_loss.h>
#include "autodiff/tape.h"

struct batch {
    const tinker_datum *data;
    const tinker_tensor *logprobs;
    size_t n;
    const tinker_custom_options *opts;
};

struct term {
    tinker_regularizer spec; /* name NULL: the loss itself */
    bool want_gradient;
    tinker_tape *tape;
    tinker_var **leaves;
    double value, grad_norm;
    bool has_gradient;
    tinker_error err; /* status TINKER_OK: it worked */
    int64_t duration_ns;
    /* the lock of term_threads.c: */
    int64_t deadline_ns; /* 0: not started */
    bool done, timed_out;
    atomic_bool cancel;
};

void term_run(struct term *t, const struct batch *b); /* any thread */
void term_clear(struct term *t);
/* Gradient by datum i, NULL: it does not depend on it. */
const double *term_gradient(const struct term *t, size_t i);

/* Run terms[0..n) on threads; each is done or has failed afterwards. */
void term_threads_run(struct term *terms, size_t n, const struct batch *b);

/* ---- report.c ---------------------------------------------------------------------------- */

/* The loss is terms[0].  NULL: *err says why. */
tinker_loss_report *report_new(const struct term *terms, size_t n, const struct batch *b,
                               tinker_error *err);

#endif
