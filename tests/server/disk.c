/* A disk that is full: the caller is told, nothing half-done stays, nothing is lost. */
#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include "server/store/checkpoint.h"
#include "server/store/store_sql.h"
#include "server/store/timers.h"
#include "server/harness.h"

/* No file may grow.  Nothing may be printed meanwhile either: that is a file, too. */
static void set_full(bool full)
{
    struct rlimit r;
    fflush(stdout);
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = full ? 0 : r.rlim_max;
    setrlimit(RLIMIT_FSIZE, &r);
}

static void wait_for(struct server *s, const char *model, int seq)
{
    char id[128];
    snprintf(id, sizeof(id), "%s:%d", model, seq);
    wait_done(s, id);
}

static struct reply poll_for(struct server *s, const char *model, int seq)
{
    return post(s, "/api/v1/retrieve_future", "{\"request_id\":\"%s:%d\"}", model, seq);
}

static void check_database(void)
{
    char path[400];
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    CHECK(sqlite3_open(path, &db) == SQLITE_OK);
    CHECK(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &stmt, NULL) == SQLITE_OK);
    CHECK(sqlite3_step(stmt) == SQLITE_ROW);
    CHECK_STR((const char *)sqlite3_column_text(stmt, 0), "ok");
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

static void test_a_request_that_cannot_be_written_is_refused(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    set_full(true);
    struct reply r = forward_backward(s, model, 1);
    struct reply made = post(s, "/api/v1/create_session",
                             "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\"}");
    set_full(false);
    CHECK_STATUS(r, 500);
    CHECK(strstr(r.body, "detail"));
    CHECK_STATUS(made, 500);
    reply_clear(&r);
    reply_clear(&made);
    /* Its number is still free. */
    r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0);
    server_close(s);
    check_database();
}

static void run_sql(struct server *s, const char *sql)
{
    pthread_mutex_lock(&s->store->lock);
    CHECK(sqlite3_exec(s->store->db, sql, NULL, NULL, NULL) == SQLITE_OK);
    pthread_mutex_unlock(&s->store->lock);
}

/* The disk is full, or the process dies, between the record of a model and its request. */
static void test_a_model_that_could_not_be_recorded_can_be_made_again(void)
{
    char session[64], model[96];
    struct server *s = start_server();
    REQUIRE(s);
    make_session(s, session);
    run_sql(s, "CREATE TRIGGER full BEFORE INSERT ON requests"
               " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END");
    struct reply r = post(s, "/api/v1/create_model",
                          "{\"session_id\":\"%s\",\"model_seq_id\":0,"
                          "\"base_model\":\"test/model\",\"lora_config\":{\"rank\":8}}",
                          session);
    CHECK_STATUS(r, 500);
    reply_clear(&r);
    run_sql(s, "DROP TRIGGER full");
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    make_model(s, session, 0, model);
    r = result_of(s, forward_backward(s, model, 1));
    CHECK(strstr(r.body, "\"loss:sum\":3.0"));
    reply_clear(&r);
    server_close(s);
}

static void test_what_cannot_be_recorded_did_not_happen(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1)); /* gradient 3 */
    reply_clear(&r);
    /* A pass is accepted, and runs while the disk fills up. */
    atomic_store(&fake_step_us, 200000);
    struct reply pass = forward_backward(s, model, 2);
    set_full(true);
    wait_for(s, model, 2);
    set_full(false);
    atomic_store(&fake_step_us, 0);
    reply_clear(&pass);
    r = poll_for(s, model, 2);
    CHECK_STR(find_member(&r, "category"), "server");
    reply_clear(&r);
    timers_run_once(s, true); /* now the store hears of the failure */
    /* A step that cannot be saved is undone, the gradients before it are not. */
    struct reply more = result_of(s, forward_backward(s, model, 3)); /* 3 + 3 */
    reply_clear(&more);
    atomic_store(&fake_step_us, 200000);
    struct reply slow = forward_backward(s, model, 4); /* holds the queue up */
    struct reply step = optim_step(s, model, 5, 1);
    atomic_store(&fake_step_us, 0);
    wait_for(s, model, 4);
    wait_for(s, model, 5);
    reply_clear(&slow);
    reply_clear(&step);
    r = poll_for(s, model, 5);
    CHECK(strstr(r.body, "\"grad_norm:mean\":9.0"));
    reply_clear(&r);
    r = result_of(s, forward_backward(s, model, 6)); /* 3 */
    reply_clear(&r);
    server_close(s);
    check_database();
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 7), 3, 0);
    server_close(s);
}

static void test_a_step_that_cannot_be_saved_is_undone(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    struct reply r = result_of(s, forward_backward(s, model, 1));
    reply_clear(&r);
    CHECK_NEAR(gradient_after(s, model, 2), 3, 0); /* saved */
    r = result_of(s, forward_backward(s, model, 3));
    reply_clear(&r);
    /* The step waits behind a forward that takes a while. */
    atomic_store(&fake_step_us, 200000);
    struct reply f = post(s, "/api/v1/forward",
                          "{\"model_id\":\"%s\",\"seq_id\":4,\"forward_input\":{\"data\":[" DATUM(
                              "5") "],\"loss_fn\":\"cross_entropy\"}}",
                          model);
    struct reply step = optim_step(s, model, 5, 1);
    struct reply save =
        post(s, "/api/v1/save_weights", "{\"model_id\":\"%s\",\"seq_id\":6,\"path\":\"x\"}", model);
    set_full(true);
    wait_for(s, model, 5);
    wait_for(s, model, 6);
    set_full(false);
    atomic_store(&fake_step_us, 0);
    reply_clear(&f);
    reply_clear(&step);
    reply_clear(&save);
    for (int seq = 4; seq <= 6; seq++) {
        r = poll_for(s, model, seq);
        CHECK_STR(find_member(&r, "category"), "server");
        reply_clear(&r);
    }
    CHECK_INT(weights_on_disk(), 1); /* the saved state; nothing half-written */
    timers_run_once(s, true);
    r = result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":7,\"path\":\"x\"}", model));
    CHECK(strstr(r.body, "tinker://"));
    reply_clear(&r);
    /* The gradient of request 3 is still there, and the first step, too. */
    r = result_of(s, optim_step(s, model, 8, 1));
    CHECK(strstr(r.body, "\"grad_norm:mean\":3.0") && strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    server_close(s);
    check_database();
    s = start_with(NULL);
    REQUIRE(s);
    r = poll_for(s, model, 5);
    CHECK_STR(find_member(&r, "category"), "server");
    reply_clear(&r);
    r = result_of(s, optim_step(s, model, 9, 1));
    CHECK(strstr(r.body, "\"step:max\":3.0"));
    reply_clear(&r);
    server_close(s);
}

static void test_an_unload_that_cannot_be_recorded_keeps_the_state(void)
{
    char session[64], model[96];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 1), 0, 0);
    run_sql(s, "CREATE TRIGGER full BEFORE UPDATE OF status ON models"
               " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END");
    struct reply r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    CHECK_STR(find_member(&r, "category"), "server");
    reply_clear(&r);
    CHECK_INT(weights_on_disk(), 1);
    run_sql(s, "DROP TRIGGER full");
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    r = result_of(s, optim_step(s, model, 3, 1));
    CHECK(strstr(r.body, "\"step:max\":2.0"));
    reply_clear(&r);
    r = result_of(s, post(s, "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model));
    CHECK_STR(find_member(&r, "type"), "unload_model");
    reply_clear(&r);
    CHECK_INT(weights_on_disk(), 0);
    server_close(s);
}

static void test_a_start_on_a_full_disk_says_so(void)
{
    char path[400];
    tinker_error err = { 0 };
    server_close(start_server());
    snprintf(path, sizeof(path), "%s/tinker.db", test_data);
    set_full(true);
    struct store *store = store_open(path, &err);
    set_full(false);
    CHECK(!store);
    CHECK(strstr(err.message, strerror(EFBIG)));
    store_close(store);
    server_close(start_with(NULL));
}

static void test_an_archive_that_has_no_room_says_so(void)
{
    char session[64], model[96], path[400], dir[64] = "";
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    CHECK_NEAR(gradient_after(s, model, 1), 0, 0);
    snprintf(path, sizeof(path), "%s/checkpoints", test_data);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.')
            snprintf(dir, sizeof(dir), "%.32s", e->d_name);
    if (d)
        closedir(d);
    int fd = -1;
    uint64_t size = 0;
    tinker_error err = { 0 };
    set_full(true);
    tinker_status status = checkpoint_tar(s, dir, &fd, &size, &err);
    set_full(false);
    CHECK(status != TINKER_OK && fd < 0);
    CHECK(strstr(err.message, strerror(EFBIG)));
    server_close(s);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    harness_init();
    RUN(test_a_request_that_cannot_be_written_is_refused);
    RUN(test_a_model_that_could_not_be_recorded_can_be_made_again);
    RUN(test_what_cannot_be_recorded_did_not_happen);
    RUN(test_a_step_that_cannot_be_saved_is_undone);
    RUN(test_an_unload_that_cannot_be_recorded_keeps_the_state);
    RUN(test_a_start_on_a_full_disk_says_so);
    RUN(test_an_archive_that_has_no_room_says_so);
    harness_clear();
    return tap_done();
}
