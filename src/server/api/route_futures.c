/* route_futures.c - retrieve_futures: one long poll for all samples of a sampler.
 *
 * Every finished sample gets a number, larger than all before it, also than those before a restart.
 * A poll names the last number it has seen and is told of the samples of its target that finished
 * since; it then fetches their results with retrieve_future.  Nothing is consumed: a poll that is
 * repeated, or runs beside another one, is told the same. */
#include <stdlib.h>
#include <string.h>

#include "json/json.h"
#include "server/api/routes.h"
#include "server/work/sampler_table.h"

/* Copies of a sampler number their samples from multiples of this on. */
static const int64_t clone_stride = 1000000000;
enum { COMPLETIONS_MAX = 10000 }; /* in one response; the next poll is told of the rest */

struct completion {
    int64_t number;
    const char *id;
    size_t size;
    bool failed;
};

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = ((const struct completion *)a)->number, y = ((const struct completion *)b)->number;
    return x < y ? -1 : x > y;
}

/* Is f a sample of the target?  Ids are "<sampling session>:<number>". */
static bool is_of_target(const struct future *f, const struct request *req,
                         const struct wire_futures_retrieve_request *in)
{
    size_t n = strlen(in->target.sampling_session_id);
    if (f->kind != JOB_SAMPLE || strcmp(f->owner, req->user) != 0 ||
        strncmp(f->id, in->target.sampling_session_id, n) != 0 || f->id[n] != ':')
        return false;
    char *end;
    long long seq = strtoll(f->id + n + 1, &end, 10);
    return !*end && seq / clone_stride == in->target.cloned_sampler_id;
}

/* The samples that finished after prev_cursor, in the arena; -1: no memory. */
static int64_t collect_finished(struct server *s, struct request *req,
                                const struct wire_futures_retrieve_request *in,
                                struct completion **out)
{
    size_t it = 0, n_key;
    int64_t n = 0, max = 0;
    const char *key;
    void *value;
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->futures, &it, &key, &n_key, &value)) {
        struct future *f = value;
        bool over = f->state == FUTURE_DONE || f->state == FUTURE_FAILED;
        max += over && f->completion > in->prev_cursor && is_of_target(f, req, in);
    }
    struct completion *list = arena_array(&req->arena, (size_t)max, sizeof(*list));
    for (it = 0; list && map_next(&s->futures, &it, &key, &n_key, &value);) {
        struct future *f = value;
        bool over = f->state == FUTURE_DONE || f->state == FUTURE_FAILED;
        if (n == max || !over || f->completion <= in->prev_cursor || !is_of_target(f, req, in))
            continue;
        /* Copied: the timer thread may free the future after the lock. */
        list[n++] = (struct completion){ .number = f->completion,
                                         .id = arena_strdup(&req->arena, f->id),
                                         .size = f->n_result,
                                         .failed = f->state == FUTURE_FAILED };
    }
    pthread_mutex_unlock(&s->lock);
    *out = list;
    for (int64_t i = 0; list && i < n; i++)
        if (!list[i].id)
            return -1;
    return list ? n : -1;
}

static void reply_completions(struct response *res, struct completion *list, size_t n,
                              int64_t cursor)
{
    struct json_writer w;
    qsort(list, n, sizeof(*list), compare_numbers);
    n = n > COMPLETIONS_MAX ? COMPLETIONS_MAX : n;
    json_writer_init(&w, &res->body);
    json_put_begin_object(&w);
    json_put_key(&w, "completions");
    json_put_begin_array(&w);
    for (size_t i = 0; i < n; i++) {
        json_put_begin_object(&w);
        json_put_key(&w, "state");
        json_put_string(&w, list[i].failed ? "failed" : "finished");
        json_put_key(&w, "request_id");
        json_put_string(&w, list[i].id);
        if (!list[i].failed) {
            json_put_key(&w, "response_payload_uncompressed_size");
            json_put_uint64(&w, list[i].size);
        }
        json_put_end_object(&w);
    }
    json_put_end_array(&w);
    json_put_key(&w, "cursor");
    json_put_int64(&w, n ? list[n - 1].number : cursor);
    json_put_end_object(&w);
    res->status = 200;
    res->content_type = "application/json";
}

void route_retrieve_futures(struct server *s, struct request *req, struct response *res)
{
    struct wire_futures_retrieve_request *in = req->context;
    struct sampler_view v;
    if (!in) {
        in = arena_alloc(&req->arena, sizeof(*in));
        if (!in)
            response_no_memory(res);
        if (!in || !route_body(req, res, &wire_futures_retrieve_request, in) ||
            !sampler_table_find(s, req, res, in->target.sampling_session_id, &v))
            return;
        req->context = in;
    }
    struct completion *list;
    /* First, so that a sample which finishes while we look ends the hold at once. */
    listener_rearm(s->listener, &s->sample_finished);
    int64_t n = collect_finished(s, req, in, &list);
    if (n < 0)
        response_no_memory(res);
    else if (n > 0 || req->timed_out)
        reply_completions(res, list, (size_t)n, in->prev_cursor);
    else /* also when none runs: the next one may come while the poll is held */
        res->wait = &s->sample_finished;
}
