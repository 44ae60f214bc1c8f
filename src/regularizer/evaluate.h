/* evaluate.h - checking the options of a custom loss before anything is sent. */
#ifndef REGULARIZER_EVALUATE_H
#define REGULARIZER_EVALUATE_H

#include <tinker/custom_loss.h>

/* Copy opts (NULL: defaults) to *ours and check them and fn. */
tinker_status evaluate_check(const tinker_custom_options *opts, tinker_loss_fn *fn,
                             tinker_custom_options *ours, tinker_error *err);

#endif
