/* Bodies without a length: every prefix of JSON is known as cut, and every one of protobuf that
 * does not end between two fields. */
#include "client/call/truncated_body.h"
#include "support/tap.h"
#include "wire/proto/pb.h"

static bool is_cut(const char *type, const void *body, size_t n, int status, bool empty_ok)
{
    struct http_response resp = { .status = status, .until_close = true };
    buf_init(&resp.head, 1000);
    buf_init(&resp.body, 1000);
    if (type)
        buf_printf(&resp.head, "Content-Type: %s\n", type);
    buf_append(&resp.body, body, n);
    bool cut = truncated_body_is_cut(&resp, empty_ok);
    resp.until_close = false; /* a promised length was kept */
    CHECK(!truncated_body_is_cut(&resp, empty_ok));
    /* the length of the compressed body, which says nothing of what came out of it */
    buf_printf(&resp.head, "Content-Encoding: zstd\n");
    CHECK(truncated_body_is_cut(&resp, empty_ok) == cut);
    buf_clear(&resp.head);
    buf_clear(&resp.body);
    return cut;
}

static void test_json(void)
{
    static const char json[] = "{\"a\":[1,-2.5e3,true,null],\"b\":\"x\\n\xc3\xa9\",\"c\":{}} \n";
    size_t whole = strlen(json) - 2; /* without the space at its end */
    for (size_t n = 0; n <= strlen(json); n++) {
        CHECK(is_cut("application/json", json, n, 200, true) == (n < whole));
        CHECK(is_cut("Application/Problem+JSON; charset=utf-8", json, n, 201, true) == (n < whole));
        CHECK(is_cut(NULL, json, n, 200, false) == (n < whole));
        CHECK(!is_cut("text/plain", json, n, 200, false));
        CHECK(!is_cut("application/json", json, n, 404, false)); /* the status says enough */
    }
    CHECK(!is_cut(NULL, "", 0, 200, true));
}

static void test_protobuf(void)
{
    uint8_t message[64], *p = message;
    p = pb_put_bytes(p, 1, "hello", 5);
    size_t first = (size_t)(p - message);
    p = pb_put_int(p, 2, 300);
    size_t second = (size_t)(p - message);
    p = pb_put_double(p, 3, 0.5);
    size_t third = (size_t)(p - message);
    for (size_t n = 0; n <= third; n++)
        CHECK(is_cut("application/x-protobuf", message, n, 200, false) ==
              (n != first && n != second && n != third));
}

int main(void)
{
    RUN(test_json);
    RUN(test_protobuf);
    return tap_done();
}
