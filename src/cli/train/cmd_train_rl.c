/* cmd_train_rl.c - `tinker train rl`: from rewards. */
#include <stdlib.h>
#include "cli/command.h"
#include "cli/output/out.h"
#include "cli/train/train_rl.h"

/* The loop is in train_rl.c, which on-policy distillation shares.  No tokenizer: --help was
 * printed, which is a success without a run. */
int cmd_train_rl(int argc, char **argv)
{
    struct trainer *t = calloc(1, sizeof(*t));
    if (!t)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    int status = trainer_open(t, TRAIN_RL, argc, argv);
    if (status == EXIT_OK && t->tokenizer)
        status = train_rl_run(t);
    trainer_close(t);
    free(t);
    return status;
}
