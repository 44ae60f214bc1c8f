/* room: tokenizer - whatever the bytes: no crash, no read outside the file, and a tokenizer that
 * follows from them loads or is refused. */
#include <stdlib.h>
#include <string.h>
#include <tinker/tokenizer.h>
#include "gguf/gguf.h"
#include "tokenizer/load/tok_gguf.h"

static void demand(bool condition)
{
    if (!condition)
        abort();
}

/* Every tensor lies inside the file and is found by its name; every string can be walked. */
static void check(const struct gguf *g, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct gguf_tensor *t = g->tensors[i];
        const uint8_t *at = t->data;
        demand(gguf_find(g, t->name) == t && gguf_tensor_type_name(t->type) != NULL);
        demand(t->bytes == 0 || (at >= data && t->bytes <= (size_t)(data + n - at)));
    }
    const struct gguf_value *tokens = gguf_get(g, "tokenizer.ggml.tokens");
    size_t at = 0, length, sum = 0;
    const char *s;
    for (uint64_t i = 0; tokens && tokens->type == GGUF_STRING && i < tokens->n; i++) {
        gguf_next_string(tokens, &at, &s, &length);
        for (size_t k = 0; k < length; k++)
            sum += (unsigned char)s[k];
    }
    demand(sum <= 255 * n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf g;
    struct buf json, config;
    tinker_error err = { 0 };
    /* a copy of exactly n bytes, so that reading behind them is seen */
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    if (gguf_parse(&g, "file", copy, n, &err) == TINKER_OK) {
        check(&g, copy, n);
        buf_init(&json, 1 << 22);
        buf_init(&config, 1 << 22);
        if (tok_gguf_describe(&g, &json, &config, &err) == TINKER_OK)
            tinker_tokenizer_free(tinker_tokenizer_load_json(json.data, json.len, config.data,
                                                             config.len, NULL, &err));
        buf_clear(&json);
        buf_clear(&config);
        gguf_close(&g);
    }
    free(copy);
    return 0;
}
