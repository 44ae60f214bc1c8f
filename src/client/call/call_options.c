/* call_options.c - checking and copying options of calls.
 *
 * What makes no sense is refused when a handle with options is made, so that no call can fail for
 * it later. */
#include "client/call/call_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/err.h"
#include "base/log.h"
#include "json/json.h"

/* Entries per list, bytes per text, bytes of an idempotency key. */
enum { LIST_MAX = 256, TEXT_MAX = 1 << 16, KEY_MAX = 64 };

/* ---- checking ------------------------------------------------------------------------------- */

/* RFC 9110, 5.6.2: the characters of a token. */
static bool is_token(const char *s)
{
    for (const char *p = s; *p; p++) {
        unsigned char c = (unsigned char)*p;
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!alnum && !strchr("!#$%&'*+-.^_`|~", c))
            return false;
    }
    return *s != '\0';
}

/* Anything but control characters; a tab is allowed (RFC 9110, 5.5). */
static bool is_field_value(const char *s)
{
    for (const char *p = s; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return false;
    return true;
}

tinker_status call_options_check_header(const tinker_named_string *h, tinker_error *err)
{
    if (!h->name || !is_token(h->name))
        return err_set(err, TINKER_EINVAL, "a header has a name that HTTP does not allow");
    if (!h->value || !is_field_value(h->value))
        return err_set(err, TINKER_EINVAL, "header %s has a value that HTTP does not allow",
                       h->name);
    return TINKER_OK;
}

/* Headers that frame the message, describe its body or name its sender: only the library sets
 * them. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = {
        "accept",     "accept-encoding",   "connection",   "content-encoding",
        "expect",     "content-length",    "content-type", "host",
        "keep-alive", "proxy-connection",  "te",           "proxy-authorization",
        "trailer",    "transfer-encoding", "upgrade",      "user-agent",
        "x-api-key",  "x-idempotency-key",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return strncasecmp(name, "x-stainless-", 12) == 0 || strncasecmp(name, "x-tinker-", 9) == 0;
}

/* Twice the same name would be sent twice, and servers differ in which one counts. */
static tinker_status check_headers(const tinker_call_options *o, tinker_error *err)
{
    for (size_t i = 0; i < o->n_headers; i++) {
        const tinker_named_string *h = &o->headers[i];
        tinker_status s = call_options_check_header(h, err);
        if (s != TINKER_OK)
            return s;
        if (is_reserved(h->name))
            return err_set(err, TINKER_EINVAL, "header %s is set by the library%s", h->name,
                           strcasecmp(h->name, "x-idempotency-key") == 0
                               ? "; see the option idempotency_key"
                               : "");
        for (size_t j = 0; j < i; j++)
            if (strcasecmp(o->headers[j].name, h->name) == 0)
                return err_set(err, TINKER_EINVAL, "header %s is given twice", h->name);
    }
    return TINKER_OK;
}

static tinker_status check_list(const char *what, const tinker_named_string *v, size_t n,
                                tinker_error *err)
{
    if (n && !v)
        return err_set(err, TINKER_EINVAL, "call options: %s is NULL, and has %zu members", what,
                       n);
    if (n > LIST_MAX)
        return err_set(err, TINKER_EINVAL, "call options: %s has %zu members, at most %d are taken",
                       what, n, LIST_MAX);
    for (size_t i = 0; i < n; i++)
        if (!v[i].name || !*v[i].name || !v[i].value || strlen(v[i].name) > TEXT_MAX ||
            strlen(v[i].value) > TEXT_MAX)
            return err_set(err, TINKER_EINVAL,
                           "call options: member %zu of %s has no name, no value, or is too long",
                           i, what);
    return TINKER_OK;
}

static tinker_status check_options(const tinker_call_options *o, tinker_error *err)
{
    if (o->timeout_ms < 0 || o->deadline_ms < 0 || o->max_retries < -1)
        return err_set(err, TINKER_EINVAL,
                       "call options: timeout_ms and deadline_ms must not be negative, and "
                       "max_retries at least -1");
    tinker_status s = check_list("headers", o->headers, o->n_headers, err);
    if (s == TINKER_OK)
        s = check_list("query", o->query, o->n_query, err);
    if (s == TINKER_OK)
        s = check_list("metadata", o->metadata, o->n_metadata, err);
    if (s == TINKER_OK)
        s = check_headers(o, err);
    const char *key = o->idempotency_key;
    if (s == TINKER_OK && key && (!*key || strlen(key) > KEY_MAX || !is_field_value(key)))
        s = err_set(err, TINKER_EINVAL,
                    "call options: idempotency_key must have 1 to %d printable characters",
                    KEY_MAX);
    return s;
}

/* ---- copying -------------------------------------------------------------------------------- */

/* The members of the object, without its braces. */
static tinker_status copy_extra_body(struct call_options *p, const char *json, tinker_error *err)
{
    struct json_reader r;
    if (!json)
        return TINKER_OK;
    size_t n = strlen(json), first = strspn(json, " \t\r\n");
    while (n > 0 && strchr(" \t\r\n", json[n - 1]))
        n--;
    /* Checked as JSON now, so that splicing it into a body later cannot break that. */
    json_reader_init(&r, json, n, &p->arena);
    if (json[first] != '{' || !json_skip(&r) || !json_end(&r))
        return err_set(err, TINKER_EINVAL, "call options: extra_body is not a JSON object");
    size_t from = first + 1 + strspn(json + first + 1, " \t\r\n");
    /* An empty object adds nothing. */
    if (json[from] == '}')
        return TINKER_OK;
    p->n_extra_body = n - 1 - from;
    p->extra_body = arena_strndup(&p->arena, json + from, p->n_extra_body);
    return TINKER_OK;
}

static struct call_options *call_options_new(const tinker_call_options *o, tinker_error *err)
{
    struct call_options *p = calloc(1, sizeof(*p));
    if (!p) {
        err_nomem(err, "call options");
        return NULL;
    }
    atomic_init(&p->refs, 1);
    arena_init(&p->arena, SIZE_MAX);
    p->timeout_ms = o->timeout_ms;
    number_text((double)o->timeout_ms / 1000, 15, p->timeout_text);
    p->deadline_ms = o->deadline_ms;
    /* Public: 0 is the default and -1 none.  Inside: -1 is the default and 0 none. */
    p->max_retries = o->max_retries == 0 ? -1 : o->max_retries < 0 ? 0 : o->max_retries;
    p->key = o->idempotency_key ? arena_strdup(&p->arena, o->idempotency_key) : NULL;
    p->keep = o->keep_response != 0;
    p->on_response = o->on_response;
    p->on_response_state = o->on_response_state;
    /* Any header of the program's may hold a credential, so all are secret: not logged, and not
     * sent to another origin. */
    p->headers = arena_array(&p->arena, o->n_headers, sizeof(*p->headers));
    for (size_t i = 0; p->headers && i < o->n_headers; i++)
        p->headers[p->n_headers++] =
            (struct http_header){ .name = arena_strdup(&p->arena, o->headers[i].name),
                                  .value = arena_strdup(&p->arena, o->headers[i].value),
                                  .secret = true };
    /* Metadata appears in events, so it is redacted once, here. */
    p->metadata = arena_array(&p->arena, o->n_metadata, sizeof(*p->metadata));
    for (size_t i = 0; p->metadata && i < o->n_metadata; i++) {
        size_t n = strlen(o->metadata[i].value) + 1;
        char *value = arena_memdup(&p->arena, o->metadata[i].value, n);
        if (value)
            log_redact(value, n);
        p->metadata[p->n_metadata++] =
            (tinker_named_string){ .name = arena_strdup(&p->arena, o->metadata[i].name),
                                   .value = value };
    }
    struct buf q;
    buf_init(&q, SIZE_MAX / 4);
    for (size_t i = 0; i < o->n_query; i++) {
        if (i)
            buf_putc(&q, '&');
        http_query_escape(&q, o->query[i].name);
        buf_putc(&q, '=');
        http_query_escape(&q, o->query[i].value);
    }
    if (!buf_ok(&q))
        p->arena.failed = true;
    else if (q.len)
        p->query = arena_strdup(&p->arena, q.data);
    buf_clear(&q);

    tinker_status s = copy_extra_body(p, o->extra_body, err);
    if (s == TINKER_OK && p->arena.failed)
        s = err_nomem(err, "call options");
    if (s == TINKER_OK)
        return p;
    call_options_unref(p);
    return NULL;
}

void call_options_unref(struct call_options *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    arena_clear(&p->arena);
    free(p);
}

bool call_options_has_header(const struct call_options *p, const char *name)
{
    for (size_t i = 0; p && i < p->n_headers; i++)
        if (strcasecmp(p->headers[i].name, name) == 0)
            return true;
    return false;
}

/* ---- making and sharing -------------------------------------------------------------------- */

struct call_options *call_options_make(const tinker_call_options *opts, tinker_error *err)
{
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    if (opts_copy(&o, sizeof(o), opts, "tinker_call_options", err) != TINKER_OK ||
        check_options(&o, err) != TINKER_OK)
        return NULL;
    return call_options_new(&o, err);
}

struct call_options *call_options_ref(struct call_options *p)
{
    if (p)
        atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}
