/* store.c - the database: opening, schema, statements; see store.h and store_sql.h.
 *
 * SQLite in WAL mode with synchronous=NORMAL: commits append to the write-ahead log without
 * waiting for the disk.  A committed write survives the death of the process at once, and a
 * power failure once the log was synced (store_sync) or checkpointed into the database
 * (store_tidy).  A second connection does the checkpoints, because after a large request they
 * take the disk seconds.
 *
 * Locks: `lock` serializes all use of the connection `db` and its cached statements, so a
 * transaction is never interleaved with another thread's; `keeper_lock` does the same for the
 * second connection and is taken before `lock`.  Both are held during disk I/O: no other lock of
 * the server may be held by a caller, except submit_lock and evict_lock. */
#include "server/store/store.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os.h"
#include "server/store/data_dir.h"
#include "server/store/store_sql.h"

/* wal_autocheckpoint=0: only store_tidy() checkpoints.  Tables are described in store.h. */
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
    "CREATE TABLE IF NOT EXISTS models(id TEXT PRIMARY KEY, session_id TEXT NOT NULL,"
    " owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL, seed INTEGER NOT NULL,"
    " train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL,"
    " user_metadata TEXT, status INTEGER NOT NULL, created_us INTEGER NOT NULL,"
    " last_request_us INTEGER NOT NULL, saved_seq INTEGER NOT NULL, saved_dir TEXT,"
    " train_tokens INTEGER NOT NULL DEFAULT 0, optimizer TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS requests(model_id TEXT NOT NULL, seq INTEGER NOT NULL,"
    " kind INTEGER NOT NULL, hash INTEGER NOT NULL, proto INTEGER NOT NULL,"
    " status INTEGER NOT NULL, category INTEGER NOT NULL DEFAULT 0, created_us INTEGER NOT NULL,"
    " done_us INTEGER NOT NULL DEFAULT 0, result BLOB, body BLOB);"
    /* skipped numbers, see store_set_skipped_seq(); few models have any */
    "CREATE TABLE IF NOT EXISTS passed(model_id TEXT PRIMARY KEY, seq INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS checkpoints(run TEXT NOT NULL, sampler INTEGER NOT NULL,"
    " name TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL,"
    " seed INTEGER NOT NULL, train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL,"
    " train_unembed INTEGER NOT NULL, dir TEXT NOT NULL, size_bytes INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL DEFAULT 0,"
    " public INTEGER NOT NULL DEFAULT 0, hidden INTEGER NOT NULL DEFAULT 0, user_metadata TEXT,"
    " optimizer TEXT,"
    " PRIMARY KEY(run, sampler, name)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS samplers(id TEXT PRIMARY KEY, session_id TEXT NOT NULL,"
    " owner TEXT NOT NULL, base_model TEXT NOT NULL, model_path TEXT, run TEXT, name TEXT,"
    " sampler INTEGER NOT NULL, created_us INTEGER NOT NULL, dir TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS custom_losses(session_id TEXT NOT NULL, seq INTEGER NOT NULL,"
    " hash INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY(session_id, seq)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS sampler_clients(id TEXT PRIMARY KEY, n INTEGER NOT NULL)"
    " WITHOUT ROWID;"
    /* metrics of runs: see store_history.h */
    "CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, run TEXT NOT NULL,"
    " name TEXT NOT NULL, UNIQUE(run, name));"
    "CREATE TABLE IF NOT EXISTS series_chunks(series INTEGER NOT NULL, chunk INTEGER NOT NULL,"
    " points INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY(series, chunk));" /* long rows */
    "CREATE TABLE IF NOT EXISTS run_notes(run TEXT PRIMARY KEY, name TEXT, notes TEXT,"
    " planned_steps INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS run_texts(id INTEGER PRIMARY KEY, run TEXT NOT NULL,"
    " step INTEGER NOT NULL, time_us INTEGER NOT NULL, label TEXT, prompt TEXT, text TEXT);"
    "CREATE INDEX IF NOT EXISTS run_texts_run ON run_texts(run, id);"
    /* usage and audit: see store_account.h */
    "CREATE TABLE IF NOT EXISTS usage_hours(owner TEXT NOT NULL, hour INTEGER NOT NULL,"
    " kind INTEGER NOT NULL, session_id TEXT NOT NULL, base_model TEXT NOT NULL,"
    " amount INTEGER NOT NULL, PRIMARY KEY(owner, hour, kind, session_id, base_model))"
    " WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS usage_hours_hour ON usage_hours(hour);"
    "CREATE TABLE IF NOT EXISTS audit(id INTEGER PRIMARY KEY, owner TEXT NOT NULL,"
    " time_us INTEGER NOT NULL, event TEXT NOT NULL, model_id TEXT, path TEXT, purpose TEXT,"
    " session_id TEXT);"
    "CREATE INDEX IF NOT EXISTS audit_owner ON audit(owner, time_us, id);"
    "CREATE INDEX IF NOT EXISTS audit_time ON audit(time_us);"
    "COMMIT;";

/* Migrations, one per version.  To change the schema: add the new form above, a migration here,
 * a branch in store_open(), and count SCHEMA_VERSION up. */
static const char upgrade_1_to_2[] = "BEGIN IMMEDIATE;"
                                     "ALTER TABLE sessions ADD COLUMN display_name TEXT;"
                                     "ALTER TABLE sessions ADD COLUMN finish_reason TEXT;"
                                     "ALTER TABLE sessions ADD COLUMN finish_detail TEXT;"
                                     "ALTER TABLE checkpoints ADD COLUMN user_metadata TEXT;"
                                     "UPDATE settings SET value='2' WHERE name='schema';"
                                     "COMMIT;";

/* Hashes of requests became those of wire_hash(); 0 is WORK_HASH_UNKNOWN. */
static const char upgrade_2_to_3[] = "BEGIN IMMEDIATE;"
                                     "UPDATE requests SET hash=0;"
                                     "UPDATE settings SET value='3' WHERE name='schema';"
                                     "COMMIT;";

static const char upgrade_3_to_4[] = "BEGIN IMMEDIATE;"
                                     "ALTER TABLE samplers ADD COLUMN dir TEXT;"
                                     "DROP INDEX IF EXISTS sessions_created;"
                                     "DROP INDEX IF EXISTS models_recent;"
                                     "DROP INDEX IF EXISTS checkpoints_created;"
                                     "UPDATE settings SET value='4' WHERE name='schema';"
                                     "COMMIT;";

static const char upgrade_4_to_5[] = "BEGIN IMMEDIATE;"
                                     "ALTER TABLE models ADD COLUMN optimizer TEXT;"
                                     "ALTER TABLE checkpoints ADD COLUMN optimizer TEXT;"
                                     "UPDATE settings SET value='5' WHERE name='schema';"
                                     "COMMIT;";

static const char *const upgrades[] = { upgrade_1_to_2, upgrade_2_to_3, upgrade_3_to_4,
                                        upgrade_4_to_5 };

enum { SCHEMA_VERSION = 5 };

/* Every statement finds its rows through one of these or a primary key; tests/server/growth.c asks
 * SQLite for its plans.  Created after the migrations, which add the columns. */
static const char indexes[] =
    "BEGIN;"
    "CREATE INDEX IF NOT EXISTS sessions_owner ON sessions(owner, created_us, id);"
    "CREATE INDEX IF NOT EXISTS models_session ON models(session_id, last_request_us);"
    "CREATE INDEX IF NOT EXISTS models_owner ON models(owner, last_request_us, id);"
    "CREATE INDEX IF NOT EXISTS models_saved ON models(saved_dir) WHERE status=0;"
    "CREATE UNIQUE INDEX IF NOT EXISTS requests_key ON requests(model_id, seq);"
    "CREATE INDEX IF NOT EXISTS requests_done ON requests(done_us);"
    /* each saved step drops the bodies up to it, and must not look at all requests for them */
    "CREATE INDEX IF NOT EXISTS requests_kept ON requests(model_id, seq) WHERE body IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS checkpoints_owner ON checkpoints(owner, created_us);"
    "CREATE INDEX IF NOT EXISTS checkpoints_run ON checkpoints(run, created_us);"
    "CREATE INDEX IF NOT EXISTS checkpoints_newest ON checkpoints(run, sampler, created_us)"
    " WHERE hidden=0;"
    "CREATE INDEX IF NOT EXISTS checkpoints_hidden ON checkpoints(run) WHERE hidden=1;"
    "CREATE INDEX IF NOT EXISTS checkpoints_dir ON checkpoints(dir);"
    "CREATE INDEX IF NOT EXISTS checkpoints_expires ON checkpoints(expires_us)"
    " WHERE expires_us>0;"
    "CREATE INDEX IF NOT EXISTS samplers_session ON samplers(session_id, created_us);"
    "CREATE INDEX IF NOT EXISTS samplers_checkpoint ON samplers(run, name) WHERE run IS NOT NULL;"
    "CREATE INDEX IF NOT EXISTS samplers_dir ON samplers(dir) WHERE dir IS NOT NULL;"
    "COMMIT;";

/* ---- statements ----------------------------------------------------------------------- */

/* Fill err from SQLite.  Its "disk I/O error" alone does not say that the disk is full: add the
 * system's reason. */
static tinker_status set_sql_error(struct store *s, const char *what, tinker_error *err)
{
    if (sqlite3_errcode(s->db) == SQLITE_NOMEM)
        return err_nomem(err, what);
    int code = sqlite3_errcode(s->db) == SQLITE_IOERR ? sqlite3_system_errno(s->db) : 0;
    return err_set(err, TINKER_ESTATE, "store: %s: %s%s%s", what, sqlite3_errmsg(s->db),
                   code ? ": " : "", code ? strerror(code) : "");
}

/* A prepared statement with its arguments bound, ready for sqlite3_step(); give it back with
 * reset_statement().  Statements are literals, so the cache compares addresses. */
static sqlite3_stmt *start_statement(struct store *s, const char *sql, const struct sql_value *args,
                                     size_t n, tinker_error *err)
{
    sqlite3_stmt *stmt = NULL;
    for (size_t i = 0; i < s->n_cache && !stmt; i++)
        if (s->cache[i].sql == sql)
            stmt = s->cache[i].stmt;
    if (!stmt && s->n_cache == SQL_CACHE) {
        err_set(err, TINKER_ESTATE, "store: too many statements");
        return NULL;
    }
    if (!stmt) {
        if (sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL) !=
            SQLITE_OK) {
            set_sql_error(s, "prepare", err);
            return NULL;
        }
        s->cache[s->n_cache].sql = sql;
        s->cache[s->n_cache++].stmt = stmt;
    }
    for (size_t i = 0; i < n; i++) {
        int at = (int)i + 1, rc; /* parameters count from 1 */
        if (args[i].type == SQL_INT_VALUE)
            rc = sqlite3_bind_int64(stmt, at, args[i].i);
        else if (!args[i].p)
            rc = sqlite3_bind_null(stmt, at);
        else if (args[i].type == SQL_TEXT_VALUE)
            rc = sqlite3_bind_text(stmt, at, args[i].p, -1, SQLITE_STATIC);
        else
            rc = sqlite3_bind_blob64(stmt, at, args[i].p, args[i].n, SQLITE_STATIC);
        if (rc != SQLITE_OK) {
            set_sql_error(s, "bind", err);
            return NULL;
        }
    }
    return stmt;
}

/* Arguments are borrowed (SQLITE_STATIC): unbind them before the caller's memory goes away. */
static void reset_statement(sqlite3_stmt *stmt)
{
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

/* A statement that does return rows, PRAGMAs for example, may stop at its first one. */
tinker_status sql_run(struct store *s, const char *sql, const struct sql_value *args, size_t n,
                      tinker_error *err)
{
    sqlite3_stmt *stmt = start_statement(s, sql, args, n, err);
    if (!stmt)
        return TINKER_ESTATE;
    int rc = sqlite3_step(stmt);
    /* A failed write leaves the transaction to sql_end(). */
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
    int rc = sqlite3_step(stmt); /* the first row is all we want */
    tinker_status status = TINKER_OK;
    *out = missing; /* no row, or NULL: max() of nothing */
    if (rc == SQLITE_ROW && sqlite3_column_type(stmt, 0) != SQLITE_NULL)
        *out = sqlite3_column_int64(stmt, 0);
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        status = set_sql_error(s, "read", err);
    reset_statement(stmt);
    return status;
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
        if (*n_out == cap) { /* double, so that all copies together stay linear */
            size_t grown = cap ? cap * 2 : 8;
            void *items = arena_grow(arena, *out, cap * size, grown * size);
            if (!items) {
                status = err_nomem(err, "rows of the store");
                break;
            }
            *out = items;
            cap = grown;
        }
        void *item = (char *)*out + *n_out * size;
        memset(item, 0, size);
        if (!read(stmt, arena, item)) {
            status = err_nomem(err, "rows of the store");
            break;
        }
        ++*n_out;
    }
    /* rc is SQLITE_ROW when the loop was left early: status says why. */
    if (status == TINKER_OK && rc != SQLITE_DONE)
        status = set_sql_error(s, "read", err);
    reset_statement(stmt);
    return status;
}

/* Text of SQLite lives until the next step of the statement: copy it. */
bool sql_column_text(sqlite3_stmt *row, int i, struct arena *arena, const char **out)
{
    const char *text = (const char *)sqlite3_column_text(row, i);
    *out = text ? arena_strdup(arena, text) : NULL;
    return !text || *out;
}

/* An empty blob is NULL in SQLite's interface, and stays so. */
bool sql_column_blob(sqlite3_stmt *row, int i, struct arena *arena, const void **out, size_t *n)
{
    const void *p = sqlite3_column_blob(row, i);
    *n = (size_t)sqlite3_column_bytes(row, i);
    *out = p ? arena_memdup(arena, p, *n) : NULL;
    return !p || *out;
}

/* IMMEDIATE takes the write lock now, so a transaction never fails halfway because of another
 * connection. */
tinker_status sql_begin(struct store *s, tinker_error *err)
{
    return sql_run(s, "BEGIN IMMEDIATE", NULL, 0, err);
}

tinker_status sql_end(struct store *s, tinker_status status, tinker_error *err)
{
    if (status == TINKER_OK)
        status = sql_run(s, "COMMIT", NULL, 0, err);
    /* Some errors, a full disk for one, have rolled back already. */
    if (status != TINKER_OK && !sqlite3_get_autocommit(s->db))
        sql_run(s, "ROLLBACK", NULL, 0, NULL);
    return status;
}

/* ---- opening ---------------------------------------------------------------------------- */

/* Open or create the file, bring its schema up to date.  It is not shared with other threads yet,
 * so no lock is held although the statements need it. */
struct store *store_open(const char *path, tinker_error *err)
{
    bool is_new = access(path, F_OK) != 0; /* the data directory is locked: no race */
    struct store *s = calloc(1, sizeof(*s));
    if (!s) {
        err_nomem(err, "store");
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->keeper_lock, NULL);
    s->path = strdup(path);
    if (!s->path) {
        err_nomem(err, "store");
        store_close(s);
        return NULL;
    }
    s->log_fd = -1; /* the log exists once something was written */
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    /* Created here, because SQLite would let everybody read it; its log gets the same mode. */
    int fd = data_dir_open_file(path, err);
    if (fd < 0) {
        store_close(s);
        return NULL;
    }
    close(fd);
    /* A new file has nothing to lose yet, so creating it does not wait for the disk; the first
     * store_sync() makes up for it. */
    const char *first = is_new ? "PRAGMA synchronous=OFF" : "PRAGMA synchronous=NORMAL";
    if (sqlite3_open_v2(path, &s->db, flags, NULL) != SQLITE_OK ||
        sqlite3_exec(s->db, first, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(s->db, schema, NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_exec(s->db, "PRAGMA synchronous=NORMAL", NULL, NULL, NULL) != SQLITE_OK) {
        set_sql_error(s, path, err);
        store_close(s);
        return NULL;
    }
    int64_t version; /* 0: a new file */
    tinker_status status =
        sql_int(s, "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM settings WHERE name='schema'",
                NULL, 0, 0, &version, err);
    if (status == TINKER_OK && version == 0)
        status =
            sql_run(s, "INSERT INTO settings(name, value) VALUES('schema', '5')", NULL, 0, err);
    for (; status == TINKER_OK && version >= 1 && version < SCHEMA_VERSION; version++)
        if (sqlite3_exec(s->db, upgrades[version - 1], NULL, NULL, NULL) != SQLITE_OK)
            status = set_sql_error(s, "upgrade", err);
    if (status == TINKER_OK && (version == 0 || version == SCHEMA_VERSION) &&
        sqlite3_exec(s->db, indexes, NULL, NULL, NULL) != SQLITE_OK)
        status = set_sql_error(s, "indexes", err);
    if (status == TINKER_OK && version != 0 && version != SCHEMA_VERSION)
        status = err_set(err, TINKER_ESTATE,
                         "store: written by another version (schema %lld); use that version, or "
                         "another data directory",
                         (long long)version);
    if (status != TINKER_OK) {
        store_close(s);
        return NULL;
    }
    return s;
}

/* The last connection that closes checkpoints the log and removes it. */
void store_close(struct store *s)
{
    if (!s)
        return;
    /* Statements keep a connection open: they go first. */
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

enum { WAL_LONG = 16384 }; /* SQLite pages: 64 MB */

/* Checkpoint: copy what is in the log now into the database.  true: the log is long, and more was
 * appended meanwhile. */
static bool checkpoint_wal(struct store *s)
{
    int in_log = 0, moved = 0;
    /* Passive: never waits; what is being read or written is left for the next time. */
    int rc = sqlite3_wal_checkpoint_v2(s->keeper, NULL, SQLITE_CHECKPOINT_PASSIVE, &in_log, &moved);
    return rc == SQLITE_OK && in_log > WAL_LONG && moved < in_log;
}

/* Timer thread.  Without it the log would grow for as long as the server runs. */
void store_tidy(struct store *s)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    pthread_mutex_lock(&s->keeper_lock);
    /* A connection that has not read yet does not know that there is a log: read something. */
    if (!s->keeper &&
        (!s->path || sqlite3_open_v2(s->path, &s->keeper, flags, NULL) != SQLITE_OK ||
         sqlite3_exec(s->keeper, "PRAGMA schema_version", NULL, NULL, NULL) != SQLITE_OK)) {
        sqlite3_close(s->keeper);
        s->keeper = NULL; /* tried again next time */
    }
    /* The log starts over only when all of it was copied, which never happens while writes keep
     * coming.  So when it is long, copy most of it beside the writers, then stop them for the
     * little that is left. */
    if (s->keeper && checkpoint_wal(s)) {
        pthread_mutex_lock(&s->lock);
        checkpoint_wal(s);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&s->keeper_lock);
}

tinker_status store_sync(struct store *s, tinker_error *err)
{
    tinker_status status = TINKER_OK;
    pthread_mutex_lock(&s->lock);
    int n = sqlite3_total_changes(s->db);
    bool done = s->log_fd >= 0 && n == s->n_synced; /* nothing was written since */
    if (s->log_fd < 0) {
        /* The first sync.  Creating the database did not wait for the disk (store_open), and
         * without the database its log is worth nothing: sync the file and its name first. */
        sqlite3_file *file = NULL;
        if (sqlite3_file_control(s->db, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK ||
            file->pMethods->xSync(file, SQLITE_SYNC_NORMAL) != SQLITE_OK)
            status = set_sql_error(s, "sync", err);
        char *copy = strdup(s->path); /* dirname() changes it */
        if (status == TINKER_OK)
            status = copy ? os_sync_dir(dirname(copy), err) : err_nomem(err, s->path);
        free(copy);
        struct buf name;
        buf_init(&name, SIZE_MAX);
        buf_printf(&name, "%s-wal", s->path);
        if (status == TINKER_OK && !buf_ok(&name))
            status = err_nomem(err, s->path);
        if (status == TINKER_OK && (s->log_fd = open(name.data, O_RDONLY | O_CLOEXEC)) < 0)
            status = err_errno(err, "open", name.data);
        buf_clear(&name);
    }
    int fd = s->log_fd;
    pthread_mutex_unlock(&s->lock);
    if (status != TINKER_OK || done)
        return status;
    /* Without the lock: others write on meanwhile.  What was committed before the call is in the
     * file, and SQLite needs no more than the bytes of its log. */
    if (fdatasync(fd) != 0)
        return err_errno(err, "sync", s->path);
    pthread_mutex_lock(&s->lock);
    s->n_synced = n; /* what others wrote since is not counted as synced */
    pthread_mutex_unlock(&s->lock);
    return TINKER_OK;
}

/* ---- settings ---------------------------------------------------------------------------- */

/* A setting is one blob; sql_value serves as its record. */
static bool read_setting(sqlite3_stmt *row, struct arena *arena, void *item)
{
    struct sql_value *v = item;
    return sql_column_blob(row, 0, arena, &v->p, &v->n);
}

/* out keeps what it had when the setting is absent. */
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

/* One statement is a transaction of its own. */
tinker_status store_put_setting(struct store *s, const char *name, const void *p, size_t n,
                                tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    tinker_status status = sql_run(s, "INSERT OR REPLACE INTO settings(name, value) VALUES(?1, ?2)",
                                   SQL_ARGS(sql_t(name), sql_b(p, n)), err);
    pthread_mutex_unlock(&s->lock);
    return status;
}
