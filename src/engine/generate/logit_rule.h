/* logit_rule.h - penalties and biases: what changes logits before a token is drawn.
 *
 * In this order: repetition penalty, frequency and presence penalties, biases.  What a row becomes
 * depends on the logits and on the sequence's own tokens alone, so it is the same whatever else is
 * in the batch.  Pure functions but for the arena. */
#ifndef ENGINE_LOGIT_RULE_H
#define ENGINE_LOGIT_RULE_H

#include <stdbool.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include "base/arena.h"
#include "engine/generate/sample.h"

struct logit_rule {
    float repetition;          /* 1: off */
    float presence, frequency; /* 0: off */
    const tinker_logit_bias *bias;
    size_t n_bias;
};

/* TINKER_EINVAL names the setting that no logits can be changed by. */
tinker_status logit_rule_check(const tinker_sampling_params *p, int64_t vocab, tinker_error *err);
/* Copy the settings; biases go to the arena.  false: no memory. */
bool logit_rule_init(struct logit_rule *rule, const tinker_sampling_params *p, struct arena *arena);
/* Change the logits z of the token after tokens[0..n), of which the first n_prompt are the prompt.
 * scratch has an entry for every token of the vocabulary; what it holds does not matter. */
void logit_rule_apply(const struct logit_rule *rule, const int32_t *tokens, size_t n_prompt,
                      size_t n, float *z, struct candidate *scratch);

#endif
