/* tok_nomem.c - every allocation of loading, encoding and decoding fails once. */
#include "support/failmalloc.h"
#include "tok_fixture.h"

#define SPLIT(regex)                                                                        \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","   \
    "\"add_prefix_space\":true,\"use_regex\":false}]}"

static const char added[] = "[{\"id\":300,\"content\":\"<|a|>\",\"special\":true},"
                            "{\"id\":301,\"content\":\"E\xCC\x81\",\"normalized\":true,"
                            "\"lstrip\":true,\"rstrip\":true}]";
static const char text[] = "hello wor\xCC\x81\xCC\x96ld <|a|> aaaa 1212 \xE3\x81\x82 \xFF";

/* Both ways of encoding, both ways of decoding.  *err says why not. */
static bool use_tokenizer(tinker_tokenizer *t, struct buf *ids_seen, tinker_error *err)
{
    tinker_tokens ids = TINKER_TOKENS_INIT, again = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    tinker_text whole = TINKER_TEXT_INIT, parts = TINKER_TEXT_INIT;
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_slice slice = { text, strlen(text) };
    o.replace_invalid = 1;
    o.threads = 2;
    bool ok = tinker_tokenizer_encode_batch(t, &slice, 1, &o, &ids, &spans, err) == 0 &&
              tinker_tokenizer_encode_batch(t, &slice, 1, &o, &again, NULL, err) == 0 &&
              tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &whole, err) == 0;
    tinker_decoder *d = ok ? tinker_decoder_new(t, NULL, err) : NULL;
    ok = d && tinker_decoder_put(d, ids.ids, ids.n, &parts, err) == 0 &&
         tinker_decoder_end(d, &parts, err) == 0;
    if (ok) {
        CHECK_MEM(ids.ids, ids.n * 4, again.ids, again.n * 4);
        CHECK_INT(spans.n, ids.n);
        CHECK_STR(parts.s, whole.s);
        if (ids_seen->len == 0)
            buf_append(ids_seen, ids.ids, ids.n * 4);
        CHECK_MEM(ids.ids, ids.n * 4, ids_seen->data, ids_seen->len);
    }
    tinker_decoder_free(d);
    tinker_tokens_clear(&ids);
    tinker_tokens_clear(&again);
    tinker_spans_clear(&spans);
    tinker_text_clear(&whole);
    tinker_text_clear(&parts);
    return ok;
}

/* Some memory can be done without: then the result is the same. */
static void check_allocations(const char *json, size_t n)
{
    struct buf ids_seen;
    buf_init(&ids_seen, SIZE_MAX);
    for (long k = 0;; k++) {
        tinker_error err = { 0 };
        if (k > 0)
            failmalloc_at(k);
        tinker_tokenizer *t = tinker_tokenizer_load_json(json, n, NULL, 0, NULL, &err);
        bool ok = t && use_tokenizer(t, &ids_seen, &err);
        tinker_tokenizer_free(t);
        bool hit = k > 0 && failmalloc_stop();
        if (!ok && err.status != TINKER_ENOMEM && !strstr(err.message, "no memory"))
            TAP_FAIL("allocation %ld: %s", k, err.message);
        if (k > 0 && !hit) {
            CHECK(ok && k > 30);
            break;
        }
    }
    buf_clear(&ids_seen);
}

static void test_byte_level(void)
{
    struct fixture f = FIXTURE_INIT;
    f.added = added;
    f.normalizer =
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Replace\","
        "\"pattern\":{\"Regex\":\"2+\"},\"content\":\"3\"}]}";
    f.pre_tokenizer = SPLIT("[a-z]+|\\\\d| ");
    struct buf b = fixture_json(&f);
    check_allocations(b.data, b.len);
    buf_clear(&b);
}

static void test_char_level(void)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
        "\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"_\":2,"
        "\"aa\":3,\"h\":4,\"_h\":5,\"<0xC3>\":6},\"merges\":[\"a a\",\"_ h\"]}}";
    check_allocations(json, strlen(json));
}

int main(void)
{
    RUN(test_byte_level);
    RUN(test_char_level);
    return tap_done();
}
