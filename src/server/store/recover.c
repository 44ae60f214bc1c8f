/* recover.c - see recover.h.
 *
 * Each model starts from its last saved training state; the requests after it are in
 * the journal and run again in order.  Clients notice nothing but the delay: ids,
 * numbers and results are the same. */
#include "server/store/recover.h"

#include <string.h>

#include "base/err.h"
#include "server/store/checkpoint.h"
#include "server/work/submit.h"

static tinker_status recover_sessions(struct server *s, struct arena *arena, tinker_error *err)
{
    struct store_session *list;
    size_t n;
    tinker_status status =
        store_list_sessions(s->store, NULL, true, INT64_MAX, 0, arena, &list, &n, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        if (!live_add_session_locked(s, list[i].id, list[i].owner))
            status = err_nomem(err, "sessions");
    return status;
}

/* Did a request change the model that can neither be found on disk nor run again?  So it
 * is when autosave was off. */
static bool lacks_body(const struct store_request *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].status == STORE_DONE && !list[i].body &&
            job_kind_changes((enum job_kind)list[i].kind))
            return true;
    return false;
}

/* The others are over: the store has their outcome, and the weights do not depend on them. */
static bool needs_replay(const struct store_request *r)
{
    return r->status == STORE_PENDING ||
           (r->status == STORE_DONE && job_kind_changes((enum job_kind)r->kind));
}

/* Its requests fail from now on; a checkpoint of it can be loaded into a new model. */
static tinker_status abandon_model(struct server *s, struct model *m, int status,
                                   const char *reason, tinker_error *err)
{
    m->state = MODEL_UNLOADED;
    m->end_reason = reason;
    log_line(s->log, LOG_WARNING, "%s %s", m->id, m->end_reason);
    return store_set_model_status(s->store, m->id, status, err);
}

static tinker_status replay_requests(struct server *s, struct model *m, int64_t after,
                                     tinker_error *err)
{
    struct arena arena;
    struct store_request *list;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    tinker_status status = store_list_requests(s->store, m->id, after, &arena, &list, &n, err);
    bool never = status == TINKER_OK && n && list[0].seq == 0 && list[0].status == STORE_FAILED;
    bool lost = status == TINKER_OK && lacks_body(list, n);
    if (never || lost) {
        arena_clear(&arena);
        return abandon_model(s, m, never ? STORE_MODEL_UNLOADED : STORE_MODEL_LOST,
                             never ? MODEL_NEVER_CREATED : MODEL_LOST_REASON, err);
    }
    size_t again = 0;
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        /* Requests end in order, so a number that is missing before this one was passed over. */
        if (list[i].status != STORE_PENDING && list[i].seq >= m->next_seq)
            m->next_seq = list[i].seq + 1;
        if (!needs_replay(&list[i]))
            continue;
        again++;
        status = submit_again(s, m, &list[i], err);
    }
    if (status == TINKER_OK && again)
        log_line(s->log, LOG_INFO, "%s: running %zu requests again after request %lld", m->id,
                 again, (long long)after);
    arena_clear(&arena);
    return status;
}

/* The session ended, and the process with it before its models were unloaded. */
static tinker_status unload_model(struct server *s, const struct store_model *r, tinker_error *err)
{
    tinker_status status = store_set_model_status(s->store, r->id, STORE_MODEL_UNLOADED, err);
    if (status != TINKER_OK)
        return status;
    checkpoint_drop_hidden(s, r->id, 0);
    checkpoint_remove(s, r->saved_dir);
    return TINKER_OK;
}

static tinker_status recover_model(struct server *s, const struct store_model *r, tinker_error *err)
{
    struct session *session = live_find_session_locked(s, r->session_id);
    struct base *base = live_find_base(s, r->base_model);
    if (!session)
        return unload_model(s, r, err);
    if (!base) {
        log_line(s->log, LOG_WARNING, "%s: its base model %s is not served now", r->id,
                 r->base_model);
        return TINKER_OK;
    }
    struct model *m = live_add_model_locked(s, r->id, r->owner, session, base, &r->lora);
    if (!m)
        return err_nomem(err, "models");
    int64_t passed;
    tinker_status status = store_get_skipped_seq(s->store, r->id, &passed, err);
    if (status != TINKER_OK)
        return status;
    m->next_seq = (passed > r->saved_seq ? passed : r->saved_seq) + 1;
    m->saved_seq = r->saved_seq;
    if (r->saved_dir) {
        m->saved_dir = strdup(r->saved_dir);
        if (!m->saved_dir)
            return err_nomem(err, "models");
    }
    status = store_max_seq(s->store, r->id, &m->max_seq, err);
    return status == TINKER_OK ? replay_requests(s, m, r->saved_seq, err) : status;
}

tinker_status recover_state(struct server *s, tinker_error *err)
{
    struct arena arena;
    struct store_model *list;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    /* A session may have ended, and the process with it before its unnamed weights went. */
    tinker_status status = store_delete_hidden(s->store, err);
    if (status == TINKER_OK)
        status = checkpoint_clean(s, err);
    if (status == TINKER_OK)
        status = recover_sessions(s, &arena, err);
    if (status == TINKER_OK)
        status = store_list_models(s->store, NULL, NULL, STORE_MODEL_ACTIVE, INT64_MAX, 0, &arena,
                                   &list, &n, NULL, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        status = recover_model(s, &list[i], err);
    arena_clear(&arena);
    return status;
}
