/* tok_fixture.h - small tokenizer files for tests, written here.
 *
 * A byte-level vocabulary: the 256 bytes get ids 0..255, then the result of each merge. */
#ifndef TESTS_TOKENIZER_TOK_FIXTURE_H
#define TESTS_TOKENIZER_TOK_FIXTURE_H

#include <tinker/tokenizer.h>
#include "base/buf.h"
#include "base/utf8.h"
#include "json/json.h"
#include "support/tap.h"
#include "tokenizer/bpe/bpe_build.h"

/* Merges as the file spells them, "A B"; NULL ends the list. */
static const char *const fixture_merges[] = { "h e",
                                              "l l",
                                              "he ll",
                                              "hell o",
                                              "\xC4\xA0 w",
                                              "o r",
                                              "\xC4\xA0w or",
                                              "l d",
                                              "\xC4\xA0wor ld",
                                              "a a",
                                              "aa aa",
                                              "t h",
                                              "\xC4\xA0 th",
                                              "\xC3\xA3 \xC4\xA3",
                                              "1 2",
                                              "\xC4\xA0 \xC4\xA0",
                                              NULL };

struct fixture {
    const char *added;                               /* JSON array, "[]" */
    const char *normalizer;                          /* JSON, "null" */
    const char *pre_tokenizer;                       /* JSON */
    const char *post_processor, *decoder, *settings; /* settings: ",\"ignore_merges\":true" */
    const char *const *merges;
    int pairs;     /* merges as arrays */
    int backwards; /* model first, merges before the vocabulary */
};

#define FIXTURE_BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define FIXTURE_INIT                                                                              \
    {                                                                                             \
        "[]", "null", FIXTURE_BYTE_LEVEL, "null", "{\"type\":\"ByteLevel\"}", "", fixture_merges, \
            0, 0                                                                                  \
    }

static void fixture_byte(char out[5], int byte)
{
    out[utf8_encode(bpe_byte_char((unsigned char)byte), out)] = '\0';
}

static void fixture_vocab(struct buf *b, const struct fixture *f)
{
    struct json_writer w;
    json_writer_init(&w, b);
    json_put_begin_object(&w);
    int id = 0;
    for (; id < 256; id++) {
        char text[5];
        fixture_byte(text, id);
        json_put_key(&w, text);
        json_put_int64(&w, id);
    }
    for (size_t i = 0; f->merges[i]; i++) {
        char text[64];
        const char *space = strchr(f->merges[i], ' ');
        snprintf(text, sizeof(text), "%.*s%s", (int)(space - f->merges[i]), f->merges[i],
                 space + 1);
        json_put_key(&w, text);
        json_put_int64(&w, id++);
    }
    json_put_end_object(&w);
}

static void fixture_write_merges(struct buf *b, const struct fixture *f)
{
    struct json_writer w;
    json_writer_init(&w, b);
    json_put_begin_array(&w);
    for (size_t i = 0; f->merges[i]; i++) {
        const char *space = strchr(f->merges[i], ' ');
        if (!f->pairs) {
            json_put_string(&w, f->merges[i]);
            continue;
        }
        json_put_begin_array(&w);
        json_put_string_n(&w, f->merges[i], (size_t)(space - f->merges[i]));
        json_put_string(&w, space + 1);
        json_put_end_array(&w);
    }
    json_put_end_array(&w);
}

static void fixture_model(struct buf *b, const struct fixture *f)
{
    buf_puts(b, "\"model\":{\"type\":\"BPE\"");
    buf_puts(b, f->settings);
    for (int i = 0; i < 2; i++) {
        bool vocab = i == f->backwards;
        buf_puts(b, vocab ? ",\"vocab\":" : ",\"merges\":");
        if (vocab)
            fixture_vocab(b, f);
        else
            fixture_write_merges(b, f);
    }
    buf_puts(b, "}");
}

/* The text of the file; buf_clear() it. */
static struct buf fixture_json(const struct fixture *f)
{
    struct buf b;
    buf_init(&b, SIZE_MAX);
    buf_puts(&b, "{\"version\":\"1.0\",");
    if (f->backwards) {
        fixture_model(&b, f);
        buf_puts(&b, ",");
    }
    buf_printf(&b,
               "\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,"
               "\"decoder\":%s",
               f->added, f->normalizer, f->pre_tokenizer, f->post_processor, f->decoder);
    if (!f->backwards) {
        buf_puts(&b, ",");
        fixture_model(&b, f);
    }
    buf_puts(&b, "}");
    return b;
}

static tinker_tokenizer *fixture_load(const struct fixture *f, tinker_error *err)
{
    struct buf b = fixture_json(f);
    tinker_tokenizer *t = tinker_tokenizer_load_json(b.data, b.len, NULL, 0, NULL, err);
    buf_clear(&b);
    return t;
}

/* "1 2 3" for the ids of a text. */
static const char *fixture_ids(const tinker_tokenizer *t, const char *text, size_t n,
                               const tinker_encode_options *o)
{
    static char out[4096];
    tinker_tokens ids = TINKER_TOKENS_INIT;
    tinker_error err;
    size_t at = 0;
    out[0] = '\0';
    if (tinker_tokenizer_encode(t, text, n, o, &ids, &err) != TINKER_OK)
        snprintf(out, sizeof(out), "error: %s", err.message);
    for (size_t i = 0; i < ids.n && at < sizeof(out) - 16; i++)
        at += (size_t)snprintf(out + at, sizeof(out) - at, "%s%d", i ? " " : "", (int)ids.ids[i]);
    tinker_tokens_clear(&ids);
    return out;
}

#define CHECK_IDS(t, text, want) CHECK_STR(fixture_ids(t, text, strlen(text), NULL), want)

#endif
