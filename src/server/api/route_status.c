/* route_status.c - for monitors: /status, /metrics.
 *
 * Counters are atomics that only grow; gauges are read under the lock, all at one moment. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <tinker/version.h>

#include "server/api/routes.h"

/* The gauges at one moment. */
struct snapshot {
    /* As in struct server; the last three are the sizes of its maps. */
    size_t queued_samples, active_samples, queued_bytes, result_bytes, sessions, models, futures;
    struct listener_stats http;
    struct server_counters *counters; /* of a user who has done nothing yet: zeros */
};

/* What a user may see: an administrator everything, others what they do themselves.  Numbers of all
 * users together would tell one when, and how much, another works. */
static void take_snapshot(struct server *s, const struct request *req, struct snapshot *v)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    *v = (struct snapshot){ 0 };
    pthread_mutex_lock(&s->lock);
    const struct tenant *t = map_get(&s->tenants, req->user, strlen(req->user));
    if (req->admin) {
        v->queued_samples = s->queued_samples;
        v->active_samples = s->active_samples;
        v->queued_bytes = s->queued_bytes;
        v->result_bytes = s->result_bytes;
        v->sessions = s->sessions.len;
        v->models = s->models.len;
        v->futures = s->futures.len;
    } else if (t) {
        v->queued_samples = t->queued_samples;
        v->queued_bytes = t->queued_bytes;
        v->result_bytes = t->result_bytes;
        while (map_next(&s->sessions, &it, &key, &n, &value)) {
            const struct session *session = value;
            if (session->tenant != t)
                continue;
            v->active_samples += session->active_samples;
            v->models += session->n_models;
            v->sessions++;
        }
        for (it = 0; map_next(&s->futures, &it, &key, &n, &value);)
            v->futures += ((const struct future *)value)->session->tenant == t;
    }
    pthread_mutex_unlock(&s->lock);
    v->counters = req->admin ? &s->counters : live_user_counters(s, req->user);
    if (req->admin)
        listener_stats(s->listener, &v->http); /* its lock is never taken under the server's */
}

/* One metric in the Prometheus text format. */
static void put_metric(struct buf *b, const char *name, const char *type, const char *help,
                       double value)
{
    buf_printf(b, "# HELP tinker_%s %s\n# TYPE tinker_%s %s\ntinker_%s %.17g\n", name, help, name,
               type, name, value);
}

/* To add a metric, see README.md. */
void route_metrics(struct server *s, struct request *req, struct response *res)
{
    struct snapshot v;
    struct buf *b = &res->body;
    take_snapshot(s, req, &v);
    struct server_counters *c = v.counters;
    if (req->admin) {
        put_metric(b, "http_requests_total", "counter", "HTTP requests", (double)v.http.requests);
        put_metric(b, "http_received_bytes_total", "counter", "bytes of request bodies",
                   (double)v.http.bytes_in);
        put_metric(b, "http_held", "gauge", "long polls held now", (double)v.http.held);
        put_metric(b, "http_body_bytes", "gauge", "memory of request bodies",
                   (double)v.http.bodies);
    }
    put_metric(b, "train_tokens_total", "counter", "tokens of forward and forward_backward",
               (double)atomic_load(&c->train_tokens));
    put_metric(b, "prompt_tokens_total", "counter", "tokens of prompts",
               (double)atomic_load(&c->prompt_tokens));
    put_metric(b, "cached_tokens_total", "counter", "prompt tokens served from the cache",
               (double)atomic_load(&c->cached_tokens));
    put_metric(b, "sample_tokens_total", "counter", "tokens sampled",
               (double)atomic_load(&c->sample_tokens));
    put_metric(b, "passes_total", "counter", "forward and forward_backward requests done",
               (double)atomic_load(&c->passes));
    put_metric(b, "optim_steps_total", "counter", "optimizer steps",
               (double)atomic_load(&c->steps));
    put_metric(b, "samples_total", "counter", "samples done", (double)atomic_load(&c->samples));
    put_metric(b, "failures_total", "counter", "requests that failed",
               (double)atomic_load(&c->failures));
    /* The two sum up to the busy time of the engine thread. */
    put_metric(b, "train_seconds_total", "counter", "engine time of training",
               (double)atomic_load(&c->train_ns) / 1e9);
    put_metric(b, "sample_seconds_total", "counter", "engine time of sampling",
               (double)atomic_load(&c->sample_ns) / 1e9);
    /* Gauges. */
    put_metric(b, "queued_samples", "gauge", "samples waiting", (double)v.queued_samples);
    put_metric(b, "active_samples", "gauge", "samples running", (double)v.active_samples);
    put_metric(b, "queued_bytes", "gauge", "memory of waiting requests", (double)v.queued_bytes);
    put_metric(b, "result_bytes", "gauge", "memory of results", (double)v.result_bytes);
    put_metric(b, "sessions", "gauge", "sessions in memory", (double)v.sessions);
    put_metric(b, "models", "gauge", "models in memory", (double)v.models);
    put_metric(b, "futures", "gauge", "futures in memory", (double)v.futures);
    res->content_type = "text/plain; version=0.0.4";
}

/* "key": number. */
static void put_status_int(struct json_writer *w, const char *key, int64_t v)
{
    json_put_key(w, key);
    json_put_int64(w, v);
}

/* The same numbers as JSON, with the user's live runs. */
void route_status(struct server *s, struct request *req, struct response *res)
{
    struct snapshot v;
    struct json_writer w;
    size_t it = 0, n_key;
    const char *key;
    void *value;
    /* Resident memory of this process, in pages. */
    long long total = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm && fscanf(statm, "%lld %lld", &total, &resident) != 2)
        resident = 0;
    if (statm)
        fclose(statm);
    take_snapshot(s, req, &v);
    struct server_counters *c = v.counters;
    if (!req->admin)
        resident = 0;
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "version");
    json_put_string(&w, TINKER_VERSION);
    put_status_int(&w, "uptime_s", (clock_now_ns(s->clock) - s->started_ns) / 1000000000);
    put_status_int(&w, "memory_bytes", resident * sysconf(_SC_PAGESIZE));
    put_status_int(&w, "sessions", (int64_t)v.sessions);
    put_status_int(&w, "models", (int64_t)v.models);
    put_status_int(&w, "queued_samples", (int64_t)v.queued_samples);
    put_status_int(&w, "active_samples", (int64_t)v.active_samples);
    put_status_int(&w, "held", (int64_t)v.http.held);
    put_status_int(&w, "train_tokens", (int64_t)atomic_load(&c->train_tokens));
    put_status_int(&w, "sample_tokens", (int64_t)atomic_load(&c->sample_tokens));
    put_status_int(&w, "optim_steps", (int64_t)atomic_load(&c->steps));
    json_put_key(&w, "runs");
    json_put_begin_array(&w);
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->models, &it, &key, &n_key, &value)) {
        const struct model *m = value;
        if (m->state != MODEL_ACTIVE || strcmp(m->owner, req->user) != 0)
            continue;
        json_put_begin_object(&w);
        json_put_key(&w, "id");
        json_put_string(&w, m->id);
        json_put_key(&w, "base_model");
        json_put_string(&w, m->base->name);
        json_put_end_object(&w);
    }
    pthread_mutex_unlock(&s->lock);
    json_put_end_array(&w);
    json_put_end_object(&w);
    res->content_type = "application/json";
}
