/* store_model.c - models being trained and their requests: see store.h.
 *
 * The requests table is the journal.  A row is PENDING when it is accepted, and DONE or FAILED
 * when it has finished.  Its body stays as long as the request may have to run again: until the
 * training state that includes it is on disk, or the model has ended.  Its result stays until it
 * is pruned. */
#include <string.h>

#include "server/store/store_sql.h"
#include "server/work/job.h"

/* saved_seq and saved_dir: the training state on disk, see train_state.c; -1 and NULL: as created.
 * The LoRA shape is recorded because a model that was never saved starts from it. */
#define MODEL_COLUMNS                                                                          \
    "id, session_id, owner, base_model, rank, seed, train_attn, train_mlp, train_unembed,"     \
    " user_metadata, status, created_us, last_request_us, saved_seq, saved_dir, train_tokens," \
    " optimizer"

/* A literal: descriptions of adapters outlive their records.  NULL: adamw. */
const char *store_optimizer(sqlite3_stmt *row, int column)
{
    const char *name = (const char *)sqlite3_column_text(row, column);
    return name && strcmp(name, "dimuon") == 0 ? "dimuon" : NULL;
}

/* One row, in the order of MODEL_COLUMNS. */
static bool read_model(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_model *v = item;
    v->lora = (tinker_lora)TINKER_LORA_INIT;
    v->lora.rank = sqlite3_column_int64(row, 4);
    v->lora.has_seed = 1; /* always recorded: the initial weights depend on it */
    v->lora.seed = sqlite3_column_int64(row, 5);
    v->lora.train_attn = sqlite3_column_int(row, 6);
    v->lora.train_mlp = sqlite3_column_int(row, 7);
    v->lora.train_unembed = sqlite3_column_int(row, 8);
    v->status = sqlite3_column_int(row, 10);
    v->created_us = sqlite3_column_int64(row, 11);
    v->last_request_us = sqlite3_column_int64(row, 12);
    v->saved_seq = sqlite3_column_int64(row, 13);
    v->train_tokens = sqlite3_column_int64(row, 15);
    v->lora.optimizer = store_optimizer(row, 16);
    return sql_column_text(row, 0, arena, &v->id) &&
           sql_column_text(row, 1, arena, &v->session_id) &&
           sql_column_text(row, 2, arena, &v->owner) &&
           sql_column_text(row, 3, arena, &v->base_model) &&
           sql_column_text(row, 9, arena, &v->user_metadata) &&
           sql_column_text(row, 14, arena, &v->saved_dir);
}

/* REPLACE: the id comes from the client's number, and submit.c has checked that it is new. */
tinker_status store_add_model_locked(struct store *s, const struct store_model *v,
                                     tinker_error *err)
{
    const tinker_lora *lora = &v->lora;
    return sql_run(s,
                   "INSERT OR REPLACE INTO models(" MODEL_COLUMNS
                   ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)",
                   SQL_ARGS(sql_t(v->id), sql_t(v->session_id), sql_t(v->owner),
                            sql_t(v->base_model), sql_i(lora->rank), sql_i(lora->seed),
                            sql_i(lora->train_attn), sql_i(lora->train_mlp),
                            sql_i(lora->train_unembed), sql_t(v->user_metadata), sql_i(v->status),
                            sql_i(v->created_us), sql_i(v->last_request_us), sql_i(v->saved_seq),
                            sql_t(v->saved_dir), sql_i(v->train_tokens), sql_t(lora->optimizer)),
                   err);
}

/* Any status: models that ended stay listed. */
tinker_status store_get_model(struct store *s, const char *id, struct arena *arena,
                              struct store_model **out, tinker_error *err)
{
    void *items = NULL;
    size_t n;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT " MODEL_COLUMNS " FROM models WHERE id=?1", SQL_ARGS(sql_t(id)),
                 read_model, sizeof(struct store_model), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Which rows a list has, and their number.  A statement for each combination of filters that is
 * used: with "?1 IS NULL OR ..." SQLite would use no index.  The order is that of the index. */
#define LIST_MODELS(where)                                                             \
    {                                                                                  \
        "SELECT " MODEL_COLUMNS " FROM models WHERE " where " AND (?3<0 OR status=?3)" \
        " ORDER BY last_request_us DESC, id LIMIT ?4 OFFSET ?5",                       \
            "SELECT count(*) FROM models WHERE " where " AND (?3<0 OR status=?3)",     \
    }
static const char *const models_of_owner[] = LIST_MODELS("owner=?1 AND ?2 IS NULL");
static const char *const models_of_session[] =
    LIST_MODELS("session_id=?2 AND (?1 IS NULL OR owner=?1)");
static const char *const all_models[] = LIST_MODELS("?1 IS NULL AND ?2 IS NULL");

/* Page and total under one lock, so they fit together. */
tinker_status store_list_models(struct store *s, const char *owner, const char *session,
                                int model_status, int64_t limit, int64_t offset,
                                struct arena *arena, struct store_model **out, size_t *n,
                                int64_t *total, tinker_error *err)
{
    void *items = NULL;
    const char *const *sql = session ? models_of_session : owner ? models_of_owner : all_models;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(
        s, sql[0],
        SQL_ARGS(sql_t(owner), sql_t(session), sql_i(model_status), sql_i(limit), sql_i(offset)),
        read_model, sizeof(struct store_model), arena, &items, n, err);
    if (status == TINKER_OK && total)
        status = sql_int(s, sql[1], SQL_ARGS(sql_t(owner), sql_t(session), sql_i(model_status)), 0,
                         total, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Requests up to a number will not run again.  The index requests_kept makes this cheap. */
static tinker_status forget_bodies_locked(struct store *s, const char *id, int64_t up_to,
                                          tinker_error *err)
{
    return sql_run(s,
                   "UPDATE requests SET body=NULL WHERE model_id=?1 AND seq<=?2"
                   " AND body IS NOT NULL",
                   SQL_ARGS(sql_t(id), sql_i(up_to)), err);
}

/* The state after request seq is in dir, so nothing up to seq needs to run again. */
static tinker_status set_saved_locked(struct store *s, const char *id, int64_t seq, const char *dir,
                                      tinker_error *err)
{
    tinker_status status = sql_run(s, "UPDATE models SET saved_seq=?2, saved_dir=?3 WHERE id=?1",
                                   SQL_ARGS(sql_t(id), sql_i(seq), sql_t(dir)), err);
    return status == TINKER_OK ? forget_bodies_locked(s, id, seq, err) : status;
}

/* ACTIVE -> UNLOADED or LOST; there is no way back. */
tinker_status store_set_model_status(struct store *s, const char *id, int model_status,
                                     tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = sql_run(s, "UPDATE models SET status=?2 WHERE id=?1",
                         SQL_ARGS(sql_t(id), sql_i(model_status)), err);
    /* Nothing of an ended model runs again: its bodies would only take space. */
    if (status == TINKER_OK && model_status != STORE_MODEL_ACTIVE)
        status = forget_bodies_locked(s, id, INT64_MAX, err);
    status = sql_end(s, status, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* For a state that is saved without a request: an idle model leaves memory. */
tinker_status store_set_model_saved(struct store *s, const char *id, int64_t seq, const char *dir,
                                    tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = set_saved_locked(s, id, seq, dir, err);
    status = sql_end(s, status, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- requests ------------------------------------------------------------------------- */

/* One row: REQUEST_COLUMNS, then the body or NULL. */
static bool read_request(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_request *v = item;
    v->seq = sqlite3_column_int64(row, 1);
    v->kind = sqlite3_column_int(row, 2);
    v->hash = (uint64_t)sqlite3_column_int64(row, 3); /* SQLite has signed integers only */
    v->proto = sqlite3_column_int(row, 4) != 0;
    v->status = sqlite3_column_int(row, 5);
    v->category = sqlite3_column_int(row, 6);
    v->created_us = sqlite3_column_int64(row, 7);
    return sql_column_text(row, 0, arena, &v->model_id) &&
           sql_column_blob(row, 8, arena, &v->result, &v->n_result) &&
           sql_column_blob(row, 9, arena, &v->body, &v->n_body);
}

/* (model_id, seq) is the key; the body comes after these where it is wanted. */
#define REQUEST_COLUMNS "model_id, seq, kind, hash, proto, status, category, created_us, result"

/* Journal a request, inside a transaction.  The unique index refuses a number that is taken. */
static tinker_status add_request_locked(struct store *s, const struct store_request *v,
                                        tinker_error *err)
{
    tinker_status status = sql_run(
        s, "INSERT INTO requests(" REQUEST_COLUMNS ", body) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
        SQL_ARGS(sql_t(v->model_id), sql_i(v->seq), sql_i(v->kind), sql_i((int64_t)v->hash),
                 sql_i(v->proto), sql_i(v->status), sql_i(v->category), sql_i(v->created_us),
                 sql_b(v->result, v->n_result), sql_b(v->body, v->n_body)),
        err);
    /* Listings show the run with the most recent request first. */
    if (status == TINKER_OK)
        status = sql_run(s, "UPDATE models SET last_request_us=?2 WHERE id=?1",
                         SQL_ARGS(sql_t(v->model_id), sql_i(v->created_us)), err);
    return status;
}

/* After this returns, the request runs even if the process dies at once. */
tinker_status store_add_request(struct store *s, const struct store_request *v, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = sql_end(s, add_request_locked(s, v, err), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* In one transaction: a model without its first request could never be recovered. */
tinker_status store_add_model(struct store *s, const struct store_model *v,
                              const struct store_request *first, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK) {
        status = store_add_model_locked(s, v, err);
        if (status == TINKER_OK)
            status = add_request_locked(s, first, err);
        status = sql_end(s, status, err);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Bodies are large, and a retry or a poll does not need them. */
tinker_status store_get_request(struct store *s, const char *model_id, int64_t seq, bool with_body,
                                struct arena *arena, struct store_request **out, tinker_error *err)
{
    void *items = NULL;
    size_t n;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s,
                 "SELECT " REQUEST_COLUMNS ", CASE WHEN ?3 THEN body END FROM requests"
                 " WHERE model_id=?1 AND seq=?2",
                 SQL_ARGS(sql_t(model_id), sql_i(seq), sql_i(with_body)), read_request,
                 sizeof(struct store_request), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Bodies may take as much memory as the journal holds since the last saved state. */
tinker_status store_list_requests(struct store *s, const char *model_id, int64_t after,
                                  struct arena *arena, struct store_request **out, size_t *n,
                                  tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s,
                 "SELECT " REQUEST_COLUMNS ", body FROM requests WHERE model_id=?1 AND seq>?2"
                 " ORDER BY seq",
                 SQL_ARGS(sql_t(model_id), sql_i(after)), read_request,
                 sizeof(struct store_request), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* 0 when all requests were pruned: see look_in_memory() in submit.c. */
tinker_status store_max_seq(struct store *s, const char *model_id, int64_t *out, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_int(s, "SELECT max(seq) FROM requests WHERE model_id=?1",
                                   SQL_ARGS(sql_t(model_id)), 0, out, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The table is called "passed" in files that exist; see store.h for the meaning. */
tinker_status store_set_skipped_seq(struct store *s, const char *model_id, int64_t seq,
                                    tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s, "INSERT OR REPLACE INTO passed(model_id, seq) VALUES(?1,?2)",
                                   SQL_ARGS(sql_t(model_id), sql_i(seq)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* -1: none. */
tinker_status store_get_skipped_seq(struct store *s, const char *model_id, int64_t *out,
                                    tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_int(s, "SELECT seq FROM passed WHERE model_id=?1",
                                   SQL_ARGS(sql_t(model_id)), -1, out, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* One row of store_list_spans(). */
static bool read_span(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_span *v = item;
    v->seq = sqlite3_column_int64(row, 1);
    v->kind = sqlite3_column_int(row, 2);
    v->status = sqlite3_column_int(row, 3);
    v->created_us = sqlite3_column_int64(row, 4);
    v->done_us = sqlite3_column_int64(row, 5);
    return sql_column_text(row, 0, arena, &v->model_id);
}

/* The newest requests of all models of a session. */
tinker_status store_list_spans(struct store *s, const char *session, int64_t limit,
                               struct arena *arena, struct store_span **out, size_t *n,
                               tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s,
                 "SELECT r.model_id, r.seq, r.kind, r.status, r.created_us, r.done_us"
                 " FROM requests r JOIN models m ON m.id=r.model_id WHERE m.session_id=?1"
                 " ORDER BY r.created_us DESC LIMIT ?2",
                 SQL_ARGS(sql_t(session), sql_i(limit)), read_span, sizeof(struct store_span),
                 arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Everything that a finished request changes, inside one transaction. */
static tinker_status record_outcome_locked(struct store *s, const struct store_outcome *v,
                                           tinker_error *err)
{
    tinker_status status = sql_run(
        s,
        "UPDATE requests SET status=?3, result=?4, category=?5, done_us=?6,"
        " body=CASE WHEN ?7 THEN NULL ELSE body END WHERE model_id=?1 AND seq=?2",
        SQL_ARGS(sql_t(v->model_id), sql_i(v->seq), sql_i(v->status), sql_b(v->result, v->n_result),
                 sql_i(v->category), sql_i(v->now_us), sql_i(v->drop_body)),
        err);
    /* Drops the bodies up to here, this one included. */
    if (status == TINKER_OK && v->saved_dir)
        status = set_saved_locked(s, v->model_id, v->seq, v->saved_dir, err);
    /* Added up here, so a replayed pass, which records no outcome, does not count twice. */
    if (status == TINKER_OK && v->tokens)
        status = sql_run(s, "UPDATE models SET train_tokens=train_tokens+?2 WHERE id=?1",
                         SQL_ARGS(sql_t(v->model_id), sql_i(v->tokens)), err);
    /* The checkpoint, and the sampling session that uses it, exist from this commit on. */
    if (status == TINKER_OK && v->checkpoint)
        status = store_put_checkpoint_locked(s, v->checkpoint, err);
    if (status == TINKER_OK && v->sampler)
        status = store_put_sampler_locked(s, v->sampler, err);
    return status;
}

/* PENDING -> DONE or FAILED, with everything that the request changed: all or nothing. */
tinker_status store_finish_request(struct store *s, const struct store_outcome *v,
                                   tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = sql_end(s, record_outcome_locked(s, v, err), err);
    pthread_mutex_unlock(&s->lock);
    /* The record names weights: make it survive a power failure.  Should the sync fail, the
     * outcome stands, and checkpoint_remove() syncs again before it removes older weights; err
     * says why all the same, for the log. */
    if (status == TINKER_OK && (v->saved_dir || v->checkpoint))
        store_sync(s, err);
    return status;
}

/* Delete what is older than the time-to-live.  Of the requests since the saved state two must stay:
 * the last, or a restart would wait for the numbers before it, and the last that changed the
 * weights, or a restart would not notice that the change is lost. */
tinker_status store_prune_requests(struct store *s, int64_t done_before_us, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_run(s,
                /* status: 0 pending, 1 done, 2 failed.  Kinds ?2 to ?6 change the weights. */
                "DELETE FROM requests WHERE status<>0 AND done_us>0 AND done_us<?1 AND body IS NULL"
                " AND (NOT EXISTS(SELECT 1 FROM models m WHERE m.id=requests.model_id"
                " AND m.status=0 AND m.saved_seq<requests.seq)"
                " OR EXISTS(SELECT 1 FROM requests l WHERE l.model_id=requests.model_id"
                " AND l.seq>requests.seq AND l.status<>0"
                " AND (requests.status<>1 OR requests.kind NOT IN (?2,?3,?4,?5,?6)"
                " OR (l.status=1 AND l.kind IN (?2,?3,?4,?5,?6) AND l.body IS NULL))))",
                SQL_ARGS(sql_i(done_before_us), sql_i(JOB_CREATE), sql_i(JOB_CREATE_BY_LOAD),
                         sql_i(JOB_FORWARD_BACKWARD), sql_i(JOB_OPTIM_STEP), sql_i(JOB_LOAD)),
                err);
    /* Rows that stay lose their results. */
    if (status == TINKER_OK)
        status = sql_run(s,
                         "UPDATE requests SET result=NULL WHERE status=1 AND done_us>0"
                         " AND done_us<?1 AND body IS NULL AND result IS NOT NULL",
                         SQL_ARGS(sql_i(done_before_us)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}
