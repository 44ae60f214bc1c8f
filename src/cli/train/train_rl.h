/* train_rl.h - one loop for rewards and for on-policy distillation. */
#ifndef CLI_TRAIN_RL_H
#define CLI_TRAIN_RL_H

#include "cli/train/trainer.h"

/* Everything from the data to the end of the run; the trainer is open.  The exit status. */
int train_rl_run(struct trainer *t);

#endif
