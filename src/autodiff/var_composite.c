/* var_composite.c - what losses are often made of, in one call each; all built from the
 * operations, so their gradients follow. */
#include "autodiff/tape.h"
#include <tinker/extra/autodiff.h>

/* Elements where the mask is 0 are dropped, not multiplied by 0: NaN and infinity there do no
 * harm. */
tinker_var *tinker_var_masked_sum(tinker_var *a, tinker_var *mask)
{
    return tinker_var_sum(var_keep(a, mask), TINKER_ALL, 0);
}

tinker_var *tinker_var_masked_mean(tinker_var *a, tinker_var *mask)
{
    if (!tape_usable(a, mask, "masked_mean"))
        return tape_broken(a, mask);
    tinker_var *ones = var_broadcast_to(tinker_tape_scalar(a->tape, 1), &a->shape);
    tinker_var *count = tinker_var_masked_sum(ones, mask);
    /* var_recip() of 0 is 0: the mean of nothing is 0, without a gradient. */
    return tinker_var_mul(tinker_var_masked_sum(a, mask), var_recip(count));
}

tinker_var *tinker_var_mse(tinker_var *a, tinker_var *b)
{
    return tinker_var_mean(tinker_var_square(tinker_var_sub(a, b)), TINKER_ALL, 0);
}

/* d^2 / 2 for |d| <= delta, beyond that delta |d| - delta^2 / 2, which joins it smoothly. */
tinker_var *tinker_var_huber(tinker_var *a, tinker_var *b, double delta)
{
    if (!tape_usable(a, b, "huber"))
        return tape_broken(a, b);
    tinker_var *size = tinker_var_abs(tinker_var_sub(a, b));
    tinker_var *near = tinker_var_scale(tinker_var_square(size), 0.5);
    tinker_var *far = tinker_var_shift(tinker_var_scale(size, delta), -0.5 * delta * delta);
    tinker_var *small = tinker_var_le(size, tinker_tape_scalar(a->tape, delta));
    return tinker_var_mean(tinker_var_where(small, near, far), TINKER_ALL, 0);
}

/* -sum_i w_i log p_i: what the service calls cross_entropy, summed over the tokens of one datum. */
tinker_var *tinker_var_nll(tinker_var *logprobs, tinker_var *weights)
{
    return tinker_var_neg(tinker_var_dot(logprobs, weights));
}

/* The norm, but a constant when it is below the floor: no division by 0, no gradient there. */
static tinker_var *floored_norm(tinker_var *a)
{
    return tinker_var_clamp(tinker_var_norm(a, TINKER_ALL, 0), 1e-8, 1e300);
}

/* a . b / (|a| |b|), of all elements. */
tinker_var *tinker_var_cosine(tinker_var *a, tinker_var *b)
{
    tinker_var *norms = tinker_var_mul(floored_norm(a), floored_norm(b));
    return tinker_var_div(tinker_var_dot(a, b), norms);
}

/* sum p (log p - log q) of each row */
tinker_var *tinker_var_kl_rows(tinker_var *a, tinker_var *b)
{
    tinker_var *terms = tinker_var_mul(tinker_var_exp(a), tinker_var_sub(a, b));
    return tinker_var_sum(terms, -1, 0);
}

/* -sum p log p of each row */
tinker_var *tinker_var_entropy_rows(tinker_var *a)
{
    return tinker_var_neg(tinker_var_sum(tinker_var_mul(tinker_var_exp(a), a), -1, 0));
}

/* p / q from log p and log q: the importance ratio of PPO and its relatives. */
tinker_var *tinker_var_ratio(tinker_var *a, tinker_var *b)
{
    return tinker_var_exp(tinker_var_sub(a, b));
}

/* (a - mean) / (std + 1e-8), as advantages are normalized. The epsilon keeps equal elements at
 * 0. */
tinker_var *tinker_var_whiten(tinker_var *a)
{
    tinker_var *off = tinker_var_sub(a, tinker_var_mean(a, TINKER_ALL, 0));
    return tinker_var_div(off, tinker_var_shift(tinker_var_std(a, TINKER_ALL, 0, 0), 1e-8));
}
