/* Sampling on tiny models: the rules, and that a request never notices its company. */
#include <tinker/engine.h>
#include "base/os.h"
#include "base/rand.h"
#include "engine/init_model.h"
#include "support/tap.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCAB = 300, CONTEXT = 256 };

static char dir[64];

static tinker_engine *open_engine(int threads, uint64_t memory)
{
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    tinker_error err = { 0 };
    o.threads = threads;
    o.memory_limit = memory;
    o.max_context = CONTEXT;
    tinker_engine *e = tinker_engine_open(dir, &o, &err);
    if (e == NULL) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
    return e;
}

static void write_model(void)
{
    struct init_model m;
    tinker_error err = { 0 };
    init_model_defaults(&m);
    m.config.context = 512;
    m.embed_std = 0.1; /* flat enough that draws vary, far from uniform */
    m.seed = 5;
    snprintf(dir, sizeof dir, "/tmp/tinker-generator-%ld", (long)getpid());
    if (init_model_write(&m, dir, &err) != TINKER_OK) {
        printf("Bail out! %s\n", err.message);
        exit(1);
    }
}

/* A copy of a result that outlives it. */
struct outcome {
    int32_t tokens[CONTEXT];
    float logprobs[CONTEXT];
    size_t n;
    tinker_stop_reason reason;
    int64_t hits;
};

static void copy_sequence(struct outcome *o, const tinker_sample *s, size_t i)
{
    const tinker_sequence *q = &s->sequences[i];
    memset(o, 0, sizeof *o);
    o->n = q->n;
    o->reason = q->stop_reason;
    o->hits = s->prompt_cache_hit_tokens;
    memcpy(o->tokens, q->tokens, q->n * sizeof *q->tokens);
    memcpy(o->logprobs, q->logprobs, q->n * sizeof *q->logprobs);
}

static int same(const struct outcome *a, const struct outcome *b)
{
    return a->n == b->n && a->reason == b->reason &&
           memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0;
}

static void prompt_of(int32_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (int32_t)(philox_uniform(seed, i) * VOCAB);
}

static tinker_sampling_params params(int64_t max_tokens, int64_t seed, double temperature)
{
    static const int32_t none[1];
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = max_tokens;
    p.has_seed = 1;
    p.seed = seed;
    p.temperature = temperature;
    p.stop_tokens = none;
    return p;
}

static void run(tinker_generator *g)
{
    tinker_error err = { 0 };
    int left;
    while ((left = tinker_generator_step(g, &err)) > 0)
        ;
    if (left < 0)
        TAP_FAIL("step: %s", err.message);
}

/* Add one request to a new generator, run it, copy sample `index`. */
static void alone(tinker_engine *e, const tinker_generate *q, size_t index, struct outcome *out)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    const tinker_sample *sample = NULL;
    memset(out, 0, sizeof *out);
    CHECK(tinker_generator_add(g, q, &err) == TINKER_OK);
    run(g);
    CHECK(tinker_generator_next(g, NULL, &sample, &err) == 1);
    if (sample != NULL)
        copy_sequence(out, sample, index);
    else
        TAP_FAIL("no sample: %s", err.message);
    tinker_generator_free(g);
}

static tinker_adapter *adapter_with(tinker_engine *e, int64_t rank, int64_t seed)
{
    tinker_lora lora = TINKER_LORA_INIT;
    tinker_error err = { 0 };
    lora.rank = rank;
    lora.has_seed = 1;
    lora.seed = seed;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (a == NULL)
        TAP_FAIL("adapter: %s", err.message);
    return a;
}

/* One optimiser step towards token 7, so that B is not zero. */
static void train_a_little(tinker_engine *e, tinker_adapter *a)
{
    int32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    int64_t targets[8] = { 7, 7, 7, 7, 7, 7, 7, 7 };
    float weights[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = 8 };
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = 8 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = 8 } },
    };
    tinker_datum d = { { &chunk, 1 }, in, 2 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics metrics;
    tinker_error err = { 0 };
    adam.learning_rate = 0.01;
    tinker_pass *p = tinker_pass_new(e, a, &d, 1, &loss, 0, &err);
    while (p != NULL && tinker_pass_step(p, &err) > 0)
        ;
    tinker_pass_free(p);
    CHECK(tinker_adapter_step(a, &adam, &metrics, &err) == TINKER_OK);
}

/* Logprobs of tokens[from..n) given what precedes them, by the training forward. */
static void forward_logprobs(tinker_engine *e, tinker_adapter *a, const int32_t *tokens, size_t n,
                             size_t from, float *out)
{
    int64_t targets[2 * CONTEXT];
    float weights[2 * CONTEXT];
    for (size_t i = 0; i + 1 < n; i++) {
        targets[i] = tokens[i + 1];
        weights[i] = 1;
    }
    tinker_chunk chunk = { .tokens = tokens, .n_tokens = n - 1 };
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = n - 1 } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = n - 1 } },
    };
    tinker_datum d = { { &chunk, 1 }, in, 2 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_error err = { 0 };
    tinker_pass *p = tinker_pass_new(e, a, &d, 1, &loss, 1, &err);
    if (p == NULL) {
        TAP_FAIL("pass: %s", err.message);
        return;
    }
    while (tinker_pass_step(p, &err) > 0)
        ;
    const tinker_forward_backward *r = tinker_pass_result(p);
    for (size_t i = 0; r != NULL && i < r->outputs[0].n_tensors; i++)
        if (strcmp(r->outputs[0].tensors[i].name, "logprobs") == 0)
            memcpy(out, (const float *)r->outputs[0].tensors[i].tensor.data + from - 1,
                   (n - from) * sizeof *out);
    tinker_pass_free(p);
}

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
    tinker_adapter *a = adapter_with(e, 4, 1);
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
    /* log p_T(i) of the drawn token from raw top-k scores: p^(1/T) renormalised */
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
        adapters[i][1] = adapter_with(engines[i], 4, 1);
        adapters[i][2] = adapter_with(engines[i], 9, 2);
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
    tinker_generator *g = tinker_generator_new(two, NULL);
    for (size_t i = 0; i < CROWD; i++) {
        q[i].adapter = adapters[1][i % 3];
        CHECK(tinker_generator_add(g, &q[i], NULL) == TINKER_OK);
        if (i % 5 == 0)
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
    tinker_adapter *a = adapter_with(e, 4, 1);
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
    tinker_generator_free(g);
    tinker_engine_close(plenty);
    tinker_engine_close(little);
}

/* ---- ends ------------------------------------------------------------------------------ */

static void stops(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[4] = { 1, 2, 3, 4 };
    tinker_sampling_params p = params(30, 2, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = 4, .params = &p, .num_samples = 1 };
    struct outcome full, cut;
    alone(e, &q, 0, &full);
    CHECK(full.n == 30 && full.reason == TINKER_STOP_LENGTH);
    /* The stop token is part of the answer. */
    size_t first = 0;
    while (full.tokens[first] != full.tokens[9])
        first++;
    p.stop_tokens = &full.tokens[9];
    p.n_stop = 1;
    alone(e, &q, 0, &cut);
    CHECK(cut.n == first + 1 && cut.reason == TINKER_STOP_STOP);
    CHECK(memcmp(cut.tokens, full.tokens, cut.n * sizeof *cut.tokens) == 0);
    /* Stop and limit together: stop. */
    p.max_tokens = (int64_t)first + 1;
    alone(e, &q, 0, &cut);
    CHECK(cut.n == first + 1 && cut.reason == TINKER_STOP_STOP);
    tinker_engine_close(e);
}

struct watch {
    int calls;
    int32_t last;
    int stop_at;
};

static int watch_token(void *state, size_t sample, int32_t token, float logprob)
{
    struct watch *w = state;
    CHECK(sample == 0 && logprob <= 0);
    w->last = token;
    return ++w->calls == w->stop_at;
}

static void callback_sees_and_stops(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[4] = { 1, 2, 3, 4 };
    struct watch w = { 0, 0, 7 };
    tinker_sampling_params p = params(30, 2, 1);
    tinker_generate q = { .prompt = prompt,
                          .n_prompt = 4,
                          .params = &p,
                          .num_samples = 1,
                          .on_token = watch_token,
                          .state = &w };
    struct outcome got;
    alone(e, &q, 0, &got);
    CHECK(got.n == 7 && got.reason == TINKER_STOP_STOP);
    CHECK(w.calls == 7 && w.last == got.tokens[6]);
    tinker_engine_close(e);
}

/* The model's own end token ends it by default, and does nothing with an empty list. */
static void end_token_by_default(void)
{
    tinker_engine *e = open_engine(1, 0);
    const tinker_engine_info *info = tinker_engine_describe(e);
    REQUIRE(info->n_eos > 0);
    int32_t prompt[4] = { 1, 2, 3, 4 };
    tinker_sampling_params p = params(0, 0, 3); /* hot: every token comes sooner or later */
    tinker_generate q = { .prompt = prompt, .n_prompt = 4, .params = &p, .num_samples = 1 };
    struct outcome got;
    int ended = 0;
    for (int64_t seed = 0; seed < 40 && !ended; seed++) {
        p.seed = seed;
        p.stop_tokens = NULL;
        alone(e, &q, 0, &got);
        if (got.reason == TINKER_STOP_STOP) {
            int found = 0;
            for (size_t i = 0; i < info->n_eos; i++)
                found |= info->eos[i] == got.tokens[got.n - 1];
            CHECK(found);
            ended = 1;
            static const int32_t none[1];
            p.stop_tokens = none;
            size_t before = got.n;
            alone(e, &q, 0, &got);
            CHECK(got.reason == TINKER_STOP_LENGTH && got.n == CONTEXT - 4 && got.n > before);
        }
    }
    CHECK(ended);
    tinker_engine_close(e);
}

static void context_limit(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[CONTEXT + 1];
    prompt_of(prompt, CONTEXT + 1, 21);
    tinker_error err = { 0 };
    tinker_sampling_params p = params(50, 2, 1);
    tinker_generate q = {
        .prompt = prompt, .n_prompt = CONTEXT - 3, .params = &p, .num_samples = 1
    };
    struct outcome got;
    alone(e, &q, 0, &got);
    CHECK(got.n == 3 && got.reason == TINKER_STOP_LENGTH);
    tinker_generator *g = tinker_generator_new(e, NULL);
    q.n_prompt = CONTEXT;
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "256") != NULL);
    q.n_prompt = CONTEXT + 1;
    q.prompt_logprobs = 1;
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "257") != NULL && strstr(err.message, "256") != NULL);
    /* A prompt that fills the context can still be scored. */
    q.n_prompt = CONTEXT;
    p.max_tokens = 1;
    const tinker_sample *s = NULL;
    CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_OK);
    run(g);
    REQUIRE(tinker_generator_next(g, NULL, &s, &err) == 1 && s != NULL);
    CHECK(s->n_sequences == 1 && s->sequences[0].n == 0);
    CHECK_INT(s->sequences[0].stop_reason, TINKER_STOP_LENGTH);
    float want[CONTEXT];
    forward_logprobs(e, NULL, prompt, CONTEXT, 1, want);
    CHECK(memcmp(want, s->prompt_logprobs + 1, (CONTEXT - 1) * sizeof *want) == 0);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void bad_requests_are_refused(void)
{
    tinker_engine *e = open_engine(1, 0);
    tinker_generator *g = tinker_generator_new(e, NULL);
    int32_t prompt[3] = { 1, 2, 3 };
    static const char *const strings[] = { "x" };
    for (int i = 0; i < 10; i++) {
        tinker_sampling_params p = params(5, 1, 1);
        tinker_generate q = { .prompt = prompt, .n_prompt = 3, .params = &p, .num_samples = 1 };
        tinker_error err = { 0 };
        prompt[1] = 2;
        switch (i) {
        case 0:
            q.n_prompt = 0;
            break;
        case 1:
            prompt[1] = VOCAB;
            break;
        case 2:
            prompt[1] = -1;
            break;
        case 3:
            p.temperature = -0.1;
            break;
        case 4:
            p.temperature = NAN;
            break;
        case 5:
            p.top_p = 0;
            break;
        case 6:
            p.max_tokens = -1;
            break;
        case 7:
            q.num_samples = 0;
            break;
        case 8:
            q.topk_prompt_logprobs = 1025;
            break;
        default:
            p.stop_strings = strings;
            break;
        }
        CHECK_INT(tinker_generator_add(g, &q, &err), TINKER_EINVAL);
        CHECK(err.message[0] != '\0');
    }
    CHECK_INT(tinker_generator_step(g, NULL), 0);
    tinker_generator_free(g);
    tinker_engine_close(e);
}

static void cancel_takes_it_away(void)
{
    tinker_engine *e = open_engine(2, 0);
    tinker_generator *g = tinker_generator_new(e, NULL);
    int32_t prompt[50];
    int tags[3];
    prompt_of(prompt, 50, 30);
    for (int i = 0; i < 3; i++) {
        tinker_sampling_params p = params(10 + i, i, 1);
        tinker_generate q = {
            .prompt = prompt, .n_prompt = 50, .params = &p, .num_samples = 2, .tag = &tags[i]
        };
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    }
    CHECK_INT(tinker_generator_step(g, NULL), 3);
    tinker_generator_cancel(g, &tags[1]);
    CHECK_INT(tinker_generator_step(g, NULL), 2);
    run(g);
    tinker_generator_cancel(g, &tags[0]); /* finished, not yet taken */
    void *tag = NULL;
    const tinker_sample *s;
    CHECK(tinker_generator_next(g, &tag, &s, NULL) == 1 && tag == &tags[2]);
    CHECK(tinker_generator_next(g, &tag, &s, NULL) == 0);
    /* Freed with work in progress. */
    tinker_sampling_params p = params(10, 1, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = 50, .params = &p, .num_samples = 3 };
    CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    CHECK_INT(tinker_generator_step(g, NULL), 1);
    tinker_generator_free(g);
    tinker_generator_free(NULL);
    tinker_engine_close(e);
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
    RUN(stops);
    RUN(callback_sees_and_stops);
    RUN(end_token_by_default);
    RUN(context_limit);
    RUN(bad_requests_are_refused);
    RUN(cancel_takes_it_away);
    os_remove_tree(dir, NULL);
    return tap_done();
}
