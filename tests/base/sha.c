/* sha.c - published test vectors, whatever the size of the pieces. */
#include "base/sha.h"
#include "support/tap.h"

static const char *sha256_text(const void *p, size_t n)
{
    static char hex[65];
    uint8_t out[32];
    struct sha256 s;
    sha256_init(&s);
    sha256_update(&s, p, n);
    sha256_final(&s, out);
    hex_encode(out, 32, hex);
    return hex;
}

static void test_sha256_known_answers(void)
{
    CHECK_STR(sha256_text("", 0),
              "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_STR(sha256_text("abc", 3),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_STR(sha256_text("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    static char million[1000000];
    memset(million, 'a', sizeof million);
    CHECK_STR(sha256_text(million, sizeof million),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_pieces_do_not_matter(void)
{
    char text[300];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7);
    for (size_t n = 0; n <= sizeof text; n += 11) {
        char want[65];
        snprintf(want, sizeof want, "%s", sha256_text(text, n));
        for (size_t piece = 1; piece < 130; piece += 3) {
            struct sha256 s;
            uint8_t out[32];
            char got[65];
            sha256_init(&s);
            for (size_t at = 0; at < n; at += piece)
                sha256_update(&s, text + at, n - at < piece ? n - at : piece);
            sha256_final(&s, out);
            hex_encode(out, 32, got);
            CHECK_STR(got, want);
        }
    }
}

static const char *hmac_text(const void *key, size_t nk, const void *p, size_t n)
{
    static char hex[65];
    uint8_t out[32];
    hmac_sha256(key, nk, p, n, out);
    hex_encode(out, 32, hex);
    return hex;
}

static void test_hmac_rfc4231(void)
{
    char key[131];
    memset(key, 0x0b, 20);
    CHECK_STR(hmac_text(key, 20, "Hi There", 8),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK_STR(hmac_text("Jefe", 4, "what do ya want for nothing?", 28),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    CHECK_STR(hmac_text(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_hex(void)
{
    char out[9];
    hex_encode((const uint8_t *)"\x00\xff\x1a\xb2", 4, out);
    CHECK_STR(out, "00ff1ab2");
    hex_encode(NULL, 0, out);
    CHECK_STR(out, "");
}

static const char *sha1_text(const void *p, size_t n, size_t piece)
{
    static char hex[41];
    uint8_t out[20];
    struct sha1 s;
    sha1_init(&s);
    for (size_t at = 0; at < n; at += piece)
        sha1_update(&s, (const char *)p + at, n - at < piece ? n - at : piece);
    sha1_final(&s, out);
    hex_encode(out, 20, hex);
    return hex;
}

static void test_sha1_known_answers(void)
{
    static const char long_text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    static char million[1000000];
    memset(million, 'a', sizeof million);
    CHECK_STR(sha1_text("", 0, 1), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    CHECK_STR(sha1_text("abc", 3, 1), "a9993e364706816aba3e25717850c26c9cd0d89d");
    CHECK_STR(sha1_text(long_text, 56, 3), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    CHECK_STR(sha1_text(million, sizeof million, 4099), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

static void test_names_of_git(void)
{
    CHECK_STR(sha1_text("blob 0", 7, 64), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    CHECK_STR(sha1_text("blob 6\0hello\n", 13, 2), "ce013625030ba8dba906f756967f9e9ca394464a");
}

int main(void)
{
    RUN(test_sha256_known_answers);
    RUN(test_pieces_do_not_matter);
    RUN(test_hmac_rfc4231);
    RUN(test_hex);
    RUN(test_sha1_known_answers);
    RUN(test_names_of_git);
    return tap_done();
}
