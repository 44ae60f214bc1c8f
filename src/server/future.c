/* future.c - the end of a request: its outcome, and everybody who waits for it. */
#include "server/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void future_finish(struct server *s, struct future *f, bool failed, char *result, size_t n,
                   bool proto, int category)
{
    pthread_mutex_lock(&s->lock);
    free(f->result);
    s->result_bytes += n - f->n_result;
    f->result = result;
    f->n_result = n;
    f->proto = proto;
    f->category = category;
    f->done_ns = clock_now_ns(s->clock);
    bool was_running = f->state == FUTURE_RUNNING;
    f->state = failed ? FUTURE_FAILED : FUTURE_DONE;
    struct work *work = f->work;
    f->work = NULL;
    if (f->model && was_running)
        queue_done_locked(s, f);
    pthread_mutex_unlock(&s->lock);
    if (failed)
        atomic_fetch_add(&s->counters.failures, 1);
    listener_wake(s->listener, &f->wait);
    work_free(work);
}

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
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_redact(text, sizeof(text));
    if (f->model && !f->replay) {
        struct store_outcome outcome = { .model_id = f->model->id,
                                         .seq = f->seq,
                                         .status = STORE_FAILED,
                                         .result = text,
                                         .n_result = strlen(text),
                                         .category = category,
                                         .now_us = core_now_us(s) };
        tinker_error err = { 0 };
        if (store_finish_request(s->store, &outcome, &err) != TINKER_OK)
            log_line(s->log, LOG_ERROR, "%s: outcome not recorded: %s", f->id, err.message);
    }
    log_line(s->log, LOG_INFO, "%s %s failed: %s", work_kind_name(f->kind), f->id, text);
    char *message = strdup(text);
    future_finish(s, f, true, message, message ? strlen(message) : 0, false, category);
}

void future_fail_list(struct server *s, struct future *list, const char *reason)
{
    while (list) {
        struct future *next = list->next;
        list->next = NULL;
        future_fail(s, list, TINKER_CATEGORY_USER, "%s", reason);
        list = next;
    }
}
