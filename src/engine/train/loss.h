/* loss.h - the losses: what a datum must bring, L and dL/dlogprob of one element.
 *
 * Position t of a datum has one element, or K with (N, K) targets.  With l the
 * element's logprob, q and A the datum's logprobs and advantages, r = exp(l - q), and
 * w its weight (1 when absent):
 *
 *   cross_entropy         -w l                                        -w
 *   importance_sampling   -w r A                                      -w r A
 *   ppo                   -w min(r A, clip(r, lo, hi) A)              -w r A, 0 when clipped
 *   cispo                 -w clip(r, lo, hi) l A, clip not derived    -w clip(r, lo, hi) A
 *   dro                   -w (l A - beta (l - q)^2 / 2)               -w (A - beta (l - q))
 *   stable_reinforce      -w (min(r, 1) A l - kl (r - 1 - l + q)),    -w (min(r, 1) A - kl (r - 1))
 *                         min(r, 1) not derived
 *   gspo                  -w min(s A, clip(s, lo, hi) A)              -w s A, 0 when clipped
 *
 * with s, one ratio for the whole datum, the exponential of the mean of l - q over the positions M
 * that sequence_ratio_mask marks; its derivative goes to each token as if s were that token's own
 * ratio.  Such a loss needs all logprobs of a datum before the first gradient: loss_sequence().
 *
 * Losses are sums: nothing is divided by a count.  Everything that differs between them is
 * in the table of loss.c; nothing else compares losses.  Pure functions, any thread. */
#ifndef ENGINE_LOSS_H
#define ENGINE_LOSS_H

#include <stdbool.h>
#include <tinker/data.h>
#include "base/arena.h"

/* The tensors of a datum beside target_tokens, as a bit set. */
enum loss_input {
    LOSS_WEIGHTS = 1,
    LOSS_LOGPROBS = 2,
    LOSS_ADVANTAGES = 4,
    LOSS_CLIP_LOW = 8,
    LOSS_CLIP_HIGH = 16,
    LOSS_RATIO_MASK = 32
};

struct loss_type;

/* A loss with its settings, those of the request or the defaults of its type. */
struct loss {
    const struct loss_type *type;
    double clip_low, clip_high, beta, kl_coeff;
};

/* One element before its weight: what the formulas read, and what they give. */
struct loss_point {
    double logprob, old_logprob, advantage; /* l, q, A */
    double ratio, clip_low, clip_high;      /* r, lo, hi */
};
struct loss_value {
    double loss, slope; /* L and dL/dl */
};

/* One row of the table. */
struct loss_type {
    const char *name;
    unsigned required, optional; /* enum loss_input */
    bool many_targets;           /* takes (N, K) targets */
    bool scaled_by_advantage;    /* an advantage of 0 makes the loss exactly 0 */
    bool whole_datum;            /* needs all logprobs of a datum at once */
    bool by_caller;              /* computed by a function of the caller, any inputs */
    struct loss_setting {
        const char *name;
        size_t offset; /* in struct loss */
        double initial;
    } settings[3]; /* ends with a name that is NULL */
    struct loss_value (*compute)(const struct loss *l, const struct loss_point *p);
};

/* The tensors of one datum, dense, copied. */
struct loss_datum {
    size_t n, k; /* positions, targets per position */
    bool matrix; /* targets came as (N, K) */
    int32_t *targets;
    float *weights, *logprobs, *advantages, *clip_low, *clip_high; /* NULL: not given */
    float *ratio_mask;
    double ratio; /* s, once loss_sequence() has run, and whether the clip changed any token */
    bool clipped;
};

tinker_status loss_parse(struct loss *l, const tinker_loss *in, tinker_error *err);
/* The loss that a function of the caller computes. */
void loss_by_caller(struct loss *l);
/* Whether the loss takes this tensor. */
bool loss_takes(const struct loss *l, enum loss_input input);
/* Check and copy; index is for messages, n the tokens of the datum's input. */
tinker_status loss_read(struct loss_datum *d, const struct loss *l, const tinker_datum *in,
                        size_t index, size_t n, size_t vocab, struct arena *arena,
                        tinker_error *err);
/* What is wrong with the rows of a sparse tensor: they must be ascending, complete and inside the
 * matrix.  NULL: nothing. */
const char *loss_sparse_problem(const tinker_tensor *t);
/* Element i (position i / k): the loss and its derivative by the logprob. */
void loss_element(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                  float *loss, float *grad);
/* All elements of a datum whose loss needs the whole datum; sets d->ratio and d->clipped. */
void loss_sequence(const struct loss *l, struct loss_datum *d, const float *logprobs, float *values,
                   float *grads);
/* Whether element i counts in the ratio metrics, its ratio and whether it was clipped. */
bool loss_ratio(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                double *ratio, bool *clipped);

#endif
