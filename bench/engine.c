/* bench/engine [DIR]: training and decoding of a Qwen3-0.6B-shaped model, as shares of
 * what this machine can do.
 *
 * Without DIR a model with random weights is written to a temporary directory (1.2 GB)
 * and removed at the end.  TINKER_BENCH_LAYERS makes it smaller, TINKER_BENCH_DTYPE=bf16
 * chooses the packed weights' type.  Training is counted as the multiply-adds that a
 * LoRA step needs (forward, and backward to the inputs, of every product; attention;
 * the adapters), decoding as the bytes of weights that a token reads. */
#include "ceilings.h"

#include <tinker/engine.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/init_model.h"
#include "engine/model.h"

enum { RANK = 32, SEQUENCES = 4, LENGTH = 256 };

static double wall(void)
{
    return now(CLOCK_MONOTONIC);
}

static void die(const char *what, const tinker_error *err)
{
    fprintf(stderr, "bench/engine: %s: %s\n", what, err->message);
    exit(1);
}

static void write_model(const char *dir)
{
    struct init_model m;
    tinker_error err = { 0 };
    const char *layers = getenv("TINKER_BENCH_LAYERS");
    init_model_defaults(&m);
    m.config.vocab = 151936;
    m.config.hidden = 1024;
    m.config.layers = layers ? (size_t)strtoul(layers, NULL, 10) : 28;
    m.config.heads = 16;
    m.config.kv_heads = 8;
    m.config.head_dim = 128;
    m.config.intermediate = 3072;
    m.config.context = 4096;
    m.config.tied = true;
    m.dtype = SOURCE_BF16;
    if (init_model_write(&m, dir, &err) != TINKER_OK)
        die("model", &err);
}

/* Weights of the products of one layer, and of the head. */
static double layer_weights(const struct model_config *c)
{
    double sum = 0;
    for (int id = 0; id < LINEARS; id++) {
        size_t out, in;
        model_linear_shape(c, (enum linear_id)id, &out, &in);
        sum += (double)out * (double)in;
    }
    return sum;
}

static double lora_weights(const struct model_config *c)
{
    double sum = (double)(c->vocab + c->hidden) * RANK;
    for (int id = 0; id < LINEARS; id++) {
        size_t out, in;
        model_linear_shape(c, (enum linear_id)id, &out, &in);
        sum += (double)(out + in) * RANK * (double)c->layers;
    }
    return sum;
}

struct step_flop {
    double products, attention, lora;
};

static struct step_flop training_flop(const struct model_config *c)
{
    double rows = (double)SEQUENCES * LENGTH;
    double weights = layer_weights(c) * (double)c->layers + (double)c->vocab * (double)c->hidden;
    double pairs = (double)SEQUENCES * LENGTH * (LENGTH + 1) / 2 * (double)c->heads;
    return (struct step_flop){
        .products = 2 * 2 * rows * weights,
        /* forward: 2 products; backward: the scores again and 4 more */
        .attention = 7 * 2 * pairs * (double)c->head_dim * (double)c->layers,
        .lora = 3 * 2 * rows * lora_weights(c),
    };
}

static double one_step(tinker_engine *e, tinker_adapter *a, const tinker_datum *data)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics metrics;
    double start = wall();
    tinker_pass *p = tinker_pass_new(e, a, data, SEQUENCES, &loss, 0, &err);
    if (p == NULL)
        die("pass", &err);
    int more;
    while ((more = tinker_pass_step(p, &err)) > 0)
        ;
    if (more < 0)
        die("pass", &err);
    tinker_pass_free(p);
    if (tinker_adapter_step(a, &adam, &metrics, &err) != TINKER_OK)
        die("step", &err);
    return wall() - start;
}

static void train(tinker_engine *e, double peak)
{
    static int32_t tokens[SEQUENCES][LENGTH];
    static int64_t targets[LENGTH];
    static float weights[LENGTH];
    tinker_chunk chunks[SEQUENCES];
    tinker_datum data[SEQUENCES];
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = LENGTH } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = LENGTH } },
    };
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    size_t vocab = e->model->config.vocab;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (a == NULL)
        die("adapter", &err);
    for (size_t i = 0; i < LENGTH; i++) {
        targets[i] = (int64_t)(i * 7919 % vocab);
        weights[i] = 1;
    }
    for (size_t s = 0; s < SEQUENCES; s++) {
        for (size_t i = 0; i < LENGTH; i++)
            tokens[s][i] = (int32_t)((i * 31 + s * 977) % vocab);
        chunks[s] = (tinker_chunk){ .tokens = tokens[s], .n_tokens = LENGTH };
        data[s] = (tinker_datum){ { &chunks[s], 1 }, in, 2 };
    }
    double times[3];
    for (int i = -1; i < 3; i++) {
        double t = one_step(e, a, data);
        if (i >= 0)
            times[i] = t;
    }
    qsort(times, 3, sizeof *times, ascending);
    struct step_flop f = training_flop(&e->model->config);
    double total = f.products + f.attention + f.lora;
    printf("training step: %d tokens in %.2f s [%.2f-%.2f], %.0f tokens/s, %.1f GFLOP/s = "
           "%.2f of the peak (bar 0.55)\n",
           SEQUENCES * LENGTH, times[1], times[0], times[2], SEQUENCES * LENGTH / times[1],
           total / times[1] / 1e9, total / times[1] / peak);
    fflush(stdout);
    tinker_adapter_free(a);
}

/* Seconds per step of `batch` sequences that decode. */
static double decode(tinker_engine *e, tinker_adapter *a, size_t batch, int steps)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    static const int32_t none[1];
    int32_t prompt[4];
    if (g == NULL)
        die("generator", &err);
    for (size_t i = 0; i < batch; i++) {
        tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
        p.max_tokens = steps + 10;
        p.has_seed = 1;
        p.stop_tokens = none;
        for (size_t k = 0; k < 4; k++)
            prompt[k] = (int32_t)(i * 5 + k);
        tinker_generate q = {
            .adapter = a, .prompt = prompt, .n_prompt = 4, .params = &p, .num_samples = 1
        };
        if (tinker_generator_add(g, &q, &err) != TINKER_OK)
            die("request", &err);
    }
    double times[64];
    for (int i = -3; i < steps; i++) {
        double start = wall();
        if (tinker_generator_step(g, &err) < 0)
            die("step", &err);
        if (i >= 0)
            times[i] = wall() - start;
    }
    tinker_generator_free(g);
    qsort(times, (size_t)steps, sizeof *times, ascending);
    return times[steps / 2];
}

static void decode_all(tinker_engine *e, double peak, double bandwidth)
{
    const struct model_config *c = &e->model->config;
    double weights = layer_weights(c) * (double)c->layers + (double)c->vocab * (double)c->hidden;
    double bytes = weights * (e->opts.dtype == TINKER_WEIGHTS_BF16 ? 2 : 4);
    double t = decode(e, NULL, 1, 15);
    printf("decode, batch 1: %.1f ms per token, %.1f GB/s = %.2f of the read bandwidth (bar 0.8)\n",
           t * 1e3, bytes / t / 1e9, bytes / t / bandwidth);
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (a == NULL)
        die("adapter", &err);
    double with = decode(e, a, 1, 15);
    printf("decode, batch 1, adapter of rank %d: %.1f ms per token, %.2f of the base's speed\n",
           RANK, with * 1e3, t / with);
    tinker_adapter_free(a);
    static const size_t batches[] = { 8, 64 };
    for (size_t i = 0; i < 2; i++) {
        t = decode(e, NULL, batches[i], 7);
        printf("decode, batch %zu: %.0f tokens/s, %.2f of the FMA peak\n", batches[i],
               (double)batches[i] / t, 2 * weights * (double)batches[i] / t / peak);
        fflush(stdout);
    }
}

static double all_threads_peak(struct threads *t)
{
    /* One core's peak times the threads: what products could reach without waiting. */
    return peak_f32().median * threads_count(t);
}

static double all_threads_bandwidth(struct threads *t)
{
    enum { BYTES = 512 << 20 };
    uint64_t *p = aligned_alloc(64, BYTES);
    if (p == NULL)
        return 0;
    memset(p, 1, BYTES);
    struct reading r = { p, BYTES / sizeof *p, t };
    double rate = measure(read_threads, &r, BYTES, CLOCK_MONOTONIC).median;
    free(p);
    return rate;
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/tinker-bench-XXXXXX";
    const char *model = argc > 1 ? argv[1] : mkdtemp(dir);
    tinker_error err = { 0 };
    if (model == NULL)
        return 1;
    if (argc < 2)
        write_model(model);
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    const char *dtype = getenv("TINKER_BENCH_DTYPE");
    if (dtype != NULL && strcmp(dtype, "bf16") == 0)
        o.dtype = TINKER_WEIGHTS_BF16;
    double start = wall();
    tinker_engine *e = tinker_engine_open(model, &o, &err);
    if (e == NULL)
        die("open", &err);
    double ready = wall() - start;
    double peak = all_threads_peak(e->threads), bandwidth = all_threads_bandwidth(e->threads);
    printf("kernels %s, %d threads: FMA peak %.1f GFLOP/s, read bandwidth %.1f GB/s\n",
           kernels_name(), threads_count(e->threads), peak / 1e9, bandwidth / 1e9);
    printf("ready in %.2f s (bar 2)\n", ready);
    fflush(stdout);
    train(e, peak);
    decode_all(e, peak, bandwidth);
    tinker_engine_close(e);
    if (argc < 2)
        os_remove_tree(model, NULL);
    return 0;
}
