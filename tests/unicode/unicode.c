/* unicode.c - classes of Unicode 16, normal forms of Unicode 9, repair of broken text. */
#include "unicode/unicode_valid.c"
#include "base/rand.h"
#include "base/utf8.h"
#include "support/tap.h"

static void test_class_counts(void)
{
    size_t l = 0, n = 0, m = 0, p = 0, s = 0, ws = 0, both = 0, han = 0;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        unsigned c = uni_class(cp);
        l += (c & UNI_L) != 0;
        n += (c & UNI_N) != 0;
        m += (c & UNI_M) != 0;
        p += (c & UNI_P) != 0;
        s += (c & UNI_S) != 0;
        ws += (c & UNI_WS) != 0;
        both += (c & UNI_A) && (c & UNI_B);
        han += uni_in(uni_han, uni_han_n, cp);
    }
    CHECK_INT(l, 141028);
    CHECK_INT(n, 1911);
    CHECK_INT(m, 2501);
    CHECK_INT(p, 855);
    CHECK_INT(s, 8514);
    CHECK_INT(ws, 25);
    CHECK_INT(both, 404 + 136477 + 2501); /* Lm, Lo, M */
    CHECK_INT(han, 99030);
    CHECK_STR(uni_version, "16.0.0");
}

static void test_spaces(void)
{
    static const uint32_t yes[] = { 0x09, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x200A, 0x2028, 0x3000 };
    static const uint32_t no[] = { 0x1C, 0x1F, 0x180E, 0x200B, 0x2060, 0xFEFF };
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        CHECK(uni_class(yes[i]) & UNI_WS);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        CHECK(!(uni_class(no[i]) & UNI_WS));
    CHECK(uni_class(0x295) & UNI_B && !(uni_class(0x295) & UNI_A)); /* Ll until Unicode 17 */
}

static void check_form(const char *text, enum uni_form form, const char *want)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    CHECK(uni_normalize(&b, text, strlen(text), form));
    CHECK_STR(b.data ? b.data : "", want);
    if (form == UNI_NFC && strcmp(text, want) != 0) /* the quick check may doubt, never miss */
        CHECK(uni_nfc_prefix(text, strlen(text)) < strlen(text));
    buf_clear(&b);
}

static void test_nfc(void)
{
    check_form("plain \xC3\xA9 \xE6\xBC\xA2", UNI_NFC, "plain \xC3\xA9 \xE6\xBC\xA2");
    check_form("xe\xCC\x81y", UNI_NFC, "x\xC3\xA9y");
    check_form("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", UNI_NFC, "\xEA\xB0\x81"); /* Hangul */
    check_form("\xE2\x84\xAB", UNI_NFC, "\xC3\x85");                             /* Angstrom sign */
    check_form("a\xCC\x81\xCC\xA3", UNI_NFC, "\xE1\xBA\xA1\xCC\x81");            /* marks sorted */
    check_form("\xCC\x81", UNI_NFC, "\xCC\x81");
    check_form("e\xCC\x81 ok e\xCC\x80", UNI_NFC, "\xC3\xA9 ok \xC3\xA8");
    /* U+105D2 U+0307 composes since Unicode 16 only */
    check_form("\xF0\x90\x97\x92\xCC\x87", UNI_NFC, "\xF0\x90\x97\x92\xCC\x87");
    /* U+1DF6 (Unicode 10, class 232) stands still before U+0323 (class 220) */
    check_form("a\xE1\xB7\xB6\xCC\xA3", UNI_NFC, "a\xE1\xB7\xB6\xCC\xA3");
    /* a mark of Unicode 9 moves */
    check_form("a\xCC\x95\xCC\xA3", UNI_NFC, "\xE1\xBA\xA1\xCC\x95");
}

static void test_nfc_quick_check(void)
{
    static const char *const normal[] = { "abc \xC3\xA9", "\xE6\xBC\xA2\xE3\x81\x8B",
                                          "\xE0\xB8\x81\xE0\xB8\xB8\xE0\xB9\x88", /* Thai */
                                          "\xEA\xB0\x81\xD0\xB9", "" };
    for (size_t i = 0; i < sizeof(normal) / sizeof(normal[0]); i++)
        CHECK_INT(uni_nfc_prefix(normal[i], strlen(normal[i])), strlen(normal[i]));
    CHECK_INT(uni_nfc_prefix("abe\xCC\x81", 5), 2); /* from the letter on */
}

/* Character by character. */
static size_t slow_nfc_prefix(const char *text, size_t n)
{
    size_t safe = 0;
    unsigned len, last = 0;
    for (size_t i = 0; i < n; i += len) {
        unsigned class = uni_nfc_class(uni_decode((const unsigned char *)text + i, &len));
        if (class == 255 || (class && class < last))
            return safe;
        safe = class ? safe : i;
        last = class;
    }
    return n;
}

static void test_nfc_every_character_is_seen(void)
{
    char text[80];
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        memset(text, 'x', sizeof(text));
        size_t n = 36 + (size_t)utf8_encode(cp, text + 36) + 36;
        if (uni_nfc_prefix(text, n) != slow_nfc_prefix(text, n))
            TAP_FAIL("U+%04X", (unsigned)cp);
    }
}

static void test_nfc_chunks_change_nothing(void)
{
    static const char *const bits[] = { "a",
                                        "e\xCC\x81",
                                        "\xC3\xA9",
                                        "\xD0\xB9",
                                        "\xE4\xB8\xAD",
                                        "\xE3\x81\x8B",
                                        "\xE3\x82\x99",
                                        "\xED\x95\x9C",
                                        "\xE1\x86\xA8",
                                        "\xF0\x9F\x98\x80",
                                        "\xCC\x95",
                                        "\xCC\x80",
                                        "word ",
                                        "\xD2\x83" };
    uint64_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        char text[400];
        size_t n = 0;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned common = seed >> 33 & 7; /* most are of one kind, so that chunks are skipped */
        for (int i = 0; i < 70; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            unsigned k = seed >> 60 ? common : (seed >> 40) % (sizeof(bits) / sizeof(bits[0]));
            memcpy(text + n, bits[k], strlen(bits[k]));
            n += strlen(bits[k]);
        }
        CHECK_INT(uni_nfc_prefix(text, n), slow_nfc_prefix(text, n));
    }
}

static void test_other_forms(void)
{
    check_form("\xC3\xA9", UNI_NFD, "e\xCC\x81");
    check_form("\xEF\xAC\x81", UNI_NFKC, "fi");
    check_form("\xEF\xAC\x81\xC3\xA9", UNI_NFKD, "fie\xCC\x81");
    check_form("\xEF\xAC\x81", UNI_NFD, "\xEF\xAC\x81");
}

/* Marks as in an endless row of accents: sorted in about the time it takes to read them. */
static void test_many_marks(void)
{
    enum { N = 200000 };
    struct buf text, got;
    buf_init(&text, SIZE_MAX);
    buf_init(&got, SIZE_MAX);
    buf_puts(&text, "a");
    for (int i = 0; i < 2 * N; i++)
        buf_puts(&text, i % 2 ? "\xCC\x96" : "\xCC\x95"); /* classes 220 and 232 */
    for (int form = 0; form < 4; form++) {
        buf_reset(&got);
        CHECK(uni_normalize(&got, text.data, text.len, (enum uni_form)form));
        CHECK_INT(got.len, text.len);
        CHECK(memcmp(got.data, "a\xCC\x96", 3) == 0);
        CHECK(memcmp(got.data + 1 + 2 * (N - 1), "\xCC\x96\xCC\x95", 4) == 0);
        CHECK(memcmp(got.data + got.len - 2, "\xCC\x95", 2) == 0);
    }
    buf_clear(&text);
    buf_clear(&got);
}

static void check_repair(const char *text, const char *want)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    uni_repair(&b, text, strlen(text));
    CHECK_STR(b.data ? b.data : "", want);
    buf_clear(&b);
}

#define BAD "\xEF\xBF\xBD"
static void test_repair(void)
{
    check_repair("ok \xC3\xA9", "ok \xC3\xA9");
    check_repair("\xE2\x82(", BAD "(");
    check_repair("\xED\xA0\x80", BAD BAD BAD);
    check_repair("\xF0\x9F\x98", BAD);
    check_repair("\xF0\x9F\x98\xF0\x9F\x98\x80", BAD "\xF0\x9F\x98\x80");
    check_repair("\xC0\xAF", BAD BAD);
    check_repair("\xF4\x90\x80\x80", BAD BAD BAD BAD);
    check_repair("a\x80\xFF"
                 "b",
                 "a" BAD BAD "b");
}

/* Parts of characters in random order: mostly wrong somewhere, at any place of a word of eight. */
static void test_valid_prefix(void)
{
    static const char *const parts[] = { "a",
                                         "abcdefgh",
                                         "\xC3\xA9",
                                         "\xE2\x82\xAC",
                                         "\xF0\x9F\x98\x80",
                                         "\xE0\xA4\x95",
                                         "\xED\x9F\xBF",
                                         "\xED\xA0\x80",
                                         "\xE0\x80\x80",
                                         "\xC0\x80",
                                         "\x80",
                                         "\xE2\x82",
                                         "\xF4\x90\x80\x80",
                                         "\xFF" };
    struct rng r;
    rng_seed(&r, 11);
    size_t whole = 0;
    for (int round = 0; round < 20000; round++) {
        char text[128];
        size_t n = 0, count = rng_next(&r) % 24;
        for (size_t i = 0; i < count; i++) {
            const char *part = parts[rng_next(&r) % (rng_next(&r) % 16 ? 7 : 14)];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
            n = n > 120 ? 120 : n;
        }
        size_t want = utf8_valid_prefix(text, n);
        CHECK_INT(uni_valid_prefix(text, n), want);
        CHECK_INT(check_slow(text, n), want);
        whole += want == n;
    }
    CHECK(whole > 2000 && whole < 18000);
}

/* Every two bytes, with others behind them that matter, before and over the end of 32 bytes, which
 * are checked at once. */
static void test_valid_pairs(void)
{
    static const unsigned char behind[] = { 'a', 0x80, 0x8F, 0x90, 0xBF, 0xC2, 0xF4 };
    const size_t n_behind = sizeof(behind);
    size_t differ = 0;
    for (unsigned k = 0; k < 65536 * n_behind * n_behind; k++) {
        unsigned char text[64];
        size_t at = 26 + k % 9, n = at + 2 + k % 3 + (k % 2 ? 0 : 20);
        memset(text, 'x', sizeof(text));
        text[at] = (unsigned char)(k / n_behind / n_behind >> 8);
        text[at + 1] = (unsigned char)(k / n_behind / n_behind);
        text[at + 2] = behind[k % n_behind];
        text[at + 3] = behind[k / n_behind % n_behind];
        differ += uni_valid_prefix((char *)text, n) != utf8_valid_prefix((char *)text, n);
    }
    CHECK_INT(differ, 0);
}

static void test_word(void)
{
    CHECK(uni_is_word('a') && uni_is_word('_') && uni_is_word('7') && uni_is_word(0x301));
    CHECK(uni_is_word(0x200D) && uni_is_word(0x24B6) && uni_is_word(0x2160));
    CHECK(!uni_is_word('-') && !uni_is_word(' ') && !uni_is_word(0xB2) && !uni_is_word(0x1F600));
}

int main(void)
{
    RUN(test_class_counts);
    RUN(test_spaces);
    RUN(test_nfc);
    RUN(test_nfc_quick_check);
    RUN(test_nfc_every_character_is_seen);
    RUN(test_nfc_chunks_change_nothing);
    RUN(test_other_forms);
    RUN(test_many_marks);
    RUN(test_repair);
    RUN(test_valid_prefix);
    RUN(test_valid_pairs);
    RUN(test_word);
    return tap_done();
}
