/* future.c - the end of a request: its outcome, and the polls that wait for it.
 *
 * WAITING or RUNNING -> DONE or FAILED, once.  Order: record in the store (training only), set
 * the outcome under server.lock, wake the polls, free the job.  The timer thread may free the
 * future as soon as the lock is released, so callers must not touch it afterwards. */
#include "server/work/live_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/work/sample_log.h"

/* Memory of results: the server's sum makes them leave memory early (timers.c), a user's refuses
 * more requests (queue.c). */
void future_count_locked(struct server *s, struct future *f, size_t n_result)
{
    /* Unsigned arithmetic: adding a "negative" difference wraps around to the right sum. */
    s->result_bytes += n_result - f->n_result;
    f->session->tenant->result_bytes += n_result - f->n_result;
    f->n_result = n_result;
}

/* Takes over result.  The work on the future is over with this call, see above. */
void future_finish(struct server *s, struct future *f, bool failed, char *result, size_t n,
                   bool proto, int category)
{
    pthread_mutex_lock(&s->lock);
    free(f->result);
    f->result = result;
    future_count_locked(s, f, n);
    f->proto = proto;
    f->category = category;
    f->done_ns = clock_now_ns(s->clock);
    /* A request that was dropped from the queue never made its model busy. */
    bool was_running = f->state == FUTURE_RUNNING;
    f->state = failed ? FUTURE_FAILED : FUTURE_DONE;
    struct sample_log *log = f->log;
    sample_log_append_locked(s, f);
    struct tenant *tenant = f->session->tenant; /* stays until the end; f may not */
    struct job *job = f->job; /* freed below: it may be large, and the lock is everybody's */
    f->job = NULL;
    if (f->model && was_running)
        queue_done_locked(s, f);
    pthread_mutex_unlock(&s->lock);
    if (failed)
        live_count(&s->counters.failures, &tenant->counters.failures, 1);
    /* Outside of server.lock, which is a leaf.  The waitlist is safe: futures are freed by a later
     * round of the timer thread, at least RESULT_TTL_MIN_S from now. */
    listener_wake(s->listener, &f->wait);
    if (log) /* as safe: it stays as long as its futures */
        listener_wake(s->listener, &log->wait);
    job_free(job);
}

/* Whose fault is it?  The engine says so itself, or the status does. */
int future_category(const tinker_error *err)
{
    if (err->category != TINKER_CATEGORY_UNKNOWN)
        return err->category;
    return err->status == TINKER_EINVAL || err->status == TINKER_EREQUEST ? TINKER_CATEGORY_USER
                                                                          : TINKER_CATEGORY_SERVER;
}

void future_fail(struct server *s, struct future *f, int category, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    /* Cut to 512 bytes: an error message may quote input. */
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_redact(text, sizeof(text));
    /* Record first, as with a success.  A replayed request keeps its recorded outcome. */
    if (f->model && !f->replay) {
        /* Samples are not recorded at all: a restart loses them, and clients send them again. */
        struct store_outcome outcome = { .model_id = f->model->id,
                                         .seq = f->seq,
                                         .status = STORE_FAILED,
                                         .result = text,
                                         .n_result = strlen(text),
                                         .category = category,
                                         .drop_body = true,
                                         .now_us = live_wall_us(s) };
        tinker_error err = { 0 };
        if (store_finish_request(s->store, &outcome, &err) != TINKER_OK) {
            log_line(s->log, LOG_ERROR, "%s: outcome not recorded: %s", f->id, err.message);
            /* Fail anyway: the client must not wait.  future_record_outcomes() tries again. */
            pthread_mutex_lock(&s->lock);
            f->unrecorded = true;
            pthread_mutex_unlock(&s->lock);
        }
    }
    log_line(s->log, LOG_INFO, "%s %s failed: %s", job_kind_name(f->kind), f->id, text);
    struct observer *o = f->job ? f->job->observer : NULL;
    if (o) /* the stream gets the reason as its last event */
        o->finished(o, NULL, text);
    char *message = strdup(text); /* NULL: it fails without a reason */
    future_finish(s, f, true, message, message ? strlen(message) : 0, false, category);
}

/* The list is linked by `next`, which the queue used before: each is unlinked from the rest
 * first. */
void future_fail_list(struct server *s, struct future *list, const char *reason)
{
    while (list) {
        struct future *next = list->next;
        list->next = NULL;
        future_fail(s, list, TINKER_CATEGORY_USER, "%s", reason);
        list = next;
    }
}

/* Find an outcome that the store does not know yet and copy it to the arena; false: none. */
static bool next_unrecorded(struct server *s, struct arena *arena, const char **id,
                            struct store_outcome *out)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    bool found = false;
    pthread_mutex_lock(&s->lock);
    while (!found && map_next(&s->futures, &it, &key, &n, &value)) {
        struct future *f = value;
        bool over = f->state == FUTURE_DONE || f->state == FUTURE_FAILED;
        /* A request that runs again will be recorded by its own end. */
        if (!f->unrecorded || !over)
            continue;
        *id = arena_strdup(arena, f->id);
        *out =
            (struct store_outcome){ .model_id = f->model->id,
                                    .seq = f->seq,
                                    .status = f->state == FUTURE_DONE ? STORE_DONE : STORE_FAILED,
                                    .result = arena_memdup(arena, f->result ? f->result : "",
                                                           f->n_result),
                                    .n_result = f->n_result,
                                    .category = f->category,
                                    .drop_body = true };
        found = *id && out->result;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* On the timer thread.  Until an outcome is on disk a restart would run its request again, and a
 * client that has seen the result would see the model change twice. */
void future_record_outcomes(struct server *s)
{
    struct arena arena;
    struct store_outcome outcome;
    const char *id;
    bool recorded = true;
    arena_init(&arena, 64 << 20);
    /* Stop at the first error: the store is still not writable. */
    while (recorded && next_unrecorded(s, &arena, &id, &outcome)) {
        outcome.now_us = live_wall_us(s);
        recorded = store_finish_request(s->store, &outcome, NULL) == TINKER_OK;
        pthread_mutex_lock(&s->lock);
        struct future *f = live_find_future_locked(s, id);
        if (f && recorded)
            f->unrecorded = false;
        pthread_mutex_unlock(&s->lock);
    }
    arena_clear(&arena);
}
