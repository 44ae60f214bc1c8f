/* timers.c - everything that ends because time has passed: see timers.h.
 *
 * Every tick: held polls, slow clients, gaps in request numbers.  Every SLOW_EVERY ticks: the
 * log of the store, outcomes that could not be recorded, sessions, checkpoints, results, and
 * what can leave memory.
 *
 * Thread: its own, called the timer thread elsewhere. */
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
#include "server/work/sampler_table.h"
#include "server/work/submit.h"
#include "server/work/usage.h"

enum { TICK_MS = 500, SLOW_EVERY = 10, STORAGE_EVERY = 120 };
/* Fetched training results leave memory after this time; the store still has them. */
enum { FETCHED_TRAINING_S = 60 };
/* Fetched samples go for good.  A response that was lost is asked for again within this time: no
 * client retries for longer. */
enum { FETCHED_SAMPLE_S = 300 };
/* What a request takes beside its result, about: its record, names and place in the map. */
enum { FUTURE_BYTES = 1024 };
/* Checkpoints per round: held polls are not ended before the round is over. */
enum { EXPIRED_AT_ONCE = 1000 };
enum { EXPIRE_EVERY = 64 }; /* sessions between two looks at held polls */
/* A handler that is about to wait for a future, or was just woken, still has its waitlist. */
enum { RESULT_TTL_MIN_S = 5 };

/* ---- request gaps --------------------------------------------------------------------- */

/* Run what waits behind a number that nobody will send: see queue.c for when that is certain. */
static void skip_gaps(struct server *s)
{
    tinker_error err;
    /* A look without the other locks first: nearly always there is nothing to do. */
    pthread_mutex_lock(&s->lock);
    struct model *m = queue_due_gaps_locked(s, clock_now_ns(s->clock));
    pthread_mutex_unlock(&s->lock);
    if (!m)
        return;
    pthread_rwlock_rdlock(&s->evict_lock); /* m stays valid */
    pthread_mutex_lock(&s->submit_lock);   /* the missing request cannot arrive in between */
    pthread_mutex_lock(&s->lock);
    m = queue_due_gaps_locked(s, clock_now_ns(s->clock));
    pthread_mutex_unlock(&s->lock);
    for (; m; m = m->next_gap) {
        pthread_mutex_lock(&s->lock);
        int64_t missing = m->next_seq, seq = m->pending ? m->pending->seq : missing;
        pthread_mutex_unlock(&s->lock);
        /* A body that is arriving may be the missing one.  What the same user began to send
         * after the gap's end is not waited for, or a busy client would keep it open. */
        if (seq <= missing || listener_is_receiving(s->listener, m->owner, m->gap_end_ns))
            continue;
        /* The skipped numbers are refused from now on.  Record that first: a restart must not
         * let one of them run after the others. */
        if (store_set_skipped_seq(s->store, m->id, seq - 1, &err) != TINKER_OK) {
            log_line(s->log, LOG_ERROR, "%s: request %lld is missing: %s", m->id,
                     (long long)missing, err.message);
            continue;
        }
        pthread_mutex_lock(&s->lock);
        bool skipped = queue_skip_gap_locked(s, m, seq);
        pthread_mutex_unlock(&s->lock);
        if (skipped)
            log_line(s->log, LOG_WARNING,
                     "%s: request %lld did not arrive, continuing with request %lld", m->id,
                     (long long)missing, (long long)seq);
    }
    pthread_mutex_unlock(&s->submit_lock);
    pthread_rwlock_unlock(&s->evict_lock);
}

/* ---- sessions --------------------------------------------------------------------------- */

/* The ids of a session's live models, in the arena; NULL: no memory. */
static const char **copy_model_ids(struct server *s, const struct session *session,
                                   struct arena *arena, size_t *n)
{
    pthread_mutex_lock(&s->lock);
    const char **ids = arena_array(arena, session->n_models + 1, sizeof(*ids));
    for (struct model *m = session->models; ids && m; m = m->next_of_session)
        if (m->state == MODEL_ACTIVE)
            ids[(*n)++] = arena_strdup(arena, m->id);
    pthread_mutex_unlock(&s->lock);
    return ids;
}

/* Weights that only the sampling sessions of this session kept: those saved over meanwhile. */
static void release_sampler_weights(struct server *s, const struct session *session,
                                    struct arena *arena)
{
    struct store_sampler *list;
    size_t n = 0;
    const char *last = "";
    if (store_list_samplers(s->store, session->id, arena, &list, &n, NULL) != TINKER_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        /* Most in a row have the same weights. */
        if (list[i].dir && *list[i].dir && strcmp(list[i].dir, last) != 0)
            checkpoint_release(s, list[i].dir);
        last = list[i].dir ? list[i].dir : "";
    }
}

/* Live -> expired, once.  Order: no new requests, waiting samples fail, running ones are dropped
 * by the engine thread, models are unloaded, then the store knows.  Should the process die in
 * between, recover.c or the next timeout finishes it. */
void timers_expire_session(struct server *s, struct session *session, const char *reason)
{
    struct arena arena;
    struct store_model *list;
    size_t n_models = 0, n_list = 0;
    tinker_error err;
    pthread_mutex_lock(&s->lock);
    bool ended = session->expired; /* its client and its timeout may come at the same moment */
    session->expired = true;
    pthread_mutex_unlock(&s->lock);
    if (ended)
        return;
    arena_init(&arena, SIZE_MAX);
    pthread_mutex_lock(&s->lock);
    s->drops++; /* the engine thread looks for samples and passes to end */
    struct future *dropped = queue_drop_session_locked(s, session);
    pthread_cond_signal(&s->work_ready);
    pthread_mutex_unlock(&s->lock);
    /* Copied, because submit_end_model() takes the lock itself. */
    const char **models = copy_model_ids(s, session, &arena, &n_models);
    future_fail_list(s, dropped, "the session has expired");
    for (size_t i = 0; models && i < n_models; i++)
        submit_end_model(s, models[i], reason);
    if (store_set_session_expired(s->store, session->id, &err) != TINKER_OK)
        log_line(s->log, LOG_ERROR, "session %s: %s", session->id, err.message);
    release_sampler_weights(s, session, &arena);
    /* Unnamed sampler weights live as long as their session.  A model that is still to be unloaded
     * may be saving some right now: train_release() deletes those. */
    if (store_list_models(s->store, NULL, session->id, -1, INT64_MAX, 0, &arena, &list, &n_list,
                          NULL, NULL) == TINKER_OK)
        for (size_t i = 0; i < n_list; i++)
            if (list[i].status != STORE_MODEL_ACTIVE)
                checkpoint_drop_hidden(s, list[i].id, 0);
    log_line(s->log, LOG_INFO, "session %s ended", session->id);
    arena_clear(&arena);
}

/* End the sessions without heartbeats.  Found in one walk: only this thread frees sessions, so the
 * pointers stay valid.  Held polls must end in time however many sessions do. */
static void expire_sessions(struct server *s)
{
    struct arena arena;
    int64_t limit = clock_now_ns(s->clock) - s->opts.session_timeout_s * 1000000000;
    size_t it = 0, n = 0, n_key;
    const char *key;
    void *value;
    if (s->opts.session_timeout_s < 0)
        return;
    arena_init(&arena, SIZE_MAX);
    pthread_mutex_lock(&s->lock);
    struct session **list = arena_array(&arena, s->sessions.len + 1, sizeof(struct session *));
    while (list && map_next(&s->sessions, &it, &key, &n_key, &value)) {
        struct session *v = value;
        if (!v->expired && v->seen_ns < limit)
            list[n++] = v;
    }
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        timers_expire_session(s, list[i], "was unloaded because its session expired");
        if (i % EXPIRE_EVERY == EXPIRE_EVERY - 1)
            listener_expire(s->listener);
    }
    arena_clear(&arena);
}

/* ---- checkpoints and results ---------------------------------------------------------------- */

/* Delete checkpoints whose time to live is over. */
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
        if (store_delete_expired(s->store, c, now_us, &deleted, NULL) == TINKER_OK && deleted &&
            sampler_table_end(s, c, NULL, NULL) == TINKER_OK)
            log_line(s->log, LOG_INFO, "checkpoint %s of %s expired", c->name, c->run);
        else
            c->dir = NULL; /* it was extended or replaced meanwhile */
    }
    /* All records are deleted: one sync serves the files of all of them. */
    for (size_t i = 0; i < n; i++)
        checkpoint_release(s, list[i].dir);
    arena_clear(&arena);
}

/* Remove outcomes older than age_s from memory.  The age counts from the first fetch: a response
 * may get lost and be asked for again.  Training outcomes are in the store, too, so they may go
 * after fetched_age_s: fetched ones always, others when memory is short.  Samples are nowhere
 * else: they go early only if they were fetched, and when memory is short earlier still. */
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
        int64_t most_s = sooner ? fetched_age_s : age_s;
        if (!f->model && f->delivered && most_s > FETCHED_SAMPLE_S)
            most_s = FETCHED_SAMPLE_S;
        if (over && now - since > most_s * 1000000000)
            live_remove_future_locked(s, f);
    }
}

void timers_run_once(struct server *s, bool slow)
{
    listener_expire(s->listener);
    skip_gaps(s);
    if (!slow) {
        history_flush(s->history, NULL); /* logs its failure itself */
        return;
    }
    store_tidy(s->store);
    future_record_outcomes(s);
    expire_sessions(s);
    expire_checkpoints(s);
    /* Results: by age, and as long as memory is short by an ever lower age. */
    static const int64_t ages_s[] = { 600, 60, 5 };
    int64_t ttl_s = s->opts.result_ttl_s;
    if (ttl_s < RESULT_TTL_MIN_S)
        ttl_s = RESULT_TTL_MIN_S;
    pthread_mutex_lock(&s->lock);
    forget_older_locked(s, ttl_s, FETCHED_TRAINING_S, false);
    for (size_t i = 0; i < ARRAY_LEN(ages_s); i++)
        if (s->result_bytes + s->futures.len * FUTURE_BYTES > (size_t)s->opts.max_result_bytes)
            forget_older_locked(s, ttl_s, ages_s[i], true);
    pthread_mutex_unlock(&s->lock);
    /* A result may be fetched first within one time to live, and again within another. */
    store_prune_requests(s->store, live_wall_us(s) - 2 * ttl_s * 1000000, NULL);
    evict_ended(s);
    history_flush(s->history, NULL); /* the runs that ended leave memory */
    usage_flush(s);
    store_prune_account(s->store, live_wall_us(s));
}

/* ---- thread ------------------------------------------------------------------------------- */

static void *run_timers(void *arg)
{
    struct server *s = arg;
    os_thread_name("timers");
    for (unsigned tick = 1;; tick++) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until); /* the wall clock may be set back */
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&s->lock);
        /* A spurious wake-up only makes the tick shorter. */
        if (!s->stopping)
            pthread_cond_timedwait(&s->timers_wake, &s->lock, &until);
        bool stopping = s->stopping;
        pthread_mutex_unlock(&s->lock);
        if (stopping)
            return NULL;
        timers_run_once(s, tick % SLOW_EVERY == 0);
        if (tick % STORAGE_EVERY == 0)
            usage_add_storage(s);
    }
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
