/* A disk that is full: the caller is told, nothing half-done stays, nothing is lost. */
#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include "base/os.h"
#include "base/tar.h"
#include "server/store/archive.h"
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

/* The next part of an archive, in pieces of odd sizes: the tar_read_fn. */
struct reading {
    struct archive *archive;
    uint64_t at, size;
};

static tinker_status read_archive(void *out, size_t n, size_t *got, void *state, tinker_error *err)
{
    struct reading *r = state;
    for (*got = 0; *got < n && r->at < r->size;) {
        size_t part = n - *got < 777 ? n - *got : 777;
        ssize_t m = archive_read(r->archive, r->at, (char *)out + *got, part);
        if (m <= 0)
            return err_set(err, TINKER_ESTATE, "%zd", m);
        *got += (size_t)m;
        r->at += (uint64_t)m;
    }
    return TINKER_OK;
}

/* Every file of an archive that was opened, against the bytes in `dir`; how many there were. */
static int compare_archive(struct archive *a, uint64_t size, const char *kept)
{
    struct reading from = { a, 0, size };
    struct tar_reader r;
    struct tar_entry e;
    tinker_error err = { 0 };
    bool end = false;
    int n = 0;
    tar_reader_init(&r, read_archive, &from, size);
    while (tar_next(&r, &e, &end, &err) == TINKER_OK && !end) {
        char path[2000];
        size_t len = 0;
        snprintf(path, sizeof(path), "%s/%s", kept, e.name);
        char *want = NULL, *data = malloc(e.size + 1);
        CHECK_INT(os_read_file(path, SIZE_MAX / 2, &want, &len, &err), TINKER_OK);
        CHECK_INT(len, e.size);
        CHECK(want && data && len == e.size && tar_read(&r, data, e.size, &err) == TINKER_OK &&
              memcmp(data, want, e.size) == 0);
        free(want);
        free(data);
        n++;
    }
    CHECK(end);
    CHECK_INT(archive_read(a, size, (char[1]){ 0 }, 1), 0);
    return n;
}

static void test_an_archive_needs_no_room_and_outlives_its_files(void)
{
    char session[64], model[96], path[400], dir[64] = "", command[1200];
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
    /* A large file beside those that the engine writes, and one of a name that needs a pax header. */
    snprintf(
        command, sizeof(command),
        "cd %s/%s && head -c 200001 /dev/urandom >large && cp large %0120d && cp -r . ../../kept",
        path, dir, 7);
    REQUIRE(system(command) == 0);
    struct archive *a = NULL;
    uint64_t size = 0;
    tinker_error err = { 0 };
    set_full(true);
    tinker_status status = archive_open(s, dir, &a, &size, &err);
    set_full(false);
    REQUIRE(status == TINKER_OK);
    CHECK_INT(size % TAR_BLOCK, 0);
    checkpoint_discard(s, dir);
    snprintf(path, sizeof(path), "%s/kept", test_data);
    CHECK_INT(compare_archive(a, size, path), 4); /* with the weights and the marker */
    archive_free(a);
    /* Its files are gone now. */
    CHECK(archive_open(s, dir, &a, &size, &err) != TINKER_OK && !a);
    server_close(s);
}

static void test_a_file_that_becomes_shorter_ends_the_archive(void)
{
    char session[64], model[96], path[400], command[1200];
    struct server *s = start_model(NULL, session, model);
    REQUIRE(s);
    snprintf(path, sizeof(path), "%s/checkpoints/%032d", test_data, 5);
    snprintf(command, sizeof(command),
             "mkdir %s && cd %s && head -c 100000 /dev/urandom >large && touch checkpoint_complete",
             path, path);
    REQUIRE(system(command) == 0);
    struct archive *a = NULL;
    uint64_t size = 0;
    tinker_error err = { 0 };
    char block[1024];
    REQUIRE(archive_open(s, path + strlen(path) - 32, &a, &size, &err) == TINKER_OK);
    snprintf(path + strlen(path), 20, "/large");
    REQUIRE(truncate(path, 50000) == 0);
    CHECK(archive_read(a, 40000, block, sizeof(block)) == sizeof(block));
    CHECK_INT(archive_read(a, 70000, block, sizeof(block)), -2);
    archive_free(a);
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
    RUN(test_an_archive_needs_no_room_and_outlives_its_files);
    RUN(test_a_file_that_becomes_shorter_ends_the_archive);
    harness_clear();
    return tap_done();
}
