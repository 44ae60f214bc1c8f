/* Files of external weights: several at once, resumed, checked, and all or nothing. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tinker/rest.h>
#include "base/base64.h"
#include "base/os.h"
#include "base/sha.h"
#include "client/io/runtime.h"
#include "support/fake_tinker.h"
#include "support/nap.h"
#include "support/tap.h"

#define PATH "tinker://r:train:0/external_weights/hf"
#define URLS API "training_runs/r:train:0/checkpoints/external_weights/hf/external_weights_urls"

static struct world w;
static tinker_rest *rest;
static char root[64], dir[96];
static char *blob;
enum { BLOB = 300000 };

static void begin(void)
{
    world_open_real(&w, NULL);
    rest = tinker_service_create_rest(w.service, NULL);
    snprintf(root, sizeof(root), "/tmp/tinker-files-%d", (int)getpid());
    snprintf(dir, sizeof(dir), "%s/out", root);
    os_remove_tree(root, NULL);
    mkdir(root, 0700);
}

static void end(void)
{
    tinker_rest_free(rest);
    world_close(&w);
    os_remove_tree(root, NULL);
}

/* The answer with addresses: "name=path name=path". */
static void say_urls(const char *pairs, const char *expires)
{
    char body[2048] = "{\"urls\":{", copy[1024], *save = NULL;
    const char *comma = "";
    snprintf(copy, sizeof(copy), "%s", pairs);
    for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *path = strchr(p, '=');
        *path++ = 0;
        size_t n = strlen(body);
        snprintf(body + n, sizeof(body) - n, "%s\"%s\":\"%s%s\"", comma, p,
                 fake_server_url(w.server), path);
        comma = ",";
    }
    size_t n = strlen(body);
    snprintf(body + n, sizeof(body) - n, "},\"expires\":\"%s\"}", expires);
    say(&w, URLS, 200, body, 1);
}

static void serve(const char *path, struct fake_reply r)
{
    fake_script(w.server, path, r);
}

static tinker_status fetch(const tinker_download_options *o)
{
    tinker_future *f = tinker_rest_download_files(rest, PATH, dir, o, &w.err);
    if (!f)
        return w.err.status;
    tinker_status s = tinker_future_wait(f, 30000, &w.err);
    if (s == TINKER_OK)
        CHECK_STR(tinker_future_file(f), dir);
    tinker_future_free(f);
    return s;
}

/* What is below the folder, hidden things included. */
static size_t entries(void)
{
    size_t n = 0;
    DIR *d = opendir(root);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d)
        closedir(d);
    return n;
}

static bool file_has(const char *name, const char *want, size_t n)
{
    char path[256], *data = NULL;
    size_t got = 0;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    bool same = os_read_file(path, 1 << 24, &data, &got, NULL) == TINKER_OK && got == n &&
                memcmp(data, want, n) == 0;
    free(data);
    return same;
}

static void sum_of(const void *p, size_t n, char out[65], struct buf *base64)
{
    struct sha256 h;
    uint8_t d[32];
    sha256_init(&h);
    sha256_update(&h, p, n);
    sha256_final(&h, d);
    hex_encode(d, 32, out);
    if (base64)
        base64_encode(base64, d, 32);
}

/* Removal is a worker's: give it a moment. */
static bool nothing_left(void)
{
    for (int i = 0; i < 200 && entries(); i++)
        nap_ms(10);
    return entries() == 0;
}

static void test_all_files_arrive_with_their_sums(void)
{
    char sum[65], want[400], header[200], v[512];
    struct buf digest;
    begin();
    buf_init(&digest, 256);
    sum_of(blob, BLOB, sum, &digest);
    snprintf(header, sizeof(header), "Content-Digest: sha-256=:%s:\r\n", digest.data);
    say_urls("adapter_config.json=/f/a model/adapter.bin=/f/b empty=/f/c four=/f/d five=/f/e",
             "2126-01-02T03:04:05Z");
    serve("/f/a", (struct fake_reply){ .body = "{}" });
    serve("/f/b", (struct fake_reply){ .body = blob, .len = BLOB, .headers = header });
    serve("/f/c", (struct fake_reply){ .body = NULL });
    serve("/f/d", (struct fake_reply){ .body = "4" });
    serve("/f/e", (struct fake_reply){ .body = "5" });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK(file_has("adapter_config.json", "{}", 2) && file_has("model/adapter.bin", blob, BLOB) &&
          file_has("empty", "", 0) && file_has("five", "5", 1));
    snprintf(want, sizeof(want), "%s  model/adapter.bin\n", sum);
    char path[256], *data = NULL;
    size_t n = 0;
    snprintf(path, sizeof(path), "%s/SHA256SUMS", dir);
    CHECK(os_read_file(path, 4096, &data, &n, NULL) == TINKER_OK && strstr(data, want));
    free(data);
    CHECK(!fake_header(fake_get(w.server, "/f/b", 0), "X-API-Key", v));
    CHECK_INT(entries(), 1);
    /* It exists now; with force it is replaced when the new one is complete. */
    CHECK_INT(fetch(NULL), TINKER_EINVAL);
    tinker_download_options o = TINKER_DOWNLOAD_OPTIONS_INIT;
    o.force = 1;
    say_urls("x=/f/x", "2126-01-02T03:04:05Z");
    serve("/f/x", (struct fake_reply){ .body = "new" });
    CHECK_INT(fetch(&o), TINKER_OK);
    CHECK(file_has("x", "new", 3) && !file_has("empty", "", 0));
    buf_clear(&digest);
    end();
}

static void test_a_lost_connection_goes_on(void)
{
    char v[512], range[96];
    begin();
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    size_t half = BLOB - 10; /* FAKE_TRUNCATE announces ten bytes more than it sends */
    snprintf(range, sizeof(range), "ETag: \"v1\"\r\nContent-Range: bytes %zu-%d/%d\r\n", half,
             BLOB - 1, BLOB);
    serve("/f/b", (struct fake_reply){ .body = blob,
                                       .len = BLOB - 10,
                                       .headers = "ETag: \"v1\"\r\n",
                                       .fault = FAKE_TRUNCATE });
    serve("/f/b", (struct fake_reply){
                      .status = 206, .body = blob + half, .len = BLOB - half, .headers = range });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK(file_has("b", blob, BLOB));
    CHECK_INT(fake_count(w.server, "/f/b"), 2);
    snprintf(range, sizeof(range), "bytes=%zu-", half);
    CHECK_STR(fake_header(fake_get(w.server, "/f/b", 1), "Range", v), range);
    CHECK_STR(fake_header(fake_get(w.server, "/f/b", 1), "If-Range", v), "\"v1\"");
    end();
    /* Another version meanwhile, or a server that knows no ranges: from the first byte. */
    begin();
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    serve("/f/b", (struct fake_reply){ .body = blob,
                                       .len = BLOB - 10,
                                       .headers = "ETag: \"v1\"\r\n",
                                       .fault = FAKE_TRUNCATE });
    serve("/f/b", (struct fake_reply){ .body = "other", .headers = "ETag: \"v2\"\r\n" });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK(file_has("b", "other", 5));
    end();
    /* Without a strong tag nothing says that the rest is of the same bytes. */
    begin();
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    serve("/f/b", (struct fake_reply){ .body = blob,
                                       .len = BLOB - 10,
                                       .headers = "ETag: W/\"v1\"\r\n",
                                       .fault = FAKE_TRUNCATE });
    serve("/f/b", (struct fake_reply){ .body = blob, .len = BLOB });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK(file_has("b", blob, BLOB));
    CHECK(!fake_header(fake_get(w.server, "/f/b", 1), "Range", v));
    end();
}

static void test_addresses_that_ended_are_renewed(void)
{
    begin();
    say_urls("a=/f/a b=/f/b", "2126-01-02T03:04:05Z");
    say_urls("b=/f/b2 a=/f/a2", "2126-01-02T03:04:05Z");
    serve("/f/a", (struct fake_reply){ .body = "a" });
    serve("/f/a2", (struct fake_reply){ .body = "a" });
    serve("/f/b", (struct fake_reply){ .status = 403, .body = "<Error>secret</Error>" });
    serve("/f/b2", (struct fake_reply){ .body = "b" });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK(file_has("a", "a", 1) && file_has("b", "b", 1));
    CHECK_INT(fake_count(w.server, URLS), 2);
    end();
    /* once: an address that is refused again is an error, without what the store said */
    begin();
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    serve("/f/b",
          (struct fake_reply){ .status = 403, .body = "<Error>secret</Error>", .times = -1 });
    CHECK_INT(fetch(NULL), TINKER_EHTTP);
    CHECK_INT(w.err.http_status, 403);
    CHECK(!strstr(w.err.message, "secret"));
    CHECK(nothing_left());
    end();
    /* addresses that are about to end are not used */
    begin();
    say_urls("b=/f/old", "2001-01-02T03:04:05Z");
    say_urls("b=/f/b", "2126-01-02T03:04:05Z");
    serve("/f/b", (struct fake_reply){ .body = "b" });
    CHECK_INT(fetch(NULL), TINKER_OK);
    CHECK_INT(fake_count(w.server, "/f/old"), 0);
    end();
}

static void test_what_is_damaged_is_refused(void)
{
    static const char wrong[] =
        "Content-Digest: sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:\r\n";
    begin();
    say_urls("a=/f/a", "2126-01-02T03:04:05Z");
    serve("/f/a", (struct fake_reply){ .body = "not empty", .headers = wrong });
    CHECK_INT(fetch(NULL), TINKER_EPROTOCOL);
    CHECK(strstr(w.err.message, "SHA-256"));
    CHECK(nothing_left());
    end();
    begin();
    say_urls("a=/f/a", "2126-01-02T03:04:05Z");
    serve("/f/a", (struct fake_reply){ .body = blob,
                                       .len = BLOB - 10,
                                       .headers = "ETag: \"v1\"\r\n",
                                       .fault = FAKE_TRUNCATE });
    serve("/f/a", (struct fake_reply){ .status = 206,
                                       .body = "x",
                                       .headers = "Content-Range: bytes 7-7/300000\r\n" });
    CHECK_INT(fetch(NULL), TINKER_EPROTOCOL);
    CHECK(nothing_left());
    end();
}

static void test_names_that_lead_out_are_refused(void)
{
    static const char *const bad[] = { "../x", "/etc/x", "a/../../x", "a//b",
                                       "a/",   ".",      "a/./b",     "SHA256SUMS" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char pairs[64];
        begin();
        snprintf(pairs, sizeof(pairs), "a=/f/a %s=/f/b", bad[i]);
        say_urls(pairs, "2126-01-02T03:04:05Z");
        CHECK_INT(fetch(NULL), TINKER_EPROTOCOL);
        CHECK(strstr(w.err.message, "Unsafe file path in checkpoint"));
        CHECK_INT(fake_count(w.server, "/f/a"), 0);
        CHECK(nothing_left());
        end();
    }
    begin();
    say(&w, URLS, 200, "{\"urls\":{},\"expires\":\"2126-01-02T03:04:05Z\"}", 1);
    CHECK_INT(fetch(NULL), TINKER_EPROTOCOL);
    CHECK(nothing_left());
    end();
}

static void test_a_stopped_download_leaves_nothing(void)
{
    begin();
    say_urls("a=/f/a b=/f/b", "2126-01-02T03:04:05Z");
    serve("/f/a", (struct fake_reply){ .body = blob, .len = BLOB });
    serve("/f/b", (struct fake_reply){ .fault = FAKE_HANG });
    tinker_future *f = tinker_rest_download_files(rest, PATH, dir, NULL, &w.err);
    REQUIRE(f);
    CHECK(fake_await(w.server, "/f/b", 1));
    tinker_future_cancel(f);
    CHECK_INT(tinker_future_wait(f, 10000, &w.err), TINKER_ECANCELED);
    tinker_future_free(f);
    CHECK(nothing_left());
    end();
    begin();
    f = tinker_rest_download_files(rest, PATH, "", NULL, &w.err);
    CHECK(!f && w.err.status == TINKER_EINVAL);
    end();
}

int main(void)
{
    blob = malloc(BLOB);
    for (size_t i = 0; i < BLOB; i++)
        blob[i] = (char)(i * 7 + i / 251);
    RUN(test_all_files_arrive_with_their_sums);
    RUN(test_a_lost_connection_goes_on);
    RUN(test_addresses_that_ended_are_renewed);
    RUN(test_what_is_damaged_is_refused);
    RUN(test_names_that_lead_out_are_refused);
    RUN(test_a_stopped_download_leaves_nothing);
    free(blob);
    return tap_done();
}
