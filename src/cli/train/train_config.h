/* train_config.h - config.json of a run: what the cookbook's tools look for, and what a run that
 * goes on must not change. */
#ifndef CLI_TRAIN_CONFIG_H
#define CLI_TRAIN_CONFIG_H

#include "base/buf.h"
#include "cli/train/trainer.h"

/* The whole document.  tail: further members as text, ", \"dpo_beta\": 0.1", or "". */
void train_config_put(struct buf *out, const struct trainer *t, const char *tail);
/* Is a run of the old configuration continued by one of the new?  Else the difference is printed;
 * the exit status. */
int train_config_compare(const struct trainer *t, const char *old, const char *new);

#endif
