/* adam.c - AdamW with bias correction, decoupled decay and global-norm clipping.
 *
 * The same update as torch.optim.AdamW after clip_grad_norm_. */
#include "base/array.h"
#include "engine/train/step.h"

#include <math.h>
#include <stdlib.h>
#include "base/err.h"

enum { BLOCK = 1 << 14 };
/* The square of a larger norm is not a float, and Adam keeps squares. */
static const double norm_max = 1.8e19;

/* One step s; what is the same for every parameter is computed once, in double. */
struct step_job {
    tinker_adapter *a;
    const tinker_adam *adam;
    float clip;       /* factor of the gradient */
    float decay;      /* 1 - learning_rate * weight_decay */
    float step_size;  /* learning_rate / (1 - beta1^s) */
    float correction; /* sqrt(1 - beta2^s) */
    bool trial;       /* compute the update, but change nothing */
    double *sums;     /* per block: squares of updates */
};

static size_t blocks_of(const tinker_adapter *a)
{
    return (a->params.total + BLOCK - 1) / BLOCK;
}

static void block_range(const tinker_adapter *a, size_t block, size_t *begin, size_t *end)
{
    *begin = block * BLOCK;
    *end = *begin + BLOCK < a->params.total ? *begin + BLOCK : a->params.total;
}

/* w -= lr wd w + lr m^ / (sqrt(v^) + eps), where m^ = m / (1 - beta1^s) and
 * v^ = v / (1 - beta2^s) undo the start of the moving averages at zero.  Without a
 * gradient the moments decay as with a gradient of zero. */
static void update_slice(void *arg, size_t first, size_t last)
{
    const struct step_job *j = arg;
    float *w = j->a->w, *m = j->a->m, *v = j->a->v;
    const float *grad = j->a->grad;
    float beta1 = (float)j->adam->beta1, beta2 = (float)j->adam->beta2;
    float rest1 = (float)(1 - j->adam->beta1), rest2 = (float)(1 - j->adam->beta2);
    float eps = (float)j->adam->eps;
    for (size_t block = first; block < last; block++) {
        size_t begin, end;
        double sum = 0;
        block_range(j->a, block, &begin, &end);
        for (size_t i = begin; i < end; i++) {
            float g = grad ? grad[i] * j->clip : 0;
            float m1 = beta1 * m[i] + rest1 * g;
            float v1 = beta2 * v[i] + rest2 * (g * g);
            float update = j->step_size * m1 / (sqrtf(v1) / j->correction + eps);
            float w1 = w[i] * j->decay - update;
            /* what float arithmetic really changes, not what was asked for */
            double change = (double)w1 - (double)w[i];
            sum += change * change;
            if (j->trial)
                continue;
            m[i] = m1;
            v[i] = v1;
            w[i] = w1;
        }
        j->sums[block] = sum;
    }
}

/* Norm from the sums of all blocks, added in order whatever thread made them. */
static double sum_blocks(const double *sums, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += sums[i];
    return sqrt(sum);
}

/* The update computes in float: a double that overflows there is refused, too. */
static tinker_status check_settings(const tinker_adam *o, tinker_error *err)
{
    const struct step_setting rules[] = {
        /* a beta of 1 would never move, and its bias correction would divide by 0; an eps that
         * rounds to 0 would divide 0 by 0 where the gradient was always 0 */
        { "learning_rate", o->learning_rate, step_is_rate(o->learning_rate) },
        { "beta1", o->beta1, o->beta1 >= 0 && o->beta1 < 1 },
        { "beta2", o->beta2, o->beta2 >= 0 && o->beta2 < 1 },
        { "eps", o->eps, (float)o->eps > 0 },
        { "weight_decay", o->weight_decay, step_is_rate(o->weight_decay) },
        { "grad_clip_norm", o->grad_clip_norm, o->grad_clip_norm >= 0 },
    };
    return step_check_settings(rules, ARRAY_LEN(rules), err);
}

/* Can no weight become infinite with these settings?  Moments are at most norm_max, because all
 * gradients were, and a weight that is a float plus less than an ulp of the largest float is one. */
static bool is_surely_finite(const struct step_job *j)
{
    return (double)j->step_size * norm_max / j->adam->eps < 1e30 && fabsf(j->decay) <= 1;
}

static tinker_status run_step(tinker_adapter *a, const tinker_adam *adam, double *sums,
                              tinker_step_metrics *metrics, tinker_error *err)
{
    struct step_job job = { .a = a, .adam = adam, .sums = sums };
    struct threads *threads = a->engine->threads;
    double norm; /* before clipping */
    tinker_status status = step_measure(a, adam->grad_clip_norm, &norm, &job.clip, err);
    if (status != TINKER_OK)
        return status;
    double steps = (double)a->steps + 1; /* this one included */
    job.decay = (float)(1 - adam->learning_rate * adam->weight_decay);
    job.step_size = (float)(adam->learning_rate / (1 - pow(adam->beta1, steps)));
    job.correction = (float)sqrt(1 - pow(adam->beta2, steps));
    /* A step cannot be undone: with settings that may end in infinities or NaNs, look first. */
    if (!is_surely_finite(&job)) {
        job.trial = true;
        threads_run(threads, blocks_of(a), 1, update_slice, &job);
        if (!isfinite(sum_blocks(sums, blocks_of(a))))
            return err_set(err, TINKER_EINVAL,
                           "the optimizer step was not taken: it would make weights that are not "
                           "finite; reduce learning_rate or clip the gradient");
        job.trial = false;
    }
    a->steps++;
    threads_run(threads, blocks_of(a), 1, update_slice, &job);
    a->stale = true; /* rank 0: pack the weights again before they are used */
    step_drop_gradient(a);
    if (metrics)
        *metrics = (tinker_step_metrics){
            .grad_norm = norm,
            .learning_rate = adam->learning_rate,
            .clip_coef = (double)job.clip,
            .update_norm = sum_blocks(sums, blocks_of(a)),
            .step = a->steps,
        };
    return TINKER_OK;
}

tinker_status tinker_adapter_step(tinker_adapter *a, const tinker_adam *adam,
                                  tinker_step_metrics *metrics, tinker_error *err)
{
    tinker_adam o = TINKER_ADAM_INIT;
    tinker_status status = opts_copy(&o, sizeof(o), adam, "tinker_adam", err);
    if (status == TINKER_OK)
        status = check_settings(&o, err);
    if (status != TINKER_OK)
        return status;
    status = step_check(a, "adamw", err);
    if (status != TINKER_OK)
        return status;
    double *sums = calloc(blocks_of(a), sizeof(*sums));
    if (!sums || !adapter_moments(a)) {
        free(sums);
        return err_nomem(err, "optimizer step");
    }
    status = run_step(a, &o, sums, metrics, err);
    free(sums);
    return status;
}
