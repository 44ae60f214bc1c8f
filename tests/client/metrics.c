/* Metrics of this process: exact sums, exact percentiles, and what the client counts. */
#include <pthread.h>
#include <tinker/extra/metrics.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

enum { THREADS = 8, ROUNDS = 20000 };

static int64_t counter(const char *name)
{
    tinker_metrics_flush();
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    int64_t v = tinker_metrics_counter(m, name);
    tinker_metrics_free(m);
    return v;
}

static tinker_histogram histogram(const char *name)
{
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    const tinker_histogram *h = tinker_metrics_histogram(m, name);
    tinker_histogram copy = h ? *h : (tinker_histogram){ .count = -1 };
    tinker_metrics_free(m);
    return copy;
}

/* ---- the registry ---------------------------------------------------------------------- */

static void *record(void *arg)
{
    const char *own = arg;
    for (int i = 0; i < ROUNDS; i++) {
        tinker_counter_add("shared", 1);
        tinker_counter_add(own, 2);
        tinker_histogram_record("ms", i % 10);
        if (i % 1000 == 0)
            tinker_metrics_free(tinker_metrics_snapshot(NULL)); /* readers while others write */
    }
    return NULL;
}

static void test_threads_lose_nothing(void) /* */
{
    static char names[THREADS][16];
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) {
        snprintf(names[i], sizeof(names[i]), "own-%d", i);
        pthread_create(&t[i], NULL, record, names[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    CHECK_INT(counter("shared"), THREADS * ROUNDS);
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(counter(names[i]), 2 * ROUNDS);
    tinker_histogram h = histogram("ms");
    CHECK_INT(h.count, THREADS * ROUNDS);
    CHECK_NEAR(h.sum, 4.5 * THREADS * ROUNDS, 1e-6);
    CHECK_INT(h.buckets[0], THREADS * ROUNDS / 5); /* 0 and 1 */
    CHECK_INT(h.buckets[3], THREADS * ROUNDS * 4 / 10);
}

static void test_kinds_and_reset(void) /* */
{
    tinker_counter_add("same", 5);
    tinker_counter_add("same", -2);
    tinker_gauge_set("same", 1.5); /* another kind is another metric */
    tinker_gauge_set("same", 2.5);
    tinker_histogram_record("same", 3);
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    CHECK_INT(tinker_metrics_counter(m, "same"), 3);
    CHECK_NEAR(tinker_metric(m->gauges, m->n_gauges, "same"), 2.5, 0);
    CHECK_INT(tinker_metrics_histogram(m, "same")->count, 1);
    CHECK_INT(tinker_metrics_counter(m, "never"), 0);
    CHECK(tinker_metrics_histogram(m, "never") == NULL);
    for (size_t i = 1; i < m->n_counters; i++)
        CHECK(strcmp(m->counters[i - 1].name, m->counters[i].name) < 0);
    tinker_metrics_reset();
    CHECK_INT(tinker_metrics_counter(m, "same"), 3); /* a snapshot does not change */
    tinker_metrics_free(m);
    CHECK_INT(counter("same"), 0);
    CHECK_INT(histogram("same").count, 0);
    tinker_metrics_free(NULL);
}

static void test_bad_names_and_values(void) /* */
{
    char name[300];
    memset(name, 'x', sizeof(name));
    name[299] = '\0';
    tinker_counter_add(name, 1);
    tinker_counter_add("", 1);
    tinker_counter_add(NULL, 1);
    CHECK_INT(counter(name), 0);
    name[200] = '\0';
    tinker_counter_add(name, 1);
    CHECK_INT(counter(name), 1);
    tinker_histogram_record("odd", NAN);
    tinker_histogram_record("odd", INFINITY);
    CHECK_INT(histogram("odd").count, 0);
}

/* ---- histograms -------------------------------------------------------------------------- */

static void test_percentiles(void) /* */
{
    for (int i = 100; i >= 1; i--) /* the order must not matter */
        tinker_histogram_record("hundred", i);
    tinker_histogram h = histogram("hundred");
    CHECK_INT(h.count, 100);
    CHECK_NEAR(h.mean, 50.5, 1e-12);
    CHECK_NEAR(h.min, 1, 0);
    CHECK_NEAR(h.max, 100, 0);
    CHECK_NEAR(h.p50, 50.5, 0);
    CHECK_NEAR(h.p95, 95, 0);
    CHECK_NEAR(h.p99, 99, 0);
    static const int64_t want[TINKER_HISTOGRAM_BUCKETS] = { 1, 1, 3, 5, 10, 30, 50 };
    for (int i = 0; i < TINKER_HISTOGRAM_BUCKETS; i++)
        CHECK_INT(h.buckets[i], want[i]);
}

static void test_few_values(void) /* */
{
    tinker_histogram_record("one", 7);
    tinker_histogram h = histogram("one");
    CHECK_NEAR(h.p50, 7, 0);
    CHECK_NEAR(h.p95, 7, 0);
    CHECK_NEAR(h.p99, 7, 0);
    tinker_histogram_record("one", 1);
    tinker_histogram_record("one", 9);
    h = histogram("one");
    CHECK_NEAR(h.p50, 7, 0); /* odd: the middle one */
    CHECK_NEAR(h.p95, 9, 0);
    tinker_histogram_record("neg", -1); /* clocks go wrong: still counted */
    tinker_histogram_record("neg", 5000);
    tinker_histogram_record("neg", 5000.5);
    h = histogram("neg");
    CHECK_INT(h.buckets[0], 1);
    CHECK_INT(h.buckets[11], 1);
    CHECK_INT(h.buckets[12], 1);
    CHECK_NEAR(h.min, -1, 0);
}

static void test_empty_is_null(void) /* */
{
    tinker_histogram_record("emptied", 4);
    tinker_metrics_reset();
    tinker_histogram h = histogram("emptied");
    CHECK_INT(h.count, 0);
    CHECK(isnan(h.mean) && isnan(h.min) && isnan(h.max));
    CHECK(isnan(h.p50) && isnan(h.p95) && isnan(h.p99));
    tinker_histogram_record("emptied", 6); /* nothing of the time before is left */
    h = histogram("emptied");
    CHECK_NEAR(h.max, 6, 0);
    CHECK_NEAR(h.min, 6, 0);
    CHECK_NEAR(h.p50, 6, 0);
}

static void test_last_values_are_kept(void) /* */
{
    for (int i = 1; i <= 1500; i++)
        tinker_histogram_record("long", i);
    tinker_histogram h = histogram("long");
    CHECK_INT(h.count, 1500);
    CHECK_NEAR(h.min, 1, 0); /* of all, but percentiles of the last 1000: 501 to 1500 */
    CHECK_NEAR(h.p50, 1000.5, 0);
    CHECK_NEAR(h.p95, 1450, 0);
    tinker_metrics_retain(10);
    for (int i = 1; i <= 100; i++)
        tinker_histogram_record("short", i);
    tinker_metrics_retain(0);
    CHECK_NEAR(histogram("short").p50, 95.5, 0);
    CHECK_NEAR(histogram("short").mean, 50.5, 0);
}

static void test_text(void) /* */
{
    tinker_counter_add("text.count", 3);
    tinker_gauge_set("9text", 0.5);
    tinker_histogram_record("text_ms", 3);
    tinker_histogram_record("text_ms", 9000);
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    tinker_text text = TINKER_TEXT_INIT;
    REQUIRE(tinker_metrics_text(m, &text, NULL) == TINKER_OK);
    CHECK(strstr(text.s, "# TYPE text_count counter\ntext_count 3\n"));
    CHECK(strstr(text.s, "# TYPE _9text gauge\n_9text 0.5\n"));
    CHECK(strstr(text.s, "text_ms_bucket{le=\"2\"} 0\ntext_ms_bucket{le=\"5\"} 1\n"));
    CHECK(strstr(text.s, "text_ms_bucket{le=\"5000\"} 1\ntext_ms_bucket{le=\"+Inf\"} 2\n"));
    CHECK(strstr(text.s, "text_ms_sum 9003\ntext_ms_count 2\n"));
    tinker_text_clear(&text);
    tinker_metrics_free(m);
}

/* ---- what the client counts ---------------------------------------------------------------- */

static void ask(struct world *w, tinker_status want)
{
    tinker_future *f = tinker_service_check_health(w->service, NULL);
    CHECK_INT(world_finish(w, f, 1000000), want);
    tinker_future_free(f);
}

static void test_requests_are_counted(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    ask(&w, TINKER_OK); /* the start-up is not what we count here */
    tinker_metrics_reset();
    say(&w, API "healthz", 404, "{}", 1);
    ask(&w, TINKER_EHTTP);
    for (int i = 0; i < 3; i++)
        ask(&w, TINKER_OK);
    CHECK_INT(counter("tinker_requests_total"), 4);
    CHECK_INT(counter("tinker_requests_success"), 3);
    CHECK_INT(counter("tinker_requests_failure"), 1);
    CHECK_INT(histogram("tinker_request_duration_ms").count, 4);
    CHECK_INT(counter("tinker_http_retries_total"), 0);
    world_close(&w);
}

static void test_duration_covers_the_retries(void) /* */
{
    struct world w;
    world_open(&w, NULL, NULL);
    ask(&w, TINKER_OK);
    tinker_metrics_reset();
    fake_script(
        w.server, API "healthz",
        (struct fake_reply){ .status = 503, .headers = "retry-after-ms: 2000\r\n", .times = 2 });
    ask(&w, TINKER_OK);
    CHECK_INT(counter("tinker_requests_total"), 1); /* one call, three attempts */
    CHECK_INT(counter("tinker_requests_success"), 1);
    CHECK_INT(counter("tinker_http_retries_total"), 2);
    CHECK_INT(counter("tinker_call_retries_total"), 0);
    tinker_histogram h = histogram("tinker_request_duration_ms");
    CHECK(h.min >= 4000 && h.max < 4100);
    world_close(&w);
}

static void test_layers_polls_and_pauses(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.observation.metrics_prefix = "mine";
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    tinker_sampler *s = world_sampler(&w);
    tinker_metrics_reset();
    say(&w, API "optim_step", 500, "{}", 1); /* layer 2, because layer 1 is off */
    say(&w, API "retrieve_future", 408,
        "{\"queue_state\":\"paused_capacity\",\"queue_state_reason\":\"full\"}", 2);
    tinker_future *f = tinker_training_optim_step(t, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(counter("mine_call_retries_total"), 1);
    CHECK_INT(counter("mine_polls_total"), 3);
    CHECK_INT(counter("mine_queue_pauses_total"), 1); /* the second says nothing new */
    CHECK_INT(counter("mine_http_retries_total"), 0);
    say(&w, API "asample", 429, "{}", 2);
    say(&w, API "retrieve_future", 410, "{}", 1); /* layer 3 */
    f = tinker_sampler_sample(s, fake_prompt(4), NULL, NULL, NULL);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(counter("mine_rate_limited_total"), 2);
    CHECK_INT(counter("mine_sample_retries_total"), 1);
    CHECK_INT(counter("tinker_requests_total"), 0);
    tinker_sampler_free(s);
    tinker_training_free(t);
    world_close(&w);
}

static void test_dropped_telemetry_is_counted(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.telemetry.enabled = 1;
    o.telemetry.max_retries = 1;
    o.network.max_retries = -1;
    world_open(&w, NULL, &o);
    tinker_training *t = world_training(&w);
    tinker_metrics_reset();
    say(&w, API "telemetry", 500, "{}", -1);
    CHECK_INT(tinker_service_log_event(w.service, "mine", NULL, TINKER_SEVERITY_INFO), 1);
    world_advance(&w, 15000);
    CHECK(counter("tinker_telemetry_dropped_total") >= 2); /* SESSION_START and mine */
    tinker_training_free(t);
    fake_unscript(w.server, API "telemetry");
    world_close(&w);
}

static void test_counting_can_be_off(void) /* */
{
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.observation.metrics = -1;
    world_open(&w, NULL, &o);
    tinker_metrics_reset();
    ask(&w, TINKER_OK);
    CHECK_INT(counter("tinker_requests_total"), 0);
    CHECK_INT(histogram("tinker_request_duration_ms").count, 0);
    world_close(&w);
}

static void test_too_many_names(void) /* R-193; last: it fills the registry */
{
    char name[32];
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof(name), "many-%d", i);
        tinker_counter_add(name, 1);
    }
    CHECK_INT(counter("many-4999"), 0);
    CHECK_INT(counter("many-0"), 1);
    tinker_counter_add("shared", 1); /* the known ones go on */
    CHECK_INT(counter("shared"), 1);
    struct world w;
    tinker_service_options o;
    world_options(&w, &o);
    o.observation.metrics_prefix = "unheard";
    world_open(&w, NULL, &o);
    ask(&w, TINKER_OK);
    CHECK_INT(counter("unheard_requests_total"), 0);
    world_close(&w);
}

int main(void)
{
    RUN(test_threads_lose_nothing);
    RUN(test_kinds_and_reset);
    RUN(test_bad_names_and_values);
    RUN(test_percentiles);
    RUN(test_few_values);
    RUN(test_empty_is_null);
    RUN(test_last_values_are_kept);
    RUN(test_text);
    RUN(test_requests_are_counted);
    RUN(test_duration_covers_the_retries);
    RUN(test_layers_polls_and_pauses);
    RUN(test_dropped_telemetry_is_counted);
    RUN(test_counting_can_be_off);
    RUN(test_too_many_names);
    return tap_done();
}
