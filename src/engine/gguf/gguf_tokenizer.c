/* gguf_tokenizer.c - see gguf_tokenizer.h.
 *
 * Byte-level BPE: the rule that splits text is found by its regular expression, because GGUF keeps a
 * name for it.  SentencePiece's byte pairs: their scores follow from the merges. */
#include "engine/gguf/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/array.h"
#include "base/err.h"
#include "gguf/gguf_split.h"
#include "engine/gguf/gguf_model.h"
#include "engine/gguf/gguf_scores.h"
#include "json/json.h"

enum { FILE_LIMIT = 512 << 20, PATH_LIMIT = 4096 };

/* How SentencePiece writes a space. */
static const char space_mark[] = "\xe2\x96\x81";

/* What is read of the files. */
struct tokenizer_files {
    struct arena arena;
    struct gguf_token *tokens; /* by id, as many as the model has */
    size_t n;
    struct json_str merges; /* raw */
    struct json_str regex;
    bool bpe, fallback, digits;
    bool plain_split;           /* ByteLevel splits as GPT-2 does */
    bool marks, prefix;         /* spaces become space_mark; one more at the start of a text */
    bool other;                 /* the text is changed in a way that GGUF does not know */
    bool template_bos;          /* every text begins with a special token */
    struct json_str unknown;    /* the token for what has none */
    struct json_str special[3]; /* bos, eos, pad */
    struct json_str chat_template;
    int add_bos; /* -1: not said */
};

static void set_token(struct tokenizer_files *t, int64_t id, struct json_str text,
                      enum gguf_token_type type)
{
    if (id >= 0 && (uint64_t)id < t->n)
        t->tokens[id] = (struct gguf_token){ text, type };
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
            set_token(t, id, content, special ? TOKEN_CONTROL : TOKEN_USER);
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
        } else if (json_str_is(key, "unk_token") && json_peek(r) == JSON_STRING) {
            json_string(r, &t->unknown);
        } else if (json_str_is(key, "merges")) {
            json_raw(r, &t->merges);
        } else if (json_str_is(key, "vocab") && json_peek(r) == JSON_OBJECT) {
            json_begin_object(r);
            while (json_next_key(r, &text)) {
                struct json_str copy = text;
                if (json_int64(r, &id) && (uint64_t)id < t->n && id >= 0 && !t->tokens[id].text.s)
                    set_token(t, id, copy, TOKEN_NORMAL);
            }
        } else {
            json_skip(r);
        }
    }
}

/* Normalizers: SentencePiece's two, alone or in a Sequence.  Recursive as read_split(). */
static void read_normalizer(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key, text, type = { 0 }, pattern = { 0 }, content = { 0 };
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "normalizers") && json_peek(r) == JSON_ARRAY) {
            json_begin_array(r);
            while (json_next_item(r))
                read_normalizer(r, t);
        } else if (json_str_is(key, "type")) {
            json_string(r, &type);
        } else if (json_str_is(key, "content") && json_peek(r) == JSON_STRING) {
            json_string(r, &content);
        } else if (json_str_is(key, "pattern") && json_peek(r) == JSON_OBJECT) {
            json_begin_object(r);
            while (json_next_key(r, &key)) {
                if (json_str_is(key, "String") && json_string(r, &text))
                    pattern = text;
                else
                    json_skip(r);
            }
        } else {
            json_skip(r);
        }
    }
    if (json_str_is(type, "Prepend"))
        t->prefix = true;
    else if (json_str_is(type, "Replace") && json_str_is(pattern, " ") &&
             json_str_is(content, space_mark))
        t->marks = true;
    else if (!json_str_is(type, "Sequence"))
        t->other = true;
}

/* Metaspace does the same before it splits.  Where it cuts the text at every space, some merges of
 * spaces never happen, which GGUF cannot say. */
static void note_metaspace(struct tokenizer_files *t, struct json_str scheme, bool prefix,
                           bool split)
{
    t->marks = true;
    t->prefix = scheme.s ? !json_str_is(scheme, "never") : prefix;
    t->other |= split;
}

/* Does every text begin with a special token?  Recursive as read_split(). */
static void read_template(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key;
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        bool single = json_str_is(key, "single");
        if ((!single && !json_str_is(key, "processors")) || json_peek(r) != JSON_ARRAY) {
            json_skip(r);
            continue;
        }
        json_begin_array(r);
        for (size_t i = 0; json_next_item(r); i++) {
            if (!single) {
                read_template(r, t);
            } else if (i || json_peek(r) != JSON_OBJECT) {
                json_skip(r);
            } else {
                json_begin_object(r);
                while (json_next_key(r, &key)) {
                    t->template_bos |= json_str_is(key, "SpecialToken");
                    json_skip(r);
                }
            }
        }
    }
}

/* The regular expression of the first Split in a pre-tokenizer, also inside a Sequence.
 * Recursive over Sequences, whose depth the JSON reader bounds. */
static void read_split(struct json_reader *r, struct tokenizer_files *t)
{
    struct json_str key, text, scheme = { 0 };
    bool metaspace = false, prefix = true, split = true; /* as they are where nothing is said */
    if (json_peek(r) != JSON_OBJECT) {
        json_skip(r);
        return;
    }
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "type") && json_string(r, &text)) {
            t->digits |= json_str_is(text, "Digits");
            metaspace = json_str_is(text, "Metaspace");
        } else if (json_str_is(key, "prepend_scheme") && json_peek(r) == JSON_STRING) {
            json_string(r, &scheme);
        } else if (json_str_is(key, "add_prefix_space") && json_peek(r) == JSON_BOOL) {
            json_bool(r, &prefix);
        } else if (json_str_is(key, "split") && json_peek(r) == JSON_BOOL) {
            json_bool(r, &split);
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
    if (metaspace)
        note_metaspace(t, scheme, prefix, split);
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
        else if (json_str_is(key, "normalizer"))
            read_normalizer(&r, t);
        else if (json_str_is(key, "post_processor"))
            read_template(&r, t);
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
        struct json_str part[2];
        size_t n = 0;
        json_reader_init(&r, t->merges.s, t->merges.n, &t->arena);
        json_begin_array(&r);
        while (json_next_item(&r)) {
            n++;
            if (counting) {
                json_skip(&r);
                continue;
            }
            char *joined = gguf_read_merge(&r, part)
                               ? arena_printf(&t->arena, "%.*s %.*s", (int)part[0].n, part[0].s,
                                              (int)part[1].n, part[1].s)
                               : NULL;
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
        gguf_add_i32(w, t->tokens[i].text.s ? (int32_t)t->tokens[i].type : TOKEN_UNUSED);
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

/* Byte-level BPE: the name of its split, and the merges. */
static tinker_status put_byte_level(struct gguf_writer *w, struct tokenizer_files *t,
                                    const char *dir, tinker_error *err)
{
    if (!t->regex.s && !t->plain_split)
        return err_set(
            err, TINKER_EINVAL,
            "%s/tokenizer.json is not byte-level BPE with a split that GGUF names; export "
            "the merged model in Hugging Face format and convert that",
            dir);
    const char *pre = t->regex.s  ? gguf_split_name(t->regex.s, t->regex.n, t->digits)
                      : t->digits ? "starcoder"
                                  : "gpt-2";
    if (!pre)
        return err_set(
            err, TINKER_EINVAL,
            "%s/tokenizer.json splits text in a way that GGUF has no name for; export the "
            "merged model in Hugging Face format and convert that",
            dir);
    gguf_put_string(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(w, "tokenizer.ggml.pre", pre, strlen(pre));
    put_tokens(w, t);
    return put_merges(w, t, err);
}

/* A token of the user's own is looked for in the text as it came, whose spaces are spaces yet. */
static tinker_status unmark_spaces(struct tokenizer_files *t, struct gguf_token *token,
                                   tinker_error *err)
{
    const size_t mark = sizeof(space_mark) - 1;
    char *text = arena_array(&t->arena, token->text.n + 1, 1);
    size_t n = 0;
    if (!text)
        return err_nomem(err, "tokens");
    for (size_t i = 0; i < token->text.n; n++) {
        bool marked = i + mark <= token->text.n && memcmp(token->text.s + i, space_mark, mark) == 0;
        text[n] = marked ? ' ' : token->text.s[i];
        i += marked ? mark : 1;
    }
    token->text = (struct json_str){ text, n };
    return TINKER_OK;
}

/* SentencePiece's byte pairs: scores instead of merges, and types for bytes and the unknown. */
static tinker_status put_sentence_piece(struct gguf_writer *w, struct tokenizer_files *t,
                                        const char *dir, tinker_error *err)
{
    if (!t->marks || t->other || t->regex.s || t->digits)
        return err_set(err, TINKER_EINVAL,
                       "%s/tokenizer.json changes or splits text in a way that GGUF does not know; "
                       "export the merged model in Hugging Face format and convert that",
                       dir);
    int64_t unknown = find_token(t, t->unknown);
    tinker_status status = TINKER_OK;
    for (size_t i = 0; status == TINKER_OK && i < t->n; i++) {
        struct gguf_token *token = &t->tokens[i];
        struct json_str text = token->text;
        if ((int64_t)i == unknown)
            token->type = TOKEN_UNKNOWN;
        else if (token->type == TOKEN_NORMAL && text.n == strlen("<0x00>") &&
                 memcmp(text.s, "<0x", 3) == 0 && text.s[5] == '>')
            token->type = TOKEN_BYTE;
        else if (token->type == TOKEN_USER)
            status = unmark_spaces(t, token, err);
    }
    float *scores = arena_array(&t->arena, t->n, sizeof(*scores));
    if (status == TINKER_OK && !scores)
        status = err_nomem(err, "scores");
    if (status == TINKER_OK)
        status = gguf_scores(t->tokens, t->n, t->merges, &t->arena, scores, err);
    if (status != TINKER_OK)
        return status;
    gguf_put_string(w, "tokenizer.ggml.model", "llama", 5);
    gguf_put_string(w, "tokenizer.ggml.pre", "default", 7);
    put_tokens(w, t);
    gguf_put_array(w, "tokenizer.ggml.scores", GGUF_F32, t->n);
    for (size_t i = 0; i < t->n; i++)
        gguf_add_f32(w, scores[i]);
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", t->prefix);
    if (unknown >= 0)
        gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", (uint32_t)unknown);
    return TINKER_OK;
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
    if (!t->bpe || !t->merges.s)
        return err_set(err, TINKER_EINVAL,
                       "%s/tokenizer.json is not BPE, which GGUF wants; export the merged model in "
                       "Hugging Face format and convert that",
                       e->dir);
    /* where nothing is merged, no split matters */
    t->plain_split |= t->merges.n == strlen("[]");
    int64_t ends[3];
    for (size_t i = 0; i < 3; i++)
        ends[i] = find_token(t, t->special[i]);
    status =
        t->fallback ? put_sentence_piece(w, t, e->dir, err) : put_byte_level(w, t, e->dir, err);
    if (status != TINKER_OK)
        return status;
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
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token",
                  ends[0] >= 0 && (t->add_bos < 0 ? t->template_bos : t->add_bos > 0));
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
