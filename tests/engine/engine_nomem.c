/* engine_nomem.c - every allocation fails once: open, adapt, train, save, load, export.
 *
 * Nothing may crash or leak, and every call must say that it failed. */
#include <tinker/engine.h>
#include "support/failmalloc.h"
#include "support/tap.h"
#include "support/tiny_model.h"

static char base[160], experts[160], out[160], again[160], merged[160];

static bool train(tinker_engine *e, tinker_adapter *a, const struct tiny_data *d)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_error err = { 0 };
    tinker_pass *p = tiny_pass(e, a, d, &loss, 0, &err);
    tinker_pass_free(p);
    return p && tinker_adapter_step(a, NULL, NULL, &err) == TINKER_OK;
}

static bool life(const char *model, const struct tiny_data *d, int64_t rank, int flags)
{
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    tinker_lora lora = TINKER_LORA_INIT;
    opts.threads = 1;
    lora.rank = rank;
    tinker_engine *e = tinker_engine_open(model, &opts, &err);
    tinker_adapter *a = e ? tinker_adapter_new(e, &lora, &err) : NULL;
    bool ok = a && train(e, a, d);
    tinker_adapter *s = ok ? tinker_adapter_snapshot(a, &err) : NULL;
    ok = s && tinker_adapter_save(a, out, "m", flags, &err) == TINKER_OK;
    flags &= TINKER_ADAPTER_OPTIMIZER;
    tinker_adapter *b = ok ? tinker_adapter_load(e, out, flags, &err) : NULL;
    ok = b && tinker_adapter_save(b, again, "m", TINKER_ADAPTER_OPTIMIZER, &err) == TINKER_OK;
    ok = ok && train(e, b, d) && tinker_adapter_export(b, merged, &err) == TINKER_OK;
    tinker_adapter_free(s);
    tinker_adapter_free(a);
    tinker_adapter_free(b);
    tinker_engine_close(e);
    return ok;
}

static void check_life(const char *model, int64_t rank, int flags)
{
    const size_t lengths[] = { 5, 3 };
    struct tiny_data *d = tiny_data(lengths, 2, 13, "cross_entropy", 1);
    for (long n = 1; n < 5000; n++) {
        failmalloc_at(n);
        bool ok = life(model, d, rank, flags);
        if (!failmalloc_stop()) {
            CHECK(ok);
            CHECK(n > 50);
            free(d);
            return;
        }
        if (ok)
            TAP_FAIL("allocation %ld failed and nobody noticed", n);
    }
    TAP_FAIL("no end");
    free(d);
}

static void test_lora(void)
{
    check_life(base, 2, TINKER_ADAPTER_OPTIMIZER);
}

static void test_all_weights(void)
{
    check_life(base, 0, TINKER_ADAPTER_OPTIMIZER);
}

static void test_experts(void)
{
    os_remove_tree(out, NULL); /* without the state of the tests before */
    os_make_dirs(out, NULL);
    check_life(experts, 2, TINKER_ADAPTER_PEFT);
}

int main(void)
{
    struct init_model o;
    tinker_error err = { 0 };
    tiny_options(&o, "qwen3");
    o.config.layers = 1;
    o.shards = 2;
    snprintf(base, sizeof(base), "%s", tiny_path("base"));
    snprintf(out, sizeof(out), "%s", tiny_path("out"));
    snprintf(again, sizeof(again), "%s", tiny_path("again"));
    snprintf(merged, sizeof(merged), "%s", tiny_path("merged"));
    init_model_write(&o, base, &err);
    os_make_dirs(out, &err);
    os_make_dirs(again, &err);
    tiny_options(&o, "qwen3_moe");
    o.config.layers = 1;
    o.config.experts = 2;
    snprintf(experts, sizeof(experts), "%s", tiny_path("experts"));
    init_model_write(&o, experts, &err);
    RUN(test_lora);
    RUN(test_all_weights);
    RUN(test_experts);
    tiny_done();
    return tap_done();
}
