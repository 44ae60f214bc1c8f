/* loss.c - the one table of losses: names, inputs, settings, formulas; see loss.h.
 *
 * To add a loss, write its formula and a row of the table.  A setting that no other loss
 * has needs a field in struct loss; a new tensor a bit in enum loss_input and a line in
 * loss_read.c.  Elements are computed in double: there is one per token, and ratios are
 * exponentials. */
#include "engine/train/loss.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"

/* clip(r, lo, hi) */
static double clip_ratio(const struct loss_point *p)
{
    return p->ratio < p->clip_low ? p->clip_low : p->ratio > p->clip_high ? p->clip_high : p->ratio;
}

/* L = -l */
static struct loss_value compute_cross_entropy(const struct loss *l, const struct loss_point *p)
{
    (void)l;
    return (struct loss_value){ .loss = -p->logprob, .slope = -1 };
}

/* L = -r A; dr/dl = r, so the slope is the same. */
static struct loss_value compute_importance_sampling(const struct loss *l,
                                                     const struct loss_point *p)
{
    (void)l;
    return (struct loss_value){ .loss = -p->ratio * p->advantage,
                                .slope = -p->ratio * p->advantage };
}

/* L = -min(r A, clip(r) A).  Where the clipped side is the smaller one L is flat: a good
 * token (A > 0) gains no more above hi, a bad one (A < 0) loses no more below lo. */
static struct loss_value compute_ppo(const struct loss *l, const struct loss_point *p)
{
    (void)l;
    double A = p->advantage, plain = p->ratio * A, clipped = clip_ratio(p) * A;
    bool flat = (A > 0 && p->ratio > p->clip_high) || (A < 0 && p->ratio < p->clip_low);
    return (struct loss_value){ .loss = -(plain < clipped ? plain : clipped),
                                .slope = flat ? 0 : -plain };
}

/* L = -clip(r) A l, with clip(r) as a constant: a clipped token keeps its gradient. */
static struct loss_value compute_cispo(const struct loss *l, const struct loss_point *p)
{
    (void)l;
    double slope = -clip_ratio(p) * p->advantage;
    return (struct loss_value){ .loss = slope * p->logprob, .slope = slope };
}

/* L = -(l A - beta (l - q)^2 / 2): the square pulls the policy back towards q. */
static struct loss_value compute_dro(const struct loss *l, const struct loss_point *p)
{
    double gap = p->logprob - p->old_logprob;
    return (struct loss_value){
        .loss = -(p->logprob * p->advantage - 0.5 * l->beta * gap * gap),
        .slope = -(p->advantage - l->beta * gap),
    };
}

/* L = -min(r, 1) A l + kl (r - 1 - (l - q)), with min(r, 1) as a constant.  The second term is the
 * estimate of KL(new || old) that is never negative; its derivative by l is kl (r - 1). */
static struct loss_value compute_stable_reinforce(const struct loss *l, const struct loss_point *p)
{
    double slope = -(p->ratio < 1 ? p->ratio : 1) * p->advantage;
    return (struct loss_value){
        .loss = slope * p->logprob + l->kl_coeff * (p->ratio - 1 - (p->logprob - p->old_logprob)),
        .slope = slope + l->kl_coeff * (p->ratio - 1),
    };
}

/* Every message that lists losses, their settings or their inputs walks this table. */
static const struct loss_type losses[] = {
    {
        .name = "cross_entropy",
        .optional = LOSS_WEIGHTS,
        .many_targets = true,
        .compute = compute_cross_entropy,
    },
    {
        .name = "importance_sampling",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS,
        .scaled_by_advantage = true,
        .compute = compute_importance_sampling,
    },
    {
        .name = "ppo",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS | LOSS_CLIP_LOW | LOSS_CLIP_HIGH,
        .scaled_by_advantage = true,
        .settings = { { "clip_low_threshold", offsetof(struct loss, clip_low), 0.8 },
                      { "clip_high_threshold", offsetof(struct loss, clip_high), 1.2 } },
        .compute = compute_ppo,
    },
    {
        .name = "cispo",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS | LOSS_CLIP_LOW | LOSS_CLIP_HIGH,
        .scaled_by_advantage = true,
        .settings = { { "clip_low_threshold", offsetof(struct loss, clip_low), 0.0 },
                      { "clip_high_threshold", offsetof(struct loss, clip_high), 4.0 } },
        .compute = compute_cispo,
    },
    {
        .name = "dro",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS,
        .settings = { { "beta", offsetof(struct loss, beta), 0.05 } },
        .compute = compute_dro,
    },
    {
        /* ppo's formula with the ratio of the sequence; the thresholds are those of the paper */
        .name = "gspo",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS | LOSS_CLIP_LOW | LOSS_CLIP_HIGH | LOSS_RATIO_MASK,
        .scaled_by_advantage = true,
        .whole_datum = true,
        .settings = { { "clip_low_threshold", offsetof(struct loss, clip_low), 0.9997 },
                      { "clip_high_threshold", offsetof(struct loss, clip_high), 1.0004 } },
        .compute = compute_ppo,
    },
    {
        .name = "stable_reinforce",
        .required = LOSS_LOGPROBS | LOSS_ADVANTAGES,
        .optional = LOSS_WEIGHTS,
        .settings = { { "kl_coeff", offsetof(struct loss, kl_coeff), 0.0 } },
        .compute = compute_stable_reinforce,
    },
    {
        /* no formula here: tinker_pass_new_custom() brings one */
        .name = "custom",
        .many_targets = true,
        .whole_datum = true,
        .by_caller = true,
    },
};

/* Room for all names of a message, which is limited to 512 bytes anyway. */
enum { LIST_TEXT = 200 };

/* Appends a name to a list for a message; what has no room is left out. */
static void append_name(char list[LIST_TEXT], const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, LIST_TEXT - n, "%s%s", n ? ", " : "", name);
}

/* Stores a setting where the table says. */
static void set_field(struct loss *l, const struct loss_setting *s, double value)
{
    memcpy((char *)l + s->offset, &value, sizeof(value));
}

tinker_status loss_parse(struct loss *l, const tinker_loss *in, tinker_error *err)
{
    const char *name = in->name ? in->name : "";
    char list[LIST_TEXT] = ""; /* what is known, for a message */
    *l = (struct loss){ 0 };
    for (size_t i = 0; i < ARRAY_LEN(losses) && !l->type; i++)
        if (!losses[i].by_caller && strcmp(losses[i].name, name) == 0)
            l->type = &losses[i];
    if (!l->type) {
        for (size_t i = 0; i < ARRAY_LEN(losses); i++)
            if (!losses[i].by_caller)
                append_name(list, losses[i].name);
        return err_set(err, TINKER_EINVAL, "unknown loss \"%.60s\" (%s are known)", name, list);
    }
    /* the defaults of the type, then what the request says */
    for (const struct loss_setting *s = l->type->settings; s->name; s++)
        set_field(l, s, s->initial);
    for (size_t i = 0; i < in->n_config; i++) {
        if (!in->config || !in->config[i].name)
            return err_set(err, TINKER_EINVAL, "loss %s: setting %zu has no name", name, i);
        const tinker_named_number *number = &in->config[i];
        const struct loss_setting *s = l->type->settings;
        if (!isfinite(number->value))
            return err_set(err, TINKER_EINVAL, "loss %s: %.60s is not a finite number", name,
                           number->name);
        while (s->name && strcmp(s->name, number->name) != 0)
            s++;
        if (!s->name) {
            for (s = l->type->settings; s->name; s++)
                append_name(list, s->name);
            return err_set(err, TINKER_EINVAL, "loss %s does not know the setting \"%.60s\"%s%s",
                           name, number->name, *list ? "; allowed: " : "", list);
        }
        set_field(l, s, number->value);
    }
    /* every setting known here is a number */
    if (in->n_texts) {
        for (const struct loss_setting *s = l->type->settings; s->name; s++)
            append_name(list, s->name);
        return err_set(err, TINKER_EINVAL,
                       "loss %s: %.60s is a text; the settings of this loss%s%s", name,
                       in->texts[0].name, *list ? " are numbers: " : " are none", list);
    }
    /* both are 0 in losses that do not clip */
    if (l->clip_low > l->clip_high)
        return err_set(err, TINKER_EINVAL,
                       "loss %s: clip_low_threshold is above clip_high_threshold", name);
    return TINKER_OK;
}

void loss_by_caller(struct loss *l)
{
    *l = (struct loss){ 0 };
    for (size_t i = 0; i < ARRAY_LEN(losses); i++)
        if (losses[i].by_caller)
            l->type = &losses[i];
}

bool loss_takes(const struct loss *l, enum loss_input input)
{
    return (l->type->required | l->type->optional) & input;
}

/* Element i of a datum as the formulas read it; false: its loss is exactly 0. */
static bool read_point(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                       struct loss_point *p)
{
    *p = (struct loss_point){
        .logprob = (double)logprob,
        .old_logprob = d->logprobs ? (double)d->logprobs[i] : 0,
        .advantage = d->advantages ? (double)d->advantages[i] : 0,
        .clip_low = d->clip_low ? (double)d->clip_low[i] : l->clip_low,
        .clip_high = d->clip_high ? (double)d->clip_high[i] : l->clip_high,
    };
    /* exactly zero even where the ratio overflows: 0 * inf would be NAN */
    return !(d->weights && d->weights[i] == 0) &&
           !(l->type->scaled_by_advantage && p->advantage == 0);
}

/* Whether position i is in M: marked by the mask or, without one, of any effect. */
static bool in_ratio(const struct loss_datum *d, size_t i)
{
    if (d->ratio_mask)
        return d->ratio_mask[i] != 0;
    return d->weights ? d->weights[i] != 0 : d->advantages[i] != 0;
}

/* The ratio of a sequence is the geometric mean of those of its tokens,
 * exp(1/n sum(log p - log p_old)), and the same for all of them (GSPO, arXiv:2507.18071). */
void loss_sequence(const struct loss *l, struct loss_datum *d, const float *logprobs, float *values,
                   float *grads)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < d->n; i++) {
        if (!in_ratio(d, i))
            continue;
        sum += (double)logprobs[i] - (double)d->logprobs[i];
        n++;
    }
    d->ratio = n > 0 ? exp(sum / n) : 1;
    d->clipped = false;
    for (size_t i = 0; i < d->n; i++) {
        struct loss_point p;
        double w = d->weights ? (double)d->weights[i] : 1.0;
        values[i] = grads[i] = 0;
        if (!read_point(l, d, i, logprobs[i], &p))
            continue;
        p.ratio = d->ratio;
        struct loss_value v = l->type->compute(l, &p);
        values[i] = (float)(w * v.loss);
        grads[i] = (float)(w * v.slope);
        d->clipped = d->clipped || v.slope == 0;
    }
}

/* Without the sampler's logprobs the step is on policy: a ratio of 1. */
void loss_element(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                  float *loss, float *grad)
{
    double w = d->weights ? (double)d->weights[i] : 1.0;
    struct loss_point p;
    *loss = *grad = 0;
    if (!read_point(l, d, i, logprob, &p))
        return;
    p.ratio = d->logprobs ? exp(p.logprob - p.old_logprob) : 1.0;
    struct loss_value v = l->type->compute(l, &p);
    *loss = (float)(w * v.loss);
    *grad = (float)(w * v.slope);
}

bool loss_ratio(const struct loss *l, const struct loss_datum *d, size_t i, float logprob,
                double *ratio, bool *clipped)
{
    /* tokens without an effect, such as a prompt's, would dilute the mean */
    if (!d->logprobs || !d->advantages || d->advantages[i] == 0 ||
        (d->weights && d->weights[i] == 0))
        return false;
    /* thresholds of the token win over those of the loss */
    double low = d->clip_low ? (double)d->clip_low[i] : l->clip_low;
    double high = d->clip_high ? (double)d->clip_high[i] : l->clip_high;
    *ratio = exp((double)logprob - (double)d->logprobs[i]);
    *clipped = loss_takes(l, LOSS_CLIP_LOW) && (*ratio < low || *ratio > high);
    return true;
}
