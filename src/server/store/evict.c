/* evict.c - see evict.h.
 *
 * A session can go when it has expired and no model, future or running request refers to it; a
 * model when it was unloaded and no future or running request does.  Handlers keep pointers to
 * both without server.lock, but never from one call to the next: evict_lock, which they hold for
 * reading, keeps this code out meanwhile.  While handlers keep coming the round is skipped; there
 * is another one soon.
 *
 * Thread: the timer thread; evict_restore_model() any. */
#include "server/store/evict.h"

#include <string.h>

#include "base/err.h"
#include "server/work/sample_log.h"

void evict_ended(struct server *s)
{
    size_t it, n;
    const char *key;
    void *value;
    /* Never wait: a writer that waits would block new handlers, and with them all polls. */
    if (pthread_rwlock_trywrlock(&s->evict_lock) != 0)
        return;
    pthread_mutex_lock(&s->lock);
    /* Mark and sweep for sessions, which futures and models refer to.  map_next() allows the
     * current entry to be removed. */
    it = 0;
    while (map_next(&s->sessions, &it, &key, &n, &value))
        ((struct session *)value)->in_use = false;
    it = 0;
    while (map_next(&s->futures, &it, &key, &n, &value))
        ((struct future *)value)->session->in_use = true;
    it = 0;
    while (map_next(&s->models, &it, &key, &n, &value)) {
        struct model *m = value;
        if (m->state == MODEL_UNLOADED && !m->busy && !m->ready && !m->pending && !m->pins &&
            !m->n_futures) {
            history_finish(s->history, m->id);
            live_remove_model_locked(s, m);
        } else {
            m->session->in_use = true;
        }
    }
    it = 0;
    while (map_next(&s->samplers, &it, &key, &n, &value)) {
        struct sampler *v = value;
        struct session *session = live_find_session_locked(s, v->session_id);
        if (!session || session->expired)
            live_remove_sampler_locked(s, v);
    }
    it = 0;
    while (map_next(&s->sessions, &it, &key, &n, &value)) {
        struct session *v = value;
        if (v->expired && !v->in_use && !v->waiting && !v->passes && !v->active_samples)
            live_remove_session_locked(s, v);
    }
    sample_log_evict_locked(s);
    pthread_mutex_unlock(&s->lock);
    pthread_rwlock_unlock(&s->evict_lock);
}

/* ---- restoring ---------------------------------------------------------------------------- */

/* Put a model that ended back into memory, with its session if that is gone too.  Both are found
 * and evicted again like any other. */
static bool restore_model_locked(struct server *s, const struct store_model *r, const char *reason,
                                 int64_t max_seq)
{
    if (live_find_model_locked(s, r->id)) /* another request was faster */
        return true;
    struct base *base = live_find_base(s, r->base_model);
    struct session *session = live_find_session_locked(s, r->session_id);
    if (!session) {
        session = live_add_session_locked(s, r->session_id, r->owner);
        if (session)
            session->expired = true;
    }
    /* Its base model may not be served any more.  Any other will do: nothing runs on it. */
    struct model *m = session ? live_add_model_locked(s, r->id, r->owner, session,
                                                      base ? base : &s->bases[0], &r->lora)
                              : NULL;
    if (!m)
        return false;
    m->state = MODEL_UNLOADED;
    m->end_reason = reason;
    m->max_seq = max_seq; /* a new request gets the next number, and fails */
    m->next_seq = max_seq + 1;
    return true;
}

bool evict_restore_model(struct server *s, const char *model_id, const char *user, bool any)
{
    struct arena arena;
    struct store_model *m = NULL;
    struct store_session *session = NULL;
    int64_t max_seq = 0;
    bool ok = false;
    arena_init(&arena, 64 << 20);
    if (store_get_model(s->store, model_id, &arena, &m, NULL) == TINKER_OK && m &&
        m->status != STORE_MODEL_ACTIVE && strcmp(m->owner, user) == 0 &&
        store_get_session(s->store, m->session_id, &arena, &session, NULL) == TINKER_OK &&
        store_max_seq(s->store, m->id, &max_seq, NULL) == TINKER_OK) {
        /* A copied checkpoint has a run that never had a request. */
        any = any || m->status == STORE_MODEL_LOST || m->last_request_us > m->created_us;
        const char *reason = m->status == STORE_MODEL_LOST ? MODEL_LOST_REASON
                             : session && session->expired
                                 ? "was unloaded because its session ended"
                                 : "has been unloaded";
        pthread_mutex_lock(&s->lock);
        ok = (any || max_seq > 0) && restore_model_locked(s, m, reason, max_seq);
        pthread_mutex_unlock(&s->lock);
    }
    arena_clear(&arena);
    return ok;
}
