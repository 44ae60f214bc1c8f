/* wire.c - encoding of training requests against the bare cost of moving their bytes.
 *
 * P1: structs to protobuf bytes, 8 MB of payload, against memcpy of as many bytes into
 * a buffer of the same kind (fresh for each message on both sides, then reused on
 * both).  Z1: our zstd body against ZSTD_compressCCtx.  Beside the ratios: the time
 * for 10 sequences of 65,000 tokens, and the JSON form that older clients sent.
 * Lines are "name ratio low high bar verdict" or "# name value unit". */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "wire/proto.h"
#include "wire/wire.h"
#include "wire/zstd.h"

enum { REPEATS = 5 };
static const int64_t SLICE_NS = 100000000;

static void die(const char *what)
{
    fprintf(stderr, "bench/wire: %s\n", what);
    exit(1);
}

/* ---- data: n datums of t tokens with target_tokens (int64) and weights (float32) --- */

struct batch {
    struct wire_forward_backward_request req;
    size_t payload; /* bytes of tokens and tensors */
};

static struct batch make_batch(struct arena *a, size_t n, size_t t)
{
    tinker_datum *data = arena_array(a, n, sizeof *data);
    for (size_t i = 0; i < n; i++) {
        int32_t *tokens = arena_array(a, t, sizeof *tokens);
        int64_t *targets = arena_array(a, t, sizeof *targets),
                *shape = arena_alloc(a, sizeof *shape);
        float *weights = arena_array(a, t, sizeof *weights);
        tinker_chunk *chunk = arena_alloc(a, sizeof *chunk);
        tinker_named_tensor *in = arena_array(a, 2, sizeof *in);
        for (size_t j = 0; j < t; j++) {
            tokens[j] = (int32_t)((i * t + j) * 2654435761u % 151936);
            targets[j] = tokens[j];
            weights[j] = (float)(j % 7) / 8;
        }
        *shape = (int64_t)t;
        *chunk = (tinker_chunk){ .kind = TINKER_CHUNK_TEXT, .tokens = tokens, .n_tokens = t };
        in[0] = (tinker_named_tensor){ "target_tokens",
                                       { TINKER_INT64, targets, t, shape, 1, NULL, NULL } };
        in[1] = (tinker_named_tensor){ "weights",
                                       { TINKER_FLOAT32, weights, t, shape, 1, NULL, NULL } };
        data[i] = (tinker_datum){ .model_input = { chunk, 1 }, .inputs = in, .n_inputs = 2 };
    }
    return (struct batch){ .req = { .model_id = "5f0c9a4e-77aa-4b1e-9b0d-0d9b4c1e2f33:train:0",
                                    .seq_id = { 1, 1 },
                                    .data = data,
                                    .n_data = n,
                                    .loss = { .name = "cross_entropy" } },
                           .payload = n * t * 16 };
}

/* ---- what is measured ------------------------------------------------------------ */

struct work {
    const struct batch *batch;
    const char *source; /* payload bytes to copy, or a body to compress */
    size_t n;
    struct buf *reused; /* NULL: a fresh buffer each time */
    ZSTD_CCtx *zstd;
};

static void encode(struct work *w)
{
    struct buf fresh, *out = w->reused ? w->reused : &fresh;
    if (w->reused)
        buf_reset(out);
    else
        buf_init(&fresh, SIZE_MAX);
    if (wire_encode_forward_backward_request(&w->batch->req, out, NULL) != TINKER_OK)
        die("encode");
    if (!w->reused)
        buf_clear(&fresh);
}

static void copy(struct work *w)
{
    struct buf fresh, *out = w->reused ? w->reused : &fresh;
    if (w->reused)
        buf_reset(out);
    else
        buf_init(&fresh, SIZE_MAX);
    buf_append(out, w->source, w->n);
    if (!w->reused)
        buf_clear(&fresh);
}

static void compress_ours(struct work *w)
{
    buf_reset(w->reused);
    if (wire_zstd_compress(w->source, w->n, w->reused, NULL) != TINKER_OK)
        die("zstd");
}

static void compress_plain(struct work *w)
{
    buf_reset(w->reused);
    if (!buf_reserve(w->reused, ZSTD_compressBound(w->n)) ||
        ZSTD_isError(ZSTD_compressCCtx(w->zstd, w->reused->data, ZSTD_compressBound(w->n),
                                       w->source, w->n, 3)))
        die("zstd");
}

static void encode_json(struct work *w)
{
    buf_reset(w->reused);
    if (wire_encode_json(&wire_forward_backward_request, &w->batch->req, w->reused, NULL) !=
        TINKER_OK)
        die("json");
}

static void decode_proto(struct work *w)
{
    struct arena a;
    struct wire_forward_backward_request out;
    arena_init(&a, SIZE_MAX);
    if (wire_decode_forward_backward_request(w->source, w->n, &a, &out, NULL) != TINKER_OK)
        die("decode");
    arena_clear(&a);
}

/* Seconds per run, over a slice of time. */
static double seconds(void (*run)(struct work *), struct work *w)
{
    int64_t start = clock_now_ns(clock_real()), now;
    int runs = 0;
    do {
        run(w);
        runs++;
        now = clock_now_ns(clock_real());
    } while (now - start < SLICE_NS);
    return (double)(now - start) / 1e9 / runs;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Ratio of speeds, ours over theirs: median, lowest and highest of interleaved repeats. */
static void report(const char *name, void (*ours)(struct work *), struct work *a,
                   void (*theirs)(struct work *), struct work *b, double bar)
{
    double ratio[REPEATS], ms[REPEATS];
    seconds(ours, a);
    for (int i = 0; i < REPEATS; i++) {
        double t = seconds(theirs, b);
        ms[i] = seconds(ours, a);
        ratio[i] = t / ms[i];
    }
    qsort(ratio, REPEATS, sizeof ratio[0], by_value);
    qsort(ms, REPEATS, sizeof ms[0], by_value);
    printf("%s %.2f %.2f %.2f bar %.2f %s (%.2f ms)\n", name, ratio[REPEATS / 2], ratio[0],
           ratio[REPEATS - 1], bar, ratio[REPEATS / 2] >= bar ? "ok" : "MISSED",
           1e3 * ms[REPEATS / 2]);
}

static void figure(const char *name, void (*run)(struct work *), struct work *w)
{
    double ms[REPEATS];
    seconds(run, w);
    for (int i = 0; i < REPEATS; i++)
        ms[i] = 1e3 * seconds(run, w);
    qsort(ms, REPEATS, sizeof ms[0], by_value);
    printf("# %s %.3f ms (%.3f to %.3f)\n", name, ms[REPEATS / 2], ms[0], ms[REPEATS - 1]);
}

int main(void)
{
    struct arena arena;
    struct buf a, b, json;
    arena_init(&arena, SIZE_MAX);
    buf_init(&a, SIZE_MAX);
    buf_init(&b, SIZE_MAX);
    buf_init(&json, SIZE_MAX);

    struct batch eight = make_batch(&arena, 512, 1024), ten = make_batch(&arena, 10, 65000);
    char *source = malloc(ten.payload);
    if (!source)
        die("memory");
    memset(source, 7, ten.payload);

    struct work enc = { .batch = &eight }, cpy = { .source = source, .n = eight.payload };
    report("P1-fresh", encode, &enc, copy, &cpy, 0.3);
    enc.reused = &a;
    cpy.reused = &b;
    report("P1-reused", encode, &enc, copy, &cpy, 0.3);

    struct work z = { .source = a.data, .n = a.len, .zstd = ZSTD_createCCtx() };
    struct buf body;
    buf_init(&body, SIZE_MAX);
    buf_append(&body, a.data, a.len);
    z.source = body.data;
    z.n = body.len;
    z.reused = &b;
    if (!z.zstd)
        die("memory");
    report("Z1", compress_ours, &z, compress_plain, &z, 0.95);
    ZSTD_freeCCtx(z.zstd);

    struct work e10 = { .batch = &ten }, c10 = { .source = source, .n = ten.payload };
    figure("10-sequences-of-65000-encode", encode, &e10);
    figure("10-sequences-of-65000-memcpy", copy, &c10);
    e10.reused = &a;
    figure("10-sequences-of-65000-encode-reused", encode, &e10);
    struct work d10 = { .source = a.data, .n = a.len };
    figure("10-sequences-of-65000-decode", decode_proto, &d10);
    e10.reused = &json;
    figure("10-sequences-of-65000-json", encode_json, &e10);

    buf_clear(&a);
    buf_clear(&b);
    buf_clear(&body);
    buf_clear(&json);
    free(source);
    arena_clear(&arena);
    return 0;
}
