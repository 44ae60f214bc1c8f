/* loss.c - losses on the tape: preferences, KL to a reference, KL to a teacher's top tokens. */
#include <tinker/recipe.h>

#include <math.h>
#include <string.h>
#include "recipe/score.h"

/* Constants on the tape from float32. */
static tinker_var *put_floats(tinker_tape *tape, const float *v, size_t n)
{
    const tinker_tensor t = { .dtype = TINKER_FLOAT32, .data = v, .n = n };
    return tinker_tape_tensor(tape, &t);
}

/* Four sums side by side: one alone would wait for each addition. */
static double sum_products(const float *a, const float *b, size_t n)
{
    double s[4] = { 0 };
    size_t whole = n / 4 * 4;
    for (size_t i = 0; i < whole; i += 4) {
        s[0] += (double)a[i] * b[i];
        s[1] += (double)a[i + 1] * b[i + 1];
        s[2] += (double)a[i + 2] * b[i + 2];
        s[3] += (double)a[i + 3] * b[i + 3];
    }
    for (size_t i = whole; i < n; i++)
        s[0] += (double)a[i] * b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* ---- preferences ---- */

/* Sum of weight * logprob of one answer, above the reference if there is one; normalized: the
 * mean. The reference is a constant, so it is subtracted as a number and stays off the tape. */
static tinker_var *sum_answer(tinker_tape *tape, const tinker_datum *d, tinker_var *logprobs,
                              const float *reference, bool mean)
{
    const float *weights = score_floats(d, "weights");
    size_t n = score_length(d);
    double count = 0, base = 0;
    for (size_t i = 0; mean && weights && i < n; i++)
        count += weights[i];
    if (weights && reference)
        base = sum_products(weights, reference, n);
    if (!weights)
        return tinker_tape_fail(tape, "a pair needs \"weights\"");
    tinker_var *sum = tinker_var_dot(logprobs, tinker_tape_input(tape, d, "weights"));
    if (reference)
        sum = tinker_var_shift(sum, -base);
    return mean && count > 0 ? tinker_var_scale(sum, 1 / count) : sum;
}

/* log(p / (1 - p)) of a mean log-probability: what odds ratios are made of. log1p(-exp(x)):
 * exact also where the probability is small and 1 - p rounds to 1. */
static tinker_var *log_odds(tinker_var *mean)
{
    return tinker_var_sub(mean, tinker_var_log1p(tinker_var_neg(tinker_var_exp(mean))));
}

/* The loss of one pair from c and r, both relative to the reference. -log sigmoid(x) is
 * softplus(-x), which does not overflow. DPO Rafailov et al. 2023; IPO Azar et al. 2023; hinge:
 * SLiC, Zhao et al. 2023; cDPO: labels that are wrong with probability label_smoothing; SimPO
 * Meng et al. 2024; ORPO Hong et al. 2024. */
static tinker_var *loss_of_pair(const tinker_dpo *o, tinker_var *c, tinker_var *r)
{
    tinker_var *h = tinker_var_sub(c, r), *z = tinker_var_scale(h, o->beta);
    tinker_var *right, *wrong;
    switch (o->loss) {
    case TINKER_PREFERENCE_IPO:
        return tinker_var_square(tinker_var_shift(h, -1 / (2 * o->beta)));
    case TINKER_PREFERENCE_HINGE:
        return tinker_var_relu(tinker_var_shift(tinker_var_neg(z), 1));
    case TINKER_PREFERENCE_CDPO:
        right = tinker_var_scale(tinker_var_softplus(tinker_var_neg(z)), 1 - o->label_smoothing);
        wrong = tinker_var_scale(tinker_var_softplus(z), o->label_smoothing);
        return tinker_var_add(right, wrong);
    case TINKER_PREFERENCE_SIMPO:
        return tinker_var_softplus(tinker_var_neg(tinker_var_shift(z, -o->gamma)));
    case TINKER_PREFERENCE_ORPO:
        right = tinker_var_softplus(tinker_var_neg(tinker_var_sub(log_odds(c), log_odds(r))));
        return tinker_var_sub(tinker_var_scale(right, o->lambda), c);
    default:
        return tinker_var_softplus(tinker_var_neg(z));
    }
}

/* data[2i] is the chosen answer of pair i, data[2i + 1] the rejected one. SimPO and ORPO use
 * means and no reference, the others sums relative to it. Metrics have the cookbook's names. */
tinker_var *tinker_loss_preference(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state)
{
    const tinker_dpo *o = state;
    bool mean = o->loss == TINKER_PREFERENCE_SIMPO || o->loss == TINKER_PREFERENCE_ORPO;
    size_t pairs = n / 2;
    double won = 0, chosen = 0, rejected = 0;
    if (pairs == 0)
        return tinker_tape_fail(tape, "there is no pair");
    if (!mean && !o->reference)
        return tinker_tape_fail(tape, "this loss needs logprobs of a reference");
    tinker_var *total = tinker_tape_scalar(tape, 0);
    for (size_t i = 0; i < pairs; i++) {
        const float *const *ref = mean ? NULL : (const float *const *)o->reference + 2 * i;
        tinker_var *c = sum_answer(tape, &data[2 * i], logprobs[2 * i], ref ? ref[0] : NULL, mean);
        tinker_var *r =
            sum_answer(tape, &data[2 * i + 1], logprobs[2 * i + 1], ref ? ref[1] : NULL, mean);
        if (!c || !r)
            return NULL;
        total = tinker_var_add(total, loss_of_pair(o, c, r));
        won += tinker_var_item(c) > tinker_var_item(r);
        chosen += o->beta * tinker_var_item(c);
        rejected += o->beta * tinker_var_item(r);
    }
    double p = (double)pairs;
    total = tinker_var_scale(total, 1 / p);
    tinker_tape_metric(tape, "dpo_loss", tinker_var_item(total));
    tinker_tape_metric(tape, "accuracy", won / p);
    tinker_tape_metric(tape, "margin", (chosen - rejected) / p);
    tinker_tape_metric(tape, "chosen_reward", chosen / p);
    tinker_tape_metric(tape, "rejected_reward", rejected / p);
    return total;
}

/* ---- KL to a reference ---- */

/* k3 = exp(d) - 1 - d with d = log q - log p, summed over the sampled tokens and divided by
 * their number, so that long answers do not count more. See tinker_kl_k3(). */
tinker_var *tinker_loss_kl3(tinker_tape *tape, const tinker_datum *data,
                            tinker_var *const *logprobs, size_t n, void *state)
{
    const tinker_kl3 *o = state;
    tinker_var *total = tinker_tape_scalar(tape, 0);
    double count = 0;
    for (size_t i = 0; i < n; i++) {
        const float *mask = score_floats(&data[i], "mask");
        size_t length = score_length(&data[i]);
        mask = mask ? mask : score_floats(&data[i], "weights");
        if (!mask)
            return tinker_tape_fail(tape, "a datum needs \"mask\" or \"weights\"");
        for (size_t t = 0; t < length; t++)
            count += mask[t] != 0;
        tinker_var *one =
            tinker_var_ne(put_floats(tape, mask, length), tinker_tape_scalar(tape, 0));
        tinker_var *d = tinker_var_sub(put_floats(tape, o->reference[i], length), logprobs[i]);
        tinker_var *k3 = tinker_var_sub(tinker_var_expm1(d), d);
        total = tinker_var_add(total, tinker_var_masked_sum(k3, one));
    }
    total = tinker_var_scale(total, count > 0 ? o->coef / count : 0);
    tinker_tape_metric(tape, "kl3", tinker_var_item(total));
    return total;
}

/* ---- reverse KL over the top tokens of a teacher ---- */

/* Positions without any weight count nothing; so do cells without weight. With p the student over
 * the cells that count, the loss is the sum of p (log p - log w), its second factor held fixed. */
tinker_var *tinker_loss_reverse_kl(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state)
{
    tinker_var *total = tinker_tape_scalar(tape, 0), *entropy = total;
    double positions = 0;
    (void)state;
    for (size_t i = 0; i < n; i++) {
        tinker_var *w = tinker_tape_input(tape, &data[i], "weights");
        tinker_var *zero = tinker_tape_scalar(tape, 0);
        tinker_var *used = tinker_var_gt(w, zero);
        tinker_var *row = tinker_var_gt(tinker_var_sum(w, -1, 1), zero);
        /* an empty row keeps all its cells, so that its softmax is finite; it is masked below */
        tinker_var *kept = tinker_var_or(used, tinker_var_not(row));
        tinker_var *logp = tinker_var_log_softmax(
            tinker_var_masked_fill(logprobs[i], tinker_var_not(kept), -1e30), -1);
        tinker_var *p = tinker_var_mul(tinker_var_exp(logp), used);
        tinker_var *log_w = tinker_var_log(tinker_var_where(used, w, tinker_tape_scalar(tape, 1)));
        tinker_var *finite = tinker_var_where(used, logp, zero);
        tinker_var *gap = tinker_var_detach(tinker_var_sub(finite, log_w));
        total = tinker_var_add(total, tinker_var_sum(tinker_var_mul(p, gap), TINKER_ALL, 0));
        entropy = tinker_var_sub(
            entropy, tinker_var_detach(tinker_var_sum(tinker_var_mul(p, finite), TINKER_ALL, 0)));
        positions += tinker_var_item(tinker_var_sum(row, TINKER_ALL, 0));
    }
    double loss = tinker_var_item(total), by = positions ? positions : 1;
    tinker_tape_metric(tape, "sdft/reverse_kl_loss", loss);
    tinker_tape_metric(tape, "sdft/reverse_kl_mean", loss / by);
    tinker_tape_metric(tape, "sdft/student_entropy_mean", tinker_var_item(entropy) / by);
    tinker_tape_metric(tape, "sdft/reverse_kl_positions", positions);
    return total;
}
