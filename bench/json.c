/* json.c - our JSON against jansson, in one run on one core.
 *
 * J1 a 2 KB reply, J2 1 MB of floats, J3 1 MB of integers, J4 writing integers: each
 * side repeats for a while, three times; printed are the median ratio of speeds and
 * its spread.  J5 is the growth of the resident peak beyond input and output.  Lines
 * are "name ratio low high bar verdict". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/rand.h"
#include "json/json.h"
#include "ratio.h"
#include "support/jansson.h"

enum { REPEATS = 3 };
static const int64_t SLICE_NS = 150000000;

struct input {
    char *text;
    size_t len, n;
    int64_t *ints;
    json_t *tree;
};

static void die(const char *what)
{
    fprintf(stderr, "bench/json: %s\n", what);
    exit(1);
}

static bool measure_memory;
static long resident_kb;

/* Exact, page by page (the counters behind VmHWM lag by up to 64 pages), code not counted. */
static void note_memory(void)
{
    if (!measure_memory)
        return;
    char line[128];
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %ld", &resident_kb) == 1)
            break;
    if (f)
        fclose(f);
}

/* ---- J1: a reply with the shape of a small sampling result -------------------- */

struct reply {
    char *type, *request_id, *model;
    int64_t hits;
    struct {
        int32_t *tokens;
        float *logprobs;
        size_t n, n_logprobs;
        char *stop_reason;
    } sequences[8];
    size_t n_sequences;
};

static bool read_sequence(struct json_reader *r, struct reply *out)
{
    struct json_str key;
    size_t i = out->n_sequences++;
    if (i == 8)
        return false;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "tokens"))
            json_array_int32(r, &out->sequences[i].tokens, &out->sequences[i].n);
        else if (json_str_is(key, "logprobs"))
            json_array_float(r, &out->sequences[i].logprobs, &out->sequences[i].n_logprobs);
        else if (json_str_is(key, "stop_reason"))
            json_cstring(r, &out->sequences[i].stop_reason);
        else
            json_skip(r);
    }
    return !r->failed;
}

static void ours_reply(const struct input *in)
{
    struct arena a;
    struct json_reader r;
    struct json_str key;
    struct reply out = { .n_sequences = 0 };
    arena_init(&a, 1 << 20);
    json_reader_init(&r, in->text, in->len, &a);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "type"))
            json_cstring(&r, &out.type);
        else if (json_str_is(key, "request_id"))
            json_cstring(&r, &out.request_id);
        else if (json_str_is(key, "model"))
            json_cstring(&r, &out.model);
        else if (json_str_is(key, "prompt_cache_hit_tokens"))
            json_int64(&r, &out.hits);
        else if (json_str_is(key, "sequences") && json_begin_array(&r))
            while (json_next_item(&r) && read_sequence(&r, &out))
                ;
        else
            json_skip(&r);
    }
    if (!json_end(&r) || out.n_sequences != 4 || out.sequences[3].n != 16)
        die("reply not read");
    arena_clear(&a);
}

static void make_reply(struct input *in)
{
    struct buf b;
    struct json_writer w;
    struct rng rng;
    buf_init(&b, 1 << 16);
    json_writer_init(&w, &b);
    rng_seed(&rng, 1);
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, "sample");
    json_put_key(&w, "request_id");
    json_put_string(&w, "6ee3b3f1-0d1e-4a55-9c85-1b3c8d2f7a10:sample:42");
    json_put_key(&w, "model");
    json_put_string(&w, "tinker/tiny");
    json_put_key(&w, "sequences");
    json_put_begin_array(&w);
    for (int i = 0; i < 4; i++) {
        json_put_begin_object(&w);
        json_put_key(&w, "stop_reason");
        json_put_string(&w, "length");
        json_put_key(&w, "tokens");
        json_put_begin_array(&w);
        for (int k = 0; k < 16; k++)
            json_put_int64(&w, (int64_t)(rng_next(&rng) % 150000));
        json_put_end_array(&w);
        json_put_key(&w, "logprobs");
        json_put_begin_array(&w);
        for (int k = 0; k < 16; k++)
            json_put_double(&w, (float)(-5 * rng_uniform(&rng)));
        json_put_end_array(&w);
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_key(&w, "prompt_cache_hit_tokens");
    json_put_int64(&w, 128);
    json_put_end_object(&w);
    in->text = buf_detach(&b, &in->len);
}

/* ---- J2, J3, J4: number arrays ------------------------------------------------ */

static void make_array(struct input *in, bool floats, size_t bytes)
{
    struct buf b;
    struct json_writer w;
    struct rng rng;
    buf_init(&b, bytes + 4096);
    json_writer_init(&w, &b);
    rng_seed(&rng, 2);
    in->ints = calloc(bytes, sizeof *in->ints);
    if (!in->ints)
        die("no memory");
    json_put_begin_array(&w);
    for (in->n = 0; b.len < bytes; in->n++) {
        in->ints[in->n] = (int64_t)(rng_next(&rng) % 152000);
        if (floats) /* a float32 as a peer that computes in double writes it */
            json_put_double(&w, (float)(-8 * rng_uniform(&rng)));
        else
            json_put_int64(&w, in->ints[in->n]);
    }
    json_put_end_array(&w);
    in->text = buf_detach(&b, &in->len);
    in->tree = json_loadb(in->text, in->len, 0, NULL);
    if (!in->tree)
        die("jansson cannot read our array");
}

static void ours_floats(const struct input *in)
{
    struct arena a;
    struct json_reader r;
    float *v;
    size_t n;
    arena_init(&a, SIZE_MAX);
    json_reader_init(&r, in->text, in->len, &a);
    if (!json_array_float(&r, &v, &n) || !json_end(&r) || n != in->n)
        die("floats not read");
    note_memory();
    arena_clear(&a);
}

static void ours_ints(const struct input *in)
{
    struct arena a;
    struct json_reader r;
    int64_t *v;
    size_t n;
    arena_init(&a, SIZE_MAX);
    json_reader_init(&r, in->text, in->len, &a);
    if (!json_array_int64(&r, &v, &n) || !json_end(&r) || n != in->n)
        die("integers not read");
    arena_clear(&a);
}

static void ours_write(const struct input *in)
{
    struct buf b;
    struct json_writer w;
    buf_init(&b, SIZE_MAX);
    json_writer_init(&w, &b);
    json_put_array_int64(&w, in->ints, in->n);
    if (!buf_ok(&b) || b.len != in->len)
        die("integers not written");
    note_memory();
    buf_clear(&b);
}

static void jansson_read(const struct input *in)
{
    json_t *tree = json_loadb(in->text, in->len, 0, NULL);
    if (!tree)
        die("jansson cannot read");
    json_decref(tree);
}

static void jansson_write(const struct input *in)
{
    char *text = json_dumps(in->tree, JSON_COMPACT);
    if (!text)
        die("jansson cannot write");
    free(text);
}

/* ---- measuring ------------------------------------------------------------------- */

/* Processor time: what other programs do on this core does not count. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double ns_per_call(void (*run)(const struct input *), const struct input *in)
{
    run(in);
    int64_t start = cpu_ns(), now, calls = 0;
    do {
        for (int i = 0; i < 4; i++)
            run(in);
        calls += 4;
        now = cpu_ns();
    } while (now - start < SLICE_NS);
    return (double)(now - start) / (double)calls;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool compare(const char *name, double bar, void (*ours)(const struct input *),
                    void (*theirs)(const struct input *), const struct input *in)
{
    double ratios[REPEATS], ns = 0;
    for (int i = 0; i < REPEATS; i++) {
        double a = ns_per_call(ours, in), b = ns_per_call(theirs, in);
        ratios[i] = b / a;
        ns += a / REPEATS;
    }
    qsort(ratios, REPEATS, sizeof *ratios, by_value);
    bool ok = ratios[REPEATS / 2] >= bar;
    keep_ratio("json", name, ratios[REPEATS / 2], ratios[0], ratios[REPEATS - 1], bar);
    printf("%-22s %6.1fx  (%.1f-%.1f)  bar %4.0fx  %s   %.0f MB/s\n", name, ratios[REPEATS / 2],
           ratios[0], ratios[REPEATS - 1], bar, ok ? "ok" : "BELOW", (double)in->len / ns * 1e3);
    return ok;
}

/* In a child, so that other runs leave no holes in the heap to hide in.  Nothing is
 * freed before the measured point, so what is resident there is the peak. */
static bool memory(const char *name, void (*run)(const struct input *), const struct input *in,
                   const struct input *small, size_t output)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        measure_memory = true;
        run(small); /* makes resident what any run needs */
        long before = resident_kb;
        run(in);
        long extra = resident_kb - before - (long)(output / 1024);
        bool ok = extra <= 64;
        printf("%-22s %6ld KB                bar   64 KB %s\n", name, extra, ok ? "ok" : "BELOW");
        fflush(stdout);
        _exit(ok ? 0 : 1);
    }
    int status;
    return waitpid(child, &status, 0) == child && status == 0;
}

int main(void)
{
    struct input reply = { 0 }, floats = { 0 }, ints = { 0 };
    make_reply(&reply);
    make_array(&floats, true, 1 << 20);
    make_array(&ints, false, 1 << 20);
    bool ok = compare("J1 read a reply", 10, ours_reply, jansson_read, &reply);
    ok &= compare("J2 read floats", 15, ours_floats, jansson_read, &floats);
    ok &= compare("J3 read integers", 12, ours_ints, jansson_read, &ints);
    ok &= compare("J4 write integers", 10, ours_write, jansson_write, &ints);
    struct input small = { 0 }, large = { 0 }, numbers = { 0 };
    make_array(&small, false, 4096);
    make_array(&large, true, 8 << 20);
    make_array(&numbers, false, 8 << 20);
    ok &= memory("J5 memory, read", ours_floats, &large, &small, large.n * sizeof(float));
    ok &= memory("J5 memory, write", ours_write, &numbers, &small, numbers.len);
    return ok ? 0 : 1;
}
