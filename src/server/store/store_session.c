/* store_session.c - sessions and sampling sessions: see store.h.
 *
 * Heartbeats are not recorded: after a restart every live session gets its whole timeout again. */
#include "server/store/store_sql.h"

/* tags and user_metadata are JSON text, as the client sent them. */
#define SESSION_COLUMNS                                                                      \
    "id, owner, tags, user_metadata, sdk_version, project_id, created_us, seen_us, expired," \
    " display_name, finish_reason, finish_detail"

/* One row, in the order of SESSION_COLUMNS. */
static bool read_session(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_session *v = item;
    v->created_us = sqlite3_column_int64(row, 6);
    v->seen_us = sqlite3_column_int64(row, 7);
    v->expired = sqlite3_column_int(row, 8) != 0; /* ended, by time or by its client */
    return sql_column_text(row, 0, arena, &v->id) && sql_column_text(row, 1, arena, &v->owner) &&
           sql_column_text(row, 2, arena, &v->tags) &&
           sql_column_text(row, 3, arena, &v->user_metadata) &&
           sql_column_text(row, 4, arena, &v->sdk_version) &&
           sql_column_text(row, 5, arena, &v->project_id) &&
           sql_column_text(row, 9, arena, &v->display_name) &&
           sql_column_text(row, 10, arena, &v->finish_reason) &&
           sql_column_text(row, 11, arena, &v->finish_detail);
}

/* Also part of the transaction that copies a checkpoint. */
tinker_status store_add_session_locked(struct store *s, const struct store_session *v,
                                       tinker_error *err)
{
    return sql_run(s,
                   "INSERT INTO sessions(" SESSION_COLUMNS
                   ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
                   SQL_ARGS(sql_t(v->id), sql_t(v->owner), sql_t(v->tags), sql_t(v->user_metadata),
                            sql_t(v->sdk_version), sql_t(v->project_id), sql_i(v->created_us),
                            sql_i(v->seen_us), sql_i(v->expired), sql_t(v->display_name),
                            sql_t(v->finish_reason), sql_t(v->finish_detail)),
                   err);
}

/* Survives the process from here on; see store.h for power failures. */
tinker_status store_add_session(struct store *s, const struct store_session *v, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = store_add_session_locked(s, v, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* A retry of the request must not change the reason, so only the first one is written. */
tinker_status store_set_session_finished(struct store *s, const char *id, const char *reason,
                                         const char *detail, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s,
                                   "UPDATE sessions SET finish_reason=?2, finish_detail=?3"
                                   " WHERE id=?1 AND finish_reason IS NULL",
                                   SQL_ARGS(sql_t(id), sql_t(reason), sql_t(detail)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Expired sessions stay, with their runs and checkpoints. */
tinker_status store_set_session_expired(struct store *s, const char *id, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_run(s, "UPDATE sessions SET expired=1 WHERE id=?1", SQL_ARGS(sql_t(id)), err);
    /* Its models have ended: nothing is computed with its losses again. */
    if (status == TINKER_OK)
        status =
            sql_run(s, "DELETE FROM custom_losses WHERE session_id=?1", SQL_ARGS(sql_t(id)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The project of a session is that of its checkpoints. */
tinker_status store_set_session_project(struct store *s, const char *id, const char *project_id,
                                        tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s, "UPDATE sessions SET project_id=?2 WHERE id=?1",
                                   SQL_ARGS(sql_t(id), sql_t(project_id)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Newest first; the id breaks ties, so that pages do not overlap. */
tinker_status store_list_sessions(struct store *s, const char *owner, bool live_only, int64_t limit,
                                  int64_t offset, struct arena *arena, struct store_session **out,
                                  size_t *n, tinker_error *err)
{
    void *items = NULL;
    static const char of_owner[] = "SELECT " SESSION_COLUMNS " FROM sessions WHERE owner=?1"
                                   " AND (?2=0 OR expired=0)"
                                   " ORDER BY created_us DESC, id LIMIT ?3 OFFSET ?4";
    static const char of_all[] = "SELECT " SESSION_COLUMNS " FROM sessions WHERE ?1 IS NULL"
                                 " AND (?2=0 OR expired=0)"
                                 " ORDER BY created_us DESC, id LIMIT ?3 OFFSET ?4";
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, owner ? of_owner : of_all,
                 SQL_ARGS(sql_t(owner), sql_i(live_only), sql_i(limit), sql_i(offset)),
                 read_session, sizeof(struct store_session), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Keyset pagination: the last row of a page is the key of the next one, so a page neither repeats
 * nor skips a session when others are added meanwhile. */
tinker_status store_sessions_after(struct store *s, const char *owner, int64_t created_us,
                                   const char *id, int64_t limit, struct arena *arena,
                                   struct store_session **out, size_t *n, tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(
        s,
        /* The first condition is one that the index can seek to. */
        "SELECT " SESSION_COLUMNS " FROM sessions WHERE owner=?1 AND created_us<=?2"
        " AND (created_us<?2 OR id>?3) ORDER BY created_us DESC, id LIMIT ?4",
        SQL_ARGS(sql_t(owner), sql_i(created_us ? created_us : INT64_MAX), sql_t(id), sql_i(limit)),
        read_session, sizeof(struct store_session), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Hidden checkpoints do not count: users cannot see them. */
tinker_status store_count_session(struct store *s, const char *id, int64_t *checkpoints,
                                  int64_t *bytes, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_int(s,
                                   "SELECT count(*) FROM checkpoints c JOIN models m ON m.id=c.run"
                                   " WHERE m.session_id=?1 AND c.hidden=0",
                                   SQL_ARGS(sql_t(id)), 0, checkpoints, err);
    /* sum() of no rows is NULL, which sql_int() turns into 0. */
    if (status == TINKER_OK)
        status = sql_int(s,
                         "SELECT sum(c.size_bytes) FROM checkpoints c JOIN models m ON m.id=c.run"
                         " WHERE m.session_id=?1 AND c.hidden=0",
                         SQL_ARGS(sql_t(id)), 0, bytes, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Also finds expired ones. */
tinker_status store_get_session(struct store *s, const char *id, struct arena *arena,
                                struct store_session **out, tinker_error *err)
{
    void *items = NULL;
    size_t n;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT " SESSION_COLUMNS " FROM sessions WHERE id=?1", SQL_ARGS(sql_t(id)),
                 read_session, sizeof(struct store_session), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* ---- sampling sessions --------------------------------------------------------------------- */

/* run and name say which checkpoint was asked for, dir which weights that was then: saving over the
 * name does not change a sampling session.  Once the checkpoint is deleted dir is empty. */
#define SAMPLER_COLUMNS \
    "id, session_id, owner, base_model, model_path, run, name, sampler, created_us, dir"

/* One row, in the order of SAMPLER_COLUMNS. */
static bool read_sampler(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_sampler *v = item;
    v->sampler = sqlite3_column_int(row, 7) != 0;
    v->created_us = sqlite3_column_int64(row, 8);
    return sql_column_text(row, 0, arena, &v->id) &&
           sql_column_text(row, 1, arena, &v->session_id) &&
           sql_column_text(row, 2, arena, &v->owner) &&
           sql_column_text(row, 3, arena, &v->base_model) &&
           sql_column_text(row, 4, arena, &v->model_path) &&
           sql_column_text(row, 5, arena, &v->run) && sql_column_text(row, 6, arena, &v->name) &&
           sql_column_text(row, 9, arena, &v->dir);
}

/* The statement fails when the number is taken, or with `ignore` leaves the row that is there. */
static tinker_status insert_sampler_locked(struct store *s, const struct store_sampler *v,
                                           bool ignore, tinker_error *err)
{
    static const char values[] =
        "INSERT INTO samplers(" SAMPLER_COLUMNS ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)";
    static const char unless[] = "INSERT OR IGNORE INTO samplers(" SAMPLER_COLUMNS
                                 ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)";
    return sql_run(s, ignore ? unless : values,
                   SQL_ARGS(sql_t(v->id), sql_t(v->session_id), sql_t(v->owner),
                            sql_t(v->base_model), sql_t(v->model_path), sql_t(v->run),
                            sql_t(v->name), sql_i(v->sampler), sql_i(v->created_us), sql_t(v->dir)),
                   err);
}

/* Part of the transaction that finishes save_weights_for_sampler. */
tinker_status store_put_sampler_locked(struct store *s, const struct store_sampler *v,
                                       tinker_error *err)
{
    return insert_sampler_locked(s, v, false, err);
}

/* A retry finds the row of the first request; the caller compares the two. */
tinker_status store_add_sampler(struct store *s, const struct store_sampler *v, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = insert_sampler_locked(s, v, true, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* One row of store_end_samplers(). */
static bool read_id(sqlite3_stmt *row, struct arena *arena, void *item)
{
    return sql_column_text(row, 0, arena, item);
}

tinker_status store_end_samplers(struct store *s, const struct store_checkpoint *c,
                                 const char *except, struct arena *arena, const char ***out,
                                 size_t *n, tinker_error *err)
{
    void *items = NULL;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK) {
        status = sql_list(s,
                          "SELECT id FROM samplers WHERE run=?1 AND name=?2 AND sampler=?3"
                          " AND (?4 IS NULL OR owner<>?4)",
                          SQL_ARGS(sql_t(c->run), sql_t(c->name), sql_i(c->kind), sql_t(except)),
                          read_id, sizeof(const char *), arena, &items, n, err);
        if (status == TINKER_OK)
            status = sql_run(s,
                             "UPDATE samplers SET dir='' WHERE run=?1 AND name=?2 AND sampler=?3"
                             " AND (?4 IS NULL OR owner<>?4)",
                             SQL_ARGS(sql_t(c->run), sql_t(c->name), sql_i(c->kind), sql_t(except)),
                             err);
        status = sql_end(s, status, err);
    }
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* sampler_table.c restores sampling sessions from here after a restart. */
tinker_status store_get_sampler(struct store *s, const char *id, struct arena *arena,
                                struct store_sampler **out, tinker_error *err)
{
    void *items = NULL;
    size_t n;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT " SAMPLER_COLUMNS " FROM samplers WHERE id=?1", SQL_ARGS(sql_t(id)),
                 read_sampler, sizeof(struct store_sampler), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Counts up in the store, so that no number is given out twice, not even across a restart.  Both
 * statements run under the lock, so nobody comes between them. */
tinker_status store_join_sampler(struct store *s, const char *id, int64_t *number,
                                 tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s,
                                   "INSERT INTO sampler_clients(id, n) VALUES(?1, 1)"
                                   " ON CONFLICT(id) DO UPDATE SET n=n+1",
                                   SQL_ARGS(sql_t(id)), err);
    /* The number that the statement above has just counted up to. */
    if (status == TINKER_OK)
        status = sql_int(s, "SELECT n FROM sampler_clients WHERE id=?1", SQL_ARGS(sql_t(id)), 0,
                         number, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* In the order in which they were created. */
tinker_status store_list_samplers(struct store *s, const char *session, struct arena *arena,
                                  struct store_sampler **out, size_t *n, tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(
        s, "SELECT " SAMPLER_COLUMNS " FROM samplers WHERE session_id=?1 ORDER BY created_us, id",
        SQL_ARGS(sql_t(session)), read_sampler, sizeof(struct store_sampler), arena, &items, n,
        err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* ---- custom losses ------------------------------------------------------------------------- */

tinker_status store_add_loss(struct store *s, const struct store_loss *v, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_run(s,
                "INSERT OR IGNORE INTO custom_losses(session_id, seq, hash, body)"
                " VALUES(?1,?2,?3,?4)",
                SQL_ARGS(sql_t(v->session_id), sql_i(v->seq), sql_i((int64_t)v->hash),
                         sql_b(v->body, v->n_body)),
                err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static bool read_loss(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_loss *v = item;
    v->seq = sqlite3_column_int64(row, 1);
    v->hash = (uint64_t)sqlite3_column_int64(row, 2);
    return sql_column_text(row, 0, arena, &v->session_id) &&
           sql_column_blob(row, 3, arena, &v->body, &v->n_body);
}

tinker_status store_get_loss(struct store *s, const char *session_id, int64_t seq,
                             struct arena *arena, struct store_loss **out, tinker_error *err)
{
    void *items = NULL;
    size_t n;
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_list(s,
                                    "SELECT session_id, seq, hash, body FROM custom_losses"
                                    " WHERE session_id=?1 AND seq=?2",
                                    SQL_ARGS(sql_t(session_id), sql_i(seq)), read_loss,
                                    sizeof(struct store_loss), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}
