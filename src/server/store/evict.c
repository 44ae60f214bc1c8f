/* evict.c - see evict.h.
 *
 * A session can go when it has expired and no model, future or engine work refers to it;
 * a model when it was unloaded and no future or engine work does.  Handlers hold pointers
 * to both without the lock, but never across two calls: the retire lock waits for them.
 * While handlers keep coming the round is skipped; there is another one soon. */
#include "server/store/evict.h"

#include <string.h>

#include "base/err.h"

static void mark_futures_locked(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->sessions, &it, &key, &n, &value))
        ((struct session *)value)->in_use = false;
    it = 0;
    while (map_next(&s->futures, &it, &key, &n, &value))
        ((struct future *)value)->session->in_use = true;
}

static void evict_models_locked(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->models, &it, &key, &n, &value)) {
        struct model *m = value;
        if (m->state == MODEL_UNLOADED && !m->busy && !m->ready && !m->pending && !m->pins &&
            !m->n_futures)
            live_remove_model_locked(s, m);
        else
            m->session->in_use = true;
    }
}

static void evict_samplers_locked(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->samplers, &it, &key, &n, &value)) {
        struct sampler *v = value;
        struct session *session = live_find_session_locked(s, v->session_id);
        if (!session || session->expired)
            live_remove_sampler_locked(s, v);
    }
}

static void evict_sessions_locked(struct server *s)
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(&s->sessions, &it, &key, &n, &value)) {
        struct session *v = value;
        if (v->expired && !v->in_use && !v->waiting && !v->passes && !v->active_samples)
            live_remove_session_locked(s, v);
    }
}

void evict_ended(struct server *s)
{
    if (pthread_rwlock_trywrlock(&s->evict_lock) != 0)
        return;
    pthread_mutex_lock(&s->lock);
    mark_futures_locked(s);
    evict_models_locked(s);
    evict_samplers_locked(s);
    evict_sessions_locked(s);
    pthread_mutex_unlock(&s->lock);
    pthread_rwlock_unlock(&s->evict_lock);
}

/* ---- back again --------------------------------------------------------------------------- */

static const char *find_end_reason(const struct store_model *m, const struct store_session *session)
{
    if (m->status == STORE_MODEL_LOST)
        return MODEL_LOST_REASON;
    return session && session->expired ? "was unloaded because its session ended"
                                       : "has been unloaded";
}

static bool restore_model_locked(struct server *s, const struct store_model *r, const char *reason,
                                 int64_t max_seq)
{
    if (live_find_model_locked(s, r->id))
        return true;
    struct base *base = live_find_base(s, r->base_model);
    struct session *session = live_find_session_locked(s, r->session_id);
    if (!session) {
        session = live_add_session_locked(s, r->session_id, r->owner);
        if (session)
            session->expired = true;
    }
    struct model *m = session ? live_add_model_locked(s, r->id, r->owner, session,
                                                      base ? base : &s->bases[0], &r->lora)
                              : NULL;
    if (!m)
        return false;
    m->state = MODEL_UNLOADED;
    m->end_reason = reason;
    m->max_seq = max_seq;
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
        any = any || m->status == STORE_MODEL_LOST || m->last_request_us > m->created_us;
        pthread_mutex_lock(&s->lock);
        ok = (any || max_seq > 0) &&
             restore_model_locked(s, m, find_end_reason(m, session), max_seq);
        pthread_mutex_unlock(&s->lock);
    }
    arena_clear(&arena);
    return ok;
}
