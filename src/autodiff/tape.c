/* tape.c - nodes, errors and the walk back.  See tape.h. */
#include "autodiff/record.h"
#include "autodiff/tape.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/autodiff.h>
#include "base/err.h"

/* ---- errors ------------------------------------------------------------------------------ */

tinker_var *tape_error(tinker_tape *t, tinker_status status, const char *fmt, ...)
{
    /* The first error is the cause, later ones only follow from it. */
    if (t->err.status == TINKER_OK) {
        char text[sizeof(t->err.message)];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        err_set(&t->err, status, "%s", text);
    }
    return &t->broken;
}

tinker_var *tinker_tape_fail(tinker_tape *tape, const char *message)
{
    tape_error(tape, TINKER_EINVAL, "%s", message);
    return NULL;
}

/* TINKER_OK, or the first error of the tape. */
tinker_status tinker_tape_status(const tinker_tape *tape, tinker_error *err)
{
    if (tape->err.status != TINKER_OK && err)
        *err = tape->err;
    return tape->err.status;
}

/* Relaxed: the flag publishes nothing, and a node more or less does not matter. */
int tinker_tape_canceled(const tinker_tape *tape)
{
    return tape->cancel && atomic_load_explicit(tape->cancel, memory_order_relaxed);
}

const double *tape_numbers(tinker_var *v)
{
    if (v->data || !v->floats)
        return v->data;
    double *d = arena_unfilled(&v->tape->arena, v->shape.n, sizeof(*d));
    if (!d) {
        tape_error(v->tape, TINKER_ENOMEM, "out of memory for numbers");
        return NULL;
    }
    for (size_t i = 0; i < v->shape.n; i++)
        d[i] = v->floats[i];
    return v->data = d;
}

bool tape_same(tinker_var *a, tinker_var *b, const char *op)
{
    if (!a || !b) {
        tinker_var *other = a ? a : b;
        if (other)
            tape_error(other->tape, TINKER_EINVAL, "%s: an operand is NULL", op);
        return false;
    }
    if (a->tape != b->tape)
        tape_error(a->tape, TINKER_EINVAL, "%s: the operands are on different tapes", op);
    return a->tape->err.status == TINKER_OK;
}

bool tape_usable(tinker_var *a, tinker_var *b, const char *op)
{
    return tape_same(a, b, op) && tape_numbers(a) && tape_numbers(b);
}

/* What an operation returns when an operand is unusable; NULL only when both are. */
tinker_var *tape_broken(tinker_var *a, tinker_var *b)
{
    tinker_var *other = a ? a : b;
    return other ? &other->tape->broken : NULL;
}

/* ---- nodes ------------------------------------------------------------------------------- */

/* A node without numbers; NULL after an error.  Every operation passes here, so this is where a
 * canceled term ends. */
static tinker_var *bare_node(tinker_tape *t, const struct rule *rule, const struct shape *shape,
                             tinker_var *const *parents, size_t n_parents)
{
    if (tinker_tape_canceled(t))
        tape_error(t, TINKER_ECANCELED, "canceled");
    if (t->err.status != TINKER_OK)
        return NULL;
    tinker_var *v = arena_alloc(&t->arena, sizeof(*v));
    if (!v)
        return NULL;
    v->tape = t;
    v->shape = *shape;
    v->rule = rule;
    /* Only values that a walk back can reach are listed: not constants, and not what is computed
     * during a walk whose result is final. */
    if (rule && rule->back && !t->constants_only)
        for (size_t i = 0; i < n_parents; i++)
            v->needs_grad = v->needs_grad || parents[i]->needs_grad;
    if (v->needs_grad) {
        v->parents = arena_memdup(&t->arena, parents, n_parents * sizeof(*parents));
        v->n_parents = n_parents;
        if (!v->parents)
            return NULL;
        v->earlier = t->last;
        t->last = v;
    }
    record_node(v, rule, parents, n_parents);
    return v;
}

tinker_var *tape_node_unfilled(tinker_tape *t, const struct rule *rule, const struct shape *shape,
                               tinker_var *const *parents, size_t n_parents, double **data)
{
    *data = NULL;
    tinker_var *v = bare_node(t, rule, shape, parents, n_parents);
    double *d = v ? arena_unfilled(&t->arena, shape->n, sizeof(double)) : NULL;
    if (!d)
        return tape_error(t, TINKER_ENOMEM, "out of memory in %s", rule ? rule->name : "constant");
    v->data = *data = d;
    return v;
}

tinker_var *tape_node(tinker_tape *t, const struct rule *rule, const struct shape *shape,
                      tinker_var *const *parents, size_t n_parents, double **data)
{
    *data = NULL;
    for (size_t i = 0; i < n_parents; i++)
        if (!tape_numbers(parents[i]))
            return &t->broken;
    tinker_var *v = bare_node(t, rule, shape, parents, n_parents);
    double *d = v ? arena_array(&t->arena, shape->n, sizeof(double)) : NULL;
    if (!d)
        return tape_error(t, TINKER_ENOMEM, "out of memory in %s", rule ? rule->name : "constant");
    v->data = *data = d;
    return v;
}

tinker_var *tape_node1(const struct rule *rule, const struct shape *shape, tinker_var *a,
                       double **data)
{
    return tape_node(a->tape, rule, shape, &a, 1, data);
}

tinker_var *tape_node2(const struct rule *rule, const struct shape *shape, tinker_var *a,
                       tinker_var *b, double **data)
{
    return tape_node(a->tape, rule, shape, (tinker_var *[]){ a, b }, 2, data);
}

/* A node that shares its parent's numbers: no node changes its numbers after it was made. */
tinker_var *tape_view(const struct rule *rule, const struct shape *shape, tinker_var *a)
{
    tinker_var *v = bare_node(a->tape, rule, shape, &a, 1);
    if (!v)
        return tape_error(a->tape, TINKER_ENOMEM, "out of memory in %s", rule->name);
    v->data = a->data;
    return v;
}

tinker_var *tape_constant(tinker_tape *t, const struct shape *shape, double **data)
{
    return tape_node(t, NULL, shape, NULL, 0, data);
}

tinker_var *tape_floats(tinker_tape *t, const struct shape *shape, const float *v)
{
    tinker_var *a = bare_node(t, NULL, shape, NULL, 0);
    if (!a)
        return tape_error(t, TINKER_ENOMEM, "out of memory for a constant");
    a->floats = v;
    return a;
}

/* ---- the walk ---------------------------------------------------------------------------- */

/* Where to add gradients of v in place: no list of partial sums for values that are used often.
 * NULL while the gradient must stay differentiable, or when v has none. */
double *grad_sum(tinker_var *v)
{
    tinker_tape *t = v->tape;
    if (!v->needs_grad || !t->constants_only || t->err.status != TINKER_OK)
        return NULL;
    if (v->sum)
        return v->sum;
    double *d;
    tinker_var *own = tape_constant(t, &v->shape, &d);
    if (!d)
        return NULL;
    /* The first time: a copy of what was pushed so far, from then on added to in place. */
    if (v->grad)
        memcpy(d, v->grad->data, v->shape.n * sizeof(*d));
    v->grad = own;
    v->sum = d;
    return d;
}

void grad_push(tinker_var *parent, tinker_var *g)
{
    if (!parent->needs_grad)
        return;
    if (!parent->grad) {
        parent->grad = g; /* shared with other nodes, so it must not be added to in place */
        return;
    }
    double *sum = grad_sum(parent);
    if (!sum) /* a node of its own, so that the sum can be differentiated */
        parent->grad = tinker_var_add(parent->grad, g);
    for (size_t i = 0; sum && i < parent->shape.n; i++)
        sum[i] += g->data[i];
}

/* Leave in every node how y depends on it.
 *
 * v->grad is dy/dv.  The list runs from the newest node to the oldest, and a node is newer than
 * what it was made of: so when the walk reaches v, all that uses v has pushed its share, v->grad is
 * complete, and its rule can pass it on.  Rules make new nodes, in front of the list, which this
 * walk does not see because it starts at y. */
static bool walk_back(tinker_var *y)
{
    tinker_tape *t = y->tape;
    const struct shape scalar = { .n = 1 };
    double *one;
    /* Forget the last walk: gradients are not added up across calls. */
    for (tinker_var *v = t->last; v; v = v->earlier) {
        v->grad = NULL;
        v->sum = NULL;
    }
    tinker_var *seed = tape_constant(t, &scalar, &one);
    if (!one)
        return false;
    *one = 1;
    if (y->needs_grad)
        y->grad = y->shape.ndim ? var_reshape(seed, &y->shape) : seed;
    for (tinker_var *v = y; v && t->err.status == TINKER_OK; v = v->earlier)
        if (v->grad && v->rule)
            v->rule->back(v, v->grad);
    return t->err.status == TINKER_OK;
}

/* Only one number has a gradient; of several, it would be a matrix. */
static bool check_scalar(tinker_var *y)
{
    char text[96];
    if (y->shape.n != 1)
        tape_error(y->tape, TINKER_EINVAL, "cannot differentiate a value of shape %s: not a scalar",
                   shape_text(&y->shape, text));
    return y->tape->err.status == TINKER_OK;
}

tinker_status tinker_tape_backward(tinker_tape *tape, tinker_var *y, tinker_error *err)
{
    if (!y || y->tape != tape)
        tape_error(tape, TINKER_EINVAL, "backward: not a value of this tape");
    else if (check_scalar(y)) {
        /* The result is final, so nothing is recorded on the way. */
        bool before = tape->constants_only;
        tape->constants_only = true;
        walk_back(y);
        tape->constants_only = before;
    }
    return tinker_tape_status(tape, err);
}

const double *tinker_var_grad(const tinker_var *v)
{
    return v->grad ? v->grad->data : NULL;
}

/* Unlike backward, the gradient is a value of the tape: it can be part of a loss, and be
 * differentiated again. */
tinker_var *tinker_var_gradient(tinker_var *y, tinker_var *x)
{
    if (!tape_usable(y, x, "gradient") || !check_scalar(y) || !walk_back(y))
        return tape_broken(y, x);
    return x->grad ? x->grad : var_zeros(x->tape, &x->shape);
}

/* ---- life -------------------------------------------------------------------------------- */

/* A tape belongs to one thread at a time; two tapes share nothing. */
tinker_tape *tinker_tape_new(tinker_error *err)
{
    tinker_tape *t = calloc(1, sizeof(*t));
    if (!t) {
        err_nomem(err, "tape");
        return NULL;
    }
    /* No limit: a loss is the user's own code. */
    arena_init(&t->arena, SIZE_MAX);
    t->nan = NAN;
    /* What operations return after an error: any element of it may be read. */
    t->broken = (tinker_var){ .tape = t, .shape = { .n = 1 }, .data = &t->nan };
    t->metrics_end = &t->metrics;
    return t;
}

void tinker_tape_free(tinker_tape *tape)
{
    if (!tape)
        return;
    arena_clear(&tape->arena);
    free(tape);
}

/* The entry of that name, a new one at the end if there is none: reports keep the order. */
static struct tape_metric *metric_slot(tinker_tape *t, const char *name)
{
    for (struct tape_metric *m = t->metrics; m; m = m->next)
        if (strcmp(m->name, name) == 0)
            return m;
    struct tape_metric *m = arena_alloc(&t->arena, sizeof(*m));
    const char *copy = m ? arena_strdup(&t->arena, name) : NULL;
    if (!copy) {
        tape_error(t, TINKER_ENOMEM, "out of memory for a metric");
        return NULL;
    }
    m->name = copy;
    *t->metrics_end = m;
    t->metrics_end = &m->next;
    return m;
}

void tinker_tape_metric(tinker_tape *tape, const char *name, double value)
{
    struct tape_metric *m = metric_slot(tape, name);
    if (m)
        m->value = value, m->text = NULL;
}

void tinker_tape_metric_value(tinker_tape *tape, const char *name, tinker_var *v)
{
    if (!tape_usable(v, v, "metric"))
        return;
    if (tape->recording) {
        struct record_metric *m = arena_alloc(&tape->arena, sizeof(*m));
        const char *copy = m ? arena_strdup(&tape->arena, name) : NULL;
        if (!copy) {
            tape_error(tape, TINKER_ENOMEM, "out of memory for a metric");
            return;
        }
        *m = (struct record_metric){ tape->recorded_metrics, copy, v };
        tape->recorded_metrics = m;
    }
    struct tape_metric *known = tape->metrics;
    while (known && strcmp(known->name, name) != 0)
        known = known->next;
    double before = known && tape->sums_metrics ? known->value : 0;
    tinker_tape_metric(tape, name, before + tinker_var_item(v));
}

void tinker_tape_note(tinker_tape *tape, const char *name, const char *text)
{
    struct tape_metric *m = metric_slot(tape, name);
    if (m && !(m->text = arena_strdup(&tape->arena, text)))
        tape_error(tape, TINKER_ENOMEM, "out of memory for a metric");
}
