/* tokenizer.c - files in, ids out: schema, added tokens, policies, spans, templates, decoders. */
#include "base/rand.h"
#include "tokenizer/tok_fixture.h"

/* ids: h 104 e 101 l 108 o 111 space 32; 256 he, 257 ll, 258 hell, 259 hello, 260 _w, 261 or,
 * 262 _wor, 263 ld, 264 _world, 265 aa, 266 aaaa, 267 th, 268 _th, 269 two bytes, 270 12, 271 __ */

static void test_both_merge_forms(void)
{
    for (int form = 0; form < 4; form++) {
        struct fixture f = FIXTURE_INIT;
        tinker_error err = { 0 };
        f.pairs = form & 1;
        f.backwards = form >> 1;
        tinker_tokenizer *t = fixture_load(&f, &err);
        if (!t)
            TAP_FAIL("form %d: %s", form, err.message);
        REQUIRE(t != NULL);
        CHECK_IDS(t, "hello world", "259 264");
        CHECK_IDS(t, "hell  th aaaaa", "258 32 268 32 266 97");
        CHECK_IDS(t, "", "");
        CHECK_INT(tinker_tokenizer_vocab_size(t, 0), 272);
        CHECK_INT(tinker_tokenizer_max_id(t), 271);
        tinker_tokenizer_free(t);
    }
}

static void check_error(const char *json, const char *part)
{
    tinker_error err = { 0 };
    tinker_tokenizer *t = tinker_tokenizer_load_json(json, strlen(json), NULL, 0, NULL, &err);
    if (t)
        TAP_FAIL("accepted: %s", json);
    CHECK_INT(err.status, TINKER_EINVAL);
    if (!strstr(err.message, part))
        TAP_FAIL("\"%s\" does not say \"%s\"", err.message, part);
    tinker_tokenizer_free(t);
}

static void test_load_errors(void)
{
#define MODEL(vocab, merges) "{\"model\":{\"vocab\":" vocab ",\"merges\":" merges "}}"
    check_error("", "line 1");
    check_error("{\"model\":", "line 1");
    check_error("[]", "line 1");
    check_error("{}", "model");
    check_error(MODEL("{\"a\":0}", "[]") "x", "line 1");
    check_error("{\"version\":\"2.0\",\"model\":{\"vocab\":{},\"merges\":[]}}", "version");
    check_error("{\"model\":{\"type\":\"Unigram\",\"vocab\":{},\"merges\":[]}}", "Unigram");
    check_error("{\"model\":{\"vocab\":{}}}", "merges");
    check_error("{\"model\":{\"merges\":[]}}", "vocab");
    check_error("{\"model\":{\"vocab\":{},\"merges\":[]},\"model\":{\"vocab\":{},\"merges\":[]}}",
                "two");
    check_error(MODEL("{\"a\":0,\"b\":0}", "[]"), "two tokens have the id 0");
    check_error(MODEL("{\"a\":0,\"a\":1}", "[]"), "twice, as 0 and 1");
    check_error(MODEL("{\"a\":99999999}", "[]"), "out of range");
    check_error(MODEL("{\"a\":-1}", "[]"), "out of range");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]"), "merges[0]");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[\"a x\"]"), "right side");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[\"x b\"]"), "left side");
    check_error("{\"pre_tokenizer\":" FIXTURE_BYTE_LEVEL "," /* which has no such letter */
                "\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a \xE4\xB8\xAD\"]}}",
                "right side");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[\"ab\"]"), "one space");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[\"a b c\"]"), "one space");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[[\"a\",\"b\",\"c\"]]"), "pair");
    check_error(MODEL("{\"a\":0,\"b\":1}", "[[\"a\"]]"), "pair");
    /* merges are looked up together, and still the first that is wrong is named */
#define GOOD "[\"a\",\"b\"],"
#define TEN  GOOD GOOD GOOD GOOD GOOD GOOD GOOD GOOD GOOD GOOD
#define ABC  "{\"a\":0,\"b\":1,\"ab\":2}"
    check_error(MODEL(ABC, "[" TEN TEN TEN GOOD GOOD GOOD GOOD "[\"a\",\"x\"]," TEN "[1]]"),
                "merges[34]: merge of \"a\" and \"x\"");
    check_error(MODEL(ABC, "[" TEN "[\"x\",\"b\"],\"ab\"]"), "merges[10]: merge of \"x\"");
    check_error(MODEL(ABC, "[" TEN "\"ab\",[\"x\",\"b\"]]"), "merges[10]: ab: not exactly");
    check_error(MODEL(ABC, "[\"#version: 0.2\"," TEN "[\"b\",\"a\"]]"), "merges[11]");
    check_error("{\"model\":{\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "dropout");
#define WITH(part) "{" part ",\"model\":{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}"
    check_error(WITH("\"normalizer\":{\"type\":\"Magic\"}"), "normalizer");
    check_error(WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "pre_tokenizer");
    check_error(WITH("\"pre_tokenizer\":{\"behavior\":\"Isolated\"}"), "type");
    check_error(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
                     "\"behavior\":\"Isolated\"}"),
                "pattern");
    check_error(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
                     "\"behavior\":\"Odd\"}"),
                "Odd");
    check_error(WITH("\"pre_tokenizer\":{\"type\":\"ByteLevel\"}"), "256 bytes");
    check_error(WITH("\"decoder\":{\"type\":\"Magic\"}"), "decoder");
    check_error(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                     "{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}],\"special_tokens\":{}}"),
                "\"x\"");
    check_error(
        WITH("\"added_tokens\":[{\"id\":5,\"content\":\"x\"},{\"id\":5,\"content\":\"y\"}]"),
        "taken");
    check_error(WITH("\"added_tokens\":[{\"content\":\"x\"}]"), "added_tokens[0]");
    check_error(WITH("\"added_tokens\":[{\"id\":5}]"), "content");
}

#define ADDED(id, text, flags) "{\"id\":" #id ",\"content\":\"" text "\"," flags "}"
#define SPECIAL                "\"special\":true,\"normalized\":false"
#define PLAIN                  "\"special\":false,\"normalized\":false"
#define ALONE                  PLAIN ",\"single_word\":true"
#define LEFT                   SPECIAL ",\"lstrip\":true"
#define RIGHT                  SPECIAL ",\"rstrip\":true"
#define A300                   ADDED(300, "<|a|>", SPECIAL)
#define A301                   ADDED(301, "<|a|>b", SPECIAL)
#define A302                   ADDED(302, "<think>", PLAIN)
#define A303                   ADDED(303, "<l>", LEFT)
#define A304                   ADDED(304, "<r>", RIGHT)
#define A305                   ADDED(305, "word", ALONE)
static const char added[] = "[" A300 "," A301 "," A302 "," A303 "," A304 "," A305 "]";

static void test_added_tokens(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_error err = { 0 };
    f.added = added;
    tinker_tokenizer *t = fixture_load(&f, &err);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "hello<|a|>hello", "259 300 259");
    CHECK_IDS(t, "<|a|>b<|a|>c", "301 300 99");     /* the longest at a place */
    CHECK_IDS(t, "x  <l>  x", "120 303 32 32 120"); /* left side only */
    CHECK_IDS(t, "x  <r> \n x", "120 271 304 120"); /* right side only */
    CHECK_IDS(t, "x<l><r>  <l>", "120 303 304 303");
    CHECK_IDS(t, "word sword word", "305 32 115 119 261 100 32 305");
    CHECK_IDS(t, "<think>", "302");
    CHECK_IDS(t, "<|a", "60 124 97");
    o.special = TINKER_SPECIAL_TEXT;
    CHECK_STR(fixture_ids(t, "<|a|><think>", 12, &o), "60 124 97 124 62 302");
    o.special = TINKER_SPECIAL_NONE;
    CHECK_STR(fixture_ids(t, "<think>", 7, &o), "60 267 105 110 107 62");
    o.special = TINKER_SPECIAL_ERROR;
    CHECK_STR(fixture_ids(t, "<think>", 7, &o), "302");
    CHECK(strstr(fixture_ids(t, "ab<|a|>", 7, &o), "<|a|>\" in the text at byte 2") != NULL);
    CHECK_INT(tinker_tokenizer_vocab_size(t, 1), 278);
    CHECK(tinker_tokenizer_is_special(t, 300) && !tinker_tokenizer_is_special(t, 302));
    CHECK(tinker_tokenizer_is_added(t, 302) && !tinker_tokenizer_is_added(t, 259));
    CHECK(!tinker_tokenizer_is_special(t, -1) && !tinker_tokenizer_is_special(t, 290));
    tinker_tokenizer_free(t);
}

static void test_normalized_added_token(void)
{
    /* the content is normalized as the text is; a raw token cuts what is normalized */
    struct fixture f = FIXTURE_INIT;
    tinker_error err = { 0 };
    f.normalizer = "{\"type\":\"NFC\"}";
    f.added = "[" ADDED(300, "e\\u0301", "\"special\":false,\"normalized\":true") "," ADDED(
        301, "<|a|>", SPECIAL) "]";
    tinker_tokenizer *t = fixture_load(&f, &err);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "x\xC3\xA9x", "120 300 120");
    CHECK_IDS(t, "e<|a|>\xCC\x81", "101 301 204 129"); /* does not compose over the token */
    tinker_tokenizer_free(t);
}

static void test_model_id_wins(void)
{
    struct fixture f = FIXTURE_INIT;
    f.added = "[" ADDED(999, "hello", SPECIAL) "]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "xhello", "120 259");
    CHECK(tinker_tokenizer_is_special(t, 259));
    CHECK_INT(tinker_tokenizer_id(t, "hello", 5), 259);
    tinker_tokenizer_free(t);
}

static void test_bad_utf8(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    CHECK(strstr(fixture_ids(t, "ab\xE2\x82(", 5, NULL), "byte 2") != NULL);
    o.replace_invalid = 1;
    CHECK_STR(fixture_ids(t, "ab\xE2\x82(", 5, &o), "97 98 239 191 189 40");
    CHECK_STR(fixture_ids(t, "a\0b", 3, NULL), "97 0 98"); /* NUL is text */
    tinker_tokenizer_free(t);
    f.added = added;
    t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    o.special = TINKER_SPECIAL_ERROR; /* its place in the text as it was given */
    CHECK(strstr(fixture_ids(t, "a\xFF<|a|>", 7, &o), "<|a|>\" in the text at byte 2") != NULL);
    tinker_tokenizer_free(t);
}

static void test_options_are_checked(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    o.size = 0;
    CHECK_INT(tinker_tokenizer_encode(t, "a", 1, &o, &ids, NULL), TINKER_EINVAL);
    o.size = sizeof(o);
    o.special = (tinker_special_policy)9;
    CHECK_INT(tinker_tokenizer_encode(t, "a", 1, &o, &ids, NULL), TINKER_EINVAL);
    /* appends, and leaves what was there when it fails */
    CHECK_INT(tinker_tokenizer_encode(t, "a", 1, NULL, &ids, NULL), TINKER_OK);
    CHECK_INT(tinker_tokenizer_encode(t, "b\xFF", 2, NULL, &ids, NULL), TINKER_EINVAL);
    CHECK_INT(tinker_tokenizer_encode(t, "b", 1, NULL, &ids, NULL), TINKER_OK);
    CHECK_INT(ids.n, 2);
    CHECK_INT(ids.ids[1], 98);
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(t);
}

static void check_spans(const tinker_tokenizer *t, const char *text, bool scalars, const char *want)
{
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    o.replace_invalid = 1;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    char out[512] = "";
    size_t at = 0;
    o.scalar_offsets = scalars;
    o.add_special = 1;
    tinker_slice slice = { text, strlen(text) };
    CHECK_INT(tinker_tokenizer_encode_batch(t, &slice, 1, &o, &ids, &spans, NULL), TINKER_OK);
    CHECK_INT(ids.n, spans.n);
    for (size_t i = 0; i < spans.n; i++)
        at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%zu-%zu", i ? " " : "",
                               spans.spans[i].begin, spans.spans[i].end);
    CHECK_STR(out, want);
    tinker_tokens_clear(&ids);
    tinker_spans_clear(&spans);
}

static void test_spans_and_template(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_error err = { 0 };
    f.normalizer = "{\"type\":\"NFC\"}";
    f.added = added;
    f.post_processor =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\","
        "\"trim_offsets\":false},{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
        "\"type_id\":0}},{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"pair\":[],"
        "\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[300],\"tokens\":[\"B\"]},"
        "\"E\":{\"id\":\"E\",\"ids\":[301,302],\"tokens\":[\"E\",\"F\"]}}}]}";
    tinker_tokenizer *t = fixture_load(&f, &err);
    REQUIRE(t != NULL);
    o.add_special = 1;
    CHECK_STR(fixture_ids(t, "hello", 5, &o), "300 259 301 302");
    CHECK_STR(fixture_ids(t, "<|a|>", 5, &o),
              "300 300 301 302"); /* also when it is there already */
    CHECK_IDS(t, "hello", "259");
    check_spans(t, "hello world", true, "0-0 0-5 5-11 0-0 0-0");
    check_spans(t, "x\xF0\x9F\x98\x80y", true, "0-0 0-1 1-2 1-2 1-2 1-2 2-3 0-0 0-0");
    check_spans(t, "x\xF0\x9F\x98\x80y", false, "0-0 0-1 1-5 1-5 1-5 1-5 5-6 0-0 0-0");
    check_spans(t, "e\xCC\x81x", true, "0-0 0-1 0-1 2-3 0-0 0-0"); /* NFC: the first scalar */
    check_spans(t, "a <l>b", true, "0-0 0-1 1-5 5-6 0-0 0-0");
    /* places in the text as it was given, also where it was repaired */
    check_spans(t, "\xFFx\xE2\x82y", false, "0-0 0-1 0-1 0-1 1-2 2-4 2-4 2-4 4-5 0-0 0-0");
    check_spans(t, "\xFFx\xE2\x82y", true, "0-0 0-1 0-1 0-1 1-2 2-3 2-3 2-3 3-4 0-0 0-0");
    tinker_tokenizer_free(t);
}

static void test_batch(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_error err = { 0 };
    tinker_tokenizer *t = fixture_load(&f, &err);
    enum { N = 300 };
    static char texts[N][700];
    tinker_slice slices[N];
    static tinker_tokens one[N], many[N];
    static tinker_spans spans[N];
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    struct rng r;
    rng_seed(&r, 3);
    REQUIRE(t != NULL);
    for (int i = 0; i < N; i++) {
        size_t n = rng_next(&r) % sizeof(texts[i]);
        for (size_t k = 0; k < n; k++)
            texts[i][k] = " helowrd1a\n"[rng_next(&r) % 11];
        slices[i] = (tinker_slice){ texts[i], n };
        CHECK_INT(tinker_tokenizer_encode(t, texts[i], n, NULL, &one[i], &err), TINKER_OK);
    }
    for (int threads = 0; threads <= 4; threads++) {
        for (int i = 0; i < N; i++)
            many[i].n = spans[i].n = 0;
        o.threads = threads;
        tinker_spans *wanted = threads % 2 ? spans : NULL; /* with spans and without */
        CHECK_INT(tinker_tokenizer_encode_batch(t, slices, N, &o, many, wanted, &err), TINKER_OK);
        for (int i = 0; i < N; i++) {
            CHECK_MEM(many[i].ids, many[i].n * 4, one[i].ids, one[i].n * 4);
            CHECK_INT(spans[i].n, wanted ? one[i].n : 0);
            if (spans[i].n)
                CHECK_INT(spans[i].spans[spans[i].n - 1].end, slices[i].n);
        }
    }
    slices[9].s = NULL;
    slices[9].n = 3;
    o.threads = 3;
    for (int i = 0; i < N; i++)
        spans[i].n = 0;
    CHECK_INT(tinker_tokenizer_encode_batch(t, slices, N, &o, many, spans, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "text 9") != NULL);
    slices[9] = (tinker_slice){ "", 0 };
    texts[7][0] = (char)0xFF; /* one bad text: named, and nothing changes */
    slices[7].n = slices[7].n ? slices[7].n : 1;
    CHECK_INT(tinker_tokenizer_encode_batch(t, slices, N, &o, many, spans, &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "text 7") != NULL);
    for (int i = 0; i < N; i++) {
        CHECK_INT(many[i].n, one[i].n);
        CHECK_INT(spans[i].n, 0);
        tinker_spans_clear(&spans[i]);
        tinker_tokens_clear(&one[i]);
        tinker_tokens_clear(&many[i]);
    }
    tinker_tokenizer_free(t);
}

static void test_vocabulary(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_error err = { 0 };
    size_t n;
    f.added = "[" ADDED(300, "<\xEF\xBD\x9CUser\xEF\xBD\x9C>", SPECIAL) "]";
    tinker_tokenizer *t = fixture_load(&f, &err);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_id(t, "\xC4\xA0world", 7), 264);
    CHECK_INT(tinker_tokenizer_id(t, " world", 6), -1); /* not how the file spells it */
    CHECK_INT(tinker_tokenizer_id(t, "<\xEF\xBD\x9CUser\xEF\xBD\x9C>", 12), 300);
    CHECK_INT(tinker_tokenizer_id(t, "", 0), -1);
    CHECK_INT(tinker_tokenizer_id(t, "\xFF", 1), -1);
    const char *bytes = tinker_tokenizer_bytes(t, 264, &n);
    CHECK_MEM(bytes, n, " world", 6);
    CHECK(tinker_tokenizer_bytes(t, 280, &n) == NULL);
    CHECK_INT(tinker_tokenizer_token(t, 264, &text, &err), TINKER_OK);
    CHECK_STR(text.s, "\xC4\xA0world");
    CHECK_INT(tinker_tokenizer_token(t, 5000, &text, &err), TINKER_EINVAL);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_BOS), -1);
    CHECK(tinker_tokenizer_chat_template(t) == NULL);
    tinker_text_clear(&text);
    tinker_tokenizer_free(t);
}

static void test_config(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_error err = { 0 };
    static const char config[] =
        "{\"bos_token\":\"<b>\",\"eos_token\":{\"content\":\"<e>\",\"lstrip\":false},"
        "\"pad_token\":null,\"model_max_length\":1e30,\"chat_template\":[{\"name\":\"x\","
        "\"template\":\"no\"},{\"name\":\"default\",\"template\":\"yes\"}],"
        "\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_eos_token\":true,"
        "\"added_tokens_decoder\":{\"301\":{\"content\":\"<e>\",\"special\":true},"
        "\"302\":{\"content\":\"<n>\",\"special\":false}}}";
    f.added = "[" ADDED(300, "<b>", SPECIAL) "," ADDED(301, "<e>", "\"special\":false") "]";
    struct buf b = fixture_json(&f);
    tinker_tokenizer *t =
        tinker_tokenizer_load_json(b.data, b.len, config, strlen(config), NULL, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_BOS), 300);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_EOS), 301);
    CHECK_INT(tinker_tokenizer_special(t, TINKER_TOKEN_PAD), -1);
    CHECK_INT(tinker_tokenizer_max_length(t), 0);
    CHECK_STR(tinker_tokenizer_chat_template(t), "yes");
    CHECK(tinker_tokenizer_is_special(t, 301)); /* the configuration says so */
    CHECK_IDS(t, "<n>", "302");
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    o.add_special = 1;
    CHECK_STR(fixture_ids(t, "hello", 5, &o),
              "300 259 301"); /* the class builds its own template */
    tinker_tokenizer_free(t);
    t = tinker_tokenizer_load_json(b.data, b.len, "{\"a\":", 5, NULL, &err);
    CHECK(t == NULL && strstr(err.message, "tokenizer_config.json") != NULL);
    buf_clear(&b);
}

static void test_prefix_space(void)
{
    struct fixture f = FIXTURE_INIT;
    f.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}";
    f.added = "[" ADDED(300, "<|a|>", SPECIAL) "]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "world", "264");
    CHECK_IDS(t, " world<|a|>world", "264 300 264"); /* each segment on its own */
    tinker_tokenizer_free(t);
}

/* A pattern of our own, in each of the behaviors. */
static void test_split_behaviors(void)
{
    static const struct {
        const char *behavior, *invert, *want;
    } cases[] = {
        { "Isolated", "false", "97 45 45 98" }, /* a - - b */
        { "Removed", "false", "97 98" },
        { "Removed", "true", "45 45" },
        { "MergedWithPrevious", "false", "300 45 98" }, /* a- - b */
        { "MergedWithNext", "false", "97 45 301" },     /* a - -b */
        { "Contiguous", "false", "97 302 98" },         /* a -- b */
    };
    static const char *const merges[] = { "a -", "- b", "- -", NULL };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f = FIXTURE_INIT;
        char pre[400];
        tinker_error err = { 0 };
        snprintf(
            pre, sizeof(pre),
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"-\"},\"behavior\":\"%s\",\"invert\":%s},{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"use_regex\":false}]}",
            cases[i].behavior, cases[i].invert);
        f.pre_tokenizer = pre;
        f.merges = merges;
        tinker_tokenizer *t = fixture_load(&f, &err);
        REQUIRE(t != NULL);
        char want[64]; /* the merged tokens are 256, 257, 258 */
        snprintf(want, sizeof(want), "%s", cases[i].want);
        for (char *p = want; (p = strstr(p, "30")) != NULL; p++)
            memcpy(p, p[2] == '0' ? "256" : p[2] == '1' ? "257" : "258", 3);
        CHECK_IDS(t, "a--b", want);
        tinker_tokenizer_free(t);
    }
}

/* ---- char-level vocabularies ----------------------------------------------------------------- */

#define META "\xE2\x96\x81"
static const char gemma[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" META "\"},"
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
    "\"behavior\":\"MergedWithPrevious\",\"invert\":false},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"" META "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":{\"<unk>\":0,\"" META "\":1,\"a\":2,\"b\":3,\"" META "a\":4,\"" META "ab\":5,"
    "\"<0xC3>\":6,\"<0xA9>\":7,\"ab\":8,\"b" META "\":9,\"<0xE2>\":10},"
    "\"merges\":[[\"" META "\",\"a\"],[\"" META "a\",\"b\"],[\"a\",\"b\"],[\"b\",\"" META "\"]]}}";

static void test_byte_fallback(void)
{
    tinker_error err = { 0 };
    tinker_text text = TINKER_TEXT_INIT;
    tinker_tokenizer *t = tinker_tokenizer_load_json(gemma, strlen(gemma), NULL, 0, NULL, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "ab ab", "8 5"); /* the merge over the boundary ranks last */
    CHECK_IDS(t, "b b", "9 3");
    CHECK_IDS(t, "a a", "2 4");
    CHECK_IDS(t, "\xC3\xA9", "6 7"); /* a character outside the vocabulary: its bytes */
    CHECK_IDS(t,
              "\xC3\xB0\xC3\xB1"
              "a",
              "0 2"); /* no such bytes: unknown, fused */
    static const int32_t ids[] = { 5, 6, 7, 6, 2, 10, 10 };
    CHECK_INT(tinker_tokenizer_decode(t, ids, 7, NULL, &text, &err), TINKER_OK);
    /* a run of bytes is text as a whole, or one U+FFFD each */
    CHECK_STR(text.s, " ab\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                      "a\xEF\xBF\xBD\xEF\xBF\xBD");
    text.n = 0;
    CHECK_INT(tinker_tokenizer_decode(t, ids, 3, NULL, &text, &err), TINKER_OK);
    CHECK_STR(text.s, " ab\xC3\xA9");
    tinker_text_clear(&text);
    tinker_tokenizer_free(t);
}

/* A char-level vocabulary with all byte tokens (ids 0..255), the letters a b c, U+2581 and merges.
 * whole: with a token that holds the spelling of a byte token, so that pieces are never cut. */
static tinker_tokenizer *load_chars(bool whole)
{
    struct buf b;
    tinker_error err = { 0 };
    buf_init(&b, SIZE_MAX);
    buf_puts(&b, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                 "\"" META "\"},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    for (int i = 0; i < 256; i++)
        buf_printf(&b, "\"<0x%02X>\":%d,", (unsigned)i, i);
    buf_printf(&b, "\"%s\":400,", whole ? "q<0x41>q" : "q");
    buf_puts(&b, "\"a\":256,\"b\":257,\"c\":258,\"" META "\":259,\"ab\":260,\"bc\":261,\"" META
                 "ab\":262,\"abc\":263,\"c" META
                 "\":264,\"cc\":265},\"merges\":[\"b c\",\"a b\",\"" META " ab\",\"ab c\",\"c " META
                 "\",\"c c\"]}}");
    tinker_tokenizer *t = tinker_tokenizer_load_json(b.data, b.len, NULL, 0, NULL, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    buf_clear(&b);
    return t;
}

static void test_parts_are_as_the_whole(void)
{
    static const char *const letters[] = {
        "a", "b", "c", " ", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80"
    };
    tinker_tokenizer *parts = load_chars(false), *whole = load_chars(true);
    struct rng r;
    REQUIRE(parts && whole);
    rng_seed(&r, 3);
    for (int round = 0; round < 2000; round++) {
        char text[256], want[2048];
        size_t n = 0, count = 1 + rng_next(&r) % 40;
        for (size_t i = 0; i < count; i++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", letters[rng_next(&r) % 7]);
        snprintf(want, sizeof(want), "%s", fixture_ids(whole, text, n, NULL));
        CHECK_STR(fixture_ids(parts, text, n, NULL), want);
    }
    tinker_tokenizer_free(parts);
    tinker_tokenizer_free(whole);
    /* a character that is dropped keeps nothing apart */
    static const char drops[] =
        "{\"model\":{\"vocab\":{\"a\":1,\"b\":2,\"ab\":3},\"merges\":[\"a b\"]}}";
    tinker_tokenizer *t = tinker_tokenizer_load_json(drops, strlen(drops), NULL, 0, NULL, NULL);
    REQUIRE(t != NULL);
    CHECK_IDS(t,
              "a\xC3\xA9"
              "b",
              "3");
    tinker_tokenizer_free(t);
}

static void check_words(const char *pre, const char *text, const char *want)
{
    char json[2048];
    tinker_error err = { 0 };
    snprintf(
        json, sizeof(json),
        "{\"pre_tokenizer\":%s,\"decoder\":null,\"model\":{\"unk_token\":\"?\",\"vocab\":{\"?\":0,"
        "\"a\":1,\"b\":2,\"1\":3,\"2\":4,\"-\":5,\"_\":6,\"ab\":7,\"12\":8,\"_a\":9,\"!\":10,"
        "\"!!\":11,\"a1\":12,\"-a\":13},\"merges\":[\"a b\",\"1 2\",\"_ a\",\"! !\",\"a 1\","
        "\"- a\"]}}",
        pre);
    tinker_tokenizer *t = tinker_tokenizer_load_json(json, strlen(json), NULL, 0, NULL, &err);
    if (!t)
        TAP_FAIL("%s: %s", pre, err.message);
    REQUIRE(t != NULL);
    const char *got = fixture_ids(t, text, strlen(text), NULL);
    if (strcmp(got, want) != 0)
        TAP_FAIL("%s on \"%s\": got %s, want %s", pre, text, got, want);
    tinker_tokenizer_free(t);
}

static void test_other_pre_tokenizers(void)
{
    check_words("null", "ab12", "7 8");
    check_words("{\"type\":\"Digits\",\"individual_digits\":true}", "a12", "1 3 4");
    check_words("{\"type\":\"Digits\",\"individual_digits\":false}", "a12", "1 8");
    check_words("{\"type\":\"Whitespace\"}", "ab !!a", "7 11 1");
    check_words("{\"type\":\"WhitespaceSplit\"}", "a1 -a", "12 13");
    check_words("{\"type\":\"Punctuation\"}", "a!!-a", "1 10 10 5 1");
    check_words("{\"type\":\"BertPreTokenizer\"}", "ab -a", "7 5 1");
    check_words("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"-\"}", "a-a", "1 1");
    check_words("{\"type\":\"FixedLength\",\"length\":3}", "abab12", "7 1 2 8");
    check_words("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}",
                "a a", "9 9");
    check_words("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}",
                "a a", "1 9");
    check_words("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}", "a a",
                "1 9");
}

/* A place is cut at as well as a text; words have ids of their own. */
static void test_empty_matches_cut(void)
{
    static const char *const behaviors[] = { "Isolated", "Removed", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous" };
    for (size_t i = 0; i < 5; i++) {
        char pre[160];
        snprintf(pre, sizeof(pre),
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=1)\"},\"behavior\":\"%s\","
                 "\"invert\":false}",
                 behaviors[i]);
        check_words(pre, "a12", "1 8"); /* a|12 */
        check_words(pre, "ab", "7");
    }
}

static void check_norm(const char *norm, const char *text, const char *want)
{
    struct fixture f = FIXTURE_INIT;
    tinker_error err = { 0 };
    static const char *const none[] = { NULL };
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    f.normalizer = norm;
    f.merges = none;
    tinker_tokenizer *t = fixture_load(&f, &err);
    if (!t)
        TAP_FAIL("%s: %s", norm, err.message);
    REQUIRE(t != NULL);
    CHECK_INT(tinker_tokenizer_encode(t, text, strlen(text), NULL, &ids, &err), TINKER_OK);
    CHECK_INT(tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &back, &err), TINKER_OK);
    CHECK_STR(back.s ? back.s : "", want);
    tinker_tokens_clear(&ids);
    tinker_text_clear(&back);
    tinker_tokenizer_free(t);
}

static void test_normalizers(void)
{
    check_norm("{\"type\":\"Lowercase\"}", "\xC3\x89X \xC4\xB0", "\xC3\xA9x i\xCC\x87");
    check_norm("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " \xC2\xA0x ",
               "x ");
    check_norm("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", "  ", "");
    check_norm(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}",
        "\xC3\xA9\xC3\xB1", "en");
    check_norm("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[0-9]+\"},\"content\":\"#\"}",
               "a12b3", "a#b#");
    check_norm("{\"type\":\"Replace\",\"pattern\":{\"String\":\"aa\"},\"content\":\"b\"}", "aaaxa",
               "baxa");
    check_norm("{\"type\":\"StripAccents\"}", "a\xE0\xA4\x83\xE2\x83\x9D", "a"); /* Mc, Me */
    /* a pattern that matches nothing, everywhere but behind another match */
    check_norm("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" *\"},\"content\":\"_\"}", "a b",
               "_a_b_");
    check_norm("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"_\"}",
               "a\xC3\xA9", "_a_\xC3\xA9_");
    check_norm("{\"type\":\"Prepend\",\"prepend\":\"> \"}", "x", "> x");
    check_norm("{\"type\":\"Prepend\",\"prepend\":\"> \"}", "", "");
    check_norm("{\"type\":\"NFKC\"}", "\xEF\xAC\x81", "fi");
    check_norm("{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
               "\"strip_accents\":null,\"lowercase\":true}",
               "\xC3\x89\t\x01\xE6\xBC\xA2", "e  \xE6\xBC\xA2 ");
}

/* A list of 45 steps, each of which may double a text. */
static char *many_steps(const char *type, const char *list, const char *step)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "{\"type\":\"%s\",\"%s\":[", type, list);
    for (int i = 0; i < 45; i++)
        buf_printf(&b, "%s%s", i ? "," : "", step);
    buf_puts(&b, "]}");
    return buf_detach(&b, NULL);
}

/* Without a limit three letters would take all memory. */
static void test_steps_do_not_fill_memory(void)
{
    static const char twice[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}";
    static const char map[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    tinker_error err = { .status = TINKER_OK };
    char *norms = many_steps("Sequence", "normalizers", twice);
    char *pres = many_steps("Sequence", "pretokenizers", map);
    char *decs = many_steps("Sequence", "decoders", twice);
    struct fixture f[3] = { FIXTURE_INIT, FIXTURE_INIT, FIXTURE_INIT };
    f[0].normalizer = norms;
    f[1].pre_tokenizer = pres;
    f[2].decoder = decs;
    for (int i = 0; i < 3; i++) {
        tinker_tokenizer *t = fixture_load(&f[i], &err);
        REQUIRE(t);
        tinker_tokens ids = TINKER_TOKENS_INIT;
        tinker_text text = TINKER_TEXT_INIT;
        const int32_t aaa[] = { 'a', 'a', 'a' };
        tinker_status status = i < 2
                                   ? tinker_tokenizer_encode(t, "aaa\xC3\xA9", 5, NULL, &ids, &err)
                                   : tinker_tokenizer_decode(t, aaa, 3, NULL, &text, &err);
        CHECK_INT(status, TINKER_ENOMEM);
        CHECK_INT(ids.n + text.n, 0);
        tinker_tokens_clear(&ids);
        tinker_text_clear(&text);
        tinker_tokenizer_free(t);
    }
    free(norms);
    free(pres);
    free(decs);
}

/* Ids do not depend on whether spans are asked for: halfwidth kana and jamo compose. */
static void test_spans_change_no_ids(void)
{
    static const char *const texts[] = {
        "\xEF\xBD\xB6\xEF\xBE\x9E",             /* ka, voiced mark: ga */
        "\xE3\x84\xB1\xE3\x85\x8F",             /* compatibility jamo: ga */
        "\xEF\xBE\xA1\xEF\xBF\x82\xEF\xBE\xA4", /* halfwidth jamo */
        "x\xEF\xBD\xB6\xEF\xBE\x9E\xCC\x81y",
    };
    static const char *const forms[] = { "NFC", "NFD", "NFKC", "NFKD" };
    static const char *const none[] = { NULL };
    for (size_t i = 0; i < 4; i++) {
        struct fixture f = FIXTURE_INIT;
        char norm[32];
        snprintf(norm, sizeof(norm), "{\"type\":\"%s\"}", forms[i]);
        f.normalizer = norm;
        f.merges = none;
        tinker_tokenizer *t = fixture_load(&f, NULL);
        REQUIRE(t != NULL);
        for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
            tinker_tokens a = TINKER_TOKENS_INIT, b = TINKER_TOKENS_INIT;
            tinker_spans spans = TINKER_SPANS_INIT;
            size_t n = strlen(texts[k]);
            CHECK_INT(tinker_tokenizer_encode(t, texts[k], n, NULL, &a, NULL), TINKER_OK);
            tinker_slice slice = { texts[k], n };
            CHECK_INT(tinker_tokenizer_encode_batch(t, &slice, 1, NULL, &b, &spans, NULL),
                      TINKER_OK);
            CHECK_MEM(b.ids, b.n * sizeof(*b.ids), a.ids, a.n * sizeof(*a.ids));
            CHECK_INT(spans.n, a.n);
            tinker_tokens_clear(&a);
            tinker_tokens_clear(&b);
            tinker_spans_clear(&spans);
        }
        tinker_tokenizer_free(t);
    }
}

/* The post-processor's trim_offsets: white space of the text that a token covers, and of its first
 * space only when it is the one that was put there. */
static void test_trimmed_spans(void)
{
    struct fixture f = FIXTURE_INIT;
    f.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}";
    f.post_processor = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true}";
    f.added = "[" ADDED(300, "<m>", "\"lstrip\":true,\"rstrip\":true,\"special\":true") "]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    check_spans(t, "world", true, "0-5");
    check_spans(t, " world", true, "0-6");
    check_spans(t, "   x", true, "2-2 3-3 3-4");
    check_spans(t, "a \n<m>\n x", true, "0-0 0-1 3-6 9-9 8-9");
    tinker_tokenizer_free(t);
}

/* White space beside a token that strips may be a token, too. */
static void test_stripped_space_is_searched(void)
{
    struct fixture f = FIXTURE_INIT;
    f.added = "[" ADDED(300, "<m>", "\"rstrip\":true,\"special\":true") "," ADDED(
        301, "\\n", "\"normalized\":false") "]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    CHECK_IDS(t, "<m>\nx", "300 301 120");
    tinker_tokenizer_free(t);
}

/* Marks without end, with spans. */
static void test_spans_of_many_marks(void)
{
    enum { N = 100000 };
    struct fixture f = FIXTURE_INIT;
    struct buf text;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    f.normalizer = "{\"type\":\"NFC\"}";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    buf_init(&text, SIZE_MAX);
    buf_puts(&text, "x");
    for (int i = 0; i < N; i++)
        buf_puts(&text, i % 2 ? "\xCC\x96" : "\xCC\x95");
    tinker_slice slice = { text.data, text.len };
    CHECK_INT(tinker_tokenizer_encode_batch(t, &slice, 1, NULL, &ids, &spans, NULL), TINKER_OK);
    CHECK_INT(ids.n, 2 * N + 1);
    CHECK_INT(spans.n, ids.n);
    CHECK_INT(spans.spans[spans.n - 1].end, text.len);
    tinker_tokens_clear(&ids);
    tinker_spans_clear(&spans);
    buf_clear(&text);
    tinker_tokenizer_free(t);
}

/* Whoever has a reference may use it, whatever the others do with theirs. */
static void test_references(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    CHECK(tinker_tokenizer_ref(t) == t);
    CHECK(tinker_tokenizer_ref(t) == t);
    tinker_tokenizer_free(t);
    tinker_tokenizer_free(t);
    CHECK_IDS(t, "hello", "259");
    tinker_tokenizer_free(t);
}

int main(void)
{
    RUN(test_both_merge_forms);
    RUN(test_load_errors);
    RUN(test_added_tokens);
    RUN(test_normalized_added_token);
    RUN(test_model_id_wins);
    RUN(test_bad_utf8);
    RUN(test_options_are_checked);
    RUN(test_spans_and_template);
    RUN(test_batch);
    RUN(test_vocabulary);
    RUN(test_config);
    RUN(test_prefix_space);
    RUN(test_split_behaviors);
    RUN(test_byte_fallback);
    RUN(test_parts_are_as_the_whole);
    RUN(test_other_pre_tokenizers);
    RUN(test_empty_matches_cut);
    RUN(test_normalizers);
    RUN(test_steps_do_not_fill_memory);
    RUN(test_spans_change_no_ids);
    RUN(test_trimmed_spans);
    RUN(test_stripped_space_is_searched);
    RUN(test_spans_of_many_marks);
    RUN(test_references);
    return tap_done();
}
