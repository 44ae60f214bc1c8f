/* recover.c - see recover.h.
 *
 * Each model starts from its last saved training state; the requests after it are in the journal
 * and are queued again in order:
 *
 *     PENDING                     runs, and records its outcome
 *     DONE, changed the weights   runs for its effect only (future.replay); its outcome stands
 *     DONE otherwise, FAILED      over: the store has the outcome
 *
 * Clients notice nothing but the delay: ids, numbers and results are the same.
 *
 * Thread: the one that opens the server, before all others start, so no lock is needed although
 * the functions called end in _locked. */
#include "server/store/recover.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "server/store/checkpoint.h"
#include "server/work/submit.h"

/* Queue the requests of m after number `after` again, or give the model up if its state cannot be
 * rebuilt. */
static tinker_status replay_requests(struct server *s, struct model *m, int64_t after,
                                     tinker_error *err)
{
    struct arena arena;
    struct store_request *list;
    size_t n;
    arena_init(&arena, SIZE_MAX); /* the bodies of all requests that run again */
    tinker_status status = store_list_requests(s->store, m->id, after, &arena, &list, &n, err);
    /* Creating it failed, and the process died before it recorded the end of the model. */
    bool never = status == TINKER_OK && n && list[0].seq == 0 && list[0].status == STORE_FAILED;
    /* A request changed the weights, its effect is not in the saved state and its body is gone:
     * autosave was off. */
    bool lost = false;
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        lost = lost || (list[i].status == STORE_DONE && !list[i].body &&
                        job_kind_changes((enum job_kind)list[i].kind));
    if (never || lost) {
        /* Its requests fail from now on; a checkpoint of it can be loaded into a new model. */
        arena_clear(&arena);
        m->state = MODEL_UNLOADED;
        m->end_reason = never ? MODEL_NEVER_CREATED : MODEL_LOST_REASON;
        log_line(s->log, LOG_WARNING, "%s %s", m->id, m->end_reason);
        return store_set_model_status(s->store, m->id,
                                      never ? STORE_MODEL_UNLOADED : STORE_MODEL_LOST, err);
    }
    size_t again = 0;
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        /* Requests finish in order, so a number that is missing before a finished one was
         * skipped and is refused from now on. */
        if (list[i].status != STORE_PENDING && list[i].seq >= m->next_seq)
            m->next_seq = list[i].seq + 1;
        bool changed =
            list[i].status == STORE_DONE && job_kind_changes((enum job_kind)list[i].kind);
        if (list[i].status != STORE_PENDING && !changed)
            continue;
        again++;
        /* Without the journal: it is there already. */
        status = submit_again(s, m, &list[i], err);
    }
    if (status == TINKER_OK && again)
        log_line(s->log, LOG_INFO, "%s: replaying %zu requests after request %lld", m->id, again,
                 (long long)after);
    arena_clear(&arena);
    return status;
}

/* Bring one active model back; a model whose base is not served now is left alone, for a start
 * that serves it again. */
static tinker_status recover_model(struct server *s, const struct store_model *r, tinker_error *err)
{
    struct session *session = live_find_session_locked(s, r->session_id);
    struct base *base = live_find_base(s, r->base_model);
    if (!session) {
        /* The session ended, and the process died before it unloaded the models. */
        tinker_status status = store_set_model_status(s->store, r->id, STORE_MODEL_UNLOADED, err);
        if (status != TINKER_OK)
            return status;
        checkpoint_drop_hidden(s, r->id, 0);
        checkpoint_remove(s, r->saved_dir);
        return TINKER_OK;
    }
    if (!base) {
        log_line(s->log, LOG_WARNING, "%s is not available: its base model %s is not served", r->id,
                 r->base_model);
        return TINKER_OK;
    }
    struct model *m = live_add_model_locked(s, r->id, r->owner, session, base, &r->lora);
    if (!m)
        return err_nomem(err, "models");
    int64_t skipped;
    tinker_status status = store_get_skipped_seq(s->store, r->id, &skipped, err);
    if (status != TINKER_OK)
        return status;
    /* Everything up to the saved state has finished, everything up to a skipped number has
     * finished or is refused; replay_requests() raises it further. */
    m->next_seq = (skipped > r->saved_seq ? skipped : r->saved_seq) + 1;
    m->saved_seq = r->saved_seq;
    if (r->saved_dir)
        snprintf(m->saved_dir, sizeof(m->saved_dir), "%s", r->saved_dir);
    status = store_max_seq(s->store, r->id, &m->max_seq, err);
    return status == TINKER_OK ? replay_requests(s, m, r->saved_seq, err) : status;
}

tinker_status recover_state(struct server *s, tinker_error *err)
{
    struct arena arena;
    struct store_model *list;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    /* A session may have ended and the process died before its unnamed weights were deleted.
     * Records first, so that checkpoint_clean() finds their directories unused. */
    tinker_status status = store_delete_hidden(s->store, err);
    if (status == TINKER_OK)
        status = checkpoint_clean(s, err);
    struct store_session *sessions;
    size_t n_sessions = 0;
    if (status == TINKER_OK)
        status = store_list_sessions(s->store, NULL, true, INT64_MAX, 0, &arena, &sessions,
                                     &n_sessions, err);
    /* Their heartbeat clock starts now: clients get the whole timeout to come back. */
    for (size_t i = 0; status == TINKER_OK && i < n_sessions; i++)
        if (!live_add_session_locked(s, sessions[i].id, sessions[i].owner))
            status = err_nomem(err, "sessions");
    /* Models need their sessions.  Samplers are restored when they are asked for. */
    if (status == TINKER_OK)
        status = store_list_models(s->store, NULL, NULL, STORE_MODEL_ACTIVE, INT64_MAX, 0, &arena,
                                   &list, &n, NULL, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        status = recover_model(s, &list[i], err);
    arena_clear(&arena);
    return status;
}
