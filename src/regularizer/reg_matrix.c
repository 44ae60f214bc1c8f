/* reg_matrix.c - regularizers of a whole datum: orthogonality of its rows, and the
 * gradient penalty, which differentiates a gradient. */
#include "base/rand.h"
#include <tinker/extra/regularizer.h>
#include "regularizer/reg.h"

/* ---- orthogonality ----------------------------------------------------------------------- */

/* All elements as a matrix of that many rows. */
static tinker_var *reshape_rows(tinker_var *x, size_t rows)
{
    size_t cols = rows ? x->shape.n / rows : 0;
    return tinker_var_reshape(x, (int64_t[]){ (int64_t)rows, (int64_t)cols }, 2);
}

/* The matrix whose rows should be orthogonal.  With three dimensions (batch, sequence, vocabulary)
 * the chosen axis comes first and the other two become columns. */
static tinker_var *matrix_of(tinker_var *x, tinker_reg_axis axis)
{
    bool cube = x->shape.ndim == 3;
    size_t last = tinker_var_dim(x, -1), rest = last ? x->shape.n / last : 0;
    switch (axis) {
    case TINKER_AXIS_ROWS:
        return reshape_rows(x, rest);
    case TINKER_AXIS_SEQUENCE:
        return cube ? reshape_rows(tinker_var_permute(x, (int[]){ 1, 0, 2 }, 3), x->shape.dim[1])
                    : reshape_rows(x, rest);
    case TINKER_AXIS_VOCABULARY:
        return cube ? reshape_rows(tinker_var_permute(x, (int[]){ 2, 0, 1 }, 3), last)
                    : tinker_var_transpose(reshape_rows(x, rest));
    }
    return tape_error(x->tape, TINKER_EINVAL, "unknown axis %d", (int)axis);
}

static tinker_var *sum_of_squares(tinker_var *v)
{
    return tinker_var_sum(tinker_var_square(v), TINKER_ALL, 0);
}

/* How far G = M M^T is from the identity: G[i][j] is the inner product of rows i and j. */
static tinker_var *gram_penalty(tinker_var *m, const tinker_reg_orthogonality_options *o)
{
    size_t n = m->shape.dim[0];
    /* The cost is rows^2 * columns, which a long sequence would turn into minutes. */
    if (n > o->max_rows)
        return tape_error(m->tape, TINKER_EINVAL, "%zu rows, more than max_rows %zu", n,
                          o->max_rows);
    if (!o->raw) { /* rows of length 1; the floor keeps rows of zeros from becoming NaN */
        tinker_var *norms = tinker_var_clamp(tinker_var_norm(m, -1, 1), 1e-8, 1e300);
        m = tinker_var_div(m, norms);
    }
    tinker_var *g = tinker_var_matmul(m, tinker_var_transpose(m));
    struct shape square;
    double *d;
    if (!shape_set(&square, (int64_t[]){ (int64_t)n, (int64_t)n }, 2))
        return tape_error(m->tape, TINKER_EINVAL, "a matrix of %zu rows is too large", n);
    tinker_var *eye = tape_constant(m->tape, &square, &d); /* zeros: the arena clears */
    for (size_t i = 0; d && i < n; i++)
        d[i * n + i] = 1;
    /* The diagonal filled with 0: only products of different rows are left. */
    tinker_var *off = sum_of_squares(tinker_var_masked_fill(g, eye, 0));
    switch (o->gram) {
    case TINKER_GRAM_SOFT:
        return off;
    case TINKER_GRAM_HARD:
        return sum_of_squares(tinker_var_sub(g, eye));
    case TINKER_GRAM_SPECTRAL: {
        tinker_var *trace = tinker_var_masked_sum(g, eye);
        return tinker_var_add(off, tinker_var_square(tinker_var_shift(trace, -(double)n)));
    }
    }
    return tape_error(m->tape, TINKER_EINVAL, "unknown gram mode %d", (int)o->gram);
}

tinker_var *tinker_reg_orthogonality(tinker_tape *tape, const tinker_datum *data,
                                     tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_orthogonality_options o = TINKER_REG_ORTHOGONALITY_OPTIONS_INIT;
    tinker_var **v =
        reg_copy_options(tape, &o, sizeof(o), state, "tinker_reg_orthogonality_options")
            ? reg_new_array(&c)
            : NULL;
    if (!v)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        tinker_var *m = matrix_of(logprobs[i], o.axis);
        if (tape->err.status != TINKER_OK)
            return NULL;
        v[i] = gram_penalty(m, &o);
    }
    tinker_var *r = reg_combine_data(&c, v, o.sum);
    tinker_tape_metric(tape, "orthogonality", tinker_var_item(r));
    return r;
}

/* ---- gradient penalty -------------------------------------------------------------------- */

/* The point at which f is differentiated. */
static tinker_var *choose_point(const struct reg_call *c, const tinker_reg_gradient_options *o,
                                size_t i)
{
    tinker_reg_reference_options ref = TINKER_REG_REFERENCE_OPTIONS_INIT;
    if (!o->interpolated)
        return c->logprobs[i];
    /* The reference is a struct of the caller's version, too: it may be shorter than ours. */
    if (!reg_copy_options(c->tape, &ref, sizeof(ref), o->reference, "tinker_reg_reference_options"))
        return c->logprobs[i];
    tinker_var *y = reg_find_reference(c, &ref, i, "reference_logprobs");
    double e = philox_uniform(o->seed, 0); /* one for the whole evaluation */
    /* As in WGAN-GP (Gulrajani et al., 2017): the penalty holds between two distributions. */
    return tinker_var_add(tinker_var_scale(c->logprobs[i], e), tinker_var_scale(y, 1 - e));
}

tinker_var *tinker_reg_gradient_penalty(tinker_tape *tape, const tinker_datum *data,
                                        tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_gradient_options o = TINKER_REG_GRADIENT_OPTIONS_INIT;
    tinker_var **v = reg_copy_options(tape, &o, sizeof(o), state, "tinker_reg_gradient_options")
                         ? reg_new_array(&c)
                         : NULL;
    if (!v)
        return NULL;
    if (!o.f)
        return tape_error(tape, TINKER_EINVAL, "a gradient penalty needs a function f");
    for (size_t i = 0; i < n; i++) {
        tinker_var *z = choose_point(&c, &o, i);
        if (tape->err.status != TINKER_OK)
            return NULL;
        tinker_var *y = o.f(tape, z, o.f_state);
        if (!y)
            return tape_error(tape, TINKER_EINVAL, "f returned no value");
        /* A gradient as a value: the penalty itself will be differentiated again. */
        tinker_var *norm = tinker_var_norm(tinker_var_gradient(y, z), TINKER_ALL, 0);
        v[i] = tinker_var_square(tinker_var_shift(norm, -o.target_norm));
    }
    return reg_combine_data(&c, v, false);
}
