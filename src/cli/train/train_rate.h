/* train_rate.h - the learning rate of --lr auto. */
#ifndef CLI_TRAIN_RATE_H
#define CLI_TRAIN_RATE_H

#include "cli/train/train_options.h"

/* The rate for a model and a kind of training, and which rule gave it.  dir: the model's files on this
 * machine; NULL: it is not here, and its name alone decides. */
double train_rate_auto(const char *model, const char *dir, enum train_kind kind, bool on_policy,
                       const char **rule);

#endif
