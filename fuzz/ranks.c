/* room: tokenizer - load any bytes as a rank file; what loads must give a text back. */
#include <stdlib.h>
#include <string.h>
#include <tinker/tokenizer.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    tinker_tokenizer_options o = TINKER_TOKENIZER_OPTIONS_INIT;
    tinker_error err;
    o.lenient = 1;
    tinker_tokenizer *t =
        tinker_tokenizer_load_ranks((const char *)data, n, "\\p{L}+|\\s", NULL, 0, &o, &err);
    if (!t)
        return 0;
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_text out = TINKER_TEXT_INIT;
    if (tinker_tokenizer_encode(t, "abc abab\n", 9, NULL, &ids, &err) != TINKER_OK ||
        tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &out, &err) != TINKER_OK || out.n > 9)
        abort();
    tinker_tokens_clear(&ids);
    tinker_text_clear(&out);
    tinker_tokenizer_free(t);
    return 0;
}
