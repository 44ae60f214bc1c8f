/* split.c - hand-written matchers against PCRE2 on the same pattern, and cases by hand. */
#include "tokenizer/split/split.c"
#include "base/rand.h"
#include "support/tap.h"
#include "tokenizer/split/split_block.c"
#include "tokenizer/split/split_regex.h"
#include "unicode/unicode.h"

#include "base/utf8.h"

/* "a|b|c" of a text cut by a matcher. */
static const char *cut_text(split_fn *next, const char *text)
{
    static char out[512];
    const unsigned char *p = (const unsigned char *)text, *end = p + strlen(text);
    size_t at = 0;
    while (p < end) {
        const unsigned char *q = next(p, end);
        at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%.*s", at ? "|" : "", (int)(q - p),
                               (const char *)p);
        p = q;
    }
    out[at] = '\0';
    return out;
}

static void test_llama3_cases(void)
{
    CHECK_STR(cut_text(split_llama3, "Hello world  x"), "Hello| world| | x");
    CHECK_STR(cut_text(split_llama3, "don't DON'T"), "don|'t| DON|'T");
    CHECK_STR(cut_text(split_llama3, "'sfoo"), "'s|foo");
    CHECK_STR(cut_text(split_llama3, "'Llama 'x"), "'Ll|ama| '|x");
    CHECK_STR(cut_text(split_llama3, "don'\xC5\xBF"
                                     "a"),
              "don|'\xC5\xBF|a");
    CHECK_STR(cut_text(split_llama3, "1234567"), "123|456|7");
    CHECK_STR(cut_text(split_llama3, "a  1"), "a| | |1");
    CHECK_STR(cut_text(split_llama3, "x!!\n\n y"), "x|!!\n\n| y");
    CHECK_STR(cut_text(split_llama3, "a \n  b"), "a| \n| | b");
    CHECK_STR(cut_text(split_llama3, "a\n  "), "a|\n|  ");
    CHECK_STR(cut_text(split_cl100k_possessive, "a\n  "), "a|\n  ");
    CHECK_STR(cut_text(split_llama3, "\xC2\xA0hi \xC2\xA0"), "\xC2\xA0hi| \xC2\xA0");
}

static void test_qwen_cases(void)
{
    CHECK_STR(cut_text(split_qwen2, "a123"), "a|1|2|3");
    /* a vowel sign is no letter: it parts words for Qwen2 and not for Qwen3.5 */
    CHECK_STR(cut_text(split_qwen2, "\xE0\xA4\x95\xE0\xA4\xBF"), "\xE0\xA4\x95|\xE0\xA4\xBF");
    CHECK_STR(cut_text(split_qwen35, "\xE0\xA4\x95\xE0\xA4\xBF"), "\xE0\xA4\x95\xE0\xA4\xBF");
}

static void test_o200k_cases(void)
{
    CHECK_STR(cut_text(split_o200k, "camelCaseHTTP's //x"), "camel|Case|HTTP's| //|x");
    CHECK_STR(cut_text(split_o200k, "It's  HELLOworld"), "It's| | HELLOworld");
    CHECK_STR(cut_text(split_tekken, "It's 12"), "It|'s| |1|2");
    CHECK_STR(cut_text(split_kimi, "ab\xE6\xBC\xA2\xE5\xAD\x97"
                                   "cd"),
              "ab|\xE6\xBC\xA2\xE5\xAD\x97|cd");
}

static void test_deepseek_cases(void)
{
    CHECK_STR(cut_text(split_deepseek, "a  1"), "a|  |1");
    CHECK_STR(cut_text(split_deepseek, "x_foo.bar!!"), "x|_foo|.bar|!!");
    CHECK_STR(cut_text(split_deepseek, "ab\xE6\xBC\xA2\xE3\x81\x8B"
                                       "1234"),
              "ab|\xE6\xBC\xA2\xE3\x81\x8B|123|4");
    /* the third pattern goes through runs of kana, too: a middle dot, an unassigned character */
    CHECK_STR(cut_text(split_deepseek, "\xE3\x82\xAB\xE3\x83\xBB\xE3\x82\xAB"),
              "\xE3\x82\xAB|\xE3\x83\xBB|\xE3\x82\xAB");
    CHECK_STR(cut_text(split_deepseek, "\xE3\x82\xAB\xE3\x82\x97\xE3\x82\xAB"),
              "\xE3\x82\xAB|\xE3\x82\x97\xE3\x82\xAB");
    CHECK_STR(cut_text(split_deepseek, "1\x01\x02"
                                       "3"),
              "1|\x01\x02|3"); /* a gap is a piece */
}

static void test_choice_by_text(void)
{
    const char *almost = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+";
    CHECK(split_known(split_cl100k_pattern, strlen(split_cl100k_pattern)) == split_llama3);
    CHECK(split_known(split_cl100k_pattern, strlen(split_cl100k_pattern) - 1) == NULL);
    CHECK(split_known(almost, strlen(almost)) == NULL);
    CHECK(split_known("\\p{N}{1,3}", 10) == NULL);
    size_t lengths[3] = { strlen(deepseek[0]), strlen(deepseek[1]), strlen(deepseek[2]) };
    CHECK(split_known_chain(deepseek, lengths, 3) == split_deepseek);
    CHECK(split_known_chain(deepseek, lengths, 2) == NULL);
}

static const char *const bits[] = { " ",
                                    "  ",
                                    "\n",
                                    "\r\n",
                                    "\t",
                                    "'s",
                                    "'LL",
                                    "'",
                                    "12",
                                    "1",
                                    "a",
                                    "Z",
                                    "Ab",
                                    "_",
                                    "/",
                                    "!?",
                                    "\xC5\xBF",
                                    "\xCC\x81",
                                    "\xC2\xA0",
                                    "\xE3\x80\x80",
                                    "\xE6\xBC\xA2",
                                    "\xE3\x81\x8B",
                                    "\xCA\xB0",
                                    "\xC7\x85",
                                    "\xF0\x9F\x98\x80",
                                    "\x01",
                                    "\xE3\x82\x97",
                                    "\xE3\x83\xBB",
                                    "\xE3\x82\x99",
                                    "\xE3\x80\x87",
                                    "\xE2\xBA\x80",
                                    "\xEF\xBB\xBF",
                                    "\xC2\x85" };

static size_t random_text(struct rng *r, char out[256])
{
    size_t n = 0;
    int parts = 1 + (int)(rng_next(r) % 14);
    for (int i = 0; i < parts; i++) {
        if (rng_next(r) % 4) {
            const char *bit = bits[rng_next(r) % (sizeof(bits) / sizeof(bits[0]))];
            memcpy(out + n, bit, strlen(bit));
            n += strlen(bit);
        } else {
            uint32_t cp = (uint32_t)(rng_next(r) % (rng_next(r) % 2 ? 0x3000 : 0x110000));
            if (cp >= 0xD800 && cp < 0xE000)
                cp = '?';
            n += (size_t)utf8_encode(cp, out + n);
        }
    }
    return n;
}

/* First differing boundary of the two ways, or -1.  A part that the regular expression leaves
 * out is a piece as well. */
static int compare_with_regex(split_fn *next, struct split_regex **regexes, size_t n_regexes,
                              struct split_regex_ctx *ctx, const char *text, size_t n)
{
    static size_t ends[2][512];
    size_t count = 1, k = 0;
    ends[0][0] = n;
    for (size_t stage = 0; stage < n_regexes; stage++) {
        size_t *from = ends[stage % 2], *to = ends[(stage + 1) % 2], made = 0, start = 0;
        for (size_t i = 0; i < count; start = from[i++]) {
            size_t at = 0, begin, end, len = from[i] - start;
            while (at < len && split_regex_find(regexes[stage], ctx, text + start, len, at, &begin,
                                                &end) == 1) {
                if (begin > at)
                    to[made++] = start + begin;
                to[made++] = start + end;
                at = end;
            }
            if (at < len)
                to[made++] = start + len;
        }
        count = made;
    }
    const size_t *want = ends[n_regexes % 2];
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    for (; p < end; k++) {
        p = next(p, end);
        if (k >= count || (size_t)(p - (const unsigned char *)text) != want[k])
            return (int)(p - (const unsigned char *)text);
    }
    return -1;
}

static void run_against(const char *const *patterns, size_t n, split_fn *next, bool ruby,
                        int rounds)
{
    struct split_regex *regexes[3];
    struct split_regex_ctx ctx = { 0 };
    struct rng rng;
    int differences = 0;
    rng_seed(&rng, 42);
    for (size_t i = 0; i < n; i++) {
        tinker_error err;
        regexes[i] = split_regex_new(patterns[i], strlen(patterns[i]), ruby, &err);
        if (!regexes[i]) {
            TAP_FAIL("%s", err.message);
            return;
        }
    }
    for (int i = 0; i < rounds && differences < 3; i++) {
        char text[256];
        size_t len = random_text(&rng, text);
        int at = compare_with_regex(next, regexes, n, &ctx, text, len);
        if (at >= 0) {
            differences++;
            TAP_FAIL("pattern %.30s: cut at byte %d of \"%.*s\"", patterns[0], at, (int)len, text);
        }
    }
    for (size_t i = 0; i < n; i++)
        split_regex_free(regexes[i]);
    split_regex_ctx_clear(&ctx);
}

static void test_against_pcre2(void)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        bool ruby = strchr(known[i].pattern, '$') == NULL;
        run_against(&known[i].pattern, 1, known[i].next, ruby, 3000);
    }
    run_against(deepseek, 3, split_deepseek, true, 3000);
}

/* Mostly ASCII, made of what the rules of blocks are about; up to 400 bytes. */
static size_t random_ascii(struct rng *r, unsigned char out[512])
{
    static const char chars[] = "aabcdZZQ 0123456789 \t\n\r\v/'!.-_\x01\x1C\x7F  sStdrelvm''";
    size_t n = 0, want = rng_next(r) % 400;
    while (n < want) {
        size_t run = 1 + rng_next(r) % (rng_next(r) % 8 ? 3 : 90);
        unsigned char c = (unsigned char)chars[rng_next(r) % (sizeof(chars) - 1)];
        if (rng_next(r) % 40 == 0) {
            const char *bit = bits[rng_next(r) % (sizeof(bits) / sizeof(bits[0]))];
            memcpy(out + n, bit, strlen(bit));
            n += strlen(bit);
        } else if (rng_next(r) % 4 == 0) {
            for (size_t i = 0; i < run; i++)
                out[n++] = c;
        } else {
            out[n++] = c;
        }
    }
    return n;
}

/* Blocks, read in one way or the other, are cut as the matcher does, whatever the text, its end, and
 * the room for pieces. */
static void test_blocks_cut_as_the_matcher(void)
{
    const unsigned char *starts[130];
    struct rng rng;
    rng_seed(&rng, 7);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        split_fn *next = known[i].next;
        int wrong = 0;
        for (int round = 0; round < 20000 && !wrong; round++) {
            unsigned char text[512];
            size_t n = random_ascii(&rng, text), max = 1 + rng_next(&rng) % 128;
            const unsigned char *p = text, *end = text + n;
            while (p < end && !wrong) {
                size_t k = (round % 2 ? split_many : cut_narrow)(next, split_rules_of(next), p, end,
                                                                 starts, max);
                wrong = k == 0 || k > max || starts[0] != p;
                for (size_t j = 0; j < k && !wrong; j++)
                    wrong = next(starts[j], end) != starts[j + 1];
                p = starts[k];
            }
            if (wrong)
                TAP_FAIL("pattern %.30s: \"%.*s\"", known[i].pattern, (int)n, (char *)text);
        }
    }
    CHECK(split_rules_of(split_o200k) != NULL && split_rules_of(split_deepseek) == NULL);
}

static void test_long_runs_are_linear(void)
{
    size_t n = 1000000;
    char *text = malloc(n);
    static split_fn *const all[] = { split_gpt2, split_llama3, split_o200k, split_kimi,
                                     split_deepseek };
    REQUIRE(text != NULL);
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        static const char fill[] = " a\n1-";
        for (size_t i = 0; fill[i]; i++) {
            memset(text, fill[i], n);
            const unsigned char *p = (const unsigned char *)text, *end = p + n;
            while (p < end) /* quadratic time would not come back */
                p = all[k](p, end);
            CHECK(p == end);
            const unsigned char *starts[65];
            for (p = (const unsigned char *)text; p < end;)
                p = starts[split_many(all[k], split_rules_of(all[k]), p, end, starts, 64)];
            CHECK(p == end);
        }
    }
    free(text);
}

static void test_regex_refuses(void)
{
    static const char *const bad[] = {
        "(", "[a", "\\p{Nonsense}", "[a[b]]", "a\\", "[a&&b]", "\\h"
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tinker_error err = { 0 };
        struct split_regex *r = split_regex_new(bad[i], strlen(bad[i]), true, &err);
        CHECK(r == NULL);
        CHECK_INT(err.status, TINKER_EINVAL);
        CHECK(strstr(err.message, "pattern") != NULL);
        split_regex_free(r);
    }
}

static void test_regex_knows_new_characters(void)
{
    /* U+1C89, a capital letter of Unicode 16 */
    struct split_regex *r = split_regex_new("\\p{Lu}+|\\s", 10, true, NULL);
    struct split_regex_ctx ctx = { 0 };
    size_t begin, end;
    REQUIRE(r != NULL);
    CHECK_INT(split_regex_find(r, &ctx, "a\xE1\xB2\x89", 4, 0, &begin, &end), 1);
    CHECK_INT(begin, 1);
    CHECK_INT(end, 4);
    CHECK_INT(split_regex_find(r, &ctx, "\xE1\xA0\x8E", 3, 0, &begin, &end), 0); /* U+180E */
    CHECK_INT(split_regex_find(r, &ctx, "\xC2\x85", 2, 0, &begin, &end), 1);     /* U+0085 */
    split_regex_ctx_clear(&ctx);
    split_regex_free(r);
}

static void test_regex_budget(void)
{
    /* catastrophic by design: it must end, and say so */
    struct split_regex *r = split_regex_new("(a+)+b(c+)+$|(x+x+)+y", 21, true, NULL);
    struct split_regex_ctx ctx = { 0 };
    char text[64];
    size_t begin, end;
    REQUIRE(r != NULL);
    memset(text, 'x', sizeof(text));
    CHECK(split_regex_find(r, &ctx, text, sizeof(text), 0, &begin, &end) <= 0);
    split_regex_ctx_clear(&ctx);
    split_regex_free(r);
}

int main(void)
{
    RUN(test_llama3_cases);
    RUN(test_qwen_cases);
    RUN(test_o200k_cases);
    RUN(test_deepseek_cases);
    RUN(test_choice_by_text);
    RUN(test_against_pcre2);
    RUN(test_blocks_cut_as_the_matcher);
    RUN(test_long_runs_are_linear);
    RUN(test_regex_refuses);
    RUN(test_regex_knows_new_characters);
    RUN(test_regex_budget);
    return tap_done();
}
