/* room: tokenizer - decode any ids, at once and as they arrive: the same text, always whole characters. */
#include "tok_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_that(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2 || n > 2000)
        return 0;
    tinker_decode_options o = TINKER_DECODE_OPTIONS_INIT;
    tinker_text whole = TINKER_TEXT_INIT, parts = TINKER_TEXT_INIT;
    tinker_tokenizer *t = tok_file(data[0] % TOK_KINDS);
    o.skip_special = data[0] & 1;
    size_t step = 1 + data[1] % 4, count = (n - 2) / 2;
    int32_t *ids = malloc((count + 1) * sizeof(*ids));
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)(data[2 + 2 * i] | data[3 + 2 * i] << 8) % 320 - 4;
    check_that(tinker_tokenizer_decode(t, ids, count, &o, &whole, NULL) == TINKER_OK);
    check_that(utf8_valid_prefix(whole.s ? whole.s : "", whole.n) == whole.n);
    tinker_decoder *d = tinker_decoder_new(t, &o, NULL);
    for (size_t i = 0; i < count; i += step) {
        size_t k = step < count - i ? step : count - i;
        check_that(tinker_decoder_put(d, ids + i, k, &parts, NULL) == TINKER_OK);
        check_that(utf8_valid_prefix(parts.s, parts.n) == parts.n);
    }
    check_that(tinker_decoder_end(d, &parts, NULL) == TINKER_OK);
    check_that(parts.n == whole.n && (whole.n == 0 || memcmp(parts.s, whole.s, whole.n) == 0));
    tinker_decoder_free(d);
    free(ids);
    tinker_text_clear(&whole);
    tinker_text_clear(&parts);
    return 0;
}
