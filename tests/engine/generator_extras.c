/* Chosen tokens that are scored at positions of a prompt, and tokens drawn there. */
#include "support/generate.h"

enum { N = 60, K = 3, ROWS = N - 1 };

static int32_t prompt[N];

/* All logprobs at all positions of the prompt: row i is position i + 1. */
static void every_logprob(tinker_engine *e, float out[ROWS][VOCAB])
{
    tinker_sampling_params p = params(1, 8, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = N,
                          .params = &p,
                          .num_samples = 1,
                          .topk_prompt_logprobs = VOCAB };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < VOCAB; j++)
            out[i][s->topk_tokens[(i + 1) * VOCAB + j]] = s->topk_logprobs[(i + 1) * VOCAB + j];
    tinker_generator_free(g);
}

static void targets_have_the_logprobs_of_the_model(void)
{
    static float want[ROWS][VOCAB];
    static int64_t tokens[ROWS * K];
    const int64_t shape[2] = { ROWS, K };
    tinker_tensor t = { TINKER_INT64, tokens, ROWS * K, shape, 2, NULL, NULL };
    tinker_engine *e = open_engine(2, 0);
    prompt_of(prompt, N, 3);
    every_logprob(e, want);
    for (size_t i = 0; i < ROWS * K; i++)
        tokens[i] = i % 4 == 1 ? -1 : (int64_t)(i * 37 % VOCAB);
    tinker_sampling_params p = params(1, 8, 0.3); /* the temperature is not for prompts */
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = N,
                          .params = &p,
                          .num_samples = 2,
                          .prompt_logprobs = 1,
                          .prompt_logprobs_last_n = 2,
                          .target_prompt_logprobs = &t };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL && s->target_prompt_logprobs != NULL);
    const tinker_tensor *r = s->target_prompt_logprobs;
    CHECK(r->dtype == TINKER_FLOAT32 && r->n == ROWS * K && r->ndim == 2 && !r->crow);
    CHECK(r->shape[0] == ROWS && r->shape[1] == K);
    const float *got = r->data;
    for (size_t i = 0; i < ROWS * K; i++)
        CHECK(got[i] == (tokens[i] < 0 ? 0 : want[i / K][tokens[i]]));
    for (size_t i = 0; i < N; i++) /* the end of the prompt only, as was asked */
        CHECK(isnan(s->prompt_logprobs[i]) == (i < N - 2));
    CHECK(!s->prompt_alt_tokens && !s->prompt_alt_logprobs);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void sparse_targets_stay_sparse(void)
{
    static float want[ROWS][VOCAB];
    static int64_t crow[ROWS + 1];
    const int64_t tokens[3] = { 7, 299, 0 }, col[3] = { 1, 4, 2 }, shape[2] = { ROWS, 5 };
    tinker_engine *e = open_engine(1, 0);
    prompt_of(prompt, N, 4);
    every_logprob(e, want);
    for (size_t i = 0; i <= ROWS; i++)
        crow[i] = i <= 50 ? 0 : i <= 54 ? 2 : 3; /* rows 50 and 54 */
    tinker_sampling_params p = params(1, 8, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = N, .params = &p, .num_samples = 1 };
    tinker_generator *g = tinker_generator_new(e, NULL);
    CHECK(run_one(g, &q) != NULL);
    /* Everything is copied: what was asked with may go at once. */
    static struct {
        int32_t prompt[N];
        int64_t tokens[3], col[3], shape[2], crow[ROWS + 1];
        tinker_tensor t;
    } gone;
    memcpy(gone.prompt, prompt, sizeof gone.prompt);
    memcpy(gone.tokens, tokens, sizeof tokens);
    memcpy(gone.col, col, sizeof col);
    memcpy(gone.shape, shape, sizeof shape);
    memcpy(gone.crow, crow, sizeof crow);
    gone.t = (tinker_tensor){ TINKER_INT64, gone.tokens, 3, gone.shape, 2, gone.crow, gone.col };
    q.prompt = gone.prompt;
    q.target_prompt_logprobs = &gone.t;
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    memset(&gone, 0xff, sizeof gone);
    run(g);
    const tinker_sample *s = NULL;
    CHECK_INT(tinker_generator_next(g, NULL, &s, NULL), 1);
    REQUIRE(s != NULL && s->target_prompt_logprobs != NULL);
    const tinker_tensor *r = s->target_prompt_logprobs;
    const float *got = r->data;
    REQUIRE(r->n == 3 && r->crow && r->col);
    CHECK(r->ndim == 2 && memcmp(r->shape, shape, sizeof shape) == 0);
    CHECK(memcmp(r->crow, crow, sizeof crow) == 0 && memcmp(r->col, col, sizeof col) == 0);
    CHECK(got[0] == want[50][7] && got[1] == want[50][299] && got[2] == want[54][0]);
    CHECK(s->prompt_cache_hit_tokens > 0); /* rows before the first that names a token are not */
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void draw_all(tinker_engine *e, double temperature, int64_t seed, size_t k, int64_t *tokens,
                     float *logprobs)
{
    tinker_sampling_params p = params(1, seed, temperature);
    p.top_k = 1; /* it is for samples, not for these */
    tinker_generate q = {
        .prompt = prompt, .n_prompt = N, .params = &p, .num_samples = 1, .prompt_alt_tokens_k = k
    };
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s = run_one(g, &q);
    REQUIRE(s != NULL && s->prompt_alt_tokens && s->prompt_alt_logprobs);
    CHECK(s->prompt_alt_tokens->dtype == TINKER_INT64 && s->prompt_alt_tokens->n == ROWS * k);
    CHECK(s->prompt_alt_tokens->shape[0] == ROWS && (size_t)s->prompt_alt_tokens->shape[1] == k);
    CHECK(s->prompt_alt_logprobs->dtype == TINKER_FLOAT32 && s->prompt_alt_logprobs->n == ROWS * k);
    memcpy(tokens, s->prompt_alt_tokens->data, ROWS * k * sizeof *tokens);
    memcpy(logprobs, s->prompt_alt_logprobs->data, ROWS * k * sizeof *logprobs);
    tinker_generator_free(g);
}

static void alternatives_are_drawn_from_the_model(void)
{
    enum { DRAWS = 1024 };
    static float want[ROWS][VOCAB], logprobs[ROWS * DRAWS], again_logprobs[ROWS * DRAWS];
    static int64_t tokens[ROWS * DRAWS], again[ROWS * DRAWS];
    tinker_engine *one = open_engine(1, 0), *two = open_engine(2, 0);
    prompt_of(prompt, N, 5);
    every_logprob(one, want);
    draw_all(one, 1, 8, DRAWS, tokens, logprobs);
    draw_all(two, 1, 8, DRAWS, again, again_logprobs);
    CHECK(memcmp(tokens, again, sizeof tokens) == 0); /* whatever the threads */
    draw_all(two, 1, 9, DRAWS, again, again_logprobs);
    CHECK(memcmp(tokens, again, sizeof tokens) != 0);
    double mean = 0, entropy = 0;
    for (size_t i = 0; i < ROWS * DRAWS; i++) {
        CHECK(logprobs[i] == want[i / DRAWS][tokens[i]]);
        mean -= logprobs[i] / (ROWS * DRAWS);
    }
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < VOCAB; j++)
            entropy -= exp(want[i][j]) * want[i][j] / ROWS;
    CHECK_NEAR(mean, entropy, 0.02); /* about 60 000 draws */
    draw_all(one, 0, 8, 2, tokens, logprobs);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < VOCAB; j++)
            CHECK(tokens[2 * i] == tokens[2 * i + 1] && want[i][j] <= logprobs[2 * i]);
    tinker_engine_close(one);
    tinker_engine_close(two);
}

static void check_refused(tinker_generator *g, const tinker_generate *q, const char *why)
{
    tinker_error err = { 0 };
    CHECK_INT(tinker_generator_add(g, q, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, why) != NULL);
}

static void mistakes_are_refused(void)
{
    int64_t tokens[2] = { 1, VOCAB }, shape[2] = { 2, 1 }, crow[3] = { 0, 2, 1 }, col[2] = { 0, 0 };
    int32_t three[3] = { 1, 2, 3 };
    tinker_tensor t = { TINKER_INT64, tokens, 2, shape, 2, NULL, NULL };
    tinker_sampling_params p = params(1, 8, 1);
    tinker_generate q = {
        .prompt = three, .n_prompt = 3, .params = &p, .num_samples = 1, .target_prompt_logprobs = &t
    };
    tinker_engine *e = open_engine(1, 0);
    tinker_generator *g = tinker_generator_new(e, NULL);
    check_refused(g, &q, "token 1 is 300, outside the vocabulary");
    tokens[1] = -2;
    check_refused(g, &q, "token 1 is -2");
    tokens[0] = tokens[1] = -1;
    check_refused(g, &q, "names no token");
    tokens[0] = 1;
    t.crow = crow;
    t.col = col;
    check_refused(g, &q, "crow_indices do not match");
    crow[2] = 2;
    col[1] = 1;
    check_refused(g, &q, "col_indices beyond");
    t.col = NULL;
    check_refused(g, &q, "no data");
    t.col = col;
    t.data = NULL;
    check_refused(g, &q, "no data");
    t.data = tokens;
    t.crow = t.col = NULL;
    t.n = 1;
    check_refused(g, &q, "does not match the shape");
    shape[0] = 1;
    check_refused(g, &q, "has 1 rows, the prompt has 2 tokens");
    t.ndim = 1;
    check_refused(g, &q, "two dimensions");
    t.dtype = TINKER_FLOAT32;
    check_refused(g, &q, "must be int64");
    q.target_prompt_logprobs = NULL;
    q.prompt_alt_tokens_k = 1025;
    check_refused(g, &q, "at most 1024");
    tinker_generator_free(g);
    tinker_engine_close(e);
}

int main(void)
{
    write_model();
    RUN(targets_have_the_logprobs_of_the_model);
    RUN(sparse_targets_stay_sparse);
    RUN(alternatives_are_drawn_from_the_model);
    RUN(mistakes_are_refused);
    os_remove_tree(dir, NULL);
    return tap_done();
}
