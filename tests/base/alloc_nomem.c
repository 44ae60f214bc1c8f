/* alloc_nomem.c - every allocation of base/ fails once; nothing breaks, nothing leaks. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/map.h"
#include "base/os.h"
#include "base/pool.h"
#include "support/failmalloc.h"
#include "support/tap.h"

/* Run work until no allocation of it is left to fail; each failure must be reported. */
static void try_all(bool (*work)(void))
{
    for (long n = 1; n < 1000; n++) {
        failmalloc_at(n);
        bool ok = work();
        if (!failmalloc_stop()) {
            CHECK(ok);
            CHECK(n > 1);
            return;
        }
        if (ok)
            TAP_FAIL("allocation %ld failed and nobody said so", n);
    }
    TAP_FAIL("no end");
}

static bool fill_buf(void)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 200; i++)
        buf_printf(&b, "%d,", i);
    /* what is there stays whole and terminated */
    if (b.data && strlen(b.data) != b.len)
        TAP_FAIL("content broken");
    base64_encode(&b, "abc", 3);
    bool ok = buf_ok(&b);
    char *data = buf_detach(&b, NULL);
    CHECK((data != NULL) == ok);
    free(data);
    return ok;
}

static bool fill_arena(void)
{
    struct arena a;
    arena_init(&a, SIZE_MAX);
    char *first = arena_strdup(&a, "first");
    bool ok = first != NULL;
    for (int i = 0; i < 100; i++)
        ok = arena_alloc(&a, 300) && ok;
    char *big = arena_alloc(&a, 1 << 20);
    ok = ok && big && arena_grow(&a, big, 1 << 20, 2 << 20);
    if (first)
        CHECK_STR(first, "first");
    arena_clear(&a);
    return ok;
}

static bool fill_map(void)
{
    static int value;
    struct map m;
    bool ok = true;
    map_init(&m);
    for (int i = 0; i < 60; i++) {
        char key[8];
        size_t n = (size_t)snprintf(key, sizeof key, "%d", i), before = m.len;
        bool put = map_put(&m, key, n, &value, NULL);
        CHECK(m.len == before + put);
        CHECK((map_get(&m, key, n) != NULL) == put);
        ok = ok && put;
    }
    map_clear(&m);
    return ok;
}

static int runs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count_run(void *job)
{
    (void)job;
    pthread_mutex_lock(&lock);
    runs++;
    pthread_mutex_unlock(&lock);
}

static bool use_pool(void)
{
    struct pool *p = pool_new(2, "nomem");
    if (!p)
        return false;
    int submitted = 0;
    runs = 0;
    for (int i = 0; i < 5; i++)
        submitted += pool_submit(p, count_run, NULL);
    pool_free(p);
    CHECK_INT(runs, submitted);
    return submitted == 5;
}

static char dir[64];

static bool use_files(void)
{
    char path[128], *data = NULL;
    size_t n;
    tinker_error err;
    snprintf(path, sizeof path, "%s/x/y", dir);
    bool ok = os_make_dirs(path, &err) == TINKER_OK;
    if (!ok) {
        CHECK_INT(err.status, TINKER_ENOMEM);
        return false;
    }
    snprintf(path, sizeof path, "%s/x/f", dir);
    if (os_write_file(path, "text", 4, &err) != TINKER_OK ||
        os_read_file(path, 100, &data, &n, &err) != TINKER_OK) {
        CHECK_INT(err.status, TINKER_ENOMEM);
        return false;
    }
    CHECK_STR(data, "text");
    free(data);
    return true;
}

static char line[3000];

static void keep_line(void *state, enum log_level level, const char *text)
{
    (void)state, (void)level;
    snprintf(line, sizeof line, "%s", text);
}

/* A log line is cut rather than lost, and still redacted. */
static void test_log_line_without_memory(void)
{
    struct log log = { keep_line, NULL, LOG_DEBUG };
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    memcpy(text, "tml-secret ", 11);
    failmalloc_at(1);
    log_line(&log, LOG_INFO, "%s", text);
    CHECK(failmalloc_stop());
    CHECK(strncmp(line, "[REDACTED] xxx", 14) == 0);
    CHECK(strlen(line) > 2000);
    failmalloc_at(1);
    log_secret("a secret that is lost");
    CHECK(failmalloc_stop());
}

static void test_buf(void)
{
    try_all(fill_buf);
}

static void test_arena(void)
{
    try_all(fill_arena);
}

static void test_map(void)
{
    try_all(fill_map);
}

static void test_pool(void)
{
    try_all(use_pool);
}

static void test_files(void)
{
    try_all(use_files);
}

int main(void)
{
    snprintf(dir, sizeof dir, "/tmp/tinker-nomem-%ld", (long)getpid());
    RUN(test_buf);
    RUN(test_arena);
    RUN(test_map);
    RUN(test_pool);
    RUN(test_files);
    RUN(test_log_line_without_memory);
    os_remove_tree(dir, NULL);
    return tap_done();
}
