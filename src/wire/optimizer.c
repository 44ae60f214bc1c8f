/* optimizer.c - see optimizer.h. */
#include "wire/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* Of one optimizer, numbers and texts together. Either list may get all of them, so each has that
 * much room and never grows while a text of a peer is read. */
enum { SETTINGS_MAX = 64 };

/* "type" is the name of the optimizer, and of no setting. */
static tinker_status check_setting(const char *name, tinker_error *err)
{
    if (!name || !*name || strcmp(name, "type") == 0)
        return err_set(err, TINKER_EINVAL, "optimizer_params: a setting is called \"%s\"",
                       name ? name : "");
    return TINKER_OK;
}

/* Numbers and texts go into one object, told apart by their JSON type. Which names and values make
 * sense is for the service to say. */
tinker_status wire_optimizer_encode(const tinker_optimizer *o, struct buf *out, tinker_error *err)
{
    struct json_writer w;
    if (!o || !o->name || !*o->name)
        return err_set(err, TINKER_EINVAL, "optimizer_params: the optimizer has no name");
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    json_put_key(&w, "type");
    json_put_string(&w, o->name);
    for (size_t i = 0; i < o->n_config; i++) {
        if (check_setting(o->config[i].name, err) != TINKER_OK)
            return TINKER_EINVAL;
        /* JSON has neither NaN nor infinity; the writer would fail without saying which setting it
         * was. */
        if (!isfinite(o->config[i].value))
            return err_set(err, TINKER_EINVAL, "optimizer_params.%.60s: must be finite",
                           o->config[i].name);
        json_put_key(&w, o->config[i].name);
        json_put_double(&w, o->config[i].value);
    }
    for (size_t i = 0; i < o->n_texts; i++) {
        if (check_setting(o->texts[i].name, err) != TINKER_OK)
            return TINKER_EINVAL;
        json_put_key(&w, o->texts[i].name);
        json_put_string(&w, o->texts[i].value ? o->texts[i].value : "");
    }
    json_put_end_object(&w);
    /* The numbers are finite, so an append can fail only for lack of memory. */
    return out->failed ? err_nomem(err, "optimizer_params") : TINKER_OK;
}

/* One setting, whose key was read. null says nothing, as if the key were absent. A text or number
 * that cannot be read stays as a failure in r, which json_end() of the caller reports. */
static tinker_status read_setting(struct json_reader *r, const char *name,
                                  tinker_named_number *numbers, size_t *n_numbers,
                                  tinker_named_string *texts, size_t *n_texts, tinker_error *err)
{
    char *text = NULL;
    double value;
    switch (json_peek(r)) {
    case JSON_NULL:
        json_skip(r);
        return TINKER_OK;
    case JSON_NUMBER:
        if (json_double(r, &value))
            numbers[(*n_numbers)++] = (tinker_named_number){ name, value };
        return TINKER_OK;
    case JSON_STRING:
        if (json_cstring(r, &text))
            texts[(*n_texts)++] = (tinker_named_string){ name, text };
        return TINKER_OK;
    default:
        return err_set(err, TINKER_EINVAL, "optimizer_params.%.60s: expected a number or a text",
                       name);
    }
}

/* "type" may stand anywhere among the settings. Booleans, arrays and objects are refused: a
 * tinker_optimizer has no place for them. */
tinker_status wire_optimizer_decode(struct json_str text, struct arena *arena,
                                    tinker_optimizer *out, tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    char *type = NULL;
    size_t n_numbers = 0, n_texts = 0;
    tinker_named_number *numbers = arena_array(arena, SETTINGS_MAX, sizeof(*numbers));
    tinker_named_string *texts = arena_array(arena, SETTINGS_MAX, sizeof(*texts));
    if (!numbers || !texts)
        return err_nomem(err, "optimizer_params");
    json_reader_init(&r, text.s, text.n, arena);
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        const char *name = arena_strndup(arena, key.s, key.n);
        if (!name)
            return err_nomem(err, "optimizer_params");
        if (strcmp(name, "type") == 0)
            /* If it is no text, the reader fails, and type stays NULL. */
            json_cstring(&r, &type);
        else if (n_numbers + n_texts == SETTINGS_MAX)
            return err_set(err, TINKER_EINVAL, "optimizer_params: more than %d settings",
                           SETTINGS_MAX);
        else if (read_setting(&r, name, numbers, &n_numbers, texts, &n_texts, err) != TINKER_OK)
            return TINKER_EINVAL;
    }
    /* Also for every read above that failed: the reader keeps the first failure. */
    if (!json_end(&r))
        return arena->failed ? err_nomem(err, "optimizer_params")
                             : err_set(err, TINKER_EINVAL, "optimizer_params: %s", json_error(&r));
    if (!type)
        return err_set(err, TINKER_EINVAL, "optimizer_params.type: missing");
    *out = (tinker_optimizer){ type, numbers, n_numbers, texts, n_texts };
    return TINKER_OK;
}
