/* gradcheck.c - is the gradient of a loss right?  Central differences, element by element. */
#include <math.h>
#include <stdlib.h>
#include <tinker/extra/autodiff.h>
#include "base/err.h"
#include "autodiff/tape.h"

/* The loss and what it is called with; the same for every difference. */
struct check {
    tinker_loss_fn *fn;
    void *state;
    const tinker_datum *data;
    const tinker_tensor *logprobs;
    size_t n;
};

/* fn on a new tape, with one element moved by delta.  NULL: *err says why. */
static tinker_tape *run_loss(const struct check *c, size_t datum, size_t index, double delta,
                             tinker_var ***leaves, tinker_var **y, tinker_error *err)
{
    tinker_tape *t = tinker_tape_new(err);
    if (!t)
        return NULL;
    tinker_var **v = arena_array(&t->arena, c->n, sizeof(*v));
    for (size_t i = 0; v && i < c->n; i++) {
        /* Every evaluation begins from the same logprobs. */
        v[i] = tape_leaf_tensor(t, &c->logprobs[i]);
        if (i == datum && index < v[i]->shape.n && v[i] != &t->broken)
            ((double *)tinker_var_data(v[i]))[index] += delta;
    }
    if (!v)
        tape_error(t, TINKER_ENOMEM, "out of memory for the logprobs");
    *y = v && t->err.status == TINKER_OK ? c->fn(t, c->data, v, c->n, c->state) : NULL;
    if (!*y)
        tape_error(t, TINKER_EINVAL, "the loss returned no value");
    else if ((*y)->shape.n != 1)
        tape_error(t, TINKER_EINVAL, "the loss is not a scalar");
    *leaves = v;
    if (tinker_tape_status(t, err) == TINKER_OK)
        return t;
    tinker_tape_free(t);
    return NULL;
}

/* The value of the loss with one element moved by delta. */
static tinker_status value_at(const struct check *c, size_t datum, size_t index, double delta,
                              double *out, tinker_error *err)
{
    tinker_var **leaves, *y;
    tinker_error mine;
    tinker_tape *t = run_loss(c, datum, index, delta, &leaves, &y, &mine);
    if (!t) {
        if (err)
            *err = mine;
        return mine.status;
    }
    *out = tinker_var_item(y);
    tinker_tape_free(t);
    return TINKER_OK;
}

/* Compare the gradient by each element of one datum with (f(x + eps) - f(x - eps)) / 2 eps, whose
 * error is O(eps^2). */
static tinker_status check_datum(const struct check *c, size_t i, const tinker_var *leaf,
                                 double eps, tinker_gradcheck *worst, tinker_error *err)
{
    /* NULL: the loss does not depend on this datum, so its gradient is 0. */
    const double *g = tinker_var_grad(leaf);
    for (size_t k = 0; k < leaf->shape.n; k++) {
        double up = 0, down = 0;
        tinker_status s = value_at(c, i, k, eps, &up, err);
        /* A tape for each value: nodes of one evaluation are of no use to the next. */
        if (s == TINKER_OK)
            s = value_at(c, i, k, -eps, &down, err);
        if (s != TINKER_OK)
            return s;
        double numeric = (up - down) / (2 * eps), automatic = g ? g[k] : 0;
        /* Relative for large gradients, absolute for small ones. */
        double off = fabs(numeric - automatic) / fmax(1, fabs(numeric));
        if (!(off <= worst->worst) && !isnan(worst->worst)) /* NaN is the worst of all */
            *worst = (tinker_gradcheck){
                .worst = off, .datum = i, .index = k, .numeric = numeric, .automatic = automatic
            };
    }
    return TINKER_OK;
}

tinker_status tinker_loss_gradcheck(tinker_loss_fn *fn, void *state, const tinker_datum *data,
                                    const tinker_tensor *logprobs, size_t n, double eps,
                                    double tolerance, tinker_gradcheck *report, tinker_error *err)
{
    const struct check c = { .fn = fn, .state = state, .data = data, .logprobs = logprobs, .n = n };
    tinker_gradcheck worst = { 0 };
    tinker_var **leaves = NULL, *y = NULL;
    tinker_error mine = { 0 };
    /* SIZE_MAX is no datum: nothing is moved. */
    tinker_tape *t = run_loss(&c, SIZE_MAX, 0, 0, &leaves, &y, &mine);
    tinker_status s = t ? tinker_tape_backward(t, y, &mine) : mine.status;
    /* Two evaluations for each element of each datum: meant for tests with a few tokens. */
    for (size_t i = 0; t && s == TINKER_OK && i < n; i++)
        s = check_datum(&c, i, leaves[i], eps, &worst, &mine);
    tinker_tape_free(t);
    if (report)
        *report = worst;
    if (s == TINKER_OK && !(worst.worst <= tolerance))
        s = err_set(&mine, TINKER_EINVAL,
                    "gradient of datum %zu at element %zu is %g, differences say %g", worst.datum,
                    worst.index, worst.automatic, worst.numeric);
    if (s != TINKER_OK && err)
        *err = mine;
    return s;
}
