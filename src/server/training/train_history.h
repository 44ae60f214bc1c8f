/* train_history.h - what a training request computed becomes part of its run's history. */
#ifndef SERVER_TRAIN_HISTORY_H
#define SERVER_TRAIN_HISTORY_H

#include <tinker/engine.h>
#include "server/work/live_state.h"

/* The weight of the tokens of a pass: by it the loss is divided, as in the cookbook's
 * train_mean_nll.  Where the weights are not of that kind (a custom loss sends gradients as
 * weights, reinforcement learning has none) every token that takes part counts one. */
double train_history_weight(const tinker_datum *data, size_t n);

/* After the request has succeeded.  step: the optimizer step that the pass belongs to, or before
 * which it looked at the model. */
void train_history_pass(struct server *s, const char *run, int64_t step, bool forward_only,
                        const tinker_named_number *metrics, size_t n, double weight,
                        double seconds);
void train_history_step(struct server *s, const char *run, const tinker_step_metrics *m,
                        double seconds);

#endif
