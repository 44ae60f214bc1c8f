/* history.c - what recording the metrics of a run costs beside a step of the bundled model.
 *
 * A step: one pass over a datum of 32 tokens and AdamW, the cheapest that anyone trains; the share
 * is smaller for all others.  Recording: 15 metrics, and the writes of the timer thread.
 * Usage: history [DIRECTORY OF A MODEL] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tinker/engine.h>
#include "base/os.h"
#include "server/store/history.h"

enum { TOKENS = 32, STEPS = 300, RECORDED = 20000, FLUSH_EVERY = 200 };

static tinker_error err;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "history: %s\n", err.message);
        exit(1);
    }
    return p;
}

static double time_step(const char *model)
{
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    o.threads = 1;
    tinker_engine *e = need(tinker_engine_open(model, &o, &err));
    tinker_adapter *a = need(tinker_adapter_new(e, NULL, &err));
    int32_t tokens[TOKENS + 1];
    for (int i = 0; i <= TOKENS; i++)
        tokens[i] = 20 + i;
    int64_t targets[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        targets[i] = tokens[i + 1];
    tinker_chunk text = { .tokens = tokens, .n_tokens = TOKENS };
    tinker_named_tensor target = { "target_tokens",
                                   { .dtype = TINKER_INT64, .data = targets, .n = TOKENS } };
    tinker_datum datum = { .model_input = { &text, 1 }, .inputs = &target, .n_inputs = 1 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics m;
    double start = cpu_seconds();
    for (int i = 0; i < STEPS; i++) {
        tinker_pass *p = need(tinker_pass_new(e, a, &datum, 1, &loss, 0, &err));
        while (tinker_pass_step(p, &err) > 0) {
        }
        tinker_pass_free(p);
        if (tinker_adapter_step(a, &adam, &m, &err) != TINKER_OK)
            need(NULL);
    }
    double each = (cpu_seconds() - start) / STEPS;
    tinker_adapter_free(a);
    tinker_engine_close(e);
    return each;
}

static double time_recording(const char *dir)
{
    static const char *const names[] = { "loss",           "loss:sum",
                                         "weight:sum",     "num_tokens:sum",
                                         "num_datums:sum", "pass_seconds",
                                         "time",           "grad_norm:mean",
                                         "update_norm",    "clip_coef:mean",
                                         "optim_seconds",  "learning_rate:mean",
                                         "reward",         "kl",
                                         "entropy" };
    enum { N = sizeof(names) / sizeof(*names) };
    struct log quiet = { 0 };
    char path[512];
    snprintf(path, sizeof(path), "%s/store.db", dir);
    struct store *store = need(store_open(path, &err));
    struct history *h = need(history_new(store, &quiet));
    struct history_value v[N];
    double start = cpu_seconds();
    for (int64_t step = 1; step <= RECORDED; step++) {
        for (size_t i = 0; i < N; i++)
            v[i] = (struct history_value){ names[i], (double)step / (double)(i + 1),
                                           HISTORY_REPLACE, 1 };
        history_add(h, "run", step, v, N);
        if (step % FLUSH_EVERY == 0 && history_flush(h, &err) != TINKER_OK)
            need(NULL);
    }
    double each = (cpu_seconds() - start) / RECORDED;
    history_free(h);
    store_close(store);
    return each;
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/tinker-bench-XXXXXX";
    if (!mkdtemp(dir))
        return 1;
    double step = time_step(argc > 1 ? argv[1] : "models/tiny"), record = time_recording(dir);
    os_remove_tree(dir, NULL);
    printf("step of %d tokens: %.3f ms of CPU; recording it: %.1f us; share %.3f %% (bar 1 %%)\n",
           TOKENS, 1e3 * step, 1e6 * record, 100 * record / step);
    return 0;
}
