/* train_history.c - see train_history.h.
 *
 * The names are those of the results, so that a value on the page is found again in the program.
 * A batch that the client sent in several requests is one step: the part of a name after its colon
 * says how their values combine, as it does for the client.  Passes without backward are
 * evaluations, and have the prefix "forward/".  Thread: the engine thread. */
#include "server/training/train_history.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"

/* Four of our own, up to 16 of the engine, the rest for a custom loss; more are left out. */
enum { PASS_METRICS = 32 };

/* Add the values of one tensor to *sum.  false: they are not weights, and *sum is of no use. */
static bool sum_weights(const tinker_tensor *t, double *sum, double *used)
{
    const float *v = t->data;
    if (t->dtype != TINKER_FLOAT32)
        return false;
    for (size_t i = 0; i < t->n; i++) {
        if (v[i] < 0)
            return false;
        /* The SDKs send masks as weights, so a sum of 0 and 1 counts trained tokens. */
        *sum += (double)v[i];
        *used += v[i] != 0;
    }
    return true;
}

/* Positions that the loss looks at: where a weight or mask is not 0; without one all targets. */
static double count_targets(const tinker_datum *d)
{
    /* A weight or mask wins over the targets, wherever it stands among the inputs. */
    const tinker_named_tensor *shown = NULL;
    double used = 0;
    for (size_t i = 0; i < d->n_inputs; i++)
        if (strcmp(d->inputs[i].name, "weights") == 0 || strcmp(d->inputs[i].name, "mask") == 0)
            shown = &d->inputs[i];
        else if (!shown && strcmp(d->inputs[i].name, "target_tokens") == 0)
            shown = &d->inputs[i];
    /* Only a float can say "not this one": a 0 among integers is taken for the id of a token. */
    for (size_t i = 0; shown && i < shown->tensor.n; i++)
        used +=
            shown->tensor.dtype != TINKER_FLOAT32 || ((const float *)shown->tensor.data)[i] != 0.0f;
    return used;
}

/* What a mean over the batch divides by: the sum of the weights when all rows have them, else the
 * number of targets.  Negative ones are advantages, not weights. */
double train_history_weight(const tinker_datum *data, size_t n)
{
    double sum = 0, used = 0, counted = 0;
    bool weighted = true;
    for (size_t i = 0; i < n; i++) {
        const tinker_tensor *t = NULL;
        for (size_t k = 0; k < data[i].n_inputs; k++)
            if (strcmp(data[i].inputs[k].name, "weights") == 0)
                t = &data[i].inputs[k].tensor;
        weighted = weighted && t && sum_weights(t, &sum, &used);
        counted += count_targets(&data[i]);
    }
    return weighted && sum > 0 ? sum : counted;
}

/* "x:sum" combines by sum; with no colon, or with another word after it, the last value is kept. */
static enum history_merge find_merge(const char *name)
{
    static const struct {
        const char *word;
        enum history_merge merge;
    } rules[] = { { ":sum", HISTORY_SUM },
                  { ":mean", HISTORY_MEAN },
                  { ":min", HISTORY_MIN },
                  { ":max", HISTORY_MAX } };
    const char *colon = strrchr(name, ':');
    for (size_t i = 0; colon && i < ARRAY_LEN(rules); i++)
        if (strcmp(colon, rules[i].word) == 0)
            return rules[i].merge;
    return HISTORY_REPLACE;
}

static double wall_seconds(struct server *s)
{
    return (double)live_wall_us(s) / 1e6;
}

void train_history_pass(struct server *s, const char *run, int64_t step, bool forward_only,
                        const tinker_named_number *metrics, size_t n, double weight, double seconds)
{
    /* history_add() copies names that are new, so these may go with the stack. */
    char names[PASS_METRICS][HISTORY_MAX_NAME];
    struct history_value v[PASS_METRICS];
    size_t count = 0;
    /* NaN when a loss of the user's reports none; a plot leaves such points out. */
    double loss = tinker_metric(metrics, n, "loss:sum");
    const struct history_value own[] = {
        { "loss", weight > 0 ? loss / weight : 0, HISTORY_MEAN, weight },
        { "weight:sum", weight, HISTORY_SUM, 0 },
        { "pass_seconds:sum", seconds, HISTORY_SUM, 0 },
        { "time", wall_seconds(s), HISTORY_REPLACE, 0 },
    };
    /* An evaluation is not progress, so it leaves out the last one, "time". */
    for (size_t i = 0; i < ARRAY_LEN(own) - forward_only; i++)
        v[count++] = own[i];
    for (size_t i = 0; i < n && count < PASS_METRICS; i++)
        v[count++] = (struct history_value){ metrics[i].name, metrics[i].value,
                                             find_merge(metrics[i].name), weight };
    for (size_t i = 0; forward_only && i < count; i++) {
        snprintf(names[i], sizeof(names[i]), "forward/%s", v[i].name);
        v[i].name = names[i];
    }
    history_add(s->history, run, step, v, count);
}

/* Norms are of the whole step, so the last value counts, never a mean over the parts of a batch. */
void train_history_step(struct server *s, const char *run, const tinker_step_metrics *m,
                        double seconds)
{
    const struct history_value v[] = {
        { "learning_rate:mean", m->learning_rate, HISTORY_REPLACE, 0 },
        { "grad_norm:mean", m->grad_norm, HISTORY_REPLACE, 0 },
        { "update_norm:mean", m->update_norm, HISTORY_REPLACE, 0 },
        { "clip_coef:mean", m->clip_coef, HISTORY_REPLACE, 0 },
        { "optim_seconds", seconds, HISTORY_REPLACE, 0 },
        { "time", wall_seconds(s), HISTORY_REPLACE, 0 },
    };
    history_add(s->history, run, m->step, v, ARRAY_LEN(v));
}
