/* bench/shapes [DIR]: what training takes on models of the shapes that people have.
 *
 * Memory: one pass over a text and one optimizer step of an adapter of rank 32 on random weights, in a
 * process of its own, whose largest resident size is compared with the bar.  Then the step on a q4 base
 * beside the same step on bf16, in turns.  Models are GGUF files with random blocks of up to 5 GB, written
 * to DIR, unless they are there, or a temporary directory, and removed.  TINKER_BENCH_SHAPES chooses some of "0.6b,4b,8b,32k,step",
 * TINKER_BENCH_LAYERS makes all of them shallow: figures that only show that everything runs. */
#include "resident.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <tinker/engine.h>
#include <unistd.h>
#include "base/array.h"
#include "engine/gguf/gguf_model.h"
#include "engine/kernels/blocks.h"
#include "engine/model/init_model.h"
#include "engine/train/pass.h"

enum { RANK = 32, PATH = 4096, STEP_TOKENS = 512, STEPS = 5 };

struct shape {
    const char *name;
    size_t hidden, layers, heads, kv_heads, intermediate, tokens;
    bool tied;
    enum source_dtype dtype;
    double bar; /* GB */
};

/* Those of Qwen3-0.6B, 4B and 8B. */
static const struct shape shapes[] = {
    { "0.6b", 1024, 28, 16, 8, 3072, 4096, true, SOURCE_BF16, 4 },
    { "4b", 2560, 36, 32, 8, 9728, 512, true, SOURCE_Q4_0, 6 },
    { "8b", 4096, 36, 32, 8, 12288, 512, false, SOURCE_Q4_0, 10 },
    { "32k", 1024, 28, 16, 8, 3072, 32768, true, SOURCE_BF16, 11 },
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench/shapes: %s: %s\n", what, why);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool chosen(const char *name)
{
    const char *asked = getenv("TINKER_BENCH_SHAPES");
    /* half an hour on two cores: only when asked for */
    return asked ? strstr(asked, name) != NULL : strcmp(name, "32k") != 0;
}

/* ---- a file with random blocks ----------------------------------------------------------- */

struct writing {
    const struct gguf_family *family;
    enum source_dtype dtype;
    struct gguf_writer w;
    uint64_t random; /* the state of xorshift */
    struct {
        size_t rows, cols;
        enum source_dtype dtype;
    } tensors[512];
    size_t n;
    uint8_t *bytes;
    size_t capacity;
};

/* A visitor of model_tensors(). */
static tinker_status plan_tensor(void *state, const struct tensor_place *at, tinker_error *err)
{
    struct writing *w = state;
    char name[128];
    int64_t expert;
    uint64_t dim[2] = { at->cols, at->rows };
    bool head = at->kind == TENSOR_EMBED || at->kind == TENSOR_HEAD;
    enum source_dtype dtype = !at->rows                         ? SOURCE_F32
                              : head && w->dtype == SOURCE_Q4_0 ? SOURCE_Q6_K
                                                                : w->dtype;
    (void)err;
    if (w->n == ARRAY_LEN(w->tensors) || !gguf_tensor_name(w->family, at->name, name, &expert))
        die("model", at->name);
    gguf_put_tensor(&w->w, name, gguf_type_of(dtype), at->rows ? 2 : 1, dim);
    w->tensors[w->n].rows = at->rows ? at->rows : 1;
    w->tensors[w->n].cols = at->cols;
    w->tensors[w->n++].dtype = dtype;
    return TINKER_OK;
}

/* See gguf_fetch: any codes, and scales for numbers of the size 1 / sqrt(inputs); norms of 1. */
static const void *fetch_random(void *state, size_t index, tinker_error *err)
{
    struct writing *w = state;
    size_t rows = w->tensors[index].rows, cols = w->tensors[index].cols;
    enum source_dtype dtype = w->tensors[index].dtype;
    size_t n = source_bytes(dtype, rows * cols), block = source_bytes(dtype, source_block(dtype));
    float size = 1 / sqrtf((float)cols);
    (void)err;
    if (n > w->capacity) {
        free(w->bytes);
        w->bytes = malloc(n + sizeof(uint64_t));
        w->capacity = n;
    }
    if (!w->bytes)
        die("model", "no memory");
    for (size_t i = 0; dtype != SOURCE_F32 && i < n; i += sizeof(uint64_t)) {
        w->random ^= w->random << 13;
        w->random ^= w->random >> 7;
        w->random ^= w->random << 17;
        memcpy(w->bytes + i, &w->random, sizeof(w->random));
    }
    for (size_t i = 0; i < rows * cols && dtype == SOURCE_F32; i++)
        ((float *)(void *)w->bytes)[i] = 1;
    for (size_t i = 0; i < rows * cols && dtype == SOURCE_BF16; i++) {
        uint16_t *h = (uint16_t *)(void *)w->bytes + i; /* signs and fractions stay */
        *h = (uint16_t)((*h & 0x807f) | (bf16_from_f32(size) & 0x7f80));
    }
    uint16_t scale = f16_from_f32(dtype == SOURCE_Q4_0 ? size / 5 : size / (70 * 18));
    for (size_t i = 0; source_block(dtype) > 1 && i < n; i += block) /* Q6_K has it at the end */
        memcpy(w->bytes + i + (dtype == SOURCE_Q4_0 ? 0 : block - sizeof(scale)), &scale,
               sizeof(scale));
    return w->bytes;
}

static struct model_config shape_config(const struct shape *s)
{
    struct init_model o;
    const char *layers = getenv("TINKER_BENCH_LAYERS");
    init_model_defaults(&o);
    o.config.vocab = 151936;
    o.config.hidden = s->hidden;
    o.config.layers = layers ? (size_t)strtoul(layers, NULL, 10) : s->layers;
    o.config.heads = s->heads;
    o.config.kv_heads = s->kv_heads;
    o.config.head_dim = 128;
    o.config.intermediate = s->intermediate;
    o.config.tied = s->tied;
    return o.config;
}

static void write_shape(const struct shape *s, enum source_dtype dtype, const char *path)
{
    static struct writing w;
    const struct model_config c = shape_config(s);
    const struct {
        const char *key;
        size_t value;
    } sizes[] = { { "qwen3.context_length", 40960 },
                  { "qwen3.embedding_length", c.hidden },
                  { "qwen3.block_count", c.layers },
                  { "qwen3.feed_forward_length", c.intermediate },
                  { "qwen3.attention.head_count", c.heads },
                  { "qwen3.attention.head_count_kv", c.kv_heads },
                  { "qwen3.attention.key_length", c.head_dim } };
    tinker_error err = { 0 };
    w = (struct writing){ .family = gguf_family_by_type("qwen3"),
                          .dtype = dtype,
                          .random = 88172645463325252 };
    gguf_writer_init(&w.w);
    gguf_put_string(&w.w, "general.architecture", "qwen3", 5);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        gguf_put_u32(&w.w, sizes[i].key, (uint32_t)sizes[i].value);
    gguf_put_f32(&w.w, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_put_f32(&w.w, "qwen3.rope.freq_base", 1e6f);
    if (model_tensors(&c, plan_tensor, &w, &err) != TINKER_OK ||
        gguf_write(&w.w, path, fetch_random, &w, &err) != TINKER_OK)
        die(path, err.message);
    gguf_writer_clear(&w.w);
    free(w.bytes);
}

/* ---- training ------------------------------------------------------------------------------ */

struct text {
    int32_t *tokens;
    int64_t *targets;
    float *weights;
    tinker_chunk chunk;
    tinker_named_tensor in[2];
    tinker_datum datum;
};

static void make_text(struct text *t, size_t n)
{
    t->tokens = malloc(n * sizeof(*t->tokens));
    t->targets = malloc(n * sizeof(*t->targets));
    t->weights = malloc(n * sizeof(*t->weights));
    if (!t->tokens || !t->targets || !t->weights)
        die("text", "no memory");
    for (size_t i = 0; i < n; i++) {
        t->tokens[i] = (int32_t)(i * 31 % 151936);
        t->targets[i] = (int64_t)(i * 7919 % 151936);
        t->weights[i] = 1;
    }
    t->chunk = (tinker_chunk){ .tokens = t->tokens, .n_tokens = n };
    t->in[0] = (tinker_named_tensor){ "target_tokens",
                                      { .dtype = TINKER_INT64, .data = t->targets, .n = n } };
    t->in[1] =
        (tinker_named_tensor){ "weights", { .dtype = TINKER_FLOAT32, .data = t->weights, .n = n } };
    t->datum = (tinker_datum){ .model_input = { &t->chunk, 1 }, .inputs = t->in, .n_inputs = 2 };
}

static tinker_adapter *open_adapter(tinker_engine *e)
{
    tinker_error err = { 0 };
    tinker_lora lora = TINKER_LORA_INIT;
    lora.rank = RANK;
    tinker_adapter *a = tinker_adapter_new(e, &lora, &err);
    if (!a)
        die("adapter", err.message);
    return a;
}

static tinker_engine *open_shape(const char *path)
{
    tinker_error err = { 0 };
    tinker_engine_options opts = TINKER_ENGINE_OPTIONS_INIT;
    opts.dtype = TINKER_WEIGHTS_STORED;
    tinker_engine *e = tinker_engine_open(path, &opts, &err);
    if (!e)
        die(path, err.message);
    return e;
}

/* Seconds of a pass and a step; whether layers were computed again. */
static double train_once(tinker_engine *e, tinker_adapter *a, const struct text *t, bool *again)
{
    tinker_error err = { 0 };
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_adam adam = TINKER_ADAM_INIT;
    double start = now();
    tinker_pass *p = tinker_pass_new(e, a, &t->datum, 1, &loss, 0, &err);
    if (!p)
        die("pass", err.message);
    *again = p->recompute;
    int more;
    while ((more = tinker_pass_step(p, &err)) > 0)
        ;
    tinker_pass_free(p);
    if (more < 0 || tinker_adapter_step(a, &adam, NULL, &err) != TINKER_OK)
        die("step", err.message);
    return now() - start;
}

/* In a process of its own. */
static void measure_shape(const struct shape *s, const char *path)
{
    struct text t;
    bool again;
    make_text(&t, s->tokens);
    tinker_engine *e = open_shape(path);
    double loaded = resident_peak();
    tinker_adapter *a = open_adapter(e);
    /* what is left of the bar, less what the step takes beside the pass */
    double left = s->bar * 1e9 - resident() - 12.0 * (double)a->params.total - 1e8;
    tinker_engine_limit_memory(e, left > 0 ? (uint64_t)left : 1);
    double seconds = train_once(e, a, &t, &again), peak = resident_peak();
    printf(
        "%s in %s, %zu tokens, rank %d: peak %.2f GB (bar %.0f), %.2f loaded; layers %s; %.1f s\n",
        s->name, source_name(s->dtype), s->tokens, RANK, peak / 1e9, s->bar, loaded / 1e9,
        again ? "computed again" : "kept", seconds);
    fflush(stdout);
    _exit(0);
}

static void wait_for(pid_t pid)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die("process", "failed");
}

static void run_shape(const struct shape *s, const char *dir)
{
    char path[PATH];
    snprintf(path, sizeof(path), "%s/%s.gguf", dir, s->name);
    bool there = access(path, R_OK) == 0;
    pid_t pid = there ? 0 : fork();
    if (pid == 0 && !there) {
        write_shape(s, s->dtype, path);
        _exit(0);
    }
    if (!there)
        wait_for(pid);
    pid = fork();
    if (pid == 0)
        measure_shape(s, path);
    wait_for(pid);
    if (!there)
        unlink(path);
}

/* The same steps on both bases in turns: ratios of neighbors. */
static void compare_steps(const char *dir)
{
    static const enum source_dtype dtypes[2] = { SOURCE_BF16, SOURCE_Q4_0 };
    char path[2][PATH];
    struct text t;
    tinker_engine *e[2];
    tinker_adapter *a[2];
    double seconds[2][STEPS], ratio[STEPS];
    bool again;
    make_text(&t, STEP_TOKENS);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], PATH, "%s/step-%d.gguf", dir, i);
        write_shape(&shapes[0], dtypes[i], path[i]);
        e[i] = open_shape(path[i]);
        a[i] = open_adapter(e[i]);
        train_once(e[i], a[i], &t, &again); /* memory, caches */
    }
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < 2; i++)
            seconds[i][k] = train_once(e[i], a[i], &t, &again);
        ratio[k] = seconds[1][k] / seconds[0][k];
    }
    for (int i = 0; i < 2; i++)
        qsort(seconds[i], STEPS, sizeof(double), ascending);
    qsort(ratio, STEPS, sizeof(double), ascending);
    printf("step of %d tokens on 0.6b: bf16 %.2f s, q4_0 %.2f s, in turns %.2f x [%.2f-%.2f] (bar "
           "1.3)\n",
           STEP_TOKENS, seconds[0][STEPS / 2], seconds[1][STEPS / 2], ratio[STEPS / 2], ratio[0],
           ratio[STEPS - 1]);
    for (int i = 0; i < 2; i++) {
        tinker_adapter_free(a[i]);
        tinker_engine_close(e[i]);
        unlink(path[i]);
    }
}

int main(int argc, char **argv)
{
    char made[] = "/tmp/tinker-shapes-XXXXXX";
    const char *dir = argc > 1 ? argv[1] : mkdtemp(made);
    if (!dir)
        die("directory", "cannot be made");
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (chosen(shapes[i].name))
            run_shape(&shapes[i], dir);
    if (chosen("step"))
        compare_steps(dir);
    if (argc < 2)
        rmdir(dir);
    return 0;
}
