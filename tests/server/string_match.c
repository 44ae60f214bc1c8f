/* Many strings at once, against looking for each. */
#include "server/sampling/string_match.h"
#include "support/tap.h"

static uint64_t seed = 1;
static unsigned pick(unsigned n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

/* Where the first string ends in the text, or -1: the text up to there is what was generated. */
static int find_plainly(const char *text, size_t n, char *const *strings, size_t n_strings)
{
    for (size_t end = 1; end <= n; end++)
        for (size_t i = 0; i < n_strings; i++) {
            size_t len = strlen(strings[i]);
            if (len <= end && memcmp(text + end - len, strings[i], len) == 0)
                return (int)end;
        }
    return -1;
}

static int find_matched(const struct string_match *m, const char *text, size_t n)
{
    uint32_t state = 0;
    for (size_t i = 0; i < n; i++) {
        state = string_match_next(m, state, (unsigned char)text[i]);
        if (string_match_is_end(m, state))
            return (int)i + 1;
    }
    return -1;
}

static void test_random_strings(void)
{
    for (int round = 0; round < 3000; round++) {
        char *strings[12], text[60];
        size_t n = 1 + pick(12), n_text = 1 + pick(60);
        unsigned letters = 1 + pick(3); /* few, so that ends and beginnings overlap */
        for (size_t i = 0; i < n; i++) {
            size_t len = 1 + pick(7);
            strings[i] = calloc(len + 1, 1);
            for (size_t k = 0; k < len; k++)
                strings[i][k] = (char)('a' + pick(letters + 1));
        }
        for (size_t k = 0; k < n_text; k++)
            text[k] = pick(20) ? (char)('a' + pick(letters + 1)) : '\0'; /* a NUL is a byte, too */
        struct string_match *m = string_match_new((const char *const *)strings, n);
        REQUIRE(m);
        CHECK_INT(find_matched(m, text, n_text), find_plainly(text, n_text, strings, n));
        string_match_free(m);
        for (size_t i = 0; i < n; i++)
            free(strings[i]);
    }
}

static void test_bytes_above_ascii(void)
{
    const char *const strings[] = { "\xff\xfe", "\xc3\xa9t\xc3\xa9", "\n\n" };
    struct string_match *m = string_match_new(strings, 3);
    REQUIRE(m);
    CHECK_INT(find_matched(m, "\xc3\xa9t\xc3\xa9", 5), 5);
    CHECK_INT(find_matched(m, "\xc3\xff\xfe", 3), 3);
    CHECK_INT(find_matched(m, "a\nb\n", 4), -1);
    string_match_free(m);
}

int main(void)
{
    RUN(test_random_strings);
    RUN(test_bytes_above_ascii);
    return tap_done();
}
