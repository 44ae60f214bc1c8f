/* Penalties, biases and masks: the logits that they make, and logprobs of the changed distribution. */
#include <math.h>

#include "base/arena.h"
#include "engine/generate/logit_rule.h"
#include "support/generate.h"

enum { PROMPT = 12, NEW = 20, SAMPLES = 3 };

static void repetition_lowers_every_logit_once(void)
{
    struct arena arena;
    struct logit_rule rule;
    struct candidate scratch[4] = { { 7, 7 }, { 7, 7 }, { 7, 7 }, { 7, 7 } };
    float z[4] = { 2, -2, 3, 4 };
    const int32_t tokens[] = { 0, 1, 0, 2, 1 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.repetition_penalty = 2;
    arena_init(&arena, 1 << 16);
    REQUIRE(logit_rule_init(&rule, &p, &arena));
    logit_rule_apply(&rule, tokens, 3, 5, z, scratch);
    CHECK(z[0] == 1 && z[1] == -4 && z[2] == 1.5f && z[3] == 4);
    arena_clear(&arena);
}

static void counts_are_of_the_sample_alone(void)
{
    struct arena arena;
    struct logit_rule rule;
    struct candidate scratch[4] = { { 7, 7 }, { 7, 7 }, { 7, 7 }, { 7, 7 } };
    float z[4] = { 0, 0, 0, 0 };
    const tinker_logit_bias bias[] = { { 3, 1.5 }, { 3, 1 } };
    const int32_t tokens[] = { 2, 2, 0, 1, 0 }; /* two of the prompt */
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.presence_penalty = 0.5;
    p.frequency_penalty = 0.25;
    p.logit_bias = bias;
    p.n_logit_bias = 2;
    arena_init(&arena, 1 << 16);
    REQUIRE(logit_rule_init(&rule, &p, &arena));
    logit_rule_apply(&rule, tokens, 2, 5, z, scratch);
    CHECK(z[0] == -1.0f && z[1] == -0.75f && z[2] == 0 && z[3] == 2.5f);
    arena_clear(&arena);
}

static void settings_out_of_range_are_refused(void)
{
    tinker_error err = { 0 };
    const tinker_logit_bias outside[] = { { 299, 1 }, { 300, 1 } }, infinite = { 1, INFINITY };
    tinker_sampling_params p[] = {
        TINKER_SAMPLING_PARAMS_INIT, TINKER_SAMPLING_PARAMS_INIT, TINKER_SAMPLING_PARAMS_INIT,
        TINKER_SAMPLING_PARAMS_INIT, TINKER_SAMPLING_PARAMS_INIT, TINKER_SAMPLING_PARAMS_INIT,
    };
    p[0].min_p = 1.5;
    p[1].repetition_penalty = -1;
    p[2].presence_penalty = NAN;
    p[3].frequency_penalty = 1e9;
    p[4].logit_bias = outside;
    p[5].logit_bias = &infinite;
    p[4].n_logit_bias = 2;
    p[5].n_logit_bias = 1;
    static const char *const names[] = { "min_p",     "repetition", "presence",
                                         "frequency", "logit_bias", "logit_bias" };
    for (size_t i = 0; i < 6; i++) {
        CHECK_INT(logit_rule_check(&p[i], 300, &err), TINKER_EINVAL);
        CHECK(strstr(err.message, names[i]) != NULL);
    }
}

/* The whole distribution at every sampled position: all tokens are among the likeliest. */
struct whole {
    int32_t tokens[NEW];
    float logprobs[NEW];
    double row[NEW][VOCAB]; /* by token id; -99999: cannot come */
    size_t n;
};

static void copy_whole(struct whole *w, const tinker_sequence *q)
{
    w->n = q->n;
    for (size_t i = 0; i < q->n; i++) {
        w->tokens[i] = q->tokens[i];
        w->logprobs[i] = q->logprobs[i];
        for (size_t t = 0; t < VOCAB; t++)
            w->row[i][t] = -99999;
        for (size_t k = 0; k < q->topk; k++)
            if (q->topk_logprobs[i * q->topk + k] > -99998)
                w->row[i][q->topk_tokens[i * q->topk + k]] = q->topk_logprobs[i * q->topk + k];
    }
}

/* What the model itself says after the prompt and a sample: logprobs at temperature 1. */
static void model_rows(tinker_engine *e, const int32_t *prompt, const struct whole *w,
                       double (*rows)[VOCAB])
{
    int32_t all[PROMPT + NEW];
    memcpy(all, prompt, PROMPT * sizeof *all);
    memcpy(all + PROMPT, w->tokens, w->n * sizeof *all);
    tinker_sampling_params p = params(1, 1, 1);
    tinker_generate q = { .prompt = all,
                          .n_prompt = PROMPT + w->n,
                          .params = &p,
                          .num_samples = 1,
                          .prompt_logprobs = 1,
                          .topk_prompt_logprobs = VOCAB };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    for (size_t i = 0; i < w->n; i++)
        for (size_t k = 0; k < VOCAB; k++) {
            size_t at = (PROMPT + i) * VOCAB + k;
            rows[i][s->topk_tokens[at]] = s->topk_logprobs[at];
        }
    tinker_generator_free(g);
}

static const uint64_t *mask_of_even(size_t sample, void *state)
{
    static const uint64_t even[(VOCAB + 63) / 64] = { 0x5555555555555555, 0x5555555555555555,
                                                      0x5555555555555555, 0x5555555555555555,
                                                      0x5555555555555555 };
    (void)state;
    (void)sample;
    return even;
}

static const uint64_t *mask_of_nothing(size_t sample, void *state)
{
    static const uint64_t nothing[(VOCAB + 63) / 64];
    (void)state;
    (void)sample;
    return nothing;
}

/* Additive changes of logits, then one softmax: exactly what the model's own logprobs plus the
 * changes give when they are normalized again. */
static void logprobs_are_of_the_changed_distribution(void)
{
    static struct whole w, first[SAMPLES];
    static double rows[NEW][VOCAB];
    const tinker_logit_bias bias[] = { { 4, 2 }, { 6, -3 }, { 5, 50 } };
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 4);
    for (int threads = 1; threads <= 2; threads++) {
        tinker_engine *e = open_engine(threads, 0);
        tinker_sampling_params p = params(NEW, 8, 1);
        p.presence_penalty = 0.75;
        p.frequency_penalty = 1.5;
        p.logit_bias = bias;
        p.n_logit_bias = 3;
        tinker_generate q = { .prompt = prompt,
                              .n_prompt = PROMPT,
                              .params = &p,
                              .num_samples = SAMPLES,
                              .topk_sample_logprobs = VOCAB,
                              .on_mask = mask_of_even };
        tinker_generator *g = tinker_generator_new(e, NULL);
        const tinker_sample *s = run_one(g, &q);
        REQUIRE(s != NULL);
        double worst = 0, worst_sum = 0;
        for (size_t i = 0; i < SAMPLES; i++) {
            copy_whole(&w, &s->sequences[i]);
            if (threads == 1)
                first[i] = w;
            CHECK(memcmp(&first[i], &w, sizeof w) == 0); /* the number of threads changes nothing */
            CHECK_INT(w.n, NEW);
        }
        tinker_generator_free(g);
        for (size_t i = 0; i < SAMPLES; i++) {
            model_rows(e, prompt, &first[i], rows);
            for (size_t at = 0; at < NEW; at++) {
                double total = 0, sum = 0;
                for (size_t t = 0; t < VOCAB; t++) {
                    int count = 0;
                    for (size_t k = 0; k < at; k++)
                        count += first[i].tokens[k] == (int32_t)t;
                    rows[at][t] += t == 4 ? 2 : t == 6 ? -3 : 0;
                    rows[at][t] -= count ? 0.75 + 1.5 * count : 0;
                    total += t % 2 == 0 ? exp(rows[at][t]) : 0;
                    sum += exp(first[i].row[at][t]);
                    if (t % 2)
                        CHECK(first[i].row[at][t] == -99999);
                }
                for (size_t t = 0; t < VOCAB; t += 2)
                    worst = fmax(worst, fabs(rows[at][t] - log(total) - first[i].row[at][t]));
                worst_sum = fmax(worst_sum, fabs(sum - 1));
                CHECK_INT(first[i].tokens[at] % 2, 0);
                CHECK(first[i].row[at][first[i].tokens[at]] == (double)first[i].logprobs[at]);
            }
        }
        CHECK(worst < 1e-5);
        CHECK(worst_sum < 1e-5);
        tinker_engine_close(e);
    }
}

static void a_mask_without_tokens_fails_the_request(void)
{
    tinker_engine *e = open_engine(1, 0);
    tinker_error err = { 0 };
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 4);
    tinker_sampling_params p = params(NEW, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = PROMPT,
                          .params = &p,
                          .num_samples = 1,
                          .on_mask = mask_of_nothing };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = NULL;
    REQUIRE(tinker_generator_add(g, &q, &err) == TINKER_OK);
    while (tinker_generator_step(g, &err) > 0)
        ;
    CHECK(tinker_generator_next(g, NULL, &s, &err) == 1 && s == NULL);
    CHECK(strstr(err.message, "no token") != NULL);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

/* With every way of leaving tokens out, a masked one is never drawn. */
static void truncation_keeps_masked_tokens_out(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 9);
    for (int way = 0; way < 5; way++) {
        tinker_sampling_params p = params(NEW, 3, 50);
        p.top_k = way == 0 ? 299 : way == 3 ? 200 : -1;
        p.top_p = way == 1 || way == 3 ? 0.9999999 : 1;
        p.min_p = way == 2 || way == 3 ? 1e-9 : 0;
        p.temperature = way == 4 ? 0 : 50;
        tinker_generate q = { .prompt = prompt,
                              .n_prompt = PROMPT,
                              .params = &p,
                              .num_samples = 8,
                              .on_mask = mask_of_even };
        tinker_generator *g = tinker_generator_new(e, NULL);
        const tinker_sample *s = run_one(g, &q);
        REQUIRE(s != NULL);
        for (size_t i = 0; i < 8; i++)
            for (size_t k = 0; k < s->sequences[i].n; k++)
                CHECK(s->sequences[i].tokens[k] % 2 == 0 && isfinite(s->sequences[i].logprobs[k]));
        tinker_generator_free(g);
    }
    tinker_engine_close(e);
}

int main(void)
{
    write_model();
    RUN(repetition_lowers_every_logit_once);
    RUN(counts_are_of_the_sample_alone);
    RUN(settings_out_of_range_are_refused);
    RUN(logprobs_are_of_the_changed_distribution);
    RUN(a_mask_without_tokens_fails_the_request);
    RUN(truncation_keeps_masked_tokens_out);
    os_remove_tree(dir, NULL);
    return tap_done();
}
