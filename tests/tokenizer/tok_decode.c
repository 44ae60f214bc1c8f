/* tok_decode.c - tokens to text, at once and as they arrive. */
#include "base/rand.h"
#include "tokenizer/tok_fixture.h"

#define BAD "\xEF\xBF\xBD"

static const char *decode_ids(const tinker_tokenizer *t, const int32_t *ids, size_t n,
                              const tinker_decode_options *o)
{
    static tinker_text text;
    tinker_error err;
    text.n = 0;
    if (tinker_tokenizer_decode(t, ids, n, o, &text, &err) != TINKER_OK) {
        static char message[500];
        snprintf(message, sizeof(message), "error: %s", err.message);
        return message;
    }
    return text.s ? text.s : "";
}

static void test_byte_level(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    f.added = "[{\"id\":300,\"content\":\"<|a|>\",\"special\":true},"
              "{\"id\":301,\"content\":\"<\xEF\xBD\x9CU>\",\"special\":false},"
              "{\"id\":302,\"content\":\"x\xC4\xA0y\",\"special\":false}]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    static const int32_t ids[] = { 259, 264, 300, 301, 302 };
    CHECK_STR(decode_ids(t, ids, 5, NULL),
              "hello world<|a|><\xEF\xBD\x9CU>x y"); /* G-dot is a space */
    o.skip_special = 1;
    CHECK_STR(decode_ids(t, ids, 5, &o), "hello world<\xEF\xBD\x9CU>x y");
    static const int32_t half[] = { 259, 0xE2, 0x82, 259, 0xF0, 0x9F };
    CHECK_STR(decode_ids(t, half, 6, NULL), "hello" BAD "hello" BAD);
    o.raw_bytes = 1;
    CHECK_STR(decode_ids(t, half, 6, &o), "hello\xE2\x82hello\xF0\x9F");
    static const int32_t odd[] = { 259, -1, 290, 1 << 30, 259 };
    CHECK_STR(decode_ids(t, odd, 5, NULL), "hellohello");
    o = (tinker_decode_options)TINKER_DECODE_OPTIONS_INIT;
    o.strict = 1;
    CHECK_STR(decode_ids(t, odd, 5, &o), "error: there is no token -1");
    CHECK_STR(decode_ids(t, NULL, 0, NULL), "");
    tinker_tokenizer_free(t);
}

static void test_cleanup(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    static const char text[] = "it 's , ok . do n't do not";
    CHECK_INT(tinker_tokenizer_encode(t, text, strlen(text), NULL, &ids, NULL), TINKER_OK);
    CHECK_STR(decode_ids(t, ids.ids, ids.n, NULL), text);
    o.cleanup = 1;
    CHECK_STR(decode_ids(t, ids.ids, ids.n, &o), "it's, ok. don't do not");
    tinker_tokens_clear(&ids);
    tinker_tokenizer_free(t);
}

static void check_decoder_from(int32_t first, const char *decoder, const char *want)
{
    char json[1024];
    tinker_error err = { 0 };
    snprintf(json, sizeof(json),
             "{\"decoder\":%s,\"model\":{\"vocab\":{\"_a\":0,\"##b\":1,\"c</w>\":2,\"_\":3,\"d\":4,"
             "\"__e_f\":5},\"merges\":[]}}",
             decoder);
    tinker_tokenizer *t = tinker_tokenizer_load_json(json, strlen(json), NULL, 0, NULL, &err);
    if (!t)
        TAP_FAIL("%s: %s", decoder, err.message);
    REQUIRE(t != NULL);
    const int32_t ids[] = { first, 1, 2, 3, 4 };
    const char *got = decode_ids(t, ids, 5, NULL);
    if (strcmp(got, want) != 0)
        TAP_FAIL("%s: got \"%s\", want \"%s\"", decoder, got, want);
    tinker_tokenizer_free(t);
}

static void check_decoder(const char *decoder, const char *want)
{
    check_decoder_from(0, decoder, want);
}

static void test_other_decoders(void)
{
    /* nothing of the first token's metaspace stays */
    check_decoder_from(5,
                       "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
                       "\"always\"}",
                       "ef##bc</w> d");
    /* a pattern that matches nothing, everywhere but behind another match */
    check_decoder("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[#_]*\"},\"content\":\"-\"}",
                  "-a--b--c-<-/-w->---d-");
    check_decoder("null", "_a ##b c</w> _ d");
    check_decoder("{\"type\":\"Fuse\"}", "_a##bc</w>_d");
    check_decoder("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}",
                  "a##bc</w> d");
    check_decoder("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}",
                  " a##bc</w> d");
    check_decoder("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}", "_ab c</w> _ d");
    check_decoder("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", "_a##bc _d");
    check_decoder("{\"type\":\"Strip\",\"content\":\"_\",\"start\":1,\"stop\":0}", "a##bc</w>d");
    check_decoder("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[#_]+\"},\"content\":\"-\"}",
                  "-a-bc</w>-d");
    check_decoder(
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"_\"},\"content\":\" \"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
        "\"start\":1,\"stop\":0}]}",
        "a##bc</w> d");
}

/* Bytes that make no text are a string each for the decoder behind. */
static void test_broken_byte_run(void)
{
    static const char json[] =
        "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":"
        "\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}]},\"model\":{\"vocab\":{\"a\":0,"
        "\"<0xC3>\":1,\"<0xA9>\":2,\"<0x41>\":3},\"merges\":[]}}";
    static const int32_t good[] = { 0, 1, 2, 3 }, bad[] = { 0, 1, 3 };
    tinker_tokenizer *t = tinker_tokenizer_load_json(json, strlen(json), NULL, 0, NULL, NULL);
    REQUIRE(t != NULL);
    CHECK_STR(decode_ids(t, good, 4, NULL), "a \xC3\xA9"
                                            "A");
    CHECK_STR(decode_ids(t, bad, 3, NULL), "a \xEF\xBF\xBD \xEF\xBF\xBD");
    tinker_tokenizer_free(t);
}

/* ---- as they arrive -------------------------------------------------------------------------- */

static bool whole_characters(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

/* Give the ids in random portions; what comes out is always whole, and the same in the end. */
static void check_stream(tinker_tokenizer *t, const int32_t *ids, size_t n, struct rng *r,
                         const tinker_decode_options *o)
{
    tinker_error err;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_decoder *d = tinker_decoder_new(t, o, &err);
    REQUIRE(d != NULL);
    for (size_t at = 0; at < n;) {
        size_t k = 1 + rng_next(r) % 3;
        k = k < n - at ? k : n - at;
        CHECK_INT(tinker_decoder_put(d, ids + at, k, &text, &err), TINKER_OK);
        CHECK(whole_characters(text.s, text.n));
        at += k;
    }
    CHECK_INT(tinker_decoder_end(d, &text, &err), TINKER_OK);
    CHECK_STR(text.s ? text.s : "", decode_ids(t, ids, n, o));
    tinker_text_clear(&text);
    tinker_decoder_free(d);
}

static void test_stream_byte_level(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    struct rng r;
    f.added = "[{\"id\":300,\"content\":\"<|a|>\",\"special\":true}]";
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    rng_seed(&r, 11);
    o.skip_special = 1;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[12];
        size_t n = rng_next(&r) % 12;
        for (size_t i = 0; i < n; i++)
            ids[i] = rng_next(&r) % 3 ? (int32_t)(0x80 + rng_next(&r) % 0x80)
                                      : (int32_t)(rng_next(&r) % 310);
        check_stream(t, ids, n, &r, round % 2 ? &o : NULL);
    }
    tinker_tokenizer_free(t);
}

static void test_stream_delivers_at_once(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_text text = TINKER_TEXT_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    tinker_decoder *d = tinker_decoder_new(t, NULL, NULL);
    REQUIRE(d != NULL);
    static const struct {
        int32_t id;
        const char *so_far;
    } steps[] = { { 259, "hello" },
                  { 0xF0, "hello" },
                  { 0x9F, "hello" },
                  { 0x98, "hello" },
                  { 0x80, "hello\xF0\x9F\x98\x80" },
                  { 0xE2, "hello\xF0\x9F\x98\x80" },
                  { 'x', "hello\xF0\x9F\x98\x80" BAD "x" } };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        CHECK_INT(tinker_decoder_put(d, &steps[i].id, 1, &text, NULL), TINKER_OK);
        CHECK_STR(text.s, steps[i].so_far);
    }
    CHECK_INT(tinker_decoder_end(d, &text, NULL), TINKER_OK);
    text.n = 0;
    CHECK_INT(tinker_decoder_put(d, &steps[0].id, 1, &text, NULL), TINKER_OK); /* used again */
    CHECK_STR(text.s, "hello");
    tinker_text_clear(&text);
    tinker_decoder_free(d);
    tinker_tokenizer_free(t);
}

/* Decodes of many ids are made from a table; they are what they were without.  Most lists are short,
 * for the plain tokenizer must not come to its own table; some are longer than what is copied at
 * once, and mostly of whole characters. */
static void check_table(tinker_tokenizer *plain, tinker_tokenizer *primed, int32_t ids, int common)
{
    static int32_t many[40000];
    static char want[4096];
    struct rng r;
    rng_seed(&r, 9);
    decode_ids(primed, many, sizeof(many) / sizeof(many[0]), NULL);
    for (int round = 0; round < 1500; round++) {
        tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
        int32_t list[500];
        size_t n = rng_next(&r) % (round % 8 ? 12 : round % 64 ? 80 : 500);
        for (size_t i = 0; i < n; i++) {
            bool any = n > 80 ? rng_next(&r) % 256 == 0 : rng_next(&r) % 4 > 0;
            list[i] = any ? (int32_t)(rng_next(&r) % (unsigned)ids) : common;
        }
        o.skip_special = round % 3 == 0;
        o.strict = round % 16 == 1;
        snprintf(want, sizeof(want), "%s", decode_ids(plain, list, n, &o));
        CHECK_STR(decode_ids(primed, list, n, &o), want);
    }
}

static const char fallback_json[] =
    "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"_\"},\"content\":\" "
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":{\"vocab\":{\"_a\":0,\"<0xC3>\":1,"
    "\"<0xA9>\":2,\"b\":3,\"_\":4,\"\xEF\xBF\xBD\":5},\"merges\":[]}}";

static void test_table(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_tokenizer *t[4];
    f.added = "[{\"id\":272,\"content\":\"<|a|>\",\"special\":true},"
              "{\"id\":273,\"content\":\"<\xEF\xBD\x9CUser of a long name>\",\"special\":false},"
              "{\"id\":280,\"content\":\"exactly fifteen\",\"special\":false}]";
    for (int i = 0; i < 2; i++) {
        t[i] = fixture_load(&f, NULL);
        t[2 + i] =
            tinker_tokenizer_load_json(fallback_json, strlen(fallback_json), NULL, 0, NULL, NULL);
        REQUIRE(t[i] && t[2 + i]);
    }
    check_table(t[0], t[1], 284, 259);
    check_table(t[2], t[3], 7, 0);
    for (int i = 0; i < 4; i++)
        tinker_tokenizer_free(t[i]);
}

static void test_stream_byte_fallback(void)
{
    tinker_error err = { 0 };
    struct rng r;
    tinker_tokenizer *t =
        tinker_tokenizer_load_json(fallback_json, strlen(fallback_json), NULL, 0, NULL, &err);
    REQUIRE(t != NULL);
    rng_seed(&r, 5);
    for (int round = 0; round < 500; round++) {
        int32_t ids[10];
        size_t n = rng_next(&r) % 10;
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)(rng_next(&r) % 7);
        check_stream(t, ids, n, &r, NULL);
    }
    tinker_tokenizer_free(t);
}

/* Each token costs the same, however many came before. */
static void test_stream_is_linear(void)
{
    enum { N = 300000 };
    tinker_text text = TINKER_TEXT_INIT;
    tinker_tokenizer *t =
        tinker_tokenizer_load_json(fallback_json, strlen(fallback_json), NULL, 0, NULL, NULL);
    REQUIRE(t != NULL);
    tinker_decoder *d = tinker_decoder_new(t, NULL, NULL);
    REQUIRE(d != NULL);
    for (int32_t i = 0; i < N; i++)
        CHECK_INT(tinker_decoder_put(d, &(int32_t){ i % 3 }, 1, &text, NULL), TINKER_OK);
    CHECK_INT(tinker_decoder_end(d, &text, NULL), TINKER_OK);
    CHECK_INT(text.n, N / 3 * 4 - 1); /* " aé", without the first space */
    text.n = 0;
    CHECK_INT(tinker_decoder_put(d, &(int32_t){ 0 }, 1, &text, NULL), TINKER_OK);
    CHECK_STR(text.s, "a"); /* another text: its first space goes, too */
    CHECK_INT(tinker_decoder_put(d, NULL, 1, &text, NULL), TINKER_EINVAL);
    tinker_text_clear(&text);
    tinker_decoder_free(d);
    tinker_tokenizer_free(t);
}

static void test_stream_refuses(void)
{
    struct fixture f = FIXTURE_INIT;
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_error err = { 0 };
    tinker_text text = TINKER_TEXT_INIT;
    tinker_tokenizer *t = fixture_load(&f, NULL);
    REQUIRE(t != NULL);
    o.cleanup = 1;
    CHECK(tinker_decoder_new(t, &o, &err) == NULL);
    CHECK_INT(err.status, TINKER_EINVAL);
    o.cleanup = 0;
    o.strict = 1;
    tinker_decoder *d = tinker_decoder_new(t, &o, &err);
    static const int32_t ids[] = { 0xC3, 9999 };
    CHECK_INT(tinker_decoder_put(d, ids, 2, &text, &err), TINKER_EINVAL); /* and takes neither */
    CHECK_INT(tinker_decoder_end(d, &text, &err), TINKER_OK);
    CHECK_INT(text.n, 0);
    tinker_text_clear(&text);
    tinker_decoder_free(d);
    tinker_tokenizer_free(t);
}

int main(void)
{
    RUN(test_byte_level);
    RUN(test_cleanup);
    RUN(test_other_decoders);
    RUN(test_broken_byte_run);
    RUN(test_table);
    RUN(test_stream_byte_level);
    RUN(test_stream_delivers_at_once);
    RUN(test_stream_byte_fallback);
    RUN(test_stream_is_linear);
    RUN(test_stream_refuses);
    return tap_done();
}
