/* reader.c - the pull reader: what it takes, what it refuses, and where it says so. */
#include "json/json.h"
#include "support/tap.h"

static struct arena arena;
static struct json_reader reader;

static struct json_reader *reader_on_text(const char *s)
{
    arena_clear(&arena);
    json_reader_init(&reader, s, strlen(s), &arena);
    return &reader;
}

/* The whole text is one good value. */
static bool accepts_text(const char *s, size_t n)
{
    /* an exact copy: the sanitizer sees a read beyond the end */
    char *copy = malloc(n ? n : 1);
    if (!copy)
        return false;
    memcpy(copy, s, n);
    json_reader_init(&reader, copy, n, NULL);
    bool skipped = json_skip(&reader) && json_end(&reader);
    free(copy);
    return skipped;
}

static void test_an_object_as_in_the_header(void)
{
    struct json_reader *r =
        reader_on_text(" {\"a\" : -12 , \"x\":[{\"a\":[]}], \"b\":\"text\",\"c\":true} \n");
    struct json_str key, b = { NULL, 0 };
    int64_t a = 0;
    bool c = false;
    int others = 0;
    CHECK_INT(json_peek(r), JSON_OBJECT);
    CHECK(json_begin_object(r));
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "a"))
            json_int64(r, &a);
        else if (json_str_is(key, "b"))
            json_string(r, &b);
        else if (json_str_is(key, "c"))
            json_bool(r, &c);
        else
            others += json_skip(r);
    }
    CHECK(json_end(r));
    CHECK_INT(a, -12);
    CHECK(json_str_is(b, "text"));
    CHECK(c && others == 1);
    CHECK_STR(json_error(r), "");
}

static void test_grammar(void)
{
    static const char *const good[] = {
        "0",
        "-0",
        "1.5e-3",
        "true",
        "false",
        "null",
        "\"\"",
        "[]",
        "{}",
        "[[]]",
        "[1,2]",
        "[ 1 , 2 ]",
        "{\"a\":1,\"a\":2}",
        "\t\r\n 1 \n",
        "[null,true,{\"a\":[{}]}]",
        "\"\\u0000\"",
        "\"\x7f\"",
        "\"\\ud83d\\ude00\"",
        "\"\\uD83D\\uDE00\\/\\b\"",
        "1e400",
        "\"\xf0\x9f\x98\x80\"",
    };
    static const char *const bad[] = {
        "",
        " ",
        "tru",
        "nul",
        "fals",
        "True",
        "NaN",
        "Infinity",
        "-Infinity",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "[",
        "]",
        "{",
        "}",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "{1:2}",
        "{\"a\":1]",
        "{,}",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\ud800x\"",
        "\"\n\"",
        "\"\t\"",
        "'a'",
        "1 2",
        "[]x",
        "{}{}",
        "// x\n1",
        "\"\x80\"",
        "\"\xc0\x80\"",
        "\"\xed\xa0\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xe2\x82\"",
        "\xef\xbb\xbf{}",
        "\2401", /* octal: a hexadecimal escape would take the digit */
        "nullx",
        "[1,\"]",
        "1.e5",
        "--1",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!accepts_text(good[i], strlen(good[i])))
            TAP_FAIL("refused %s: %s", good[i], json_error(&reader));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (accepts_text(bad[i], strlen(bad[i])))
            TAP_FAIL("accepted %s", bad[i]);
    CHECK(!accepts_text("\"a\0b\"", 5));
    CHECK(!accepts_text("1\0", 2));
}

/* Every cut of a good text is refused, and none reads beyond its end. */
static void test_every_cut_is_refused(void)
{
    static const char text[] =
        "{\"k\\u00e9y\":[1.5e3,-2,true,null,\"a\\n\\ud83d\\ude00\xe2\x82\xac\"],"
        "\"long plain string to fill a vector\":{}}";
    CHECK(accepts_text(text, strlen(text)));
    for (size_t n = 0; n < strlen(text); n++)
        if (accepts_text(text, n))
            TAP_FAIL("accepted the first %zu bytes", n);
}

static void test_errors_name_the_place(void)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        { "[1 2]", "line 1, column 4: expected ',' or ']'" },
        { "{\"a\":\n  tru}", "line 2, column 3: expected true" },
        { "[1,\n2,\n\"x\x01\"]", "line 3, column 3: control character in a string" },
        { "{\"a\" 1}", "line 1, column 6: expected ':'" },
        { "{1}", "line 1, column 2: expected a name in quotes" },
        { "[01]", "line 1, column 2: malformed number" },
        { "[\"\xff\"]", "line 1, column 3: invalid UTF-8" },
        { "[\"\\q\"]", "line 1, column 3: unknown escape in a string" },
        { "[\"abc", "line 1, column 6: the string does not end" },
        { "", "line 1, column 1: expected a value, found the end of the text" },
        { "[1] x", "line 1, column 5: more text after the end" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader *r = reader_on_text(cases[i].text);
        CHECK(!(json_skip(r) && json_end(r)));
        CHECK_STR(json_error(r), cases[i].error);
    }
    struct json_reader *r = reader_on_text("{\"n\": \"x\"}");
    struct json_str key;
    int64_t v;
    json_begin_object(r);
    json_next_key(r, &key);
    CHECK(!json_int64(r, &v));
    CHECK_STR(json_error(r), "line 1, column 7: expected an integer, found a string");
    CHECK_INT(r->error_at, 6);
}

static void test_first_failure_stays(void)
{
    struct json_reader *r = reader_on_text("[1, x]");
    int64_t v = 7;
    double d = 7;
    bool b = true;
    struct json_str s;
    float *f;
    size_t n;
    CHECK(!json_begin_object(r));
    char first[160];
    snprintf(first, sizeof first, "%s", json_error(r));
    CHECK(!json_begin_array(r) && !json_next_item(r) && !json_next_key(r, &s));
    CHECK(!json_int64(r, &v) && !json_double(r, &d) && !json_bool(r, &b) && !json_null(r));
    CHECK(!json_string(r, &s) && !json_raw(r, &s) && !json_skip(r) && !json_end(r));
    CHECK(!json_array_float(r, &f, &n));
    CHECK_INT(json_peek(r), JSON_NONE);
    json_fail(r, "later");
    CHECK_STR(json_error(r), first);
    CHECK(v == 7 && d == 7 && b);
}

static void test_fail_from_outside(void)
{
    struct json_reader *r = reader_on_text("{\"a\":\n 5}");
    struct json_str key;
    int64_t v;
    json_begin_object(r);
    json_next_key(r, &key);
    json_int64(r, &v);
    json_fail(r, "a must be below %d", 5);
    CHECK_STR(json_error(r), "line 2, column 3: a must be below 5");
    CHECK(!json_next_key(r, &key));
    CHECK(!json_end(r));
}

static void test_integers(void)
{
    int64_t v;
    uint64_t u;
    CHECK(json_int64(reader_on_text("9223372036854775807"), &v) && v == INT64_MAX);
    CHECK(json_int64(reader_on_text("-9223372036854775808"), &v) && v == INT64_MIN);
    CHECK(json_int64(reader_on_text("3.0"), &v) && v == 3);
    CHECK(json_int64(reader_on_text("1e3"), &v) && v == 1000);
    CHECK(json_int64(reader_on_text("-0"), &v) && v == 0);
    CHECK(!json_int64(reader_on_text("9223372036854775808"), &v));
    CHECK_STR(json_error(&reader), "line 1, column 1: integer out of range");
    CHECK(!json_int64(reader_on_text("-9223372036854775809"), &v));
    CHECK(!json_int64(reader_on_text("1e19"), &v));
    CHECK(!json_int64(reader_on_text(" 3.5"), &v));
    CHECK_STR(json_error(&reader), "line 1, column 2: expected an integer, found a fraction");
    CHECK(!json_int64(reader_on_text("true"), &v));
    CHECK(json_uint64(reader_on_text("18446744073709551615"), &u) && u == UINT64_MAX);
    CHECK(!json_uint64(reader_on_text("18446744073709551616"), &u));
    CHECK(!json_uint64(reader_on_text("-1"), &u));
    CHECK(json_uint64(reader_on_text("-0"), &u) && u == 0);
}

static void test_doubles(void)
{
    double d;
    CHECK(json_double(reader_on_text("0.1"), &d) && d == 0.1);
    CHECK(json_double(reader_on_text("-0.0"), &d) && d == 0 && signbit(d));
    CHECK(json_double(reader_on_text("12"), &d) && d == 12);
    CHECK(!json_double(reader_on_text("1e309"), &d));
    CHECK_STR(json_error(&reader), "line 1, column 1: number out of range");
    CHECK(json_double(reader_on_text("1e-999"), &d) && d == 0);
    CHECK(!json_double(reader_on_text("null"), &d));
    CHECK(!json_double(reader_on_text("\"1\""), &d));
}

static void test_strings(void)
{
    static const char text[] = "\"plain and long enough for a vector\"";
    struct json_reader *r = reader_on_text(text);
    struct json_str s;
    char *c;
    CHECK(json_string(r, &s) && s.s == text + 1); /* borrowed */
    CHECK_INT(arena.used, 0);
    CHECK(json_string(
        reader_on_text("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00z\""), &s));
    CHECK_MEM(s.s, s.n, "a\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z", 20);
    CHECK(json_string(reader_on_text("\"a\\u0000b\""), &s));
    CHECK_MEM(s.s, s.n, "a\0b", 3);
    CHECK(json_string(reader_on_text("\"\""), &s) && s.n == 0);
    CHECK(json_cstring(reader_on_text("\"h\\u0069\""), &c));
    CHECK_STR(c, "hi");
    CHECK(json_cstring(reader_on_text("\"\""), &c));
    CHECK_STR(c, "");
    CHECK(!json_cstring(reader_on_text(" \"a\\u0000\""), &c));
    CHECK_STR(json_error(&reader), "line 1, column 2: the string contains a NUL character");
    /* keys take escapes too */
    struct json_str key;
    r = reader_on_text("{\"\\u0061b\":1}");
    json_begin_object(r);
    CHECK(json_next_key(r, &key) && json_str_is(key, "ab"));
    CHECK(!json_str_is(key, "a") && !json_str_is(key, "abc"));
}

/* Special bytes are found at every offset of the vector scan. */
static void test_string_offsets(void)
{
    char text[80];
    for (size_t n = 0; n < 60; n++) {
        memset(text, 'a', sizeof text);
        text[0] = '"';
        text[n + 1] = '"';
        text[n + 2] = '\0';
        struct json_str s;
        CHECK(json_string(reader_on_text(text), &s) && s.n == n);
        for (size_t i = 1; i <= n; i++) {
            text[i] = 0x1f;
            CHECK(!accepts_text(text, n + 2));
            text[i] = (char)0x80;
            CHECK(!accepts_text(text, n + 2));
            text[i] = '\\';
            CHECK(!accepts_text(text, n + 2) || text[i + 1] == '\\');
            text[i] = ' ';
            CHECK(accepts_text(text, n + 2));
            text[i] = 'a';
        }
    }
}

static void test_raw_and_skip(void)
{
    struct json_reader *r = reader_on_text("[ {\"a\":[1, 2]} , \"x\\n\" , 5.0e1,null]");
    struct json_str s;
    json_begin_array(r);
    CHECK(json_next_item(r) && json_raw(r, &s) && json_str_is(s, "{\"a\":[1, 2]}"));
    CHECK(json_next_item(r) && json_raw(r, &s) && json_str_is(s, "\"x\\n\""));
    CHECK(json_next_item(r) && json_raw(r, &s) && json_str_is(s, "5.0e1"));
    CHECK(json_next_item(r) && json_skip(r));
    CHECK(!json_next_item(r) && json_end(r));
    CHECK_INT(arena.used, 0); /* neither allocates */
    CHECK(!json_raw(reader_on_text("{\"a\":[1,}"), &s));
}

static void test_depth(void)
{
    char text[200];
    for (int depth = 1; depth < 80; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        CHECK_INT(accepts_text(text, (size_t)(2 * depth)), depth <= 64);
    }
    CHECK(strstr(json_error(&reader), "nested deeper than 64 levels"));
    char *many = malloc(1000000);
    REQUIRE(many);
    memset(many, '[', 1000000);
    CHECK(!accepts_text(many, 1000000));
    free(many);
}

static void test_calls_out_of_place(void)
{
    struct json_str key;
    CHECK(!json_next_item(reader_on_text("1")));
    struct json_reader *r = reader_on_text("[\"a\":1}");
    json_begin_array(r);
    CHECK(!json_next_key(r, &key));
    CHECK_STR(json_error(r), "line 1, column 2: not inside an object");
    r = reader_on_text("{1]");
    json_begin_object(r);
    CHECK(!json_next_item(r));
    CHECK_STR(json_error(r), "line 1, column 2: not inside an array");
    r = reader_on_text("{\"a\":1,\"b\":2}");
    json_begin_object(r);
    CHECK(json_next_key(r, &key));
    CHECK(!json_next_key(r, &key)); /* the value was not read */
    CHECK(r->failed);
    r = reader_on_text("[1");
    json_begin_array(r);
    json_next_item(r);
    json_skip(r);
    CHECK(!json_end(r));
    CHECK_STR(json_error(r), "line 1, column 3: expected ']'");
}

static void test_without_arena(void)
{
    struct json_reader r;
    struct json_str s;
    int64_t *v;
    size_t n;
    json_reader_init(&r, "\"plain\"", 7, NULL);
    CHECK(json_string(&r, &s));
    json_reader_init(&r, "\"\\n\"", 4, NULL);
    CHECK(!json_string(&r, &s));
    json_reader_init(&r, "[1]", 3, NULL);
    CHECK(!json_array_int64(&r, &v, &n));
    json_reader_init(&r, NULL, 0, NULL);
    CHECK_INT(json_peek(&r), JSON_NONE);
    CHECK(!json_skip(&r));
}

int main(void)
{
    arena_init(&arena, 1 << 20);
    RUN(test_an_object_as_in_the_header);
    RUN(test_grammar);
    RUN(test_every_cut_is_refused);
    RUN(test_errors_name_the_place);
    RUN(test_first_failure_stays);
    RUN(test_fail_from_outside);
    RUN(test_integers);
    RUN(test_doubles);
    RUN(test_strings);
    RUN(test_string_offsets);
    RUN(test_raw_and_skip);
    RUN(test_depth);
    RUN(test_calls_out_of_place);
    RUN(test_without_arena);
    arena_clear(&arena);
    return tap_done();
}
