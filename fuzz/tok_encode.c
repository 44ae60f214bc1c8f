/* room: tokenizer - encode any bytes with one of six tokenizers.
 *
 * The first byte chooses tokenizer and options.  Spans must not change the ids, must be inside
 * the text and must not run backwards for the byte-level ones; without a normalizer the text
 * comes back. */
#define _GNU_SOURCE
#include "tok_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_that(bool ok)
{
    if (!ok)
        abort();
}

static void check_spans(const tinker_spans *spans, size_t n, int kind)
{
    size_t last = 0;
    for (size_t i = 0; i < spans->n; i++) {
        check_that(spans->spans[i].begin <= spans->spans[i].end && spans->spans[i].end <= n);
        check_that(kind > 3 || spans->spans[i].begin >= last);
        last = kind > 3 ? 0 : spans->spans[i].begin;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tinker_encode_options o = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT, again = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    if (n == 0)
        return 0;
    int kind = data[0] % TOK_KINDS;
    o.special = (tinker_special_policy)(data[0] / TOK_KINDS % 4);
    o.replace_invalid = data[0] & 1;
    const tinker_tokenizer *t = tok_file(kind);
    char *text = malloc(n); /* exact size: reading behind it is found */
    memcpy(text, data + 1, n - 1);
    tinker_status status = tinker_tokenizer_encode(t, text, n - 1, &o, &ids, NULL);
    tinker_slice slice = { text, n - 1 };
    check_that(tinker_tokenizer_encode_batch(t, &slice, 1, &o, &again, &spans, NULL) == status);
    check_that(ids.n == again.n && spans.n == ids.n);
    check_that(ids.n == 0 || memcmp(ids.ids, again.ids, ids.n * sizeof(*ids.ids)) == 0);
    bool valid = utf8_valid_prefix(text, n - 1) == n - 1;
    if (valid)
        check_spans(&spans, n - 1, kind);
    bool strips = n > 3 && memmem(text, n - 1, "<t>", 3) != NULL;
    if (status == TINKER_OK && valid && kind < 4 && !strips) {
        check_that(tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &back, NULL) == TINKER_OK);
        check_that(back.n == n - 1 && (n == 1 || memcmp(back.s, text, n - 1) == 0));
    }
    free(text);
    tinker_tokens_clear(&ids);
    tinker_tokens_clear(&again);
    tinker_spans_clear(&spans);
    tinker_text_clear(&back);
    return 0;
}
