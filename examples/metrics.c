/* metrics.c - numbers about the program: what the library counts, and what you add.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local metrics [model]
 *
 * Counters, gauges and histograms live in this process and never leave it.  A snapshot reads them
 * all at once; tinker_metrics_text() writes it for Prometheus. */
#include "example.h"
#include <string.h>
#include <tinker/extra/metrics.h>

enum { SAMPLES = 5 };

static void sample(tinker_sampler *s, int seed)
{
    int32_t prompt[] = { 10, 11, 12 };
    tinker_chunk text = { .tokens = prompt, .n_tokens = 3 };
    tinker_model_input input = { &text, 1 };
    tinker_sampling_params params = TINKER_SAMPLING_PARAMS_INIT;
    params.max_tokens = 8;
    params.has_seed = 1;
    params.seed = seed;
    tinker_future *f = await(tinker_sampler_sample(s, &input, &params, NULL, &err), "sample");
    const tinker_sequence *q = &tinker_future_sample(f)->sequences[0];
    tinker_counter_add("demo_tokens", (int64_t)q->n);
    tinker_histogram_record("demo_length", (double)q->n);
    tinker_gauge_set("demo_last_seed", seed);
    tinker_future_free(f);
}

static void show(const tinker_metrics *m)
{
    for (size_t i = 0; i < m->n_counters; i++)
        printf("counter    %-40s %lld\n", m->counters[i].name, (long long)m->counters[i].value);
    for (size_t i = 0; i < m->n_gauges; i++)
        printf("gauge      %-40s %g\n", m->gauges[i].name, m->gauges[i].value);
    for (size_t i = 0; i < m->n_histograms; i++)
        printf("histogram  %-40s %lld values, median %.1f, p95 %.1f\n", m->histograms[i].name,
               (long long)m->histograms[i].count, m->histograms[i].p50, m->histograms[i].p95);
}

int main(int argc, char **argv)
{
    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_sampler *s =
        need(tinker_service_create_sampler(service, model_name(argc, argv), NULL, MINUTE_MS, &err),
             "sampler");
    tinker_metrics_reset(); /* leave out the start-up */
    for (int i = 1; i <= SAMPLES; i++)
        sample(s, i);
    tinker_metrics_flush();
    tinker_metrics *m = need(tinker_metrics_snapshot(&err), "snapshot");
    show(m);
    const tinker_histogram *length = tinker_metrics_histogram(m, "demo_length");
    expect(length && length->count == SAMPLES && length->max <= 8, "five lengths, none above 8");
    expect((double)tinker_metrics_counter(m, "demo_tokens") == length->sum, "both count tokens");
    expect(tinker_metric(m->gauges, m->n_gauges, "demo_last_seed") == SAMPLES, "the last seed");

    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_metrics_text(m, &text, &err) != TINKER_OK)
        die("text");
    printf("%zu bytes for Prometheus, beginning: %.*s\n", text.n, (int)strcspn(text.s, "\n"),
           text.s);
    tinker_text_clear(&text);
    tinker_metrics_free(m);
    tinker_sampler_free(s);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
