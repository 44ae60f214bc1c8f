/* utf8.c - every code point, and every wrong two- and three-byte beginning. */
#include "base/utf8.h"
#include "support/tap.h"

static void test_every_code_point_round_trips(void)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        if (cp >= 0xd800 && cp <= 0xdfff)
            continue;
        char s[4];
        uint32_t back = 0;
        int n = utf8_encode(cp, s);
        int want = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        if (n != want || utf8_decode(s, (size_t)n, &back) != n || back != cp ||
            utf8_valid_prefix(s, (size_t)n) != (size_t)n)
            TAP_FAIL("U+%04X", cp);
        /* every cut makes it invalid */
        for (int k = 1; k < n; k++)
            if (utf8_decode(s, (size_t)k, &back) != 0)
                TAP_FAIL("U+%04X cut to %d", cp, k);
    }
}

static void test_invalid(void)
{
    static const char *const texts[] = {
        "\x80",             /* a tail alone */
        "\xc0\x80",         /* overlong NUL */
        "\xc1\xbf",         /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* surrogate */
        "\xed\xbf\xbf",     /* surrogate */
        "\xf4\x90\x80\x80", /* U+110000 */
        "\xf5\x80\x80\x80",
        "\xff",
        "\xfe",
        "\xc3\x28",
        "\xe2\x28\xa1",
        "\xe2\x82\x28",
        "\xf0\x9f\x98\x28",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        uint32_t cp;
        CHECK_INT(utf8_decode(texts[i], strlen(texts[i]), &cp), 0);
        CHECK_INT(utf8_valid_prefix(texts[i], strlen(texts[i])), 0);
    }
}

/* The place of the first bad byte is found at every offset of the word-wise scan. */
static void test_prefix_at_every_offset(void)
{
    char s[64];
    for (size_t n = 0; n <= sizeof s; n++) {
        memset(s, 'a', sizeof s);
        CHECK_INT(utf8_valid_prefix(s, n), n);
        for (size_t bad = 0; bad < n; bad++) {
            s[bad] = (char)0xff;
            CHECK_INT(utf8_valid_prefix(s, n), bad);
            s[bad] = 'a';
        }
    }
    CHECK_INT(utf8_valid_prefix("caf\xc3\xa9!", 6), 6);
    CHECK_INT(utf8_valid_prefix("caf\xc3\xa9", 4), 3);
    CHECK_INT(utf8_valid_prefix("\xe2\x82\xac\xf0\x9f\x98\x80z", 8), 8);
}

int main(void)
{
    RUN(test_every_code_point_round_trips);
    RUN(test_invalid);
    RUN(test_prefix_at_every_offset);
    return tap_done();
}
