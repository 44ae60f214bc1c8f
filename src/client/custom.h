/* custom.h - metrics of a custom loss on their way into the result of its backward pass. */
#ifndef CLIENT_CUSTOM_H
#define CLIENT_CUSTOM_H

#include <tinker/loss.h>
#include "base/arena.h"

struct custom_metrics {
    struct arena arena;
    tinker_named_number *v;
    size_t n;
};

struct custom_metrics *custom_metrics_new(const tinker_named_number *v, size_t n);
void custom_metrics_free(struct custom_metrics *m);
/* Replace metrics of equal names in *out and append the others; memory from a. */
tinker_status custom_metrics_lay(const struct custom_metrics *m, struct arena *a,
                                 tinker_forward_backward *out, tinker_error *err);

/* training.c: a forward_backward whose result gets *overlay, which becomes its own. */
tinker_future *trainer_backward_custom(struct tinker_training *t, const tinker_datum *data,
                                       size_t n, const tinker_loss *loss,
                                       struct custom_metrics **overlay, tinker_error *err);

#endif
