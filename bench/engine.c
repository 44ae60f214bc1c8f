/* bench/engine [DIR]: training and decoding of a Qwen3-0.6B-shaped model, as shares of
 * what this machine can do, and beside PyTorch with PEFT and llama.cpp.
 *
 * The model has random weights (1.2 GB).  It is written to DIR unless it is there, or to
 * a temporary directory and removed at the end.  TINKER_BENCH_LAYERS makes it smaller,
 * TINKER_BENCH_EXPERTS=N gives it layers like those of Qwen3-30B-A3B with N experts,
 * TINKER_BENCH_DTYPE=f32|bf16 chooses how weights are held (else as `tinker serve` does),
 * TINKER_BENCH_STEPS counts the timed steps, TINKER_BENCH_LENGTH their tokens in each of four
 * sequences (256), TINKER_BENCH_TORCH the settings of PyTorch, "bf16 f32 bf16-compile f32-compile"
 * or some of them, TINKER_BENCH_PARTS=train,decode,peers chooses.
 * Training is counted as the multiply-adds that a LoRA step needs (forward, and backward to
 * the inputs, of every product; attention; the adapters), decoding as the bytes of weights
 * that a token reads.
 */
#include "ceilings.h"
#include "peer.h"
#include "products.h"
#include "ratio.h"

#include <signal.h>
#include <stddef.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/model/init_model.h"
#include "engine/model/model.h"
#include "engine/model/huge_pages.h"

enum { RANK = 32, SEQUENCES = 4, LENGTH_MAX = 512, STEPS_MAX = 16 };

static size_t length; /* of a sequence that is trained on */

static struct figure figure_of(double *rates, int n)
{
    qsort(rates, (size_t)n, sizeof *rates, ascending);
    return (struct figure){ rates[n / 2], rates[n / 10], rates[n - 1 - n / 10], 0 };
}

/* ---- the peak, in turns with the work -------------------------------------------------- */

static struct counter peak_work;

static void peak_slice(void *arg, size_t begin, size_t end)
{
    const struct side *s = arg;
    for (; begin < end; begin++) {
        uint64_t start = cpu_ns();
        s->f(s->arg);
        count(&peak_work, start, (size_t)s->amount);
    }
}

/* FLOP per second of one core as it is now, the mean of all threads; about 2 ms. */
static double peak_now(struct threads *t)
{
    enum { CALLS = 8 };
    struct side s = peak_side();
    if (s.f == NULL)
        return 0;
    counter_reset(&peak_work);
    threads_run(t, CALLS * (size_t)threads_count(t), 1, peak_slice, &s);
    return (double)peak_work.flop / (double)peak_work.ns * 1e9;
}

/* Work that took so many seconds, while the cores could have done so many FLOP. */
struct share {
    double seconds, flop, possible;
};

/* A step in parts, the peak measured before and after each: what neighbors do to the
 * machine changes within seconds and must meet both. */
struct meter {
    struct threads *threads;
    double peak, start; /* of one core at the last turn, and when that was over */
    struct share step, base, adapter;
};

static void share_add(struct share *s, struct counter *c, double peak)
{
    double seconds = (double)c->ns / 1e9;
    s->seconds += seconds;
    s->flop += (double)c->flop;
    s->possible += seconds * peak;
    counter_reset(c);
}

static void meter_start(struct meter *m, struct threads *t)
{
    *m = (struct meter){ .threads = t, .peak = peak_now(t) };
    counter_reset(&base_products);
    counter_reset(&adapter_products);
    m->start = now(CLOCK_MONOTONIC);
}

static void meter_turn(struct meter *m)
{
    double seconds = now(CLOCK_MONOTONIC) - m->start, after = peak_now(m->threads);
    double peak = (m->peak + after) / 2;
    m->step.seconds += seconds;
    m->step.possible += seconds * peak * threads_count(m->threads);
    share_add(&m->base, &base_products, peak);
    share_add(&m->adapter, &adapter_products, peak);
    m->peak = after;
    m->start = now(CLOCK_MONOTONIC);
}

/* ---- the others ------------------------------------------------------------------------ */

/* The peer has loaded the model and done its first turn when this returns 1. */
static int engine_peer(struct peer *p, const char *set, const char *dir, const char *dtype)
{
    double warm, none;
    if (!peer_open(p, set, "bench/engine_oracle.py", set, dir, dtype))
        return 0;
    if (peer_answer(p, &warm, &none) == 1)
        return 1;
    printf("%s: no figure\n", set);
    peer_close(p);
    return 0;
}

/* Seconds of one turn; 0 without a peer. */
static double peer_seconds(struct peer *p)
{
    double seconds = 0, none;
    return peer_turn(p, 1, &seconds, &none) == 1 ? seconds : 0;
}

/* ---- the model and the work ------------------------------------------------------------ */

static int part(const char *name)
{
    const char *parts = getenv("TINKER_BENCH_PARTS");
    return parts == NULL || strstr(parts, name) != NULL;
}

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
    const char *experts = getenv("TINKER_BENCH_EXPERTS");
    if (experts != NULL) {
        init_model_arch(&m, "qwen3_moe");
        m.config.experts = (size_t)strtoul(experts, NULL, 10);
        m.config.experts_used = 8;
        m.config.expert_size = 768;
        m.config.hidden = 2048;
        m.config.heads = 32;
        m.config.kv_heads = 4;
    }
    if (init_model_write(&m, dir, &err) != TINKER_OK)
        die("model", &err);
}

/* The linear layers of one layer that a token passes, as multiples of (out, in). */
static double layer_sum(const struct model_config *c, double (*f)(double out, double in))
{
    double sum = 0;
    for (int id = 0; id < (c->experts ? LINEAR_GATE : LINEARS); id++) {
        size_t out, in;
        model_linear_shape(c, (enum linear_id)id, &out, &in);
        sum += f((double)out, (double)in);
    }
    if (c->experts)
        sum +=
            EXPERT_LINEARS * (double)c->experts_used * f((double)c->expert_size, (double)c->hidden);
    return sum;
}

static double product_weights(double out, double in)
{
    return out * in;
}

static double pair_weights(double out, double in)
{
    return (out + in) * RANK;
}

/* Weights of the products of one layer, without the adapters'. */
static double layer_weights(const struct model_config *c)
{
    return layer_sum(c, product_weights) + (double)c->experts * (double)c->hidden;
}

static double lora_weights(const struct model_config *c)
{
    return pair_weights((double)c->vocab, (double)c->hidden) +
           layer_sum(c, pair_weights) * (double)c->layers;
}

struct step_flop {
    double products, attention, lora;
};

static struct step_flop training_flop(const struct model_config *c)
{
    double n = (double)length, rows = SEQUENCES * n;
    double weights = layer_weights(c) * (double)c->layers + (double)c->vocab * (double)c->hidden;
    double pairs = rows * (n + 1) / 2 * (double)c->heads;
    return (struct step_flop){
        .products = 2 * 2 * rows * weights,
        /* forward: 2 products; backward: the scores again and 4 more */
        .attention = 7 * 2 * pairs * (double)c->head_dim * (double)c->layers,
        .lora = 3 * 2 * rows * lora_weights(c),
    };
}

static struct meter one_step(tinker_engine *e, tinker_adapter *a, const tinker_datum *data)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    tinker_step_metrics metrics;
    struct meter m;
    meter_start(&m, e->threads);
    tinker_pass *p = tinker_pass_new(e, a, data, SEQUENCES, &loss, 0, &err);
    if (p == NULL)
        die("pass", &err);
    int more;
    while ((more = tinker_pass_step(p, &err)) > 0)
        meter_turn(&m);
    if (more < 0)
        die("pass", &err);
    tinker_pass_free(p);
    if (tinker_adapter_step(a, &adam, &metrics, &err) != TINKER_OK)
        die("step", &err);
    meter_turn(&m);
    struct step_flop f = training_flop(&e->model->config);
    m.step.flop = f.products + f.attention + f.lora;
    return m;
}

/* Shares of the peak of all steps, by their place in struct meter. */
static struct figure shares_of(const struct meter *steps, int n, size_t place)
{
    double values[STEPS_MAX];
    for (int i = 0; i < n; i++) {
        const struct share *s = (const void *)((const char *)&steps[i] + place);
        values[i] = s->flop / s->possible;
    }
    return figure_of(values, n);
}

static void report_products(const char *what, const struct meter *steps, int n, size_t place)
{
    struct figure f = shares_of(steps, n, place);
    const struct share *s = (const void *)((const char *)&steps[n / 2] + place);
    printf("  %s: %.1f GFLOP/s per thread = %.2f [%.2f-%.2f] of the FMA peak%s, %.2f CPU s per "
           "step\n",
           what, s->flop / s->seconds / 1e9, f.median, f.low, f.high,
           place == offsetof(struct meter, base) ? " (bar 0.75)" : "", s->seconds);
}

static void report_step(const struct meter *steps, int n)
{
    struct figure f = shares_of(steps, n, offsetof(struct meter, step));
    double times[STEPS_MAX], flop = steps[0].step.flop;
    for (int i = 0; i < n; i++)
        times[i] = steps[i].step.seconds;
    struct figure t = figure_of(times, n);
    printf("training step: %zu tokens in %.2f s [%.2f-%.2f], %.0f tokens/s, %.1f GFLOP/s = %.2f "
           "[%.2f-%.2f] of the peak in turns (bar 0.55)\n",
           SEQUENCES * length, t.median, t.low, t.high, (double)(SEQUENCES * length) / t.median,
           flop / t.median / 1e9, f.median, f.low, f.high);
    report_products("products with base weights", steps, n, offsetof(struct meter, base));
    report_products("products with adapters", steps, n, offsetof(struct meter, adapter));
    fflush(stdout);
}

static int steps_asked(const char *text)
{
    long n = strtol(text, NULL, 10);
    return n < 1 ? 1 : n > STEPS_MAX ? STEPS_MAX : (int)n;
}

/* The setting's name, its median step and how many times as fast ours is. */
static void report_peer(tinker_engine *e, const char *setting, double *theirs, double *ratios,
                        int n)
{
    bool fast = e->opts.dtype == TINKER_WEIGHTS_BF16;
    struct figure r = figure_of(ratios, n);
    double bar = fast ? 1.5 : 0.95;
    char name[96];
    snprintf(name, sizeof name, "training step 4 x %zu%s / PyTorch %s", length,
             fast ? ", --dtype bf16" : "", setting);
    keep_ratio("engine", name, r.median, r.low, r.high, bar);
    printf("PyTorch + PEFT %s, the same step in turns: %.2f s; ours is %.2f x as fast "
           "[%.2f-%.2f] (bar %g)\n",
           setting, figure_of(theirs, n).median, r.median, r.low, r.high, bar);
    fflush(stdout);
}

/* Steps here and, with peers, the same step there take turns, one setting of theirs after the
 * other. */
static void train(tinker_engine *e, const char *model, bool beside)
{
    static int32_t tokens[SEQUENCES][LENGTH_MAX];
    static int64_t targets[LENGTH_MAX];
    static float weights[LENGTH_MAX];
    tinker_chunk chunks[SEQUENCES];
    tinker_datum data[SEQUENCES];
    tinker_named_tensor in[2] = {
        { "target_tokens", { .dtype = TINKER_INT64, .data = targets, .n = length } },
        { "weights", { .dtype = TINKER_FLOAT32, .data = weights, .n = length } },
    };
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    size_t vocab = e->model->config.vocab;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (a == NULL)
        die("adapter", &err);
    for (size_t i = 0; i < length; i++) {
        targets[i] = (int64_t)(i * 7919 % vocab);
        weights[i] = 1;
    }
    for (size_t s = 0; s < SEQUENCES; s++) {
        for (size_t i = 0; i < length; i++)
            tokens[s][i] = (int32_t)((i * 31 + s * 977) % vocab);
        chunks[s] = (tinker_chunk){ .tokens = tokens[s], .n_tokens = length };
        data[s] = (tinker_datum){ .model_input = { &chunks[s], 1 }, .inputs = in, .n_inputs = 2 };
    }
    const char *asked = getenv("TINKER_BENCH_STEPS");
    int steps = asked ? steps_asked(asked) : 3;
    double theirs[STEPS_MAX], ratios[STEPS_MAX];
    struct meter ours[STEPS_MAX];
    const char *settings = getenv("TINKER_BENCH_TORCH");
    char list[96], *rest;
    snprintf(list, sizeof list, "%s", settings ? settings : "bf16 f32 bf16-compile f32-compile");
    one_step(e, a, data); /* memory, caches */
    for (char *s = strtok_r(list, " ", &rest); s; s = beside ? strtok_r(NULL, " ", &rest) : NULL) {
        struct peer peer = { 0 };
        if (beside && !engine_peer(&peer, "torch", model, s))
            continue;
        for (int i = 0; i < steps; i++) {
            ours[i] = one_step(e, a, data);
            theirs[i] = peer_seconds(&peer);
            ratios[i] = theirs[i] / ours[i].step.seconds;
        }
        report_step(ours, steps);
        if (beside)
            report_peer(e, s, theirs, ratios, steps);
        peer_close(&peer);
    }
    tinker_adapter_free(a);
}

enum { TOKENS = 31, TOKENS_MAX = 64, COUNTED = 5 }; /* COUNTED: steps whose products are timed */

/* What one step of `batch` decoding sequences took, and beside it the machine. */
struct decoding {
    double seconds;      /* of the median step */
    double low, high;    /* a tenth of the steps is faster, a tenth slower */
    double products;     /* share of the threads' time that is products with base weights */
    struct figure share; /* bytes read per second / read bandwidth, step by step */
    double bandwidth;    /* bytes per second, the median of the turns */
};

static void ask(tinker_generator *g, tinker_adapter *a, size_t batch, int steps)
{
    static const int32_t none[1];
    tinker_error err = { 0 };
    for (size_t i = 0; i < batch; i++) {
        int32_t prompt[4];
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
}

/* Steps and, with `side`, reads of memory alone take turns: what neighbors do to the
 * machine changes within seconds and must meet both. */
static struct decoding decode(tinker_engine *e, tinker_adapter *a, size_t batch, int steps,
                              double bytes, struct side *side)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    double times[TOKENS_MAX], shares[TOKENS_MAX], reads[TOKENS_MAX];
    if (g == NULL)
        die("generator", &err);
    ask(g, a, batch, steps);
    counting = 0;
    for (int i = -3; i < steps; i++) {
        double before = side ? rate_once(side, 1, CLOCK_MONOTONIC) : 0, start = wall();
        if (tinker_generator_step(g, &err) < 0)
            die("step", &err);
        double t = wall() - start;
        if (i < 0)
            continue;
        times[i] = t;
        reads[i] = side ? (before + rate_once(side, 1, CLOCK_MONOTONIC)) / 2 : 1;
        shares[i] = bytes / t / reads[i];
    }
    counting = 1;
    counter_reset(&base_products);
    double start = wall();
    for (int i = 0; i < COUNTED; i++)
        if (tinker_generator_step(g, &err) < 0)
            die("step", &err);
    double sum = wall() - start;
    tinker_generator_free(g);
    struct decoding d = { .share = figure_of(shares, steps) };
    struct figure f = figure_of(times, steps);
    d.seconds = f.median;
    d.low = f.low;
    d.high = f.high;
    d.bandwidth = figure_of(reads, steps).median;
    d.products = (double)base_products.ns / 1e9 / sum / threads_count(e->threads);
    return d;
}

/* A place to read from, as large as no cache is, in pages like those of the weights. */
static struct reading read_buffer(struct threads *t)
{
    enum { BYTES = 256 << 20 };
    uint64_t *p = aligned_alloc(64, BYTES);
    if (p == NULL) {
        fprintf(stderr, "bench/engine: no memory\n");
        exit(1);
    }
    memset(p, 1, BYTES);
    struct huge_pages *pages = huge_pages_start(p, BYTES);
    huge_pages_wait(pages);
    huge_pages_free(pages);
    return (struct reading){ p, BYTES / sizeof *p, t };
}

/* Tokens here and there, in turns. */
static void decode_beside(tinker_engine *e, struct peer *peer)
{
    enum { TURNS = 5 };
    double ours[TURNS], theirs[TURNS], ratios[TURNS];
    for (int i = 0; i < TURNS; i++) {
        ours[i] = decode(e, NULL, 1, 21, 0, NULL).seconds;
        theirs[i] = peer_seconds(peer);
        ratios[i] = theirs[i] / ours[i];
    }
    struct figure r = figure_of(ratios, TURNS);
    printf("llama.cpp, decode at batch 1 in turns, the same weights: %.1f ms per token, ours "
           "%.1f; ours is %.2f x as fast [%.2f-%.2f] (bar 1)\n",
           figure_of(theirs, TURNS).median * 1e3, figure_of(ours, TURNS).median * 1e3, r.median,
           r.low, r.high);
}

static void decode_all(tinker_engine *e)
{
    const struct model_config *c = &e->model->config;
    double weights = layer_weights(c) * (double)c->layers + (double)c->vocab * (double)c->hidden;
    double bytes = weights * (e->model->dtype == PACKED_F32 ? 4 : 2);
    struct reading r = read_buffer(e->threads);
    struct side reads = { read_threads, &r, (double)(r.n * sizeof *r.p) };
    struct decoding d = decode(e, NULL, 1, TOKENS, bytes, &reads);
    printf("decode, batch 1: %.1f ms per token [%.1f-%.1f], %.1f GB/s = %.2f [%.2f-%.2f] of the "
           "read bandwidth (bar 0.8)\n",
           d.seconds * 1e3, d.low * 1e3, d.high * 1e3, bytes / d.seconds / 1e9, d.share.median,
           d.share.low, d.share.high);
    printf("  read bandwidth in turns: %.1f GB/s; products take %.2f of the threads' time\n",
           d.bandwidth / 1e9, d.products);
    free((void *)(uintptr_t)r.p);
    double alone = d.seconds;
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (a == NULL)
        die("adapter", &err);
    double with = decode(e, a, 1, TOKENS / 2, bytes, NULL).seconds;
    printf("decode, batch 1, adapter of rank %d: %.1f ms per token, %.2f of the base's speed\n",
           RANK, with * 1e3, alone / with);
    tinker_adapter_free(a);
    static const size_t batches[] = { 8, 64 };
    for (size_t i = 0; i < 2; i++) {
        double before = peak_now(e->threads);
        d = decode(e, NULL, batches[i], 7, bytes, NULL);
        double peak = (before + peak_now(e->threads)) / 2 * threads_count(e->threads);
        printf("decode, batch %zu: %.0f tokens/s, %.2f of the FMA peak, %.1f GB/s\n", batches[i],
               (double)batches[i] / d.seconds, 2 * weights * (double)batches[i] / d.seconds / peak,
               bytes / d.seconds / 1e9);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/tinker-bench-XXXXXX";
    const char *model = argc > 1 ? argv[1] : mkdtemp(dir);
    tinker_error err = { 0 };
    if (model == NULL)
        return 1;
    char config[4096];
    snprintf(config, sizeof config, "%s/config.json", model);
    if (access(config, R_OK) != 0)
        write_model(model);
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    const char *dtype = getenv("TINKER_BENCH_DTYPE");
    o.dtype = dtype == NULL                ? TINKER_WEIGHTS_STORED
              : strcmp(dtype, "bf16") == 0 ? TINKER_WEIGHTS_BF16
                                           : TINKER_WEIGHTS_F32;
    double start = wall();
    tinker_engine *e = tinker_engine_open(model, &o, &err);
    if (e == NULL)
        die("open", &err);
    double ready = wall() - start;
    int threads = threads_count(e->threads);
    int half = e->model->dtype != PACKED_F32;
    printf("kernels %s, %d threads, weights in %s: FMA peak %.1f GFLOP/s\n", kernels_name(),
           threads, half ? "bf16" : "f32", peak_now(e->threads) * threads / 1e9);
    printf("ready in %.2f s (bar 2)", ready);
    fflush(stdout);
    huge_pages_wait(e->model->pages);
    printf(", in large pages after %.2f s\n", wall() - start);
    fflush(stdout);
    int beside = part("peers") && !e->model->config.experts;
    struct peer peer = { 0 };
    signal(SIGPIPE, SIG_IGN);
    const char *asked = getenv("TINKER_BENCH_LENGTH");
    length = asked ? (size_t)strtoul(asked, NULL, 10) : 256;
    length = length < 1 || length > LENGTH_MAX ? 256 : length;
    if (part("train"))
        train(e, model, beside);
    if (part("decode")) {
        decode_all(e);
        if (beside && engine_peer(&peer, "llama", model, half ? "bf16" : "f32"))
            decode_beside(e, &peer);
        peer_close(&peer);
    }
    tinker_engine_close(e);
    if (argc < 2)
        os_remove_tree(model, NULL);
    return 0;
}
