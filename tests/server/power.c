/* A power failure: of the database only what was synced is there again, and it must not name
 * weights that were removed.  The weights themselves are synced one by one, so they stay. */
#include <fcntl.h>

#include "server/harness.h"

static const char *const files[] = { "tinker.db", "tinker.db-wal" };
static char disk[400]; /* the database as the disk has it */
static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;

static void copy_path(const char *from, const char *to)
{
    char *data = NULL;
    size_t n = 0;
    if (os_read_file(from, SIZE_MAX, &data, &n, NULL) != TINKER_OK)
        return;
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        TAP_FAIL("%s cannot be written", to);
    close(fd);
    free(data);
}

static void copy_named(const char *from, const char *to, const char *name)
{
    char a[800], b[800];
    snprintf(a, sizeof(a), "%s/%s", from, name);
    snprintf(b, sizeof(b), "%s/%s", to, name);
    copy_path(a, b);
}

/* Which of the files it is; -1: another one. */
static int file_of(int fd)
{
    char link[64], path[800], want[800];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n < 0 ? 0 : n] = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(want, sizeof(want), "%s/%s", test_data, files[i]);
        if (strcmp(path, want) == 0)
            return i;
    }
    return -1;
}

static int sync_to_disk(int fd)
{
    int i = file_of(fd);
    if (i >= 0) {
        pthread_mutex_lock(&disk_lock);
        copy_named(test_data, disk, files[i]);
        pthread_mutex_unlock(&disk_lock);
    }
    return 0;
}

/* In place of those of the C library, for SQLite too. */
__attribute__((visibility("default"))) int fsync(int fd)
{
    return sync_to_disk(fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return sync_to_disk(fd);
}

static struct server *start_on_new_disk(char session[64], char model[96])
{
    os_remove_tree(disk, NULL);
    mkdir(disk, 0700);
    return start_model(NULL, session, model);
}

/* A server that closes writes to its files, so what the disk has is put aside before. */
static struct server *fail_power(struct server *s)
{
    char aside[500], path[800];
    snprintf(aside, sizeof(aside), "%s.aside", disk);
    pthread_mutex_lock(&disk_lock);
    os_remove_tree(aside, NULL);
    if (rename(disk, aside) != 0 || mkdir(disk, 0700) != 0)
        TAP_FAIL("%s cannot be moved", disk);
    pthread_mutex_unlock(&disk_lock);
    server_close(s);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", test_data, files[i]);
        unlink(path);
        copy_named(aside, test_data, files[i]);
    }
    return start_with(NULL);
}

static void save_checkpoint(struct server *s, const char *model, int seq, const char *name,
                            bool overwrite)
{
    struct reply r =
        result_of(s, post(s, "/api/v1/save_weights",
                          "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"%s\",\"overwrite\":%s}",
                          model, seq, name, overwrite ? "true" : "false"));
    CHECK(strstr(r.body, "tinker://"));
    reply_clear(&r);
}

static void check_step(struct server *s, const char *model, int seq, const char *want)
{
    struct reply r = result_of(s, optim_step(s, model, seq, 1));
    if (!strstr(r.body, want))
        TAP_FAIL("no %s in %s", want, r.body);
    reply_clear(&r);
}

static void test_acknowledged_steps_are_there(void)
{
    char session[64], model[96];
    struct server *s = start_on_new_disk(session, model);
    REQUIRE(s);
    check_step(s, model, 1, "\"step:max\":1.0");
    check_step(s, model, 2, "\"step:max\":2.0");
    check_step(s, model, 3, "\"step:max\":3.0");
    s = fail_power(s);
    REQUIRE(s);
    check_step(s, model, 4, "\"step:max\":4.0");
    server_close(s);
}

static void test_acknowledged_checkpoints_are_there(void)
{
    char session[64], model[96];
    struct server *s = start_on_new_disk(session, model);
    REQUIRE(s);
    check_step(s, model, 1, "\"step:max\":1.0");
    save_checkpoint(s, model, 2, "kept", false);
    check_step(s, model, 3, "\"step:max\":2.0");
    save_checkpoint(s, model, 4, "kept", true); /* the weights before are removed */
    s = fail_power(s);
    REQUIRE(s);
    char fresh[96];
    make_model(s, session, 1, fresh);
    struct reply r = result_of(s, post(s, "/api/v1/load_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"optimizer\":true,"
                                       "\"path\":\"tinker://%s/weights/kept\"}",
                                       fresh, model));
    CHECK_STR(find_member(&r, "error"), "");
    reply_clear(&r);
    check_step(s, fresh, 2, "\"step:max\":3.0");
    server_close(s);
}

/* One that a delete brought back without its files would be listed and could not be read. */
static void test_a_deleted_checkpoint_stays_so(void)
{
    char session[64], model[96], path[200];
    struct server *s = start_on_new_disk(session, model);
    REQUIRE(s);
    save_checkpoint(s, model, 1, "gone", false);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints/weights/gone", model);
    struct ask a = { .method = "DELETE", .path = path };
    struct reply r = send_ask(s, &a);
    CHECK_STATUS(r, 204);
    reply_clear(&r);
    CHECK_INT(weights_on_disk(), 0);
    s = fail_power(s);
    REQUIRE(s);
    snprintf(path, sizeof(path), "/api/v1/training_runs/%s/checkpoints", model);
    r = send_get(s, path);
    CHECK(!strstr(r.body, "gone"));
    reply_clear(&r);
    server_close(s);
}

int main(void)
{
    harness_init();
    snprintf(disk, sizeof(disk), "%s/disk", test_dir);
    RUN(test_acknowledged_steps_are_there);
    RUN(test_acknowledged_checkpoints_are_there);
    RUN(test_a_deleted_checkpoint_stays_so);
    harness_clear();
    return tap_done();
}
