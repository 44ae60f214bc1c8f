/* init_tokenizer.c - a byte-level tokenizer.json without merges: token i is byte i.
 *
 * Byte-level BPE writes bytes as printable characters: the printable ones of Latin-1
 * as themselves, the others as U+0100 and up in ascending order. */
#include "engine/model/init_model.h"

#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/os.h"
#include "base/utf8.h"
#include "json/json.h"

/* The bytes that GPT-2's byte-level alphabet writes as themselves. */
static bool is_printable(uint32_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* Tokens BYTE_END_OF_TEXT, BYTE_IM_START and BYTE_IM_END. */
static const char *const specials[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };

/* The special tokens that the vocabulary has room for. */
static void put_added(struct json_writer *w, size_t vocab)
{
    json_put_begin_array(w);
    for (size_t i = 0; i < 3 && BYTE_TOKENS + i < vocab; i++) {
        json_put_begin_object(w);
        json_put_key(w, "id");
        json_put_uint64(w, BYTE_TOKENS + i);
        json_put_key(w, "content");
        json_put_string(w, specials[i]);
        /* all false, as transformers writes them */
        static const char *const flags[] = { "single_word", "lstrip", "rstrip", "normalized" };
        for (int f = 0; f < 4; f++) {
            json_put_key(w, flags[f]);
            json_put_bool(w, false);
        }
        json_put_key(w, "special");
        json_put_bool(w, true);
        json_put_end_object(w);
    }
    json_put_end_array(w);
}

/* The members of tokenizer.json that Hugging Face tokenizers requires, most of them null. */
static void put_tokenizer(struct json_writer *w, size_t vocab)
{
    /* the split into words is off: without merges it would change nothing */
    static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                     "\"trim_offsets\":true,\"use_regex\":false}";
    json_put_begin_object(w);
    json_put_key(w, "version");
    json_put_string(w, "1.0");
    /* steps that this tokenizer does not have */
    static const char *const absent[] = { "truncation", "padding", "normalizer", "post_processor" };
    for (int i = 0; i < 4; i++) {
        json_put_key(w, absent[i]);
        json_put_null(w);
    }
    json_put_key(w, "added_tokens");
    put_added(w, vocab);
    json_put_key(w, "pre_tokenizer");
    json_put_raw(w, byte_level, strlen(byte_level));
    json_put_key(w, "decoder");
    json_put_raw(w, byte_level, strlen(byte_level));
    json_put_key(w, "model");
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, "BPE");
    static const char *const nulls[] = { "dropout", "unk_token", "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    for (int i = 0; i < 4; i++) {
        json_put_key(w, nulls[i]);
        json_put_null(w);
    }
    static const char *const falses[] = { "fuse_unk", "byte_fallback", "ignore_merges" };
    for (int i = 0; i < 3; i++) {
        json_put_key(w, falses[i]);
        json_put_bool(w, false);
    }
    json_put_key(w, "vocab");
    /* bytes that are not printable become U+0100 and up, in ascending order */
    json_put_begin_object(w);
    for (uint32_t b = 0, others = 0; b < BYTE_TOKENS && b < vocab; b++) {
        char name[5];
        uint32_t cp = is_printable(b) ? b : 0x100 + others++;
        name[utf8_encode(cp, name)] = '\0';
        json_put_key(w, name);
        json_put_int64(w, b);
    }
    json_put_end_object(w);
    /* none: every byte stays a token of its own */
    json_put_key(w, "merges");
    json_put_begin_array(w);
    json_put_end_array(w);
    json_put_end_object(w);
    json_put_end_object(w);
}

/* dir is short enough: init_model_write() checks it. */
static tinker_status write_tokenizer_file(const char *dir, const char *name, struct buf *text,
                                          tinker_error *err)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    tinker_status status =
        buf_ok(text) ? os_write_file(path, text->data, text->len, err) : err_nomem(err, name);
    buf_clear(text);
    return status;
}

tinker_status init_tokenizer_write(const char *dir, size_t vocab, tinker_error *err)
{
    /* the end of a turn ends generation */
    static const char config[] = "{\"tokenizer_class\":\"PreTrainedTokenizerFast\","
                                 "\"eos_token\":\"<|im_end|>\",\"pad_token\":\"<|endoftext|>\","
                                 "\"clean_up_tokenization_spaces\":false}";
    struct buf text;
    struct json_writer w;
    buf_init(&text, 1 << 20);
    json_writer_init(&w, &text);
    put_tokenizer(&w, vocab);
    tinker_status status = write_tokenizer_file(dir, "tokenizer.json", &text, err);
    if (status != TINKER_OK)
        return status;
    buf_init(&text, 1 << 20);
    /* without special tokens there is none to name */
    buf_puts(&text,
             vocab >= BYTE_VOCAB ? config : "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    return write_tokenizer_file(dir, "tokenizer_config.json", &text, err);
}
