/* The data directory: nobody else's business, whatever it was before. */
#include <fcntl.h>

#include "server/harness.h"
#include "server/store/data_dir.h"

static mode_t mode_of(const char *name)
{
    char path[600];
    struct stat st = { 0 };
    snprintf(path, sizeof(path), "%s/%s", test_data, name);
    CHECK(lstat(path, &st) == 0);
    return st.st_mode & 0777;
}

/* Every file is 0600 and every directory 0700; returns how many there are. */
static size_t check_tree(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char name[1000];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        if (lstat(name, &st) != 0)
            continue;
        bool ok = (st.st_mode & 0777) == (S_ISDIR(st.st_mode) ? 0700 : 0600);
        if (!ok)
            TAP_FAIL("%s has mode %o", name, st.st_mode & 0777);
        n += 1 + (S_ISDIR(st.st_mode) ? check_tree(name) : 0);
    }
    if (d)
        closedir(d);
    return n;
}

static void write_checkpoint(struct server *s)
{
    char session[64], model[96];
    make_session(s, session);
    make_model(s, session, 0, model);
    struct reply r = result_of(s, post(s, "/api/v1/save_weights",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model));
    CHECK(strstr(r.body, "weights/a"));
    reply_clear(&r);
}

/* Under the widest umask: modes are the server's own choice. */
static void test_new_files_are_ours_alone(void)
{
    mode_t before = umask(0);
    struct server *s = start_server();
    REQUIRE(s);
    write_checkpoint(s);
    CHECK_INT(mode_of("."), 0700);
    CHECK(check_tree(test_data) >= 6); /* database, its log, lock, checkpoints and files in them */
    server_close(s);
    umask(before);
}

static void open_to_all(const char *path, int depth)
{
    DIR *d = opendir(path);
    chmod(path, 0777);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char name[1000];
        struct stat st;
        snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
        if (e->d_name[0] == '.' || lstat(name, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth)
            open_to_all(name, depth - 1);
        else
            chmod(name, 0666);
    }
    if (d)
        closedir(d);
}

static void test_an_open_directory_is_closed(void)
{
    uint8_t key[32];
    struct server *s = start_server();
    REQUIRE(s);
    write_checkpoint(s);
    memcpy(key, s->key, sizeof(key));
    server_close(s);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_MEM(s->key, sizeof(s->key), key, sizeof(key)); /* links outlive a restart */
    server_close(s);
    open_to_all(test_data, 4);
    s = start_with(NULL);
    REQUIRE(s);
    CHECK_INT(mode_of("."), 0700);
    check_tree(test_data);
    /* Others may have read the key that signs links: it is a new one. */
    CHECK(memcmp(s->key, key, sizeof(key)) != 0);
    struct reply r = send_get(s, "/api/v1/checkpoints");
    CHECK(strstr(r.body, "/weights/a"));
    reply_clear(&r);
    server_close(s);
}

static struct server *try_start(tinker_error *err)
{
    struct server_options o;
    server_options_init(&o);
    o.models = test_models;
    o.n_models = 1;
    o.port = 0;
    o.data_dir = test_data;
    o.log = &quiet;
    return server_open(&o, err);
}

/* The database, the lock or a directory of weights in somebody else's place. */
static void test_links_are_not_followed(void)
{
    static const char *const names[] = { "tinker.db", "lock", "checkpoints" };
    char target[600], link[600];
    for (size_t i = 0; i < 3; i++) {
        tinker_error err = { 0 };
        os_remove_tree(test_data, NULL);
        mkdir(test_data, 0700);
        snprintf(target, sizeof(target), "%s/elsewhere%zu", test_dir, i);
        snprintf(link, sizeof(link), "%s/%s", test_data, names[i]);
        if (i == 2)
            mkdir(target, 0755);
        CHECK(symlink(target, link) == 0);
        struct server *s = try_start(&err);
        CHECK(s == NULL);
        CHECK(strstr(err.message, "link"));
        CHECK(i == 2 || access(target, F_OK) != 0); /* nothing was made there */
        server_close(s);
    }
    /* The same where the directory was looked at before the link came. */
    tinker_error err = { 0 };
    CHECK_INT(data_dir_open_file(link, &err), -1);
    CHECK(strstr(err.message, "link"));
    os_remove_tree(test_data, NULL);
}

/* The path of the directory is the user's choice, links included. */
static void test_the_directory_itself_may_be_a_link(void)
{
    char target[600];
    tinker_error err = { 0 };
    os_remove_tree(test_data, NULL);
    snprintf(target, sizeof(target), "%s/real", test_dir);
    mkdir(target, 0755);
    CHECK(symlink(target, test_data) == 0);
    struct server *s = try_start(&err);
    CHECK(s != NULL);
    struct stat st;
    CHECK(stat(target, &st) == 0 && (st.st_mode & 0777) == 0700);
    server_close(s);
    unlink(test_data);
}

int main(void)
{
    harness_init();
    RUN(test_new_files_are_ours_alone);
    RUN(test_an_open_directory_is_closed);
    RUN(test_links_are_not_followed);
    RUN(test_the_directory_itself_may_be_a_link);
    harness_clear();
    return tap_done();
}
