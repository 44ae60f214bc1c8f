/* tok_ranks.c - tiktoken rank files: lines "<base64 of the bytes> <rank>".
 *
 * The rank of a token is its id, and a pair may merge when its bytes together are a token: so
 * all merges follow from the list.  The pattern and the special tokens stand elsewhere and are
 * written, with the rest, as the tokenizer.json that would describe the same tokenizer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base64.h"
#include "base/err.h"
#include "tokenizer/bpe/bpe_build.h"
#include "tokenizer/load/tok_config.h"
#include "tokenizer/tokenizer.h"

enum { KIMI_RESERVED = 256 }; /* ids behind the ranks */

/* "<base64> <rank>", without the end of the line. */
static tinker_status read_rank_line(struct bpe_builder *b, const char *s, const char *end,
                                    struct buf *bytes, tinker_error *err)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    const char *space = memchr(s, ' ', (size_t)(end - s)), *digits = space ? space + 1 : end;
    uint32_t rank = 0;
    bool ok = digits < end && end - digits <= 8;
    for (const char *p = digits; ok && p < end; p++) {
        ok = *p >= '0' && *p <= '9';
        rank = rank * 10 + (uint32_t)(*p - '0');
    }
    if (!ok)
        return err_set(err, TINKER_EINVAL, "expected base64, one space and a rank");
    /* base64_decode() forgives what tiktoken does not */
    size_t n = (size_t)(space - s);
    ok = n > 0 && n % 4 == 0;
    for (size_t i = 0; ok && i < n; i++)
        ok = s[i] && strchr(alphabet, s[i]);
    buf_reset(bytes);
    if (!ok || !base64_decode(bytes, s, n) || bytes->len == 0)
        return err_set(err, TINKER_EINVAL, "the token is not base64");
    return bpe_builder_bytes(b, rank, bytes->data, bytes->len, err);
}

/* One special token of "added_tokens". */
static void put_added_token(struct json_writer *w, const char *text, size_t n, int64_t id)
{
    json_put_begin_object(w);
    json_put_key(w, "id");
    json_put_int64(w, id);
    json_put_key(w, "content");
    json_put_string_n(w, text, n);
    json_put_key(w, "normalized");
    json_put_bool(w, false);
    json_put_key(w, "special");
    json_put_bool(w, true);
    json_put_end_object(w);
}

/* Kimi: 256 ids behind the ranks, named by the configuration or reserved. */
static tinker_status put_reserved(struct json_writer *w, const struct tok_source *in,
                                  uint32_t first, struct arena *arena, tinker_error *err)
{
    struct tok_config config;
    struct tok_added *named = NULL;
    size_t n = 0;
    struct json_str none = { NULL, 0 };
    tinker_status status = tok_config_read(&config, in->config, in->config_n, arena, err);
    if (status == TINKER_OK)
        status = tok_added_read(&named, &n, none, &config, arena, err);
    if (status != TINKER_OK)
        return status;
    /* All 256 exist, whether or not the configuration names them. */
    for (uint32_t id = first; id < first + KIMI_RESERVED; id++) {
        bool found = false;
        for (size_t i = 0; i < n && !found; i++)
            found = named[i].id == id; /* comes in through the configuration */
        char text[40];
        int len = snprintf(text, sizeof(text), "<|reserved_token_%u|>", (unsigned)id);
        if (!found)
            put_added_token(w, text, (size_t)len, id);
    }
    return TINKER_OK;
}

/* The tokenizer.json of this tokenizer, without vocabulary and merges. */
static tinker_status write_json(struct buf *out, const struct tok_source *in, uint32_t n_ids,
                                struct arena *arena, tinker_error *err)
{
    struct json_writer w;
    tinker_status status = TINKER_OK;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    json_put_key(&w, "added_tokens");
    json_put_begin_array(&w);
    for (size_t i = 0; i < in->n_special; i++)
        put_added_token(&w, in->special[i].text, strlen(in->special[i].text), in->special[i].id);
    if (in->kimi)
        status = put_reserved(&w, in, n_ids, arena, err);
    json_put_end_array(&w);
    json_put_key(&w, "kimi_blocks"); /* ours; no tokenizer.json has it */
    json_put_bool(&w, in->kimi);
    json_put_key(&w, "pre_tokenizer");
    buf_puts(
        out,
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    struct json_writer text; /* one of its own, as w does not know of the text before */
    json_writer_init(&text, out);
    json_put_string(&text, in->pattern);
    buf_puts(out, "},\"behavior\":\"Removed\",\"invert\":true},{\"type\":\"ByteLevel\","
                  "\"add_prefix_space\":false,\"use_regex\":false}]},"
                  "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\"}}");
    if (status == TINKER_OK && !buf_ok(out))
        status = err_nomem(err, "tokenizer");
    return status;
}

/* The whole way; tok_build_ranks() owns the memory. */
static tinker_status build_from_ranks(struct bpe_builder *b, const struct tok_source *in,
                                      struct buf *json, struct arena *arena, struct os_map *block,
                                      tinker_error *err)
{
    const char *p = in->ranks, *stop = p + in->ranks_n;
    struct buf bytes;
    tinker_status status = TINKER_OK;
    buf_init(&bytes, 1 << 21);
    for (size_t line = 1; p < stop && status == TINKER_OK; line++) {
        const char *end = memchr(p, '\n', (size_t)(stop - p));
        end = end ? end : stop;
        const char *last = end > p && end[-1] == '\r' ? end - 1 : end;
        if (last > p) /* empty lines are none */
            status = read_rank_line(b, p, last, &bytes, err);
        if (status != TINKER_OK)
            err_prefix(err, "line %zu", line);
        p = end < stop ? end + 1 : stop;
    }
    buf_clear(&bytes);
    if (status == TINKER_OK)
        status = bpe_builder_index(b, err);
    if (status == TINKER_OK)
        status = write_json(json, in, (uint32_t)b->n_ids, arena, err);
    if (status == TINKER_OK) /* before special tokens are added: those do not merge */
        status = bpe_builder_merges_by_rank(b, err);
    if (status != TINKER_OK)
        return status;
    /* Special tokens, as tok_load.c will read them, must be in the tables, too. */
    struct json_reader r;
    struct json_str key, added = { NULL, 0 };
    struct tok_config config;
    struct tok_added *list = NULL;
    size_t n = 0;
    json_reader_init(&r, json->data, json->len, arena);
    json_begin_object(&r);
    if (json_next_key(&r, &key)) /* the first one, by write_json() */
        json_raw(&r, &added);
    status = tok_config_read(&config, in->config, in->config_n, arena, err);
    if (status == TINKER_OK)
        status = tok_added_read(&list, &n, added, &config, arena, err);
    for (size_t i = 0; status == TINKER_OK && i < n; i++)
        status = bpe_builder_added(b, &list[i].id, list[i].content.s, list[i].content.n,
                                   list[i].special, err);
    if (status == TINKER_OK)
        status = bpe_builder_finish(b, json->data, json->len, in->config, in->config_n, in->lenient,
                                    block, err);
    return status;
}

tinker_status tok_build_ranks(const struct tok_source *in, struct os_map *block, tinker_error *err)
{
    struct bpe_builder b;
    struct arena arena;
    struct buf json;
    bpe_builder_init(&b, true);
    /* tiktoken looks a piece up before it merges */
    b.ignore_merges = true; /* a piece that is a token is that token */
    arena_init(&arena, SIZE_MAX);
    buf_init(&json, SIZE_MAX);
    tinker_status status = build_from_ranks(&b, in, &json, &arena, block, err);
    buf_clear(&json);
    arena_clear(&arena);
    bpe_builder_clear(&b);
    return status;
}
