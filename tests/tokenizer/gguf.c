/* Tokenizers from GGUF metadata: both kinds load and encode, with what stands before a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/tokenizer.h>
#include <unistd.h>
#include "gguf/gguf.h"
#include "support/tap.h"

static const void *fetch_nothing(void *state, size_t index, tinker_error *err)
{
    (void)state, (void)index, (void)err;
    return "";
}

static tinker_tokenizer *load(struct gguf_writer *w)
{
    char path[64];
    tinker_error err = { 0 };
    snprintf(path, sizeof(path), "/tmp/tinker-tok-%ld.gguf", (long)getpid());
    CHECK(gguf_write(w, path, fetch_nothing, NULL, &err) == TINKER_OK);
    tinker_tokenizer_options opts = TINKER_TOKENIZER_OPTIONS_INIT;
    opts.lenient = 1;
    tinker_tokenizer *t = tinker_tokenizer_load(path, &opts, &err);
    if (!t)
        TAP_FAIL("%s", err.message);
    remove(path);
    gguf_writer_clear(w);
    return t;
}

static void check_ids(tinker_tokenizer *t, const char *text, const int32_t *want, size_t n)
{
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_encode_options opts = TINKER_ENCODE_OPTIONS_INIT;
    opts.add_special = 1;
    CHECK(t && tinker_tokenizer_encode(t, text, strlen(text), &opts, &ids, NULL) == TINKER_OK);
    CHECK_INT(ids.n, n);
    CHECK(ids.n == n && memcmp(ids.ids, want, n * sizeof(*want)) == 0);
    tinker_tokens_clear(&ids);
}

static void put_list(struct gguf_writer *w, const char *const *tokens, const int32_t *types,
                     size_t n)
{
    gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        gguf_add_string(w, tokens[i], strlen(tokens[i]));
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        gguf_add_i32(w, types[i]);
}

/* The pair of the highest score is merged first. */
static void sentence_piece(void)
{
    static const char *const tokens[] = { "<unk>",
                                          "<s>",
                                          "</s>",
                                          "\xe2\x96\x81",
                                          "a",
                                          "b",
                                          "ab",
                                          "ba",
                                          "\xe2\x96\x81"
                                          "ab" };
    static const int32_t types[] = { 2, 3, 3, 1, 1, 1, 1, 1, 1 }, want[] = { 1, 8, 7 };
    static const float scores[] = { 0, 0, 0, -9, -9, -9, -1, -2, -3 };
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_put_string(&w, "tokenizer.ggml.model", "llama", 5);
    put_list(&w, tokens, types, 9);
    gguf_put_array(&w, "tokenizer.ggml.scores", GGUF_F32, 9);
    for (size_t i = 0; i < 9; i++)
        gguf_add_f32(&w, scores[i]);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(&w, "tokenizer.ggml.unknown_token_id", 0);
    tinker_tokenizer *t = load(&w);
    check_ids(t, "abba", want, 3);
    tinker_tokenizer_free(t);
}

static void check_byte_level(const char *pre, const int32_t *want, size_t n)
{
    static const char *const tokens[] = { "a", "b", "1", "2", "ab", "12", "<|x|>" };
    static const int32_t types[] = { 1, 1, 1, 1, 1, 1, 3 };
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_put_string(&w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(&w, "tokenizer.ggml.pre", pre, strlen(pre));
    put_list(&w, tokens, types, 7);
    gguf_put_array(&w, "tokenizer.ggml.merges", GGUF_STRING, 2);
    gguf_add_string(&w, "a b", 3);
    gguf_add_string(&w, "1 2", 3);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 6);
    tinker_tokenizer *t = load(&w);
    check_ids(t, "ab12", want, n);
    tinker_tokenizer_free(t);
}

/* Three digits together, each alone, each alone before anything else; a beginning by the rule. */
static void byte_level(void)
{
    check_byte_level("llama-bpe", (const int32_t[]){ 6, 4, 5 }, 3);
    check_byte_level("qwen2", (const int32_t[]){ 4, 2, 3 }, 3);
    check_byte_level("starcoder", (const int32_t[]){ 4, 2, 3 }, 3);
}

int main(void)
{
    RUN(sentence_piece);
    RUN(byte_level);
    return tap_done();
}
