/* store.c - the database: opening, schema, statements; see store.h and store_sql.h.
 *
 * Write-ahead log with synchronous=NORMAL: a committed write survives the death of
 * the process at once, and a power failure once the log was synced (store_sync) or moved
 * into the database.  A connection of its own moves it (store_tidy), because after a large
 * request it takes the disk seconds. */
#include "server/store/store.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os.h"
#include "server/store/store_sql.h"

static const char schema[] =
    "PRAGMA busy_timeout=5000;"
    "PRAGMA journal_mode=WAL;"
    "PRAGMA journal_size_limit=67108864;"
    "PRAGMA wal_autocheckpoint=0;"
    "BEGIN;"
    "CREATE TABLE IF NOT EXISTS settings(name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS sessions(id TEXT PRIMARY KEY, owner TEXT NOT NULL, tags TEXT,"
    " user_metadata TEXT, sdk_version TEXT, project_id TEXT, created_us INTEGER NOT NULL,"
    " seen_us INTEGER NOT NULL, expired INTEGER NOT NULL DEFAULT 0, display_name TEXT,"
    " finish_reason TEXT, finish_detail TEXT) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS sessions_created ON sessions(created_us);"
    "CREATE TABLE IF NOT EXISTS models(id TEXT PRIMARY KEY, session_id TEXT NOT NULL,"
    " owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL, seed INTEGER NOT NULL,"
    " train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL,"
    " user_metadata TEXT, status INTEGER NOT NULL, created_us INTEGER NOT NULL,"
    " last_request_us INTEGER NOT NULL, saved_seq INTEGER NOT NULL, saved_dir TEXT,"
    " train_tokens INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS models_session ON models(session_id);"
    "CREATE INDEX IF NOT EXISTS models_recent ON models(last_request_us);"
    "CREATE INDEX IF NOT EXISTS models_saved ON models(saved_dir) WHERE status=0;"
    "CREATE TABLE IF NOT EXISTS requests(model_id TEXT NOT NULL, seq INTEGER NOT NULL,"
    " kind INTEGER NOT NULL, hash INTEGER NOT NULL, proto INTEGER NOT NULL,"
    " status INTEGER NOT NULL, category INTEGER NOT NULL DEFAULT 0, created_us INTEGER NOT NULL,"
    " done_us INTEGER NOT NULL DEFAULT 0, result BLOB, body BLOB);"
    "CREATE UNIQUE INDEX IF NOT EXISTS requests_key ON requests(model_id, seq);"
    "CREATE INDEX IF NOT EXISTS requests_done ON requests(done_us);"
    /* each step drops the bodies since the last one, and must not look at all requests for them */
    "CREATE INDEX IF NOT EXISTS requests_kept ON requests(model_id, seq) WHERE body IS NOT NULL;"
    /* numbers that never came, see store_set_skipped_seq(); few models have any */
    "CREATE TABLE IF NOT EXISTS passed(model_id TEXT PRIMARY KEY, seq INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS checkpoints(run TEXT NOT NULL, sampler INTEGER NOT NULL,"
    " name TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL,"
    " seed INTEGER NOT NULL, train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL,"
    " train_unembed INTEGER NOT NULL, dir TEXT NOT NULL, size_bytes INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL DEFAULT 0,"
    " public INTEGER NOT NULL DEFAULT 0, hidden INTEGER NOT NULL DEFAULT 0, user_metadata TEXT,"
    " PRIMARY KEY(run, sampler, name)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS checkpoints_created ON checkpoints(created_us);"
    "CREATE INDEX IF NOT EXISTS checkpoints_dir ON checkpoints(dir);"
    "CREATE INDEX IF NOT EXISTS checkpoints_expires ON checkpoints(expires_us)"
    " WHERE expires_us>0;"
    "CREATE TABLE IF NOT EXISTS samplers(id TEXT PRIMARY KEY, session_id TEXT NOT NULL,"
    " owner TEXT NOT NULL, base_model TEXT NOT NULL, model_path TEXT, run TEXT, name TEXT,"
    " sampler INTEGER NOT NULL, created_us INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS samplers_session ON samplers(session_id);"
    "CREATE TABLE IF NOT EXISTS sampler_clients(id TEXT PRIMARY KEY, n INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "COMMIT;";

/* What brings a file of the version before to this one. */
static const char upgrade_1_to_2[] = "BEGIN IMMEDIATE;"
                                     "ALTER TABLE sessions ADD COLUMN display_name TEXT;"
                                     "ALTER TABLE sessions ADD COLUMN finish_reason TEXT;"
                                     "ALTER TABLE sessions ADD COLUMN finish_detail TEXT;"
                                     "ALTER TABLE checkpoints ADD COLUMN user_metadata TEXT;"
                                     "UPDATE settings SET value='2' WHERE name='schema';"
                                     "COMMIT;";

enum { SCHEMA_VERSION = 2 };

/* ---- statements ----------------------------------------------------------------------- */

/* "disk I/O error" alone does not say that the disk is full. */
static tinker_status set_sql_error(struct store *s, const char *what, tinker_error *err)
{
    int code = sqlite3_errcode(s->db) == SQLITE_IOERR ? sqlite3_system_errno(s->db) : 0;
    return err_set(err, TINKER_ESTATE, "store: %s: %s%s%s", what, sqlite3_errmsg(s->db),
                   code ? ": " : "", code ? strerror(code) : "");
}

static sqlite3_stmt *prepare_statement(struct store *s, const char *sql, tinker_error *err)
{
    for (size_t i = 0; i < s->n_cache; i++)
        if (s->cache[i].sql == sql)
            return s->cache[i].stmt;
    sqlite3_stmt *stmt;
    if (s->n_cache == SQL_CACHE) {
        err_set(err, TINKER_ESTATE, "store: too many statements");
        return NULL;
    }
    if (sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) != SQLITE_OK) {
        set_sql_error(s, "prepare", err);
        return NULL;
    }
    s->cache[s->n_cache].sql = sql;
    s->cache[s->n_cache++].stmt = stmt;
    return stmt;
}

static bool bind_args(sqlite3_stmt *stmt, const struct sql_value *args, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int at = (int)i + 1, rc;
        if (args[i].type == SQL_INT_VALUE)
            rc = sqlite3_bind_int64(stmt, at, args[i].i);
        else if (!args[i].p)
            rc = sqlite3_bind_null(stmt, at);
        else if (args[i].type == SQL_TEXT_VALUE)
            rc = sqlite3_bind_text(stmt, at, args[i].p, -1, SQLITE_STATIC);
        else
            rc = sqlite3_bind_blob64(stmt, at, args[i].p, args[i].n, SQLITE_STATIC);
        if (rc != SQLITE_OK)
            return false;
    }
    return true;
}

static sqlite3_stmt *start_statement(struct store *s, const char *sql, const struct sql_value *args,
                                     size_t n, tinker_error *err)
{
    sqlite3_stmt *stmt = prepare_statement(s, sql, err);
    if (stmt && !bind_args(stmt, args, n)) {
        set_sql_error(s, "bind", err);
        return NULL;
    }
    return stmt;
}

/* Arguments are borrowed: drop them before the caller's memory goes away. */
static void reset_statement(sqlite3_stmt *stmt)
{
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

tinker_status sql_run(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                      tinker_error *err)
{
    sqlite3_stmt *stmt = start_statement(s, sql, args, n, err);
    if (!stmt)
        return TINKER_ESTATE;
    int rc = sqlite3_step(stmt);
    tinker_status status =
        rc == SQLITE_DONE || rc == SQLITE_ROW ? TINKER_OK : set_sql_error(s, "write", err);
    reset_statement(stmt);
    return status;
}

tinker_status sql_int(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                      int64_t missing, int64_t *out, tinker_error *err)
{
    sqlite3_stmt *stmt = start_statement(s, sql, args, n, err);
    if (!stmt)
        return TINKER_ESTATE;
    int rc = sqlite3_step(stmt);
    tinker_status status = TINKER_OK;
    *out = missing;
    if (rc == SQLITE_ROW && sqlite3_column_type(stmt, 0) != SQLITE_NULL)
        *out = sqlite3_column_int64(stmt, 0);
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        status = set_sql_error(s, "read", err);
    reset_statement(stmt);
    return status;
}

/* Room for one more item of `size` bytes; doubles so that copies stay cheap. */
static void *append_item(struct arena *arena, void **items, size_t n, size_t *cap, size_t size)
{
    if (n == *cap) {
        size_t grown = *cap ? *cap * 2 : 8;
        void *p = arena_grow(arena, *items, *cap * size, grown * size);
        if (!p)
            return NULL;
        *items = p;
        *cap = grown;
    }
    void *item = (char *)*items + n * size;
    memset(item, 0, size);
    return item;
}

tinker_status sql_list(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                       sql_read *read, size_t size, struct arena *arena, void **out, size_t *n_out,
                       tinker_error *err)
{
    sqlite3_stmt *stmt = start_statement(s, sql, args, n, err);
    if (!stmt)
        return TINKER_ESTATE;
    tinker_status status = TINKER_OK;
    size_t cap = 0;
    int rc;
    *out = NULL;
    *n_out = 0;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        void *item = append_item(arena, out, *n_out, &cap, size);
        if (!item || !read(stmt, arena, item)) {
            status = err_nomem(err, "rows of the store");
            break;
        }
        ++*n_out;
    }
    if (status == TINKER_OK && rc != SQLITE_DONE)
        status = set_sql_error(s, "read", err);
    reset_statement(stmt);
    return status;
}

bool sql_column_text(sqlite3_stmt *row, int i, struct arena *arena, const char **out)
{
    const char *text = (const char *)sqlite3_column_text(row, i);
    *out = text ? arena_strdup(arena, text) : NULL;
    return !text || *out;
}

bool sql_column_blob(sqlite3_stmt *row, int i, struct arena *arena, const void **out, size_t *n)
{
    const void *p = sqlite3_column_blob(row, i);
    *n = (size_t)sqlite3_column_bytes(row, i);
    *out = p ? arena_memdup(arena, p, *n) : NULL;
    return !p || *out;
}

tinker_status sql_begin(struct store *s, tinker_error *err)
{
    return sql_run(s, "BEGIN IMMEDIATE", NULL, 0, err);
}

tinker_status sql_end(struct store *s, tinker_status status, tinker_error *err)
{
    if (status == TINKER_OK)
        status = sql_run(s, "COMMIT", NULL, 0, err);
    if (status != TINKER_OK && !sqlite3_get_autocommit(s->db))
        sql_run(s, "ROLLBACK", NULL, 0, NULL);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------- */

static tinker_status check_version(struct store *s, tinker_error *err)
{
    int64_t version;
    tinker_status status =
        sql_int(s, "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM settings WHERE name='schema'",
                NULL, 0, 0, &version, err);
    if (status != TINKER_OK)
        return status;
    if (version == 0)
        return sql_run(s, "INSERT INTO settings(name, value) VALUES('schema', '2')", NULL, 0, err);
    if (version == 1)
        return sqlite3_exec(s->db, upgrade_1_to_2, NULL, NULL, NULL) == SQLITE_OK
                   ? TINKER_OK
                   : set_sql_error(s, "upgrade", err);
    if (version != SCHEMA_VERSION)
        return err_set(err, TINKER_ESTATE, "store: written by another version (schema %lld)",
                       (long long)version);
    return TINKER_OK;
}

/* A new file has nothing to lose yet, so its making does not wait for the disk. */
static bool create_schema(struct store *s, bool is_new)
{
    const char *first = is_new ? "PRAGMA synchronous=OFF" : "PRAGMA synchronous=NORMAL";
    return sqlite3_exec(s->db, first, NULL, NULL, NULL) == SQLITE_OK &&
           sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK &&
           sqlite3_exec(s->db, "PRAGMA synchronous=NORMAL", NULL, NULL, NULL) == SQLITE_OK;
}

struct store *store_open(const char *path, tinker_error *err)
{
    bool is_new = access(path, F_OK) != 0;
    struct store *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "store");
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->keeper_lock, NULL);
    s->path = strdup(path);
    s->log_fd = -1;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &s->db, flags, NULL) != SQLITE_OK || !create_schema(s, is_new)) {
        set_sql_error(s, path, err);
        store_close(s);
        return NULL;
    }
    if (check_version(s, err) != TINKER_OK) {
        store_close(s);
        return NULL;
    }
    return s;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_cache; i++)
        sqlite3_finalize(s->cache[i].stmt);
    sqlite3_close(s->keeper);
    sqlite3_close(s->db);
    if (s->log_fd >= 0)
        close(s->log_fd);
    free(s->path);
    pthread_mutex_destroy(&s->keeper_lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static bool open_wal_connection(struct store *s)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    if (s->keeper)
        return true;
    /* Before its first read a connection does not know that there is a log, and moves nothing. */
    if (s->path && sqlite3_open_v2(s->path, &s->keeper, flags, NULL) == SQLITE_OK &&
        sqlite3_exec(s->keeper, "PRAGMA schema_version", NULL, NULL, NULL) == SQLITE_OK)
        return true;
    sqlite3_close(s->keeper);
    s->keeper = NULL;
    return false;
}

enum { LOG_LONG = 16384 }; /* pages: 64 MB */

/* Move what is in the log now; true: it is long, and more came meanwhile. */
static bool checkpoint_wal(struct store *s)
{
    int in_log = 0, moved = 0;
    /* Passive: what is still being read or written is left for the next time. */
    int rc = sqlite3_wal_checkpoint_v2(s->keeper, NULL, SQLITE_CHECKPOINT_PASSIVE, &in_log, &moved);
    return rc == SQLITE_OK && in_log > LOG_LONG && moved < in_log;
}

void store_tidy(struct store *s)
{
    pthread_mutex_lock(&s->keeper_lock);
    /* The log starts over only when all of it was moved, which never happens while writes keep
     * coming: they wait for the little that is left. */
    if (open_wal_connection(s) && checkpoint_wal(s)) {
        pthread_mutex_lock(&s->lock);
        checkpoint_wal(s);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&s->keeper_lock);
}

/* The making of the database did not wait for the disk (prepare_file).  Without it the log is
 * worth nothing, so both go there together. */
static tinker_status sync_database_locked(struct store *s, tinker_error *err)
{
    sqlite3_file *file = NULL;
    if (sqlite3_file_control(s->db, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
        file->pMethods->xSync(file, SQLITE_SYNC_NORMAL) != SQLITE_OK)
        return set_sql_error(s, "sync", err);
    char *copy = strdup(s->path);
    tinker_status status = copy ? os_sync_dir(dirname(copy), err) : err_nomem(err, s->path);
    free(copy);
    return status;
}

static tinker_status open_wal_locked(struct store *s, tinker_error *err)
{
    struct buf name;
    if (s->log_fd >= 0)
        return TINKER_OK;
    buf_init(&name, SIZE_MAX);
    tinker_status status = sync_database_locked(s, err);
    buf_printf(&name, "%s-wal", s->path);
    if (status == TINKER_OK && !buf_ok(&name))
        status = err_nomem(err, s->path);
    if (status == TINKER_OK && (s->log_fd = open(name.data, O_RDONLY | O_CLOEXEC)) < 0)
        status = err_errno(err, "open", name.data);
    buf_clear(&name);
    return status;
}

tinker_status store_sync(struct store *s, tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    int n = sqlite3_total_changes(s->db);
    bool done = s->log_fd >= 0 && n == s->n_synced;
    tinker_status status = open_wal_locked(s, err);
    int fd = s->log_fd;
    pthread_mutex_unlock(&s->lock);
    if (status != TINKER_OK || done)
        return status;
    /* Others write on meanwhile. */
    if (fdatasync(fd) != 0)
        return err_errno(err, "sync", s->path);
    pthread_mutex_lock(&s->lock);
    s->n_synced = n;
    pthread_mutex_unlock(&s->lock);
    return TINKER_OK;
}

/* ---- settings ---------------------------------------------------------------------------- */

static bool read_setting(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct sql_value *v = item;
    return sql_column_blob(row, 0, arena, &v->p, &v->n);
}

tinker_status store_get_setting(struct store *s, const char *name, struct buf *out,
                                tinker_error *err)
{
    struct arena arena;
    void *items;
    size_t n;
    arena_init(&arena, 1 << 20);
    pthread_mutex_lock(&s->lock);
    tinker_status status =
        sql_list(s, "SELECT value FROM settings WHERE name=?1", SQL_ARGS(sql_t(name)), read_setting,
                 sizeof(struct sql_value), &arena, &items, &n, err);
    pthread_mutex_unlock(&s->lock);
    if (status == TINKER_OK && n) {
        const struct sql_value *v = items;
        buf_append(out, v->p, v->n);
    }
    arena_clear(&arena);
    return status;
}

tinker_status store_put_setting(struct store *s, const char *name, const void *p, size_t n,
                                tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s, "INSERT OR REPLACE INTO settings(name, value) VALUES(?1, ?2)",
                                   SQL_ARGS(sql_t(name), sql_b(p, n)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}
