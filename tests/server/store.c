/* The store after a long time: many records, and writes that never pause. */
#include <sys/stat.h>

#include "server/store/store_sql.h"
#include "server/store/timers.h"
#include "server/harness.h"

static off_t log_size(void)
{
    char path[400];
    struct stat st;
    snprintf(path, sizeof(path), "%s/tinker.db-wal", test_data);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

static atomic_int left_to_write; /* MB */

static void *write_on(void *arg)
{
    static const char blob[1 << 20];
    struct store *store = arg;
    while (atomic_fetch_sub(&left_to_write, 1) > 0) {
        store_put_setting(store, "busy", blob, sizeof(blob), NULL);
        nap_ms(1);
    }
    return NULL;
}

static void test_the_log_of_a_busy_store_does_not_grow_for_ever(void)
{
    struct server *s = start_server();
    pthread_t writer;
    REQUIRE(s);
    atomic_store(&left_to_write, 800);
    REQUIRE(pthread_create(&writer, NULL, write_on, s->store) == 0);
    while (atomic_load(&left_to_write) > 0) {
        nap_ms(20);
        store_tidy(s->store);
    }
    pthread_join(writer, NULL);
    if (log_size() > (off_t)400 << 20)
        TAP_FAIL("the log has %lld MB", (long long)log_size() >> 20);
    server_close(s);
}

/* Returns the number of rows it changed: once the lock is gone the server's own sweep may run. */
static int run_sql(struct server *s, const char *sql)
{
    pthread_mutex_lock(&s->store->lock);
    if (sqlite3_exec(s->store->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        TAP_FAIL("%s", sqlite3_errmsg(s->store->db));
    int changed = sqlite3_changes(s->store->db);
    pthread_mutex_unlock(&s->store->lock);
    return changed;
}

static int64_t count_rows(struct server *s, const char *sql)
{
    int64_t n = -1;
    pthread_mutex_lock(&s->store->lock);
    sql_int(s->store, sql, NULL, 0, 0, &n, NULL);
    pthread_mutex_unlock(&s->store->lock);
    return n;
}

enum { MANY = 150000 };

/* As after a clock that was wrong, or a server that was off for long. */
static void test_any_number_of_checkpoints_can_expire_at_once(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    int inserted = run_sql(
        s, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<150000)"
           " INSERT INTO checkpoints(run, sampler, name, owner, base_model, rank, seed,"
           " train_attn, train_mlp, train_unembed, dir, size_bytes, created_us, expires_us)"
           " SELECT '5f0c2a4e-0000-4000-8000-0123456789ab:train:0', 0, 'step-' || i, 'local',"
           " 'test/model', 8, 1, 1, 1, 1, 'no such directory ' || i, 1, 1, 1 FROM n");
    CHECK_INT(inserted, MANY);
    timers_run_once(s, true);
    CHECK(count_rows(s, "SELECT count(*) FROM checkpoints") < MANY);
    server_close(s);
}

static int note_work(void *count)
{
    *(int64_t *)count += 100;
    return 0;
}

static void count_work(struct server *s, int64_t *count)
{
    pthread_mutex_lock(&s->store->lock);
    sqlite3_progress_handler(s->store->db, count ? 100 : 0, note_work, count);
    pthread_mutex_unlock(&s->store->lock);
}

/* Looking up one directory must not look at all models: each start does so for each. */
static void test_a_start_with_many_weights_and_models(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    run_sql(s, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000)"
               " INSERT INTO models(id, session_id, owner, base_model, rank, seed, train_attn,"
               " train_mlp, train_unembed, status, created_us, last_request_us, saved_seq,"
               " saved_dir) SELECT 'run-' || i, 'gone', 'local', 'test/model', 8, 1, 1, 1, 1, 1,"
               " 1, 1, 1, 'dir-' || i FROM n");
    int64_t work = 0; /* in instructions of the database's machine, not in time */
    count_work(s, &work);
    for (int i = 0; i < 20000; i++) {
        char dir[32];
        bool used = true;
        snprintf(dir, sizeof(dir), "dir-%d", i + 1);
        CHECK(store_dir_in_use(s->store, dir, &used, NULL) == TINKER_OK && !used);
    }
    count_work(s, NULL);
    if (work > 20000 * 1000)
        TAP_FAIL("it takes %lld instructions", (long long)work);
    server_close(s);
}

/* Nothing is computed any more with the losses of a session that has ended; those of others stay. */
static void test_the_losses_of_an_expired_session_go(void)
{
    struct server *s = start_server();
    REQUIRE(s);
    static const char *const sessions[] = { "first", "second" };
    for (int i = 0; i < 2; i++) {
        const struct store_loss loss = {
            .session_id = sessions[i], .seq = 1, .body = "x", .n_body = 1
        };
        CHECK_INT(store_add_loss(s->store, &loss, NULL), TINKER_OK);
    }
    CHECK_INT(store_set_session_expired(s->store, "first", NULL), TINKER_OK);
    CHECK_INT(count_rows(s, "SELECT count(*) FROM custom_losses"), 1);
    CHECK_INT(count_rows(s, "SELECT count(*) FROM custom_losses WHERE session_id='second'"), 1);
    server_close(s);
}

int main(void)
{
    harness_init_in_memory();
    RUN(test_the_log_of_a_busy_store_does_not_grow_for_ever);
    RUN(test_any_number_of_checkpoints_can_expire_at_once);
    RUN(test_a_start_with_many_weights_and_models);
    RUN(test_the_losses_of_an_expired_session_go);
    harness_clear();
    return tap_done();
}
