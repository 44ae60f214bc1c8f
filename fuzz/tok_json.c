/* room: tokenizer - load any bytes as a tokenizer.json; what loads must encode and decode. */
#include <string.h>
#include <tinker/tokenizer.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    tinker_error err;
    o.lenient = 1;
    tinker_tokenizer *t = tinker_tokenizer_load_json((const char *)data, n, NULL, 0, &o, &err);
    if (!t)
        return 0;
    static const char text[] = "ab the <x> 12\n\xC3\xA9 \xE2\x96\x81 a--b  ";
    tinker_slice slice = { text, strlen(text) };
    tinker_encode_options e = TINKER_ENCODE_OPTIONS_INIT;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    tinker_text out = TINKER_TEXT_INIT;
    e.add_special = 1;
    if (tinker_tokenizer_encode_batch(t, &slice, 1, &e, &ids, &spans, &err) == TINKER_OK)
        tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &out, &err);
    tinker_tokens_clear(&ids);
    tinker_spans_clear(&spans);
    tinker_text_clear(&out);
    tinker_tokenizer_free(t);
    return 0;
}
