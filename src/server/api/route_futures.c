/* route_futures.c - retrieve_futures: one long poll for all samples of a sampler.
 *
 * Every finished sample gets a number, see sample_log.h.  A poll names the last number it has seen
 * and is told of the samples of its target that finished since; it then fetches their results with
 * retrieve_future.  Nothing is consumed: a poll that is repeated, or runs beside another one, is told
 * the same. */
#include "json/json.h"
#include "server/api/routes.h"
#include "server/work/sample_log.h"
#include "server/work/sampler_table.h"

enum { COMPLETIONS_MAX = 10000 }; /* in one response; the next poll is told of the rest */

struct completion {
    int64_t number;
    const char *id;
    size_t size;
    bool failed;
};

/* The samples of a log that finished after the cursor, oldest first, in the arena; -1: no memory. */
static int64_t copy_new_locked(const struct sample_log *log, int64_t cursor, struct arena *arena,
                               struct completion **out)
{
    const struct future *f = log->last;
    size_t n = 0, i = 0;
    for (; f && f->completion > cursor; f = f->log_prev)
        n++;
    n = n > COMPLETIONS_MAX ? COMPLETIONS_MAX : n;
    struct completion *list = *out = arena_array(arena, n, sizeof(*list));
    if (!list && n)
        return -1;
    for (f = f ? f->log_next : log->first; i < n; i++, f = f->log_next) {
        /* Copied: the timer thread may free the future after the lock. */
        list[i] = (struct completion){ .number = f->completion,
                                       .id = arena_strdup(arena, f->id),
                                       .size = f->n_result,
                                       .failed = f->state == FUTURE_FAILED };
        if (!list[i].id)
            return -1;
    }
    return (int64_t)n;
}

static void reply_completions(struct response *res, const struct completion *list, size_t n,
                              int64_t cursor)
{
    struct json_writer w;
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
    struct completion *list = NULL;
    int64_t n = -1;
    pthread_mutex_lock(&s->lock);
    struct sample_log *log =
        sample_log_find_locked(s, in->target.sampling_session_id, in->target.cloned_sampler_id);
    if (log)
        log->looked_ns = clock_now_ns(s->clock); /* so that it stays while the poll is held */
    pthread_mutex_unlock(&s->lock);
    /* First, so that a sample which finishes while we look ends the hold at once. */
    if (log)
        listener_rearm(s->listener, &log->wait);
    pthread_mutex_lock(&s->lock);
    if (log)
        n = copy_new_locked(log, in->prev_cursor, &req->arena, &list);
    pthread_mutex_unlock(&s->lock);
    bool patient = !in->timeout.has || in->timeout.value > 0;
    if (n < 0) {
        response_no_memory(res);
    } else if (n > 0 || req->timed_out || !patient) {
        reply_completions(res, list, (size_t)n, in->prev_cursor);
    } else { /* also when none runs: the next one may come while the poll is held */
        res->wait = &log->wait;
        /* Too long a wish, or none, is the longest hold. */
        if (in->timeout.has && in->timeout.value < 1000)
            res->wait_ms = (int64_t)(in->timeout.value * 1000) + 1;
    }
}
