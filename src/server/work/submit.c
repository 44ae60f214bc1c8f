/* submit.c - see submit.h.
 *
 * The id of a training future is "<model>:<number>", so a retry finds the first one by
 * name: in memory while it is there, else in the store.  A request is in the store
 * before it is in the queue, so nothing runs that a restart would not know. */
#include "server/work/submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/store/evict.h"

/* Far above any real number, and adding to it cannot overflow. */
static const int64_t SEQ_MAX = (int64_t)1 << 53;

/* What is known about a model when a request arrives. */
struct arrival {
    struct model *model;
    int64_t seq;
    bool known; /* the number was used before */
    bool in_memory;
    bool late; /* it was passed over, or what came of it was deleted long ago */
    enum work_kind kind;
    uint64_t hash;
    bool busy;
};

/* Is a request with the hash the one that was stored?  After an upgrade from a release that hashed
 * requests another way, a known number with the same kind is taken for a retry: refusing would
 * stop every client that was waiting while the server was replaced. */
static bool is_same_request(uint64_t stored, uint64_t hash)
{
    return stored == hash || stored == WORK_HASH_UNKNOWN;
}

static void look(struct server *s, const char *user, const char *model_id, struct wire_opt_int seq,
                 const struct work *work, struct arena *arena, struct arrival *a, const char **id)
{
    pthread_mutex_lock(&s->lock);
    struct model *m = core_model_locked(s, model_id);
    if (m && strcmp(m->owner, user) != 0)
        m = NULL;
    a->model = m;
    if (m) {
        int64_t last = m->max_seq > m->next_seq - 1 ? m->max_seq : m->next_seq - 1;
        a->seq = seq.has ? seq.value : last + 1;
        a->known = a->seq <= last;
        *id = arena_printf(arena, "%s:%lld", m->id, (long long)a->seq);
        struct future *f = *id ? core_future_locked(s, *id) : NULL;
        a->in_memory = f != NULL;
        if (f) {
            a->kind = f->kind;
            a->hash = f->hash;
            a->known = true;
        }
        /* What waits behind a missing number frees its room only once that one is let in. */
        bool awaited = m->gap_since_ns && a->seq == m->next_seq;
        a->busy =
            !awaited && !queue_has_room_locked(s, m->session->tenant, work->arena.used, false);
    }
    pthread_mutex_unlock(&s->lock);
}

/* A number that is not in memory may still be in the store; one that is in neither was
 * never accepted (it may fill a gap) unless everything up to it has finished. */
static tinker_status look_in_store(struct server *s, struct arrival *a, struct arena *arena,
                                   tinker_error *err)
{
    struct store_request *r;
    tinker_status status = store_get_request(s->store, a->model->id, a->seq, false, arena, &r, err);
    if (status != TINKER_OK)
        return status;
    if (r) {
        a->kind = (enum work_kind)r->kind;
        a->hash = r->hash;
        return TINKER_OK;
    }
    pthread_mutex_lock(&s->lock);
    a->known = a->late = a->seq < a->model->next_seq;
    pthread_mutex_unlock(&s->lock);
    a->hash = 0;
    return TINKER_OK;
}

/* What the journal keeps of a request. */
static struct store_request record_of(struct server *s, const char *model_id, int64_t seq,
                                      const struct work *work, uint64_t hash, bool proto,
                                      const char *body, size_t n_body)
{
    return (struct store_request){ .model_id = model_id,
                                   .seq = seq,
                                   .kind = work->kind,
                                   .hash = hash,
                                   .proto = proto,
                                   .body = body,
                                   .n_body = n_body,
                                   .created_us = core_now_us(s) };
}

static struct future *enqueue(struct server *s, const char *id, struct model *m, int64_t seq,
                              struct work *work, uint64_t hash)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = core_add_future_locked(s, id, m->owner, work->kind, work);
    if (f) {
        f->model = m;
        f->session = m->session;
        f->base = m->base;
        f->seq = seq;
        f->hash = hash;
        m->n_futures++;
        queue_train_locked(s, f);
    }
    pthread_mutex_unlock(&s->lock);
    return f;
}

static enum submit_status accept_train(struct server *s, const char *user, const char *model_id,
                                       struct wire_opt_int seq, struct work *work, uint64_t hash,
                                       bool proto, const char *body, size_t n_body,
                                       struct arena *arena, const char **id, tinker_error *err)
{
    struct arrival a = { 0 };
    enum submit_status result = SUBMIT_FAILED;
    look(s, user, model_id, seq, work, arena, &a, id);
    if (!a.model && retire_recall(s, model_id, user, false))
        look(s, user, model_id, seq, work, arena, &a, id);
    if (!a.model) {
        work_free(work);
        return SUBMIT_NO_MODEL;
    }
    if (a.known && !a.in_memory && look_in_store(s, &a, arena, err) != TINKER_OK) {
        work_free(work);
        return SUBMIT_FAILED;
    }
    /* Unloading has no number of its client's, so its place may be asked for: after it. */
    if (a.known && a.kind == WORK_UNLOAD && work->kind != WORK_UNLOAD)
        look(s, user, model_id, (struct wire_opt_int){ 0 }, work, arena, &a, id);
    struct store_request r = record_of(s, a.model->id, a.seq, work, hash, proto, body, n_body);
    if (a.late)
        result = SUBMIT_LATE;
    else if (a.known)
        result = a.kind == work->kind && is_same_request(a.hash, hash) ? SUBMIT_OK : SUBMIT_REUSED;
    else if (a.busy)
        result = SUBMIT_BUSY;
    else if (store_add_request(s->store, &r, err) == TINKER_OK &&
             enqueue(s, *id, a.model, a.seq, work, hash))
        return SUBMIT_OK;
    work_free(work);
    return result;
}

enum submit_status submit_train(struct server *s, const char *user, const char *model_id,
                                struct wire_opt_int seq, struct work *work, bool proto,
                                const char *body, size_t n_body, struct arena *arena,
                                const char **id, tinker_error *err)
{
    uint64_t hash = work_hash(work);
    if (seq.has && seq.value > SEQ_MAX) {
        work_free(work);
        return SUBMIT_BAD_SEQ;
    }
    pthread_mutex_lock(&s->submit_lock);
    enum submit_status result =
        accept_train(s, user, model_id, seq, work, hash, proto, body, n_body, arena, id, err);
    pthread_mutex_unlock(&s->submit_lock);
    return result;
}

/* The model is there already, and its first request not in memory: was it the same?  One that
 * was pruned cannot be told apart, and is taken for a retry. */
static enum submit_status create_again(struct server *s, const char *model_id, uint64_t hash,
                                       struct arena *arena, tinker_error *err)
{
    struct store_request *first = NULL;
    if (store_get_request(s->store, model_id, 0, false, arena, &first, err) != TINKER_OK)
        return SUBMIT_FAILED;
    return !first || is_same_request(first->hash, hash) ? SUBMIT_OK : SUBMIT_REUSED;
}

static enum submit_status accept_create(struct server *s, const struct store_model *record,
                                        struct session *session, struct base *base,
                                        struct work *work, const char *body, size_t n_body,
                                        struct arena *arena, const char **id, tinker_error *err)
{
    uint64_t hash = work_hash(work);
    *id = arena_printf(arena, "%s:0", record->id);
    /* One that was unloaded is not made again. */
    retire_recall(s, record->id, record->owner, true);
    pthread_mutex_lock(&s->lock);
    struct model *m = core_model_locked(s, record->id);
    struct future *f = *id ? core_future_locked(s, *id) : NULL;
    bool in_memory = f != NULL, same = f && is_same_request(f->hash, hash);
    pthread_mutex_unlock(&s->lock);
    if (m) {
        work_free(work);
        if (in_memory)
            return same ? SUBMIT_OK : SUBMIT_REUSED;
        return create_again(s, record->id, hash, arena, err);
    }
    struct store_request first = record_of(s, record->id, 0, work, hash, false, body, n_body);
    if (!*id || store_add_model(s->store, record, &first, err) != TINKER_OK) {
        work_free(work);
        return SUBMIT_FAILED;
    }
    pthread_mutex_lock(&s->lock);
    m = core_add_model_locked(s, record->id, record->owner, session, base, &record->lora);
    pthread_mutex_unlock(&s->lock);
    if (m && enqueue(s, *id, m, 0, work, hash))
        return SUBMIT_OK;
    work_free(work);
    return SUBMIT_FAILED;
}

enum submit_status submit_create(struct server *s, const struct store_model *record,
                                 struct session *session, struct base *base, struct work *work,
                                 const char *body, size_t n_body, struct arena *arena,
                                 const char **id, tinker_error *err)
{
    pthread_mutex_lock(&s->submit_lock);
    enum submit_status result =
        accept_create(s, record, session, base, work, body, n_body, arena, id, err);
    pthread_mutex_unlock(&s->submit_lock);
    /* Whoever ended the session meanwhile may have missed the new model. */
    pthread_mutex_lock(&s->lock);
    bool ended = session->expired;
    pthread_mutex_unlock(&s->lock);
    if (ended)
        submit_end_model(s, record->id, "was unloaded because its session ended");
    return result;
}

enum submit_status submit_sample(struct server *s, const char *user, struct session *session,
                                 struct base *base, struct work *work, const char *id)
{
    uint64_t hash = work_hash(work);
    enum submit_status result = SUBMIT_OK;
    pthread_mutex_lock(&s->lock);
    struct future *f = core_future_locked(s, id);
    bool full = !queue_has_room_locked(s, session->tenant, work->arena.used, true);
    if (f) {
        result = f->hash == hash ? SUBMIT_OK : SUBMIT_REUSED;
    } else if (full) {
        result = SUBMIT_BUSY;
    } else {
        f = core_add_future_locked(s, id, user, WORK_SAMPLE, work);
        if (f) {
            f->session = session;
            f->base = base;
            f->hash = hash;
            f->delivered = work->observer != NULL; /* it was told as it was made */
            work = NULL;
            queue_sample_locked(s, f);
        } else {
            result = SUBMIT_FAILED;
        }
    }
    pthread_mutex_unlock(&s->lock);
    work_free(work);
    return result;
}

void submit_end_model(struct server *s, const char *model_id, const char *reason)
{
    struct work *work = work_new(WORK_UNLOAD);
    char id[256];
    pthread_mutex_lock(&s->lock);
    struct model *m = core_model_locked(s, model_id);
    struct future *dropped = NULL, *f = NULL;
    snprintf(id, sizeof(id), "%s:end", model_id);
    if (m && m->state == MODEL_ACTIVE && work && !core_future_locked(s, id)) {
        m->end_reason = reason;
        dropped = queue_drop_model_locked(s, m);
        f = core_add_future_locked(s, id, m->owner, WORK_UNLOAD, work);
    }
    if (f) {
        f->model = m;
        f->session = m->session;
        f->base = m->base;
        f->seq = -1;         /* before all others: numbers are the client's */
        f->delivered = true; /* nobody asks for it */
        m->next_seq = m->max_seq + 1;
        m->n_futures++;
        queue_train_locked(s, f);
        work = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    future_fail_list(s, dropped, reason);
    work_free(work);
}

tinker_status submit_again(struct server *s, struct model *m, const struct store_request *r,
                           tinker_error *err)
{
    char id[256];
    struct work *work = work_new((enum work_kind)r->kind);
    if (!work)
        return err_nomem(err, "request");
    snprintf(id, sizeof(id), "%s:%lld", m->id, (long long)r->seq);
    if (work_decode(work, r->proto, r->body, r->n_body, err) != TINKER_OK)
        snprintf(work->refused, sizeof(work->refused), "%s", err->message);
    work->kind = (enum work_kind)r->kind;
    struct future *f = enqueue(s, id, m, r->seq, work, r->hash);
    if (!f) {
        work_free(work);
        return err_nomem(err, "request");
    }
    f->replay = r->status == STORE_DONE;
    return TINKER_OK;
}
