/* term.c - evaluate one term on a tape of its own and differentiate it. */
#include "regularizer/term.h"

#include <math.h>
#include <stdio.h>
#include <tinker/extra/autodiff.h>
#include "base/clock.h"
#include "base/err.h"

const double *term_gradient(const struct term *t, size_t i)
{
    return t->has_gradient ? tinker_var_grad(t->leaves[i]) : NULL;
}

/* The scalar that the function stands for; NULL after an error on the tape. */
static tinker_var *call(struct term *t, const struct batch *b)
{
    tinker_tape *tape = t->tape;
    char text[96];
    t->leaves = arena_array(&tape->arena, b->n, sizeof(*t->leaves));
    for (size_t i = 0; t->leaves && i < b->n; i++)
        t->leaves[i] = tape_leaf_tensor(tape, &b->logprobs[i]);
    if (!t->leaves)
        tape_error(tape, TINKER_ENOMEM, "out of memory for the logprobs");
    if (tape->err.status != TINKER_OK)
        return NULL;
    tinker_var *y = t->spec.fn(tape, b->data, t->leaves, b->n, t->spec.state);
    if (!y || y->tape != tape) {
        tape_error(tape, TINKER_EINVAL, "the function returned no value of its tape");
        return NULL;
    }
    if (tape->err.status == TINKER_OK && y->shape.n != 1) {
        if (b->opts->sum_nonscalar)
            return tinker_var_sum(y, TINKER_ALL, 0);
        tape_error(tape, TINKER_EINVAL, "the value has shape %s: not a scalar",
                   shape_text(&y->shape, text));
    }
    return y;
}

static void check_finite(struct term *t, const struct batch *b)
{
    if (!isfinite(t->value)) {
        tape_error(t->tape, TINKER_EINVAL, "the value is %g", t->value);
        return;
    }
    for (size_t i = 0; i < b->n; i++) {
        const double *g = term_gradient(t, i);
        for (size_t k = 0; g && k < t->leaves[i]->shape.n; k++)
            if (!isfinite(g[k])) {
                tape_error(t->tape, TINKER_EINVAL, "the gradient of datum %zu at element %zu is %g",
                           i, k, g[k]);
                return;
            }
    }
}

static double norm(const struct term *t, const struct batch *b)
{
    double sum = 0;
    for (size_t i = 0; i < b->n; i++) {
        const double *g = term_gradient(t, i);
        for (size_t k = 0; g && k < t->leaves[i]->shape.n; k++)
            sum += g[k] * g[k];
    }
    return sqrt(sum);
}

static void evaluate(struct term *t, const struct batch *b)
{
    tinker_var *y = call(t, b);
    if (!y || t->tape->err.status != TINKER_OK)
        return;
    t->value = tinker_var_item(y);
    if (t->want_gradient && tinker_tape_backward(t->tape, y, NULL) == TINKER_OK) {
        t->has_gradient = true;
        t->grad_norm = norm(t, b);
    }
    if (!b->opts->allow_nonfinite && t->tape->err.status == TINKER_OK)
        check_finite(t, b);
}

void term_run(struct term *t, const struct batch *b)
{
    int64_t started_ns = clock_now_ns(clock_real());
    t->tape = tinker_tape_new(&t->err);
    if (t->tape) {
        t->tape->cancel = &t->cancel;
        evaluate(t, b);
        tinker_tape_status(t->tape, &t->err);
    }
    t->duration_ns = clock_now_ns(clock_real()) - started_ns;
    if (t->err.status != TINKER_OK && t->spec.name)
        err_prefix(&t->err, "regularizer \"%s\"", t->spec.name);
    else if (t->err.status != TINKER_OK)
        err_prefix(&t->err, "loss");
}

void term_clear(struct term *t)
{
    tinker_tape_free(t->tape);
    t->tape = NULL;
}
