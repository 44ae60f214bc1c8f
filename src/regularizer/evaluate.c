/* evaluate.c - a loss and its regularizers: check, run, combine, tell.
 *
 * The loss runs first, in the calling thread; when it fails nothing else runs.  Of several
 * failing regularizers the first in the order of the list is reported. */
#include "regularizer/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "base/clock.h"
#include "base/err.h"
#include "regularizer/term.h"

/* ---- checks ------------------------------------------------------------------------------ */

static tinker_status check_options(const tinker_custom_options *o, tinker_error *err)
{
    if (!o->input_type || strcmp(o->input_type, "logprobs") != 0)
        return err_set(err, TINKER_EINVAL, "unsupported input_type \"%s\", supported: logprobs",
                       o->input_type ? o->input_type : "");
    /* Checked before anything is sent: a mistake costs no forward pass. */
    if (o->n_regularizers && !o->regularizers)
        return err_set(err, TINKER_EINVAL, "n_regularizers is %zu, regularizers is NULL",
                       o->n_regularizers);
    for (size_t i = 0; i < o->n_regularizers; i++) {
        const tinker_regularizer *r = &o->regularizers[i];
        if (!r->name || !r->name[0])
            return err_set(err, TINKER_EINVAL, "regularizers[%zu] has no name", i);
        if (!r->fn)
            return err_set(err, TINKER_EINVAL, "regularizer \"%s\" has no function", r->name);
        if (!isfinite(r->weight) || r->weight < 0)
            return err_set(err, TINKER_EINVAL, "regularizer \"%s\": weight %g, expected at least 0",
                           r->name, r->weight);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->regularizers[i].name, o->regularizers[k].name) == 0)
                return err_set(err, TINKER_EINVAL, "two regularizers are called \"%s\"",
                               o->regularizers[i].name);
    }
    return TINKER_OK;
}

tinker_status evaluate_check(const tinker_custom_options *opts, tinker_loss_fn *fn,
                             tinker_custom_options *ours, tinker_error *err)
{
    *ours = (tinker_custom_options)TINKER_CUSTOM_OPTIONS_INIT;
    tinker_status s = opts_copy(ours, sizeof(*ours), opts, "tinker_custom_options", err);
    if (s == TINKER_OK && !fn)
        s = err_set(err, TINKER_EINVAL, "a custom loss needs a function");
    return s == TINKER_OK ? check_options(ours, err) : s;
}

/* ---- events ------------------------------------------------------------------------------ */

/* In the calling thread; the observer may read the event during the call only. */
static void notify_observer(const struct batch *b, tinker_loss_event e)
{
    if (b->opts->observer)
        b->opts->observer(&e, b->opts->observer_state);
}

static void notify_started(const struct batch *b, const struct term *t)
{
    notify_observer(b, (tinker_loss_event){ .name = "regularizer.compute.start",
                                            .system_time_ns = clock_wall_ns(clock_real()),
                                            .regularizer = t->spec.name,
                                            .weight = t->spec.weight,
                                            .async = t->spec.async });
}

static void notify_finished(const struct batch *b, const struct term *t)
{
    tinker_loss_event e = { .name = "regularizer.compute.stop",
                            .duration_ns = t->duration_ns,
                            .regularizer = t->spec.name,
                            .weight = t->spec.weight,
                            .async = t->spec.async,
                            .value = t->value,
                            .contribution = t->spec.weight * t->value,
                            .has_grad_norm = b->opts->track_grad_norms && t->has_gradient,
                            .grad_norm = t->grad_norm };
    if (t->err.status != TINKER_OK) {
        e.name = "regularizer.compute.exception";
        e.reason = t->err.message;
    }
    notify_observer(b, e);
}

/* For observers that only print. */
void tinker_loss_event_text(const tinker_loss_event *e, char *out, size_t n)
{
    /* One line for a log.  Start events have a time, stop events a duration, failures a reason. */
    double ms = (double)e->duration_ns / 1e6;
    char norm[48] = "";
    if (e->has_grad_norm)
        snprintf(norm, sizeof(norm), ", gradient norm %.4f", e->grad_norm);
    if (e->reason)
        snprintf(out, n, "%s%s failed after %.1f ms: %s", e->regularizer ? "regularizer " : "",
                 e->regularizer ? e->regularizer : "custom loss", ms, e->reason);
    else if (e->regularizer && e->system_time_ns)
        snprintf(out, n, "regularizer %s starts, weight %g", e->regularizer, e->weight);
    else if (e->regularizer)
        snprintf(out, n, "regularizer %s: value %.4f, contribution %.4f%s, %.1f ms", e->regularizer,
                 e->value, e->contribution, norm, ms);
    else if (e->system_time_ns)
        snprintf(out, n, "custom loss starts: %zu regularizers, gradient norms %s",
                 e->n_regularizers, e->track_grad_norms ? "tracked" : "not tracked");
    else
        snprintf(out, n, "custom loss: total %.4f, regularizers %.4f, %.1f ms", e->loss_total,
                 e->regularizer_total, ms);
}

/* ---- running ----------------------------------------------------------------------------- */

/* The loss as the first term, then what is not disabled; returns how many.  A term of weight 0 is only
 * reported, so its gradient is wanted only for its norm. */
static size_t set_up_terms(struct term *terms, const struct batch *b, tinker_loss_fn *fn,
                           void *state)
{
    const tinker_custom_options *o = b->opts;
    size_t n = 1;
    terms[0].spec = (tinker_regularizer){ .weight = 1, .fn = fn, .state = state };
    terms[0].want_gradient = true;
    for (size_t i = 0; i < o->n_regularizers; i++) {
        if (o->regularizers[i].disabled)
            continue;
        struct term *t = &terms[n++];
        t->spec = o->regularizers[i];
        t->want_gradient = !t->spec.no_gradient && (t->spec.weight > 0 || o->track_grad_norms);
    }
    return n;
}

/* Events come from this thread in the order of the list, also when the terms run in others. */
static void run_regularizers(struct term *terms, size_t n, const struct batch *b)
{
    if (!b->opts->sequential) {
        /* All start events come before the first term runs: the order of threads is not seen. */
        for (size_t i = 0; i < n; i++)
            notify_started(b, &terms[i]);
        term_threads_run(terms, n, b);
        for (size_t i = 0; i < n; i++)
            notify_finished(b, &terms[i]);
        return;
    }
    /* Sequential: the first failure ends it, as it would in a loop of the caller's. */
    for (size_t i = 0; i < n && (i == 0 || terms[i - 1].err.status == TINKER_OK); i++) {
        notify_started(b, &terms[i]);
        term_run(&terms[i], b);
        notify_finished(b, &terms[i]);
    }
}

tinker_loss_report *tinker_loss_evaluate(tinker_loss_fn *fn, void *state, const tinker_datum *data,
                                         const tinker_tensor *logprobs, size_t n,
                                         const tinker_custom_options *opts, tinker_error *err)
{
    tinker_custom_options ours;
    tinker_error mine;
    /* The terms write into *err, so it must be there. */
    if (!err)
        err = &mine;
    if (evaluate_check(opts, fn, &ours, err) != TINKER_OK)
        return NULL;
    const struct batch b = { .data = data, .logprobs = logprobs, .n = n, .opts = &ours };
    struct term *terms = calloc(ours.n_regularizers + 1, sizeof(*terms));
    if (!terms) {
        err_nomem(err, "regularizers");
        return NULL;
    }
    size_t n_terms = set_up_terms(terms, &b, fn, state);
    int64_t start = clock_now_ns(clock_real());
    notify_observer(&b, (tinker_loss_event){ .name = "custom_loss.start",
                                             .system_time_ns = clock_wall_ns(clock_real()),
                                             .n_regularizers = n_terms - 1,
                                             .track_grad_norms = ours.track_grad_norms });
    term_run(&terms[0], &b);
    if (terms[0].err.status == TINKER_OK && n_terms > 1)
        run_regularizers(terms + 1, n_terms - 1, &b);
    const tinker_error *bad = NULL; /* the first in the order of the list, whatever failed first */
    for (size_t i = n_terms; i-- > 0;)
        if (terms[i].err.status != TINKER_OK)
            bad = &terms[i].err;
    if (bad)
        *err = *bad;
    tinker_loss_report *r = bad ? NULL : report_new(terms, n_terms, &b, err);
    notify_observer(&b,
                    (tinker_loss_event){ .name = r ? "custom_loss.stop" : "custom_loss.exception",
                                         .duration_ns = clock_now_ns(clock_real()) - start,
                                         .n_regularizers = n_terms - 1,
                                         .loss_total = r ? r->loss_total : 0,
                                         .regularizer_total = r ? r->regularizer_total : 0,
                                         .reason = r ? NULL : err->message });
    for (size_t i = 0; i < n_terms; i++)
        term_clear(&terms[i]);
    free(terms);
    return r;
}
