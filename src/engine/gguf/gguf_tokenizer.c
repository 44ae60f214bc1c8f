/* gguf_tokenizer.c - see gguf_tokenizer.h.
 *
 * Byte-level BPE only: the rule that splits text is found by its regular expression, because GGUF
 * keeps a name for it.  A tokenizer.json of SentencePiece has lost the scores that GGUF wants. */
#include "engine/gguf/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/array.h"
#include "base/err.h"
#include "gguf/gguf_split.h"
#include "engine/gguf/gguf_model.h"
#include "json/json.h"

enum { FILE_LIMIT = 512 << 20, PATH_LIMIT = 4096 };
enum token_type { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5 };

struct token {
    struct json_str text;
    enum token_type type;
};

/* What is read of the files. */
struct tokenizer_files {
    struct arena arena;
    struct token *tokens; /* by id, as many as the model has */
    size_t n;
    struct json_str merges; /* raw */
    struct json_str regex;
    bool bpe, fallback, digits;
    bool plain_split;           /* ByteLevel splits as GPT-2 does */
    struct json_str special[3]; /* bos, eos, pad */
    struct json_str chat_template;
    int add_bos; /* -1: not said */
};

static void set_token(struct tokenizer_files *t, int64_t id, struct json_str text,
                      enum token_type type)
{
    if (id >= 0 && (uint64_t)id < t->n)
        t->tokens[id] = (struct token){ text, type };
}

static void read_added(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key;
    json_begin_array(r);
    while (json_next_item(r)) {
        struct json_str content = { 0 };
        int64_t id = -1;
        bool special = false;
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (json_str_is(key, "id"))
                json_int64(r, &id);
            else if (json_str_is(key, "content"))
                json_string(r, &content);
            else if (json_str_is(key, "special"))
                json_bool(r, &special);
            else
                json_skip(r);
        }
        if (content.s)
            set_token(t, id, content, special ? TYPE_CONTROL : TYPE_USER);
    }
}

/* The vocabulary may list added tokens again: an id that has a text already keeps it. */
static void read_model(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key, text;
    int64_t id;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "type") && json_string(r, &text)) {
            t->bpe = json_str_is(text, "BPE");
        } else if (json_str_is(key, "byte_fallback") && json_peek(r) == JSON_BOOL) {
            json_bool(r, &t->fallback);
        } else if (json_str_is(key, "merges")) {
            json_raw(r, &t->merges);
        } else if (json_str_is(key, "vocab") && json_peek(r) == JSON_OBJECT) {
            json_begin_object(r);
            while (json_next_key(r, &text)) {
                struct json_str copy = text;
                if (json_int64(r, &id) && (uint64_t)id < t->n && id >= 0 && !t->tokens[id].text.s)
                    set_token(t, id, copy, TYPE_NORMAL);
            }
        } else {
            json_skip(r);
        }
    }
}

/* The regular expression of the first Split in a pre-tokenizer, also inside a Sequence.
 * Recursive over Sequences, whose depth the JSON reader bounds. */
static void read_split(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key, text;
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "type") && json_string(r, &text)) {
            t->digits |= json_str_is(text, "Digits");
        } else if (json_str_is(key, "use_regex") && json_peek(r) == JSON_BOOL) {
            json_bool(r, &t->plain_split);
        } else if (json_str_is(key, "pretokenizers") && json_peek(r) == JSON_ARRAY) {
            json_begin_array(r);
            while (json_next_item(r))
                read_split(r, t);
        } else if (json_str_is(key, "pattern") && json_peek(r) == JSON_OBJECT) {
            json_begin_object(r);
            while (json_next_key(r, &key)) {
                if (json_str_is(key, "Regex") && json_string(r, &text) && !t->regex.s)
                    t->regex = text;
                else
                    json_skip(r);
            }
        } else {
            json_skip(r);
        }
    }
}

/* A name, or an object with its "content". */
static void read_special(struct json_reader *r, struct json_str *out)
{
    struct json_str key;
    if (json_peek(r) == JSON_STRING) {
        json_string(r, out);
    } else if (json_peek(r) == JSON_OBJECT) {
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (json_str_is(key, "content"))
                json_string(r, out);
            else
                json_skip(r);
        }
    } else {
        json_skip(r);
    }
}

static void read_settings(struct json_reader *r, struct tokenizer_files *t)
{
    static const char *const names[3] = { "bos_token", "eos_token", "pad_token" };
    struct json_str key;
    bool on;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        size_t i = 0;
        while (i < 3 && !json_str_is(key, names[i]))
            i++;
        if (i < 3)
            read_special(r, &t->special[i]);
        else if (json_str_is(key, "add_bos_token") && json_peek(r) == JSON_BOOL)
            t->add_bos = json_bool(r, &on) && on;
        else if (json_str_is(key, "chat_template") && json_peek(r) == JSON_STRING)
            json_string(r, &t->chat_template);
        else
            json_skip(r);
    }
}

/* A file of the directory, kept in the arena; n 0: there is none. */
static tinker_status read_companion(struct tokenizer_files *t, const char *dir, const char *name,
                                    struct json_str *out, tinker_error *err)
{
    char path[PATH_LIMIT], *text;
    *out = (struct json_str){ 0 };
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= PATH_LIMIT || access(path, F_OK) != 0)
        return TINKER_OK;
    size_t n;
    tinker_status status = os_read_file(path, FILE_LIMIT, &text, &n, err);
    if (status != TINKER_OK)
        return status;
    out->s = arena_memdup(&t->arena, text, n + 1);
    out->n = n;
    free(text);
    return out->s ? TINKER_OK : err_nomem(err, name);
}

static tinker_status read_tokenizer_files(struct tokenizer_files *t, const char *dir,
                                          tinker_error *err)
{
    struct json_str json, settings, jinja, key;
    struct json_reader r;
    tinker_status status = read_companion(t, dir, "tokenizer.json", &json, err);
    if (status == TINKER_OK)
        status = read_companion(t, dir, "tokenizer_config.json", &settings, err);
    if (status == TINKER_OK)
        status = read_companion(t, dir, "chat_template.jinja", &jinja, err);
    if (status != TINKER_OK)
        return status;
    if (!json.n)
        return err_set(err, TINKER_EINVAL, "%s: no tokenizer.json, which a GGUF file needs", dir);
    json_reader_init(&r, json.s, json.n, &t->arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        if (json_str_is(key, "added_tokens"))
            read_added(&r, t);
        else if (json_str_is(key, "model"))
            read_model(&r, t);
        else if (json_str_is(key, "pre_tokenizer"))
            read_split(&r, t);
        else
            json_skip(&r);
    }
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "%s/tokenizer.json: %s", dir, json_error(&r));
    if (settings.n) {
        json_reader_init(&r, settings.s, settings.n, &t->arena);
        read_settings(&r, t);
        if (!json_end(&r))
            return err_set(err, TINKER_EINVAL, "%s/tokenizer_config.json: %s", dir, json_error(&r));
    }
    if (jinja.n)
        t->chat_template = jinja;
    return TINKER_OK;
}

/* Merges as "left right", from strings or pairs.  Two walks: an array says its length first. */
static tinker_status put_merges(struct gguf_writer *w, struct tokenizer_files *t, tinker_error *err)
{
    for (int counting = 1; counting >= 0; counting--) {
        struct json_reader r;
        struct json_str a, b;
        size_t n = 0;
        json_reader_init(&r, t->merges.s, t->merges.n, &t->arena);
        json_begin_array(&r);
        while (json_next_item(&r)) {
            n++;
            if (counting) {
                json_skip(&r);
                continue;
            }
            if (json_peek(&r) == JSON_STRING) {
                if (json_string(&r, &a))
                    gguf_add_string(w, a.s, a.n);
                continue;
            }
            bool pair = json_begin_array(&r) && json_next_item(&r) && json_string(&r, &a) &&
                        json_next_item(&r) && json_string(&r, &b) && !json_next_item(&r);
            char *joined =
                pair ? arena_printf(&t->arena, "%.*s %.*s", (int)a.n, a.s, (int)b.n, b.s) : NULL;
            if (joined)
                gguf_add_string(w, joined, strlen(joined));
        }
        if (!json_end(&r))
            return err_set(err, TINKER_EINVAL, "tokenizer.json: merges: %s", json_error(&r));
        if (counting)
            gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, n);
    }
    return TINKER_OK;
}

static void put_tokens(struct gguf_writer *w, struct tokenizer_files *t)
{
    gguf_put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, t->n);
    for (size_t i = 0; i < t->n; i++) {
        char unused[32];
        struct json_str text = t->tokens[i].text;
        if (!text.s) { /* a row of the embedding that no text has */
            snprintf(unused, sizeof(unused), "[PAD%zu]", i);
            text = (struct json_str){ unused, strlen(unused) };
        }
        gguf_add_string(w, text.s, text.n);
    }
    gguf_put_array(w, "tokenizer.ggml.token_type", GGUF_I32, t->n);
    for (size_t i = 0; i < t->n; i++)
        gguf_add_i32(w, t->tokens[i].text.s ? (int32_t)t->tokens[i].type : TYPE_UNUSED);
}

/* The id of a special token's text; -1: none. */
static int64_t find_token(const struct tokenizer_files *t, struct json_str text)
{
    for (size_t i = 0; text.s && i < t->n; i++)
        if (t->tokens[i].text.s && t->tokens[i].text.n == text.n &&
            memcmp(t->tokens[i].text.s, text.s, text.n) == 0)
            return (int64_t)i;
    return -1;
}

static tinker_status put_directory(struct gguf_writer *w, struct tokenizer_files *t,
                                   const tinker_engine *e, tinker_error *err)
{
    static const char *const keys[3] = { "tokenizer.ggml.bos_token_id",
                                         "tokenizer.ggml.eos_token_id",
                                         "tokenizer.ggml.padding_token_id" };
    const struct model_config *c = &e->model->config;
    tinker_status status = read_tokenizer_files(t, e->dir, err);
    if (status != TINKER_OK)
        return status;
    /* where nothing is merged, no split matters */
    t->plain_split |= t->merges.n == strlen("[]");
    if (!t->bpe || t->fallback || (!t->regex.s && !t->plain_split) || !t->merges.s)
        return err_set(
            err, TINKER_EINVAL,
            "%s/tokenizer.json is not byte-level BPE with a split that GGUF names; export "
            "the merged model in Hugging Face format and convert that",
            e->dir);
    const char *pre = t->regex.s  ? gguf_split_name(t->regex.s, t->regex.n, t->digits)
                      : t->digits ? "starcoder"
                                  : "gpt-2";
    if (!pre)
        return err_set(
            err, TINKER_EINVAL,
            "%s/tokenizer.json splits text in a way that GGUF has no name for; export the "
            "merged model in Hugging Face format and convert that",
            e->dir);
    gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    put_tokens(w, t);
    status = put_merges(w, t, err);
    int64_t ends[3];
    for (size_t i = 0; i < 3; i++)
        ends[i] = find_token(t, t->special[i]);
    /* what the model itself stops at wins over the tokenizer's name for it */
    if (ends[1] < 0 && c->n_eos)
        ends[1] = c->eos[0];
    for (size_t i = 0; i < 3; i++)
        if (ends[i] >= 0)
            gguf_put_u32(w, keys[i], (uint32_t)ends[i]);
    for (size_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] != ends[1]) {
            gguf_put_u32(w, "tokenizer.ggml.eot_token_id", (uint32_t)c->eos[i]);
            break;
        }
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", t->add_bos > 0);
    if (t->chat_template.s)
        gguf_put_string(w, "tokenizer.chat_template", t->chat_template.s, t->chat_template.n);
    return status;
}

/* Everything that the file says about its tokenizer, byte for byte. */
static void copy_values(struct gguf_writer *w, const struct gguf *g)
{
    const char *key;
    size_t it = 0, n;
    void *value;
    while (map_next(&g->keys, &it, &key, &n, &value))
        if (n > 10 && memcmp(key, "tokenizer.", 10) == 0)
            gguf_put_value(w, key, n, value);
}

tinker_status gguf_put_tokenizer(struct gguf_writer *w, const tinker_engine *e, tinker_error *err)
{
    if (e->gguf) {
        copy_values(w, &e->gguf->file);
        return TINKER_OK;
    }
    struct tokenizer_files t = { .n = e->model->config.vocab, .add_bos = -1 };
    arena_init(&t.arena, SIZE_MAX);
    t.tokens = arena_array(&t.arena, t.n, sizeof(*t.tokens));
    tinker_status status = t.tokens ? put_directory(w, &t, e, err) : err_nomem(err, "tokenizer");
    arena_clear(&t.arena);
    return status;
}
