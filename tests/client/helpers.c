/* Helpers that need no service: unpacking a checkpoint, its path, trying again
 * (R-061, R-063). */
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <tinker/rest.h>
#include <tinker/tinker.h>
#include <unistd.h>
#include <zlib.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/os.h"
#include "client/rest/gunzip.h"
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

/* Entries of the test's folder that an extraction works in and should have removed. */
static int count_leftovers(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strstr(e->d_name, ".part") != NULL;
    closedir(d);
    return n;
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

/* ---- gzip ---------------------------------------------------------------------------------- */

/* One gzip member of p[0..n), appended. */
static void zip(struct buf *out, const void *p, size_t n)
{
    z_stream z = { 0 };
    CHECK_INT(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t bound = deflateBound(&z, n);
    unsigned char *made = malloc(bound);
    z.next_in = (unsigned char *)p;
    z.avail_in = (uInt)n;
    z.next_out = made;
    z.avail_out = (uInt)bound;
    CHECK_INT(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_append(out, made, z.total_out);
    deflateEnd(&z);
    free(made);
}

static tinker_status extract_file(const struct buf *b, const char *target, tinker_error *err)
{
    CHECK_INT(os_write_file(in("archive.tgz"), b->data, b->len, NULL), TINKER_OK);
    return tinker_archive_extract(in("archive.tgz"), in(target), err);
}

static void small_tar(struct buf *b)
{
    static const char end[1024];
    buf_init(b, 1 << 20);
    put(b, "a/b", '0', "hello", 5);
    put(b, "././@LongLink", 'L', "long/name", 10);
    put(b, "cut", '0', "long", 4);
    buf_append(b, end, sizeof(end));
}

static void test_gzip(void)
{
    struct buf tar, gz;
    tinker_error err = { 0 };
    small_tar(&tar);
    buf_init(&gz, 1 << 20);
    zip(&gz, tar.data, tar.len);
    CHECK_INT(extract_file(&gz, "gz1", &err), TINKER_OK);
    check_file("gz1/a/b", "hello");
    check_file("gz1/long/name", "long");
    buf_append(&gz, "\0\0\0", 3); /* as tapes pad */
    CHECK_INT(extract_file(&gz, "gz2", &err), TINKER_OK);
    buf_append(&gz, "x", 1);
    CHECK_INT(extract_file(&gz, "gz3", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "follows") != NULL);
    buf_reset(&gz); /* in two members, cut inside an entry */
    zip(&gz, tar.data, 514);
    zip(&gz, tar.data + 514, tar.len - 514);
    CHECK_INT(extract_file(&gz, "gz4", &err), TINKER_OK);
    check_file("gz4/a/b", "hello");
    buf_reset(&gz);
    zip(&gz, tar.data, tar.len);
    size_t whole = gz.len;
    for (gz.len = 2; gz.len < whole; gz.len++) {
        CHECK_INT(extract_file(&gz, "gz5", &err), TINKER_EINVAL);
        CHECK(access(in("gz5"), F_OK) != 0);
    }
    for (size_t i = 4; i < whole; i += i == 4 ? whole - 12 : 1) { /* time; data; sum; length */
        gz.len = whole;
        gz.data[i] ^= 0x55;
        CHECK_INT(extract_file(&gz, i == 4 ? "gz6" : "gz7", &err),
                  i == 4 ? TINKER_OK : TINKER_EINVAL);
        gz.data[i] ^= 0x55;
    }
    CHECK(access(in("gz7"), F_OK) != 0);
    CHECK_INT(count_leftovers(), 0);
    buf_clear(&tar);
    buf_clear(&gz);
}

static void test_bombs(void)
{
    enum { N = 80 << 20 };
    struct buf tar, gz;
    char out[1000];
    size_t got;
    tinker_error err = { 0 };
    char *zeros = calloc(1, N);
    buf_init(&tar, 2 * N);
    buf_init(&gz, 1 << 20);
    put(&tar, "zeros", '0', zeros, N);
    zip(&gz, tar.data, tar.len);
    CHECK_INT(extract_file(&gz, "bomb", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "more than") != NULL);
    CHECK(access(in("bomb"), F_OK) != 0);
    CHECK_INT(count_leftovers(), 0); /* what had been written until then is gone, too */
    buf_clear(&tar);
    free(zeros);
    small_tar(&tar);
    buf_reset(&gz);
    zip(&gz, tar.data, 1000);
    for (uint64_t max = 999; max <= 1000; max++) {
        struct gunzip *g = gunzip_open(gz.data, gz.len, max, &err);
        REQUIRE(g);
        tinker_status s = gunzip_read(g, out, 600, &got, &err);
        if (s == TINKER_OK)
            s = gunzip_read(g, out, sizeof(out), &got, &err);
        CHECK_INT(s, max < 1000 ? TINKER_EINVAL : TINKER_OK);
        if (s == TINKER_OK)
            CHECK_INT(got, 400);
        gunzip_close(g);
    }
    buf_clear(&tar);
    buf_clear(&gz);
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
        CHECK_INT(count_leftovers(), 0);
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
        CHECK_INT(count_leftovers(), 0);
    }
    b.data[130] ^= 1;
    CHECK_INT(extract(&b, "sum", &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "checksum") != NULL);
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
    CHECK_INT(p.kind, TINKER_CHECKPOINT_TRAINING);
    CHECK_INT(tinker_checkpoint_path_parse("tinker://r/sampler_weights/x", &p, &err), TINKER_OK);
    CHECK_INT(p.kind, TINKER_CHECKPOINT_SAMPLER);
    /* Other services name no kind. */
    CHECK_INT(tinker_checkpoint_path_parse("tinker://run-1/step-7", &p, &err), TINKER_OK);
    CHECK_STR(p.training_run, "run-1");
    CHECK_STR(p.checkpoint_id, "step-7");
    CHECK_STR(p.name, "step-7");
    CHECK_INT(p.kind, TINKER_CHECKPOINT_UNKNOWN);
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

static tinker_status attempt(int k, tinker_error *err, void *state)
{
    struct tries *t = state;
    CHECK_INT(k, t->n);
    t->n++;
    if (k == t->good_at)
        return TINKER_OK;
    *err = (tinker_error){ .status = TINKER_ECONNECT, .retryable = k != t->final_at };
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
    RUN(test_gzip);
    RUN(test_bombs);
    RUN(test_paths);
    RUN(test_retry);
    os_remove_tree(dir, NULL);
    return tap_done();
}
