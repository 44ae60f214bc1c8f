/* future.c - reads answers to retrieve_future without knowing what was asked for.
 *
 * One pass over the top-level keys collects the few that decide; the order of the
 * decisions is the protocol's, not that of the keys. */
#include "wire/future.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/err.h"
#include "json/json.h"

/* By enum wire_queue_state; UNKNOWN has no name on the wire. */
static const char *const queue_names[] = { NULL, "active", "paused_capacity", "paused_rate_limit" };
/* By TINKER_CATEGORY_*. Compared with their case: "User" is no category, and unknown. */
static const char *const category_names[] = { "unknown", "server", "user" };

/* A word of a newer service is unknown, and no error. */
enum wire_queue_state wire_queue_state_parse(const char *s)
{
    for (int i = WIRE_QUEUE_ACTIVE; s && i <= WIRE_QUEUE_PAUSED_RATE_LIMIT; i++)
        if (strcmp(s, queue_names[i]) == 0)
            return (enum wire_queue_state)i;
    return WIRE_QUEUE_UNKNOWN;
}

const char *wire_queue_state_name(enum wire_queue_state s)
{
    return queue_names[s];
}

/* A category of a newer service is unknown, not an error. */
int wire_category_parse(const char *s)
{
    for (int i = 0; s && i < 3; i++)
        if (strcmp(s, category_names[i]) == 0)
            return i;
    return TINKER_CATEGORY_UNKNOWN;
}

const char *wire_category_name(int category)
{
    return category >= 0 && category < 3 ? category_names[category] : category_names[0];
}

/* ---- the keys that decide -------------------------------------------------------- */

/* Texts are the arena's; NULL: absent, or of another kind. */
struct keys {
    const char *type, *status, *queue_state, *reason, *category;
    struct json_str error; /* raw; s NULL: no such key */
    int64_t size;
};

/* A text, or NULL for a value of another kind. */
static void read_text_value(struct json_reader *r, const char **out)
{
    char *s = NULL;
    /* Also when the key came before as a text: its last value counts. */
    *out = NULL;
    if (json_peek(r) != JSON_STRING)
        json_skip(r);
    else if (json_cstring(r, &s))
        *out = s;
}

/* One pass; values of an unexpected kind are ignored, because results share some of the names. */
static bool read_keys(struct json_reader *r, struct keys *k)
{
    struct json_str key;
    memset(k, 0, sizeof *k);
    if (json_peek(r) != JSON_OBJECT)
        return false;
    json_begin_object(r);
    while (json_next_key(r, &key)) {
        if (json_str_is(key, "type"))
            read_text_value(r, &k->type);
        else if (json_str_is(key, "status"))
            read_text_value(r, &k->status);
        else if (json_str_is(key, "queue_state"))
            read_text_value(r, &k->queue_state);
        else if (json_str_is(key, "queue_state_reason"))
            read_text_value(r, &k->reason);
        else if (json_str_is(key, "category"))
            read_text_value(r, &k->category);
        else if (json_str_is(key, "response_payload_size") && json_peek(r) == JSON_NUMBER) {
            double v = 0; /* an estimate: 1e6 will do, and so will too much */
            if (json_double(r, &v))
                k->size = v <= 0 ? 0 : v < 9e18 ? (int64_t)v : INT64_MAX;
        } else if (json_str_is(key, "error"))
            json_raw(r, &k->error);
        else
            json_skip(r);
    }
    return json_end(r);
}

/* s may be NULL: the key is absent, or its value is of another kind. */
static bool is_text(const char *s, const char *want)
{
    return s && strcmp(s, want) == 0;
}

static void set_queue_state(const struct keys *k, struct wire_future_answer *out)
{
    out->queue_state = wire_queue_state_parse(k->queue_state);
    out->queue_state_reason = k->reason && *k->reason ? k->reason : NULL;
}

/* The order of the tests below is the protocol's: pending, announced, failed, else a result.
 * It reads the keys only; the result itself is decoded by whoever knows its type. */
tinker_status wire_classify_future(const char *content_type, const char *body, size_t n,
                                   struct arena *arena, struct wire_future_answer *out,
                                   tinker_error *err)
{
    struct json_reader r;
    struct keys k;
    memset(out, 0, sizeof *out);
    /* Anywhere in the header, in any case: parameters may follow or precede it. */
    for (const char *p = content_type; p && *p; p++)
        if (strncasecmp(p, "application/x-protobuf", 22) == 0) {
            out->state = WIRE_FUTURE_PROTO;
            return TINKER_OK;
        }
    json_reader_init(&r, body, n, arena);
    /* A failed arena must not look like a bad response: the service did nothing wrong. */
    bool read = read_keys(&r, &k);
    if (!read && arena->failed)
        return err_nomem(err, "retrieve_future: the response");
    if (!read)
        return err_set(err, TINKER_EPROTOCOL,
                       "retrieve_future: the response is not a JSON object%s%s",
                       r.failed ? ": " : "", r.failed ? json_error(&r) : "");
    /* "pending" is what other servers say; no result has such a member */
    if (is_text(k.type, "try_again") || is_text(k.status, "pending")) {
        out->state = WIRE_FUTURE_PENDING;
        set_queue_state(&k, out);
    } else if (is_text(k.status, "complete_metadata")) {
        /* Sent only when the poll said allow_metadata_only; the client reserves that many bytes of
         * its budget and polls again for the payload. */
        out->state = WIRE_FUTURE_METADATA;
        out->payload_size = k.size;
    } else if (k.error.s) {
        /* The key alone decides, whatever its value is, even null. So no JSON result may have
         * it. */
        out->state = WIRE_FUTURE_FAILED;
        out->category = wire_category_parse(k.category);
        /* Its text, or the JSON of anything else. */
        char *text = NULL;
        json_reader_init(&r, k.error.s, k.error.n, arena);
        if (json_peek(&r) == JSON_STRING && json_cstring(&r, &text))
            out->error = text;
        else
            out->error = arena_strndup(arena, k.error.s, k.error.n);
        if (!out->error)
            return err_nomem(err, "retrieve_future");
    } else {
        /* {} is a result, too: of a load_weights, whose members are all optional. */
        out->state = WIRE_FUTURE_JSON;
    }
    return TINKER_OK;
}

/* For the body of a 408, which need not say that it is pending. */
bool wire_read_queue_state(const char *body, size_t n, struct arena *arena,
                           struct wire_future_answer *out)
{
    struct json_reader r;
    struct keys k;
    memset(out, 0, sizeof *out);
    json_reader_init(&r, body, n, arena);
    if (!read_keys(&r, &k))
        return false;
    set_queue_state(&k, out);
    return true;
}

/* ---- error bodies ---------------------------------------------------------------- */

/* The text under detail, error or message of a JSON object; else the whole text. */
static struct json_str body_text(const char *body, size_t n, struct arena *arena)
{
    static const char *const names[] = { "detail", "error", "message" };
    /* "detail" is FastAPI's, "error" and "message" are what proxies and other servers write. */
    struct json_str found[3] = { { 0 } }, key, whole = { body, n };
    struct json_reader r;
    /* The body may be a JSON text, an object, or no JSON at all. */
    json_reader_init(&r, body, n, arena);
    if (json_peek(&r) == JSON_STRING && json_string(&r, &key) && json_end(&r))
        return key;
    /* From the beginning again: the first look may have consumed something. */
    json_reader_init(&r, body, n, arena);
    if (json_peek(&r) != JSON_OBJECT)
        return whole;
    json_begin_object(&r);
    while (json_next_key(&r, &key)) {
        /* Values of another kind, such as the list of a 422 of FastAPI, leave the whole body as
         * text. */
        int i = 0;
        while (i < 3 && !json_str_is(key, names[i]))
            i++;
        if (i == 3 || json_peek(&r) != JSON_STRING)
            json_skip(&r);
        else
            json_string(&r, &found[i]);
    }
    /* In this order of preference, whatever the order of the keys. */
    for (int i = 0; i < 3 && json_end(&r); i++)
        if (found[i].s && found[i].n)
            return found[i];
    return whole;
}

/* As isspace() in the C locale, whatever the program has set. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void wire_error_text(int status, const char *body, size_t n, char *out, size_t size)
{
    struct arena arena;
    /* Trim, so that a body of blanks counts as none. */
    while (n && is_space(body[n - 1]))
        n--;
    while (n && is_space(*body)) {
        body++;
        n--;
    }
    /* Enough for the decoded text, and bounded by what came. */
    arena_init(&arena, 4096 + 4 * n);
    struct json_str text = n ? body_text(body, n, &arena) : (struct json_str){ "", 0 };
    /* As the reference words it, so that users find the same text. */
    int head = snprintf(out, size, "Error code: %d%s", status, text.n ? " - " : "");
    if (head >= 0 && (size_t)head < size) {
        size_t space = size - (size_t)head - 1, len = text.n < space ? text.n : space;
        if (len < text.n) /* do not cut a character in two */
            while (len && ((unsigned char)text.s[len] & 0xc0) == 0x80)
                len--;
        for (size_t i = 0; i < len; i++) {
            unsigned char c = (unsigned char)text.s[i];
            /* One line for logs: controls become blanks. */
            out[(size_t)head + i] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
        }
        out[(size_t)head + len] = '\0';
    }
    arena_clear(&arena);
}
