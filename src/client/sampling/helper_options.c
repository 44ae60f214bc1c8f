/* helper_options.c - the settings of a service on their way to a helper process.  See helper.h.
 *
 * All that a request depends on and that an exported sampler does not have: a program gives these
 * as options, which the helper, with nothing but the environment, could not know. */
#include <stddef.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "client/call/call.h"
#include "client/sampling/helper.h"
#include "json/json.h"

enum kind { TEXT, LONG, INT, FLAG };

#define FIELD(kind, name)                          \
    {                                              \
#name, kind, offsetof(struct config, name) \
    }
static const struct {
    const char *name;
    enum kind kind;
    size_t at;
} fields[] = {
    /* Only settings that change how samples are sent; callbacks, hooks and metrics stay with the
     * parent. */
    FIELD(TEXT, credential_cmd),
    FIELD(TEXT, project_id),
    FIELD(TEXT, sdk_version),
    FIELD(TEXT, default_query),
    FIELD(TEXT, proxy),
    FIELD(TEXT, no_proxy),
    FIELD(TEXT, ca_file),
    FIELD(LONG, timeout_ms),
    FIELD(LONG, connect_ms),
    FIELD(LONG, poll_backoff_initial_ms),
    FIELD(LONG, poll_backoff_max_ms),
    FIELD(LONG, telemetry_max_retries),
    FIELD(LONG, heartbeat_max_failures),
    FIELD(LONG, heartbeat_max_ms),
    FIELD(INT, max_retries),
    FIELD(INT, pool_max[POOL_SESSION]),
    FIELD(INT, pool_max[POOL_SAMPLE]),
    FIELD(INT, pool_max[POOL_RETRIEVE]),
    FIELD(INT, pool_max[POOL_TELEMETRY]),
    FIELD(FLAG, telemetry),
    FIELD(FLAG, dump_headers),
    FIELD(FLAG, otel),
    FIELD(FLAG, poll_backoff),
    FIELD(FLAG, isolate_limits),
};
enum { N_FIELDS = ARRAY_LEN(fields) };

/* ---- writing -------------------------------------------------------------------------------- */

static void put_text(struct json_writer *w, const char *text)
{
    if (text)
        json_put_string(w, text);
    else
        json_put_null(w);
}

/* [name, value, secret] for each: the order matters, so it is no object. */
static void put_headers(struct json_writer *w, const char *key, const struct http_header *v,
                        size_t n)
{
    json_put_key(w, key);
    json_put_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        json_put_begin_array(w);
        put_text(w, v[i].name);
        put_text(w, v[i].value);
        json_put_bool(w, v[i].secret);
        json_put_end_array(w);
    }
    json_put_end_array(w);
}

void helper_options_write(const struct config *c, struct buf *out)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_put_begin_object(&w);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const void *at = (const char *)c + fields[i].at;
        json_put_key(&w, fields[i].name);
        switch (fields[i].kind) {
        case TEXT:
            put_text(&w, *(const char *const *)at);
            break;
        case LONG:
            json_put_int64(&w, *(const int64_t *)at);
            break;
        case INT:
            json_put_int64(&w, *(const int *)at);
            break;
        case FLAG:
            json_put_bool(&w, *(const bool *)at);
            break;
        }
    }
    json_put_key(&w, "log");
    json_put_int64(&w, (int64_t)c->log.level);
    put_headers(&w, "headers", c->default_headers, c->n_default_headers);
    put_headers(&w, "proxy_headers", c->proxy_headers, c->n_proxy_headers);
    json_put_end_object(&w);
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool read_text(struct json_reader *r, const char **out)
{
    char *text;
    if (json_peek(r) == JSON_NULL) {
        *out = NULL;
        return json_null(r);
    }
    if (!json_cstring(r, &text))
        return false;
    *out = text;
    return true;
}

static bool read_int(struct json_reader *r, int *out)
{
    int64_t v;
    if (!json_int64(r, &v))
        return false;
    *out = (int)v;
    return true;
}

static bool read_headers(struct json_reader *r, struct arena *a, struct http_header **out,
                         size_t *n)
{
    struct json_str all;
    struct json_reader counting, part;
    if (!json_raw(r, &all))
        return false;
    size_t count = 0;
    json_reader_part(&counting, r, all);
    json_begin_array(&counting);
    while (json_next_item(&counting) && json_skip(&counting))
        count++;
    *out = arena_array(a, count + 1, sizeof(**out));
    *n = 0;
    json_reader_part(&part, r, all);
    json_begin_array(&part);
    while (*out && *n < count && json_next_item(&part)) {
        struct http_header *h = &(*out)[*n];
        bool ok = json_begin_array(&part) && json_next_item(&part) && read_text(&part, &h->name) &&
                  json_next_item(&part) && read_text(&part, &h->value) && json_next_item(&part) &&
                  json_bool(&part, &h->secret) && !json_next_item(&part);
        if (!ok)
            return false;
        if (h->secret)
            log_secret(h->value);
        ++*n;
    }
    return *out && *n == count;
}

static bool read_option(struct json_reader *r, struct config *c, struct json_str key)
{
    int level;
    for (size_t i = 0; i < N_FIELDS; i++)
        if (json_str_is(key, fields[i].name)) {
            void *at = (char *)c + fields[i].at;
            switch (fields[i].kind) {
            case TEXT:
                return read_text(r, at);
            case LONG:
                return json_int64(r, at);
            case INT:
                return read_int(r, at);
            case FLAG:
                return json_bool(r, at);
            }
        }
    if (json_str_is(key, "headers"))
        return read_headers(r, &c->arena, &c->default_headers, &c->n_default_headers);
    if (json_str_is(key, "proxy_headers"))
        return read_headers(r, &c->arena, &c->proxy_headers, &c->n_proxy_headers);
    if (!json_str_is(key, "log"))
        return json_skip(r);
    bool ok = read_int(r, &level);
    c->log.level = ok ? (enum log_level)level : c->log.level;
    return ok;
}

tinker_status helper_options_read(struct config *c, const char *json, size_t n, tinker_error *err)
{
    struct json_reader r;
    struct json_str key;
    json_reader_init(&r, json, n, &c->arena);
    bool ok = json_begin_object(&r);
    while (ok && json_next_key(&r, &key))
        ok = read_option(&r, c, key);
    if (!json_end(&r) || !ok)
        return err_set(err, TINKER_EPROTOCOL, "settings for the sampling helper: %s",
                       json_error(&r));
    number_text((double)c->timeout_ms / 1000, 15, c->timeout_text);
    return TINKER_OK;
}
