/* How a request ends: stop tokens, callbacks, limits, refusals, cancellation. */
#include <math.h>
#include "engine/model/adapter.h"
#include "support/generate.h"

static void stop_conditions(void)
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

static int watch_token(size_t sample, int32_t token, float logprob, void *state)
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

/* However hot, it is a draw and not the argmax: every token is about equally likely. */
static void hottest_is_even(void)
{
    tinker_engine *e = open_engine(1, 0);
    int32_t prompt[4] = { 1, 2, 3, 4 };
    const double hot[] = { 1e30, 1e60, 1e308 };
    for (int i = 0; i < 3; i++) {
        tinker_sampling_params p = params(100, 2, hot[i]);
        tinker_generate q = { .prompt = prompt, .n_prompt = 4, .params = &p, .num_samples = 1 };
        struct outcome got;
        alone(e, &q, 0, &got);
        double sum = 0;
        for (size_t t = 0; t < got.n; t++) {
            sum += got.tokens[t];
            CHECK_NEAR(got.logprobs[t], -log(tinker_engine_describe(e)->vocab_size), 1e-4);
        }
        CHECK_NEAR(sum / 100, (double)tinker_engine_describe(e)->vocab_size / 2, 40);
    }
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
    tinker_engine *other = open_engine(1, 0);
    tinker_adapter *foreign = tiny_adapter(other, 4, 1);
    tinker_generator *g = tinker_generator_new(e, NULL);
    int32_t prompt[3] = { 1, 2, 3 };
    static const char *const strings[] = { "x" };
    for (int i = 0; i < 15; i++) {
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
        case 9:
            q.topk_sample_logprobs = 1025;
            break;
        case 10:
            p.temperature = INFINITY;
            break;
        case 11:
            p.top_k = -2;
            break;
        case 12:
            p.top_p = NAN;
            break;
        case 13:
            q.adapter = foreign;
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
    tinker_adapter_free(foreign);
    tinker_engine_close(other);
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

/* Weights that have run away fail the request that uses them, and that one alone. */
static void logits_must_be_finite(void)
{
    tinker_engine *e = open_engine(2, 0);
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = 1;
    lora.train_attn = lora.train_mlp = 0;
    tinker_adapter *a = tinker_adapter_new(e, &lora, NULL);
    REQUIRE(a != NULL);
    float *b = a->w + a->params.list[1].offset;
    int32_t prompt[40];
    prompt_of(prompt, 40, 33);
    tinker_sampling_params p = params(5, 2, 1);
    tinker_generate q = { .prompt = prompt, .n_prompt = 40, .params = &p, .num_samples = 2 };
    struct outcome want, got;
    alone(e, &q, 1, &want);
    for (int i = 0; i < 4; i++) {
        /* a NaN alone; infinities of both signs, one of which wins; one for scores of a prompt */
        b[7] = i == 0 ? NAN : 3e38f;
        b[8] = i == 0 ? 0 : -3e38f;
        tinker_generator *g = tinker_generator_new(e, NULL);
        q.adapter = a;
        q.tag = a;
        q.prompt_logprobs = i == 2;
        p.temperature = i == 3 ? 0 : 1;
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
        q.adapter = NULL;
        q.tag = NULL;
        q.prompt_logprobs = 0;
        p.temperature = 1;
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
        run(g);
        tinker_error err = { 0 };
        void *tag;
        const tinker_sample *s;
        int results = 0;
        for (; tinker_generator_next(g, &tag, &s, &err) == 1; results++) {
            if (tag == a) {
                CHECK(s == NULL && err.status == TINKER_EREQUEST);
                CHECK(strstr(err.message, "not finite") != NULL);
                continue;
            }
            REQUIRE(s != NULL);
            copy_sequence(&got, s, 1);
            CHECK(same(&got, &want));
        }
        CHECK_INT(results, 2);
        tinker_generator_free(g);
    }
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

static int count_token(size_t sample, int32_t token, float logprob, void *state)
{
    (void)sample;
    (void)token;
    (void)logprob;
    ++*(int *)state;
    return 0;
}

/* Also those of other weights, and more than one batch has room for. */
static void a_step_advances_every_sequence(void)
{
    enum { MANY = 300 };
    tinker_engine *e = open_engine(2, 0);
    tinker_adapter *a[] = { NULL, tiny_adapter(e, 0, 1), tiny_adapter(e, 4, 1) };
    tinker_generator *g = tinker_generator_new(e, NULL);
    int32_t prompt[5] = { 1, 2, 3, 4, 5 };
    int calls[3] = { 0 };
    for (size_t i = 0; i < 3; i++) {
        tinker_sampling_params p = params(4, 2, 1);
        tinker_generate q = { .adapter = a[i],
                              .prompt = prompt,
                              .n_prompt = 5,
                              .params = &p,
                              .num_samples = i ? 2 : MANY,
                              .on_token = count_token,
                              .state = &calls[i] };
        CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
    }
    for (int step = 1; step <= 4; step++) {
        CHECK_INT(tinker_generator_step(g, NULL), step < 4 ? 3 : 0);
        CHECK_INT(calls[0], MANY * step);
        CHECK_INT(calls[1], 2 * step);
        CHECK_INT(calls[2], 2 * step);
    }
    tinker_generator_free(g);
    tinker_adapter_free(a[1]);
    tinker_adapter_free(a[2]);
    tinker_engine_close(e);
}

struct canceling {
    tinker_generator *g;
    void *tag;
    int calls, at;
};

static int cancel_on_token(size_t sample, int32_t token, float logprob, void *state)
{
    struct canceling *c = state;
    (void)sample;
    (void)token;
    (void)logprob;
    if (++c->calls == c->at)
        tinker_generator_cancel(c->g, c->tag);
    return 0;
}

/* Whoever is told of a token may cancel, its own request too: nobody asks it again, and the
 * others do not notice. */
static void callbacks_may_cancel(void)
{
    tinker_engine *e = open_engine(2, 0);
    int32_t prompt[40];
    int tags[3];
    struct outcome want, got;
    prompt_of(prompt, 40, 33);
    for (int at = 1; at <= 7; at += 3) { /* at the first token of a sample, then later */
        for (int victim = 0; victim < 3; victim++) { /* older, itself, younger */
            tinker_generator *g = tinker_generator_new(e, NULL);
            struct canceling c = { g, &tags[victim], 0, at };
            for (int i = 0; i < 3; i++) {
                tinker_sampling_params p = params(10, i, 1);
                tinker_generate q = { .prompt = prompt,
                                      .n_prompt = 40,
                                      .params = &p,
                                      .num_samples = 3,
                                      .on_token = i == 1 ? cancel_on_token : NULL,
                                      .state = &c,
                                      .tag = &tags[i] };
                CHECK(tinker_generator_add(g, &q, NULL) == TINKER_OK);
            }
            run(g);
            CHECK_INT(c.calls, victim == 1 ? at : 30);
            void *tag = NULL;
            const tinker_sample *s = NULL;
            int left = 0;
            for (; tinker_generator_next(g, &tag, &s, NULL); left++) {
                int i = (int)((int *)tag - tags);
                CHECK(i != victim && s != NULL);
                tinker_sampling_params p = params(10, i, 1);
                tinker_generate q = {
                    .prompt = prompt, .n_prompt = 40, .params = &p, .num_samples = 3
                };
                alone(e, &q, 2, &want);
                copy_sequence(&got, s, 2);
                CHECK(same(&got, &want));
            }
            CHECK_INT(left, 2);
            tinker_generator_free(g);
        }
    }
    tinker_engine_close(e);
}

int main(void)
{
    write_model();
    RUN(stop_conditions);
    RUN(callback_sees_and_stops);
    RUN(end_token_by_default);
    RUN(hottest_is_even);
    RUN(context_limit);
    RUN(bad_requests_are_refused);
    RUN(cancel_takes_it_away);
    RUN(logits_must_be_finite);
    RUN(a_step_advances_every_sequence);
    RUN(callbacks_may_cancel);
    os_remove_tree(dir, NULL);
    return tap_done();
}
