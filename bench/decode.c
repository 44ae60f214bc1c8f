/* bench/decode [DIR]: sampling from a Qwen3-0.6B-shaped model, beside llama.cpp and ik_llama.cpp in
 * the same format, and PyTorch in bf16.
 *
 * The model has random weights (1.2 GB).  It is written to DIR unless it is there, or to a temporary
 * directory and removed at the end; DIR keeps the peers' GGUF files, too.  For each format, steps of
 * 1, 16 and 64 sequences and prompts of 512 and 2,048 tokens here and there take turns; then what
 * several adapters in a batch cost.  TINKER_BENCH_FORMATS=q8-int8,q4-int8,q8,q4,bf16,stored chooses,
 * TINKER_BENCH_PEERS=ik,llama,torch, too ("" for none),
 * TINKER_BENCH_WORK=1,16,64,p512,p2048,adapters,drafts,growth,flight, TINKER_BENCH_THREADS=1
 * the number of ours (2), and TINKER_BENCH_PYTHON names a Python that has the packages of both llamas. */
#include "ceilings.h"
#include "peer.h"

#include <signal.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "base/array.h"
#include "base/os.h"
#include "engine/generate/generator.h"
#include "engine/model/huge_pages.h"
#include "engine/model/init_model.h"
#include "engine/model/model.h"

enum { TURNS = 5, STEPS = 8, RANK = 32, PEERS = 3 };

static const struct format {
    const char *name, *theirs; /* NULL: no peer computes it so */
    tinker_weights_dtype dtype;
} formats[] = {
    { "q8-int8", "q8", TINKER_WEIGHTS_Q8_INT8 }, { "q4-int8", "q4", TINKER_WEIGHTS_Q4_INT8 },
    { "q8", "q8", TINKER_WEIGHTS_Q8 },           { "q4", "q4", TINKER_WEIGHTS_Q4 },
    { "bf16", "bf16", TINKER_WEIGHTS_BF16 },     { "stored", "bf16", TINKER_WEIGHTS_STORED },
};

static void die(const char *what, const tinker_error *err)
{
    fprintf(stderr, "bench/decode: %s: %s\n", what, err->message);
    exit(1);
}

/* Is `name` one of the words of the variable, or of `otherwise` where it is not set? */
static int is_chosen(const char *variable, const char *otherwise, const char *name)
{
    const char *list = getenv(variable);
    size_t n = strlen(name);
    for (list = list ? list : otherwise; *list; list += *list == ',') {
        size_t word = strcspn(list, ",");
        if (word == n && strncmp(list, name, n) == 0)
            return 1;
        list += word;
    }
    return 0;
}

static void write_model(const char *dir)
{
    struct init_model m;
    tinker_error err = { 0 };
    init_model_defaults(&m);
    m.config.vocab = 151936;
    m.config.hidden = 1024;
    m.config.layers = 28;
    m.config.heads = 16;
    m.config.kv_heads = 8;
    m.config.head_dim = 128;
    m.config.intermediate = 3072;
    m.config.context = 16384;
    m.config.tied = true;
    m.dtype = SOURCE_BF16;
    if (init_model_write(&m, dir, &err) != TINKER_OK)
        die("model", &err);
}

static tinker_engine *open_model(const char *dir, tinker_weights_dtype dtype)
{
    tinker_error err = { 0 };
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    o.dtype = dtype;
    o.no_drafts = 1; /* a step is a token of each sequence */
    o.threads = getenv("TINKER_BENCH_THREADS") ? atoi(getenv("TINKER_BENCH_THREADS")) : 2;
    tinker_engine *e = tinker_engine_open(dir, &o, &err);
    if (e == NULL)
        die("open", &err);
    huge_pages_wait(e->model->pages);
    return e;
}

/* A request of n prompt tokens that no other request began with. */
static void add_request(tinker_generator *g, tinker_adapter *a, size_t n, int64_t max_tokens)
{
    static const int32_t none[1];
    size_t vocab = g->engine->model->config.vocab;
    static uint32_t first;
    tinker_error err = { 0 };
    int32_t *prompt = malloc(n * sizeof *prompt);
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    first++;
    for (size_t i = 0; i < n; i++)
        prompt[i] = (int32_t)((first * 977 + i * 31) % (vocab - 1));
    p.max_tokens = max_tokens;
    p.has_seed = 1;
    p.stop_tokens = none;
    tinker_generate q = {
        .adapter = a, .prompt = prompt, .n_prompt = n, .params = &p, .num_samples = 1
    };
    if (tinker_generator_add(g, &q, &err) != TINKER_OK)
        die("request", &err);
    free(prompt);
}

static void step(tinker_generator *g)
{
    tinker_error err = { 0 };
    if (tinker_generator_step(g, &err) < 0)
        die("step", &err);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, ascending);
    return values[n / 2];
}

/* Seconds of the median of some steps of `batch` sequences behind prompts of n tokens each; sequence
 * i has adapter i modulo n_adapters. */
static double decode(tinker_engine *e, tinker_adapter *const *adapters, size_t n_adapters,
                     size_t batch, size_t n)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    double times[STEPS];
    if (g == NULL)
        die("generator", &err);
    size_t filling = (batch * n + 127) / 128 + 2;
    for (size_t i = 0; i < batch; i++)
        add_request(g, n_adapters ? adapters[i % n_adapters] : NULL, n,
                    (int64_t)filling + STEPS + 2);
    for (size_t i = 0; i < filling; i++)
        step(g);
    for (size_t i = 0; i < STEPS; i++) {
        double start = now(CLOCK_MONOTONIC);
        step(g);
        times[i] = now(CLOCK_MONOTONIC) - start;
    }
    tinker_generator_free(g);
    return median(times, STEPS);
}

/* Seconds from a prompt of n tokens to its first token. */
static double process_prompt(tinker_engine *e, size_t n)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    if (g == NULL)
        die("generator", &err);
    add_request(g, NULL, n, 1);
    double start = now(CLOCK_MONOTONIC);
    while (tinker_generator_step(g, &err) > 0) {
    }
    double seconds = now(CLOCK_MONOTONIC) - start;
    tinker_generator_free(g);
    return seconds;
}

/* ---- beside the others ------------------------------------------------------------------ */

static const char *const peer_names[PEERS] = { "ik", "llama", "torch" };
/* where the packages of each are listed: tests/conformance/requirements-*.txt */
static const char *const peer_sets[PEERS] = { "llama-ik", "llama-llama", "torch" };
static const char peers_by_default[] = "ik,llama,torch";

static void open_peer(struct peer *p, size_t which, const char *dir, const char *format)
{
    double ready, none;
    char python[1024];
    const char *name = peer_names[which], *given = getenv("TINKER_BENCH_PYTHON");
    *p = (struct peer){ 0 };
    if (!is_chosen("TINKER_BENCH_PEERS", peers_by_default, name))
        return;
    if (given && strcmp(name, "torch") != 0)
        snprintf(python, sizeof python, "%s", given);
    else if (!peer_python(peer_sets[which], python, sizeof python))
        return;
    if (!peer_run(p, python, "bench/decode_oracle.py", name, dir, format))
        return;
    if (peer_answer(p, &ready, &none) != 1) {
        printf("# %s: no figure\n", name);
        peer_close(p);
    }
}

/* Some work: `prompt` tokens to process, or else a step of `batch`.  The peer is told the batch, or
 * minus the length. */
struct task {
    const char *name;
    size_t batch, prompt;
};

static double ours(tinker_engine *e, const struct task *w)
{
    return w->prompt ? process_prompt(e, w->prompt) : decode(e, NULL, 0, w->batch, 4);
}

static double theirs(struct peer *p, const struct task *w)
{
    double seconds = 0, none;
    int amount = w->prompt ? -(int)w->prompt : (int)w->batch;
    return peer_turn(p, amount, &seconds, &none) >= 1 ? seconds : 0;
}

static struct figure figure_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, ascending);
    return (struct figure){ values[n / 2], values[0], values[n - 1], 0 };
}

static void compare_task(tinker_engine *e, struct peer *peers, const char *format,
                         const struct task *w)
{
    double here[TURNS], there[PEERS][TURNS], ratios[PEERS][TURNS];
    double tokens = (double)(w->prompt ? w->prompt : w->batch);
    for (size_t i = 0; i < TURNS; i++) {
        here[i] = ours(e, w);
        for (size_t p = 0; p < PEERS; p++) {
            there[p][i] = peers[p].pid > 0 ? theirs(&peers[p], w) : 0;
            ratios[p][i] = there[p][i] / here[i];
        }
    }
    struct figure f = figure_of(here, TURNS);
    printf("%-8s %-6s %8.1f ms [%.1f-%.1f], %6.0f tokens/s", format, w->name, f.median * 1e3,
           f.low * 1e3, f.high * 1e3, tokens / f.median);
    for (size_t p = 0; p < PEERS; p++) {
        struct figure t = figure_of(there[p], TURNS), r = figure_of(ratios[p], TURNS);
        if (t.median > 0)
            printf("; %s %.1f ms, ours %.2f x [%.2f-%.2f]", peer_names[p], t.median * 1e3, r.median,
                   r.low, r.high);
    }
    printf("\n");
    fflush(stdout);
}

/* ---- adapters, and how costs grow --------------------------------------------------------- */

enum { ADAPTERS_MAX = 8 };

static void compare_adapters(tinker_engine *e, const char *format)
{
    static const size_t counts[] = { 1, 2, 4, 8 };
    tinker_adapter *adapters[ADAPTERS_MAX];
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    for (size_t i = 0; i < ADAPTERS_MAX; i++) {
        lora.has_seed = 1;
        lora.seed = (int64_t)i;
        adapters[i] = tinker_adapter_new(e, &lora, &err);
        if (adapters[i] == NULL)
            die("adapter", &err);
    }
    for (size_t batch = 8; batch <= 64; batch *= 8)
        for (size_t i = 0; i < ARRAY_LEN(counts) && counts[i] <= batch; i++) {
            double ratios[TURNS], bare[TURNS], ms[TURNS];
            for (size_t t = 0; t < TURNS; t++) {
                double one = decode(e, adapters, 1, batch, 4);
                ms[t] = decode(e, adapters, counts[i], batch, 4);
                bare[t] = ms[t] / decode(e, NULL, 0, batch, 4);
                ratios[t] = ms[t] / one;
            }
            struct figure r = figure_of(ratios, TURNS), b = figure_of(bare, TURNS);
            printf(
                "%-8s batch %zu, %zu adapters of rank %d: %.1f ms, %.2f of one [%.2f-%.2f], %.2f "
                "of none\n",
                format, batch, counts[i], RANK, median(ms, TURNS) * 1e3, r.median, r.low, r.high,
                b.median);
            fflush(stdout);
        }
    for (size_t i = 0; i < ADAPTERS_MAX; i++)
        tinker_adapter_free(adapters[i]);
}

/* ---- text that repeats itself ------------------------------------------------------------ */

enum { SCRIPT = 384, PASSAGE = 128, VOCAB = 151936 };

/* The text that a sample is held to: its mask leaves the next token alone. */
struct script {
    int32_t tokens[SCRIPT];
    size_t at;
    uint64_t mask[(VOCAB + 63) / 64];
};

static const uint64_t *only_next(size_t sample, void *state)
{
    struct script *s = state;
    (void)sample;
    memset(s->mask, 0, sizeof s->mask);
    s->mask[s->tokens[s->at] / 64] = (uint64_t)1 << s->tokens[s->at] % 64;
    return s->mask;
}

static int advance(size_t sample, int32_t token, float logprob, void *state)
{
    struct script *s = state;
    (void)sample;
    (void)token;
    (void)logprob;
    s->at++;
    return 0;
}

/* A passage again and again, one token in `edit` another one; 0: none is, 1: nothing repeats. */
static void write_script(struct script *s, size_t edit)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < SCRIPT; i++) {
        x = x * 1664525 + 1013904223;
        int32_t fresh = (int32_t)((x >> 8) % (VOCAB - 1));
        bool copies = i >= PASSAGE && (edit == 0 || (x >> 4) % edit != 0);
        s->tokens[i] = copies ? s->tokens[i - PASSAGE] : fresh;
    }
    s->at = PASSAGE;
}

/* Seconds a token of the text behind its first passage. */
static double follow_script(tinker_engine *e, struct script *s)
{
    tinker_error err = { 0 };
    tinker_generator *g = tinker_generator_new(e, &err);
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    if (g == NULL)
        die("generator", &err);
    p.max_tokens = SCRIPT - PASSAGE;
    p.has_seed = 1;
    p.stop_tokens = s->tokens; /* none */
    tinker_generate q = { .prompt = s->tokens,
                          .n_prompt = PASSAGE,
                          .params = &p,
                          .num_samples = 1,
                          .on_mask = only_next,
                          .on_token = advance,
                          .state = s };
    s->at = PASSAGE;
    if (tinker_generator_add(g, &q, &err) != TINKER_OK)
        die("request", &err);
    step(g); /* the prompt, and the first token */
    double start = now(CLOCK_MONOTONIC);
    while (tinker_generator_step(g, &err) > 0) {
    }
    double seconds = now(CLOCK_MONOTONIC) - start;
    tinker_generator_free(g);
    return seconds / (SCRIPT - PASSAGE - 1);
}

static void compare_drafts(tinker_engine *e, const char *format)
{
    static const size_t edits[] = { 1, 0, 32, 8, 3 };
    static struct script script;
    for (size_t i = 0; i < ARRAY_LEN(edits); i++) {
        double with[3], ratios[3];
        write_script(&script, edits[i]);
        for (size_t t = 0; t < ARRAY_LEN(ratios); t++) {
            double without = follow_script(e, &script);
            e->opts.no_drafts = 0;
            with[t] = follow_script(e, &script);
            e->opts.no_drafts = 1;
            ratios[t] = without / with[t];
        }
        struct figure f = figure_of(with, ARRAY_LEN(with)),
                      r = figure_of(ratios, ARRAY_LEN(ratios));
        printf(
            "%-8s drafts, one token in %zu differs: %.1f ms a token, %.2f x without [%.2f-%.2f]\n",
            format, edits[i], f.median * 1e3, r.median, r.low, r.high);
        fflush(stdout);
    }
}

static void show_flight(tinker_engine *e, const char *format)
{
    double seconds = 0;
    /* 16,384 in flight in a small model; a step of seconds says enough of a large one */
    for (size_t n = 1; n <= 16384 && seconds < 1; n *= 4) {
        seconds = decode(e, NULL, 0, n, 4);
        printf("%-8s %zu in flight: %.1f ms a step, %.0f tokens/s\n", format, n, seconds * 1e3,
               (double)n / seconds);
        fflush(stdout);
    }
}

static void show_growth(tinker_engine *e, const char *format)
{
    for (size_t n = 128; n <= 8192; n *= 2) {
        double prompt = process_prompt(e, n), token = decode(e, NULL, 0, 1, n);
        printf("%-8s %zu tokens: prompt %.2f s, %.0f tokens/s; %.1f ms a token behind it\n", format,
               n, prompt, (double)n / prompt, token * 1e3);
        fflush(stdout);
    }
}

static void run_format(const char *dir, const struct format *f)
{
    static const struct task tasks[] = {
        { "1", 1, 0 }, { "16", 16, 0 }, { "64", 64, 0 }, { "p512", 0, 512 }, { "p2048", 0, 2048 },
    };
    static const char all[] = "1,16,64,p512,p2048,adapters,drafts";
    tinker_engine *e = open_model(dir, f->dtype);
    struct peer peers[PEERS];
    for (size_t p = 0; p < PEERS; p++)
        open_peer(&peers[p], p, dir, f->theirs);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        if (is_chosen("TINKER_BENCH_WORK", all, tasks[i].name))
            compare_task(e, peers, f->name, &tasks[i]);
    for (size_t p = 0; p < PEERS; p++)
        peer_close(&peers[p]);
    if (is_chosen("TINKER_BENCH_WORK", all, "adapters"))
        compare_adapters(e, f->name);
    if (is_chosen("TINKER_BENCH_WORK", all, "drafts"))
        compare_drafts(e, f->name);
    if (is_chosen("TINKER_BENCH_WORK", all, "growth"))
        show_growth(e, f->name);
    if (is_chosen("TINKER_BENCH_WORK", all, "flight"))
        show_flight(e, f->name);
    tinker_engine_close(e);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/tinker-bench-XXXXXX", config[4096];
    const char *model = argc > 1 ? argv[1] : mkdtemp(dir);
    if (model == NULL)
        return 1;
    snprintf(config, sizeof config, "%s/config.json", model);
    if (access(config, R_OK) != 0)
        write_model(model);
    signal(SIGPIPE, SIG_IGN);
    printf("kernels %s\n", kernels_name());
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (is_chosen("TINKER_BENCH_FORMATS", "q8-int8,q4-int8,bf16", formats[i].name))
            run_format(model, &formats[i]);
    if (argc < 2)
        os_remove_tree(model, NULL);
    return 0;
}
