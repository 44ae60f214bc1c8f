/* step.h - what all optimizers do before they change a weight: the norm of the gradient, and a clip.
 */
#ifndef ENGINE_TRAIN_STEP_H
#define ENGINE_TRAIN_STEP_H

#include "engine/model/adapter.h"

/* The norm over all parameters, and the factor that brings it down to clip_norm (0: none is wanted).
 * A gradient that cannot be used is dropped: TINKER_EREQUEST.  Norms are summed in double over fixed
 * blocks whose sums add in order, so threads do not change them. */
tinker_status step_measure(tinker_adapter *a, double clip_norm, double *norm, float *clip,
                           tinker_error *err);
void step_drop_gradient(tinker_adapter *a);
/* May a step of this optimizer be taken?  TINKER_EINVAL for snapshots and for adapters of another. */
tinker_status step_check(const tinker_adapter *a, const char *optimizer, tinker_error *err);

/* { "learning_rate", 0.1, is it in range } */
struct step_setting {
    const char *name;
    double value;
    bool ok;
};
tinker_status step_check_settings(const struct step_setting *list, size_t n, tinker_error *err);
/* Finite as a float, and not negative. */
bool step_is_rate(double v);

#endif
