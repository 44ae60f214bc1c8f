/* loss.c - formulas of the losses and their settings; see loss.h.
 *
 * Elements are computed in double: there is one per token, and ratios are exps. */
#include "engine/train/loss.h"

#include <math.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

static const struct {
    const char *name;
    struct loss defaults;
    const char *keys[3];
} losses[] = {
    { "cross_entropy", { LOSS_CROSS_ENTROPY, 0, 0, 0 }, { NULL } },
    { "importance_sampling", { LOSS_IMPORTANCE_SAMPLING, 0, 0, 0 }, { NULL } },
    { "ppo", { LOSS_PPO, 0.8, 1.2, 0 }, { "clip_low_threshold", "clip_high_threshold" } },
    { "cispo", { LOSS_CISPO, 0.0, 4.0, 0 }, { "clip_low_threshold", "clip_high_threshold" } },
    { "dro", { LOSS_DRO, 0, 0, 0.05 }, { "beta" } },
};

static bool set_key(struct loss *l, const char *const *keys, const char *name, double value)
{
    for (size_t i = 0; keys[i]; i++) {
        if (strcmp(keys[i], name) != 0)
            continue;
        if (strcmp(name, "clip_low_threshold") == 0)
            l->clip_low = value;
        else if (strcmp(name, "clip_high_threshold") == 0)
            l->clip_high = value;
        else
            l->beta = value;
        return true;
    }
    return false;
}

tinker_status loss_parse(struct loss *l, const tinker_loss *in, tinker_error *err)
{
    size_t i = 0, count = ARRAY_LEN(losses);
    while (i < count && (!in->name || strcmp(losses[i].name, in->name) != 0))
        i++;
    if (i == count)
        return err_set(err, TINKER_EINVAL,
                       "unknown loss \"%.60s\" (cross_entropy, importance_sampling, ppo, cispo, "
                       "dro are known)",
                       in->name ? in->name : "");
    *l = losses[i].defaults;
    for (size_t c = 0; c < in->n_config; c++) {
        if (!in->config || !in->config[c].name)
            return err_set(err, TINKER_EINVAL, "loss %s: setting %zu has no name", in->name, c);
        const tinker_named_number *number = &in->config[c];
        if (!isfinite(number->value))
            return err_set(err, TINKER_EINVAL, "loss %s: %.60s is not a finite number", in->name,
                           number->name);
        if (!set_key(l, losses[i].keys, number->name, number->value))
            return err_set(err, TINKER_EINVAL, "loss %s does not know the setting \"%.60s\"%s%s",
                           in->name, number->name, losses[i].keys[0] ? "; allowed: " : "",
                           !losses[i].keys[0]    ? ""
                           : l->kind == LOSS_DRO ? "beta"
                                                 : "clip_low_threshold, clip_high_threshold");
    }
    if ((l->kind == LOSS_PPO || l->kind == LOSS_CISPO) && l->clip_low > l->clip_high)
        return err_set(err, TINKER_EINVAL,
                       "loss %s: clip_low_threshold is above "
                       "clip_high_threshold",
                       in->name);
    return TINKER_OK;
}

static double clip(double r, double low, double high)
{
    return r < low ? low : r > high ? high : r;
}

struct thresholds {
    double low, high;
};

static struct thresholds thresholds_of(const struct loss *l, const struct loss_datum *d, size_t i)
{
    return (struct thresholds){
        d->clip_low ? (double)d->clip_low[i] : l->clip_low,
        d->clip_high ? (double)d->clip_high[i] : l->clip_high,
    };
}

void loss_element(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                  float *loss, float *grad)
{
    double w = d->weights ? (double)d->weights[i] : 1.0;
    double A = d->advantages ? (double)d->advantages[i] : 0.0;
    double lp = (double)logprob, value = 0, slope = 0;
    *loss = *grad = 0;
    if (w == 0 || (l->kind != LOSS_CROSS_ENTROPY && l->kind != LOSS_DRO && A == 0))
        return; /* exactly zero even where the ratio overflows */
    double ratio = d->logprobs ? exp(lp - (double)d->logprobs[i]) : 1.0;
    struct thresholds t = thresholds_of(l, d, i);
    switch (l->kind) {
    case LOSS_CROSS_ENTROPY:
        value = -lp;
        slope = -1;
        break;
    case LOSS_IMPORTANCE_SAMPLING:
        value = slope = -ratio * A;
        break;
    case LOSS_PPO: {
        double clipped = clip(ratio, t.low, t.high) * A;
        value = -(ratio * A < clipped ? ratio * A : clipped);
        bool flat = (A > 0 && ratio > t.high) || (A < 0 && ratio < t.low);
        slope = flat ? 0 : -ratio * A;
        break;
    }
    case LOSS_CISPO:
        slope = -clip(ratio, t.low, t.high) * A;
        value = slope * lp;
        break;
    case LOSS_DRO: {
        double gap = lp - (double)d->logprobs[i];
        value = -(lp * A - 0.5 * l->beta * gap * gap);
        slope = -(A - l->beta * gap);
        break;
    }
    }
    *loss = (float)(w * value);
    *grad = (float)(w * slope);
}

bool loss_ratio(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                double *ratio, bool *clipped)
{
    if (!d->logprobs || !d->advantages || d->advantages[i] == 0 ||
        (d->weights && d->weights[i] == 0))
        return false;
    struct thresholds t = thresholds_of(l, d, i);
    *ratio = exp((double)logprob - (double)d->logprobs[i]);
    *clipped =
        (l->kind == LOSS_PPO || l->kind == LOSS_CISPO) && (*ratio < t.low || *ratio > t.high);
    return true;
}
