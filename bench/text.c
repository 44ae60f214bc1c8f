/* text.c - our tokenizer against the reference engines, on the same text in the same run.
 *
 *     text [kinds [KIND...] | MODEL...]
 *
 * Files and engines are those of the conformance tests.  On one thread both sides are measured in CPU time, turn about: each goes over the
 * text once for its caches and once for the clock, for encoding and then for decoding.  Of the
 * turns the median ratio counts.  Two threads are measured in elapsed time, turn about with one,
 * and not while other programs take the processors.  A first pass, with cold caches, is named as
 * well.  Results are allocated anew for every text.  Lines are "name figure unit, ratio bar verdict".
 * kinds: one vocabulary against tiktoken and one against Hugging Face, by kind of text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/os.h"
#include "peer.h"
#include "ratio.h"
#include "tokenizer/split/split.h"
#include "tokenizer/split/split_regex.h"
#include "tokenizer/load/tok_open.h"
#include <tinker/tokenizer.h>

enum { ROUNDS = 9, FEWEST = 3, BATCHES = 8, PATIENCE = 40, LOADS = 13, MAX_TEXTS = 4096 };
enum { PATH = 1024, ENOUGH_S = 8 }; /* seconds with one engine, after which three rounds will do */

struct corpus {
    char *data;
    size_t n, bytes;
    tinker_slice texts[MAX_TEXTS];
    tinker_tokens ids[MAX_TEXTS];
};
static struct corpus corpus;
static char python[PATH], file[PATH];

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die_with(const char *what)
{
    fprintf(stderr, "bench/text: %s\n", what);
    exit(1);
}

static void print_verdict(const char *model, const char *what, double figure, const char *unit,
                          double ratio, double bar)
{
    printf("%-12s %-18s %9.1f %-5s", model, what, figure, unit);
    if (bar > 0)
        printf("  %6.1f x  bar %.4g  %s", ratio, bar, ratio >= bar ? "ok" : "MISSED");
    printf("\n");
    fflush(stdout);
}

static void engine_turn(struct peer *p, double *encode, double *decode)
{
    if (peer_turn(p, 1, encode, decode) != 2)
        die_with("an engine does not answer");
}

static void engine_open(struct peer *p, const char *what, const char *name)
{
    if (!peer_open(p, "tokenizer", "bench/text_oracle.py", what, name, file))
        die_with("cannot start an engine");
}

static void read_corpus(const char *kind)
{
    char command[3 * PATH];
    size_t len;
    free(corpus.data);
    for (size_t i = 0; i < corpus.n; i++)
        tinker_tokens_clear(&corpus.ids[i]);
    memset(&corpus, 0, sizeof(corpus));
    snprintf(command, sizeof(command), "%s bench/text_oracle.py corpus %s %s", python, file, kind);
    if (system(command) != 0 || os_read_file(file, (size_t)1 << 31, &corpus.data, &len, NULL) != 0)
        die_with("no text");
    for (size_t at = 0; at + 4 <= len && corpus.n < MAX_TEXTS;) {
        uint32_t n;
        memcpy(&n, corpus.data + at, 4);
        corpus.texts[corpus.n++] = (tinker_slice){ corpus.data + at + 4, n };
        corpus.bytes += n;
        at += 4 + n;
    }
    printf("%s text: %.1f MB in %zu texts\n", kind, (double)corpus.bytes / 1e6, corpus.n);
}

static double encode_once(const tinker_tokenizer *t)
{
    double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < corpus.n; i++) {
        tinker_tokens_clear(&corpus.ids[i]);
        if (tinker_tokenizer_encode(t, corpus.texts[i].s, corpus.texts[i].n, NULL, &corpus.ids[i],
                                    NULL) != TINKER_OK)
            die_with("encode failed");
    }
    return (double)corpus.bytes / 1e6 / (read_clock(CLOCK_THREAD_CPUTIME_ID) - start);
}

/* Several calls, not one with the text several times: copies of a text would come one behind the
 * other, and one thread would find more of them in its cache than two. */
static double batch_once(const tinker_tokenizer *t, int threads)
{
    double seconds = 0;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    o.threads = threads;
    for (int k = 0; k < BATCHES; k++) {
        for (size_t i = 0; i < corpus.n; i++)
            tinker_tokens_clear(&corpus.ids[i]);
        double start = read_clock(CLOCK_MONOTONIC);
        if (tinker_tokenizer_encode_batch(t, corpus.texts, corpus.n, &o, corpus.ids, NULL, NULL) !=
            TINKER_OK)
            die_with("encode failed");
        seconds += read_clock(CLOCK_MONOTONIC) - start;
    }
    return BATCHES * (double)corpus.bytes / 1e6 / seconds;
}

/* CPU seconds that the machine gave to others so far, or kept from us; 0 where it does not say. */
static double read_other_cpu(void)
{
    double v[8] = { 0 }, sum = 0;
    FILE *f = fopen("/proc/stat", "r");
    if (!f || fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", v, v + 1, v + 2, v + 3, v + 4, v + 5,
                     v + 6, v + 7) != 8)
        v[0] = 0;
    else
        sum = v[0] + v[1] + v[2] + v[5] + v[6] + v[7];
    if (f)
        fclose(f);
    return sum / (double)sysconf(_SC_CLK_TCK) - read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

static double decode_once(const tinker_tokenizer *t)
{
    double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < corpus.n; i++) {
        tinker_text text = TINKER_TEXT_INIT;
        if (tinker_tokenizer_decode(t, corpus.ids[i].ids, corpus.ids[i].n, NULL, &text, NULL) !=
            TINKER_OK)
            die_with("decode failed");
        tinker_text_clear(&text);
    }
    return (double)corpus.bytes / 1e6 / (read_clock(CLOCK_THREAD_CPUTIME_ID) - start);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double find_median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), compare_doubles);
    return v[n / 2];
}

/* Elapsed time says something about two threads only while nobody else runs: after a round in which
 * others had more than a twenty-fifth of two processors it waits, as long as there is hope.  If that does
 * not come there is no verdict, and the CPU time that two threads need for the work of one must do:
 * what they lose to each other is in it, except for waiting. */
static void measure_threads(const char *name, const tinker_tokenizer *t)
{
    double two[ROUNDS], ratios[ROUNDS], costs[ROUNDS];
    int n = 0, disturbed = 0;
    batch_once(t, 2); /* so that both threads know the words */
    while (n < ROUNDS) {
        double taken = read_other_cpu(), start = read_clock(CLOCK_MONOTONIC);
        double before = read_clock(CLOCK_PROCESS_CPUTIME_ID), one = batch_once(t, 1);
        double middle = read_clock(CLOCK_PROCESS_CPUTIME_ID);
        two[n] = batch_once(t, 2);
        costs[n] = (read_clock(CLOCK_PROCESS_CPUTIME_ID) - middle) / (middle - before);
        ratios[n] = two[n] / one;
        bool quiet = read_other_cpu() - taken < 0.04 * 2 * (read_clock(CLOCK_MONOTONIC) - start);
        if (quiet || disturbed == PATIENCE) {
            n++;
            continue;
        }
        disturbed++;
        nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    }
    double ratio = find_median(ratios, ROUNDS), cost = find_median(costs, ROUNDS);
    bool known = disturbed < PATIENCE;
    print_verdict(name, "encode, 2 threads", find_median(two, ROUNDS), "MB/s", ratio,
                  known ? 1.7 : 0);
    print_verdict(name, "their CPU time", cost * 100, "%", 0, 0);
    if (!known)
        printf("%-12s %.1f x of 1 thread, but other programs ran all the time\n", name, ratio);
}

/* The second of two passes: the first has the caches as others left them. */
static double run_warm(double (*once)(const tinker_tokenizer *), const tinker_tokenizer *t)
{
    once(t);
    return once(t);
}

/* Speeds and ratios of n turns; both are sorted then. */
static void print_ratios(const char *model, const char *what, double *speeds, double *ratios,
                         size_t n, double bar)
{
    char full[128];
    double median = find_median(ratios, n);
    print_verdict(model, what, find_median(speeds, n), "MB/s", median, bar);
    snprintf(full, sizeof(full), "%s, %s", model, what);
    keep_ratio("text", full, median, ratios[0], ratios[n - 1], bar);
}

static void measure_against(const char *engine, const char *name, const tinker_tokenizer *t)
{
    double encodes[ROUNDS], decodes[ROUNDS], encode_ratios[ROUNDS], decode_ratios[ROUNDS];
    struct peer theirs;
    engine_open(&theirs, engine, name);
    double start = read_clock(CLOCK_MONOTONIC);
    char what[64];
    size_t n = 0;
    while (n < FEWEST || (n < ROUNDS && read_clock(CLOCK_MONOTONIC) - start < ENOUGH_S)) {
        double encode, decode;
        engine_turn(&theirs, &encode, &decode);
        encodes[n] = run_warm(encode_once, t);
        decodes[n] = run_warm(decode_once, t);
        encode_ratios[n] = encodes[n] / encode;
        decode_ratios[n] = decodes[n] / decode;
        n++;
    }
    peer_close(&theirs);
    snprintf(what, sizeof(what), "encode / %s", engine);
    print_ratios(name, what, encodes, encode_ratios, n, 12);
    snprintf(what, sizeof(what), "decode / %s", engine);
    print_ratios(name, what, decodes, decode_ratios, n, 10);
}

/* Ours against the engines of a list that ends with NULL; two threads when asked for. */
static void measure_engines(const char *name, const char *const *engines, const tinker_tokenizer *t,
                            bool threads)
{
    print_verdict(name, "encode, first pass", encode_once(t), "MB/s", 0, 0);
    for (; *engines; engines++)
        measure_against(*engines, name, t);
    if (threads)
        measure_threads(name, t);
}

/* Milliseconds of CPU to load, without the table of shared objects, in the median; dir: through the
 * prebuilt file in it.  Bars are times, so the ratio is bar / time. */
static void measure_load(const char *name, const char *path, const char *dir, const char *what,
                         double bar_ms)
{
    static struct tok_files files;
    tinker_error err;
    double times[LOADS];
    if (tok_files_find(&files, path, false, &err) != TINKER_OK)
        die_with(err.message);
    for (int i = -1; i < LOADS; i++) { /* one more: it writes the prebuilt file */
        double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
        tinker_tokenizer *t = tok_files_load(&files, dir, false, &err);
        if (i >= 0)
            times[i] = (read_clock(CLOCK_THREAD_CPUTIME_ID) - start) * 1e3;
        if (!t)
            die_with(err.message);
        tinker_tokenizer_free(t);
    }
    double ms = find_median(times, LOADS);
    print_verdict(name, what, ms, "ms", bar_ms / ms, bar_ms > 0 ? 1 : 0);
}

/* ---- T1, T2: the hand-written splitter against PCRE2 ----------------------------------------- */

/* Pieces of the whole text by PCRE2 with JIT, as fast as it goes. */
static size_t split_by_pcre2(const pcre2_code *code, pcre2_match_data *data)
{
    size_t pieces = 0;
    PCRE2_SIZE *at = pcre2_get_ovector_pointer(data);
    for (size_t i = 0; i < corpus.n; i++) {
        at[1] = 0;
        while (at[1] < corpus.texts[i].n &&
               pcre2_jit_match(code, (PCRE2_SPTR)corpus.texts[i].s, corpus.texts[i].n, at[1],
                               PCRE2_NO_UTF_CHECK, data, NULL) == 1)
            pieces++;
    }
    return pieces;
}

static size_t split_by_us(split_fn *next)
{
    size_t pieces = 0;
    for (size_t i = 0; i < corpus.n; i++) {
        const unsigned char *p = (const unsigned char *)corpus.texts[i].s;
        for (const unsigned char *end = p + corpus.texts[i].n; p < end; pieces++)
            p = next(p, end);
    }
    return pieces;
}

/* Number of differing boundaries; the pattern is extended to our version of Unicode. */
static size_t compare_splits(split_fn *next)
{
    struct split_regex *regex =
        split_regex_new(split_cl100k_pattern, strlen(split_cl100k_pattern), true, NULL);
    struct split_regex_ctx ctx = { 0 };
    size_t differ = 0;
    for (size_t i = 0; i < corpus.n; i++) {
        const unsigned char *base = (const unsigned char *)corpus.texts[i].s, *p = base;
        const unsigned char *stop = base + corpus.texts[i].n;
        size_t begin, end = 0;
        while (p < stop && split_regex_find(regex, &ctx, corpus.texts[i].s, corpus.texts[i].n, end,
                                            &begin, &end) == 1) {
            p = next(p, stop);
            differ += (size_t)(p - base) != end;
        }
    }
    split_regex_ctx_clear(&ctx);
    split_regex_free(regex);
    return differ;
}

static void measure_split(void)
{
    int code;
    PCRE2_SIZE at;
    split_fn *next = split_known(split_cl100k_pattern, strlen(split_cl100k_pattern));
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)split_cl100k_pattern, PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!regex || !data || pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE) != 0)
        die_with("PCRE2 without JIT");
    double ours[ROUNDS], theirs[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
        size_t pieces = split_by_us(next);
        double middle = read_clock(CLOCK_THREAD_CPUTIME_ID);
        size_t matches = split_by_pcre2(regex, data);
        double stop = read_clock(CLOCK_THREAD_CPUTIME_ID);
        if (pieces < 1000 || matches < 1000)
            die_with("no pieces");
        ours[round] = (double)corpus.bytes / 1e6 / (middle - start);
        theirs[round] = (double)corpus.bytes / 1e6 / (stop - middle);
    }
    double speed = find_median(ours, ROUNDS);
    print_verdict("T1", "split vs PCRE2", speed, "MB/s", speed / find_median(theirs, ROUNDS), 2.5);
    size_t differ = compare_splits(next);
    printf("%-12s %-18s %9zu differ %s\n", "T2", "boundaries", differ, differ ? "MISSED" : "ok");
    pcre2_match_data_free(data);
    pcre2_code_free(regex);
}

static tinker_tokenizer *load_tokenizer(const char *path)
{
    tinker_error err;
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    o.no_prebuilt = 1;
    tinker_tokenizer *t = tinker_tokenizer_load(path, &o, &err);
    if (!t)
        die_with(err.message);
    return t;
}

static void model_path(char path[2 * PATH], const char *model)
{
    char command[2 * PATH];
    snprintf(command, sizeof(command), "%s bench/text_oracle.py model %s", python, model);
    if (!peer_line(command, path, 2 * PATH))
        die_with("no tokenizer.json");
}

static void measure_ranks(const char *name, bool threads)
{
    static const char *const engines[] = { "tiktoken", NULL };
    char path[2 * PATH];
    struct peer writer; /* of the rank file */
    engine_open(&writer, "tiktoken", name);
    peer_close(&writer);
    snprintf(path, sizeof(path), "%s.%s.tiktoken", file, name);
    tinker_tokenizer *t = load_tokenizer(path);
    measure_engines(name, engines, t, threads);
    tinker_tokenizer_free(t);
}

static void measure_kinds(const char *const *kinds)
{
    static const char *const engines[] = { "hf", NULL };
    char path[2 * PATH];
    for (; *kinds; kinds++) {
        read_corpus(*kinds);
        measure_ranks("o200k_base", false);
        model_path(path, "qwen3");
        tinker_tokenizer *t = load_tokenizer(path);
        measure_engines("qwen3", engines, t, false);
        tinker_tokenizer_free(t);
    }
}

static void measure_model(const char *model, const char *dir)
{
    static const char *const engines[] = { "hf", "npm", NULL };
    bool barred = strcmp(model, "qwen3") == 0;
    char path[2 * PATH];
    model_path(path, model);
    tinker_tokenizer *t = load_tokenizer(path);
    measure_engines(model, engines, t, true);
    tinker_tokenizer_free(t);
    measure_load(model, path, NULL, "load json", barred ? 150 : 0);
    measure_load(model, path, dir, "load prebuilt", barred ? 5 : 0);
}

int main(int argc, char **argv)
{
    static const char *const all[] = {
        "qwen3", "llama3_1", "gpt4o", "deepseek_v3", "gemma3", NULL
    };
    static const char *const all_kinds[] = { "mixed", "code", "latin", "cjk", "other", NULL };
    const char *const *models = argc > 1 ? (const char *const *)argv + 1 : all;
    bool kinds = argc > 1 && strcmp(argv[1], "kinds") == 0;
    if (!peer_python("tokenizer", python, sizeof(python)))
        return 0;
    char dir[] = "/tmp/bench-text-XXXXXX";
    if (!mkdtemp(dir))
        die_with("mkdtemp");
    snprintf(file, sizeof(file), "%s/text", dir);
    if (kinds) {
        measure_kinds(argc > 2 ? (const char *const *)argv + 2 : all_kinds);
    } else {
        read_corpus("mixed");
        measure_split();
        if (argc == 1) {
            measure_ranks("o200k_base", true);
            measure_ranks("cl100k_base", true);
        }
        for (; *models; models++) {
            if (strcmp(*models, "o200k_base") == 0 || strcmp(*models, "cl100k_base") == 0)
                measure_ranks(*models, true);
            else
                measure_model(*models, dir);
        }
    }
    os_remove_tree(dir, NULL);
    return 0;
}
