/* tok_files.h - small tokenizers for the fuzz targets, one of each kind. */
#ifndef FUZZ_TOK_FILES_H
#define FUZZ_TOK_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/tokenizer.h>
#include "base/buf.h"
#include "base/utf8.h"
#include "json/json.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/split/split.h"

enum { TOK_KINDS = 6 };

static void put_pattern(struct buf *b, const char *pattern)
{
    struct json_writer w;
    buf_puts(
        b, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_writer_init(&w, b);
    json_put_string(&w, pattern);
    buf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":false,\"use_regex\":false}]}");
}

static void put_model(struct buf *b)
{
    static const char *const merges[] = { "a b",
                                          "ab c",
                                          "t h",
                                          "th e",
                                          "\xC4\xA0 the",
                                          "a a",
                                          "aa aa",
                                          "1 2",
                                          "\xC3\xA3 \xC4\xA3",
                                          "\xC4\xA0 \xC4\xA0" };
    buf_puts(b, "\"model\":{\"vocab\":");
    struct json_writer w;
    json_writer_init(&w, b);
    json_put_begin_object(&w);
    int id = 0;
    for (; id < 256; id++) {
        char text[5] = { 0 };
        utf8_encode(bpe_byte_char((unsigned char)id), text);
        json_put_key(&w, text);
        json_put_int64(&w, id);
    }
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        char text[32];
        const char *space = strchr(merges[i], ' ');
        snprintf(text, sizeof(text), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        json_put_key(&w, text);
        json_put_int64(&w, id++);
    }
    json_put_end_object(&w);
    buf_puts(b, ",\"merges\":");
    json_writer_init(&w, b);
    json_put_begin_array(&w);
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++)
        json_put_string(&w, merges[i]);
    json_put_end_array(&w);
    buf_puts(b, "}}");
}

static const char char_level[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true}],\"normalizer\":{"
    "\"type\":"
    "\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":"
    "\"Replace\","
    "\"pattern\":{\"String\":\" "
    "\"},\"content\":\"\xE2\x96\x81\"}]},\"decoder\":{\"type\":\"Sequence\","
    "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" "
    "\"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
    "\",\"start\":1,"
    "\"stop\":0}]},\"model\":{\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":{"
    "\"<unk>\":0,\"\xE2\x96\x81\":1,\"a\":2,\"b\":3,\"\xE2\x96\x81"
    "a\":4,\"<0xC3>\":5,\"<0xA9>\":6,\"ab\":7,"
    "\"b\xE2\x96\x81\":8},\"merges\":[\"\xE2\x96\x81 a\",\"a b\",\"b \xE2\x96\x81\"]}}";

/* Kind 0..3: byte-level with a known splitter; 4: with NFC and a pattern of its own; 5: char-level. */
static tinker_tokenizer *tok_file(int kind)
{
    static tinker_tokenizer *made[TOK_KINDS];
    if (made[kind])
        return made[kind];
    const char *patterns[] = { split_gpt2_pattern, split_cl100k_pattern, split_o200k_pattern,
                               split_kimi_pattern, "\\p{L}+|\\s+(?!\\S)" };
    struct buf b;
    buf_init(&b, 1 << 20);
    if (kind == 5) {
        buf_puts(&b, char_level);
    } else {
        buf_puts(
            &b,
            "{\"added_tokens\":[{\"id\":300,\"content\":\"<|x|>\",\"special\":true},{\"id\":301,"
            "\"content\":\"<t>\",\"lstrip\":true,\"rstrip\":true,\"single_word\":true}],"
            "\"normalizer\":");
        buf_puts(&b, kind == 4 ? "{\"type\":\"NFC\"}" : "null");
        buf_puts(&b, ",\"pre_tokenizer\":");
        put_pattern(&b, patterns[kind]);
        buf_puts(&b, ",\"decoder\":{\"type\":\"ByteLevel\"},");
        put_model(&b);
    }
    tinker_error err;
    made[kind] = tinker_tokenizer_load_json(b.data, b.len, NULL, 0, NULL, &err);
    if (!made[kind]) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    buf_clear(&b);
    return made[kind];
}

#endif
