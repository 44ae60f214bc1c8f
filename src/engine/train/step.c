/* step.c - see step.h. */
#include "engine/train/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Fixed, so that the sum of the blocks' sums does not depend on the number of threads. */
enum { BLOCK = 1 << 14 };
/* The square of a larger norm is not a float, and Adam keeps squares. */
static const double norm_max = 1.8e19;

struct norm_job {
    const tinker_adapter *a;
    double *sums;
};

/* Sum of the squared gradient of each block. */
static void norm_slice(void *arg, size_t first, size_t last)
{
    const struct norm_job *j = arg;
    for (size_t block = first; block < last; block++) {
        size_t begin = block * BLOCK, end = begin + BLOCK;
        double sum = 0;
        end = end < j->a->params.total ? end : j->a->params.total;
        for (size_t i = begin; i < end; i++)
            sum += (double)j->a->grad[i] * (double)j->a->grad[i];
        j->sums[block] = sum;
    }
}

/* The next pass makes a new one; without a gradient a step moves by its moments alone. */
void step_drop_gradient(tinker_adapter *a)
{
    free(a->grad);
    a->grad = NULL;
}

tinker_status step_measure(tinker_adapter *a, double clip_norm, double *norm, float *clip,
                           tinker_error *err)
{
    size_t n = (a->params.total + BLOCK - 1) / BLOCK;
    *norm = 0;
    *clip = 1;
    if (!a->grad)
        return TINKER_OK;
    struct norm_job job = { a, calloc(n, sizeof(*job.sums)) };
    if (!job.sums)
        return err_nomem(err, "optimizer step");
    threads_run(a->engine->threads, n, 1, norm_slice, &job);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += job.sums[i];
    free(job.sums);
    *norm = sqrt(sum);
    /* 1e-6 as in torch's clip_grad_norm_ */
    if (clip_norm > 0 && *norm > clip_norm)
        *clip = (float)(clip_norm / (*norm + 1e-6));
    /* Drop a gradient that Adam cannot take.  An infinite second moment would never come down
     * again: its parameter would stop moving for good, and files with it would not load.
     * The condition is also false for NAN. */
    if (*norm * (double)*clip <= norm_max)
        return TINKER_OK;
    step_drop_gradient(a);
    if (!isfinite(*norm))
        return err_set(err, TINKER_EREQUEST,
                       "non-finite gradient norm: the step was skipped and the gradient dropped");
    return err_set(err, TINKER_EREQUEST,
                   "a gradient norm of %g is too large: the step was skipped and the gradient "
                   "dropped",
                   *norm);
}

tinker_status step_check(const tinker_adapter *a, const char *optimizer, tinker_error *err)
{
    const char *own = a->desc.optimizer ? a->desc.optimizer : "adamw";
    if (a->snapshot)
        return err_set(err, TINKER_EINVAL, "this adapter is a snapshot and cannot be trained");
    if (strcmp(own, optimizer) != 0)
        return err_set(err, TINKER_EINVAL, "this model is trained with %s, not with %s", own,
                       optimizer);
    return TINKER_OK;
}

/* 0 is a rate: a step that only collects moments. */
bool step_is_rate(double v)
{
    return v >= 0 && isfinite((float)v);
}

tinker_status step_check_settings(const struct step_setting *list, size_t n, tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i].ok || !isfinite(list[i].value))
            return err_set(err, TINKER_EINVAL, "%s is %g, which is out of range", list[i].name,
                           list[i].value);
    return TINKER_OK;
}
