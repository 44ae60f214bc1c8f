/* timers.c - holds, request gaps, sessions, checkpoints with a time limit, old results.
 *
 * Thread: its own; see timers.h. */
#include "server/store/timers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/err.h"
#include "base/os.h"
#include "server/store/checkpoint.h"
#include "server/store/evict.h"
#include "server/work/submit.h"

enum { TICK_MS = 500, SLOW_EVERY = 10 };
enum { FETCHED_TRAINING_S = 60 };
enum { EXPIRED_AT_ONCE = 1000 }; /* checkpoints; polls are held until the round is over */
/* A poll that was about to wait, or was just woken, still knows the future. */
enum { RESULT_TTL_MIN_S = 5 };

/* ---- request gaps --------------------------------------------------------------------- */

/* Run what waits behind a number that nobody will send.  The number itself is refused from
 * now on, so the store hears of it first: a restart must not let it run after the others. */
static void skip_gap(struct server *s, struct model *m)
{
    tinker_error err;
    pthread_mutex_lock(&s->lock);
    int64_t missing = m->next_seq, seq = m->pending ? m->pending->seq : missing;
    bool passed = seq > missing;
    pthread_mutex_unlock(&s->lock);
    /* A body that is arriving may be the missing one.  What the same user began to send later
     * is not waited for, or a busy one would have no end. */
    if (!passed || listener_is_receiving(s->listener, m->owner, m->gap_end_ns))
        return;
    if (store_set_skipped_seq(s->store, m->id, seq - 1, &err) != TINKER_OK) {
        log_line(s->log, LOG_ERROR, "%s: request %lld is missing: %s", m->id, (long long)missing,
                 err.message);
        return;
    }
    pthread_mutex_lock(&s->lock);
    passed = queue_skip_gap_locked(s, m, seq);
    pthread_mutex_unlock(&s->lock);
    if (passed)
        log_line(s->log, LOG_WARNING, "%s: request %lld did not arrive, going on with request %lld",
                 m->id, (long long)missing, (long long)seq);
}

static void skip_gaps(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    struct model *m = queue_due_gaps_locked(s, clock_now_ns(s->clock));
    pthread_mutex_unlock(&s->lock);
    if (!m)
        return;
    pthread_rwlock_rdlock(&s->evict_lock);
    pthread_mutex_lock(&s->submit_lock); /* what is missing does not come in between */
    pthread_mutex_lock(&s->lock);
    m = queue_due_gaps_locked(s, clock_now_ns(s->clock));
    pthread_mutex_unlock(&s->lock);
    for (; m; m = m->next_gap)
        skip_gap(s, m);
    pthread_mutex_unlock(&s->submit_lock);
    pthread_rwlock_unlock(&s->evict_lock);
}

/* ---- sessions --------------------------------------------------------------------------- */

/* The ids of the live models of a session, in the arena. */
static size_t list_session_models(struct server *s, struct session *session, struct arena *arena,
                                  const char ***out)
{
    size_t it = 0, n_key, n = 0;
    const char *key;
    void *value;
    *out = arena_array(arena, s->models.len + 1, sizeof(**out));
    if (!*out)
        return 0;
    while (map_next(&s->models, &it, &key, &n_key, &value)) {
        struct model *m = value;
        if (m->session == session && m->state == MODEL_ACTIVE)
            (*out)[n++] = arena_strdup(arena, m->id);
    }
    return n;
}

/* Unnamed sampler weights live as long as the session that they were made for.  Those of
 * models that are still to be unloaded go then: they may be making some now. */
static void drop_ephemeral(struct server *s, const char *session_id)
{
    struct arena arena;
    struct store_model *list;
    size_t n;
    arena_init(&arena, 64 << 20);
    if (store_list_models(s->store, NULL, session_id, -1, INT64_MAX, 0, &arena, &list, &n, NULL,
                          NULL) == TINKER_OK)
        for (size_t i = 0; i < n; i++)
            if (list[i].status != STORE_MODEL_ACTIVE)
                checkpoint_drop_hidden(s, list[i].id, 0);
    arena_clear(&arena);
}

void timers_expire_session(struct server *s, struct session *session, const char *reason)
{
    struct arena arena;
    const char **models;
    tinker_error err;
    pthread_mutex_lock(&s->lock);
    bool ended = session->expired; /* by its client and by time at the same moment */
    session->expired = true;
    pthread_mutex_unlock(&s->lock);
    if (ended)
        return;
    arena_init(&arena, 64 << 20);
    pthread_mutex_lock(&s->lock);
    s->drops++;
    struct future *dropped = queue_drop_session_locked(s, session);
    size_t n = list_session_models(s, session, &arena, &models);
    pthread_cond_signal(&s->work_ready);
    pthread_mutex_unlock(&s->lock);
    future_fail_list(s, dropped, "the session has expired");
    for (size_t i = 0; i < n; i++)
        submit_end_model(s, models[i], reason);
    if (store_set_session_expired(s->store, session->id, &err) != TINKER_OK)
        log_line(s->log, LOG_ERROR, "session %s: %s", session->id, err.message);
    drop_ephemeral(s, session->id);
    log_line(s->log, LOG_INFO, "session %s ended", session->id);
    arena_clear(&arena);
}

static struct session *next_expired(struct server *s)
{
    int64_t limit = clock_now_ns(s->clock) - s->opts.session_timeout_s * 1000000000;
    struct session *found = NULL;
    size_t it = 0, n;
    const char *key;
    void *value;
    pthread_mutex_lock(&s->lock);
    while (!found && map_next(&s->sessions, &it, &key, &n, &value)) {
        struct session *v = value;
        if (!v->expired && v->seen_ns < limit)
            found = v;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static void expire_sessions(struct server *s)
{
    struct session *v;
    while (s->opts.session_timeout_s >= 0 && (v = next_expired(s)) != NULL)
        timers_expire_session(s, v, "was unloaded because its session expired");
}

/* ---- checkpoints and results ---------------------------------------------------------------- */

static void expire_checkpoints(struct server *s)
{
    struct arena arena;
    struct store_checkpoint *list;
    size_t n;
    int64_t now_us = live_wall_us(s);
    arena_init(&arena, 64 << 20);
    if (store_expired_checkpoints(s->store, now_us, EXPIRED_AT_ONCE, &arena, &list, &n, NULL) !=
        TINKER_OK)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        struct store_checkpoint *c = &list[i];
        bool deleted;
        if (store_delete_expired(s->store, c, now_us, &deleted, NULL) == TINKER_OK && deleted)
            log_line(s->log, LOG_INFO, "checkpoint %s of %s expired", c->name, c->run);
        else
            c->dir = NULL;
    }
    for (size_t i = 0; i < n; i++) /* one wait for the disk for all of them */
        checkpoint_release(s, list[i].dir);
    arena_clear(&arena);
}

/* Forget outcomes that are older than age, since they were first fetched: an answer may get lost
 * and be asked for again.  Training outcomes are in the store too, so
 * they may go sooner: fetched ones always, others when memory is short. */
static void forget_older_locked(struct server *s, int64_t age_s, int64_t fetched_age_s,
                                bool is_short)
{
    int64_t now = clock_now_ns(s->clock);
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->futures, &it, &key, &n, &value)) {
        struct future *f = value;
        bool over = (f->state == FUTURE_DONE || f->state == FUTURE_FAILED) && !f->unrecorded;
        bool sooner = f->model ? f->delivered || is_short : f->delivered && is_short;
        int64_t since = f->fetched_ns ? f->fetched_ns : f->done_ns;
        if (over && now - since > (sooner ? fetched_age_s : age_s) * 1000000000)
            live_remove_future_locked(s, f);
    }
}

static void forget_results(struct server *s)
{
    static const int64_t ages[] = { 600, 60, 5 };
    int64_t ttl = s->opts.result_ttl_s;
    if (ttl < RESULT_TTL_MIN_S)
        ttl = RESULT_TTL_MIN_S;
    pthread_mutex_lock(&s->lock);
    forget_older_locked(s, ttl, FETCHED_TRAINING_S, false);
    for (size_t i = 0; i < ARRAY_LEN(ages); i++)
        if (s->result_bytes > (size_t)s->opts.max_result_bytes)
            forget_older_locked(s, ttl, ages[i], true);
    pthread_mutex_unlock(&s->lock);
    /* Within the first half an outcome is fetched first, within the second again. */
    store_prune_requests(s->store, live_wall_us(s) - 2 * ttl * 1000000, NULL);
}

void timers_run_once(struct server *s, bool slow)
{
    listener_expire(s->listener);
    skip_gaps(s);
    if (!slow)
        return;
    store_tidy(s->store);
    future_record_failures(s);
    expire_sessions(s);
    expire_checkpoints(s);
    forget_results(s);
    evict_ended(s);
}

/* ---- thread ------------------------------------------------------------------------------- */

static bool sleep_tick(struct server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* the other one may be set back */
    until.tv_nsec += TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    if (!s->stopping)
        pthread_cond_timedwait(&s->timers_wake, &s->lock, &until);
    bool go_on = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void *run_timers(void *arg)
{
    struct server *s = arg;
    os_thread_name("sweeper");
    for (unsigned tick = 1; sleep_tick(s); tick++)
        timers_run_once(s, tick % SLOW_EVERY == 0);
    return NULL;
}

tinker_status timers_start(struct server *s, tinker_error *err)
{
    if (pthread_create(&s->timer_thread, NULL, run_timers, s) != 0)
        return err_set(err, TINKER_ESTATE, "cannot start the timer thread");
    s->timers_started = true;
    return TINKER_OK;
}

void timers_stop(struct server *s)
{
    if (!s->timers_started)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->timers_wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->timer_thread, NULL);
    s->timers_started = false;
}
