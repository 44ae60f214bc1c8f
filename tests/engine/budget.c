/* budget.c - passes, running samples and cached prefixes share one limit. */
#include <tinker/engine.h>
#include "engine/generate/generator.h"
#include "engine/model/adapter.h"
#include "engine/train/pass.h"
#include "support/nap.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static const tinker_loss cross_entropy = { .name = "cross_entropy" };
static struct init_model options;
static tinker_engine *engine;
static tinker_adapter *adapter;
static struct tiny_data *data;

/* Everything that counts against the limit. */
static uint64_t held_bytes(const tinker_generator *g)
{
    return engine->pass_bytes + (engine->spare ? engine->spare_bytes : 0) +
           tinker_generator_memory(g) + g->kept;
}

/* Hand a prompt of 40 tokens to the generator that no other begins with. */
static tinker_status add_prompt(tinker_generator *g, int32_t first, tinker_error *err)
{
    int32_t prompt[40] = { first / 50, first % 50 };
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    p.max_tokens = 8;
    tinker_generate q = { .prompt = prompt, .n_prompt = 40, .params = &p, .num_samples = 1 };
    return tinker_generator_add(g, &q, err);
}

static void finish_samples(tinker_generator *g)
{
    while (tinker_generator_step(g, NULL) > 0)
        CHECK(held_bytes(g) <= engine->memory_limit);
    while (tinker_generator_next(g, NULL, NULL, NULL)) {
    }
}

static tinker_pass *begin_pass(tinker_error *err)
{
    return tinker_pass_new(engine, adapter, data->data, data->n, &cross_entropy, 0, err);
}

/* Many prompts fill the memory with cached prefixes; a pass that needs it gets it. */
static void test_cached_prefixes_make_room_for_a_pass(void)
{
    tinker_error err = { 0 };
    tinker_pass *p = begin_pass(&err);
    REQUIRE(p);
    uint64_t one = engine->pass_bytes;
    tinker_pass_free(p);
    engine->memory_limit = one + one / 8;
    tinker_generator *g = tinker_generator_new(engine, &err);
    REQUIRE(g);
    for (int i = 0; i < 200; i++) {
        CHECK_INT(add_prompt(g, i, &err), TINKER_OK);
        finish_samples(g);
    }
    uint64_t cached = tinker_generator_memory(g);
    CHECK(cached > 0 && held_bytes(g) <= engine->memory_limit);
    p = begin_pass(&err);
    REQUIRE(p);
    CHECK(!p->recompute); /* all of it, not what the cache had left */
    CHECK(held_bytes(g) <= engine->memory_limit);
    tinker_pass_free(p);
    tinker_generator_free(g);
}

/* A pass does not take what running samples may come to need, and the other way round: who comes
 * second waits. */
static void test_who_comes_second_waits(void)
{
    tinker_error err = { 0 };
    engine->memory_limit = UINT64_MAX / 4;
    tinker_pass *p = begin_pass(&err);
    REQUIRE(p);
    uint64_t one = engine->pass_bytes;
    engine->memory_limit = one + 1024;
    tinker_generator *g = tinker_generator_new(engine, &err);
    REQUIRE(g);
    CHECK_INT(add_prompt(g, 1, &err), TINKER_ENOMEM);
    CHECK(err.retryable && strstr(err.message, "passes hold"));
    tinker_pass_free(p);
    CHECK_INT(add_prompt(g, 1, &err), TINKER_OK);
    /* Not even begun, and promised all the same.  Without room to keep activations the pass
     * computes them twice; without room for that it waits. */
    p = begin_pass(&err);
    CHECK(p && p->recompute);
    tinker_pass_free(p);
    engine->memory_limit = one;
    while (engine->memory_limit > 0 && (p = begin_pass(&err)) != NULL) {
        tinker_pass_free(p);
        engine->memory_limit -= 4096;
    }
    CHECK_INT(err.status, TINKER_ENOMEM);
    CHECK(err.retryable && strstr(err.message, "samples hold"));
    finish_samples(g);
    CHECK_INT(budget_promised(engine), 0);
    p = begin_pass(&err);
    CHECK(p != NULL); /* what it waited for is there */
    tinker_pass_free(p);
    tinker_generator_free(g);
}

static void test_old_prefixes_go_back(void)
{
    tinker_error err = { 0 };
    engine->memory_limit = 1 << 30;
    tinker_generator *g = tinker_generator_new(engine, &err);
    REQUIRE(g);
    CHECK_INT(add_prompt(g, 1, &err), TINKER_OK);
    finish_samples(g);
    CHECK_INT(add_prompt(g, 2, &err), TINKER_OK);
    finish_samples(g);
    uint64_t both = tinker_generator_memory(g);
    tinker_generator_trim(g, 60000); /* free pages that were not needed since, no prefixes */
    CHECK_INT(g->kv.idle, 2);
    nap_ms(30);
    CHECK_INT(add_prompt(g, 2, &err), TINKER_OK);
    finish_samples(g);
    tinker_generator_trim(g, 25);
    CHECK_INT(g->kv.idle, 1); /* of the prompt that came again */
    CHECK(tinker_generator_memory(g) < both);
    tinker_generator_free(g);
    CHECK(engine->budget_users == NULL);
}

int main(void)
{
    tiny_longer_options(&options, "qwen3");
    engine = tiny_open(&options, NULL);
    adapter = tiny_adapter(engine, 4, 1);
    data = tiny_data(tiny_lengths, TINY_LENGTHS, options.config.vocab, "cross_entropy", 3);
    RUN(test_cached_prefixes_make_room_for_a_pass);
    RUN(test_who_comes_second_waits);
    RUN(test_old_prefixes_go_back);
    free(data);
    tinker_adapter_free(adapter);
    tinker_engine_close(engine);
    tiny_done();
    return tap_done();
}
