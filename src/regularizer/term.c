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
static tinker_var *call_function(struct term *t, const struct batch *b)
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
    /* The log-probabilities are leaves: what the term is differentiated by. */
    tinker_var *y = t->spec.fn(tape, b->data, t->leaves, b->n, t->spec.state);
    if (!y || y->tape != tape) {
        tape_error(tape, TINKER_EINVAL, "the function returned no value of its tape");
        return NULL;
    }
    if (tape->err.status == TINKER_OK && y->shape.n != 1) {
        /* What reduction NONE leaves; the gradient is that of the sum. */
        if (b->opts->sum_nonscalar)
            return tinker_var_sum(y, TINKER_ALL, 0);
        tape_error(tape, TINKER_EINVAL, "the value has shape %s: not a scalar",
                   shape_text(&y->shape, text));
    }
    return y;
}

/* Compute the Euclidean norm of the gradient, and refuse what is not finite: sent on, it would make
 * every weight of the model NaN. */
static void check_result(struct term *t, const struct batch *b)
{
    bool strict = !b->opts->allow_nonfinite;
    double squares = 0;
    if (strict && !isfinite(t->value))
        tape_error(t->tape, TINKER_EINVAL, "the value is %g", t->value);
    for (size_t i = 0; i < b->n && t->tape->err.status == TINKER_OK; i++) {
        const double *g = term_gradient(t, i);
        double s[4] = { 0 }; /* side by side: one sum would wait for each addition */
        size_t n = g ? t->leaves[i]->shape.n : 0, whole = n / 4 * 4;
        for (size_t k = 0; k < whole; k += 4) {
            s[0] += g[k] * g[k];
            s[1] += g[k + 1] * g[k + 1];
            s[2] += g[k + 2] * g[k + 2];
            s[3] += g[k + 3] * g[k + 3];
        }
        for (size_t k = whole; k < n; k++)
            s[0] += g[k] * g[k];
        double sum = (s[0] + s[1]) + (s[2] + s[3]);
        squares += sum;
        for (size_t k = 0; strict && !isfinite(sum) && k < n; k++)
            if (!isfinite(g[k]))
                tape_error(t->tape, TINKER_EINVAL, "the gradient of datum %zu at element %zu is %g",
                           i, k, g[k]); /* the first one is kept */
    }
    if (t->has_gradient)
        t->grad_norm = sqrt(squares);
}

void term_run(struct term *t, const struct batch *b)
{
    /* The real clock: durations are only reported, nothing waits for them. */
    int64_t started_ns = clock_now_ns(clock_real());
    t->tape = tinker_tape_new(&t->err);
    if (t->tape) {
        t->tape->cancel = &t->cancel;
        tinker_var *y = call_function(t, b);
        if (y && t->tape->err.status == TINKER_OK) {
            t->value = tinker_var_item(y);
            t->has_gradient =
                t->want_gradient && tinker_tape_backward(t->tape, y, NULL) == TINKER_OK;
            check_result(t, b);
        }
        tinker_tape_status(t->tape, &t->err);
    }
    t->duration_ns = clock_now_ns(clock_real()) - started_ns;
    /* Say which of the terms it was. */
    if (t->err.status != TINKER_OK && t->spec.name)
        err_prefix(&t->err, "regularizer \"%s\"", t->spec.name);
    else if (t->err.status != TINKER_OK)
        err_prefix(&t->err, "loss");
}

/* The tape owns the values, the leaves and their gradients. */
void term_clear(struct term *t)
{
    tinker_tape_free(t->tape);
    t->tape = NULL;
}
