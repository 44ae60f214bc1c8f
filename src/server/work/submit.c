/* submit.c - see submit.h.
 *
 * The id of a training future is "<model>:<number>", so a retry finds the first request by
 * name: in memory while it is there, else in the store.  The fate of a number:
 *
 *     known, same hash         a retry: the same id again (SUBMIT_OK)
 *     known, another hash      the client reused a number (SUBMIT_REUSED)
 *     unknown, below next_seq  skipped, or its result was pruned (SUBMIT_LATE)
 *     unknown, otherwise       new: journal, then queue (SUBMIT_OK)
 *
 * Durability: a request is in the journal before it is in the queue, so nothing runs that a
 * restart would not know of.
 *
 * Locks: submit_lock is held from the lookup to the queue, so that two copies of a request
 * cannot both find it unknown.  server.lock is taken inside it for moments, never during a call
 * of the store. */
#include "server/work/submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/store/evict.h"
#include "server/work/sample_log.h"

/* Far above any real number; adding to it cannot overflow, and JSON numbers are exact below. */
static const int64_t SEQ_MAX = (int64_t)1 << 53;

/* What is known about a model and a number when a request arrives. */
struct arrival {
    struct model *model;
    int64_t seq;
    bool known;     /* the number was used before */
    bool in_memory; /* its future is */
    bool late;      /* it was skipped, or its result was deleted long ago */
    /* Of the request that used the number, if it is known. */
    enum job_kind kind;
    uint64_t hash;
    bool busy; /* the queue has no space for the request */
};

/* Is a request with the hash the one that was stored?  After an upgrade from a release that hashed
 * requests another way, a known number with the same kind is taken for a retry: refusing would
 * stop every client that was waiting while the server was replaced. */
static bool is_same_request(uint64_t stored, uint64_t hash)
{
    return stored == hash || stored == JOB_HASH_UNKNOWN;
}

/* Find the model of the user and what memory knows of the number; a request without one gets the
 * next free number.  Fills *a and the future's id. */
static void look_in_memory(struct server *s, const char *user, const char *model_id,
                           struct wire_opt_int seq, const struct job *job, struct arena *arena,
                           struct arrival *a, const char **id)
{
    pthread_mutex_lock(&s->lock);
    struct model *m = live_find_model_locked(s, model_id);
    if (m && strcmp(m->owner, user) != 0)
        m = NULL;
    a->model = m;
    if (m) {
        /* max_seq can be too low after a restart: the store may have pruned the last requests. */
        int64_t last = m->max_seq > m->next_seq - 1 ? m->max_seq : m->next_seq - 1;
        a->seq = seq.has ? seq.value : last + 1;
        a->known = a->seq <= last; /* or it fills a gap: the store decides */
        /* The id that clients poll: model and number say which request it is, without a table. */
        *id = arena_printf(arena, "%s:%lld", m->id, (long long)a->seq);
        struct future *f = *id ? live_find_future_locked(s, *id) : NULL;
        a->in_memory = f != NULL;
        if (f) {
            a->kind = f->kind;
            a->hash = f->hash;
            a->known = true;
        }
        /* The missing number of a gap always gets in: what waits behind it can only leave the
         * full queue after it. */
        bool awaited = m->gap_since_ns && a->seq == m->next_seq;
        a->busy =
            !awaited && !queue_has_space_locked(s, m->session->tenant, job->arena.used, false);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The journal's record of a request, borrowed from the arguments. */
static struct store_request make_record(struct server *s, const char *model_id, int64_t seq,
                                        const struct job *job, uint64_t hash, bool proto,
                                        const char *body, size_t n_body)
{
    return (struct store_request){ .model_id = model_id,
                                   .seq = seq,
                                   .kind = job->kind,
                                   .hash = hash,
                                   .proto = proto,
                                   .body = body,
                                   .n_body = n_body,
                                   .created_us = live_wall_us(s) };
}

/* Make the future of a training request and queue it.  NULL: no memory; the job stays the
 * caller's. */
static struct future *enqueue_train_locked(struct server *s, const char *id, struct model *m,
                                           int64_t seq, struct job *job, uint64_t hash)
{
    struct future *f = live_add_future_locked(s, id, m->owner, job->kind, job);
    if (f) {
        f->model = m;
        f->session = m->session;
        f->base = m->base;
        f->seq = seq;
        f->hash = hash;
        m->n_futures++;
        queue_train_locked(s, f);
    }
    return f;
}

static struct future *enqueue_train(struct server *s, const char *id, struct model *m, int64_t seq,
                                    struct job *job, uint64_t hash)
{
    pthread_mutex_lock(&s->lock);
    struct future *f = enqueue_train_locked(s, id, m, seq, job, hash);
    pthread_mutex_unlock(&s->lock);
    return f;
}

/* Is it a model of the user that could go on, but was not recovered because its base model is not
 * served since the last start? */
static bool is_unserved(struct server *s, const char *model_id, const char *user,
                        struct arena *arena)
{
    struct store_model *m = NULL;
    return store_get_model(s->store, model_id, arena, &m, NULL) == TINKER_OK && m &&
           strcmp(m->owner, user) == 0 && m->status == STORE_MODEL_ACTIVE &&
           !live_find_base(s, m->base_model);
}

/* Put a request, with the model that it makes (NULL: none), into the journal, or find that it is
 * there: one for which there was no memory after that is sent again. */
static bool record_request(struct server *s, const struct store_model *model,
                           const struct store_request *r, struct arena *arena, tinker_error *err)
{
    struct store_request *old = NULL;
    tinker_error unread;
    if ((model ? store_add_model(s->store, model, r, err) : store_add_request(s->store, r, err)) ==
        TINKER_OK)
        return true;
    return store_get_request(s->store, r->model_id, r->seq, false, arena, &old, &unread) ==
               TINKER_OK &&
           old && old->kind == r->kind && is_same_request(old->hash, r->hash);
}

/* submit_train() with submit_lock held.  Frees the job unless the queue takes it over. */
static enum submit_status accept_train(struct server *s, const char *user, const char *model_id,
                                       struct wire_opt_int seq, struct job *job, uint64_t hash,
                                       bool proto, const char *body, size_t n_body,
                                       struct arena *arena, const char **id, tinker_error *err)
{
    struct arrival a = { 0 };
    enum submit_status result = SUBMIT_FAILED;
    look_in_memory(s, user, model_id, seq, job, arena, &a, id);
    /* A model that ended may have left memory: bring it back to say why it ended. */
    if (!a.model && evict_restore_model(s, model_id, user, false))
        look_in_memory(s, user, model_id, seq, job, arena, &a, id);
    if (!a.model) {
        job_free(job);
        return is_unserved(s, model_id, user, arena) ? SUBMIT_NO_BASE : SUBMIT_NO_MODEL;
    }
    if (!*id) { /* nothing is recorded yet */
        job_free(job);
        return SUBMIT_FAILED;
    }
    /* A number that is not in memory may still be in the store.  One that is in neither was
     * never accepted, and may fill a gap, unless everything up to it has finished. */
    if (a.known && !a.in_memory) {
        struct store_request *r;
        if (store_get_request(s->store, a.model->id, a.seq, false, arena, &r, err) != TINKER_OK) {
            job_free(job);
            return SUBMIT_FAILED;
        }
        if (r) {
            a.kind = (enum job_kind)r->kind;
            a.hash = r->hash;
        } else {
            pthread_mutex_lock(&s->lock);
            a.known = a.late = a.seq < a.model->next_seq;
            pthread_mutex_unlock(&s->lock);
        }
    }
    /* unload_model carries no number; the server gave it the next one, which the client may use
     * for its next request: that one goes behind it. */
    if (a.known && a.kind == JOB_UNLOAD && job->kind != JOB_UNLOAD)
        look_in_memory(s, user, model_id, (struct wire_opt_int){ 0 }, job, arena, &a, id);
    struct store_request r = make_record(s, a.model->id, a.seq, job, hash, proto, body, n_body);
    /* Journal first, then queue. */
    if (a.late)
        result = SUBMIT_LATE;
    else if (a.known)
        result = a.kind == job->kind && is_same_request(a.hash, hash) ? SUBMIT_OK : SUBMIT_REUSED;
    else if (a.busy)
        result = SUBMIT_BUSY;
    else if (record_request(s, NULL, &r, arena, err)) {
        /* From here on the queue owns the job. */
        if (enqueue_train(s, *id, a.model, a.seq, job, hash))
            return SUBMIT_OK;
        err_nomem(err, "request");
    }
    job_free(job);
    return result;
}

enum submit_status submit_train(struct server *s, const char *user, const char *model_id,
                                struct wire_opt_int seq, struct job *job, bool proto,
                                const char *body, size_t n_body, struct arena *arena,
                                const char **id, tinker_error *err)
{
    uint64_t hash = job_hash(job);
    /* Negative numbers need no check: they are below next_seq and count as late. */
    if (seq.has && seq.value > SEQ_MAX) {
        job_free(job);
        return SUBMIT_BAD_SEQ;
    }
    /* The hash of a large batch takes a while: it was computed before the lock. */
    pthread_mutex_lock(&s->submit_lock);
    enum submit_status result =
        accept_train(s, user, model_id, seq, job, hash, proto, body, n_body, arena, id, err);
    pthread_mutex_unlock(&s->submit_lock);
    return result;
}

/* submit_create() with submit_lock held. */
static enum submit_status accept_create(struct server *s, const struct store_model *record,
                                        struct session *session, struct base *base, struct job *job,
                                        const char *body, size_t n_body, struct arena *arena,
                                        const char **id, tinker_error *err)
{
    uint64_t hash = job_hash(job);
    *id = arena_printf(arena, "%s:0", record->id);
    /* A model that was unloaded and left memory is not created again. */
    evict_restore_model(s, record->id, record->owner, true);
    pthread_mutex_lock(&s->lock);
    struct model *m = live_find_model_locked(s, record->id);
    struct future *f = *id ? live_find_future_locked(s, *id) : NULL;
    bool in_memory = f != NULL, same = f && is_same_request(f->hash, hash);
    pthread_mutex_unlock(&s->lock);
    if (m) {
        job_free(job);
        if (in_memory)
            return same ? SUBMIT_OK : SUBMIT_REUSED;
        /* Its first request has left memory.  If it was pruned from the store too, the two
         * cannot be compared, and this one counts as a retry. */
        struct store_request *stored = NULL;
        if (store_get_request(s->store, record->id, 0, false, arena, &stored, err) != TINKER_OK)
            return SUBMIT_FAILED;
        return !stored || is_same_request(stored->hash, hash) ? SUBMIT_OK : SUBMIT_REUSED;
    }
    if (is_unserved(s, record->id, record->owner, arena)) {
        job_free(job);
        return SUBMIT_NO_BASE;
    }
    /* The model and its first request in one transaction: neither exists without the other. */
    struct store_request first = make_record(s, record->id, 0, job, hash, false, body, n_body);
    if (!*id || !record_request(s, record, &first, arena, err)) {
        job_free(job);
        return SUBMIT_FAILED;
    }
    pthread_mutex_lock(&s->lock);
    m = live_add_model_locked(s, record->id, record->owner, session, base, &record->lora);
    struct future *created = m ? enqueue_train_locked(s, *id, m, 0, job, hash) : NULL;
    if (m && !created) /* a model without its first request would wait for it forever */
        live_remove_model_locked(s, m);
    pthread_mutex_unlock(&s->lock);
    if (created)
        return SUBMIT_OK;
    /* The journal has the model and its creation: a retry of the request or a restart makes it. */
    job_free(job);
    return err_nomem(err, "model"), SUBMIT_FAILED;
}

enum submit_status submit_create(struct server *s, const struct store_model *record,
                                 struct session *session, struct base *base, struct job *job,
                                 const char *body, size_t n_body, struct arena *arena,
                                 const char **id, tinker_error *err)
{
    pthread_mutex_lock(&s->submit_lock);
    enum submit_status result =
        accept_create(s, record, session, base, job, body, n_body, arena, id, err);
    pthread_mutex_unlock(&s->submit_lock);
    /* timers_expire_session() may have ended the session between the caller's check and now, and
     * missed the new model. */
    pthread_mutex_lock(&s->lock);
    bool ended = session->expired;
    pthread_mutex_unlock(&s->lock);
    if (ended)
        submit_end_model(s, record->id, "was unloaded because its session ended");
    return result;
}

enum submit_status submit_sample(struct server *s, const char *user, struct session *session,
                                 struct base *base, struct job *job, const char *id)
{
    /* Samples are not journaled: a restart loses them, and clients send them again. */
    uint64_t hash = job_hash(job);
    enum submit_status result = SUBMIT_OK;
    pthread_mutex_lock(&s->lock);
    /* Lookup and queue under one lock: two copies of a sample cannot both be new. */
    struct future *f = live_find_future_locked(s, id);
    bool full = !queue_has_space_locked(s, session->tenant, job->arena.used, true);
    if (f) {
        result = f->hash == hash ? SUBMIT_OK : SUBMIT_REUSED;
    } else if (full) {
        result = SUBMIT_BUSY;
    } else {
        f = live_add_future_locked(s, id, user, JOB_SAMPLE, NULL);
        if (f)
            f->session = session; /* which its removal needs, too */
        if (f && !sample_log_join_locked(s, f)) {
            live_remove_future_locked(s, f);
            f = NULL;
        }
        if (f) {
            f->job = job;
            f->base = base;
            f->hash = hash;
            f->delivered = job->observer != NULL; /* a stream delivers as it goes */
            job = NULL;
            queue_sample_locked(s, f);
        } else {
            result = SUBMIT_FAILED;
        }
    }
    pthread_mutex_unlock(&s->lock);
    job_free(job);
    return result;
}

void submit_end_model(struct server *s, const char *model_id, const char *reason)
{
    struct job *job = job_new(JOB_UNLOAD);
    char id[256];
    pthread_mutex_lock(&s->lock);
    struct model *m = live_find_model_locked(s, model_id);
    struct future *dropped = NULL, *f = NULL;
    snprintf(id, sizeof(id), "%s:end", model_id);
    /* ":end" makes the second call for the same model a no-op. */
    if (m && m->state == MODEL_ACTIVE && job && !live_find_future_locked(s, id)) {
        m->end_reason = reason;
        dropped = queue_drop_model_locked(s, m); /* failed below, without the lock */
        f = live_add_future_locked(s, id, m->owner, JOB_UNLOAD, job);
    }
    if (f) {
        f->model = m;
        f->session = m->session;
        f->base = m->base;
        f->seq = -1;                  /* runs before all others; no client uses it */
        f->delivered = true;          /* nobody asks for it */
        m->next_seq = m->max_seq + 1; /* nothing is waited for any more */
        m->n_futures++;
        queue_train_locked(s, f);
        job = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    future_fail_list(s, dropped, reason);
    job_free(job);
}

tinker_status submit_again(struct server *s, struct model *m, const struct store_request *r,
                           tinker_error *err)
{
    char id[256];
    struct job *job = job_new((enum job_kind)r->kind);
    if (!job)
        return err_nomem(err, "request");
    snprintf(id, sizeof(id), "%s:%lld", m->id, (long long)r->seq);
    /* A body that was refused when it came, or that this version cannot read: it fails in turn. */
    if (job_decode(job, r->proto, r->body, r->n_body, err) != TINKER_OK)
        snprintf(job->refused, sizeof(job->refused), "%s", err->message);
    job->kind = (enum job_kind)r->kind; /* decoding may have changed it */
    struct future *f = enqueue_train(s, id, m, r->seq, job, r->hash);
    if (!f) {
        job_free(job);
        return err_nomem(err, "request");
    }
    f->replay = r->status == STORE_DONE; /* its outcome is recorded: only repeat the effect */
    return TINKER_OK;
}
