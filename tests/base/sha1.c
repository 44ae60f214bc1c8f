/* sha1.c - the published answers, and the name git gives to a file. */
#include "base/sha1.h"
#include "base/sha256.h"
#include "support/tap.h"

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
    RUN(test_sha1_known_answers);
    RUN(test_names_of_git);
    return tap_done();
}
