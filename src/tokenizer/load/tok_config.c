/* tok_config.c - tokenizer_config.json and lists of added tokens.
 *
 * Python reads both files and lets the configuration have the last word about a token's flags;
 * ids are given by the list that names a token first.  Wrong types in the configuration are
 * skipped, as Python never looks at most of it. */
#include "tokenizer/load/tok_config.h"

#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/map.h"

enum { MAX_ADDED = 65536 }; /* several times what any model has */

/* A token: a string, an object with "content", or null. */
static void read_token_name(struct json_reader *r, struct json_str *out)
{
    struct json_str key;
    switch (json_peek(r)) {
    case JSON_STRING:
        json_string(r, out);
        return;
    case JSON_OBJECT:
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (json_str_is(key, "content"))
                json_string(r, out);
            else
                json_skip(r);
        }
        return;
    default: /* null: the model has no such token */
        json_skip(r);
    }
}

/* A flag that is something else stays as it was. */
static void read_bool(struct json_reader *r, int *out)
{
    bool v;
    if (json_peek(r) == JSON_BOOL && json_bool(r, &v))
        *out = v;
    else
        json_skip(r);
}

/* A template, or a list of {"name", "template"} of which "default" is ours. */
static void read_template(struct json_reader *r, struct json_str *out)
{
    if (json_peek(r) == JSON_STRING) {
        json_string(r, out);
        return;
    }
    if (json_peek(r) != JSON_ARRAY) {
        json_skip(r);
        return;
    }
    json_begin_array(r);
    while (json_next_item(r)) {
        struct json_str key, name = { NULL, 0 }, text = { NULL, 0 };
        json_begin_object(r);
        while (json_next_key(r, &key)) {
            if (json_str_is(key, "name"))
                json_string(r, &name);
            else if (json_str_is(key, "template"))
                json_string(r, &text);
            else
                json_skip(r);
        }
        /* the first of the list if none is called so */
        if (text.s && (!out->s || (name.s && json_str_is(name, "default"))))
            *out = text;
    }
}

/* The value of a key of the configuration. */
static void read_config_field(struct tok_config *c, struct json_reader *r, struct json_str key)
{
    /* by tinker_special_kind */
    static const char *const names[4] = { "bos_token", "eos_token", "pad_token", "unk_token" };
    for (int i = 0; i < 4; i++)
        if (json_str_is(key, names[i])) {
            read_token_name(r, &c->special[i]);
            return;
        }
    if (json_str_is(key, "tokenizer_class") && json_peek(r) == JSON_STRING)
        json_string(r, &c->class);
    else if (json_str_is(key, "chat_template"))
        read_template(r, &c->chat_template);
    else if (json_str_is(key, "added_tokens_decoder") && json_peek(r) == JSON_OBJECT)
        json_raw(r, &c->added); /* for tok_added_read() */
    else if (json_str_is(key, "add_bos_token"))
        read_bool(r, &c->add_bos);
    else if (json_str_is(key, "add_eos_token"))
        read_bool(r, &c->add_eos);
    else if (json_str_is(key, "model_max_length") && json_peek(r) == JSON_NUMBER)
        json_double(r, &c->max_length);
    else
        json_skip(r);
}

tinker_status tok_config_read(struct tok_config *c, const char *json, size_t n, struct arena *arena,
                              tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    *c = (struct tok_config){ .add_bos = -1, .add_eos = -1 };
    if (n == 0) /* no such file */
        return TINKER_OK;
    json_reader_init(&r, json, n, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key))
        read_config_field(c, &r, key);
    if (!json_end(&r))
        return err_set(err, TINKER_EINVAL, "tokenizer_config.json: %s", json_error(&r));
    return TINKER_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* Added tokens on their way from both files into one list. */
struct reading {
    struct tok_added *list;
    size_t n, cap;
    struct map by_content; /* -> index + 1 */
    struct arena *arena;
};

/* One object; the id may come from the key around it. */
static bool read_added(struct json_reader *r, struct tok_added *a, int64_t id)
{
    struct json_str key, content = { NULL, 0 };
    int single_word = 0, lstrip = 0, rstrip = 0, normalized = -1, special = 0;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "id"))
            json_int64(r, &id);
        else if (json_str_is(key, "content"))
            json_string(r, &content);
        else if (json_str_is(key, "single_word"))
            read_bool(r, &single_word);
        else if (json_str_is(key, "lstrip"))
            read_bool(r, &lstrip);
        else if (json_str_is(key, "rstrip"))
            read_bool(r, &rstrip);
        else if (json_str_is(key, "normalized"))
            read_bool(r, &normalized);
        else if (json_str_is(key, "special"))
            read_bool(r, &special);
        else
            json_skip(r);
    }
    if (!r->failed && (id < 0 || id >= BPE_MAX_ID))
        json_fail(r, "the id of an added token is missing or out of range");
    if (!r->failed && !content.s)
        json_fail(r, "an added token without content");
    *a = (struct tok_added){ .content = { content.s, content.n },
                             .id = (uint32_t)id,
                             .single_word = single_word,
                             .lstrip = lstrip,
                             .rstrip = rstrip,
                             /* by default text is normalized before it is searched for a token
                              * that is not special */
                             .normalized = normalized < 0 ? !special : normalized,
                             .special = special };
    return !r->failed;
}

/* Later flags replace earlier ones; the first id stays. */
static tinker_status put_token(struct reading *in, const struct tok_added *a, tinker_error *err)
{
    if (a->content.n == 0) /* would be found everywhere */
        return TINKER_OK;
    /* Tokens are the same when their texts are. */
    uintptr_t old = (uintptr_t)map_get(&in->by_content, a->content.s, a->content.n);
    if (old) {
        uint32_t id = in->list[old - 1].id;
        in->list[old - 1] = *a;
        in->list[old - 1].id = id;
        return TINKER_OK;
    }
    if (in->n == MAX_ADDED)
        return err_set(err, TINKER_EINVAL, "more than %d added tokens", MAX_ADDED);
    if (in->n == in->cap) {
        size_t cap = in->cap ? in->cap * 2 : 64;
        struct tok_added *list =
            arena_grow(in->arena, in->list, in->cap * sizeof(*list), cap * sizeof(*list));
        if (!list)
            return err_nomem(err, "added tokens");
        in->list = list;
        in->cap = cap;
    }
    in->list[in->n++] = *a;
    if (!map_put(&in->by_content, a->content.s, a->content.n, (void *)(uintptr_t)in->n, NULL))
        return err_nomem(err, "added tokens");
    return TINKER_OK;
}

/* "added_tokens" of the tokenizer.json: [{"id": …, "content": …, …}, …]. */
static tinker_status read_added_list(struct reading *in, struct json_str json, tinker_error *err)
{
    struct json_reader r;
    struct tok_added a;
    tinker_status status = TINKER_OK;
    if (!json.s || (json.n == 4 && memcmp(json.s, "null", 4) == 0))
        return TINKER_OK;
    json_reader_init(&r, json.s, json.n, in->arena);
    json_begin_array(&r);
    while (status == TINKER_OK && json_next_item(&r)) {
        if (!read_added(&r, &a, -1))
            break;
        status = put_token(in, &a, err);
    }
    if (status == TINKER_OK && r.failed)
        status = err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    if (status != TINKER_OK)
        err_prefix(err, "added_tokens[%zu]", in->n);
    return status;
}

/* "added_tokens_decoder" of the configuration: {"id": {"content": …, …}, …}. */
static tinker_status read_added_decoder(struct reading *in, struct json_str json, tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    struct tok_added a;
    tinker_status status = TINKER_OK;
    if (!json.s)
        return TINKER_OK;
    json_reader_init(&r, json.s, json.n, in->arena);
    json_begin_object(&r);
    while (status == TINKER_OK && json_next_key(&r, &key)) {
        int64_t id = key.n > 0 && key.n <= 9 ? 0 : -1; /* the key is the id */
        for (size_t i = 0; i < key.n && id >= 0; i++)
            id = key.s[i] >= '0' && key.s[i] <= '9' ? id * 10 + (key.s[i] - '0') : -1;
        if (!read_added(&r, &a, id))
            break;
        status = put_token(in, &a, err);
    }
    if (status == TINKER_OK && r.failed)
        status = err_set(err, TINKER_EINVAL, "%s", json_error(&r));
    if (status != TINKER_OK)
        err_prefix(err, "tokenizer_config.json: added_tokens_decoder");
    return status;
}

tinker_status tok_added_read(struct tok_added **list, size_t *n, struct json_str json,
                             const struct tok_config *config, struct arena *arena,
                             tinker_error *err)
{
    struct reading in = { .arena = arena };
    map_init(&in.by_content);
    /* In this order: the configuration has the last word. */
    tinker_status status = read_added_list(&in, json, err);
    if (status == TINKER_OK)
        status = read_added_decoder(&in, config->added, err);
    map_clear(&in.by_content);
    *list = in.list;
    *n = in.n;
    return status;
}
