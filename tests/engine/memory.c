/* memory.c - what adapters and passes cost, and that the limit holds for all of them. */
#include <malloc.h>
#include <math.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "engine/model/adapter.h"
#include "engine/train/pass.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static const tinker_loss cross_entropy = { .name = "cross_entropy" };

static void test_memory_is_refused_with_numbers(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.memory_limit = 1 << 20;
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, &opts);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    CHECK(!tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err));
    CHECK_INT(err.status, TINKER_ENOMEM);
    CHECK(strstr(err.message, "1048576") != NULL);
    CHECK(strstr(err.message, "needs") != NULL);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* Gradients add up chunk by chunk: other chunks would be other bits. */
static void test_chunks_of_the_head(void)
{
    static const size_t vocab[] = { 300, 151936, 200064, 262144, 4000000, 1 << 24 },
                        rows[] = { 192, 192, 160, 128, 16, 16 };
    for (size_t i = 0; i < sizeof(vocab) / sizeof(vocab[0]); i++) {
        struct model_config c = { .vocab = vocab[i] };
        CHECK_INT(lm_head_chunk(&c), rows[i]);
    }
}

/* A model of the shape of Qwen3-0.6B: 1.2 GB of bf16 weights and what training on a text takes.
 * docs/models.md states these numbers. */
static void test_long_texts_of_a_small_model(void)
{
    struct init_model o;
    init_model_defaults(&o);
    struct model_config *c = &o.config;
    c->vocab = 151936;
    c->hidden = 1024;
    c->layers = 28;
    c->heads = 16;
    c->kv_heads = 8;
    c->head_dim = c->rotary = 128;
    c->intermediate = 3072;
    double weights = 2 * (double)model_parameters(c);
    printf("# tokens    kept     recomputed, GB beside %.2f GB of weights\n", weights / 1e9);
    for (size_t tokens = 512; tokens <= 32768; tokens *= 2)
        printf("# %6zu %7.2f %7.2f\n", tokens, (double)pass_text_bytes(c, tokens, 32, false) / 1e9,
               (double)pass_text_bytes(c, tokens, 32, true) / 1e9);
    CHECK(weights + (double)pass_text_bytes(c, 4096, 32, true) < 4e9);
    CHECK(weights + (double)pass_text_bytes(c, 32768, 32, true) < 11e9);
    CHECK(pass_text_bytes(c, 4096, 32, false) > 4 * pass_text_bytes(c, 4096, 32, true));
}

/* What the plan says is what a pass of one text takes, beside lists and the gradient. */
static void test_the_plan_is_what_a_pass_takes(void)
{
    static const char *const names[] = { "qwen3", "gemma3_text", "qwen3_5_moe_text" };
    const size_t length = 300;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct init_model o;
        tinker_error err = { 0 };
        tiny_longer_options(&o, names[i]);
        tinker_engine *e = tiny_open(&o, NULL);
        tinker_adapter *a = tiny_adapter(e, 4, 1);
        struct tiny_data *d = tiny_data(&length, 1, o.config.vocab, "cross_entropy", 3);
        const struct model_config *c = &e->model->config;
        for (int recompute = 0; recompute < 2; recompute++) {
            uint64_t work = pass_text_bytes(c, length, 4, recompute);
            e->memory_limit = recompute ? pass_text_bytes(c, length, 4, false) : UINT64_MAX;
            tinker_pass *p = tinker_pass_new(e, a, d->data, 1, &cross_entropy, 0, &err);
            REQUIRE(p);
            CHECK_INT(p->recompute, recompute);
            uint64_t rest = p->arena.used + a->params.total * sizeof(float);
            CHECK(p->bytes >= work &&
                  p->bytes <= work + rest + (64 << 10) + p->memory_bytes - work);
            tinker_pass_free(p);
        }
        free(d);
        tinker_adapter_free(a);
        tinker_engine_close(e);
    }
}

/* What is said before a model is loaded is what loading and training take. */
static void test_needs_are_known_before_loading(void)
{
    static const char *const names[] = { "qwen3", "phi3", "qwen3_5_moe_text" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct init_model o;
        tinker_error err = { 0 };
        tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
        tinker_model_needs needs = TINKER_MODEL_NEEDS_INIT;
        tiny_longer_options(&o, names[i]);
        opts.dtype = i == 0 ? TINKER_WEIGHTS_Q4 : TINKER_WEIGHTS_STORED;
        tinker_engine *e = tiny_open(&o, &opts);
        tinker_adapter *a = tiny_adapter(e, 4, 1);
        const struct model_config *c = &e->model->config;
        needs.rank = 4;
        needs.tokens = 300;
        CHECK_INT(tinker_model_measure(e->dir, &opts, &needs, &err), TINKER_OK);
        CHECK_STR(needs.arch, names[i]);
        CHECK_INT(needs.context, c->context);
        CHECK_INT(needs.weights, e->model->weight_bytes);
        CHECK_INT(needs.pass, pass_text_bytes(c, 300, 4, true));
        CHECK_INT(needs.adapter, 20 * a->params.total);
        CHECK(needs.trains == needs.context && needs.cache > 0);
        /* just enough for 200 tokens is not enough for 201 */
        opts.memory_limit = needs.weights + needs.adapter + pass_text_bytes(c, 200, 4, true);
        CHECK_INT(tinker_model_measure(e->dir, &opts, &needs, &err), TINKER_OK);
        CHECK(needs.trains >= 200 && pass_text_bytes(c, (size_t)needs.trains + 1, 4, true) >
                                         pass_text_bytes(c, 200, 4, true));
        opts.memory_limit = needs.weights;
        CHECK_INT(tinker_model_measure(e->dir, &opts, &needs, &err), TINKER_OK);
        CHECK_INT(needs.trains, 0);
        needs.rank = 0;
        CHECK_INT(tinker_model_measure(e->dir, &opts, &needs, &err), TINKER_EINVAL);
        needs.rank = 4;
        CHECK(tinker_model_measure("/nowhere", &opts, &needs, &err) != TINKER_OK);
        tinker_adapter_free(a);
        tinker_engine_close(e);
    }
}

/* The server gives this where the system does not tell its memory. */
static void test_no_known_limit_refuses_nothing(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.memory_limit = UINT64_MAX;
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, &opts);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &loss, 0, &err);
    CHECK(p != NULL);
    tinker_generator *g = tinker_generator_new(e, &err);
    CHECK(g != NULL);
    tinker_generator_free(g);
    tinker_pass_free(p);
    free(d);
    tinker_adapter_free(a);
    tinker_engine_close(e);
}

/* A few bytes on the wire can ask for a matrix of any size. */
static void test_sparse_targets_cannot_exhaust_memory(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.memory_limit = 64 << 20;
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, &opts);
    const size_t one[] = { 300 };
    struct tiny_data *d = tiny_data(one, 1, o.config.vocab, "cross_entropy", 3);
    int64_t crow[301] = { 0 }, col[1] = { 0 }, shape[] = { 300, 1 << 20 };
    for (int i = 1; i <= 300; i++)
        crow[i] = 1;
    d->inputs[0][0].tensor = (tinker_tensor){ .dtype = TINKER_INT64,
                                              .data = d->targets[0],
                                              .n = 1,
                                              .shape = shape,
                                              .ndim = 2,
                                              .crow = crow,
                                              .col = col };
    d->data[0].n_inputs = 1;
    tinker_loss loss = { .name = "cross_entropy" };
    CHECK(!tinker_pass_new(e, NULL, d->data, 1, &loss, 1, &err));
    CHECK_INT(err.status, TINKER_ENOMEM);
    CHECK(strstr(err.message, "67108864") != NULL && !err.retryable);
    free(d);
    tinker_engine_close(e);
}

/* ---- several passes at once ---------------------------------------------------------------- */

/* The smallest limit, to 4 KB, under which one pass over d is accepted. */
static uint64_t least_limit(tinker_engine *e, tinker_adapter *a, const struct tiny_data *d)
{
    uint64_t low = 0, high = 64 << 20;
    while (high - low > 4096) {
        e->memory_limit = low + (high - low) / 2;
        tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &cross_entropy, 0, NULL);
        if (p)
            high = e->memory_limit;
        else
            low = e->memory_limit;
        tinker_pass_free(p);
    }
    return high;
}

static void test_live_passes_share_the_limit(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    char number[32];
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1), *b = tiny_adapter(e, 4, 2);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    uint64_t one = least_limit(e, a, d);
    CHECK_INT(e->pass_bytes, 0); /* nothing is left of those that were refused or freed */
    e->memory_limit = one * 3 / 2;
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &cross_entropy, 0, &err);
    REQUIRE(p);
    CHECK(e->pass_bytes > one / 2 && e->pass_bytes <= e->memory_limit);
    /* The second is refused with its need, the limit and what the first holds. */
    CHECK(!tinker_pass_new(e, b, d->data, d->n, &cross_entropy, 0, &err));
    CHECK_INT(err.status, TINKER_ENOMEM);
    CHECK(err.retryable);
    snprintf(number, sizeof(number), "hold %llu", (unsigned long long)e->pass_bytes);
    CHECK(strstr(err.message, number) != NULL);
    snprintf(number, sizeof(number), "limit of %llu", (unsigned long long)e->memory_limit);
    CHECK(strstr(err.message, number) != NULL);
    CHECK(strstr(err.message, "needs") != NULL);
    /* So it is when there is not even room for its data. */
    tinker_error full = { 0 };
    uint64_t limit = e->memory_limit;
    e->memory_limit = e->pass_bytes + 100;
    CHECK(!tinker_pass_new(e, b, d->data, d->n, &cross_entropy, 0, &full));
    CHECK_INT(full.status, TINKER_ENOMEM);
    CHECK(full.retryable);
    snprintf(number, sizeof(number), "hold %llu", (unsigned long long)e->pass_bytes);
    CHECK(strstr(full.message, number) != NULL);
    snprintf(number, sizeof(number), "limit of %llu", (unsigned long long)e->memory_limit);
    CHECK(strstr(full.message, number) != NULL);
    e->memory_limit = limit;
    /* A finished pass keeps its result only, and that makes room. */
    while (tinker_pass_step(p, &err) > 0) {
    }
    CHECK(tinker_pass_result(p) != NULL);
    CHECK(e->pass_bytes < one / 4);
    tinker_pass *q = tinker_pass_new(e, b, d->data, d->n, &cross_entropy, 0, &err);
    CHECK(q != NULL);
    CHECK(e->pass_bytes <= e->memory_limit);
    tinker_pass_free(p);
    tinker_pass_free(q);
    CHECK_INT(e->pass_bytes, 0);
    free(d);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

/* With room for one and a half, the second recomputes: slower, the same bits. */
static void test_a_second_pass_takes_less(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1), *b = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, TINY_LENGTHS, o.config.vocab, "cross_entropy", 3);
    tinker_pass *p = tinker_pass_new(e, a, d->data, d->n, &cross_entropy, 0, &err);
    REQUIRE(p);
    CHECK(!p->recompute);
    e->memory_limit = 2 * e->pass_bytes - (1 << 16);
    tinker_pass *q = tinker_pass_new(e, b, d->data, d->n, &cross_entropy, 0, &err);
    REQUIRE(q);
    CHECK(q->recompute);
    int more = 2;
    while (more) { /* in turns */
        more = tinker_pass_step(p, &err) > 0;
        more += tinker_pass_step(q, &err) > 0;
    }
    CHECK(a->grad && b->grad && memcmp(a->grad, b->grad, a->params.total * sizeof(float)) == 0);
    tinker_pass_free(p);
    tinker_pass_free(q);
    free(d);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
}

/* What is only sampled from needs no moments.  They come with the first step, and are zero in
 * files until then. */
static void test_loaded_weights_have_no_moments_yet(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tinker_adam adam = TINKER_ADAM_INIT;
    tiny_longer_options(&o, "qwen3");
    tinker_engine *e = tiny_open(&o, NULL);
    tinker_adapter *a = tiny_adapter(e, 4, 1);
    struct tiny_data *d = tiny_data(tiny_lengths, 2, o.config.vocab, "cross_entropy", 3);
    tinker_adapter *snapshot = tinker_adapter_snapshot(a, &err);
    os_make_dirs(tiny_path("weights"), NULL);
    os_make_dirs(tiny_path("state"), NULL);
    CHECK_INT(tinker_adapter_save(a, tiny_path("weights"), "m", 0, &err), TINKER_OK);
    tinker_adapter *b = tinker_adapter_load(e, tiny_path("weights"), 0, &err);
    REQUIRE(b && snapshot);
    CHECK_INT(tinker_adapter_bytes(b), tinker_adapter_bytes(snapshot));
    CHECK_INT(tinker_adapter_save(b, tiny_path("state"), "m", TINKER_ADAPTER_OPTIMIZER, &err),
              TINKER_OK);
    tinker_adapter *c = tinker_adapter_load(e, tiny_path("state"), TINKER_ADAPTER_OPTIMIZER, &err);
    REQUIRE(c);
    CHECK_INT(tinker_adapter_bytes(c), tinker_adapter_bytes(a));
    tinker_adapter *const all[] = { a, b, c };
    for (int i = 0; i < 3; i++) {
        tiny_train(e, all[i], d, "cross_entropy");
        CHECK_INT(tinker_adapter_step(all[i], &adam, NULL, &err), TINKER_OK);
        CHECK(memcmp(all[i]->w, a->w, a->params.total * sizeof(float)) == 0);
        CHECK_INT(tinker_adapter_bytes(all[i]), tinker_adapter_bytes(a));
    }
    for (int i = 0; i < 3; i++)
        tinker_adapter_free(all[i]);
    tinker_adapter_free(snapshot);
    free(d);
    tinker_engine_close(e);
}

/* ---- many adapters ---------------------------------------------------------------------------- */

enum { ADAPTERS = 100 };

static double resident(void)
{
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Bytes in use on the heap; 0 under a sanitizer, whose allocator does not tell. */
static double heap(void)
{
    struct mallinfo2 m = mallinfo2();
    return (double)m.uordblks + (double)m.hblkhd;
}

static bool all_train(tinker_engine *e, tinker_adapter *a[ADAPTERS])
{
    const size_t few[] = { 6, 2 };
    struct tiny_data *d = tiny_data(few, 2, 2000, "cross_entropy", 3);
    tinker_adam adam = TINKER_ADAM_INIT;
    bool ok = true;
    for (int i = 0; i < ADAPTERS; i++) {
        tiny_train(e, a[i], d, "cross_entropy");
        ok = ok && tinker_adapter_step(a[i], &adam, NULL, NULL) == TINKER_OK;
    }
    free(d);
    return ok;
}

/* One token from each adapter, all in one batch. */
static int all_sample(tinker_engine *e, tinker_adapter *a[ADAPTERS])
{
    const int32_t prompt[] = { 5, 6, 7 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    const tinker_sample *s = NULL;
    int results = 0;
    params.max_tokens = 1;
    tinker_generator *g = tinker_generator_new(e, NULL);
    for (int i = 0; g && i < ADAPTERS; i++) {
        tinker_generate q = {
            .adapter = a[i], .prompt = prompt, .n_prompt = 3, .params = &params, .num_samples = 1
        };
        if (tinker_generator_add(g, &q, NULL) != TINKER_OK)
            break;
    }
    while (g && tinker_generator_step(g, NULL) > 0) {
    }
    while (g && tinker_generator_next(g, NULL, &s, NULL))
        results += s && s->sequences[0].n == 1;
    tinker_generator_free(g);
    return results;
}

/* Parameters, m and v; the gradient is gone after the step. */
static void test_hundred_adapters_on_the_bundled_model(void)
{
    tinker_error err = { 0 };
    tinker_engine *e = tinker_engine_open("models/tiny", NULL, &err);
    tinker_adapter *warm[ADAPTERS], *a[ADAPTERS];
    if (!e)
        TAP_FAIL("%s", err.message);
    REQUIRE(e);
    for (int i = 0; i < ADAPTERS; i++) /* what is made once is not part of the count */
        warm[i] = tiny_adapter(e, 8, 0);
    all_sample(e, warm);
    for (int i = 0; i < ADAPTERS; i++)
        tinker_adapter_free(warm[i]);
    malloc_trim(0);
    double heap_before = heap(), resident_before = resident();
    for (int i = 0; i < ADAPTERS; i++)
        a[i] = tiny_adapter(e, 8, i);
    CHECK(all_train(e, a));
    CHECK_INT(all_sample(e, a), ADAPTERS);
    double need = 3.0 * (double)a[0]->params.count * sizeof(float);
    double on_heap = (heap() - heap_before) / ADAPTERS / need;
    double in_memory = (resident() - resident_before) / ADAPTERS / need;
    printf("# %.0f bytes of parameters and moments; on the heap %.3f, resident %.3f of that\n",
           need, on_heap, in_memory);
    for (int i = 0; i < ADAPTERS; i++) {
        CHECK_NEAR((double)tinker_adapter_bytes(a[i]) / need, 1, 0.1);
        CHECK(i == 0 || memcmp(a[i]->w, a[0]->w, a[0]->params.total * sizeof(float)) != 0);
    }
    if (heap_before > 0) {
        CHECK_NEAR(on_heap, 1, 0.1);
        CHECK_NEAR(in_memory, 1, 0.1);
        CHECK_NEAR((double)tinker_adapter_bytes(a[0]) / need, on_heap, 0.02); /* it says so too */
    }
    for (int i = 0; i < ADAPTERS; i++)
        tinker_adapter_free(a[i]);
    tinker_engine_close(e);
}

int main(void)
{
    RUN(test_memory_is_refused_with_numbers);
    RUN(test_chunks_of_the_head);
    RUN(test_long_texts_of_a_small_model);
    RUN(test_the_plan_is_what_a_pass_takes);
    RUN(test_needs_are_known_before_loading);
    RUN(test_no_known_limit_refuses_nothing);
    RUN(test_sparse_targets_cannot_exhaust_memory);
    RUN(test_live_passes_share_the_limit);
    RUN(test_a_second_pass_takes_less);
    RUN(test_loaded_weights_have_no_moments_yet);
    RUN(test_hundred_adapters_on_the_bundled_model);
    tiny_done();
    return tap_done();
}
