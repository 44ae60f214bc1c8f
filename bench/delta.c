/* bench/delta: a layer of the gated delta rule forward and backward, beside the torch code of
 * transformers.
 *
 * The layer is that of Qwen3.5-0.8B (16 heads of 128) on one text, with an adapter of rank 32 on its
 * linears: first the whole layer, then one with 64 inputs and outputs, where almost nothing but the
 * rule, the convolution and the norms is left.  The peer runs the module of transformers without the
 * packages of its fast path, under PEFT, with the same number of threads, in the types of
 * TINKER_BENCH_TORCH ("f32" or "f32 bf16").  Both sides take turns.  TINKER_BENCH_TOKENS (1,024). */
#include "ceilings.h"
#include "peer.h"
#include "ratio.h"

#include <tinker/engine.h>
#include <unistd.h>
#include "base/os.h"
#include "engine/layers/block.h"
#include "engine/model/adapter.h"
#include "engine/model/init_model.h"
#include "engine/threads.h"
#include "engine/train/forward.h"

enum { RANK = 32, TURNS = 7, SMALL = 64, WHOLE = 1024 };

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench/delta: %s: %s\n", what, why);
    exit(1);
}

static void write_model(const char *dir, size_t hidden)
{
    struct init_model m;
    tinker_error err = { 0 };
    init_model_defaults(&m);
    if (!init_model_arch(&m, "qwen3_5_text"))
        die("model", "no such architecture");
    m.config.layers = 2; /* the second has attention */
    m.config.hidden = hidden;
    m.config.delta_k_heads = m.config.delta_v_heads = 16;
    m.config.delta_k_dim = m.config.delta_v_dim = 128;
    if (init_model_write(&m, dir, &err) != TINKER_OK)
        die("model", err.message);
}

/* One layer on one text, with all the memory that it needs. */
struct work {
    tinker_engine *e;
    tinker_adapter *adapter;
    struct segment segment;
    struct batch batch;
    uint32_t *segment_of;
    struct block block;
    struct acts acts;
    struct back back;
    struct grads grads;
    float *x, *y, *dy, *dx;
};

static void *take(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p)
        die("layer", "no memory");
    return p;
}

static float *numbers(size_t n)
{
    float *p = take(n, sizeof(*p));
    for (size_t i = 0; i < n; i++)
        p[i] = (float)((i * 2654435761u >> 8 & 0xffff) / 65536.0 - 0.5);
    return p;
}

static void open_work(struct work *w, const char *dir, tinker_weights_dtype dtype, size_t n)
{
    tinker_error err = { 0 };
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    tinker_lora lora = TINKER_LORA_INIT;
    o.dtype = dtype;
    o.threads = 2;
    lora.rank = RANK;
    *w = (struct work){ .e = tinker_engine_open(dir, &o, &err) };
    w->adapter = w->e ? tinker_adapter_new(w->e, &lora, &err) : NULL;
    if (!w->adapter)
        die(dir, err.message);
    const struct model_config *c = &w->e->model->config;
    const struct acts_size size = { .rows = n, .rank = RANK, .chunks = delta_chunks(n) };
    w->segment = (struct segment){ .n = n, .lora = adapter_lora(w->adapter) };
    w->batch = (struct batch){ .n = n, .segments = &w->segment, .n_segments = 1 };
    w->segment_of = take(n, sizeof(*w->segment_of));
    w->block = (struct block){ .model = w->e->model,
                               .threads = w->e->threads,
                               .batch = &w->batch,
                               .segment_of = w->segment_of,
                               .rank = RANK };
    acts_init(&w->acts, c, 0, &size, take(acts_floats(c, 0, &size), sizeof(float)));
    back_init(&w->back, c, n, RANK, take(back_floats(c, n, RANK), sizeof(float)));
    w->grads = (struct grads){ .params = &w->adapter->params,
                               .lora = adapter_lora(w->adapter),
                               .w = w->adapter->w,
                               .g = take(w->adapter->params.total, sizeof(float)) };
    w->x = numbers(n * c->hidden);
    w->y = numbers(n * c->hidden);
    w->dy = numbers(n * c->hidden);
    w->dx = numbers(n * c->hidden);
}

static double ours(struct work *w)
{
    double start = now(CLOCK_MONOTONIC);
    delta_forward(&w->block, 0, w->x, &w->acts, w->y);
    double middle = now(CLOCK_MONOTONIC);
    delta_backward(&w->block, 0, w->x, &w->acts, w->dy, w->dx, &w->grads, &w->back);
    double end = now(CLOCK_MONOTONIC);
    if (getenv("TINKER_BENCH_VERBOSE"))
        printf("# forward %.1f ms, backward %.1f ms\n", (middle - start) * 1e3,
               (end - middle) * 1e3);
    return end - start;
}

static void compare_layer(const char *dir, size_t hidden, const char *dtype, size_t tokens)
{
    struct work w;
    struct peer torch;
    double mine[TURNS], theirs[TURNS], ratio[TURNS], none;
    char where[64], what[128];
    bool f32 = strcmp(dtype, "f32") == 0;
    write_model(dir, hidden);
    open_work(&w, dir, f32 ? TINKER_WEIGHTS_F32 : TINKER_WEIGHTS_BF16, tokens);
    snprintf(where, sizeof where, "%zu", hidden);
    ours(&w);
    torch = (struct peer){ 0 };
    bool peer = !getenv("TINKER_BENCH_ALONE") &&
                peer_open(&torch, "torch", "bench/delta_oracle.py", where, dtype, NULL) &&
                peer_answer(&torch, &none, &none) == 1;
    for (int i = 0; i < TURNS; i++) {
        mine[i] = ours(&w);
        theirs[i] = 0;
        if (peer && peer_turn(&torch, 1, &theirs[i], &none) != 1)
            peer = false;
        ratio[i] = theirs[i] / mine[i];
        if (getenv("TINKER_BENCH_VERBOSE"))
            printf("# %.1f ms\n", mine[i] * 1e3);
    }
    peer_close(&torch);
    qsort(mine, TURNS, sizeof *mine, ascending);
    qsort(theirs, TURNS, sizeof *theirs, ascending);
    qsort(ratio, TURNS, sizeof *ratio, ascending);
    snprintf(what, sizeof what, "delta layer of %zu inputs, %zu tokens, %s", hidden, tokens, dtype);
    printf("%s: %.1f ms [%.1f-%.1f]", what, mine[TURNS / 2] * 1e3, mine[0] * 1e3,
           mine[TURNS - 1] * 1e3);
    if (peer) {
        printf("; torch %.1f ms [%.1f-%.1f], in turns %.2f x [%.2f-%.2f] (bar 3)",
               theirs[TURNS / 2] * 1e3, theirs[0] * 1e3, theirs[TURNS - 1] * 1e3, ratio[TURNS / 2],
               ratio[0], ratio[TURNS - 1]);
        keep_ratio("delta", what, ratio[TURNS / 2], ratio[0], ratio[TURNS - 1], 3);
    }
    printf("\n");
    fflush(stdout);
    tinker_adapter_free(w.adapter);
    tinker_engine_close(w.e); /* the rest goes with the process */
}

int main(void)
{
    static const size_t hidden[] = { WHOLE, SMALL };
    char dir[] = "/tmp/tinker-delta-XXXXXX";
    const char *asked = getenv("TINKER_BENCH_TORCH"), *n = getenv("TINKER_BENCH_TOKENS");
    const char *dtypes[] = { "f32", "bf16" };
    size_t tokens = n ? strtoul(n, NULL, 10) : 1024;
    tinker_error err;
    if (!mkdtemp(dir) || tokens == 0)
        die("directory or TINKER_BENCH_TOKENS", "cannot be used");
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++)
            if (strstr(asked ? asked : "f32 bf16", dtypes[d]))
                compare_layer(dir, hidden[i], dtypes[d], tokens);
    os_remove_tree(dir, &err);
    return 0;
}
