/* generator_nomem.c - every allocation of a sampling request fails once.
 *
 * Nothing may crash or leak; a request either fails with a message or gives the same
 * tokens as ever, because losing pages only costs time. */
#include <tinker/engine.h>
#include "support/failmalloc.h"
#include "support/tap.h"
#include "support/tiny_model.h"

enum { PROMPT = 40, SAMPLES = 3, NEW = 30 };

static const int32_t none[1];

/* Tokens of the last sample, or false with a message. */
static bool draw_sample(tinker_engine *e, tinker_adapter *a, int32_t *out, tinker_error *err)
{
    int32_t prompt[PROMPT];
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    const tinker_sample *s = NULL;
    int left = -1;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i % 13;
    p.max_tokens = NEW;
    p.has_seed = 1;
    p.top_k = 5;
    p.stop_tokens = none;
    tinker_generate q = { .adapter = a,
                          .prompt = prompt,
                          .n_prompt = PROMPT,
                          .params = &p,
                          .num_samples = SAMPLES,
                          .prompt_logprobs = 1,
                          .topk_prompt_logprobs = 2,
                          .topk_sample_logprobs = 2 };
    tinker_generator *g = tinker_generator_new(e, err);
    if (g != NULL && tinker_generator_add(g, &q, err) == TINKER_OK)
        do
            left = tinker_generator_step(g, err);
        while (left > 0);
    bool ok = left == 0 && tinker_generator_next(g, NULL, &s, err) == 1 && s != NULL;
    if (ok)
        memcpy(out, s->sequences[SAMPLES - 1].tokens, NEW * sizeof *out);
    tinker_generator_free(g);
    return ok;
}

static void every_allocation_fails_once(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.threads = 1;
    tiny_options(&o, "qwen3");
    REQUIRE(init_model_write(&o, tiny_path("model"), &err) == TINKER_OK);
    tinker_engine *e = tinker_engine_open(tiny_path("model"), &opts, &err);
    REQUIRE(e != NULL);
    tinker_adapter *a = tinker_adapter_new(e, NULL, &err);
    REQUIRE(a != NULL);
    int32_t want[NEW], got[NEW];
    REQUIRE(draw_sample(e, a, want, &err));
    int failed = 0;
    long n = 1;
    for (; n < 2000; n++) {
        err = (tinker_error){ 0 };
        failmalloc_at(n);
        bool ok = draw_sample(e, a, got, &err);
        if (!failmalloc_stop())
            break;
        failed += !ok;
        if (ok)
            CHECK(memcmp(got, want, sizeof want) == 0);
        else
            CHECK(err.status == TINKER_ENOMEM && err.message[0] != '\0');
    }
    CHECK(n > 30 && n < 2000);
    CHECK(failed > 20);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Whether a request for likeliest tokens has failed while one beside it gave all its tokens. */
static bool fails_alone(tinker_engine *e)
{
    const int32_t prompt[] = { 1, 2, 3 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    const tinker_sample *s;
    tinker_error err = { 0 };
    void *tag;
    bool lost = false, whole = false;
    p.max_tokens = NEW;
    p.has_seed = 1;
    p.stop_tokens = none;
    tinker_generate q = {
        .prompt = prompt, .n_prompt = 3, .params = &p, .num_samples = 1, .tag = &whole
    };
    tinker_generator *g = tinker_generator_new(e, &err);
    bool added = g && tinker_generator_add(g, &q, &err) == TINKER_OK;
    q.topk_sample_logprobs = 2;
    q.tag = &lost;
    added = added && tinker_generator_add(g, &q, &err) == TINKER_OK;
    while (added && tinker_generator_step(g, &err) > 0) {
    }
    while (added && tinker_generator_next(g, &tag, &s, &err)) {
        if (tag == &lost)
            lost = s == NULL && err.status == TINKER_ENOMEM;
        else
            whole = s != NULL && s->sequences[0].n == NEW;
    }
    tinker_generator_free(g);
    return lost && whole;
}

static void a_request_without_memory_fails_alone(void)
{
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.threads = 1;
    tinker_engine *e = tinker_engine_open(tiny_path("model"), &opts, &err);
    REQUIRE(e != NULL);
    int alone = 0;
    for (long n = 1; n < 2000; n++) {
        failmalloc_at(n);
        alone += fails_alone(e);
        if (!failmalloc_stop())
            break;
    }
    CHECK_INT(alone, 4); /* two matrices, which grow once */
    tinker_engine_close(e);
}

int main(void)
{
    RUN(every_allocation_fails_once);
    RUN(a_request_without_memory_fails_alone);
    tiny_done();
    return tap_done();
}
