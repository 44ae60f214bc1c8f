/* The likeliest tokens beside sampled ones, and scores of a part of the prompt. */
#include "support/generate.h"

enum { PROMPT = 40, NEW = 30, SAMPLES = 3, K = 5 };

/* A sequence of a sample, as a prompt of its own, has the same likeliest tokens. */
static void check_against_prompt(tinker_engine *e, const int32_t *prompt, const tinker_sequence *q)
{
    int32_t all[PROMPT + NEW];
    memcpy(all, prompt, PROMPT * sizeof *all);
    memcpy(all + PROMPT, q->tokens, q->n * sizeof *all);
    tinker_sampling_params p = params(1, 1, 1);
    tinker_generate scored = { .prompt = all,
                               .n_prompt = PROMPT + q->n,
                               .params = &p,
                               .num_samples = 1,
                               .prompt_logprobs = 1,
                               .topk_prompt_logprobs = K };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &scored);
    REQUIRE(s != NULL);
    CHECK(memcmp(s->topk_tokens + PROMPT * K, q->topk_tokens, q->n * K * 4) == 0);
    CHECK(memcmp(s->topk_logprobs + PROMPT * K, q->topk_logprobs, q->n * K * 4) == 0);
    CHECK(memcmp(s->prompt_logprobs + PROMPT, q->logprobs, q->n * 4) == 0);
    tinker_generator_free(g);
}

static void rivals_of_samples_are_those_of_prompts(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 4);
    tinker_sampling_params p = params(NEW, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = PROMPT,
                          .params = &p,
                          .num_samples = SAMPLES,
                          .topk_sample_logprobs = K };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    CHECK_INT(s->topk, 0);
    for (size_t i = 0; i < SAMPLES; i++) {
        CHECK_INT(s->sequences[i].n, NEW);
        CHECK_INT(s->sequences[i].topk, K);
        check_against_prompt(e, prompt, &s->sequences[i]);
    }
    CHECK(memcmp(s->sequences[0].tokens, s->sequences[1].tokens, NEW * 4) != 0);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

struct told {
    int32_t tokens[SAMPLES][NEW][K];
    float logprobs[SAMPLES][NEW][K];
    size_t rivals[SAMPLES], n[SAMPLES];
};

static void tell_rivals(size_t sample, const int32_t *tokens, const float *logprobs, size_t k,
                        void *state)
{
    struct told *t = state;
    size_t at = t->rivals[sample]++;
    CHECK(k == K && at == t->n[sample]); /* before its token */
    memcpy(t->tokens[sample][at], tokens, sizeof t->tokens[sample][at]);
    memcpy(t->logprobs[sample][at], logprobs, sizeof t->logprobs[sample][at]);
}

static int tell_token(size_t sample, int32_t token, float logprob, void *state)
{
    struct told *t = state;
    (void)token;
    (void)logprob;
    t->n[sample]++;
    return 0;
}

static void rivals_are_told_as_they_come(void)
{
    static struct told told;
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 4);
    tinker_sampling_params p = params(NEW, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = PROMPT,
                          .params = &p,
                          .num_samples = SAMPLES,
                          .topk_sample_logprobs = K,
                          .on_token = tell_token,
                          .on_rivals = tell_rivals,
                          .state = &told };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    for (size_t i = 0; i < SAMPLES; i++) {
        CHECK_INT(told.rivals[i], NEW);
        CHECK(memcmp(told.tokens[i], s->sequences[i].topk_tokens, sizeof told.tokens[i]) == 0);
        CHECK(memcmp(told.logprobs[i], s->sequences[i].topk_logprobs, sizeof told.logprobs[i]) ==
              0);
    }
    tinker_generator_free(g);
    tinker_engine_close(e);
}

/* They are of the distribution that the token's own value is of. */
static void rivals_follow_the_temperature(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 5);
    tinker_sampling_params p = params(NEW, 8, 0.5);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = PROMPT,
                          .params = &p,
                          .num_samples = 1,
                          .topk_sample_logprobs = VOCAB + 2 };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    const tinker_sequence *r = &s->sequences[0];
    size_t k = VOCAB + 2, found = 0;
    CHECK_INT(r->topk, k);
    for (size_t i = 0; i < r->n; i++) {
        double sum = 0;
        for (size_t j = 0; j < VOCAB; j++) {
            sum += exp(r->topk_logprobs[i * k + j]);
            found += r->topk_tokens[i * k + j] == r->tokens[i] &&
                     r->topk_logprobs[i * k + j] == r->logprobs[i];
        }
        CHECK_NEAR(sum, 1, 1e-4);
        /* the vocabulary has no more */
        CHECK(r->topk_tokens[i * k + VOCAB] == 0 && r->topk_logprobs[i * k + VOCAB] == -99999);
    }
    CHECK_INT(found, r->n);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

/* One is the first of several. */
static void the_likeliest_alone(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[PROMPT], tokens[2 * PROMPT];
    float logprobs[2 * PROMPT];
    prompt_of(prompt, PROMPT, 4);
    tinker_sampling_params p = params(PROMPT, 8, 1);
    tinker_generator *g = tinker_generator_new(e, NULL);
    for (int round = 0; round < 2; round++) {
        size_t k = round ? 1 : 3;
        tinker_generate q = { .prompt = prompt,
                              .n_prompt = PROMPT,
                              .params = &p,
                              .num_samples = 1,
                              .topk_prompt_logprobs = k,
                              .topk_sample_logprobs = k };
        const tinker_sample *s = run_one(g, &q);
        REQUIRE(s != NULL);
        CHECK_INT(s->topk, k);
        CHECK_INT(s->sequences[0].topk, k);
        CHECK(s->prompt_logprobs == NULL);
        for (size_t i = 0; i < 2 * PROMPT; i++) {
            const tinker_sequence *q0 = &s->sequences[0];
            size_t at = i % PROMPT * k;
            int32_t token = i < PROMPT ? s->topk_tokens[at] : q0->topk_tokens[at];
            float logprob = i < PROMPT ? s->topk_logprobs[at] : q0->topk_logprobs[at];
            CHECK(k == 3 || (tokens[i] == token && logprobs[i] == logprob));
            CHECK((logprob == -99999) == (i == 0));
            tokens[i] = token;
            logprobs[i] = logprob;
        }
    }
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void only_the_end_of_a_prompt_is_scored(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[200];
    float whole[200];
    prompt_of(prompt, 200, 6);
    tinker_sampling_params p = params(1, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = 200,
                          .params = &p,
                          .num_samples = 1,
                          .prompt_logprobs = 1,
                          .topk_prompt_logprobs = 2 };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    memcpy(whole, s->prompt_logprobs, sizeof whole);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    s = run_one(g, &q); /* every position is asked for, so none comes from the cache */
    REQUIRE(s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    q.prompt_logprobs_last_n = 20;
    s = run_one(g, &q);
    REQUIRE(s != NULL);
    for (size_t i = 0; i < 200; i++) {
        CHECK(i < 180 ? isnan(s->prompt_logprobs[i]) : s->prompt_logprobs[i] == whole[i]);
        CHECK((s->topk_logprobs[i * 2] == -99999) == (i < 180));
    }
    CHECK(s->prompt_cache_hit_tokens > 100 && s->prompt_cache_hit_tokens < 180);
    q.prompt_logprobs_last_n = 199;
    s = run_one(g, &q);
    CHECK(s != NULL && memcmp(s->prompt_logprobs + 1, whole + 1, 199 * sizeof *whole) == 0);
    q.prompt_logprobs_last_n = 200;
    tinker_error err = { 0 };
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "199 tokens after the first") != NULL);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void more_than_fits_is_refused(void)
{
    tinker_engine *e = open_engine(1, 8 << 20);
    int32_t prompt[4] = { 1, 2, 3, 4 };
    tinker_error err = { 0 };
    tinker_sampling_params p = params(200, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = 4,
                          .params = &p,
                          .num_samples = 4,
                          .topk_sample_logprobs = 1024 };
    tinker_generator *g = tinker_generator_new(e, NULL);
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL); /* 200 * 4 * 1024 * 8 bytes */
    CHECK(strstr(err.message, "4194304 bytes") != NULL);
    q.topk_sample_logprobs = 1025;
    q.num_samples = 1;
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "at most 1024") != NULL);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

/* At a prompt, too, and of all requests together. */
static void prompts_share_the_limit(void)
{
    enum { N = 200 };
    int32_t prompt[N];
    tinker_error err = { 0 };
    tinker_engine *e = open_engine(1, 4 << 20);
    tinker_sampling_params p = params(1, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = N,
                          .params = &p,
                          .num_samples = 1,
                          .topk_prompt_logprobs = 1024,
                          .prompt_alt_tokens_k = 1024 };
    prompt_of(prompt, N, 6);
    tinker_generator *g = tinker_generator_new(e, NULL);
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL); /* 200 * 1024 * 20 bytes */
    CHECK(strstr(err.message, "2097152 bytes") != NULL);
    q.prompt_alt_tokens_k = 0;
    q.tag = &q;
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_OK);
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_ENOMEM);
    CHECK(strstr(err.message, "other requests hold 1638400") != NULL);
    tinker_generator_cancel(g, &q);
    CHECK(run_one(g, &q) != NULL);
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_ENOMEM); /* the result is still lent out */
    CHECK_INT(tinker_generator_next(g, NULL, NULL, NULL), 0);
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_OK);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

/* JSON has no word for what is not a number: at temperatures that only just are not zero all
 * log-probabilities still are numbers, and the likeliest token is drawn. */
static void tiny_temperatures_give_numbers(void)
{
    static const double temperatures[] = { 1e-45, 1e-38, 1e-30, 1e-12 };
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[PROMPT];
    prompt_of(prompt, PROMPT, 4);
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        tinker_sampling_params p = params(NEW, 8, temperatures[i]);
        p.top_k = 2;
        tinker_generate q = { .prompt = prompt,
                              .n_prompt = PROMPT,
                              .params = &p,
                              .num_samples = 1,
                              .prompt_logprobs = 1,
                              .topk_prompt_logprobs = K,
                              .topk_sample_logprobs = K };
        tinker_generator *g = tinker_generator_new(e, NULL);
        const tinker_sample *s = run_one(g, &q);
        REQUIRE(s != NULL);
        const tinker_sequence *made = &s->sequences[0];
        size_t bad = 0;
        for (size_t k = 0; k < made->n; k++)
            bad += !isfinite(made->logprobs[k]) || made->tokens[k] != made->topk_tokens[k * K];
        for (size_t k = 0; k < made->n * K; k++)
            bad += !isfinite(made->topk_logprobs[k]);
        for (size_t k = 1; k < PROMPT; k++)
            bad += !isfinite(s->prompt_logprobs[k]);
        CHECK_INT(bad, 0);
        tinker_generator_free(g);
    }
    tinker_engine_close(e);
}

int main(void)
{
    write_model();
    RUN(tiny_temperatures_give_numbers);
    RUN(rivals_of_samples_are_those_of_prompts);
    RUN(rivals_are_told_as_they_come);
    RUN(rivals_follow_the_temperature);
    RUN(the_likeliest_alone);
    RUN(only_the_end_of_a_prompt_is_scored);
    RUN(more_than_fits_is_refused);
    RUN(prompts_share_the_limit);
    os_remove_tree(dir, NULL);
    return tap_done();
}
