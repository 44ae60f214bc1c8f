/* room: tokenizer - a prebuilt block with any number in any place: refused, or used without harm. */
#include "tok_files.h"
#include "base/os.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Whatever it answers, it comes to an end and stays inside. */
static void use_tokenizer(tinker_tokenizer *t)
{
    static const char text[] = " the abc aaaa 12 <|x|> \xC3\xA9 \xE2\x96\x81"
                               "ab\xCC\x81 <t> the";
    tinker_tokens ids = TINKER_TOKENS_INIT, plain = TINKER_TOKENS_INIT;
    tinker_spans spans = TINKER_SPANS_INIT;
    tinker_text back = TINKER_TEXT_INIT;
    size_t len;
    tinker_tokenizer_encode_batch(t, &(tinker_slice){ text, strlen(text) }, 1, NULL, &ids, &spans,
                                  NULL);
    tinker_tokenizer_encode(t, text, strlen(text), NULL, &plain, NULL);
    tinker_tokenizer_decode(t, ids.ids, ids.n, NULL, &back, NULL);
    for (int32_t id = -1; id <= tinker_tokenizer_max_id(t); id++) {
        tinker_tokenizer_bytes(t, id, &len);
        tinker_tokenizer_token(t, id, &back, NULL);
    }
    tinker_tokenizer_id(t, "the", 3);
    tinker_tokens_clear(&ids);
    tinker_tokens_clear(&plain);
    tinker_spans_clear(&spans);
    tinker_text_clear(&back);
}

/* The first byte chooses the tokenizer; then come places and numbers of four bytes each.  A place
 * with its upper bit set is one of the header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 9 || n > 1 + 8 * 64)
        return 0;
    const tinker_tokenizer *whole = tok_file(data[0] % TOK_KINDS);
    struct os_map block;
    char *p = os_map_new(&block, whole->block.len);
    if (!p)
        return 0;
    memcpy(p, whole->block.data, block.len);
    for (size_t i = 1; i + 8 <= n; i += 8) {
        uint32_t place, value;
        memcpy(&place, data + i, 4);
        memcpy(&value, data + i + 4, 4);
        size_t words = (place >> 31 ? sizeof(struct bpe_header) : block.len) / 4;
        memcpy(p + (place & 0x7FFFFFFF) % words * 4, &value, 4);
    }
    tinker_tokenizer *t = tok_from_block(block, NULL);
    if (t)
        use_tokenizer(t);
    tinker_tokenizer_free(t);
    return 0;
}
