/* pretrain.c - train all parameters of a model from token files, with the engine alone.
 *
 *     pretrain --model INIT_DIR --data train.bin --valid valid.bin --out DIR
 *              [--steps N] [--batch N] [--length N] [--lr X] [--warmup N] [--seed N] [--threads N]
 *              [--stop N] [--state DIR] [--resume DIR] [--separator ID] [--weights train.weights]
 *
 * Token files hold uint16 ids.  Each step takes `batch` windows of `length` tokens at random
 * places (with --separator, at the next document: right after that id) and one AdamW step on the
 * mean loss, weighted by a byte a token with --weights (so that answers count more than
 * questions); the rate warms up and falls as a cosine to a tenth.  --stop ends the run early on the
 * same schedule, --state keeps weights and optimizer, --resume starts from them.  This is how the bundled model was made: see models/tiny/README.md. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tinker/engine.h>

#include "base/os.h"
#include "base/rand.h"

struct tokens {
    uint16_t *ids;
    uint8_t *weights; /* or NULL */
    size_t n;
};

struct settings {
    const char *model, *data, *valid, *out, *state, *resume, *weights;
    long steps, stop, batch, length, warmup, seed, threads, separator;
    double lr;
};

/* One batch in the engine's form. */
struct batch {
    size_t n, length;
    int32_t *inputs;
    int64_t *targets;
    float *weights;
    tinker_chunk *chunks;
    tinker_named_tensor *tensors;
    tinker_datum *data;
};

static void die(const char *what, const tinker_error *err)
{
    fprintf(stderr, "pretrain: %s%s%s\n", what, err ? ": " : "", err ? err->message : "");
    exit(1);
}

static void *get(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (!p)
        die("out of memory", NULL);
    return p;
}

static struct tokens read_tokens(const char *path)
{
    struct tokens t = { 0 };
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0)
        die(path, NULL);
    long bytes = ftell(f);
    rewind(f);
    if (bytes < 4)
        die("token file is empty", NULL);
    t.n = (size_t)bytes / 2;
    t.ids = get(t.n, 2);
    if (fread(t.ids, 2, t.n, f) != t.n)
        die(path, NULL);
    fclose(f);
    return t;
}

static uint8_t *read_weights(const char *path, size_t n)
{
    uint8_t *weights = get(n, 1);
    FILE *f = fopen(path, "rb");
    if (!f || fread(weights, 1, n, f) != n)
        die(path, NULL);
    fclose(f);
    return weights;
}

static struct batch batch_new(size_t n, size_t length)
{
    struct batch b = { .n = n, .length = length };
    b.inputs = get(n * length, sizeof *b.inputs);
    b.targets = get(n * length, sizeof *b.targets);
    b.weights = get(n * length, sizeof *b.weights);
    b.chunks = get(n, sizeof *b.chunks);
    b.tensors = get(2 * n, sizeof *b.tensors);
    b.data = get(n, sizeof *b.data);
    for (size_t i = 0; i < n; i++) {
        tinker_named_tensor *t = b.tensors + 2 * i;
        b.chunks[i] = (tinker_chunk){ .tokens = b.inputs + i * length, .n_tokens = length };
        t[0] = (tinker_named_tensor){
            "target_tokens", { .dtype = TINKER_INT64, .data = b.targets + i * length, .n = length }
        };
        t[1] = (tinker_named_tensor){
            "weights", { .dtype = TINKER_FLOAT32, .data = b.weights + i * length, .n = length }
        };
        b.data[i] =
            (tinker_datum){ .model_input = { b.chunks + i, 1 }, .inputs = t, .n_inputs = 2 };
    }
    return b;
}

static void batch_free(struct batch *b)
{
    free(b->inputs), free(b->targets), free(b->weights), free(b->chunks), free(b->tensors),
        free(b->data);
}

static void batch_window(struct batch *b, size_t row, const struct tokens *t, size_t at)
{
    for (size_t i = 0; i < b->length; i++) {
        b->inputs[row * b->length + i] = t->ids[at + i];
        b->targets[row * b->length + i] = t->ids[at + i + 1];
        b->weights[row * b->length + i] = t->weights ? (float)t->weights[at + i + 1] : 1.0f;
    }
}

/* So that the sum of the loss is its mean. */
static void batch_scale(struct batch *b)
{
    double sum = 0;
    for (size_t i = 0; i < b->n * b->length; i++)
        sum += (double)b->weights[i];
    for (size_t i = 0; i < b->n * b->length; i++)
        b->weights[i] = (float)((double)b->weights[i] / fmax(sum, 1));
}

/* A random place for a window; a chat model should often see a document from its beginning. */
static size_t random_place(struct rng *rng, const struct tokens *t, size_t length, long separator)
{
    size_t last = t->n - length - 1, at = rng_next(rng) % last;
    for (size_t i = at; separator >= 0 && i < last; i++) {
        if (t->ids[i] == separator)
            return i + 1;
    }
    return at;
}

static double run_pass(tinker_engine *e, tinker_adapter *a, const struct batch *b, int forward_only)
{
    tinker_error err;
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_pass *p = tinker_pass_new(e, a, b->data, b->n, &loss, forward_only, &err);
    if (!p)
        die("pass", &err);
    int more;
    while ((more = tinker_pass_step(p, &err)) > 0) {
    }
    if (more < 0)
        die("pass", &err);
    const tinker_forward_backward *r = tinker_pass_result(p);
    double value = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    tinker_pass_free(p);
    return value;
}

static double validate(tinker_engine *e, tinker_adapter *a, const struct tokens *valid,
                       struct batch *b)
{
    size_t stride = (valid->n - b->length - 1) / b->n;
    for (size_t i = 0; i < b->n; i++)
        batch_window(b, i, valid, i * stride);
    batch_scale(b);
    return run_pass(e, a, b, 1);
}

static double rate(const struct settings *s, long step)
{
    if (step < s->warmup)
        return s->lr * (double)(step + 1) / (double)s->warmup;
    double x = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    return s->lr * (0.1 + 0.45 * (1.0 + cos(3.141592653589793 * x)));
}

static void save(const tinker_adapter *a, const struct settings *s)
{
    tinker_error err;
    if (tinker_adapter_export(a, s->out, &err) != TINKER_OK)
        die(s->out, &err);
    if (s->state && os_make_dirs(s->state, &err) != TINKER_OK)
        die(s->state, &err);
    if (s->state &&
        tinker_adapter_save(a, s->state, "pretrain", TINKER_ADAPTER_OPTIMIZER, &err) != TINKER_OK)
        die(s->state, &err);
}

static void train(tinker_engine *e, tinker_adapter *a, const struct settings *s)
{
    struct tokens data = read_tokens(s->data), valid = read_tokens(s->valid);
    if (s->weights)
        data.weights = read_weights(s->weights, data.n);
    struct batch b = batch_new((size_t)s->batch, (size_t)s->length);
    if (data.n < b.length + 2 || valid.n < b.length + 2)
        die("token file is shorter than one window", NULL);
    struct rng rng;
    rng_seed(&rng, (uint64_t)s->seed);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    long last = s->stop > 0 && s->stop < s->steps ? s->stop : s->steps;
    for (long step = 0; step < last; step++) {
        for (size_t i = 0; i < b.n; i++)
            batch_window(&b, i, &data, random_place(&rng, &data, b.length, s->separator));
        batch_scale(&b);
        double loss = run_pass(e, a, &b, 0);
        tinker_adam adam = TINKER_ADAM_INIT;
        adam.learning_rate = rate(s, step);
        adam.weight_decay = 0.1;
        adam.grad_clip_norm = 1.0;
        adam.eps = 1e-8;
        tinker_error err;
        tinker_step_metrics m;
        if (tinker_adapter_step(a, &adam, &m, &err) != TINKER_OK)
            die("step", &err);
        if (step % 20 == 0 || step == last - 1) {
            clock_gettime(CLOCK_MONOTONIC, &t1);
            double seconds =
                (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
            fprintf(stderr, "step %ld/%ld loss %.4f grad_norm %.3f lr %.2e %.0f tokens/s\n", step,
                    s->steps, loss, m.grad_norm, m.learning_rate,
                    (double)((step + 1) * s->batch * s->length) / seconds);
        }
        if (step % 200 == 199 || step == last - 1) {
            fprintf(stderr, "step %ld valid %.4f\n", step, validate(e, a, &valid, &b));
            save(a, s);
        }
    }
    batch_free(&b);
    free(data.ids), free(data.weights), free(valid.ids);
}

int main(int argc, char **argv)
{
    struct settings s = { .steps = 1500,
                          .batch = 32,
                          .length = 256,
                          .warmup = 50,
                          .seed = 1,
                          .separator = -1,
                          .lr = 3e-3 };
    struct {
        const char *name;
        const char **text;
        long *number;
    } options[] = {
        { "--model", &s.model, NULL },         { "--data", &s.data, NULL },
        { "--valid", &s.valid, NULL },         { "--out", &s.out, NULL },
        { "--steps", NULL, &s.steps },         { "--batch", NULL, &s.batch },
        { "--length", NULL, &s.length },       { "--warmup", NULL, &s.warmup },
        { "--seed", NULL, &s.seed },           { "--threads", NULL, &s.threads },
        { "--stop", NULL, &s.stop },           { "--state", &s.state, NULL },
        { "--resume", &s.resume, NULL },       { "--weights", &s.weights, NULL },
        { "--separator", NULL, &s.separator },
    };
    for (int i = 1; i < argc; i += 2) {
        bool known = strcmp(argv[i], "--lr") == 0 && i + 1 < argc;
        if (known)
            s.lr = strtod(argv[i + 1], NULL);
        for (size_t k = 0; k < sizeof options / sizeof *options && i + 1 < argc; k++) {
            if (strcmp(argv[i], options[k].name) != 0)
                continue;
            known = true;
            if (options[k].text)
                *options[k].text = argv[i + 1];
            else
                *options[k].number = strtol(argv[i + 1], NULL, 10);
        }
        if (!known) {
            fprintf(stderr, "pretrain: unknown option or missing value: %s\n", argv[i]);
            return 2;
        }
    }
    if (!s.model || !s.data || !s.valid || !s.out || s.steps < 1 || s.batch < 1 || s.length < 1)
        die("needs --model DIR --data FILE --valid FILE --out DIR", NULL);
    tinker_error err;
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.threads = (int)s.threads;
    tinker_engine *e = tinker_engine_open(s.model, &opts, &err);
    if (!e)
        die(s.model, &err);
    tinker_lora all = TINKER_LORA_INIT;
    all.rank = 0; /* every parameter */
    tinker_adapter *a = s.resume ? tinker_adapter_load(e, s.resume, TINKER_ADAPTER_OPTIMIZER, &err)
                                 : tinker_adapter_new(e, &all, &err);
    if (!a)
        die("adapter", &err);
    train(e, a, &s);
    tinker_adapter_free(a);
    tinker_engine_close(e);
    return 0;
}
