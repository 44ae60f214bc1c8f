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
 *
 * Losses are sums: nothing is divided by a count. */
#ifndef ENGINE_LOSS_H
#define ENGINE_LOSS_H

#include <stdbool.h>
#include <tinker/data.h>
#include "base/arena.h"

enum loss_kind { LOSS_CROSS_ENTROPY, LOSS_IMPORTANCE_SAMPLING, LOSS_PPO, LOSS_CISPO, LOSS_DRO };

struct loss {
    enum loss_kind kind;
    double clip_low, clip_high, beta;
};

/* The tensors of one datum, dense, copied. */
struct loss_datum {
    size_t n, k; /* positions, targets per position */
    bool matrix; /* targets came as (N, K) */
    int32_t *targets;
    float *weights, *logprobs, *advantages, *clip_low, *clip_high; /* NULL: not given */
};

tinker_status loss_parse(struct loss *l, const tinker_loss *in, tinker_error *err);
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
/* Whether element i counts in the ratio metrics, its ratio and whether it was clipped. */
bool loss_ratio(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                double *ratio, bool *clipped);

#endif
