/* Helpers that need no service: unpacking a checkpoint, its path, trying again
 * (R-061, R-063). */
#include <stdlib.h>
#include <sys/stat.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/os.h"
#include "support/tap.h"

static char dir[64];

static const char *in(const char *name)
{
    static char out[4][512];
    static int k;
    k = (k + 1) % 4;
    snprintf(out[k], sizeof(out[k]), "%s/%s", dir, name);
    return out[k];
}

/* ---- archives ------------------------------------------------------------------------------ */

static void seal(char h[512])
{
    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
}

static void put(struct buf *b, const char *name, char type, const char *data, size_t n)
{
    char h[512] = { 0 };
    static const char zeros[512];
    snprintf(h, 100, "%s", name);
    snprintf(h + 100, 8, "%07o", 0644);
    snprintf(h + 124, 12, "%011o", (unsigned)n);
    h[156] = type;
    if (type == '1' || type == '2')
        snprintf(h + 157, 100, "%s", "/etc/passwd");
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    seal(h);
    buf_append(b, h, 512);
    buf_append(b, data, n);
    buf_append(b, zeros, (512 - n % 512) % 512);
}

static tinker_status extract(struct buf *b, const char *target, tinker_error *err)
{
    static const char end[1024];
    buf_append(b, end, sizeof(end));
    CHECK_INT(os_write_file(in("archive.tar"), b->data, b->len, NULL), TINKER_OK);
    buf_clear(b);
    return tinker_archive_extract(in("archive.tar"), in(target), err);
}

static void check_file(const char *name, const char *want)
{
    char *text = NULL;
    size_t n = 0;
    CHECK_INT(os_read_file(in(name), 1 << 20, &text, &n, NULL), TINKER_OK);
    CHECK_MEM(text, n, want, strlen(want));
    free(text);
}

static void test_unpacks(void)
{
    struct buf b;
    char big[2000], name[301];
    tinker_error err = { 0 };
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    memset(name, 'n', 300);
    name[300] = '\0';
    buf_init(&b, 1 << 20);
    put(&b, "./", '5', "", 0);
    put(&b, "./adapter_config.json", '0', "{}", 2);
    put(&b, "weights/", '5', "", 0);
    put(&b, "weights/a.safetensors", '\0', big, sizeof(big) - 1);
    put(&b, "deep/er/b", '0', "", 0);
    put(&b, "././@LongLink", 'L', "long/name/of/a/file", 20);
    put(&b, "cut", '0', "long", 4);
    put(&b, "PaxHeaders/x", 'x', "20 path=pax/\xc3\xa9/name\n10 size=3\n", 30);
    put(&b, "short", '0', "pax", 3);
    CHECK_INT(extract(&b, "whole", &err), TINKER_OK);
    if (err.message[0])
        printf("# %s\n", err.message);
    check_file("whole/adapter_config.json", "{}");
    check_file("whole/weights/a.safetensors", big);
    check_file("whole/deep/er/b", "");
    check_file("whole/long/name/of/a/file", "long");
    check_file("whole/pax/\xc3\xa9/name", "pax");
    /* what exists is not touched */
    buf_init(&b, 1 << 20);
    put(&b, "x", '0', "x", 1);
    CHECK_INT(extract(&b, "whole", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "exists") != NULL);
    CHECK(access(in("whole/x"), F_OK) != 0);
}

static void test_refuses(void)
{
    static const struct {
        const char *name;
        char type;
        const char *says;
    } evil[] = {
        { "../escape", '0', "leads out" },
        { "a/../../escape", '0', "leads out" },
        { "/etc/escape", '0', "leads out" },
        { "a//b", '0', "leads out" },
        { "a/./b", '0', "leads out" },
        { "link", '2', "link" },
        { "hard", '1', "link" },
        { "device", '3', "device" },
        { "fifo", '6', "device" },
        { "..", '5', "leads out" },
        { "new\nline", '0', "leads out" },
    };
    for (size_t i = 0; i < sizeof(evil) / sizeof(*evil); i++) {
        struct buf b;
        tinker_error err = { 0 };
        buf_init(&b, 1 << 20);
        put(&b, "first", '0', "1", 1);
        put(&b, evil[i].name, evil[i].type, "", 0);
        CHECK_INT(extract(&b, "evil", &err), TINKER_EINVAL);
        if (!strstr(err.message, evil[i].says))
            TAP_FAIL("%s: %s", evil[i].name, err.message);
        CHECK(access(in("evil"), F_OK) != 0); /* not even the first entry stays */
        CHECK(access(in("escape"), F_OK) != 0);
    }
    struct buf b;
    tinker_error err;
    buf_init(&b, 1 << 20); /* the same name twice */
    put(&b, "a", '0', "1", 1);
    put(&b, "a", '0', "2", 1);
    CHECK(extract(&b, "twice", &err) != TINKER_OK);
    CHECK(access(in("twice"), F_OK) != 0);
    buf_init(&b, 1 << 20); /* cut off in the middle, at any place */
    put(&b, "a", '0', "0123456789", 10);
    for (size_t n = 1; n < 522; n += 40) {
        CHECK_INT(os_write_file(in("cut.tar"), b.data, n, NULL), TINKER_OK);
        CHECK_INT(tinker_archive_extract(in("cut.tar"), in("cut"), &err), TINKER_EINVAL);
    }
    b.data[130] ^= 1;
    CHECK_INT(extract(&b, "sum", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "checksum") != NULL);
    CHECK_INT(os_write_file(in("gz"), "\x1f\x8b", 2, NULL), TINKER_OK);
    CHECK_INT(tinker_archive_extract(in("gz"), in("cut"), &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "gzip") != NULL);
    CHECK_INT(tinker_archive_extract(in("none"), in("cut"), &err), TINKER_ESTATE);
    CHECK_INT(tinker_archive_extract(NULL, in("cut"), &err), TINKER_EINVAL);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static void test_paths(void) /* */
{
    tinker_checkpoint_path p;
    tinker_error err;
    CHECK_INT(tinker_checkpoint_path_parse("tinker://run-1:train:0/weights/step-7", &p, &err),
              TINKER_OK);
    CHECK_STR(p.training_run, "run-1:train:0");
    CHECK_STR(p.checkpoint_id, "weights/step-7");
    CHECK_STR(p.name, "step-7");
    CHECK_INT(p.sampler, 0);
    CHECK_INT(tinker_checkpoint_path_parse("tinker://r/sampler_weights/x", &p, &err), TINKER_OK);
    CHECK_INT(p.sampler, 1);
    static const char *const wrong[] = { "",
                                         "http://r/weights/x",
                                         "tinker://r/weights",
                                         "tinker://r/weights/x/y",
                                         "tinker://r/other/x",
                                         "tinker:///weights/x" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        CHECK_INT(tinker_checkpoint_path_parse(wrong[i], &p, &err), TINKER_EINVAL);
    CHECK_INT(tinker_checkpoint_path_parse(NULL, &p, &err), TINKER_EINVAL);
    char huge[400] = "tinker://";
    memset(huge + 9, 'r', 300);
    snprintf(huge + 309, 20, "/weights/x");
    CHECK_INT(tinker_checkpoint_path_parse(huge, &p, &err), TINKER_EINVAL);
}

/* ---- trying again ------------------------------------------------------------------------------ */

struct tries {
    int n, good_at, final_at;
};

static tinker_status attempt(void *state, int k, tinker_error *err)
{
    struct tries *t = state;
    CHECK_INT(k, t->n);
    t->n++;
    if (k == t->good_at)
        return TINKER_OK;
    *err = (tinker_error){ .status = TINKER_ECONNECT, .retriable = k != t->final_at };
    snprintf(err->message, sizeof(err->message), "attempt %d", k);
    return TINKER_ECONNECT;
}

static void test_retry(void)
{
    tinker_retry_options o = TINKER_RETRY_OPTIONS_INIT;
    tinker_error err = { 0 };
    o.delay_base_ms = 1;
    o.delay_max_ms = 4;
    struct tries t = { .good_at = 5, .final_at = -1 };
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_OK);
    CHECK_INT(t.n, 6);
    t = (struct tries){ .good_at = -1, .final_at = 2 };
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_ECONNECT);
    CHECK_INT(t.n, 3);
    CHECK_STR(err.message, "attempt 2");
    o.max_retries = 4;
    t = (struct tries){ .good_at = -1, .final_at = -1 };
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_ECONNECT);
    CHECK_INT(t.n, 5);
    o.no_retries = 1;
    t = (struct tries){ .good_at = -1, .final_at = -1 };
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_ECONNECT);
    CHECK_INT(t.n, 1);
    o = (tinker_retry_options)TINKER_RETRY_OPTIONS_INIT;
    o.delay_base_ms = 5;
    o.delay_max_ms = 5;
    o.progress_ms = 40; /* no success for so long ends it */
    t = (struct tries){ .good_at = -1, .final_at = -1 };
    int64_t start = clock_now_ms(clock_real());
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_ECONNECT);
    CHECK(clock_now_ms(clock_real()) - start >= 40);
    CHECK(t.n > 1);
    o.jitter = 2;
    CHECK_INT(tinker_retry(attempt, &t, &o, &err), TINKER_EINVAL);
}

int main(void)
{
    snprintf(dir, sizeof(dir), "/tmp/tinker-helpers-XXXXXX");
    if (!mkdtemp(dir))
        return 1;
    RUN(test_unpacks);
    RUN(test_refuses);
    RUN(test_paths);
    RUN(test_retry);
    os_remove_tree(dir, NULL);
    return tap_done();
}
