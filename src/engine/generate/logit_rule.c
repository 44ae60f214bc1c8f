/* logit_rule.c - see logit_rule.h. */
#include "engine/generate/logit_rule.h"

#include <math.h>
#include "base/err.h"

/* The same bounds as the service's, for programs that use the engine directly. */
tinker_status logit_rule_check(const tinker_sampling_params *p, int64_t vocab, tinker_error *err)
{
    /* Written so that NaN is refused, too. */
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return err_set(err, TINKER_EINVAL, "min_p is %g, must be between 0 and 1", p->min_p);
    if (!(p->repetition_penalty >= 0 && p->repetition_penalty <= 1000) ||
        (p->repetition_penalty > 0 && p->repetition_penalty < 0.001))
        return err_set(err, TINKER_EINVAL,
                       "repetition_penalty is %g, must be between 0.001 and 1000",
                       p->repetition_penalty);
    /* Bounds that keep logits finite, whatever the model says and however often a token comes. */
    if (!(fabs(p->presence_penalty) <= 100) || !(fabs(p->frequency_penalty) <= 100))
        return err_set(err, TINKER_EINVAL, "%s must be between -100 and 100",
                       fabs(p->presence_penalty) <= 100 ? "frequency_penalty" : "presence_penalty");
    if (p->n_logit_bias && !p->logit_bias)
        return err_set(err, TINKER_EINVAL, "logit_bias has %zu values but no list",
                       p->n_logit_bias);
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        const tinker_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || b->token >= vocab)
            return err_set(err, TINKER_EINVAL,
                           "logit_bias: token %ld is outside the vocabulary of %lld",
                           (long)b->token, (long long)vocab);
        if (!(fabs(b->bias) <= 1e6))
            return err_set(err, TINKER_EINVAL,
                           "logit_bias of token %ld is %g, must be between -1e6 and 1e6",
                           (long)b->token, b->bias);
    }
    return TINKER_OK;
}

/* 0 means off for the penalty of repetition, as 1 does: options that were never set are zero. */
bool logit_rule_init(struct logit_rule *rule, const tinker_sampling_params *p, struct arena *arena)
{
    *rule = (struct logit_rule){
        .repetition = p->repetition_penalty > 0 ? (float)p->repetition_penalty : 1,
        .presence = (float)p->presence_penalty,
        .frequency = (float)p->frequency_penalty,
        .n_bias = p->n_logit_bias,
    };
    if (rule->n_bias)
        rule->bias = arena_memdup(arena, p->logit_bias, rule->n_bias * sizeof *rule->bias);
    return rule->n_bias == 0 || rule->bias;
}

/* Every token that is there, once: a positive logit is divided, another one multiplied, so that a
 * penalty above 1 always lowers it.
 * Tokens may repeat in the text; `scratch`, indexed by token, marks those that were done. */
static void penalize_repetition(float penalty, const int32_t *tokens, size_t n, float *z,
                                struct candidate *scratch)
{
    for (size_t i = 0; i < n; i++)
        scratch[tokens[i]].id = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t t = tokens[i];
        if (scratch[t].id)
            continue;
        scratch[t].id = 1;
        z[t] = z[t] > 0 ? z[t] / penalty : z[t] * penalty;
    }
}

/* Counts first, then one subtraction per token: the rounding must not depend on the order in which
 * tokens came. */
static void penalize_counts(const struct logit_rule *rule, const int32_t *tokens, size_t n,
                            float *z, struct candidate *scratch)
{
    for (size_t i = 0; i < n; i++)
        scratch[tokens[i]].id = 0;
    for (size_t i = 0; i < n; i++)
        scratch[tokens[i]].id++;
    for (size_t i = 0; i < n; i++) {
        int32_t t = tokens[i];
        if (scratch[t].id)
            z[t] -= rule->presence + rule->frequency * (float)scratch[t].id;
        scratch[t].id = 0;
    }
}

/* z / r or z * r for tokens seen, prompt included; z - presence - frequency * count for those sampled;
 * then the biases.
 * The order is that of the services which have these options; biases last, so that one of -100
 * forbids a token whatever the penalties did. */
void logit_rule_apply(const struct logit_rule *rule, const int32_t *tokens, size_t n_prompt,
                      size_t n, float *z, struct candidate *scratch)
{
    if (rule->repetition != 1)
        penalize_repetition(rule->repetition, tokens, n, z, scratch);
    if (rule->presence != 0 || rule->frequency != 0)
        penalize_counts(rule, tokens + n_prompt, n - n_prompt, z, scratch);
    for (size_t i = 0; i < rule->n_bias; i++)
        z[rule->bias[i].token] += (float)rule->bias[i].bias;
}
