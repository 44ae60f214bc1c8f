/* base64.c - the RFC's examples, both alphabets, and what is forgiven. */
#include "base/base64.h"
#include <stdint.h>
#include "support/tap.h"

static const char *encode_text(const void *p, size_t n, bool url)
{
    static struct buf b;
    buf_clear(&b);
    buf_init(&b, 4096);
    (url ? base64url_encode : base64_encode)(&b, p, n);
    buf_puts(&b, "");
    return b.data;
}

/* The decoded text, or NULL. */
static const char *decode_text(const char *s, bool url)
{
    static struct buf b;
    buf_clear(&b);
    buf_init(&b, 4096);
    buf_puts(&b, "");
    return (url ? base64url_decode : base64_decode)(&b, s, strlen(s)) ? b.data : NULL;
}

static void test_rfc_examples(void)
{
    static const char *const pairs[][2] = { { "", "" },
                                            { "f", "Zg==" },
                                            { "fo", "Zm8=" },
                                            { "foo", "Zm9v" },
                                            { "foob", "Zm9vYg==" },
                                            { "fooba", "Zm9vYmE=" },
                                            { "foobar", "Zm9vYmFy" } };
    for (size_t i = 0; i < 7; i++) {
        CHECK_STR(encode_text(pairs[i][0], strlen(pairs[i][0]), false), pairs[i][1]);
        CHECK_STR(decode_text(pairs[i][1], false), pairs[i][0]);
        CHECK_STR(decode_text(pairs[i][1], true), pairs[i][0]);
    }
}

static void test_alphabets(void)
{
    CHECK_STR(encode_text("\xfb\xff\xfe", 3, false), "+//+");
    CHECK_STR(encode_text("\xfb\xff\xfe", 3, true), "-__-");
    CHECK_STR(encode_text("f", 1, true), "Zg");
    CHECK_STR(encode_text("fo", 2, true), "Zm8");
    CHECK_STR(decode_text("-__-", true), "\xfb\xff\xfe");
    CHECK(decode_text("+//+", true) == NULL);
}

static void test_standard_is_forgiving(void)
{
    CHECK_STR(decode_text("Zm9v\nYmFy", false), "foobar");
    CHECK_STR(decode_text(" Z m 9 v ", false), "foo");
    CHECK_STR(decode_text("Zm8=ignored", false), "fo");
    CHECK_STR(decode_text("Zg=\n=", false), "f");
    CHECK_STR(decode_text("====", false), "");
    CHECK(decode_text("Zg", false) == NULL);
    CHECK(decode_text("Zg=", false) == NULL);
    CHECK(decode_text("Z", false) == NULL);
    CHECK(decode_text("Z===", false) == NULL);
}

static void test_url_is_strict(void)
{
    CHECK_STR(decode_text("Zg", true), "f");
    CHECK_STR(decode_text("Zm8", true), "fo");
    CHECK_STR(decode_text("", true), "");
    CHECK(decode_text("Z", true) == NULL);
    CHECK(decode_text("Zm 9v", true) == NULL);
    CHECK(decode_text("Zg==x", true) == NULL);
    CHECK(decode_text("=", true) == NULL);
}

static void test_failure_leaves_the_output(void)
{
    struct buf b;
    buf_init(&b, 100);
    buf_puts(&b, "kept");
    CHECK(!base64_decode(&b, "Zm9vYg", 6));
    CHECK_STR(b.data, "kept");
    buf_clear(&b);
    buf_init(&b, 3);
    CHECK(!base64_decode(&b, "Zm9vYmFy", 8));
    CHECK(!buf_ok(&b));
    buf_clear(&b);
    buf_init(&b, 6);
    CHECK(base64_decode(&b, "Zm9vYmFy", 8));
    CHECK_STR(b.data, "foobar");
    buf_clear(&b);
}

static void test_all_bytes_round_trip(void)
{
    unsigned char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)(i * 151);
    for (size_t n = 0; n <= 256; n++)
        for (int url = 0; url < 2; url++) {
            struct buf b;
            buf_init(&b, 1000);
            const char *text = encode_text(all, n, url);
            CHECK((url ? base64url_decode : base64_decode)(&b, text, strlen(text)));
            CHECK_MEM(b.data, b.len, all, n);
            buf_clear(&b);
        }
}

/* Line breaks at every width: fast groups and skipped characters in all positions. */
static void test_broken_lines(void)
{
    unsigned char data[1500];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 89 >> 1);
    const char *text = encode_text(data, sizeof data, false);
    for (size_t width = 1; width < 90; width++) {
        struct buf broken, out;
        buf_init(&broken, 10000);
        buf_init(&out, sizeof data);
        for (size_t i = 0; i < strlen(text); i++) {
            buf_putc(&broken, text[i]);
            if (i % width == 0)
                buf_puts(&broken, "\r\n");
        }
        CHECK(base64_decode(&out, broken.data, broken.len));
        CHECK_MEM(out.data, out.len, data, sizeof data);
        buf_clear(&broken);
        buf_clear(&out);
    }
}

int main(void)
{
    RUN(test_rfc_examples);
    RUN(test_alphabets);
    RUN(test_standard_is_forgiving);
    RUN(test_url_is_strict);
    RUN(test_failure_leaves_the_output);
    RUN(test_all_bytes_round_trip);
    RUN(test_broken_lines);
    encode_text("", 0, false);
    return tap_done();
}
