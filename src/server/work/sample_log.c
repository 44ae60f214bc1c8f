/* sample_log.c - see sample_log.h. */
#include "server/work/sample_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Much longer than any hold: no connection waits for a log that no poll has looked at since. */
static const int64_t IDLE_NS = (int64_t)600 * 1000000000;

/* A key is the id of a sampling session, "<uuid>:sample:<number>", and the number of a clone: less
 * than 100 bytes, so none is ever cut. */
enum { KEY_MAX = 400 };

/* Frees the log alone.  At shutdown its futures are freed before it, so no link is followed. */
void sample_log_free(struct sample_log *log)
{
    if (!log)
        return;
    free(log->key);
    free(log);
}

/* key is "<sampling session>:<clone>".  Made on demand: a poll may come before the first sample. */
static struct sample_log *find_log_locked(struct server *s, const char *key)
{
    struct sample_log *log = map_get(&s->sample_logs, key, strlen(key));
    if (log)
        return log;
    log = calloc(1, sizeof(*log));
    if (!log)
        return NULL;
    log->key = strdup(key);
    log->looked_ns = clock_now_ns(s->clock);
    if (log->key && map_put(&s->sample_logs, key, strlen(key), log, NULL))
        return log;
    sample_log_free(log);
    return NULL;
}

struct sample_log *sample_log_find_locked(struct server *s, const char *sampling_session_id,
                                          int64_t clone)
{
    char key[KEY_MAX];
    snprintf(key, sizeof(key), "%s:%lld", sampling_session_id, (long long)clone);
    return find_log_locked(s, key);
}

bool sample_log_join_locked(struct server *s, struct future *f)
{
    char key[KEY_MAX], *end;
    const char *colon = strrchr(f->id, ':');
    /* A sample without a number has a random id, which its client alone knows. */
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return true;
    /* Clone c numbers its samples from c * SAMPLE_CLONE_STRIDE on; the first client is clone 0. */
    long long seq = strtoll(colon + 1, &end, 10);
    snprintf(key, sizeof(key), "%.*s:%lld", (int)(colon - f->id), f->id, seq / SAMPLE_CLONE_STRIDE);
    f->log = find_log_locked(s, key);
    if (f->log)
        f->log->n_futures++; /* keeps the log, and its waitlist, until the sample is freed */
    return f->log != NULL;
}

void sample_log_append_locked(struct server *s, struct future *f)
{
    struct sample_log *log = f->log;
    if (!log)
        return;
    /* At least the wall clock in milliseconds: numbers after a restart are above those before it,
     * so clients keep their cursors.  That holds for up to 1000 samples per second on average. */
    int64_t now = live_wall_us(s) / 1000;
    s->completions = s->completions < now ? now : s->completions + 1;
    f->completion = s->completions;
    /* At the end: the list ascends, and a poll reads it backward to its cursor. */
    f->log_prev = log->last;
    *(log->last ? &log->last->log_next : &log->first) = f;
    log->last = f;
}

void sample_log_leave_locked(struct future *f)
{
    struct sample_log *log = f->log;
    if (!log)
        return;
    /* 0 until the sample is over: it counts, but is not in the list. */
    if (f->completion) {
        *(f->log_prev ? &f->log_prev->log_next : &log->first) = f->log_next;
        *(f->log_next ? &f->log_next->log_prev : &log->last) = f->log_prev;
    }
    log->n_futures--;
    f->log = NULL;
}

void sample_log_evict_locked(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    int64_t now_ns = clock_now_ns(s->clock);
    while (map_next(&s->sample_logs, &it, &key, &n, &value)) {
        struct sample_log *log = value;
        /* A connection that is held waits on log->wait: freeing that would leave it hanging. */
        if (log->n_futures || now_ns - log->looked_ns < IDLE_NS)
            continue;
        map_remove(&s->sample_logs, key, n);
        sample_log_free(log);
    }
}
