/* sample_retry.c - see sample_retry.h. */
#include "client/sampling/sample_retry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "client/session/session.h"

enum { PROGRESS_LINE_S = 2 };

/* Each message names the field, since these options are mostly written by hand. */
tinker_status sample_retry_check(const tinker_retry_options *o, tinker_error *err)
{
    if (o->max_connections <= 0)
        return err_set(err, TINKER_EINVAL, "retry: max_connections must be positive, not %d",
                       o->max_connections);
    if (o->progress_ms <= 0)
        return err_set(err, TINKER_EINVAL, "retry: progress_ms must be positive");
    if (!(o->delay_base_ms > 0))
        return err_set(err, TINKER_EINVAL, "retry: delay_base_ms must be positive");
    if (o->delay_max_ms < o->delay_base_ms)
        return err_set(err, TINKER_EINVAL, "retry: delay_max_ms is less than delay_base_ms");
    if (!(o->jitter >= 0 && o->jitter <= 1))
        return err_set(err, TINKER_EINVAL, "retry: jitter must be between 0 and 1");
    if (o->max_retries < -1)
        return err_set(err, TINKER_EINVAL, "retry: max_retries must be -1 or more");
    return TINKER_OK;
}

static bool same_options(const tinker_retry_options *a, const tinker_retry_options *b)
{
    return a->max_connections == b->max_connections && a->progress_ms == b->progress_ms &&
           a->delay_base_ms == b->delay_base_ms && a->delay_max_ms == b->delay_max_ms &&
           a->jitter == b->jitter && a->max_retries == b->max_retries &&
           a->no_retries == b->no_retries && a->no_stuck_detection == b->no_stuck_detection;
}

/* The group of this session with these options, made when there is none: samplers with other
 * options have permits of their own. */
struct sample_retry *sample_retry_ref(struct session *session, const char *session_id,
                                      const tinker_retry_options *opts, tinker_error *err)
{
    for (struct sample_retry *h = session->sample_retries; h; h = h->next)
        if (strcmp(h->session_id, session_id) == 0 && same_options(&h->opts, opts)) {
            h->refs++;
            return h;
        }
    struct sample_retry *h = calloc(1, sizeof(*h));
    char *id = strdup(session_id);
    if (!h || !id) {
        free(h);
        free(id);
        err_nomem(err, "sampling");
        return NULL;
    }
    h->session = session;
    h->refs = 1;
    h->session_id = id;
    h->opts = *opts;
    /* The service's number, unless the caller asked for fewer; the default of 1000 stands for "as many
     * as the service says". */
    static const tinker_retry_options defaults = TINKER_RETRY_OPTIONS_INIT;
    int64_t permits = session->server.sample_max_concurrent_requests;
    if (opts->max_connections != defaults.max_connections && opts->max_connections < permits)
        permits = opts->max_connections;
    budget_init_permits(&h->permits, permits);
    h->next = session->sample_retries;
    session->sample_retries = h;
    return h;
}

void sample_retry_unref(struct sample_retry *h)
{
    if (!h || --h->refs > 0)
        return;
    for (struct sample_retry **at = &h->session->sample_retries; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    free(h->session_id);
    free(h);
}

/* Count equal messages together, for the next progress line; more kinds than there is room for
 * are not counted. */
void sample_retry_failed(struct sample_retry *h, const tinker_error *err)
{
    char text[sizeof(h->errors[0].text)];
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, err->message);
    for (int i = 0; i < SAMPLE_RETRY_ERRORS; i++) {
        struct sample_retry_error *e = &h->errors[i];
        if (e->n && strcmp(e->text, text) != 0)
            continue;
        memcpy(e->text, text, sizeof(text));
        e->n++;
        return;
    }
}

static int compare_frequency(const void *a, const void *b)
{
    return ((const struct sample_retry_error *)b)->n - ((const struct sample_retry_error *)a)->n;
}

/* At most one line in PROGRESS_LINE_S seconds, and one when the last sample is done. */
static void log_progress(struct sample_retry *h, int64_t now)
{
    const struct log *log = &h->session->log;
    if (log->level > LOG_DEBUG || (h->running > 0 && h->logged_ns &&
                                   now - h->logged_ns < PROGRESS_LINE_S * INT64_C(1000000000)))
        return;
    struct buf errors;
    buf_init(&errors, 4096);
    qsort(h->errors, SAMPLE_RETRY_ERRORS, sizeof(h->errors[0]), compare_frequency);
    for (int i = 0; i < SAMPLE_RETRY_ERRORS && h->errors[i].n; i++) { /* they count anew */
        buf_printf(&errors, "%s%d times %s", i ? ", " : "; failed: ", h->errors[i].n,
                   h->errors[i].text);
        h->errors[i].n = 0;
    }
    h->logged_ns = now;
    log_line(log, LOG_DEBUG, "samples of %s: %lld waiting, %d in progress, %lld completed%s",
             h->session_id, (long long)h->waiting, h->running, (long long)h->completed,
             errors.data ? errors.data : "");
    buf_clear(&errors);
}

/* The first sample of an idle group starts the clock of progress: time without any sample is not
 * being stuck. */
void sample_retry_enter(struct sample_retry *h)
{
    int64_t now = loop_now_ns(h->session->rt->loop);
    if (h->running++ == 0)
        h->progress_ns = now;
    log_progress(h, now);
}

void sample_retry_leave(struct sample_retry *h, bool completed)
{
    int64_t now = loop_now_ns(h->session->rt->loop);
    h->running--;
    if (completed) {
        h->progress_ns = now;
        h->completed++;
    }
    log_progress(h, now);
}

/* A sample that was still waiting for its permit is not waiting any more. */
void sample_retry_release(struct sample_retry *h, struct budget_wait *permit)
{
    if (permit->budget && !permit->holding)
        h->waiting--;
    budget_give(permit);
}
