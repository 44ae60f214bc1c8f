/* os.c - files, folders, events and what the machine says of itself. */
#include "base/os/linux.c"
#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include "support/tap.h"

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, 256, "%s/%s", dir, name);
    return p;
}

static int count_files(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

static void test_machine(void)
{
    CHECK(os_cpu_count() >= 1 && os_cpu_count() <= 4096);
    CHECK(os_memory_free() > 1 << 20);
    os_thread_name("a name longer than the kernel takes");
}

/* In a chroot without /proc every sample was refused because "the limit is 0". */
static void test_memory_without_proc(void)
{
    CHECK(machine_available(in_dir("no-such-file")) > 1 << 20);
    const char *old = in_dir("meminfo"); /* of a kernel that does not tell it yet */
    REQUIRE(os_write_file(old, "MemTotal: 5 kB\nMemFree: 4 kB\n", 28, NULL) == TINKER_OK);
    CHECK(machine_available(old) > 1 << 20);
    REQUIRE(os_write_file(old, "MemFree: 4 kB\nMemAvailable:   7 kB\n", 35, NULL) == TINKER_OK);
    CHECK_INT((long long)machine_available(old), 7 * 1024);
    unlink(old);
}

static void make_group(const char *limit, const char *used, const char *stat)
{
    REQUIRE(os_make_dirs(in_dir("group"), NULL) == TINKER_OK);
    REQUIRE(os_write_file(in_dir("group/max"), limit, strlen(limit), NULL) == TINKER_OK);
    REQUIRE(os_write_file(in_dir("group/current"), used, strlen(used), NULL) == TINKER_OK);
    REQUIRE(os_write_file(in_dir("group/memory.stat"), stat, strlen(stat), NULL) == TINKER_OK);
}

static void test_memory_of_a_group(void)
{
    const struct cgroup_memory names = { "max", "current", "inactive_file " };
    CHECK(cgroup_available(in_dir("group"), &names) == OS_MEMORY_UNKNOWN);
    make_group("max\n", "100\n", "");
    CHECK(cgroup_available(in_dir("group"), &names) == OS_MEMORY_UNKNOWN);
    make_group("1000\n", "700\n", "anon 90\n");
    CHECK_INT((long long)cgroup_available(in_dir("group"), &names), 300);
    /* a model that was read fills the cache up to the limit, and leaves it for others */
    make_group("1000\n", "1000\n", "anon 90\nfile 800\ninactive_file 600\n");
    CHECK_INT((long long)cgroup_available(in_dir("group"), &names), 600);
    make_group("1000\n", "1200\n", "inactive_file 100\n");
    CHECK_INT((long long)cgroup_available(in_dir("group"), &names), 0);
    os_remove_tree(in_dir("group"), NULL);
}

static void test_write_then_read(void)
{
    tinker_error err;
    char *data = NULL;
    size_t n = 0;
    const char *path = in_dir("file");
    REQUIRE(os_write_file(path, "hello\0world", 11, &err) == TINKER_OK);
    REQUIRE(os_read_file(path, 100, &data, &n, &err) == TINKER_OK);
    CHECK_MEM(data, n, "hello\0world", 11);
    CHECK_INT(data[11], 0);
    free(data);
    /* replaced as a whole, and no temporary file is left */
    REQUIRE(os_write_file(path, "x", 1, &err) == TINKER_OK);
    REQUIRE(os_read_file(path, 100, &data, &n, NULL) == TINKER_OK);
    CHECK_STR(data, "x");
    free(data);
    CHECK_INT(count_files(dir), 1);
    struct stat st;
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
}

static void test_read_limits(void)
{
    tinker_error err;
    char *data = NULL;
    size_t n;
    const char *path = in_dir("sized");
    os_write_file(path, "12345", 5, NULL);
    CHECK_INT(os_read_file(path, 5, &data, &n, &err), TINKER_OK);
    free(data);
    data = NULL;
    CHECK_INT(os_read_file(path, 4, &data, &n, &err), TINKER_EINVAL);
    CHECK(data == NULL && strstr(err.message, "limit of 4") && strstr(err.message, path));
    os_write_file(path, "", 0, NULL);
    CHECK_INT(os_read_file(path, 0, &data, &n, &err), TINKER_OK);
    CHECK_STR(data, "");
    free(data);
    /* files of /proc claim size 0 */
    CHECK_INT(os_read_file("/proc/self/status", 1 << 20, &data, &n, &err), TINKER_OK);
    CHECK(n > 100);
    free(data);
}

static void test_large_file(void)
{
    tinker_error err;
    size_t size = 300001, n;
    char *big = malloc(size), *data = NULL;
    REQUIRE(big);
    for (size_t i = 0; i < size; i++)
        big[i] = (char)(i * 31 >> 3);
    CHECK_INT(os_write_file(in_dir("big"), big, size, &err), TINKER_OK);
    REQUIRE(os_read_file(in_dir("big"), size, &data, &n, &err) == TINKER_OK);
    CHECK_MEM(data, n, big, size);
    free(data);
    struct os_map m;
    REQUIRE(os_map_open(&m, in_dir("big"), &err) == TINKER_OK);
    CHECK_MEM(m.data, m.len, big, size);
    os_map_close(&m);
    CHECK(m.data == NULL && m.len == 0);
    os_map_close(&m);
    free(big);
}

static void test_errors_name_path_and_reason(void)
{
    tinker_error err;
    char *data;
    size_t n;
    struct os_map m;
    CHECK_INT(os_read_file("/no/such/file", 10, &data, &n, &err), TINKER_ESTATE);
    CHECK_STR(err.message, "open /no/such/file: No such file or directory");
    CHECK_INT(os_map_open(&m, "/no/such/file", &err), TINKER_ESTATE);
    CHECK(m.data == NULL && m.len == 0);
    CHECK_INT(os_map_open(&m, dir, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "Is a directory"));
    CHECK_INT(os_write_file("/no/such/dir/f", "x", 1, &err), TINKER_ESTATE);
    CHECK(strstr(err.message, "/no/such/dir/f"));
    CHECK_INT(os_sync_dir("/no/such/dir", &err), TINKER_ESTATE);
    os_write_file(in_dir("plain"), "x", 1, NULL);
    CHECK_INT(os_make_dirs(in_dir("plain/below"), &err), TINKER_ESTATE);
    CHECK_INT(os_make_dirs(in_dir("plain"), &err), TINKER_ESTATE);
}

/* A failed write leaves what was there, and nothing else. */
static void test_failed_rename_leaves_no_trace(void)
{
    tinker_error err;
    int before;
    os_make_dirs(in_dir("occupied/x"), &err);
    before = count_files(dir);
    CHECK_INT(os_write_file(in_dir("occupied"), "x", 1, &err), TINKER_ESTATE);
    CHECK_INT(count_files(dir), before);
    CHECK(os_is_dir(in_dir("occupied/x")));
}

/* What another process can open, wherever it stands. */
static void test_full_path(void)
{
    os_make_dirs(in_dir("full/x"), NULL);
    char *full = os_full_path(in_dir("full/../full/./x"));
    char *plain = os_full_path(in_dir("full/x"));
    CHECK_STR(full, plain);
    CHECK_INT(full[0], '/');
    free(full);
    free(plain);
    full = os_full_path("no such/file");
    CHECK_STR(full, "no such/file");
    free(full);
}

static void test_new_map(void)
{
    static const size_t sizes[] = { 1, 4096, (2u << 20) - 1, 2u << 20, (5u << 20) + 123 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct os_map m;
        unsigned char *p = os_map_new(&m, sizes[i]);
        REQUIRE(p != NULL && m.data == p && m.len == sizes[i]);
        CHECK_INT((uintptr_t)p % 64, 0);
        CHECK(p[0] == 0 && p[sizes[i] - 1] == 0);
        memset(p, 7, sizes[i]);
        os_map_close(&m);
        CHECK(m.data == NULL);
    }
    struct os_map m;
    CHECK(os_map_new(&m, 0) == NULL && m.data == NULL);
    CHECK(os_map_new(&m, SIZE_MAX) == NULL);
}

static void test_empty_map(void)
{
    struct os_map m;
    os_write_file(in_dir("empty"), NULL, 0, NULL);
    CHECK_INT(os_map_open(&m, in_dir("empty"), NULL), TINKER_OK);
    CHECK(m.data != NULL && m.len == 0);
    os_map_close(&m);
}

static void test_folders(void)
{
    tinker_error err;
    CHECK_INT(os_make_dirs(in_dir("a/b/c"), &err), TINKER_OK);
    CHECK(os_is_dir(in_dir("a/b/c")));
    CHECK_INT(os_make_dirs(in_dir("a/b/c"), &err), TINKER_OK);
    CHECK_INT(os_make_dirs(in_dir("a//b/d/"), &err), TINKER_OK);
    CHECK(os_is_dir(in_dir("a/b/d")));
    struct stat st;
    CHECK(stat(in_dir("a/b"), &st) == 0 && (st.st_mode & 0777) == 0700);
    CHECK_INT(os_make_dirs("/", &err), TINKER_OK);
    CHECK_INT(os_make_dirs("", &err), TINKER_ESTATE);
    /* a link is removed, what it points to and what is in there is not */
    os_make_dirs(in_dir("outside"), NULL);
    os_write_file(in_dir("outside/f"), "x", 1, NULL);
    CHECK(symlink(in_dir("outside"), in_dir("a/b/link")) == 0);
    CHECK(symlink(in_dir("outside/f"), in_dir("a/b/file")) == 0);
    os_write_file(in_dir("a/b/c/f"), "x", 1, NULL);
    CHECK_INT(os_remove_tree(in_dir("a"), &err), TINKER_OK);
    CHECK(!os_is_dir(in_dir("a")));
    CHECK(access(in_dir("outside/f"), F_OK) == 0);
    CHECK_INT(os_remove_tree(in_dir("a"), &err), TINKER_OK); /* gone already */
    CHECK_INT(remove_one(in_dir("a"), NULL, 0, NULL), 0);    /* or just now: the rest still goes */
    CHECK_INT(os_remove_tree(in_dir("outside/f"), &err), TINKER_OK);
    CHECK(os_is_dir(in_dir("outside")) && access(in_dir("outside/f"), F_OK) != 0);
}

static void test_relative_paths(void)
{
    tinker_error err;
    char *data;
    size_t n;
    REQUIRE(chdir(dir) == 0);
    CHECK_INT(os_write_file("here", "y", 1, &err), TINKER_OK);
    CHECK_INT(os_read_file("here", 9, &data, &n, &err), TINKER_OK);
    free(data);
    CHECK_INT(os_make_dirs("r/s", &err), TINKER_OK);
    CHECK(os_is_dir(in_dir("r/s")));
    CHECK(chdir("/") == 0);
}

static void test_event(void)
{
    int fd = os_event_open();
    REQUIRE(fd >= 0);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    CHECK_INT(poll(&p, 1, 0), 0);
    os_event_signal(fd);
    os_event_signal(fd);
    CHECK_INT(poll(&p, 1, 0), 1);
    os_event_drain(fd);
    CHECK_INT(poll(&p, 1, 0), 0);
    os_event_drain(fd); /* does not block */
    close(fd);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/tinker-os-%ld", (long)getpid());
    if (os_make_dirs(dir, NULL) != TINKER_OK)
        return 1;
    RUN(test_machine);
    RUN(test_memory_without_proc);
    RUN(test_memory_of_a_group);
    RUN(test_write_then_read);
    RUN(test_read_limits);
    RUN(test_large_file);
    RUN(test_errors_name_path_and_reason);
    RUN(test_failed_rename_leaves_no_trace);
    RUN(test_full_path);
    RUN(test_empty_map);
    RUN(test_new_map);
    RUN(test_folders);
    RUN(test_relative_paths);
    RUN(test_event);
    os_remove_tree(dir, NULL);
    return tap_done();
}
