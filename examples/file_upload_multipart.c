/* file_upload_multipart.c - a body of multipart/form-data: fields, bytes, a file by its path.
 *
 *     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local file_upload_multipart [file]
 *
 * No endpoint of the service takes files today.  So the body is shown, and then sent with
 * tinker_service_call() to a path that does not exist, to see that it arrives. */
#include "example.h"
#include <string.h>
#include <tinker/extra/http.h>

static void ok(tinker_status s, const char *what)
{
    if (s != TINKER_OK)
        die(what);
}

/* How often text stands in the body. */
static int count(const char *body, size_t n, const char *text)
{
    int found = 0;
    size_t len = strlen(text);
    for (size_t i = 0; i + len <= n; i++)
        found += memcmp(body + i, text, len) == 0;
    return found;
}

int main(int argc, char **argv)
{
    static const char rows[] = "{\"prompt\":\"2+2=\",\"completion\":\"4\"}\n";
    tinker_multipart *m = need(tinker_multipart_new(&err), "multipart");
    ok(tinker_multipart_field(m, "purpose", "fine-tune", &err), "field");
    ok(tinker_multipart_field(m, "metadata[owner]", "\"me\"", &err), "field");
    ok(tinker_multipart_bytes(m, "rows", "rows.jsonl", "application/jsonl", rows, strlen(rows),
                              &err),
       "bytes");
    if (argc > 1)
        ok(tinker_multipart_file(m, "file", argv[1], NULL, NULL, &err), "file");
    size_t n;
    const char *body = tinker_multipart_body(m, &n);
    int parts = body ? count(body, n, "Content-Disposition: form-data;") : 0;
    printf("%d parts\n", parts);
    expect(parts == (argc > 1 ? 4 : 3), "every part is there once");
    expect(count(body, n, rows) == 1, "bytes go as they are");

    tinker_service *service = need(tinker_service_new(NULL, &err), "service");
    tinker_future *f = need(tinker_service_call(service, "POST", "/api/v1/files", body, n,
                                                tinker_multipart_content_type(m), &err),
                            "call");
    tinker_future_wait(f, MINUTE_MS, &err);
    const tinker_response *r = tinker_future_response(f);
    printf("POST /api/v1/files: %d\n", r ? r->status : 0);
    expect(r && r->status == 404, "the service takes no files");
    tinker_future_free(f);
    tinker_multipart_free(m);
    tinker_service_free(service);
    return EXIT_SUCCESS;
}
