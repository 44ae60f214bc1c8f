/* tok_component.c - reading the components of a tokenizer.json.
 *
 * Tables say which key goes into which field of struct tok_component; keys that no component of
 * ours has are skipped, as files of newer releases carry them.  A Sequence is flattened. */
#include "tokenizer/load/tok_component.h"

#include <string.h>
#include "base/array.h"
#include "base/err.h"

enum { MAX_DEPTH = 8, MAX_COMPONENTS = 256 };

/* A string that is not there is equal to none. */
bool tok_str_is(struct json_str s, const char *text)
{
    return s.s && json_str_is(s, text);
}

/* Keys by the kind of their values, and where these go. */
static const struct {
    const char *key;
    size_t at;
} texts[] = {
    { "type", offsetof(struct tok_component, type) },
    { "content", offsetof(struct tok_component, content) },
    { "behavior", offsetof(struct tok_component, behavior) },
    { "prepend", offsetof(struct tok_component, prepend) },
    { "replacement", offsetof(struct tok_component, replacement) },
    { "prepend_scheme", offsetof(struct tok_component, prepend_scheme) },
    { "delimiter", offsetof(struct tok_component, delimiter) },
    { "prefix", offsetof(struct tok_component, prefix) },
    { "suffix", offsetof(struct tok_component, suffix) },
    { "pad_token", offsetof(struct tok_component, pad_token) },
}, raws[] = {
    { "normalizers", offsetof(struct tok_component, children) },
    { "pretokenizers", offsetof(struct tok_component, children) },
    { "processors", offsetof(struct tok_component, children) },
    { "decoders", offsetof(struct tok_component, children) },
    { "single", offsetof(struct tok_component, single) },
    { "special_tokens", offsetof(struct tok_component, special_tokens) },
    { "sep", offsetof(struct tok_component, sep) },
    { "cls", offsetof(struct tok_component, cls) },
}, flags[] = {
    { "invert", offsetof(struct tok_component, invert) },
    { "add_prefix_space", offsetof(struct tok_component, add_prefix_space) },
    { "use_regex", offsetof(struct tok_component, use_regex) },
    { "trim_offsets", offsetof(struct tok_component, trim_offsets) },
    { "individual_digits", offsetof(struct tok_component, individual_digits) },
    { "split", offsetof(struct tok_component, split) },
    { "cleanup", offsetof(struct tok_component, cleanup) },
    { "strip_left", offsetof(struct tok_component, strip_left) },
    { "strip_right", offsetof(struct tok_component, strip_right) },
    { "clean_text", offsetof(struct tok_component, clean_text) },
    { "handle_chinese_chars", offsetof(struct tok_component, handle_chinese_chars) },
    { "strip_accents", offsetof(struct tok_component, strip_accents) },
    { "lowercase", offsetof(struct tok_component, lowercase) },
}, numbers[] = {
    { "start", offsetof(struct tok_component, start) },
    { "stop", offsetof(struct tok_component, stop) },
    { "length", offsetof(struct tok_component, length) },
};

/* Read the value of a key that some table lists; false: none does.
 * Reader errors are not looked at here: they stick to the reader, and the caller checks once. */
static bool read_component_field(struct json_reader *r, struct json_str key,
                                 struct tok_component *p)
{
    char *base = (char *)p; /* offsets in the tables are counted from here */
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (json_str_is(key, texts[i].key)) {
            if (json_peek(r) == JSON_NULL)
                json_null(r);
            else
                json_string(r, (struct json_str *)(void *)(base + texts[i].at));
            return true;
        }
    /* read later, by whoever knows what it is */
    for (size_t i = 0; i < ARRAY_LEN(raws); i++)
        if (json_str_is(key, raws[i].key)) {
            json_raw(r, (struct json_str *)(void *)(base + raws[i].at));
            return true;
        }
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (json_str_is(key, flags[i].key)) {
            bool v;
            if (json_peek(r) == JSON_NULL) /* as if it were not there */
                json_null(r);
            else if (json_bool(r, &v))
                *(int *)(void *)(base + flags[i].at) = v;
            return true;
        }
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (json_str_is(key, numbers[i].key)) {
            json_int64(r, (int64_t *)(void *)(base + numbers[i].at));
            return true;
        }
    return false;
}

/* Flags are -1 when the file does not have them, because their default differs by component and
 * only whoever builds it knows which. */
tinker_status tok_component_read(struct tok_component *p, struct json_reader *r, tinker_error *err)
{
    struct json_str key;
    memset(p, 0, sizeof(*p));
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        *(int *)(void *)((char *)p + flags[i].at) = -1; /* absent */
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (!json_str_is(key, "pattern")) {
            if (!read_component_field(r, key, p))
                json_skip(r);
            continue;
        }
        /* {"String": text} or {"Regex": text}; a bare string is the former */
        if (json_peek(r) == JSON_STRING) {
            json_string(r, &p->string);
            continue;
        }
        struct json_str kind;
        json_begin_object(r);
        while (json_next_key(r, &kind)) {
            if (json_str_is(kind, "String"))
                json_string(r, &p->string);
            else if (json_str_is(kind, "Regex"))
                json_string(r, &p->regex);
            else
                json_fail(r, "a pattern is {\"String\": …} or {\"Regex\": …}");
        }
    }
    if (r->failed) /* the reader names line and column */
        return err_set(err, TINKER_EINVAL, "%s", json_error(r));
    if (!p->type.s)
        return err_set(err, TINKER_EINVAL, "an object without \"type\"");
    return TINKER_OK;
}

tinker_status tok_component_refuse(const struct tok_component *p, tinker_error *err)
{
    return err_set(err, TINKER_EINVAL, "type \"%.*s\" is not supported", (int)p->type.n, p->type.s);
}

/* names[] is indexed by the enum of the kind of component. */
int tok_component_kind(const struct tok_component *p, const char *const *names, size_t n,
                       tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (tok_str_is(p->type, names[i]))
            return (int)i;
    tok_component_refuse(p, err);
    return -1;
}

/* Call add for the component, or, if it is a Sequence, for each of its list.  MAX_DEPTH keeps a
 * hostile file from using up the stack. */
static tinker_status walk_component(tinker_tokenizer *t, struct json_str json,
                                    tok_component_fn *add, int depth, int *count, tinker_error *err)
{
    struct json_reader r;
    struct tok_component p;
    json_reader_init(&r, json.s, json.n, &t->arena);
    tinker_status status = tok_component_read(&p, &r, err);
    if (status != TINKER_OK)
        return status;
    if (++*count > MAX_COMPONENTS || depth > MAX_DEPTH)
        return err_set(err, TINKER_EINVAL, "more than %d components, or nested more than %d deep",
                       MAX_COMPONENTS, MAX_DEPTH);
    if (!tok_str_is(p.type, "Sequence"))
        return add(t, &p, err);
    if (!p.children.s)
        return err_set(err, TINKER_EINVAL, "a Sequence without its list");
    /* Children were kept as raw JSON, as their key need not stand behind "type". */
    struct json_reader list;
    struct json_str child;
    json_reader_init(&list, p.children.s, p.children.n, &t->arena);
    json_begin_array(&list);
    while (json_next_item(&list)) {
        if (!json_raw(&list, &child))
            break;
        status = walk_component(t, child, add, depth + 1, count, err);
        if (status != TINKER_OK)
            return status;
    }
    return list.failed ? err_set(err, TINKER_EINVAL, "%s", json_error(&list)) : TINKER_OK;
}

tinker_status tok_component_walk(tinker_tokenizer *t, struct json_str json, const char *what,
                                 tok_component_fn *add, tinker_error *err)
{
    int count = 0;
    /* A file may leave a component out, or say null. */
    if (!json.s || (json.n == 4 && memcmp(json.s, "null", 4) == 0))
        return TINKER_OK;
    tinker_status status = walk_component(t, json, add, 0, &count, err);
    if (status != TINKER_OK)
        err_prefix(err, "%s", what);
    return status;
}
