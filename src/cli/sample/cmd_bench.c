/* cmd_bench.c - `tinker bench`: what a service does per second, seen from here.
 *
 * Samples: C requests are kept in flight, each with its own random prompt, so that no cache helps.
 * Training: pairs of forward_backward and optim_step, waited for one by one and pipelined. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tinker/sampling.h>
#include <tinker/training.h>

#include "base/array.h"
#include "base/clock.h"
#include "cli/args/opt.h"
#include "cli/command.h"
#include "cli/output/confirm.h"
#include "cli/output/out.h"
#include "cli/output/progress.h"
#include "cli/output/rows.h"
#include "cli/sample/prompt_model.h"

/* Limits of what makes sense to ask; beyond them an option was mistyped. */
enum { MAX_CONCURRENCY = 4096, MAX_REQUESTS = 1000000 };

/* The options as given. */
struct bench {
    const char *what, *model, *concurrency;
    int64_t prompt_tokens, max_tokens, requests, warmup, rank, batch_tokens;
};

/* Seconds of the monotonic clock: a clock that is set during a measurement must not change it. */
static double now_s(void)
{
    return (double)clock_now_ns(clock_real()) / 1e9;
}

/* Of this process: what the client itself costs per request, user and system time. */
static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a part p of them lies; v is sorted.
 * The nearest rank: one of the measured values, never a mean of two. */
static double find_quantile(const double *v, size_t n, double p)
{
    return n ? v[(size_t)fmin((double)(n - 1), ceil(p * (double)n) - 1)] : NAN;
}

/* Token ids that every vocabulary has, different for each request.
 * A linear congruential generator: the same prompts in every run, so that figures compare.  Ids
 * 16 to 215 are ordinary tokens in every vocabulary we know of. */
static void fill_prompt(int32_t *ids, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)(16 + (seed >> 33) % 200);
    }
}

/* ---- samples ---------------------------------------------------------------------------------- */

struct result {
    size_t n, errors, sampled;
    double seconds, cpu;
    double *latency; /* n of them */
};

/* NULL after a failure, which counts as an error of this request. */
static tinker_future *submit_request(const struct bench *b, tinker_sampler *s, uint64_t seed,
                                     tinker_error *err)
{
    /* Freed below: a submission copies its input. */
    int32_t *ids = calloc((size_t)b->prompt_tokens, sizeof(*ids));
    tinker_sampling_params p = TINKER_SAMPLING_PARAMS_INIT;
    if (!ids)
        return NULL;
    fill_prompt(ids, (size_t)b->prompt_tokens, seed);
    tinker_chunk chunk = { .kind = TINKER_CHUNK_TEXT,
                           .tokens = ids,
                           .n_tokens = (size_t)b->prompt_tokens };
    tinker_model_input input = { &chunk, 1 };
    static const int32_t none;
    p.max_tokens = b->max_tokens;
    p.stop_tokens = &none; /* an empty list: every sample has its full length */
    tinker_future *f = tinker_sampler_sample(s, &input, &p, NULL, err);
    free(ids);
    return f;
}

/* Request i uses slot i % window.  Requests are awaited in the order of submission, so the time
 * of one that finished early includes the wait for its elders; with equal lengths that is small.
 * A closed loop: the next request goes out when one came back. */
static bool run_requests(const struct bench *b, tinker_sampler *s, size_t window, size_t n,
                         uint64_t seed, struct result *r)
{
    /* A slot holds the future that was submitted into it until it is awaited; what is left in
     * them after an interrupt is freed below, which does not wait. */
    tinker_future **flight = calloc(window, sizeof(*flight));
    double *start = calloc(window, sizeof(*start));
    tinker_error err;
    bool ok = flight && start;
    double begin = now_s(), cpu = cpu_s();
    for (size_t sent = 0, done = 0; ok && done < n && !api_interrupted(); done++) {
        for (; sent < n && sent < done + window; sent++) {
            start[sent % window] = now_s();
            flight[sent % window] = submit_request(b, s, seed + sent, &err);
        }
        tinker_future *f = flight[done % window];
        flight[done % window] = NULL;
        if (f && api_await(f, &err) == TINKER_OK) {
            if (r->latency)
                r->latency[r->n] = now_s() - start[done % window];
            r->sampled += tinker_future_sample(f)->sequences[0].n;
            r->n++;
        } else {
            r->errors++;
            /* The first one explains the others; a thousand lines would not. */
            if (r->errors == 1)
                out_say("warning: %s", err.message);
        }
        tinker_future_free(f);
    }
    for (size_t i = 0; flight && i < window; i++)
        tinker_future_free(flight[i]);
    free(flight);
    free(start);
    r->seconds = now_s() - begin;
    r->cpu = cpu_s() - cpu;
    return ok;
}

/* Latency in quantiles, since means hide the waits that users notice.  "CPU s/1000" is the
 * client's own cost of a thousand requests. */
static void add_sample_row(struct listing *l, const struct bench *b, size_t window,
                           struct result *r)
{
    struct rusage u;
    double per_s = (double)r->n / r->seconds;
    getrusage(RUSAGE_SELF, &u);
    qsort(r->latency, r->n, sizeof(*r->latency), compare_reals);
    const double v[] = { per_s,
                         per_s * (double)b->prompt_tokens,
                         (double)r->sampled / r->seconds,
                         find_quantile(r->latency, r->n, 0.5) * 1e3,
                         find_quantile(r->latency, r->n, 0.9) * 1e3,
                         find_quantile(r->latency, r->n, 0.99) * 1e3,
                         r->n ? r->cpu * 1000 / (double)r->n : NAN };
    static const char *const keys[] = {
        "requests_per_s", "prompt_tokens_per_s", "sampled_tokens_per_s", "p50_ms", "p90_ms",
        "p99_ms",         "cpu_s_per_1000"
    };
    listing_cellf(l, "%zu", window);
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        listing_cellf(l, "%.4g", v[i]);
    listing_cellf(l, "%zu", r->errors);
    struct json_writer *w = listing_object(l);
    json_put_begin_object(w);
    rows_put_count(w, "concurrency", (int64_t)window);
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        rows_put_real(w, keys[i], v[i]);
    rows_put_count(w, "errors", (int64_t)r->errors);
    /* ru_maxrss is in kilobytes on Linux. */
    rows_put_count(w, "peak_memory_bytes", (int64_t)u.ru_maxrss * 1024);
    json_put_end_object(w);
    listing_object_end(l);
}

/* One sampler for all measurements: making one may load a model. */
static int bench_sample(const struct bench *b, struct api *a)
{
    static const char *const columns[] = { "Concurrency",   "Requests/s", "Prompt tok/s",
                                           "Sampled tok/s", "p50 ms",     "p90 ms",
                                           "p99 ms",        "CPU s/1000", "Errors" };
    struct listing l;
    int status = EXIT_OK;
    char list[256], title[300];
    tinker_sampler *s = prompt_model_sampler(a, &status);
    if (!s)
        return status;
    listing_init(&l, columns, ARRAY_LEN(columns));
    /* strtok_r() writes into its text; the option is printed later. */
    snprintf(list, sizeof(list), "%s", b->concurrency);
    /* Each concurrency is measured on its own, behind a warm-up with other prompts. */
    for (char *rest = list, *word;
         status == EXIT_OK && (word = strtok_r(rest, ",", &rest)) != NULL;) {
        long window = strtol(word, NULL, 10);
        struct result warm = { 0 }, r = { .latency = calloc((size_t)b->requests, sizeof(double)) };
        if (window < 1 || window > MAX_CONCURRENCY)
            status = out_fail(EXIT_USAGE, NULL, "--concurrency takes 1 to %d, not %s",
                              MAX_CONCURRENCY, word);
        else if (!r.latency ||
                 !run_requests(b, s, (size_t)window, (size_t)b->warmup, 1u << 30, &warm) ||
                 !run_requests(b, s, (size_t)window, (size_t)b->requests, (uint64_t)window << 32,
                               &r))
            status = out_fail(EXIT_FAILED, NULL, "out of memory");
        else if (api_interrupted())
            status = 128 + api_interrupted();
        else
            add_sample_row(&l, b, (size_t)window, &r);
        free(r.latency);
    }
    tinker_sampler_free(s);
    if (status != EXIT_OK) {
        listing_clear(&l);
        return status;
    }
    snprintf(title, sizeof(title), "%s: %lld requests of %lld + %lld tokens", a->model,
             (long long)b->requests, (long long)b->prompt_tokens, (long long)b->max_tokens);
    return listing_print(&l, title, "{\"measurements\":[");
}

/* ---- training ------------------------------------------------------------------------------------ */

/* Steps of one batch; `ahead` of them in flight before the first is waited for.
 * The second is what a training loop does that submits ahead; the difference between both is
 * what the wait for the network costs. */
static int run_steps(tinker_training *t, const tinker_datum *datum, size_t steps, size_t ahead,
                     double *seconds)
{
    tinker_loss loss = { .name = "cross_entropy" };
    tinker_error err;
    tinker_future *flight[2][2] = { { NULL } };
    int status = EXIT_OK;
    double begin = now_s();
    for (size_t sent = 0, done = 0; status == EXIT_OK && done < steps; done++) {
        for (; sent < steps && sent <= done + ahead; sent++) {
            flight[sent % 2][0] = tinker_training_forward_backward(t, datum, 1, &loss, &err);
            flight[sent % 2][1] =
                flight[sent % 2][0] ? tinker_training_optim_step(t, NULL, &err) : NULL;
        }
        for (size_t k = 0; k < 2; k++) {
            tinker_future *f = flight[done % 2][k];
            flight[done % 2][k] = NULL;
            if (status == EXIT_OK)
                tinker_future_free(api_wait(f, &err, &status));
            else
                tinker_future_free(f);
        }
    }
    for (size_t i = 0; i < 4; i++)
        tinker_future_free(flight[i / 2][i % 2]);
    *seconds = now_s() - begin;
    return status;
}

/* Random text learns nothing, but costs what any text costs. */
static int bench_train(const struct bench *b, struct api *a)
{
    static const char *const columns[] = { "Mode", "Steps/s", "Tokens/s" };
    /* "one by one": each step waits for the last one, as a loop does that looks at every loss. */
    static const char *const modes[] = { "one by one", "pipelined" };
    struct listing l;
    tinker_error err;
    tinker_lora lora = TINKER_LORA_INIT;
    int status = EXIT_OK;
    char title[300];
    size_t n = (size_t)b->batch_tokens, steps = (size_t)b->requests;
    int32_t *ids = calloc(n, sizeof(*ids));
    if (!ids)
        return out_fail(EXIT_FAILED, NULL, "out of memory");
    fill_prompt(ids, n, 1);
    lora.rank = b->rank;
    tinker_datum *datum = tinker_datum_from_tokens(ids, n, NULL, &err);
    tinker_future *f =
        datum ? api_wait(tinker_service_request_lora(a->service, a->model, &lora, &err), &err,
                         &status)
              : NULL;
    tinker_training *t = f ? tinker_future_take_training(f) : NULL;
    tinker_future_free(f);
    listing_init(&l, columns, ARRAY_LEN(columns));
    double seconds;
    if (t)
        status = run_steps(t, datum, (size_t)b->warmup, 0, &seconds);
    /* Mode 0 waits for each step, mode 1 has the next one submitted by then. */
    for (size_t mode = 0; t && status == EXIT_OK && mode < 2; mode++) {
        status = run_steps(t, datum, steps, mode, &seconds);
        /* Steps of one batch each, so tokens per second are steps times its length. */
        double per_s = (double)steps / seconds;
        listing_cell(&l, modes[mode]);
        listing_cellf(&l, "%.4g", per_s);
        listing_cellf(&l, "%.4g", per_s * (double)n);
        struct json_writer *w = listing_object(&l);
        json_put_begin_object(w);
        rows_put_text(w, "mode", mode ? "pipelined" : "sequential");
        rows_put_real(w, "steps_per_s", per_s);
        rows_put_real(w, "tokens_per_s", per_s * (double)n);
        json_put_end_object(w);
        listing_object_end(&l);
    }
    tinker_training_free(t);
    tinker_datum_free(datum);
    free(ids);
    if (!t || status != EXIT_OK) {
        listing_clear(&l);
        return status != EXIT_OK ? status : out_fail(EXIT_FAILED, NULL, "%s", err.message);
    }
    snprintf(title, sizeof(title), "%s: %zu steps of %zu tokens, rank %lld", a->model, steps, n,
             (long long)b->rank);
    return listing_print(&l, title, "{\"measurements\":[");
}

/* Against any service: the figures are what this machine sees of it, network included. */
int cmd_bench(int argc, char **argv)
{
    struct bench b = { .what = "sample",
                       .concurrency = "1,8,64",
                       .prompt_tokens = 128,
                       .max_tokens = 32,
                       .requests = 64,
                       .warmup = 5,
                       .rank = 32,
                       .batch_tokens = 256 };
    const struct opt opts[] = {
        { .name = "model",
          .letter = 'm',
          .kind = OPT_STRING,
          .value = "MODEL",
          .help = "a base model, or the directory of one",
          .out = &b.model },
        { .name = "concurrency",
          .kind = OPT_STRING,
          .value = "LIST",
          .help = "requests at the same time (default 1,8,64)",
          .out = &b.concurrency },
        { .name = "prompt-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "length of prompts (default 128)",
          .out = &b.prompt_tokens },
        { .name = "max-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "length of samples (default 32)",
          .out = &b.max_tokens },
        { .name = "requests",
          .kind = OPT_INT,
          .value = "N",
          .help = "requests, or training steps, per measurement (default 64)",
          .out = &b.requests },
        { .name = "warmup",
          .kind = OPT_INT,
          .value = "N",
          .help = "before each, not counted (default 5)",
          .out = &b.warmup },
        { .name = "rank",
          .kind = OPT_INT,
          .value = "N",
          .help = "of the adapter that is trained (default 32)",
          .out = &b.rank },
        { .name = "batch-tokens",
          .kind = OPT_INT,
          .value = "N",
          .help = "tokens of a training step (default 256)",
          .out = &b.batch_tokens },
    };
    const struct opt_arg args[] = { { .name = "WHAT", .out = &b.what, .optional = true } };
    const struct opt_spec spec = {
        .command = "bench",
        .about = "Measure a service: WHAT is sample (default) or train.  Prompts are random.\n"
                 "The hosted service bills them, so it is asked for first.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .args = args,
        .n_args = 1,
        .example = "tinker bench sample --requests 8 --concurrency 1,4"
    };
    struct api a;
    int status;
    if (!opt_parse(&spec, argc, argv, &status))
        return status;
    bool train = strcmp(b.what, "train") == 0;
    if (!train && strcmp(b.what, "sample") != 0)
        return opt_usage_error(&spec, "WHAT is sample or train, not %s.", b.what);
    if (b.requests < 1 || b.requests > MAX_REQUESTS || b.warmup < 0 || b.warmup > MAX_REQUESTS ||
        b.prompt_tokens < 1 || b.prompt_tokens > MAX_REQUESTS || b.max_tokens < 1 ||
        b.batch_tokens < 2 || b.batch_tokens > 1 << 24 || b.rank < 1)
        return opt_usage_error(&spec, "Numbers are 1 or more, --batch-tokens 2 or more.");
    if (!api_open_model(&a, b.model, NULL, &status))
        return status;
    /* A server of one's own is never asked about; anything else may be billed. */
    if (!api_is_local(&a) &&
        !confirm_ask(&status, "Send %lld requests, which may cost money?", (long long)b.requests)) {
        api_close(&a);
        return status;
    }
    status = train ? bench_train(&b, &a) : bench_sample(&b, &a);
    api_close(&a);
    return status;
}
