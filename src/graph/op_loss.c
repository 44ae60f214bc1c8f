/* op_loss.c - the losses of torch.nn.functional. */
#include <string.h>

#include "graph/graph_impl.h"

/* reduction: "mean" (the default), "sum" or "none".  The mean is over all elements, not over the
 * batch: that is what "batchmean" of kl_div is for. */
static struct value reduce_loss(struct call *c, tinker_var *y, size_t at, bool batch)
{
    const char *how = call_text(c, at, "reduction", "mean");
    if (strcmp(how, "none") == 0)
        return value_tensor(y, ELEMENT_FLOAT);
    if (strcmp(how, "sum") == 0)
        return value_tensor(tinker_var_sum(y, TINKER_ALL, 0), ELEMENT_FLOAT);
    if (strcmp(how, "mean") == 0)
        return value_tensor(tinker_var_mean(y, TINKER_ALL, 0), ELEMENT_FLOAT);
    /* Only kl_div has it; for another loss torch refuses the word, and so do we. */
    if (batch && strcmp(how, "batchmean") == 0 && y->shape.ndim && y->shape.dim[0])
        return value_tensor(
            tinker_var_scale(tinker_var_sum(y, TINKER_ALL, 0), 1.0 / (double)y->shape.dim[0]),
            ELEMENT_FLOAT);
    return call_fail(c, "reduction %.20s is not supported here", how);
}

/* d^2 / 2 up to delta, beyond delta (|d| - delta / 2) */
static tinker_var *huber_elements(tinker_var *d, double delta)
{
    tinker_var *size = tinker_var_abs(d);
    /* Both branches are computed for every element and where() picks: neither overflows where it is
     * not taken. */
    tinker_var *near = tinker_var_scale(tinker_var_square(d), 0.5);
    tinker_var *far = tinker_var_scale(tinker_var_shift(size, -0.5 * delta), delta);
    return tinker_var_where(tinker_var_lt(size, tinker_tape_scalar(d->tape, delta)), near, far);
}

/* mse_loss, l1_loss, smooth_l1_loss (beta) and huber_loss (delta): functions of the difference */
struct value op_pointwise_loss(struct call *c)
{
    enum { MSE, L1, SMOOTH_L1, HUBER };
    tinker_var *a = call_tensor(c, 0, "input"), *b = call_tensor(c, 1, "target");
    int which = c->node->op->choice;
    if (!a || !b)
        return call_fail(c, "input and target are needed");
    tinker_var *d = tinker_var_sub(a, b);
    if (which == HUBER) {
        /* Its place in the call differs per loss, as torch keeps size_average and reduce, both long
         * deprecated, in between for some of them. */
        double delta = call_number(c, 3, "delta", 1);
        return delta > 0 ? reduce_loss(c, huber_elements(d, delta), 2, false)
                         : call_fail(c, "delta must be positive");
    }
    if (which == SMOOTH_L1) {
        /* smooth_l1 is Huber divided by beta, which at beta 0 would be 0 / 0; its limit is |d|. */
        double beta = call_number(c, 5, "beta", 1);
        if (beta < 0)
            return call_fail(c, "beta must not be negative");
        tinker_var *y =
            beta > 0 ? tinker_var_scale(huber_elements(d, beta), 1 / beta) : tinker_var_abs(d);
        return reduce_loss(c, y, 4, false);
    }
    return reduce_loss(c, which == MSE ? tinker_var_square(d) : tinker_var_abs(d), 4, false);
}

/* target (log target - input), 0 where target is 0; or with log_target the target is its log */
struct value op_kl_div(struct call *c)
{
    tinker_var *a = call_tensor(c, 0, "input"), *t = call_tensor(c, 1, "target");
    bool logs = call_flag(c, 5, "log_target", false);
    if (!a || !t)
        return call_fail(c, "input and target are needed");
    tinker_var *y;
    /* In log space no logarithm is taken, so no element needs to be guarded. */
    if (logs) {
        y = tinker_var_mul(tinker_var_exp(t), tinker_var_sub(t, a));
    } else {
        /* t log t at t = 0 is 0 by its limit; log(1) stands in for log(0), whose gradient would be
         * NaN even behind where(). */
        tinker_var *zero = tinker_tape_scalar(c->tape, 0);
        tinker_var *some = tinker_var_gt(t, zero);
        tinker_var *safe = tinker_var_where(some, t, tinker_tape_scalar(c->tape, 1));
        y = tinker_var_sub(tinker_var_where(some, tinker_var_mul(t, tinker_var_log(safe)), zero),
                           tinker_var_mul(t, a));
    }
    return reduce_loss(c, y, 4, true);
}

/* (1 - y) x + (1 + (p - 1) y) softplus(-x), times the weight */
struct value op_bce_logits(struct call *c)
{
    tinker_var *x = call_tensor(c, 0, "input"), *t = call_tensor(c, 1, "target");
    if (!x || !t)
        return call_fail(c, "input and target are needed");
    /* softplus(-x) = -log sigmoid(x), without the overflow of computing sigmoid first. */
    tinker_var *soft = tinker_var_softplus(tinker_var_neg(x));
    /* pos_weight p counts positive targets p times: 1 + (p - 1) t is 1 where t = 0 and p where t =
     * 1. */
    if (call_arg(c, 6, "pos_weight")) {
        tinker_var *more = tinker_var_shift(call_tensor(c, 6, "pos_weight"), -1);
        soft = tinker_var_mul(tinker_var_shift(tinker_var_mul(more, t), 1), soft);
    }
    tinker_var *y = tinker_var_add(tinker_var_mul(tinker_var_shift(tinker_var_neg(t), 1), x), soft);
    if (call_arg(c, 2, "weight"))
        y = tinker_var_mul(y, call_tensor(c, 2, "weight"));
    return reduce_loss(c, y, 5, false);
}
