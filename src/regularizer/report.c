/* report.c - combine the terms: values and gradients are linear in the weights, so
 * nothing is evaluated again.  In the order of the list, whatever finished first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/custom_loss.h>
#include "base/buf.h"
#include "base/err.h"
#include "regularizer/term.h"

struct report {
    tinker_loss_report public; /* first */
    struct arena arena;
};

/* ---- terms ------------------------------------------------------------------------------- */

/* The report outlives the tapes: everything is copied into its arena. false: no memory. */
static bool fill_term(struct arena *a, const struct term *t, bool track, tinker_loss_term *out)
{
    out->name = t->spec.name ? arena_strdup(a, t->spec.name) : NULL;
    out->value = t->value;
    out->weight = t->spec.weight;
    out->contribution = t->spec.weight * t->value;
    out->has_grad_norm = track && t->has_gradient;
    if (out->has_grad_norm) {
        out->grad_norm = t->grad_norm;
        out->grad_norm_weighted = t->spec.weight * t->grad_norm;
    }
    if (!out->name && t->spec.name)
        return false;
    /* The tape goes away with the term, so what it reported is copied. */
    size_t n = 0;
    for (const struct tape_metric *m = t->tape->metrics; m; m = m->next)
        n++;
    tinker_loss_metric *v = arena_array(a, n, sizeof(*v));
    if (!v)
        return false;
    out->custom = v;
    for (const struct tape_metric *m = t->tape->metrics; m; m = m->next, v++) {
        v->name = arena_strdup(a, m->name);
        v->value = m->value;
        v->text = m->text ? arena_strdup(a, m->text) : NULL;
        if (!v->name || (m->text && !v->text))
            return false;
    }
    out->n_custom = n;
    return true;
}

/* ---- the gradient ------------------------------------------------------------------------ */

/* The numbers of the gradient with respect to datum i: a sum over the terms, or those of the only
 * term as they are, which `keep` asks for.  *reached: some term depends on the datum. */
static const double *add_gradients(struct arena *a, const struct term *terms, size_t n, size_t i,
                                   bool keep, bool *reached)
{
    size_t count = terms[0].leaves[i]->shape.n;
    const double *only = keep ? term_gradient(&terms[0], i) : NULL;
    *reached = only != NULL;
    if (only)
        return only;
    double *g = arena_array(a, count, sizeof(*g));
    for (size_t k = 0; g && k < n; k++) {
        const double *part = term_gradient(&terms[k], i);
        double w = terms[k].spec.weight;
        if (!part || w == 0)
            continue;
        *reached = true;
        for (size_t j = 0; j < count; j++)
            g[j] += w * part[j];
    }
    return g;
}

/* A loss without regularizers whose tape holds little but its gradient: the report takes the tape's
 * memory instead of a copy. */
static bool may_keep_tape(const struct term *terms, size_t n, const struct batch *b)
{
    size_t bytes = 0;
    for (size_t i = 0; i < b->n; i++)
        bytes += terms[0].leaves[i]->shape.n * sizeof(double);
    return n == 1 && terms[0].spec.weight == 1 && terms[0].tape->arena.used / 2 <= bytes;
}

/* In float64, as the tape computes; the client rounds when it sends them as weights of a linear
 * loss. */
static tinker_status fill_gradients(struct report *r, const struct term *terms, size_t n,
                                    const struct batch *b, tinker_error *err)
{
    tinker_tensor *out = arena_array(&r->arena, b->n, sizeof(*out));
    bool keep = may_keep_tape(terms, n, b), track = b->opts->track_grad_norms;
    double squares = 0;
    for (size_t i = 0; out && i < b->n; i++) {
        const struct shape *s = &terms[0].leaves[i]->shape;
        bool reached;
        const double *g = add_gradients(&r->arena, terms, n, i, keep, &reached);
        int64_t *dim = arena_array(&r->arena, s->ndim, sizeof(*dim));
        if (!g || !dim)
            return err_nomem(err, "gradients");
        /* A datum that no term depends on is usually a mistake in the loss. */
        if (!reached && !b->opts->allow_unused && s->n > 0)
            return err_set(err, TINKER_EINVAL,
                           "no gradient computed for datum %zu: the loss does not depend on it", i);
        for (size_t k = 0; k < s->ndim; k++)
            dim[k] = (int64_t)s->dim[k];
        for (size_t j = 0; track && j < s->n; j++)
            squares += g[j] * g[j];
        out[i] = (tinker_tensor){
            .dtype = TINKER_FLOAT64, .data = g, .n = s->n, .shape = dim, .ndim = s->ndim
        };
    }
    if (!out)
        return err_nomem(err, "gradients");
    if (keep)
        arena_adopt(&r->arena, &terms[0].tape->arena);
    r->public.gradients = out;
    r->public.n_gradients = b->n;
    r->public.has_total_grad_norm = track;
    r->public.total_grad_norm = track ? sqrt(squares) : 0;
    return TINKER_OK;
}

/* ---- flat metrics ------------------------------------------------------------------------ */

struct flat {
    tinker_named_number *v;
    size_t n;
    struct arena *arena;
    bool failed;
};

/* There is space for all; a name that could not be made is found at the end. */
static void put_metric(struct flat *f, const char *name, double value)
{
    f->failed |= !name;
    f->v[f->n++] = (tinker_named_number){ name, value };
}

/* Those of the loss itself keep their names; those of a regularizer get a prefix. Texts are only in
 * the full report. */
static void put_custom_metrics(struct flat *f, const tinker_loss_term *t)
{
    for (size_t i = 0; i < t->n_custom; i++) {
        const tinker_loss_metric *m = &t->custom[i];
        if (!m->text)
            put_metric(f, t->name ? arena_printf(f->arena, "reg/%s/%s", t->name, m->name) : m->name,
                       m->value);
    }
}

/* All numbers of the report as one flat list, which overlays the metrics of the service. */
static bool fill_metrics(struct report *r)
{
    tinker_loss_report *p = &r->public;
    /* An upper bound, so that the list is allocated once. */
    size_t most = 4 + p->base.n_custom;
    for (size_t i = 0; i < p->n_regularizers; i++)
        most += 3 + p->regularizers[i].n_custom;
    struct flat f = { arena_array(&r->arena, most, sizeof(*f.v)), 0, &r->arena, false };
    if (!f.v)
        return false;
    put_custom_metrics(&f, &p->base);
    if (p->n_regularizers) {
        put_metric(&f, "loss_total", p->loss_total);
        put_metric(&f, "base_loss", p->base.value);
        put_metric(&f, "regularizer_total", p->regularizer_total);
    }
    for (size_t i = 0; i < p->n_regularizers; i++) {
        const tinker_loss_term *t = &p->regularizers[i];
        put_metric(&f, arena_printf(f.arena, "reg/%s/value", t->name), t->value);
        put_metric(&f, arena_printf(f.arena, "reg/%s/contribution", t->name), t->contribution);
        if (t->has_grad_norm)
            put_metric(&f, arena_printf(f.arena, "reg/%s/grad_norm", t->name), t->grad_norm);
        put_custom_metrics(&f, t);
    }
    if (p->has_total_grad_norm)
        put_metric(&f, "total_grad_norm", p->total_grad_norm);
    p->metrics = f.v;
    p->n_metrics = f.n;
    return !f.failed;
}

/* ---- life -------------------------------------------------------------------------------- */

static tinker_status fill_report(struct report *r, const struct term *terms, size_t n,
                                 const struct batch *b, tinker_error *err)
{
    tinker_loss_report *p = &r->public;
    bool track = b->opts->track_grad_norms;
    tinker_loss_term *regs = arena_array(&r->arena, n, sizeof(*regs));
    if (!regs || !fill_term(&r->arena, &terms[0], track, &p->base))
        return err_nomem(err, "report");
    /* In the order of the list: the sum does not depend on who finished first. */
    for (size_t i = 1; i < n; i++) {
        if (!fill_term(&r->arena, &terms[i], track, &regs[i - 1]))
            return err_nomem(err, "report");
        p->regularizer_total += regs[i - 1].contribution;
    }
    p->regularizers = regs;
    p->n_regularizers = n - 1;
    p->loss_total = p->base.value + p->regularizer_total;
    tinker_status s = fill_gradients(r, terms, n, b, err);
    if (s == TINKER_OK && !fill_metrics(r))
        s = err_nomem(err, "metrics");
    return s;
}

/* terms[0] is the loss, the others are regularizers in the order of the list. */
tinker_loss_report *report_new(const struct term *terms, size_t n, const struct batch *b,
                               tinker_error *err)
{
    struct report *r = calloc(1, sizeof(*r));
    if (!r) {
        err_nomem(err, "report");
        return NULL;
    }
    arena_init(&r->arena, SIZE_MAX);
    if (fill_report(r, terms, n, b, err) == TINKER_OK)
        return &r->public;
    tinker_loss_report_free(&r->public);
    return NULL;
}

void tinker_loss_report_free(tinker_loss_report *report)
{
    struct report *r = (struct report *)report; /* first member */
    if (!r)
        return;
    arena_clear(&r->arena);
    free(r);
}
