/* route_page.c - for people and monitors: banner, numbers. */
#include <stdio.h>
#include <string.h>
#include <tinker/version.h>

#include "server/routes.h"

void route_page(struct server *s, struct request *req, struct response *res)
{
    (void)s, (void)req;
    response_json(res, "{\"name\":\"tinker\",\"version\":\"" TINKER_VERSION
                       "\",\"api\":\"/api/v1\",\"metrics\":\"/metrics\"}");
}

/* What the queues look like now. */
struct snapshot {
    size_t queued_samples, active_samples, queued_bytes, sessions, models, futures;
    struct listener_stats http;
};

static void take_snapshot(struct server *s, struct snapshot *v)
{
    pthread_mutex_lock(&s->lock);
    v->queued_samples = s->queued_samples;
    v->active_samples = s->active_samples;
    v->queued_bytes = s->queued_bytes;
    v->sessions = s->sessions.len;
    v->models = s->models.len;
    v->futures = s->futures.len;
    pthread_mutex_unlock(&s->lock);
    listener_stats(s->listener, &v->http);
}

static void put_metric(struct buf *b, const char *name, const char *type, const char *help,
                       double value)
{
    buf_printf(b, "# HELP tinker_%s %s\n# TYPE tinker_%s %s\ntinker_%s %.17g\n", name, help, name,
               type, name, value);
}

void route_metrics(struct server *s, struct request *req, struct response *res)
{
    struct snapshot v;
    struct server_counters *c = &s->counters;
    struct buf *b = &res->body;
    (void)req;
    take_snapshot(s, &v);
    put_metric(b, "http_requests_total", "counter", "HTTP requests", (double)v.http.requests);
    put_metric(b, "http_received_bytes_total", "counter", "bytes of request bodies",
               (double)v.http.bytes_in);
    put_metric(b, "http_held", "gauge", "long polls held now", (double)v.http.held);
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
    put_metric(b, "optim_steps_total", "counter", "optimiser steps",
               (double)atomic_load(&c->steps));
    put_metric(b, "samples_total", "counter", "samples done", (double)atomic_load(&c->samples));
    put_metric(b, "failures_total", "counter", "requests that failed",
               (double)atomic_load(&c->failures));
    put_metric(b, "train_seconds_total", "counter", "engine time of training",
               (double)atomic_load(&c->train_ns) / 1e9);
    put_metric(b, "sample_seconds_total", "counter", "engine time of sampling",
               (double)atomic_load(&c->sample_ns) / 1e9);
    put_metric(b, "queued_samples", "gauge", "samples waiting", (double)v.queued_samples);
    put_metric(b, "active_samples", "gauge", "samples being made", (double)v.active_samples);
    put_metric(b, "queued_bytes", "gauge", "memory of waiting requests", (double)v.queued_bytes);
    put_metric(b, "sessions", "gauge", "sessions in memory", (double)v.sessions);
    put_metric(b, "models", "gauge", "models in memory", (double)v.models);
    put_metric(b, "futures", "gauge", "futures in memory", (double)v.futures);
    res->content_type = "text/plain; version=0.0.4";
}

void route_status(struct server *s, struct request *req, struct response *res)
{
    struct snapshot v;
    (void)req;
    take_snapshot(s, &v);
    buf_printf(&res->body,
               "{\"version\":\"" TINKER_VERSION "\",\"uptime_s\":%lld,\"sessions\":%zu,"
               "\"models\":%zu,\"queued_samples\":%zu,\"active_samples\":%zu}",
               (long long)((clock_now_ns(s->clock) - s->started_ns) / 1000000000), v.sessions,
               v.models, v.queued_samples, v.active_samples);
    res->content_type = "application/json";
}
