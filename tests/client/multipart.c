/* Bodies of multipart/form-data, and one on its way. */
#include <unistd.h>
#include <tinker/extra/http.h>
#include "base/os.h"
#include "support/fake_tinker.h"
#include "support/tap.h"

static void test_body(void)
{
    tinker_error err = { 0 };
    tinker_multipart *m = tinker_multipart_new(&err), *other = tinker_multipart_new(&err);
    REQUIRE(m && other);
    const char *type = tinker_multipart_content_type(m);
    CHECK(strncmp(type, "multipart/form-data; boundary=", 30) == 0 && strlen(type) == 62);
    CHECK(strcmp(type, tinker_multipart_content_type(other)) != 0);
    char path[] = "/tmp/multipart-test.XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    CHECK_INT(write(fd, "a\0b", 3), 3);
    close(fd);
    CHECK_INT(tinker_multipart_header(m, "Content-ID", "<1>", &err), TINKER_OK);
    CHECK_INT(tinker_multipart_header(m, "X-Part", "a b", &err), TINKER_OK);
    CHECK_INT(tinker_multipart_header(m, "X-Part", "a\r\nb", &err), TINKER_EINVAL);
    CHECK_INT(tinker_multipart_header(m, "content-type", "text/plain", &err), TINKER_EINVAL);
    CHECK_INT(tinker_multipart_field(m, "user[name]", "K\xc3\xa4te", &err), TINKER_OK);
    CHECK_INT(tinker_multipart_bytes(m, "f", "x\"y\r\n.txt", "text/plain", "hi", 2, &err),
              TINKER_OK);
    CHECK_INT(tinker_multipart_bytes(m, "empty", NULL, NULL, NULL, 0, &err), TINKER_OK);
    CHECK_INT(tinker_multipart_file(m, "w", path, NULL, NULL, &err), TINKER_OK);
    /* refused, and nothing of it stays */
    CHECK_INT(tinker_multipart_bytes(m, "f", "x", "text/plain\r\nX: y", "hi", 2, &err),
              TINKER_EINVAL);
    CHECK_INT(tinker_multipart_field(m, "", "x", &err), TINKER_EINVAL);
    CHECK_INT(tinker_multipart_field(m, "x", NULL, &err), TINKER_EINVAL);
    CHECK_INT(tinker_multipart_file(m, "w", "/nonexistent/file", NULL, NULL, &err), TINKER_ESTATE);
    char want[2048];
    const char *b = type + 30;
    int n =
        snprintf(want, sizeof(want),
                 "--%s\r\nContent-Disposition: form-data; name=\"user[name]\"\r\n"
                 "Content-ID: <1>\r\nX-Part: a b\r\n\r\nK\xc3\xa4te\r\n"
                 "--%s\r\nContent-Disposition: form-data; name=\"f\"; "
                 "filename=\"x%%22y%%0D%%0A.txt\"\r\nContent-Type: text/plain\r\n\r\nhi\r\n"
                 "--%s\r\nContent-Disposition: form-data; name=\"empty\"; filename=\"empty\"\r\n"
                 "Content-Type: application/octet-stream\r\n\r\n\r\n"
                 "--%s\r\nContent-Disposition: form-data; name=\"w\"; filename=\"%s\"\r\n"
                 "Content-Type: application/octet-stream\r\n\r\na%cb\r\n--%s--\r\n",
                 b, b, b, b, strrchr(path, '/') + 1, '\0', b);
    for (int again = 0; again < 2; again++) {
        size_t got = 0;
        const void *body = tinker_multipart_body(m, &got);
        CHECK_MEM(body, got, want, (size_t)n);
    }
    CHECK_INT(tinker_multipart_field(m, "late", "x", &err), TINKER_EINVAL);
    tinker_multipart_free(m);
    tinker_multipart_free(other);
    tinker_multipart_free(NULL);
    unlink(path);
}

static void test_upload(void)
{
    struct world w;
    char v[512];
    world_open(&w, NULL, NULL);
    say(&w, API "files", 200, "{\"id\":\"f1\"}", 1);
    tinker_multipart *m = tinker_multipart_new(&w.err);
    CHECK_INT(tinker_multipart_field(m, "purpose", "test", &w.err), TINKER_OK);
    size_t n;
    const void *body = tinker_multipart_body(m, &n);
    tinker_future *f = tinker_service_call(w.service, "POST", API "files", body, n,
                                           tinker_multipart_content_type(m), &w.err);
    CHECK_INT(world_finish(&w, f, 10000), TINKER_OK);
    CHECK_STR(tinker_future_response(f)->body, "{\"id\":\"f1\"}");
    const struct fake_request *r = fake_get(w.server, API "files", 0);
    CHECK_STR(fake_header(r, "Content-Type", v), tinker_multipart_content_type(m));
    CHECK_MEM(r->body, r->len, body, n);
    tinker_future_free(f);
    tinker_multipart_free(m);
    world_close(&w);
}

int main(void)
{
    RUN(test_body);
    RUN(test_upload);
    return tap_done();
}
