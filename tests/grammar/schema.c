/* Schemas to automata: what each accepts and refuses, random walks that always end, masks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/rand.h"
#include "grammar/grammar.h"
#include "json/json.h"
#include "support/tap.h"

static bool accepts(struct grammar *g, const char *text)
{
    int32_t s = grammar_start(g);
    for (const char *p = text; *p && s >= 0; p++)
        s = grammar_next(g, s, (unsigned char)*p);
    return s >= 0 && grammar_may_end(g, s);
}

static const struct {
    const char *schema;
    const char *yes[6], *no[8];
} cases[] = {
    { "{\"type\":\"boolean\"}", { "true", "false" }, { "null", "tru", "truee", "" } },
    { "{\"type\":[\"integer\",\"null\"]}", { "0", "-12", "null" }, { "01", "1.5", "--1", "+1" } },
    { "{\"type\":\"number\"}", { "0", "-1.25", "3e5", "1E-3" }, { ".5", "1.", "1e", "1e999" } },
    { "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
      { "-3", "0", "7", "99", "120" },
      { "-4", "121", "1000", "007", "-30" } },
    { "{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":12}",
      { "10", "11" },
      { "9", "12", "1" } },
    { "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
      { "0", "0.5", "1", "1.0", "0.999" },
      { "1.5", "-0.5", "2", "1.01" } },
    { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
      { "\"ab\"", "\"abc\"", "\"\xc3\xa9\xe2\x82\xac\"", "\"\\n\\\"\"", "\"\\u00e9x\"" },
      { "\"a\"", "\"abcd\"", "\"\xc3\xa9\"", "\"ab", "\"\xff\xff\"", "\"\\ud800x\"" } },
    { "{\"pattern\":\"^[a-c]+\\\\d{2}$\"}", { "\"a12\"", "\"abc99\"" }, { "\"12\"", "\"d12\"" } },
    { "{\"pattern\":\"b+\"}", { "\"abbc\"", "\"b\"" }, { "\"ac\"", "\"\"" } },
    { "{\"pattern\":\"^(?:x|\\\"y)*$\"}", { "\"\"", "\"xx\\\"y\"" }, { "\"y\"", "\"\"y\"" } },
    { "{\"enum\":[\"a b\",1,null,{\"k\": [1, 2]}]}",
      { "\"a b\"", "1", "null", "{\"k\":[1,2]}" },
      { "\"ab\"", "2", "{}" } },
    { "{\"type\":\"string\",\"enum\":[\"a\",1]}", { "\"a\"" }, { "1" } },
    { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"},"
      "\"c\":{\"const\":5}},\"required\":[\"b\"],\"additionalProperties\":false}",
      { "{\"b\":null}", "{\"a\":1,\"b\":null}", "{\"b\": null, \"c\": 5}",
        "{\"a\": 1, \"b\": null, \"c\": 5}" },
      { "{}", "{\"a\":1}", "{\"b\":null,}", "{,\"b\":null}", "{\"b\":null,\"a\":1}",
        "{\"b\":null \"c\":5}", "{\"b\":1}" } },
    { "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},"
      "\"additionalProperties\":{\"type\":\"boolean\"}}",
      { "{}", "{\"ab\":1}", "{\"a\":true}", "{\"ab\":1,\"abc\":false}", "{\"b\":true,\"c\":true}" },
      { "{\"ab\":true}", "{\"a\":1}", "{\"a\":true,\"ab\":true}", "{\"\\u0061b\":true}" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
      { "[1]", "[1,2]", "[1, 2, 3]" },
      { "[]", "[1,2,3,4]", "[1,]", "[,1]" } },
    { "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],"
      "\"items\":{\"type\":\"integer\"},\"maxItems\":3}",
      { "[]", "[null]", "[null,true]", "[null,true,4]" },
      { "[true]", "[null,true,4,5]", "[null,4]" } },
    { "{\"maxItems\":0}", { "[]" }, { "[1]" } },
    { "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":1},{\"type\":\"integer\"}]}",
      { "\"a\"", "12" },
      { "\"ab\"", "null" } },
    { "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", { "\"a\"", "null" }, { "1" } },
    { "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
      "\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
      "\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/n\"}",
      { "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}" },
      { "{\"v\":1}", "{\"v\":1,\"next\":{}}" } },
    { "{}",
      { "{\"a\": [1, {\"b\": null}]}", "[]", "\"x\"", "-1.5e3", "true" },
      { "{a:1}", "tru" } },
    { "true", { "1", "[]" }, { "" } },
};

static void schemas_accept_what_they_allow(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinker_error err = { 0 };
        struct grammar *g = grammar_from_schema(cases[i].schema, strlen(cases[i].schema), &err);
        if (!g) {
            TAP_FAIL("%s: %s", cases[i].schema, err.message);
            continue;
        }
        for (size_t k = 0; k < 6 && cases[i].yes[k]; k++)
            if (!accepts(g, cases[i].yes[k]))
                TAP_FAIL("%s does not take %s", cases[i].schema, cases[i].yes[k]);
        for (size_t k = 0; k < 8 && cases[i].no[k]; k++)
            if (accepts(g, cases[i].no[k]))
                TAP_FAIL("%s takes %s", cases[i].schema, cases[i].no[k]);
        grammar_free(g);
    }
}

static void the_rest_is_refused_by_name(void)
{
    static const char *const bad[][2] = {
        { "{\"not\":{}}", "not" },
        { "{\"patternProperties\":{}}", "patternProperties" },
        { "{\"uniqueItems\":true}", "uniqueItems" },
        { "{\"multipleOf\":3}", "multipleOf" },
        { "{\"allOf\":[{},{}]}", "allOf" },
        { "{\"oneOf\":[{\"type\":\"string\"},{\"maxLength\":3}]}", "oneOf" },
        { "{\"enum\":[1],\"minimum\":0}", "minimum" },
        { "{\"pattern\":\"(?=a)\"}", "pattern" },
        { "{\"pattern\":\"a\",\"minLength\":3}", "minLength" },
        { "{\"$ref\":\"#/$defs/none\"}", "none" },
        { "{\"$ref\":\"http://x\"}", "$ref" },
        { "{\"type\":\"text\"}", "type" },
        { "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no value" },
        { "{\"type\":\"number\",\"minimum\":0,\"maximum\":-4e27}", "15 digits" },
        { "{\"type\":\"integer\",\"exclusiveMinimum\":1e300}", "15 digits" },
        { "false", "no value" },
        { "{\"$ref\":\"#\"}", "no value" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
          "no value" },
        { "{\"required\":[\"a\"],\"additionalProperties\":false}", "\"a\"" },
        { "{\"minItems\":\"x\"}", "minItems" },
        { "[1]", "object" },
        { "{\"type\":", "column" },
        { "", "column" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tinker_error err = { 0 };
        struct grammar *g = grammar_from_schema(bad[i][0], strlen(bad[i][0]), &err);
        if (g || err.status != TINKER_EINVAL || !strstr(err.message, bad[i][1]))
            TAP_FAIL("%s: %s", bad[i][0], g ? "taken" : err.message);
        grammar_free(g);
    }
}

/* ---- random schemas ----------------------------------------------------------------------------- */

static uint64_t seed, counter;

static unsigned pick(unsigned n)
{
    return (unsigned)(philox_uniform(seed, counter++) * n);
}

static void random_schema(char *out, size_t size, int depth)
{
    char inner[2][2000];
    switch (pick(depth > 0 ? 10 : 6)) {
    case 0:
        snprintf(out, size, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}",
                 (int)pick(200) - 100, 100 + (int)pick(5000));
        return;
    case 1:
        snprintf(out, size, "{\"type\":\"number\"}");
        return;
    case 2:
        snprintf(out, size, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", pick(3),
                 3 + pick(9));
        return;
    case 3:
        snprintf(out, size, "{\"enum\":[\"red\",\"green\",%u,null]}", pick(99));
        return;
    case 4:
        snprintf(out, size, "{\"type\":[\"boolean\",\"null\"]}");
        return;
    case 5:
        snprintf(out, size, "{\"type\":\"string\",\"pattern\":\"^[a-f]{2,%u}-?\\\\d+$\"}",
                 3 + pick(4));
        return;
    case 6:
        random_schema(inner[0], sizeof inner[0], depth - 1);
        snprintf(out, size, "{\"type\":\"array\",\"items\":%s,\"minItems\":%u,\"maxItems\":%u}",
                 inner[0], pick(3), 2 + pick(3));
        return;
    case 7:
        random_schema(inner[0], sizeof inner[0], depth - 1);
        random_schema(inner[1], sizeof inner[1], depth - 1);
        snprintf(out, size, "{\"anyOf\":[%s,%s]}", inner[0], inner[1]);
        return;
    default:
        random_schema(inner[0], sizeof inner[0], depth - 1);
        random_schema(inner[1], sizeof inner[1], depth - 1);
        snprintf(
            out, size,
            "{\"type\":\"object\",\"properties\":{\"a\":%s,\"key two\":%s},\"required\":[%s]%s}",
            inner[0], inner[1], pick(2) ? "\"key two\"" : "",
            pick(3) ? "" : ",\"additionalProperties\":{\"type\":\"integer\"}");
    }
}

/* A text of random bytes among those that may come; from `hurry` bytes on the ones that end things
 * come first.  Every text ends and is JSON. */
static void check_walk(struct grammar *g, const char *schema)
{
    enum { HURRY = 200, MOST = 3000 };
    char text[MOST + 1];
    size_t n = 0;
    int32_t s = grammar_start(g);
    while (s >= 0 && !grammar_must_end(g, s) && n < MOST) {
        unsigned char may[256];
        size_t k = 0;
        bool ends = grammar_may_end(g, s);
        for (int c = 0; c < 256; c++)
            if (grammar_next(g, s, (unsigned char)c) >= 0)
                may[k++] = (unsigned char)c;
        if (ends && (n > HURRY || pick(3) == 0))
            break;
        if (k == 0) {
            TAP_FAIL("%s: stuck after %.*s", schema, (int)n, text);
            return;
        }
        unsigned char c = may[pick((unsigned)k)];
        for (size_t i = 0; n > HURRY && i < k; i++)
            if (may[i] == '"' || (c != '"' && (may[i] == ']' || may[i] == '}')))
                c = may[i];
        text[n++] = (char)c;
        s = grammar_next(g, s, c);
    }
    struct arena arena;
    struct json_reader r;
    arena_init(&arena, 1 << 20);
    json_reader_init(&r, text, n, &arena);
    if (s < 0 || !grammar_may_end(g, s) || !json_skip(&r) || !json_end(&r))
        TAP_FAIL("%s: %.*s: %s", schema, (int)n, text, json_error(&r));
    arena_clear(&arena);
}

static void random_walks_end_as_json(void)
{
    char schema[20000];
    for (seed = 1; seed <= 1000; seed++) {
        tinker_error err = { 0 };
        counter = 0;
        random_schema(schema, sizeof schema, 3);
        struct grammar *g = grammar_from_schema(schema, strlen(schema), &err);
        if (!g) {
            TAP_FAIL("%s: %s", schema, err.message);
            continue;
        }
        for (int i = 0; i < 3; i++)
            check_walk(g, schema);
        grammar_free(g);
    }
}

/* ---- masks --------------------------------------------------------------------------------------- */

static const char *const words[] = { "{",    "\"a\"", "\"",   ":",   " ",    "1",
                                     "12",   ", ",    "}",    "{\"", "a\":", "\":1}",
                                     "\xc3", "\xa9",  "null", "nul", "",     "a" };
enum { N_WORDS = sizeof words / sizeof *words };

static const char *word_bytes(const void *state, int32_t token, size_t *n)
{
    (void)state;
    *n = strlen(words[token]);
    return words[token];
}

/* A mask has exactly the tokens whose bytes can be read, at every state that they lead to. */
static void masks_are_those_of_the_bytes(void)
{
    static const char schema[] = "{\"type\":\"object\",\"additionalProperties\":"
                                 "{\"type\":[\"integer\",\"null\"]}}";
    tinker_error err = { 0 };
    struct grammar *g = grammar_from_schema(schema, strlen(schema), &err);
    struct vocabulary *v = vocabulary_new(N_WORDS, word_bytes, NULL, &err);
    REQUIRE(g && v);
    CHECK_INT(vocabulary_words(v), 1);
    for (seed = 1; seed <= 200; seed++) {
        int32_t s = grammar_start(g);
        counter = 0;
        for (int step = 0; step < 20 && !grammar_must_end(g, s); step++) {
            uint64_t mask[1], again[1];
            CHECK(grammar_mask(g, v, s, mask) && grammar_mask(g, v, s, again));
            CHECK(mask[0] == again[0]);
            int32_t may[N_WORDS];
            unsigned n = 0;
            for (int32_t t = 0; t < N_WORDS; t++) {
                int32_t to = s;
                for (const char *p = words[t]; *p && to >= 0; p++)
                    to = grammar_next(g, to, (unsigned char)*p);
                bool fits = to >= 0 && *words[t];
                CHECK_INT(mask[0] >> t & 1, fits);
                CHECK_INT(grammar_next_token(g, v, s, t), *words[t] ? to : GRAMMAR_DEAD);
                if (fits)
                    may[n++] = t;
            }
            if (n == 0)
                break;
            s = grammar_next_token(g, v, s, may[pick(n)]);
        }
    }
    vocabulary_free(v);
    grammar_free(g);
}

/* A text of `n` times `part` between two others. */
static char *repeated(const char *before, const char *part, size_t n, const char *after)
{
    size_t len = strlen(part), head = strlen(before), tail = strlen(after);
    char *out = malloc(head + len * n + tail + 1);
    memcpy(out, before, head);
    for (size_t i = 0; i < n; i++)
        memcpy(out + head + i * len, part, len);
    memcpy(out + head + n * len, after, tail + 1);
    return out;
}

/* Depth and counts come from outside: no recursion per part, no work per count, no quadratic sets. */
static void patterns_of_any_size_are_followed_or_refused(void)
{
    static const struct {
        const char *before, *part;
        size_t n;
        const char *after, *yes, *no;
    } big[] = {
        { "{\"pattern\":\"^(?:", "|", 90000, "b)$\"}", "\"b\"", "\"c\"" },
        { "{\"pattern\":\"^", "a?", 20000, "$\"}", "\"aaa\"", "\"ab\"" },
        { "{\"pattern\":\"^(a?){99999}", "", 0, "$\"}", "\"aaa\"", "\"ab\"" },
        { "{\"pattern\":\"^(?:(?:a?){999}b?){9999}", "", 0, "$\"}", "\"abbaa\"", "\"c\"" },
        { "{\"pattern\":\"^(?:a|aa){1,99999}", "", 0, "$\"}", "\"aaaaaaa\"", "\"\"" },
        { "{\"pattern\":\"xy", "|", 200, "z\"}", "\"aa\"", "aa" },
        { "{\"enum\":[0", ",1", 20000, ",23]}", "23", "2" },
    };
    for (size_t i = 0; i < ARRAY_LEN(big); i++) {
        tinker_error err = { 0 };
        char *schema = repeated(big[i].before, big[i].part, big[i].n, big[i].after);
        struct grammar *g = grammar_from_schema(schema, strlen(schema), &err);
        REQUIRE(g != NULL);
        CHECK(accepts(g, big[i].yes));
        CHECK(!accepts(g, big[i].no));
        grammar_free(g);
        free(schema);
    }
    /* More than there is room for, told as such. */
    char *schema = repeated("{\"pattern\":\"^", "(?:a|b|c)", 100000, "$\"}");
    tinker_error err = { 0 };
    CHECK(grammar_from_schema(schema, strlen(schema), &err) == NULL);
    CHECK_STR(err.message, "json_schema: it is too large");
    free(schema);
}

/* Reads bytes of `text`, and at each asks for all others, too, as a mask does: how many before the grammar has no more
 * room. */
static size_t read_with_masks(struct grammar *g, const char *text, size_t n)
{
    int32_t s = grammar_start(g);
    for (size_t i = 0; i < n; i++) {
        for (int c = 0; c < 256; c++)
            if (s < 0 || grammar_next(g, s, (unsigned char)c) == GRAMMAR_NO_MEMORY)
                return i;
        s = grammar_next(g, s, (unsigned char)text[i % strlen(text)]);
    }
    return n;
}

/* Two counts in each other have as many states at a time as there are ways to divide a text between them: a second
 * of work for 300 bytes.  Such a grammar ends; one of many texts with a common beginning does not. */
static void large_closures_have_a_limit(void)
{
    tinker_error err = { 0 };
    const char *two = "{\"pattern\":\"^(o{1,99999}oa?){9999}$\"}";
    struct grammar *g = grammar_from_schema(two, strlen(two), &err);
    REQUIRE(g != NULL);
    size_t n = grammar_next(g, grammar_start(g), '"') >= 0 ? read_with_masks(g, "\"", 1) : 0;
    CHECK_INT(n, 1);
    int32_t s = grammar_next(g, grammar_start(g), '"');
    for (n = 0; n < 4000 && s >= 0; n++)
        s = grammar_next(g, s, 'o');
    CHECK(n > 100 && n < 1000);
    CHECK_INT(s, GRAMMAR_NO_MEMORY);
    grammar_free(g);

    char *many = malloc(1 << 20), *at = many, text[64];
    at += sprintf(at, "{\"enum\":[");
    for (int i = 0; i < 10000; i++)
        at += sprintf(at, "%s\"https://example.com/%04d\"", i ? "," : "", i);
    sprintf(at, "]}");
    g = grammar_from_schema(many, strlen(many), &err);
    REQUIRE(g != NULL);
    for (int i = 0; i < 10000; i += 999) {
        size_t len = (size_t)sprintf(text, "\"https://example.com/%04d\"", i);
        CHECK_INT(read_with_masks(g, text, len), len);
    }
    grammar_free(g);
    free(many);
}

/* Sixty kinds of an event, told apart by a constant: as pydantic writes a discriminated union. */
static void one_of_many_objects_is_compiled(void)
{
    char *schema = malloc(1 << 16), *at = schema;
    tinker_error err = { 0 };
    at += sprintf(at, "{\"oneOf\":[");
    for (int i = 0; i < 60; i++)
        at += sprintf(at,
                      "%s{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"},"
                      "\"v\":{\"type\":\"integer\"}},\"required\":[\"kind\",\"v\"]}",
                      i ? "," : "", i);
    sprintf(at, "]}");
    struct grammar *g = grammar_from_schema(schema, strlen(schema), &err);
    REQUIRE(g != NULL);
    CHECK(accepts(g, "{\"kind\":\"k59\",\"v\":1}"));
    CHECK(!accepts(g, "{\"kind\":\"k60\",\"v\":1}"));
    grammar_free(g);
    free(schema);
}

static void a_call_is_one_of_the_functions(void)
{
    const struct grammar_call calls[] = {
        { "now", NULL, 0 },
        { "add",
          "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},"
          "\"required\":[\"x\"]}",
          0 },
    };
    struct grammar_call list[2] = { calls[0], calls[1] };
    tinker_error err = { 0 };
    list[1].n_schema = strlen(list[1].schema);
    struct grammar *g =
        grammar_from_calls(list, 2, "<call>{\"name\": ", ", \"arguments\": ", "}</call>", &err);
    REQUIRE(g != NULL);
    CHECK(accepts(g, "<call>{\"name\": \"now\", \"arguments\": {}}</call>"));
    CHECK(accepts(g, "<call>{\"name\": \"add\", \"arguments\": {\"x\": 4}}</call>"));
    CHECK(!accepts(g, "<call>{\"name\": \"add\", \"arguments\": {}}</call>"));
    CHECK(!accepts(g, "<call>{\"name\": \"sub\", \"arguments\": {}}</call>"));
    grammar_free(g);
}

int main(void)
{
    RUN(schemas_accept_what_they_allow);
    RUN(the_rest_is_refused_by_name);
    RUN(random_walks_end_as_json);
    RUN(masks_are_those_of_the_bytes);
    RUN(patterns_of_any_size_are_followed_or_refused);
    RUN(large_closures_have_a_limit);
    RUN(one_of_many_objects_is_compiled);
    RUN(a_call_is_one_of_the_functions);
    return tap_done();
}
