/* Sampling on tiny models: the numbers, and that a request never notices its company. */
#include "support/generate.h"

/* ---- the rules ----------------------------------------------------------------------- */

static void temperature_zero_is_argmax(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t sequence[64];
    prompt_of(sequence, 5, 1);
    tinker_sampling_params p = params(20, 3, 0);
    p.top_k = 2;
    tinker_generate q = { .prompt = sequence, .n_prompt = 5, .params = &p, .num_samples = 1 };
    struct outcome got;
    alone(e, &q, 0, &got);
    CHECK_INT(got.n, 20);
    /* Each token is the most likely one after those before it. */
    memcpy(sequence + 5, got.tokens, got.n * sizeof *sequence);
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    tinker_generate scored = { .prompt = sequence,
                               .n_prompt = 5 + got.n,
                               .params = &p,
                               .num_samples = 1,
                               .prompt_logprobs = 1,
                               .topk_prompt_logprobs = 3 };
    const tinker_sample *s = NULL;
    REQUIRE(tinker_generator_add(g, &scored, &err) == TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, &err) == 1 && s != NULL);
    for (size_t i = 0; i < got.n; i++) {
        CHECK_INT(s->topk_tokens[(5 + i) * 3], got.tokens[i]);
        CHECK(s->topk_logprobs[(5 + i) * 3] == got.logprobs[i]);
        CHECK(s->prompt_logprobs[5 + i] == got.logprobs[i]);
        CHECK(s->topk_logprobs[(5 + i) * 3] >= s->topk_logprobs[(5 + i) * 3 + 1]);
    }
    CHECK(isnan(s->prompt_logprobs[0]));
    CHECK(s->topk_tokens[0] == 0 && s->topk_logprobs[2] == -99999);
    CHECK_INT(s->topk, 3);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void logprobs_equal_the_training_forward(void)
{
    tinker_engine *e = open_engine(2, 0);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    train_a_little(e, a);
    int32_t sequence[CONTEXT];
    for (int with = 0; with < 2; with++) {
        tinker_sampling_params p = params(90, 11 + with, 1);
        tinker_generate q = { .adapter = with ? a : NULL,
                              .prompt = sequence,
                              .n_prompt = 70,
                              .params = &p,
                              .num_samples = 1 };
        struct outcome got;
        float want[CONTEXT];
        prompt_of(sequence, 70, 2);
        alone(e, &q, 0, &got);
        CHECK_INT(got.n, 90);
        memcpy(sequence + 70, got.tokens, got.n * sizeof *sequence);
        forward_logprobs(e, with ? a : NULL, sequence, 160, 70, want);
        double worst = 0;
        for (size_t i = 0; i < got.n; i++)
            worst = fmax(worst, fabs((double)want[i] - got.logprobs[i]));
        CHECK(worst <= 1e-6);
        CHECK(memcmp(want, got.logprobs, got.n * sizeof *want) == 0); /* in fact to the bit */
    }
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static void scaled_and_raw_logprobs(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[9];
    prompt_of(prompt, 9, 3);
    tinker_sampling_params p = params(1, 5, 0.5);
    tinker_generate q = { .prompt = prompt, .n_prompt = 9, .params = &p, .num_samples = 1 };
    struct outcome cold, warm;
    alone(e, &q, 0, &cold);
    p.temperature = 1;
    p.seed = 5;
    alone(e, &q, 0, &warm);
    tinker_engine_close(e);
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    o.raw_logprobs = 1;
    tinker_engine *raw = tinker_engine_open(dir, &o, NULL);
    REQUIRE(raw != NULL);
    p.temperature = 0.5;
    struct outcome unscaled;
    alone(raw, &q, 0, &unscaled);
    CHECK_INT(unscaled.tokens[0], cold.tokens[0]);
    CHECK(unscaled.logprobs[0] != cold.logprobs[0]);
    /* log p_T(i) of the drawn token from raw top-k scores: p^(1/T) renormalized */
    int32_t longer[10];
    memcpy(longer, prompt, sizeof prompt);
    longer[9] = 0;
    tinker_generator *g = tinker_generator_new(raw, NULL);
    tinker_generate all = { .prompt = longer,
                            .n_prompt = 10,
                            .params = &p,
                            .num_samples = 1,
                            .topk_prompt_logprobs = VOCAB };
    const tinker_sample *s = NULL;
    REQUIRE(tinker_generator_add(g, &all, NULL) == TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
    double sum = 0, mine = 0;
    for (size_t i = 0; i < VOCAB; i++) {
        double lp = s->topk_logprobs[9 * VOCAB + i];
        sum += exp(2 * lp);
        if (s->topk_tokens[9 * VOCAB + i] == cold.tokens[0]) {
            mine = 2 * lp;
            CHECK_NEAR(unscaled.logprobs[0], lp, 1e-6);
        }
    }
    CHECK_NEAR(cold.logprobs[0], mine - log(sum), 2e-5);
    tinker_generator_free(g);
    tinker_engine_close(raw);
}

/* ---- company never matters ------------------------------------------------------------ */

enum { CROWD = 64 };

static void same_tokens_in_any_company(void)
{
    static struct outcome single[CROWD], crowd;
    tinker_engine *one = open_engine(1, 0), *two = open_engine(2, 0);
    tinker_adapter *adapters[2][3];
    tinker_engine *engines[2] = { one, two };
    for (int i = 0; i < 2; i++) {
        adapters[i][0] = NULL;
        adapters[i][1] = tiny_adapter(engines[i], 4, 1);
        adapters[i][2] = tiny_adapter(engines[i], 9, 2);
        train_a_little(engines[i], adapters[i][1]);
        train_a_little(engines[i], adapters[i][2]);
    }
    int32_t prompts[CROWD][40];
    tinker_sampling_params p[CROWD];
    tinker_generate q[CROWD];
    for (size_t i = 0; i < CROWD; i++) {
        prompt_of(prompts[i], 40, i);
        p[i] = params(5 + (int64_t)i % 20, (int64_t)i, 0.7 + 0.01 * (double)i);
        if (i % 3 == 1)
            p[i].top_k = 20;
        if (i % 4 == 2)
            p[i].top_p = 0.8;
        q[i] = (tinker_generate){ .adapter = adapters[0][i % 3],
                                  .prompt = prompts[i],
                                  .n_prompt = 1 + i % 40,
                                  .params = &p[i],
                                  .num_samples = 1,
                                  .tag = &single[i] };
        alone(one, &q[i], 0, &single[i]);
        CHECK_INT(single[i].n, 5 + i % 20);
    }
    for (int threads = 0; threads < 2; threads++) {
        tinker_generator *g = tinker_generator_new(engines[threads], NULL);
        for (size_t i = 0; i < CROWD; i++) {
            q[i].adapter = adapters[threads][i % 3];
            CHECK(tinker_generator_add(g, &q[i], NULL) == TINKER_OK);
            if (threads && i % 5 == 0)
                CHECK(tinker_generator_step(g, NULL) > 0); /* some join late */
        }
        run(g);
        void *tag;
        const tinker_sample *s;
        int different = 0, results = 0;
        while (tinker_generator_next(g, &tag, &s, NULL)) {
            copy_sequence(&crowd, s, 0);
            different += !same(&crowd, tag);
            results++;
        }
        CHECK_INT(results, CROWD);
        CHECK_INT(different, 0);
        tinker_generator_free(g);
    }
    q[CROWD - 1].adapter = adapters[1][(CROWD - 1) % 3]; /* alone, with two threads */
    alone(two, &q[CROWD - 1], 0, &crowd);
    CHECK(same(&crowd, &single[CROWD - 1]));
    for (int i = 0; i < 2; i++) {
        tinker_adapter_free(adapters[i][1]);
        tinker_adapter_free(adapters[i][2]);
        tinker_engine_close(engines[i]);
    }
}

static void samples_equal_requests_with_following_seeds(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[45];
    prompt_of(prompt, 45, 8);
    tinker_sampling_params p = params(40, 1000, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = 45, .params = &p, .num_samples = 4 };
    struct outcome together, single;
    int distinct = 0;
    for (size_t i = 0; i < 4; i++) {
        p.seed = 1000;
        q.num_samples = 4;
        alone(e, &q, i, &together);
        p.seed = 1000 + (int64_t)i;
        q.num_samples = 1;
        alone(e, &q, 0, &single);
        CHECK(same(&together, &single));
        for (size_t k = 1; k < together.n; k++)
            distinct += together.tokens[k] != together.tokens[k - 1];
    }
    CHECK(distinct > 100); /* the model does not merely repeat itself */
    tinker_engine_close(e);
}

static void cached_prefix_gives_the_same_bits(void)
{
    tinker_engine *e = open_engine(2, 0);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    train_a_little(e, a);
    int32_t prompt[100];
    prompt_of(prompt, 100, 12);
    tinker_sampling_params p = params(30, 6, 1);
    tinker_generate q = {
        .adapter = a, .prompt = prompt, .n_prompt = 100, .params = &p, .num_samples = 1
    };
    struct outcome cold, warm;
    alone(e, &q, 0, &cold);
    CHECK_INT(cold.hits, 0);
    tinker_generator *g = tinker_generator_new(e, NULL);
    const tinker_sample *s;
    static const int64_t hits[] = { 0, 96, 96 };
    for (int i = 0; i < 3; i++) {
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
        run(g);
        REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
        copy_sequence(&warm, s, 0);
        CHECK(same(&cold, &warm));
        CHECK_INT(warm.hits, hits[i]);
    }
    /* Other weights, the same tokens: nothing to reuse. */
    q.adapter = NULL;
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    /* A step changes the weights under the same adapter. */
    train_a_little(e, a);
    q.adapter = a;
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    copy_sequence(&warm, s, 0);
    alone(e, &q, 0, &cold);
    CHECK(same(&cold, &warm));
    /* So it does when the request had come before, but nothing of it was computed. */
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    train_a_little(e, a);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    copy_sequence(&warm, s, 0);
    alone(e, &q, 0, &cold);
    CHECK(same(&cold, &warm));
    /* The last token is always computed: its logits are wanted.  So a prompt of whole pages
     * keeps its last page for itself. */
    static const struct {
        size_t n;
        int64_t hits;
    } ends[] = { { 63, 32 }, { 64, 32 }, { 65, 64 }, { 96, 64 }, { 97, 96 } };
    q.adapter = NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        q.n_prompt = ends[i].n;
        s = run_one(g, &q);
        REQUIRE(s != NULL);
        CHECK_INT(s->prompt_cache_hit_tokens, ends[i].hits);
        copy_sequence(&warm, s, 0);
        alone(e, &q, 0, &cold);
        CHECK(same(&cold, &warm));
    }
    q.adapter = a;
    q.n_prompt = 100;
    s = run_one(g, &q);
    REQUIRE(s != NULL);
    copy_sequence(&warm, s, 0);
    /* Another user's prompts are not found, and the tokens are the same. */
    q.cache_scope = 2;
    for (int i = 0; i < 2; i++) {
        s = run_one(g, &q);
        REQUIRE(s != NULL);
        CHECK_INT(s->prompt_cache_hit_tokens, i ? 96 : 0);
        CHECK(memcmp(s->sequences[0].tokens, warm.tokens, warm.n * sizeof *warm.tokens) == 0);
    }
    /* Memory that was given back is filled anew. */
    uint64_t held = tinker_generator_memory(g);
    CHECK(held > 0 && tinker_generator_trim(g, 0) == held); /* nothing runs */
    CHECK_INT(tinker_generator_memory(g), 0);
    CHECK_INT(tinker_generator_trim(g, 0), 0);
    s = run_one(g, &q);
    REQUIRE(s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    q.cache_scope = 0;
    s = run_one(g, &q);
    REQUIRE(s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 0);
    /* A conversation goes on: its own answer is part of the prefix. */
    int32_t longer[160];
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + 100, warm.tokens, 30 * sizeof *longer);
    prompt_of(longer + 130, 10, 3);
    q.prompt = longer;
    q.n_prompt = 140;
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, NULL) == 1 && s != NULL);
    CHECK_INT(s->prompt_cache_hit_tokens, 128);
    copy_sequence(&warm, s, 0);
    alone(e, &q, 0, &cold);
    CHECK(same(&cold, &warm));
    tinker_generator_free(g);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Memory for 8 pages of 32 positions: 20 sequences of up to 150 queue and start over. */
static void little_memory_costs_time_only(void)
{
    enum { MANY = 20 };
    static struct outcome want[MANY];
    uint64_t page = 2 * 2 * 2 * 32 * 16 * sizeof(float); /* layers, k and v, heads, block, dim */
    tinker_engine *plenty = open_engine(2, 0), *little = open_engine(2, 2 * 8 * page);
    int32_t prompts[MANY][60];
    tinker_sampling_params p[MANY];
    tinker_generate q[MANY];
    tinker_generator *g = tinker_generator_new(little, NULL);
    for (size_t i = 0; i < MANY; i++) {
        prompt_of(prompts[i], 60, 40 + i);
        p[i] = params(90, (int64_t)i, 1);
        q[i] = (tinker_generate){ .prompt = prompts[i],
                                  .n_prompt = 20 + 2 * i,
                                  .params = &p[i],
                                  .num_samples = 1 + i % 3,
                                  .tag = &want[i] };
        alone(plenty, &q[i], i % 3, &want[i]);
        CHECK(tinker_generator_add(g, &q[i], NULL) == TINKER_OK);
    }
    run(g);
    void *tag;
    const tinker_sample *s;
    int results = 0, different = 0;
    struct outcome got;
    while (tinker_generator_next(g, &tag, &s, NULL)) {
        REQUIRE(s != NULL);
        size_t i = (size_t)((struct outcome *)tag - want);
        copy_sequence(&got, s, i % 3);
        different += !same(&got, &want[i]);
        results++;
    }
    CHECK_INT(results, MANY);
    CHECK_INT(different, 0);
    /* What can never fit is refused with numbers. */
    tinker_error err = { 0 };
    tinker_sampling_params big = params(230, 1, 1);
    tinker_generate no = { .prompt = prompts[0], .n_prompt = 26, .params = &big, .num_samples = 1 };
    CHECK_INT(tinker_generator_add(g, &no, &err), TINKER_OK); /* 255 positions fit exactly */
    tinker_generator_cancel(g, NULL);
    tinker_engine *tiny = open_engine(1, 2 * 3 * page);
    tinker_generator *none = tinker_generator_new(tiny, NULL);
    CHECK_INT(tinker_generator_add(none, &no, &err), TINKER_ENOMEM);
    CHECK(strstr(err.message, "bytes") != NULL);
    big.max_tokens = 0; /* as many as there is room for */
    CHECK_INT(tinker_generator_add(none, &no, &err), TINKER_OK);
    run(none);
    REQUIRE(tinker_generator_next(none, NULL, &s, &err) == 1 && s != NULL);
    CHECK_INT(s->sequences[0].n, 3 * 32 + 1 - 26);
    tinker_generator_free(none);
    tinker_engine_close(tiny);
    /* A prompt that fills the context has keys at its last position, too. */
    int32_t full[3 * 32 + 1] = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.memory_limit = 2 * 3 * page;
    opts.max_context = 3 * 32 + 1;
    tiny = tinker_engine_open(dir, &opts, &err);
    none = tinker_generator_new(tiny, NULL);
    no = (tinker_generate){
        .prompt = full, .n_prompt = 3 * 32 + 1, .num_samples = 1, .prompt_logprobs = 1
    };
    CHECK_INT(tinker_generator_add(none, &no, &err), TINKER_ENOMEM);
    /* With room for one token more, that one has none. */
    no.n_prompt = 3 * 32;
    CHECK_INT(tinker_generator_add(none, &no, &err), TINKER_OK);
    run(none);
    REQUIRE(tinker_generator_next(none, NULL, &s, &err) == 1 && s != NULL);
    CHECK_INT(s->sequences[0].n, 1);
    tinker_generator_free(none);
    tinker_engine_close(tiny);
    tinker_generator_free(g);
    tinker_engine_close(plenty);
    tinker_engine_close(little);
}

/* Memory for one sequence: what a sample would copy of the prompt it computes again, later. */
static void samples_wait_for_memory(void)
{
    uint64_t page = 2 * 2 * 2 * 32 * 16 * sizeof(float);
    tinker_engine *plenty = open_engine(2, 0), *little = open_engine(2, 2 * 2 * page);
    int32_t prompt[40];
    prompt_of(prompt, 40, 50);
    tinker_sampling_params p = params(20, 9, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = 40, .params = &p, .num_samples = 4 };
    struct outcome want, got;
    tinker_generator *g = tinker_generator_new(little, NULL);
    for (size_t topk = 0; topk < 2; topk++) {
        q.topk_sample_logprobs = topk;
        const tinker_sample *s = run_one(g, &q);
        REQUIRE(s != NULL);
        CHECK_INT(s->prompt_cache_hit_tokens, topk ? 32 : 0); /* its own pages are no hits */
        for (size_t i = 0; i < 4; i++) {
            q.topk_sample_logprobs = 0;
            alone(plenty, &q, i, &want);
            copy_sequence(&got, s, i);
            CHECK(same(&got, &want));
        }
    }
    tinker_generator_free(g);
    tinker_engine_close(plenty);
    tinker_engine_close(little);
}

static int count_token(size_t sample, int32_t token, float logprob, void *state)
{
    (void)sample;
    (void)token;
    (void)logprob;
    ++*(size_t *)state;
    return 0;
}

/* Prompts are computed in slices beside what runs, which gets its token in every step. */
static void long_prompts_keep_the_rhythm(void)
{
    enum { LONG = 3, LENGTH = 200 };
    tinker_engine *e = open_engine(2, 0);
    tinker_generator *g = tinker_generator_new(e, NULL);
    int32_t prompts[LONG + 1][LENGTH];
    size_t running = 0, others = 0;
    tinker_sampling_params p = params(40, 1, 1);
    tinker_generate q = {
        .n_prompt = 5, .params = &p, .num_samples = 1, .on_token = count_token, .state = &running
    };
    for (size_t i = 0; i <= LONG; i++)
        prompt_of(prompts[i], LENGTH, 70 + i);
    q.prompt = prompts[LONG];
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    CHECK(tinker_generator_step(g, NULL) > 0);
    q.n_prompt = LENGTH;
    q.state = &others;
    for (size_t i = 0; i < LONG; i++) {
        q.prompt = prompts[i];
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    }
    /* 600 tokens of prompts are five slices of at most 128 */
    for (size_t i = 0; i < 5; i++) {
        size_t before = running;
        CHECK(tinker_generator_step(g, NULL) > 0);
        CHECK(running > before);
        CHECK(i > 0 || others == 0);
    }
    CHECK(others >= LONG);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void every_architecture_follows_the_same_rules(void)
{
    static const char *const archs[] = { "qwen2", "llama", "qwen3_moe" };
    for (size_t i = 0; i < 3; i++) {
        write_model_of(archs[i]);
        temperature_zero_is_argmax();
        logprobs_equal_the_training_forward();
    }
    same_tokens_in_any_company(); /* of experts: rows meet in them */
    cached_prefix_gives_the_same_bits();
    write_model();
}

/* Activations are rounded, attention's keys and values, too, where the CPU has the products. */
static void fast_modes_follow_the_same_rules(void)
{
    static const tinker_weights_dtype fast[] = { TINKER_WEIGHTS_BF16, TINKER_WEIGHTS_Q8_INT8 };
    for (size_t i = 0; i < 2; i++) {
        weights_dtype = fast[i];
        temperature_zero_is_argmax();
        logprobs_equal_the_training_forward();
        same_tokens_in_any_company();
        cached_prefix_gives_the_same_bits();
    }
    weights_dtype = TINKER_WEIGHTS_F32;
}

static void the_bundled_model_samples_what_it_trains(void)
{
    char keep[sizeof dir];
    memcpy(keep, dir, sizeof dir);
    snprintf(dir, sizeof dir, "models/tiny");
    logprobs_equal_the_training_forward();
    memcpy(dir, keep, sizeof dir);
}

int main(void)
{
    write_model();
    RUN(temperature_zero_is_argmax);
    RUN(logprobs_equal_the_training_forward);
    RUN(scaled_and_raw_logprobs);
    RUN(same_tokens_in_any_company);
    RUN(samples_equal_requests_with_following_seeds);
    RUN(cached_prefix_gives_the_same_bits);
    RUN(little_memory_costs_time_only);
    RUN(samples_wait_for_memory);
    RUN(long_prompts_keep_the_rhythm);
    RUN(every_architecture_follows_the_same_rules);
    RUN(fast_modes_follow_the_same_rules);
    RUN(the_bundled_model_samples_what_it_trains);
    os_remove_tree(dir, NULL);
    return tap_done();
}
