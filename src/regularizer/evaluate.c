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

static tinker_status check_one(const tinker_regularizer *r, size_t i, tinker_error *err)
{
    if (!r->name || !r->name[0])
        return err_set(err, TINKER_EINVAL, "regularizers[%zu] has no name", i);
    if (!r->fn)
        return err_set(err, TINKER_EINVAL, "regularizer \"%s\" has no function", r->name);
    if (!isfinite(r->weight) || r->weight < 0)
        return err_set(err, TINKER_EINVAL, "regularizer \"%s\": weight %g, expected at least 0",
                       r->name, r->weight);
    return TINKER_OK;
}

static tinker_status check_options(const tinker_custom_options *o, tinker_error *err)
{
    if (!o->input_type || strcmp(o->input_type, "logprobs") != 0)
        return err_set(err, TINKER_EINVAL, "unsupported input_type \"%s\", supported: logprobs",
                       o->input_type ? o->input_type : "");
    if (o->n_regularizers && !o->regularizers)
        return err_set(err, TINKER_EINVAL, "n_regularizers is %zu, regularizers is NULL",
                       o->n_regularizers);
    for (size_t i = 0; i < o->n_regularizers; i++) {
        tinker_status s = check_one(&o->regularizers[i], i, err);
        if (s != TINKER_OK)
            return s;
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

/* ---- telling ----------------------------------------------------------------------------- */

static void tell(const struct batch *b, tinker_loss_event e)
{
    if (b->opts->observer)
        b->opts->observer(&e, b->opts->observer_state);
}

static void tell_started(const struct batch *b, const struct term *t)
{
    tell(b, (tinker_loss_event){ .name = "regularizer.compute.start",
                                 .system_time_ns = clock_wall_ns(clock_real()),
                                 .regularizer = t->spec.name,
                                 .weight = t->spec.weight,
                                 .async = t->spec.async });
}

static void tell_finished(const struct batch *b, const struct term *t)
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
    tell(b, e);
}

void tinker_loss_event_text(const tinker_loss_event *e, char *out, size_t n)
{
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

static size_t set_up(struct term *terms, const struct batch *b, tinker_loss_fn *fn, void *state)
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

static const tinker_error *first_error(const struct term *terms, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (terms[i].err.status != TINKER_OK)
            return &terms[i].err;
    return NULL;
}

static void run_regularizers(struct term *terms, size_t n, const struct batch *b)
{
    if (!b->opts->sequential) {
        for (size_t i = 0; i < n; i++)
            tell_started(b, &terms[i]);
        crew_run(terms, n, b);
        for (size_t i = 0; i < n; i++)
            tell_finished(b, &terms[i]);
        return;
    }
    for (size_t i = 0; i < n && (i == 0 || terms[i - 1].err.status == TINKER_OK); i++) {
        tell_started(b, &terms[i]);
        term_run(&terms[i], b);
        tell_finished(b, &terms[i]);
    }
}

static tinker_loss_report *run(struct term *terms, size_t n, const struct batch *b,
                               tinker_error *err)
{
    term_run(&terms[0], b);
    if (terms[0].err.status == TINKER_OK && n > 1)
        run_regularizers(terms + 1, n - 1, b);
    const tinker_error *bad = first_error(terms, n);
    if (bad) {
        *err = *bad;
        return NULL;
    }
    return report_new(terms, n, b, err);
}

tinker_loss_report *tinker_loss_evaluate(tinker_loss_fn *fn, void *state, const tinker_datum *data,
                                         const tinker_tensor *logprobs, size_t n,
                                         const tinker_custom_options *opts, tinker_error *err)
{
    tinker_custom_options ours;
    tinker_error mine;
    if (!err)
        err = &mine;
    if (evaluate_check(opts, fn, &ours, err) != TINKER_OK)
        return NULL;
    const struct batch b = { data, logprobs, n, &ours };
    struct term *terms = calloc(ours.n_regularizers + 1, sizeof(*terms));
    if (!terms) {
        err_nomem(err, "regularizers");
        return NULL;
    }
    size_t n_terms = set_up(terms, &b, fn, state);
    int64_t start = clock_now_ns(clock_real());
    tell(&b, (tinker_loss_event){ .name = "custom_loss.start",
                                  .system_time_ns = clock_wall_ns(clock_real()),
                                  .n_regularizers = n_terms - 1,
                                  .track_grad_norms = ours.track_grad_norms });
    tinker_loss_report *r = run(terms, n_terms, &b, err);
    tell(&b, (tinker_loss_event){ .name = r ? "custom_loss.stop" : "custom_loss.exception",
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
