/* metrics.c - counters, gauges and histograms of this process, without locks.
 *
 * The registry is a fixed array of lists that only grow at their heads, so readers walk
 * it while writers push.  A metric is never freed.  Each number of a histogram is exact;
 * that they belong together holds when nobody records. */
#include "client/observe/metrics.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/extra/metrics.h>
#include "base/arena.h"
#include "base/array.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/map.h"
#include "base/number.h"

/* SLOTS lists by hash; NAMES_MAX bounds what names made at run time can take. */
enum { SLOTS = 1024, NAMES_MAX = 4096, NAME_LEN_MAX = 200, BOUNDS = TINKER_HISTOGRAM_BUCKETS - 1 };
enum { RETAIN_DEFAULT = 1000, RETAIN_MAX = 1000000 };

/* Upper bounds of the buckets in milliseconds; one more bucket takes all above. */
static const double bounds[BOUNDS] = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000 };

struct histogram {
    atomic_llong buckets[TINKER_HISTOGRAM_BUCKETS];
    _Atomic double sum, min, max;
    /* Also the number of values ever recorded, so next % retain walks around as a ring. */
    atomic_size_t next; /* values so far: the next goes to next % retain */
    size_t retain;
    _Atomic double values[]; /* NaN: none yet */
};

struct metric {
    struct metric *next; /* constant once published */
    enum metric_kind kind;
    atomic_llong count;   /* counters */
    _Atomic double value; /* gauges */
    struct histogram *histogram;
    char name[];
};

static struct metric *_Atomic slots[SLOTS];
static atomic_int n_names;
static atomic_size_t retain = RETAIN_DEFAULT;

/* ---- the registry ----------------------------------------------------------------------- */

/* Not atomic as a whole: a record at the same moment may be lost or half counted. */
static void clear_histogram(struct histogram *h)
{
    for (int i = 0; i < TINKER_HISTOGRAM_BUCKETS; i++)
        atomic_store(&h->buckets[i], 0);
    atomic_store(&h->sum, 0);
    /* So that the first value is both the least and the greatest. */
    atomic_store(&h->min, INFINITY);
    atomic_store(&h->max, -INFINITY);
    for (size_t i = 0; i < h->retain; i++)
        atomic_store_explicit(&h->values[i], NAN, memory_order_relaxed);
    atomic_store(&h->next, 0);
}

static void metric_free(struct metric *m)
{
    if (m)
        free(m->histogram);
    free(m);
}

static struct metric *metric_new(enum metric_kind kind, const char *name, size_t n)
{
    struct metric *m = calloc(1, sizeof(*m) + n + 1);
    if (!m)
        return NULL;
    m->kind = kind;
    memcpy(m->name, name, n);
    /* Only histograms have a second block, sized by the retention at the time they are made. */
    if (kind != METRIC_HISTOGRAM)
        return m;
    size_t kept = atomic_load(&retain);
    m->histogram = calloc(1, sizeof(*m->histogram) + kept * sizeof(double));
    if (!m->histogram) {
        metric_free(m);
        return NULL;
    }
    m->histogram->retain = kept;
    clear_histogram(m->histogram);
    return m;
}

/* From `from` up to, not including, `until`: only the part of the list that was not searched
 * yet. */
static struct metric *find_metric(struct metric *from, const struct metric *until,
                                  enum metric_kind kind, const char *name)
{
    for (struct metric *m = from; m != until; m = m->next)
        if (m->kind == kind && strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

/* Any thread.  The name is looked up or made; NULL: not a name, too many, or no memory, and
 * then the functions that record do nothing. */
struct metric *metric_get(enum metric_kind kind, const char *name)
{
    size_t n = name ? strnlen(name, NAME_LEN_MAX + 1) : 0;
    if (n == 0 || n > NAME_LEN_MAX)
        return NULL;
    struct metric *_Atomic *slot = &slots[hash_fnv1a(name, n) % SLOTS];
    struct metric *head = atomic_load(slot), *seen = head;
    struct metric *m = find_metric(head, NULL, kind, name);
    if (m)
        return m;
    /* Reserve the name before making it; two threads together can only reserve too much for
     * a moment. */
    if (atomic_fetch_add(&n_names, 1) >= NAMES_MAX || !(m = metric_new(kind, name, n))) {
        atomic_fetch_sub(&n_names, 1);
        return NULL;
    }
    for (;;) {
        /* Push at the head.  A failed exchange loads the new head, and only what came since
         * needs to be searched. */
        m->next = head;
        if (atomic_compare_exchange_weak(slot, &head, m))
            return m;
        struct metric *same = find_metric(head, seen, kind, name); /* somebody was faster */
        if (same) {
            atomic_fetch_sub(&n_names, 1);
            metric_free(m);
            return same;
        }
        seen = head;
    }
}

/* ---- recording -------------------------------------------------------------------------- */

/* Relaxed: each counter is a number of its own, and nothing else is published through it. */
void metric_add(struct metric *m, int64_t delta)
{
    if (m)
        atomic_fetch_add_explicit(&m->count, delta, memory_order_relaxed);
}

void metric_set(struct metric *m, double value)
{
    if (m)
        atomic_store_explicit(&m->value, value, memory_order_relaxed);
}

void metric_record(struct metric *m, double ms)
{
    /* NaN and infinity would spoil the sum for ever. */
    if (!m || !isfinite(ms))
        return;
    struct histogram *h = m->histogram;
    /* C11 has no fetch-add for doubles, hence the loop. */
    double old = atomic_load_explicit(&h->sum, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&h->sum, &old, old + ms)) {
    }
    old = atomic_load_explicit(&h->min, memory_order_relaxed);
    while (ms < old && !atomic_compare_exchange_weak(&h->min, &old, ms)) {
    }
    old = atomic_load_explicit(&h->max, memory_order_relaxed);
    while (ms > old && !atomic_compare_exchange_weak(&h->max, &old, ms)) {
    }
    size_t at = atomic_fetch_add_explicit(&h->next, 1, memory_order_relaxed);
    atomic_store_explicit(&h->values[at % h->retain], ms, memory_order_relaxed);
    /* The bounds are inclusive, as Prometheus defines "le". */
    int bucket = 0;
    while (bucket < BOUNDS && ms > bounds[bucket])
        bucket++;
    /* Last: a reader that sees the count sees the rest, too. */
    atomic_fetch_add(&h->buckets[bucket], 1);
}

void tinker_counter_add(const char *name, int64_t delta)
{
    metric_add(metric_get(METRIC_COUNTER, name), delta);
}

void tinker_gauge_set(const char *name, double value)
{
    metric_set(metric_get(METRIC_GAUGE, name), value);
}

void tinker_histogram_record(const char *name, double ms)
{
    metric_record(metric_get(METRIC_HISTOGRAM, name), ms);
}

/* For histograms made from now on; the existing ones keep their size. */
void tinker_metrics_retain(size_t n)
{
    atomic_store(&retain, n == 0 ? RETAIN_DEFAULT : n < RETAIN_MAX ? n : RETAIN_MAX);
}

void tinker_metrics_flush(void)
{
    atomic_thread_fence(memory_order_seq_cst); /* a record is in place when its call returns */
}

/* Names stay, since callers hold pointers to metrics. */
void tinker_metrics_reset(void)
{
    for (size_t i = 0; i < SLOTS; i++)
        for (struct metric *m = atomic_load(&slots[i]); m; m = m->next) {
            atomic_store(&m->count, 0);
            atomic_store(&m->value, 0);
            if (m->histogram)
                clear_histogram(m->histogram);
        }
}

/* The library's own metrics, looked up once per configuration so that recording costs no
 * hash. */
void own_metrics_init(struct own_metrics *o, const char *prefix)
{
    const struct {
        struct metric **to;
        const char *name;
        enum metric_kind kind;
    } table[] = {
        { &o->requests, "requests_total", METRIC_COUNTER },
        { &o->successes, "requests_success", METRIC_COUNTER },
        { &o->failures, "requests_failure", METRIC_COUNTER },
        { &o->duration, "request_duration_ms", METRIC_HISTOGRAM },
        { &o->attempt_retries, "http_retries_total", METRIC_COUNTER },
        { &o->try_retries, "call_retries_total", METRIC_COUNTER },
        { &o->sample_retries, "sample_retries_total", METRIC_COUNTER },
        { &o->polls, "polls_total", METRIC_COUNTER },
        { &o->rate_limited, "rate_limited_total", METRIC_COUNTER },
        { &o->queue_pauses, "queue_pauses_total", METRIC_COUNTER },
        { &o->telemetry_dropped, "telemetry_dropped_total", METRIC_COUNTER },
        { &o->events_dropped, "events_dropped_total", METRIC_COUNTER },
        { &o->circuit_refused, "circuit_refused_total", METRIC_COUNTER },
    };
    char name[NAME_LEN_MAX + 64];
    /* A name that cannot be made leaves NULL, which metric_add() takes. */
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        snprintf(name, sizeof(name), "%s_%s", prefix, table[i].name);
        *table[i].to = metric_get(table[i].kind, name);
    }
}

/* ---- looking ----------------------------------------------------------------------------- */

struct snapshot {
    tinker_metrics m; /* first: what the user holds */
    struct arena arena;
};

static int compare_samples(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that is not below pct percent of v[0..n), which is sorted. */
static double compute_percentile(const double *v, size_t n, size_t pct)
{
    /* Nearest rank: ceil(n * pct / 100), counted from 1. */
    return v[(n * pct + 99) / 100 - 1];
}

/* A snapshot of one histogram.  Count comes from the buckets, percentiles only from the
 * values that are retained. */
static bool read_histogram(const struct metric *m, tinker_histogram *out)
{
    struct histogram *h = m->histogram;
    *out = (tinker_histogram){ m->name, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, { 0 } };
    for (int i = 0; i < TINKER_HISTOGRAM_BUCKETS; i++)
        out->count += out->buckets[i] = atomic_load(&h->buckets[i]);
    double *v = malloc(h->retain * sizeof(*v));
    size_t n = 0;
    if (!v)
        return false;
    for (size_t i = 0; i < h->retain; i++) {
        v[n] = atomic_load_explicit(&h->values[i], memory_order_relaxed);
        /* NaN marks a place that was never written; the next one overwrites it. */
        n += !isnan(v[n]);
    }
    if (out->count > 0 && n > 0) {
        qsort(v, n, sizeof(*v), compare_samples);
        out->sum = atomic_load(&h->sum);
        out->mean = out->sum / (double)out->count;
        out->min = atomic_load(&h->min);
        out->max = atomic_load(&h->max);
        /* The median of an even number is the mean of the two in the middle. */
        out->p50 = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
        out->p95 = compute_percentile(v, n, 95);
        out->p99 = compute_percentile(v, n, 99);
    }
    free(v);
    return true;
}

static int compare_metrics(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b); /* first member of all three */
}

/* max is the number of names when the snapshot began; it sizes all three arrays, because the
 * kinds are not counted apart. */
static bool fill_snapshot(struct snapshot *s, size_t max)
{
    tinker_counter *c = arena_array(&s->arena, max, sizeof(*c));
    tinker_named_number *g = arena_array(&s->arena, max, sizeof(*g));
    tinker_histogram *h = arena_array(&s->arena, max, sizeof(*h));
    tinker_metrics *out = &s->m;
    if (!c || !g || !h)
        return false;
    for (size_t i = 0; i < SLOTS; i++)
        for (struct metric *m = atomic_load(&slots[i]); m; m = m->next) {
            if (out->n_counters + out->n_gauges + out->n_histograms == max)
                break; /* made since they were counted */
            if (m->kind == METRIC_COUNTER)
                c[out->n_counters++] = (tinker_counter){ m->name, atomic_load(&m->count) };
            else if (m->kind == METRIC_GAUGE)
                g[out->n_gauges++] = (tinker_named_number){ m->name, atomic_load(&m->value) };
            else if (!read_histogram(m, &h[out->n_histograms++]))
                return false;
        }
    /* By name, so that the text is the same from run to run. */
    qsort(c, out->n_counters, sizeof(*c), compare_metrics);
    qsort(g, out->n_gauges, sizeof(*g), compare_metrics);
    qsort(h, out->n_histograms, sizeof(*h), compare_metrics);
    out->counters = c;
    out->gauges = g;
    out->histograms = h;
    return true;
}

tinker_metrics *tinker_metrics_snapshot(tinker_error *err)
{
    struct snapshot *s = calloc(1, sizeof(*s));
    if (s) {
        arena_init(&s->arena, SIZE_MAX);
        if (fill_snapshot(s, (size_t)atomic_load(&n_names)))
            return &s->m;
        tinker_metrics_free(&s->m);
    }
    err_nomem(err, "metrics");
    return NULL;
}

void tinker_metrics_free(tinker_metrics *m)
{
    struct snapshot *s = (struct snapshot *)m; /* first member */
    if (!s)
        return;
    arena_clear(&s->arena);
    free(s);
}

int64_t tinker_metrics_counter(const tinker_metrics *m, const char *name)
{
    for (size_t i = 0; i < m->n_counters; i++)
        if (strcmp(m->counters[i].name, name) == 0)
            return m->counters[i].value;
    return 0;
}

const tinker_histogram *tinker_metrics_histogram(const tinker_metrics *m, const char *name)
{
    for (size_t i = 0; i < m->n_histograms; i++)
        if (strcmp(m->histograms[i].name, name) == 0)
            return &m->histograms[i];
    return NULL;
}

/* ---- as text ------------------------------------------------------------------------------ */

/* [a-zA-Z_:][a-zA-Z0-9_:]*; everything else becomes an underscore.
 * A name as Prometheus allows it. */
static void put_name(struct buf *b, const char *name)
{
    if (*name >= '0' && *name <= '9')
        buf_putc(b, '_');
    for (; *name; name++) {
        bool ok = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                  (*name >= '0' && *name <= '9') || *name == '_' || *name == ':';
        buf_putc(b, ok ? *name : '_');
    }
}

static void put_type(struct buf *b, const char *name, const char *type)
{
    buf_puts(b, "# TYPE ");
    put_name(b, name);
    buf_printf(b, " %s\n", type);
}

/* 17 digits bring back the same double. */
static void put_number(struct buf *b, double v)
{
    char text[NUMBER_SIZE];
    number_text(v, 17, text);
    buf_printf(b, "%s\n", text);
}

/* Prometheus buckets are cumulative: each counts everything up to its bound. */
static void put_histogram(struct buf *b, const tinker_histogram *h)
{
    int64_t below = 0;
    put_type(b, h->name, "histogram");
    for (int i = 0; i < TINKER_HISTOGRAM_BUCKETS; i++) {
        below += h->buckets[i];
        put_name(b, h->name);
        if (i < BOUNDS)
            buf_printf(b, "_bucket{le=\"%g\"} %lld\n", bounds[i], (long long)below);
        else
            buf_printf(b, "_bucket{le=\"+Inf\"} %lld\n", (long long)below);
    }
    put_name(b, h->name);
    buf_puts(b, "_sum ");
    put_number(b, h->sum);
    put_name(b, h->name);
    buf_printf(b, "_count %lld\n", (long long)h->count);
}

tinker_status tinker_metrics_text(const tinker_metrics *m, tinker_text *out, tinker_error *err)
{
    struct buf b;
    buf_init(&b, 64 << 20);
    /* So that no metrics give an empty text instead of NULL. */
    buf_puts(&b, "");
    for (size_t i = 0; i < m->n_counters; i++) {
        put_type(&b, m->counters[i].name, "counter");
        put_name(&b, m->counters[i].name);
        buf_printf(&b, " %lld\n", (long long)m->counters[i].value);
    }
    for (size_t i = 0; i < m->n_gauges; i++) {
        put_type(&b, m->gauges[i].name, "gauge");
        put_name(&b, m->gauges[i].name);
        buf_putc(&b, ' ');
        put_number(&b, m->gauges[i].value);
    }
    for (size_t i = 0; i < m->n_histograms; i++)
        put_histogram(&b, &m->histograms[i]);
    tinker_status s = buf_ok(&b) ? tinker_text_append(out, b.data, b.len, err)
                                 : err_nomem(err, "text of metrics");
    buf_clear(&b);
    return s;
}
