/* rl_prompt.h - prompts of rows, with what the options put around them. */
#ifndef CLI_RL_PROMPT_H
#define CLI_RL_PROMPT_H

#include <tinker/recipe.h>
#include "base/arena.h"
#include "cli/train/train_options.h"

/* The conversation to be continued for a row, in the arena; NULL: out of memory.  examples: what
 * is said before; NULL: nothing. */
const tinker_conversation *rl_prompt_make(struct arena *a, const struct train_options *o,
                                          const tinker_conversation *examples,
                                          const tinker_row *row);

#endif
