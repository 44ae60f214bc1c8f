/* reg_norm.c - regularizers of how large the elements are: l1, l2, elastic net, and the
 * magnitude of the whole.
 *
 * All start from the same list, the elements of all datums one after the other, and report a
 * few numbers beside their value. */
#include <math.h>
#include <tinker/extra/regularizer.h>
#include "regularizer/reg.h"

/* Every element that counts, and the options; NULL after an error. */
static tinker_var *collect_elements(const struct reg_call *c, void *state,
                                    tinker_reg_norm_options *o)
{
    *o = (tinker_reg_norm_options)TINKER_REG_NORM_OPTIONS_INIT;
    if (!reg_copy_options(c->tape, o, sizeof(*o), state, "tinker_reg_norm_options"))
        return NULL;
    if ((unsigned)o->target > TINKER_TARGET_FIELD) {
        tape_error(c->tape, TINKER_EINVAL, "unknown target %d", (int)o->target);
        return NULL;
    }
    tinker_var **v = reg_new_array(c);
    for (size_t i = 0; v && i < c->n; i++) {
        tinker_var *x = c->logprobs[i];
        if (o->target == TINKER_TARGET_FIELD && (!c->data || !o->field)) {
            tape_error(c->tape, TINKER_EINVAL, "a field as target needs data and its name");
            return NULL;
        }
        if (o->target == TINKER_TARGET_FIELD)
            x = tinker_tape_input(c->tape, &c->data[i], o->field);
        v[i] = reg_flatten(c, i, x, o->mask_weights);
        if (o->target == TINKER_TARGET_PROBS) /* after the mask, which may hide -inf or NaN */
            v[i] = tinker_var_exp(v[i]);
    }
    tinker_var *all = v ? reg_join_data(c, v) : NULL;
    return c->tape->err.status == TINKER_OK ? all : NULL;
}

/* For metrics only, so it is not recorded on the tape. */
static double mean_of(const tinker_var *v, double (*f)(double))
{
    double sum = 0;
    for (size_t i = 0; i < v->shape.n; i++)
        sum += f(tinker_var_data(v)[i]);
    return v->shape.n ? sum / (double)v->shape.n : 0;
}

/* For mean_of(): C has no square function to point to. */
static double square_number(double x)
{
    return x * x;
}

/* state: tinker_reg_norm_options or NULL, as for all of this file. The value is a scalar on the
 * tape. */
tinker_var *tinker_reg_l1(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                          size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_norm_options o;
    tinker_var *t = collect_elements(&c, state, &o);
    if (!t)
        return NULL;
    /* lambda * sum |t| */
    tinker_var *r = reg_reduce(tinker_var_abs(t), o.reduction, TINKER_REG_SUM);
    r = tinker_var_scale(r, o.lambda);
    tinker_tape_metric(tape, "l1_raw", tinker_var_item(r));
    tinker_tape_metric(tape, "l1_mean", mean_of(t, fabs));
    return r;
}

tinker_var *tinker_reg_l2(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                          size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_norm_options o;
    tinker_var *t = collect_elements(&c, state, &o);
    if (!t)
        return NULL;
    if (o.clip < 0)
        return tape_error(tape, TINKER_EINVAL, "clip is %g, expected at least 0", o.clip);
    tinker_var *u = t;
    if (o.center == TINKER_CENTER_MEAN)
        u = tinker_var_sub(t, tinker_var_mean(t, TINKER_ALL, 0));
    else if (o.center == TINKER_CENTER_NUMBER)
        u = tinker_var_shift(t, -o.center_number);
    /* Beyond the clip the term is constant: outliers count, but pull no further. */
    if (o.clip > 0)
        u = tinker_var_clamp(u, -o.clip, o.clip);
    /* lambda * sum clip(t - center)^2 */
    tinker_var *r = reg_reduce(tinker_var_square(u), o.reduction, TINKER_REG_SUM);
    r = tinker_var_scale(r, o.lambda);
    tinker_tape_metric(tape, "l2_raw", tinker_var_item(r));
    tinker_tape_metric(tape, "l2_mean", mean_of(t, square_number));
    if (o.center == TINKER_CENTER_NUMBER)
        tinker_tape_metric(tape, "center", o.center_number);
    else
        tinker_tape_note(tape, "center", o.center == TINKER_CENTER_MEAN ? "mean" : "none");
    return r;
}

/* Zou and Hastie's mixture: l1_ratio 1 is l1, 0 is l2. */
tinker_var *tinker_reg_elastic_net(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_norm_options o;
    tinker_var *t = collect_elements(&c, state, &o);
    if (!t)
        return NULL;
    /* l1_ratio |t| + (1 - l1_ratio) t^2, element by element */
    tinker_var *each = tinker_var_add(tinker_var_scale(tinker_var_abs(t), o.l1_ratio),
                                      tinker_var_scale(tinker_var_square(t), 1 - o.l1_ratio));
    tinker_var *r = tinker_var_scale(reg_reduce(each, o.reduction, TINKER_REG_SUM), o.lambda);
    tinker_tape_metric(tape, "elastic_net", tinker_var_item(r));
    tinker_tape_metric(tape, "l1_ratio", o.l1_ratio);
    return r;
}

tinker_var *tinker_reg_magnitude(tinker_tape *tape, const tinker_datum *data,
                                 tinker_var *const *logprobs, size_t n, void *state)
{
    const struct reg_call c = { tape, data, logprobs, n };
    tinker_reg_magnitude_options o = TINKER_REG_MAGNITUDE_OPTIONS_INIT;
    tinker_reg_norm_options plain;
    if (!reg_copy_options(tape, &o, sizeof(o), state, "tinker_reg_magnitude_options"))
        return NULL;
    tinker_var *t = collect_elements(&c, NULL, &plain);
    if (!t)
        return NULL;
    /* sqrt(mean t^2) is the magnitude; the penalty pulls it to the target from both sides. */
    /* (root mean square - target)^2, over all elements */
    tinker_var *s = tinker_var_sqrt(reg_reduce(tinker_var_square(t), o.reduction, TINKER_REG_MEAN));
    return tinker_var_square(tinker_var_shift(s, -o.target));
}
