/* store_checkpoint.c - records of checkpoints: see store.h.  Files are checkpoint.c's.
 *
 * A record is what makes a checkpoint exist.  Several records may name one directory (copies). */
#include "server/store/store_sql.h"

/* (run, sampler, name) is the key.  The owner and base model are copied from the run, so that a
 * checkpoint outlives it. */
#define CHECKPOINT_COLUMNS                                                                     \
    "run, sampler, name, owner, base_model, rank, seed, train_attn, train_mlp, train_unembed," \
    " dir, size_bytes, created_us, expires_us, public, hidden, user_metadata,"                 \
    " optimizer"

/* In the order of enum store_kind. */
const char *store_kind_name(int kind)
{
    static const char *const names[] = { "weights", "sampler_weights", "external_weights" };
    return names[kind];
}

/* One row, in the order of CHECKPOINT_COLUMNS.  The column `sampler` holds enum store_kind. */
static bool read_checkpoint(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_checkpoint *v = item;
    v->kind = sqlite3_column_int(row, 1);
    v->lora = (tinker_lora)TINKER_LORA_INIT;
    v->lora.rank = sqlite3_column_int64(row, 5);
    v->lora.has_seed = 1;
    v->lora.seed = sqlite3_column_int64(row, 6);
    v->lora.train_attn = sqlite3_column_int(row, 7);
    v->lora.train_mlp = sqlite3_column_int(row, 8);
    v->lora.train_unembed = sqlite3_column_int(row, 9);
    v->size_bytes = sqlite3_column_int64(row, 11);
    v->created_us = sqlite3_column_int64(row, 12);
    v->expires_us = sqlite3_column_int64(row, 13);
    v->is_public = sqlite3_column_int(row, 14) != 0;
    v->lora.optimizer = store_optimizer(row, 17);
    v->hidden = sqlite3_column_int(row, 15) != 0; /* unnamed sampler weights */
    return sql_column_text(row, 0, arena, &v->run) && sql_column_text(row, 2, arena, &v->name) &&
           sql_column_text(row, 3, arena, &v->owner) &&
           sql_column_text(row, 4, arena, &v->base_model) &&
           sql_column_text(row, 10, arena, &v->dir) &&
           sql_column_text(row, 16, arena, &v->user_metadata);
}

/* Part of the transaction that finishes a save; REPLACE is the overwrite of a name. */
tinker_status store_put_checkpoint_locked(struct store *s, const struct store_checkpoint *v,
                                          tinker_error *err)
{
    const tinker_lora *lora = &v->lora;
    return sql_run(s,
                   "INSERT OR REPLACE INTO checkpoints(" CHECKPOINT_COLUMNS
                   ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)",
                   SQL_ARGS(sql_t(v->run), sql_i(v->kind), sql_t(v->name), sql_t(v->owner),
                            sql_t(v->base_model), sql_i(lora->rank), sql_i(lora->seed),
                            sql_i(lora->train_attn), sql_i(lora->train_mlp),
                            sql_i(lora->train_unembed), sql_t(v->dir), sql_i(v->size_bytes),
                            sql_i(v->created_us), sql_i(v->expires_us), sql_i(v->is_public),
                            sql_i(v->hidden), sql_t(v->user_metadata), sql_t(lora->optimizer)),
                   err);
}

/* Run a query that selects CHECKPOINT_COLUMNS. */
static tinker_status list_checkpoints(struct store *s, const char *sql,
                                      const struct sql_value *args, size_t n, struct arena *arena,
                                      struct store_checkpoint **out, size_t *n_out,
                                      tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(s, sql, args, n, read_checkpoint,
                                    sizeof(struct store_checkpoint), arena, &items, n_out, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Finds hidden ones, too; route_checkpoint() refuses those. */
tinker_status store_get_checkpoint(struct store *s, const char *run, int kind, const char *name,
                                   struct arena *arena, struct store_checkpoint **out,
                                   tinker_error *err)
{
    size_t n;
    return list_checkpoints(
        s, "SELECT " CHECKPOINT_COLUMNS " FROM checkpoints WHERE run=?1 AND sampler=?2 AND name=?3",
        SQL_ARGS(sql_t(run), sql_i(kind), sql_t(name)), arena, out, &n, err);
}

/* A statement for each combination of filters: with "?1 IS NULL OR ..." SQLite would use no index.
 * hidden=0 comes last, with a "+", because an index on it would be no help. */
static const char *const of_owner[] = {
    "SELECT " CHECKPOINT_COLUMNS " FROM checkpoints WHERE owner=?1 AND ?2 IS NULL AND +hidden=0"
    " ORDER BY created_us DESC, run, name LIMIT ?3 OFFSET ?4",
    "SELECT count(*) FROM checkpoints WHERE owner=?1 AND ?2 IS NULL AND +hidden=0",
};
static const char *const of_run[] = {
    "SELECT " CHECKPOINT_COLUMNS " FROM checkpoints WHERE run=?2 AND owner=?1 AND +hidden=0"
    " ORDER BY created_us DESC, run, name LIMIT ?3 OFFSET ?4",
    "SELECT count(*) FROM checkpoints WHERE run=?2 AND owner=?1 AND +hidden=0",
};

tinker_status store_list_checkpoints(struct store *s, const char *owner, const char *run,
                                     int64_t limit, int64_t offset, struct arena *arena,
                                     struct store_checkpoint **out, size_t *n, int64_t *total,
                                     tinker_error *err)
{
    const char *const *sql = run ? of_run : of_owner;
    tinker_status status =
        list_checkpoints(s, sql[0], SQL_ARGS(sql_t(owner), sql_t(run), sql_i(limit), sql_i(offset)),
                         arena, out, n, err);
    /* The total may be newer than the page; both are right at their moment. */
    if (status != TINKER_OK || !total)
        return status;
    pthread_mutex_lock(&s->lock);
    status = sql_int(s, sql[1], SQL_ARGS(sql_t(owner), sql_t(run)), 0, total, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* For the summary of a run. */
tinker_status store_last_checkpoint(struct store *s, const char *run, int kind, struct arena *arena,
                                    struct store_checkpoint **out, tinker_error *err)
{
    size_t n;
    return list_checkpoints(s,
                            "SELECT " CHECKPOINT_COLUMNS
                            " FROM checkpoints WHERE run=?1 AND sampler=?2"
                            " AND hidden=0 ORDER BY created_us DESC LIMIT 1",
                            SQL_ARGS(sql_t(run), sql_i(kind)), arena, out, &n, err);
}

/* The partial index checkpoints_expires holds only those with a time limit. */
tinker_status store_expired_checkpoints(struct store *s, int64_t now_us, int64_t limit,
                                        struct arena *arena, struct store_checkpoint **out,
                                        size_t *n, tinker_error *err)
{
    return list_checkpoints(s,
                            "SELECT " CHECKPOINT_COLUMNS " FROM checkpoints"
                            " WHERE expires_us>0 AND expires_us<=?1 LIMIT ?2",
                            SQL_ARGS(sql_i(now_us), sql_i(limit)), arena, out, n, err);
}

/* Their names are ":<number>", hence the substr(). */
tinker_status store_hidden_checkpoints(struct store *s, const char *run, struct arena *arena,
                                       struct store_checkpoint **out, size_t *n, tinker_error *err)
{
    return list_checkpoints(s,
                            "SELECT " CHECKPOINT_COLUMNS
                            " FROM checkpoints WHERE run=?1 AND hidden=1"
                            " ORDER BY CAST(substr(name, 2) AS INTEGER) DESC",
                            SQL_ARGS(sql_t(run)), arena, out, n, err);
}

/* Run one statement as a transaction of its own. */
static tinker_status run_change(struct store *s, const char *sql, const struct sql_value *args,
                                size_t n, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s, sql, args, n, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Only for models that ended: an active one may be saving some right now. */
tinker_status store_delete_hidden(struct store *s, tinker_error *err)
{
    return run_change(s,
                      "DELETE FROM checkpoints WHERE hidden=1 AND EXISTS(SELECT 1 FROM models m"
                      " JOIN sessions v ON v.id=m.session_id"
                      " WHERE m.id=run AND m.status<>0 AND v.expired<>0)",
                      NULL, 0, err);
}

/* The files stay until checkpoint_release() finds that no record names them. */
tinker_status store_delete_checkpoint(struct store *s, const char *run, int kind, const char *name,
                                      tinker_error *err)
{
    return run_change(s, "DELETE FROM checkpoints WHERE run=?1 AND sampler=?2 AND name=?3",
                      SQL_ARGS(sql_t(run), sql_i(kind), sql_t(name)), err);
}

tinker_status store_delete_expired(struct store *s, const struct store_checkpoint *c,
                                   int64_t now_us, bool *deleted, tinker_error *err)
{
    int64_t changed = 0;
    /* Between the listing and now the user may have extended it, or saved over the name: compare
     * time and directory again, in the statement that deletes. */
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(
        s,
        "DELETE FROM checkpoints WHERE run=?1 AND sampler=?2 AND name=?3 AND dir=?4"
        " AND expires_us>0 AND expires_us<=?5",
        SQL_ARGS(sql_t(c->run), sql_i(c->kind), sql_t(c->name), sql_t(c->dir), sql_i(now_us)), err);
    if (status == TINKER_OK)
        status = sql_int(s, "SELECT changes()", NULL, 0, 0, &changed, err);
    pthread_mutex_unlock(&s->lock);
    /* changes() is of this connection's last statement, hence under the same lock. */
    *deleted = changed > 0;
    return status;
}

/* A name that is gone meanwhile changes no row, which is not an error. */
tinker_status store_set_checkpoint_public(struct store *s, const char *run, int kind,
                                          const char *name, bool is_public, tinker_error *err)
{
    return run_change(s, "UPDATE checkpoints SET public=?4 WHERE run=?1 AND sampler=?2 AND name=?3",
                      SQL_ARGS(sql_t(run), sql_i(kind), sql_t(name), sql_i(is_public)), err);
}

/* 0 clears it. */
tinker_status store_set_checkpoint_expiry(struct store *s, const char *run, int kind,
                                          const char *name, int64_t expires_us, tinker_error *err)
{
    return run_change(
        s, "UPDATE checkpoints SET expires_us=?4 WHERE run=?1 AND sampler=?2 AND name=?3",
        SQL_ARGS(sql_t(run), sql_i(kind), sql_t(name), sql_i(expires_us)), err);
}

/* One row of store_checkpoint_usage(). */
static bool read_usage(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_usage *v = item;
    v->checkpoints = sqlite3_column_int64(row, 1);
    v->bytes = sqlite3_column_int64(row, 2);
    return sql_column_text(row, 0, arena, &v->project_id);
}

/* Outer joins: a checkpoint whose run or session was pruned still counts, under no project. */
tinker_status store_checkpoint_usage(struct store *s, const char *owner, struct arena *arena,
                                     struct store_usage **out, size_t *n, tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(
        s,
        "SELECT v.project_id, count(*), sum(c.size_bytes) FROM checkpoints c"
        " LEFT JOIN models m ON m.id=c.run LEFT JOIN sessions v ON v.id=m.session_id"
        " WHERE c.hidden=0 AND c.owner=?1 GROUP BY v.project_id ORDER BY v.project_id",
        SQL_ARGS(sql_t(owner)), read_usage, sizeof(struct store_usage), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* All inserts of a copy, inside a transaction. */
static tinker_status copy_locked(struct store *s, const struct store_copy *v, bool *found,
                                 tinker_error *err)
{
    tinker_status status = TINKER_OK;
    int64_t changed = 0;
    if (v->session)
        status = store_add_session_locked(s, v->session, err);
    if (status == TINKER_OK)
        status = store_add_model_locked(s, v->model, err);
    /* Reading the source in this transaction makes sure that its files are still there: a
     * deletion removes the record first, and looks for other users of the directory after it. */
    if (status == TINKER_OK)
        status =
            sql_run(s,
                    "INSERT INTO checkpoints(" CHECKPOINT_COLUMNS ") SELECT ?1, sampler, name,"
                    " ?2, base_model, rank, seed, train_attn, train_mlp, train_unembed, dir,"
                    " size_bytes, ?3, ?4, 0, 0, user_metadata, optimizer"
                    " FROM checkpoints WHERE run=?5 AND sampler=?6 AND name=?7",
                    SQL_ARGS(sql_t(v->model->id), sql_t(v->model->owner), sql_i(v->created_us),
                             sql_i(v->expires_us), sql_t(v->run), sql_i(v->kind), sql_t(v->name)),
                    err);
    if (status == TINKER_OK)
        status = sql_int(s, "SELECT changes()", NULL, 0, 0, &changed, err);
    *found = changed > 0; /* 0 rows: the source was deleted */
    return status;
}

/* No files are copied: both records name the same directory, which stays until both are gone. */
tinker_status store_copy_checkpoint(struct store *s, const struct store_copy *v, bool *found,
                                    tinker_error *err)
{
    *found = false;
    pthread_mutex_lock(&s->lock);
    /* Session, run and checkpoint together, or nothing. */
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK) {
        status = copy_locked(s, v, found, err);
        if (status == TINKER_OK && !*found) /* nothing to copy: undo session and run */
            sql_end(s, TINKER_ESTATE, NULL);
        else
            status = sql_end(s, status, err);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Saved states of models that ended do not count: nobody will load them. */
tinker_status store_dir_in_use(struct store *s, const char *dir, bool *out, tinker_error *err)
{
    int64_t n = 0;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_int(s,
                                   "SELECT EXISTS(SELECT 1 FROM checkpoints WHERE dir=?1)"
                                   " OR EXISTS(SELECT 1 FROM models WHERE saved_dir=?1"
                                   " AND status=0)"
                                   " OR EXISTS(SELECT 1 FROM samplers p JOIN sessions v"
                                   " ON v.id=p.session_id WHERE p.dir=?1 AND v.expired=0)",
                                   SQL_ARGS(sql_t(dir)), 0, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = n > 0;
    return status;
}
