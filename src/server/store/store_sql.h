/* store_sql.h - the little that store_*.c need on top of sqlite3: cached statements,
 * typed arguments, rows into an arena.  All functions need the store's lock. */
#ifndef SERVER_STORE_SQL_H
#define SERVER_STORE_SQL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "server/store/store.h"

enum { SQL_CACHE = 128 };

struct store {
    pthread_mutex_t lock;
    /* guarded by lock */
    sqlite3 *db;
    struct {
        const char *sql; /* compared by address: statements are literals */
        sqlite3_stmt *stmt;
    } cache[SQL_CACHE];
    size_t n_cache;
    pthread_mutex_t keeper_lock;
    sqlite3 *keeper; /* keeper_lock; moves the log while the other one writes on */
    char *path;      /* const */
    int log_fd;      /* guarded by lock; -1 until the first store_sync() */
    int n_synced;    /* guarded by lock; rows changed before the log was last synced */
};

struct sql_value {
    enum { SQL_TEXT_VALUE, SQL_INT_VALUE, SQL_BLOB_VALUE } type;
    const void *p;
    int64_t i;
    size_t n;
};
static inline struct sql_value sql_t(const char *s) /* NULL gives NULL */
{
    return (struct sql_value){ SQL_TEXT_VALUE, s, 0, 0 };
}
static inline struct sql_value sql_i(int64_t v)
{
    return (struct sql_value){ SQL_INT_VALUE, NULL, v, 0 };
}
static inline struct sql_value sql_b(const void *p, size_t n)
{
    return (struct sql_value){ SQL_BLOB_VALUE, p, 0, n };
}
#define SQL_ARGS(...)                          \
    (const struct sql_value[]){ __VA_ARGS__ }, \
        sizeof((const struct sql_value[]){ __VA_ARGS__ }) / sizeof(struct sql_value)

/* Run a statement that returns no rows. */
tinker_status sql_run(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                      tinker_error *err);

/* Fill *item from the current row; false: out of memory. */
typedef bool sql_read(sqlite3_stmt *row, struct arena *arena, void *item);

/* All rows as an array of items of `size` bytes. */
tinker_status sql_list(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                       sql_read *read, size_t size, struct arena *arena, void **out, size_t *n_out,
                       tinker_error *err);
/* One integer, `missing` when there is no row. */
tinker_status sql_int(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                      int64_t missing, int64_t *out, tinker_error *err);

/* Column i as a string in the arena; *out NULL for NULL.  false: no memory. */
bool sql_column_text(sqlite3_stmt *row, int i, struct arena *arena, const char **out);
bool sql_column_blob(sqlite3_stmt *row, int i, struct arena *arena, const void **out, size_t *n);

tinker_status sql_begin(struct store *s, tinker_error *err);
/* Commit when status is TINKER_OK, else roll back; returns the final status. */
tinker_status sql_end(struct store *s, tinker_status status, tinker_error *err);

/* Parts of a larger transaction. */
tinker_status store_add_session_locked(struct store *s, const struct store_session *v,
                                       tinker_error *err);
tinker_status store_add_model_locked(struct store *s, const struct store_model *v,
                                     tinker_error *err);
tinker_status store_put_sampler_locked(struct store *s, const struct store_sampler *v,
                                       tinker_error *err);
tinker_status store_put_checkpoint_locked(struct store *s, const struct store_checkpoint *v,
                                          tinker_error *err);

/* The optimizer of a model or checkpoint, as a literal; NULL: adamw. */
const char *store_optimizer(sqlite3_stmt *row, int column);

#endif
