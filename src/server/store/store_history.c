/* store_history.c - metrics, notes and texts of runs: see store_history.h.
 *
 * Points are in blobs of about a hundred: a row for each would take several times the space.  The
 * last chunk of a series is replaced until it is full. */
#include "server/store/store_history.h"

#include "base/err.h"
#include "server/store/store_sql.h"

/* ---- notes -------------------------------------------------------------------------------- */

static bool read_note(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_run_note *v = item;
    v->planned_steps = sqlite3_column_int64(row, 2);
    return sql_column_text(row, 0, arena, &v->name) && sql_column_text(row, 1, arena, &v->notes);
}

/* A run without a note is not an error: all zero. */
tinker_status store_get_run_note(struct store *s, const char *run, struct arena *arena,
                                 struct store_run_note *out, tinker_error *err)
{
    void *items = NULL;
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT name, notes, planned_steps FROM run_notes WHERE run=?1",
                 SQL_ARGS(sql_t(run)), read_note, sizeof(*out), arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    *out =
        status == TINKER_OK && n ? *(struct store_run_note *)items : (struct store_run_note){ 0 };
    return status;
}

tinker_status store_put_run_note(struct store *s, const char *run, const struct store_run_note *v,
                                 tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(
        s, "INSERT OR REPLACE INTO run_notes(run, name, notes, planned_steps) VALUES(?1,?2,?3,?4)",
        SQL_ARGS(sql_t(run), sql_t(v->name), sql_t(v->notes), sql_i(v->planned_steps)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- series --------------------------------------------------------------------------------- */

static bool read_series(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_series *v = item;
    v->id = sqlite3_column_int64(row, 0);
    return sql_column_text(row, 1, arena, &v->name);
}

tinker_status store_list_series(struct store *s, const char *run, struct arena *arena,
                                struct store_series **out, size_t *n, tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT id, name FROM series WHERE run=?1 ORDER BY name", SQL_ARGS(sql_t(run)),
                 read_series, sizeof(**out), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}

/* Chunk numbers grow but may have gaps: thinning leaves some out.  So the end is a maximum, not a
 * count. */
tinker_status store_series_end(struct store *s, int64_t id, int64_t *next_chunk, int64_t *points,
                               tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_int(s, "SELECT max(chunk) + 1 FROM series_chunks WHERE series=?1",
                                   SQL_ARGS(sql_i(id)), 0, next_chunk, err);
    if (status == TINKER_OK)
        status = sql_int(s, "SELECT sum(points) FROM series_chunks WHERE series=?1",
                         SQL_ARGS(sql_i(id)), 0, points, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* A chunk as it is in the table; sql_value serves as its record. */
static bool read_chunk(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct sql_value *v = item;
    return sql_column_blob(row, 0, arena, &v->p, &v->n);
}

/* Two literals, because statements are cached by address.  The last chunk alone is quick. */
static const char select_last[] =
    "SELECT data FROM series_chunks WHERE series=?1 AND chunk<?2 ORDER BY chunk DESC LIMIT 1";
static const char select_all[] =
    "SELECT data FROM series_chunks WHERE series=?1 AND chunk<?2 ORDER BY chunk";

static tinker_status read_points_locked(struct store *s, const char *sql, int64_t id,
                                        int64_t before, struct arena *arena,
                                        struct history_point **out, size_t *n, tinker_error *err)
{
    void *items = NULL;
    size_t n_items = 0, cap = 0;
    *out = NULL;
    *n = 0;
    tinker_status status = sql_list(s, sql, SQL_ARGS(sql_i(id), sql_i(before)), read_chunk,
                                    sizeof(struct sql_value), arena, &items, &n_items, err);
    const struct sql_value *chunks = items;
    for (size_t i = 0; status == TINKER_OK && i < n_items; i++)
        if (!history_decode(chunks[i].p, chunks[i].n, arena, out, n, &cap))
            status = err_set(err, TINKER_ESTATE, "store: the history of a run cannot be read");
    return status;
}

tinker_status store_read_series(struct store *s, int64_t id, bool last_only, struct arena *arena,
                                struct history_point **out, size_t *n, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = read_points_locked(s, last_only ? select_last : select_all, id,
                                              INT64_MAX, arena, out, n, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The id of a series, 0: there is none. */
static tinker_status find_series_locked(struct store *s, const char *run, const char *name,
                                        int64_t *id, tinker_error *err)
{
    return sql_int(s, "SELECT id FROM series WHERE run=?1 AND name=?2",
                   SQL_ARGS(sql_t(run), sql_t(name)), 0, id, err);
}

tinker_status store_find_series(struct store *s, const char *run, const char *name, int64_t *id,
                                tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = find_series_locked(s, run, name, id, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tinker_status put_chunk_locked(struct store *s, int64_t id, int64_t chunk, size_t points,
                                      const void *data, size_t n, tinker_error *err)
{
    return sql_run(
        s, "INSERT OR REPLACE INTO series_chunks(series, chunk, points, data) VALUES(?1,?2,?3,?4)",
        SQL_ARGS(sql_i(id), sql_i(chunk), sql_i((int64_t)points), sql_b(data, n)), err);
}

/* All series of a run in one transaction: a crash never leaves the loss of a step without its
 * learning rate. */
tinker_status store_put_chunks(struct store *s, const struct store_chunk *v, size_t n,
                               tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        int64_t id = 0;
        status = find_series_locked(s, v[i].run, v[i].name, &id, err);
        if (status == TINKER_OK && !id) {
            status = sql_run(s, "INSERT INTO series(run, name) VALUES(?1,?2)",
                             SQL_ARGS(sql_t(v[i].run), sql_t(v[i].name)), err);
            id = sqlite3_last_insert_rowid(s->db);
        }
        if (status == TINKER_OK)
            status = put_chunk_locked(s, id, v[i].chunk, v[i].points, v[i].data, v[i].n_data, err);
    }
    status = sql_end(s, status, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Write p[0..n) as the first chunks of a series. */
static tinker_status put_points_locked(struct store *s, int64_t id, const struct history_point *p,
                                       size_t n, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    struct buf b;
    buf_init(&b, SIZE_MAX);
    for (size_t at = 0; status == TINKER_OK && at < n; at += HISTORY_CHUNK) {
        size_t some = n - at < HISTORY_CHUNK ? n - at : HISTORY_CHUNK;
        buf_reset(&b);
        history_encode(p + at, some, &b);
        status = buf_ok(&b) ? put_chunk_locked(s, id, (int64_t)(at / HISTORY_CHUNK), some, b.data,
                                               b.len, err)
                            : err_nomem(err, "history");
    }
    buf_clear(&b);
    return status;
}

/* Fewer points need fewer chunks, so the new ones stay below the first that is left alone. */
tinker_status store_thin_series(struct store *s, const char *run, const char *name, int64_t before,
                                size_t *points, tinker_error *err)
{
    struct arena arena;
    struct history_point *p;
    size_t n = 0;
    int64_t id = 0;
    arena_init(&arena, SIZE_MAX);
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = find_series_locked(s, run, name, &id, err);
    if (status == TINKER_OK)
        status = read_points_locked(s, select_all, id, before, &arena, &p, &n, err);
    if (status == TINKER_OK)
        status = sql_run(s, "DELETE FROM series_chunks WHERE series=?1 AND chunk<?2",
                         SQL_ARGS(sql_i(id), sql_i(before)), err);
    if (status == TINKER_OK) {
        n = history_thin(p, n, HISTORY_KEEP_POINTS, HISTORY_THIN_POINTS);
        status = put_points_locked(s, id, p, n, err);
    }
    status = sql_end(s, status, err);
    pthread_mutex_unlock(&s->lock);
    *points = n;
    arena_clear(&arena);
    return status;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static bool read_text(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_text *v = item;
    v->step = sqlite3_column_int64(row, 0);
    v->time_us = sqlite3_column_int64(row, 1);
    return sql_column_text(row, 2, arena, &v->label) &&
           sql_column_text(row, 3, arena, &v->prompt) && sql_column_text(row, 4, arena, &v->text);
}

/* The newest `keep` stay: whatever is at that distance from the end, and older, goes in the same
 * transaction. */
tinker_status store_add_text(struct store *s, const char *run, const struct store_text *v,
                             int64_t keep, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK)
        status = sql_run(s,
                         "INSERT INTO run_texts(run, step, time_us, label, prompt, text)"
                         " VALUES(?1,?2,?3,?4,?5,?6)",
                         SQL_ARGS(sql_t(run), sql_i(v->step), sql_i(v->time_us), sql_t(v->label),
                                  sql_t(v->prompt), sql_t(v->text)),
                         err);
    if (status == TINKER_OK)
        status = sql_run(s,
                         "DELETE FROM run_texts WHERE run=?1 AND id <= (SELECT id FROM run_texts"
                         " WHERE run=?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                         SQL_ARGS(sql_t(run), sql_i(keep)), err);
    status = sql_end(s, status, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

tinker_status store_list_texts(struct store *s, const char *run, int64_t limit, int64_t offset,
                               struct arena *arena, struct store_text **out, size_t *n,
                               tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s,
                 "SELECT step, time_us, label, prompt, text FROM run_texts WHERE run=?1"
                 " ORDER BY id DESC LIMIT ?2 OFFSET ?3",
                 SQL_ARGS(sql_t(run), sql_i(limit), sql_i(offset)), read_text, sizeof(**out), arena,
                 &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    return status;
}
