/* tok_gguf.c - see tok_gguf.h.
 *
 * GGUF keeps the vocabulary, its merges or scores, and the name of the rule that splits text
 * ("pre"), but not the rule.  What follows from these names is written out as the tokenizer.json
 * that such models have, so that one loader makes every tokenizer.  Two kinds exist: "gpt2", byte
 * pairs in the letters of byte-level BPE with a list of merges; and "llama", SentencePiece's byte
 * pairs, whose merges follow from the scores of the tokens. */
#include "tokenizer/load/tok_gguf.h"

#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "gguf/gguf_split.h"
#include "base/utf8.h"
#include "json/json.h"

/* The numbers of llama.cpp's token types. */
enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

/* The lists of a file, checked against each other. */
struct gguf_vocab {
    const struct gguf *g;
    bool spm; /* kind "llama" */
    const struct gguf_split *split;
    size_t n;
    struct json_str *tokens; /* borrowed from the file */
    const struct gguf_value *types, *scores, *merges;
};

static enum token_type token_type(const struct gguf_vocab *v, size_t i)
{
    /* Files of byte-level BPE may leave the list out: all tokens are ordinary ones. */
    return v->types ? (enum token_type)(int)gguf_number(v->types, i) : TYPE_NORMAL;
}

static bool is_utf8(const char *s, size_t n)
{
    return utf8_valid_prefix(s, n) == n;
}

/* Texts that are found before anything is split. */
static bool is_added(enum token_type type)
{
    return type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN;
}

static const struct gguf_value *find_list(const struct gguf *g, const char *key, bool strings)
{
    const struct gguf_value *list = gguf_get(g, key);
    return list && list->array && (list->type == GGUF_STRING) == strings ? list : NULL;
}

static tinker_status refuse_vocab(const struct gguf_vocab *v, const char *why, tinker_error *err)
{
    return err_set(err, TINKER_EINVAL, "%s: %s", v->g->path, why);
}

/* llama: SentencePiece, scores instead of merges.  gpt2: BPE of bytes with a list of merges, whose way
 * to split text is only named (tokenizer.ggml.pre) and nowhere described. */
static tinker_status choose_kind(struct gguf_vocab *v, tinker_error *err)
{
    const char *s;
    size_t n;
    if (!gguf_get_string(v->g, "tokenizer.ggml.model", &s, &n))
        return refuse_vocab(v, "no tokenizer.ggml.model in it", err);
    /* "llama" also stands for models of other families whose tokenizer is SentencePiece's. */
    v->spm = n == 5 && memcmp(s, "llama", 5) == 0;
    if (v->spm)
        return TINKER_OK;
    if (n != 4 || memcmp(s, "gpt2", 4) != 0)
        return err_set(err, TINKER_EINVAL,
                       "%s: tokenizer kind %.*s is not supported (gpt2 and llama are)", v->g->path,
                       n > 40 ? 40 : (int)n, s);
    if (!gguf_get_string(v->g, "tokenizer.ggml.pre", &s, &n))
        return refuse_vocab(v,
                            "no tokenizer.ggml.pre says how to split text; give the model's "
                            "tokenizer.json with --tokenizer",
                            err);
    v->split = gguf_split_find(s, n);
    if (!v->split)
        return err_set(err, TINKER_EINVAL,
                       "%s: tokenizer.ggml.pre %.*s is not known; give the model's tokenizer.json "
                       "with --tokenizer",
                       v->g->path, n > 40 ? 40 : (int)n, s);
    return TINKER_OK;
}

/* Tokens, and the lists beside them that must be as long. */
static tinker_status read_lists(struct gguf_vocab *v, struct arena *arena, tinker_error *err)
{
    const struct gguf_value *tokens = find_list(v->g, "tokenizer.ggml.tokens", true);
    v->types = find_list(v->g, "tokenizer.ggml.token_type", false);
    v->scores = find_list(v->g, "tokenizer.ggml.scores", false);
    v->merges = find_list(v->g, "tokenizer.ggml.merges", true);
    if (!tokens || tokens->n == 0 || tokens->n > INT32_MAX)
        return refuse_vocab(v, "no tokenizer.ggml.tokens in it", err);
    if (v->spm ? !v->scores : !v->merges)
        return refuse_vocab(
            v, v->spm ? "no tokenizer.ggml.scores in it" : "no tokenizer.ggml.merges in it", err);
    if ((v->types && v->types->n != tokens->n) || (v->spm && v->scores->n != tokens->n))
        return refuse_vocab(v, "token_type or scores are not as many as tokens", err);
    v->n = (size_t)tokens->n;
    v->tokens = arena_array(arena, v->n, sizeof(*v->tokens));
    if (!v->tokens)
        return err_nomem(err, v->g->path);
    for (size_t i = 0, at = 0; i < v->n; i++) {
        gguf_next_string(tokens, &at, &v->tokens[i].s, &v->tokens[i].n);
        /* A name in JSON must be text; byte-level tokens are written in letters, so none is refused
         * wrongly. */
        if (!is_utf8(v->tokens[i].s, v->tokens[i].n))
            return err_set(err, TINKER_EINVAL, "%s: token %zu is not UTF-8", v->g->path, i);
    }
    return TINKER_OK;
}

/* They are found in the text as it came, before any normalization.  Control tokens are special, which
 * user input must not produce; those of the user's own are ordinary text. */
static void put_added(struct json_writer *w, const struct gguf_vocab *v)
{
    json_put_key(w, "added_tokens");
    json_put_begin_array(w);
    for (size_t i = 0; i < v->n; i++) {
        enum token_type type = token_type(v, i);
        if (!is_added(type) || v->tokens[i].n == 0)
            continue;
        json_put_begin_object(w);
        json_put_key(w, "id");
        json_put_uint64(w, i);
        json_put_key(w, "content");
        json_put_string_n(w, v->tokens[i].s, v->tokens[i].n);
        json_put_key(w, "normalized");
        json_put_bool(w, false);
        json_put_key(w, "special");
        json_put_bool(w, type != TYPE_USER);
        json_put_end_object(w);
    }
    json_put_end_array(w);
}

/* Byte-level tokens without those that are added; SentencePiece's all, because its unknown token
 * and its bytes are looked up there. */
static void put_vocab(struct json_writer *w, const struct gguf_vocab *v)
{
    json_put_key(w, "vocab");
    json_put_begin_object(w);
    for (size_t i = 0; i < v->n; i++) {
        if (!v->spm && is_added(token_type(v, i)))
            continue;
        json_put_key_n(w, v->tokens[i].s, v->tokens[i].n);
        json_put_uint64(w, i);
    }
    json_put_end_object(w);
}

/* "left right": no part has a blank in it, since BPE of bytes writes a blank as another character. */
static tinker_status put_listed_merges(struct json_writer *w, const struct gguf_vocab *v,
                                       tinker_error *err)
{
    for (uint64_t i = 0, at = 0; i < v->merges->n; i++) {
        const char *s;
        size_t n, place = (size_t)at;
        /* gguf_next_string() counts bytes in a size_t; `at` goes on with the value that it left. */
        gguf_next_string(v->merges, &place, &s, &n);
        at = place;
        const char *space = memchr(s, ' ', n);
        if (!space || space == s || space == s + n - 1 || !is_utf8(s, n) ||
            memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
            return err_set(err, TINKER_EINVAL, "%s: merge %llu is not two parts with one space",
                           v->g->path, (unsigned long long)i);
        json_put_string_n(w, s, n);
    }
    return TINKER_OK;
}

/* A merge that follows from the scores: tokens a and b make `token`. */
struct merge {
    float score;
    int32_t token, a, b;
};

/* The highest score first; equal ones in the order of the vocabulary. */
static int compare_merges(const void *x, const void *y)
{
    const struct merge *a = x, *b = y;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    /* A token may be cut in several ways, each of which is a merge of its own. */
    if (a->token != b->token)
        return a->token < b->token ? -1 : 1;
    return a->a != b->a ? (a->a < b->a ? -1 : 1) : (a->b > b->b) - (a->b < b->b);
}

static bool is_merged(enum token_type type)
{
    return type == TYPE_NORMAL;
}

/* Every cut of every normal token into two that are tokens. */
static tinker_status find_merges(const struct gguf_vocab *v, struct merge **out, size_t *n,
                                 tinker_error *err)
{
    struct map ids; /* to index + 1 */
    size_t cap = 0;
    tinker_status status = TINKER_OK;
    map_init(&ids);
    for (size_t i = 0; i < v->n && status == TINKER_OK; i++)
        if (is_merged(token_type(v, i)) && v->tokens[i].n &&
            !map_put(&ids, v->tokens[i].s, v->tokens[i].n, (void *)(uintptr_t)(i + 1), NULL))
            status = err_nomem(err, "merges");
    for (size_t i = 0; i < v->n && status == TINKER_OK; i++) {
        struct json_str t = v->tokens[i];
        for (size_t cut = 1; is_merged(token_type(v, i)) && cut < t.n; cut++) {
            if (((unsigned char)t.s[cut] & 0xc0) == 0x80)
                continue; /* inside a character */
            size_t a = (size_t)(uintptr_t)map_get(&ids, t.s, cut);
            size_t b = a ? (size_t)(uintptr_t)map_get(&ids, t.s + cut, t.n - cut) : 0;
            if (!b)
                continue;
            if (*n == cap) {
                cap = cap ? 2 * cap : 4096;
                struct merge *grown = realloc(*out, cap * sizeof(*grown));
                if (!grown) {
                    status = err_nomem(err, "merges");
                    break;
                }
                *out = grown;
            }
            (*out)[(*n)++] = (struct merge){ (float)gguf_number(v->scores, i), (int32_t)i,
                                             (int32_t)(a - 1), (int32_t)(b - 1) };
        }
    }
    map_clear(&ids);
    return status;
}

/* As pairs: a part may contain the space that would otherwise separate them. */
static tinker_status put_scored_merges(struct json_writer *w, const struct gguf_vocab *v,
                                       tinker_error *err)
{
    struct merge *merges = NULL;
    size_t n = 0;
    tinker_status status = find_merges(v, &merges, &n, err);
    if (n)
        qsort(merges, n, sizeof(*merges), compare_merges);
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        json_put_begin_array(w);
        json_put_string_n(w, v->tokens[merges[i].a].s, v->tokens[merges[i].a].n);
        json_put_string_n(w, v->tokens[merges[i].b].s, v->tokens[merges[i].b].n);
        json_put_end_array(w);
    }
    free(merges);
    return status;
}

/* The id that a key names; false: none, or not one of the vocabulary. */
static bool find_id(const struct gguf_vocab *v, const char *key, size_t *out)
{
    int64_t id;
    if (!gguf_get_int(v->g, key, &id) || id < 0 || (uint64_t)id >= v->n)
        return false;
    *out = (size_t)id;
    return true;
}

/* byte_fallback and fuse_unk are what SentencePiece does: a character without a token becomes its
 * bytes <0xNN>, and where these are missing neighbors become one unknown token. */
static tinker_status put_model(struct json_writer *w, const struct gguf_vocab *v, tinker_error *err)
{
    size_t unknown;
    json_put_key(w, "model");
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, "BPE");
    json_put_key(w, "byte_fallback");
    json_put_bool(w, v->spm);
    json_put_key(w, "fuse_unk");
    json_put_bool(w, v->spm);
    json_put_key(w, "ignore_merges");
    json_put_bool(w, v->split && v->split->whole);
    if (v->spm && find_id(v, "tokenizer.ggml.unknown_token_id", &unknown)) {
        json_put_key(w, "unk_token");
        json_put_string_n(w, v->tokens[unknown].s, v->tokens[unknown].n);
    }
    put_vocab(w, v);
    json_put_key(w, "merges");
    json_put_begin_array(w);
    tinker_status status = v->spm ? put_scored_merges(w, v, err) : put_listed_merges(w, v, err);
    json_put_end_array(w);
    json_put_end_object(w);
    return status;
}

static void put_item(struct json_writer *w, const char *json)
{
    json_put_raw(w, json, strlen(json));
}

static void put_text(struct json_writer *w, const char *key, const char *json)
{
    json_put_key(w, key);
    json_put_raw(w, json, strlen(json));
}

/* Text to pieces of byte-level letters, and back. */
static void put_byte_level(struct json_writer *w, const struct gguf_split *split)
{
    static const char level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                "\"trim_offsets\":true,\"use_regex\":false}";
    put_text(w, "normalizer", split->nfc ? "{\"type\":\"NFC\"}" : "null");
    put_text(w, "decoder", level);
    json_put_key(w, "pre_tokenizer");
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, "Sequence");
    json_put_key(w, "pretokenizers");
    json_put_begin_array(w);
    if (split->digits)
        put_item(w, "{\"type\":\"Digits\",\"individual_digits\":true}");
    json_put_begin_object(w);
    json_put_key(w, "type");
    json_put_string(w, "Split");
    json_put_key(w, "pattern");
    json_put_begin_object(w);
    json_put_key(w, "Regex");
    json_put_string(w, split->regex);
    json_put_end_object(w);
    put_text(w, "behavior", "\"Isolated\"");
    put_text(w, "invert", "false");
    json_put_end_object(w);
    json_put_raw(w, level, sizeof(level) - 1);
    json_put_end_array(w);
    json_put_end_object(w);
}

/* Spaces to U+2581 and back; with a space before the text unless the file says otherwise. */
static void put_sentence_piece(struct json_writer *w, const struct gguf *g)
{
    bool prefix = true;
    gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
    put_text(w, "pre_tokenizer", "null");
    put_text(w, "normalizer",
             prefix ? "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                      "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                      "\"content\":\"\xe2\x96\x81\"}]}"
                    : "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                      "\"\xe2\x96\x81\"}");
    put_text(w, "decoder",
             prefix
                 ? "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                   "{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                   "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
                   "\"stop\":0}]}"
                 : "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                   "{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                   "{\"type\":\"Fuse\"}]}");
}

/* What stands before and behind every text: the beginning and end tokens that are asked for. */
static void put_template(struct json_writer *w, const struct gguf_vocab *v)
{
    size_t id[2];
    /* The beginning token is the default of the family, which the file may overrule; an end token
     * must be asked for. */
    bool add[2] = { v->spm || v->split->bos, false };
    gguf_get_bool(v->g, "tokenizer.ggml.add_bos_token", &add[0]);
    gguf_get_bool(v->g, "tokenizer.ggml.add_eos_token", &add[1]);
    add[0] &= find_id(v, "tokenizer.ggml.bos_token_id", &id[0]);
    add[1] &= find_id(v, "tokenizer.ggml.eos_token_id", &id[1]);
    json_put_key(w, "post_processor");
    if (!add[0] && !add[1]) {
        json_put_null(w);
        return;
    }
    json_put_begin_object(w);
    put_text(w, "type", "\"TemplateProcessing\"");
    json_put_key(w, "single");
    json_put_begin_array(w);
    for (int i = 0; i < 2; i++) {
        if (add[i]) {
            json_put_begin_object(w);
            json_put_key(w, "SpecialToken");
            json_put_begin_object(w);
            json_put_key(w, "id");
            json_put_string_n(w, v->tokens[id[i]].s, v->tokens[id[i]].n);
            put_text(w, "type_id", "0");
            json_put_end_object(w);
            json_put_end_object(w);
        }
        if (i == 0)
            put_item(w, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    }
    json_put_end_array(w);
    put_text(w, "pair", "[]");
    json_put_key(w, "special_tokens");
    json_put_begin_object(w);
    for (int i = 0; i < 2; i++) {
        /* One token for both ends stands once in an object. */
        if (!add[i] || (i == 1 && add[0] && id[0] == id[1]))
            continue;
        json_put_key_n(w, v->tokens[id[i]].s, v->tokens[id[i]].n);
        json_put_begin_object(w);
        json_put_key(w, "id");
        json_put_string_n(w, v->tokens[id[i]].s, v->tokens[id[i]].n);
        json_put_key(w, "ids");
        json_put_begin_array(w);
        json_put_uint64(w, id[i]);
        json_put_end_array(w);
        json_put_key(w, "tokens");
        json_put_begin_array(w);
        json_put_string_n(w, v->tokens[id[i]].s, v->tokens[id[i]].n);
        json_put_end_array(w);
        json_put_end_object(w);
    }
    json_put_end_object(w);
    json_put_end_object(w);
}

/* tokenizer_config.json: names of special tokens and the chat template. */
static void put_config(struct json_writer *w, const struct gguf_vocab *v)
{
    static const char *const names[][2] = {
        { "tokenizer.ggml.bos_token_id", "bos_token" },
        { "tokenizer.ggml.eos_token_id", "eos_token" },
        { "tokenizer.ggml.padding_token_id", "pad_token" },
        { "tokenizer.ggml.unknown_token_id", "unk_token" },
    };
    const char *s;
    size_t n, id;
    json_put_begin_object(w);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (find_id(v, names[i][0], &id)) {
            json_put_key(w, names[i][1]);
            json_put_string_n(w, v->tokens[id].s, v->tokens[id].n);
        }
    /* A template that is not text would break the whole configuration, so it is left out. */
    if (gguf_get_string(v->g, "tokenizer.chat_template", &s, &n) && is_utf8(s, n)) {
        json_put_key(w, "chat_template");
        json_put_string_n(w, s, n);
    }
    json_put_end_object(w);
}

/* Written as a tokenizer.json, so that one loader serves both kinds of file. */
static tinker_status put_tokenizer(struct json_writer *w, const struct gguf_vocab *v,
                                   tinker_error *err)
{
    json_put_begin_object(w);
    put_text(w, "version", "\"1.0\"");
    put_added(w, v);
    if (v->spm)
        put_sentence_piece(w, v->g);
    else
        put_byte_level(w, v->split);
    put_template(w, v);
    tinker_status status = put_model(w, v, err);
    json_put_end_object(w);
    return status;
}

tinker_status tok_gguf_describe(const struct gguf *g, struct buf *json, struct buf *config,
                                tinker_error *err)
{
    struct gguf_vocab v = { .g = g };
    struct json_writer w;
    struct arena arena;
    const char *whole;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    tinker_status status = choose_kind(&v, err);
    if (status == TINKER_OK)
        status = read_lists(&v, &arena, err);
    json_writer_init(&w, json);
    /* some files carry the very tokenizer.json */
    if (status == TINKER_OK && gguf_get_string(g, "tokenizer.huggingface.json", &whole, &n))
        buf_append(json, whole, n);
    else if (status == TINKER_OK)
        status = put_tokenizer(&w, &v, err);
    json_writer_init(&w, config);
    if (status == TINKER_OK)
        put_config(&w, &v);
    if (status == TINKER_OK && (!buf_ok(json) || !buf_ok(config)))
        status = err_nomem(err, g->path);
    arena_clear(&arena);
    return status;
}
