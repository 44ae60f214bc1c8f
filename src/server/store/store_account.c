/* store_account.c - hourly usage and the audit log: see store_account.h. */
#include "server/store/store_account.h"

#include "server/store/store_sql.h"

/* One transaction, so that a batch that failed can be added again without counting anything
 * twice. */
tinker_status store_add_usage(struct store *s, const struct store_usage_row *rows, size_t n,
                              tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_begin(s, err);
    if (status == TINKER_OK) {
        /* The key of a row is all of it but the amount, so that adding is one statement. */
        for (size_t i = 0; i < n && status == TINKER_OK; i++) {
            const struct store_usage_row *r = &rows[i];
            status = sql_run(
                s,
                "INSERT INTO usage_hours(owner, hour, kind, session_id, base_model, amount)"
                " VALUES(?1,?2,?3,?4,?5,?6) ON CONFLICT(owner, hour, kind, session_id, base_model)"
                " DO UPDATE SET amount=amount+excluded.amount",
                SQL_ARGS(sql_t(r->owner), sql_i(r->hour), sql_i(r->kind), sql_t(r->session_id),
                         sql_t(r->base_model), sql_i(r->amount)),
                err);
        }
        status = sql_end(s, status, err);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Columns in the order of the query below; the texts are copied to the arena, for SQLite's own die
 * with the statement. */
static bool read_hour(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_usage_row *v = item;
    v->hour = sqlite3_column_int64(row, 0);
    v->kind = sqlite3_column_int(row, 1);
    v->amount = sqlite3_column_int64(row, 4);
    return sql_column_text(row, 2, arena, &v->session_id) &&
           sql_column_text(row, 3, arena, &v->base_model);
}

tinker_status store_list_hours(struct store *s, const char *owner, int64_t from, int64_t to,
                               struct arena *arena, struct store_usage_row **out, size_t *n,
                               tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    /* Newest hour last; in one hour the largest amounts first. */
    tinker_status status =
        sql_list(s,
                 "SELECT hour, kind, session_id, base_model, amount FROM usage_hours"
                 " WHERE owner=?1 AND hour>=?2 AND hour<?3 ORDER BY hour, amount DESC",
                 SQL_ARGS(sql_t(owner), sql_i(from), sql_i(to)), read_hour,
                 sizeof(struct store_usage_row), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    for (size_t i = 0; i < *n; i++)
        (*out)[i].owner = owner;
    return status;
}

/* Not batched as usage is: an audit log that loses its last entries in a crash is none. */
tinker_status store_add_event(struct store *s, const struct store_event *v, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_run(s,
                "INSERT INTO audit(owner, time_us, event, model_id, path, purpose, session_id)"
                " VALUES(?1,?2,?3,?4,?5,?6,?7)",
                SQL_ARGS(sql_t(v->owner), sql_i(v->time_us), sql_t(v->event), sql_t(v->model_id),
                         sql_t(v->path), sql_t(v->purpose), sql_t(v->session_id)),
                err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static bool read_event(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct store_event *v = item;
    v->time_us = sqlite3_column_int64(row, 0);
    return sql_column_text(row, 1, arena, &v->event) &&
           sql_column_text(row, 2, arena, &v->model_id) &&
           sql_column_text(row, 3, arena, &v->path) &&
           sql_column_text(row, 4, arena, &v->purpose) &&
           sql_column_text(row, 5, arena, &v->session_id);
}

tinker_status store_list_events(struct store *s, const char *owner, int64_t from_us, int64_t to_us,
                                struct arena *arena, struct store_event **out, size_t *n,
                                tinker_error *err)
{
    void *items = NULL;
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s,
                 "SELECT time_us, event, model_id, path, purpose, session_id FROM audit"
                 " WHERE owner=?1 AND time_us>=?2 AND time_us<?3 ORDER BY time_us, id",
                 SQL_ARGS(sql_t(owner), sql_i(from_us), sql_i(to_us)), read_event,
                 sizeof(struct store_event), arena, &items, n, err);
    pthread_mutex_unlock(&s->lock);
    *out = items;
    for (size_t i = 0; i < *n; i++)
        (*out)[i].owner = owner;
    return status;
}

void store_prune_account(struct store *s, int64_t now_us)
{
    int64_t before = now_us - STORE_ACCOUNT_DAYS * INT64_C(86400) * 1000000;
    pthread_mutex_lock(&s->lock);
    /* Best effort: what could not be forgotten now is forgotten later. */
    sql_run(s, "DELETE FROM usage_hours WHERE hour<?1",
            SQL_ARGS(sql_i(before / (INT64_C(3600) * 1000000))), NULL);
    sql_run(s, "DELETE FROM audit WHERE time_us<?1", SQL_ARGS(sql_i(before)), NULL);
    pthread_mutex_unlock(&s->lock);
}
