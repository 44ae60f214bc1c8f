/* config.c - options over environment over defaults.  Runs in the thread that makes a
 * service; nothing here is read again later. */
#include "client/session/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/http.h>
#include "base/array.h"
#include "base/base64.h"
#include "base/err.h"
#include "client/session/auth.h"
#include "client/call/breaker.h"
#include "client/session/env.h"
#include "client/session/session.h"
#include "client/sampling/sample_limits.h"
#include "client/call/call_options.h"
#include "client/session/credentials_file.h"
#include "wire/wire.h"

enum { SOCKETS_MAX = 100000 };
#define DEFAULT_URL "https://tinker.thinkingmachines.dev/services/tinker-prod"

static const char *text_of(struct config *c, const char *option, const char *name)
{
    return option && *option ? arena_strdup(&c->arena, option) : env_text(&c->arena, name);
}

static bool is_web(const char *url)
{
    return strncasecmp(url, "http://", 7) == 0 || strncasecmp(url, "https://", 8) == 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "Basic " and what stands before the @ of an address, decoded if that is how it is written there. */
static const char *basic_value(struct config *c, const char *user, size_t n, bool decode)
{
    struct buf plain, value;
    buf_init(&plain, 4096);
    buf_init(&value, 8192);
    for (size_t i = 0; i < n; i++) {
        bool coded = decode && user[i] == '%' && n - i > 2 && hex_digit(user[i + 1]) >= 0 &&
                     hex_digit(user[i + 2]) >= 0;
        buf_putc(&plain,
                 coded ? (char)(hex_digit(user[i + 1]) << 4 | hex_digit(user[i + 2])) : user[i]);
        i += coded ? 2 : 0;
    }
    buf_puts(&value, "Basic ");
    base64_encode(&value, plain.data ? plain.data : "", plain.len);
    const char *text =
        buf_ok(&plain) && buf_ok(&value) ? arena_strdup(&c->arena, value.data) : NULL;
    buf_clear(&plain);
    buf_clear(&value);
    return text;
}

/* Where the host begins that may have a user before it. */
static const char *host_of(const char *authority)
{
    const char *host = authority, *end = authority + strcspn(authority, "/?#");
    for (const char *p = authority; p < end; p++)
        if (*p == '@')
            host = p + 1;
    return host;
}

/* User and password of the address become a header, so that no message shows them. */
static tinker_status set_url(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    const char *url = text_of(c, o->base_url, "TINKER_BASE_URL");
    if (!url)
        url = DEFAULT_URL;
    if (!is_web(url))
        return err_set(err, TINKER_EINVAL,
                       "base URL \"%s\" starts with neither http:// nor https://",
                       strchr(url, '@') ? "..." : url);
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f || *p == '?' || *p == '#')
            return err_set(err, TINKER_EINVAL,
                           "the base URL has a query, a fragment, a blank or a control character "
                           "in it; it ends with the host or a path");
    const char *user = strstr(url, "://") + 3, *host = host_of(user);
    if (host > user)
        c->url_auth = basic_value(c, user, (size_t)(host - user) - 1, true);
    if (host > user && !c->url_auth)
        return err_set(err, TINKER_EINVAL, "user and password of the base URL are too long");
    size_t n = strlen(url);
    c->base_url = arena_printf(&c->arena, "%.*s%s%s", (int)(user - url), url, host,
                               url[n - 1] == '/' ? "" : "/");
    return TINKER_OK;
}

static tinker_status set_credentials(struct config *c, const tinker_service_options *o,
                                     tinker_error *err)
{
    c->api_key = text_of(c, o->api_key, "TINKER_API_KEY");
    c->credential_cmd = text_of(c, o->credential_cmd, "TINKER_CREDENTIAL_CMD");
    if (!c->api_key && !c->credential_cmd) {
        tinker_status s = stored_key(&c->arena, &c->api_key, err);
        if (s != TINKER_OK)
            return s;
    }
    log_secret(c->api_key);
    const tinker_named_string header = { "X-API-Key", c->api_key };
    if (c->api_key && prefs_check_header(&header, NULL) != TINKER_OK)
        return err_set(err, TINKER_EINVAL,
                       "the API key has a line break or another control character in it");
    if (auth_key_valid(c->api_key) || c->credential_cmd)
        return TINKER_OK;
    if (!c->api_key)
        return err_set(err, TINKER_EINVAL,
                       "no API key: set TINKER_API_KEY or the option api_key (a key starts with "
                       "tml-)");
    return err_set(err, TINKER_EINVAL, "the API key does not start with tml-");
}

static bool set_tags(struct config *c, const tinker_service_options *o)
{
    if (!o->n_tags) {
        const char *value = env_text(&c->arena, "TINKER_TAGS");
        return !value || env_words(&c->arena, value, &c->tags, &c->n_tags);
    }
    c->tags = arena_array(&c->arena, o->n_tags, sizeof(char *));
    for (size_t i = 0; c->tags && i < o->n_tags; i++)
        c->tags[c->n_tags++] = arena_strdup(&c->arena, o->tags[i]);
    return c->tags != NULL;
}

static bool set_gates(struct config *c)
{
    const char *value = env_text(&c->arena, "TINKER_FEATURE_GATES");
    return env_words(&c->arena, value ? value : "async_sampling", &c->feature_gates,
                     &c->n_feature_gates);
}

static bool put_header(struct config *c, const char *name, const char *value, bool secret)
{
    struct http_header *v = c->default_headers;
    for (size_t i = 0; i < c->n_default_headers; i++)
        if (strcasecmp(v[i].name, name) == 0) {
            v[i].value = arena_strdup(&c->arena, value);
            return v[i].value != NULL;
        }
    size_t n = c->n_default_headers, size = sizeof(*v);
    v = arena_grow(&c->arena, v, n * size, (n + 1) * size);
    if (!v)
        return false;
    v[n] = (struct http_header){ arena_strdup(&c->arena, name), arena_strdup(&c->arena, value),
                                 secret };
    c->default_headers = v;
    c->n_default_headers++;
    return v[n].name && v[n].value;
}

/* By its sound, because a program may have headers of its own. */
static bool is_secret_name(const char *name)
{
    static const char *const words[] = { "-key",   "auth",     "cf-access-", "cookie",
                                         "secret", "password", "token" };
    for (const char *p = name; *p; p++)
        for (size_t i = 0; i < ARRAY_LEN(words); i++)
            if (strncasecmp(p, words[i], strlen(words[i])) == 0)
                return true;
    return false;
}

/* After all that can give one: a line break in a header would let a value become another header. */
static tinker_status check_headers(const struct http_header *v, size_t n, tinker_error *err)
{
    tinker_status s = TINKER_OK;
    for (size_t i = 0; s == TINKER_OK && i < n; i++)
        s = prefs_check_header(&(tinker_named_string){ v[i].name, v[i].value }, err);
    return s;
}

static bool set_headers(struct config *c, const tinker_service_options *o)
{
    const char *id = env_text(&c->arena, "CLOUDFLARE_ACCESS_CLIENT_ID");
    const char *secret = env_text(&c->arena, "CLOUDFLARE_ACCESS_CLIENT_SECRET");
    const char *json = env_text(&c->arena, "TINKEX_DEFAULT_HEADERS");
    bool ok = (!id || put_header(c, "CF-Access-Client-Id", id, true)) &&
              (!secret || put_header(c, "CF-Access-Client-Secret", secret, true));
    log_secret(secret);
    ok = ok && (!c->url_auth || put_header(c, "Authorization", c->url_auth, true));
    struct http_header *v;
    size_t n = 0;
    ok = ok && (!json || env_json_object(&c->arena, json, &v, &n));
    for (size_t i = 0; ok && i < n; i++)
        ok = put_header(c, v[i].name, v[i].value, is_secret_name(v[i].name));
    for (size_t i = 0; ok && i < o->n_headers; i++)
        ok = put_header(c, o->headers[i].name, o->headers[i].value,
                        is_secret_name(o->headers[i].name));
    return ok;
}

static bool set_query(struct config *c, const tinker_service_options *o)
{
    struct buf q;
    buf_init(&q, 1 << 20);
    const char *json = o->n_query ? NULL : env_text(&c->arena, "TINKEX_DEFAULT_QUERY");
    struct http_header *v = NULL;
    size_t n = 0;
    bool ok = !json || env_json_object(&c->arena, json, &v, &n);
    for (size_t i = 0; i < n + o->n_query; i++) {
        const char *name = o->n_query ? o->query[i].name : v[i].name;
        const char *value = o->n_query ? o->query[i].value : v[i].value;
        if (i > 0)
            buf_putc(&q, '&');
        http_query_escape(&q, name);
        buf_putc(&q, '=');
        http_query_escape(&q, value);
    }
    c->default_query = ok && buf_ok(&q) ? arena_strdup(&c->arena, q.data ? q.data : "") : NULL;
    buf_clear(&q);
    return c->default_query != NULL;
}

static const char *first_env(struct config *c, const char *const *names)
{
    const char *value = NULL;
    for (; *names && !value; names++)
        value = env_text(&c->arena, *names);
    return value;
}

static bool put_proxy_header(struct config *c, const char *name, const char *value)
{
    size_t n = c->n_proxy_headers;
    struct http_header *v = arena_array(&c->arena, n + 1, sizeof(*v));
    if (!v || !name || !value)
        return false;
    for (size_t i = 0; i < n; i++) {
        v[i] = c->proxy_headers[i];
        if (strcasecmp(v[i].name, name) == 0)
            return true; /* what was said first counts */
    }
    v[n] = (struct http_header){ name, value, true };
    c->proxy_headers = v;
    c->n_proxy_headers = n + 1;
    return true;
}

static tinker_status set_proxy_headers(struct config *c, const tinker_service_options *o,
                                       tinker_error *err)
{
    const char *json = env_text(&c->arena, "TINKEX_PROXY_HEADERS");
    if (!o->n_proxy_headers) {
        bool ok = !json || env_json_pairs(&c->arena, json, &c->proxy_headers, &c->n_proxy_headers);
        for (size_t i = 0; ok && i < c->n_proxy_headers; i++)
            log_secret(c->proxy_headers[i].value);
        return ok ? TINKER_OK : err_nomem(err, "configuration");
    }
    for (size_t i = 0; i < o->n_proxy_headers; i++) {
        const tinker_named_string *h = &o->proxy_headers[i];
        log_secret(h->value);
        if (!put_proxy_header(c, arena_strdup(&c->arena, h->name),
                              arena_strdup(&c->arena, h->value)))
            return err_nomem(err, "configuration");
    }
    return TINKER_OK;
}

/* User and password of a proxy address become a header, so that curl's messages and our
 * dumps never show them. */
static bool split_proxy(struct config *c, const char *url)
{
    const char *user = strstr(url, "://") + 3, *at = strrchr(user, '@');
    if (!at) {
        c->proxy = url;
        return true;
    }
    c->proxy = arena_printf(&c->arena, "%.*s%s", (int)(user - url), url, at + 1);
    const char *text = basic_value(c, user, (size_t)(at - user), false);
    return c->proxy && put_proxy_header(c, "Proxy-Authorization", text);
}

static tinker_status set_proxy(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    static const char *const plain[] = { "http_proxy", "all_proxy", "ALL_PROXY", NULL };
    static const char *const tls[] = { "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                                       NULL };
    static const char *const none[] = { "no_proxy", "NO_PROXY", NULL };
    tinker_status s = set_proxy_headers(c, o, err);
    if (s != TINKER_OK)
        return s;
    const char *url = text_of(c, o->proxy, "TINKEX_PROXY");
    if (url && !is_web(url))
        return err_set(err, TINKER_EINVAL, "the proxy address must start with http:// or https://");
    if (url)
        return split_proxy(c, url) ? TINKER_OK : err_nomem(err, "configuration");
    bool https = strncasecmp(c->base_url, "https://", 8) == 0;
    c->proxy = first_env(c, https ? tls : plain);
    c->no_proxy = first_env(c, none);
    return TINKER_OK;
}

/* The two sets of defaults, by name; anything unknown is the first. */
static bool is_conservative(const char *parity)
{
    return parity && (strcasecmp(parity, "conservative") == 0 || strcasecmp(parity, "beam") == 0 ||
                      strcasecmp(parity, "elixir") == 0);
}

static void set_transport(struct config *c, const tinker_service_options *o)
{
    bool conservative = is_conservative(text_of(c, o->parity, "TINKEX_PARITY"));
    int64_t given =
        o->timeout_ms > 0 ? o->timeout_ms : env_positive(&c->arena, "TINKEX_TIMEOUT", 0);
    c->timeout_ms = given ? given : conservative ? 120000 : 60000;
    c->connect_ms = given ? given : 5000; /* a number given by the user means all phases */
    number_text((double)c->timeout_ms / 1000, 15, c->timeout_text);
    int64_t retries = env_whole(&c->arena, "TINKEX_MAX_RETRIES", conservative ? 2 : 10);
    c->max_retries = o->max_retries ? (o->max_retries < 0 ? 0 : o->max_retries)
                                    : (int)(retries < 1000 ? retries : 1000);
    c->ca_file = text_of(c, o->ca_file, "SSL_CERT_FILE");
}

static void set_poll_backoff(struct config *c, const tinker_service_options *o)
{
    const char *value = env_text(&c->arena, "TINKEX_POLL_BACKOFF");
    bool on = env_truthy(value) || (value && strcasecmp(value, "exponential") == 0);
    c->poll_backoff = on || o->poll_backoff_initial_ms > 0;
    c->poll_backoff_initial_ms = o->poll_backoff_initial_ms > 0 ? o->poll_backoff_initial_ms : 1000;
    c->poll_backoff_max_ms = o->poll_backoff_max_ms > 0 ? o->poll_backoff_max_ms : 30000;
}

static int64_t bounded(int64_t sockets)
{
    return sockets < SOCKETS_MAX ? sockets : SOCKETS_MAX;
}

static void set_sockets(struct config *c, const tinker_service_options *o)
{
    int64_t size = env_positive(&c->arena, "TINKEX_POOL_SIZE", 0);
    int64_t count = env_positive(&c->arena, "TINKEX_POOL_COUNT", 0);
    int64_t product = 0;
    if (size || count)
        product = bounded(size ? size : 50) * bounded(count ? count : 20);
    c->pool_max[POOL_SESSION] = o->session_sockets;
    c->pool_max[POOL_TRAIN] = o->training_sockets;
    c->pool_max[POOL_SAMPLE] = o->sampling_sockets ? o->sampling_sockets : (int)bounded(product);
    c->pool_max[POOL_RETRIEVE] = o->polling_sockets;
    c->pool_max[POOL_TELEMETRY] = o->telemetry_sockets;
}

static void set_flags(struct config *c, const tinker_service_options *o)
{
    const char *raw = getenv("TINKER_TELEMETRY");
    const char *telemetry = raw ? env_text(&c->arena, "TINKER_TELEMETRY") : "1";
    c->telemetry = o->telemetry ? o->telemetry > 0 : env_truthy(telemetry);
    const char *sub = env_text(&c->arena, "TINKER_SUBPROCESS_SAMPLING");
    c->subprocess_sampling = o->subprocess_sampling ? o->subprocess_sampling > 0
                                                    : env_truthy(sub) && strcasecmp(sub, "on") != 0;
    const char *helper = text_of(c, o->sampling_helper, "TINKER_SAMPLING_HELPER");
    c->sampling_helper = helper ? helper : "tinker";
    c->dump_headers = o->dump_headers || env_flag(&c->arena, "TINKEX_DUMP_HEADERS", false);
    c->otel = o->otel || env_flag(&c->arena, "TINKEX_OTEL_PROPAGATE", false);
    c->isolate_limits = o->isolate_limits;
    c->close_ms = o->close_ms > 0 ? (o->close_ms < 30000 ? o->close_ms : 30000) : 5000;
    c->telemetry_max_retries = o->telemetry_max_retries > 0 ? o->telemetry_max_retries : -1;
    c->heartbeat_max_failures = o->heartbeat_max_failures;
    c->heartbeat_max_ms = o->heartbeat_max_ms;
}

static void set_log(struct config *c, const tinker_service_options *o)
{
    const char *level = env_text(&c->arena, "TINKER_LOG");
    c->log_callback = o->log;
    c->log_state = o->log_state;
    enum log_level dflt = o->log ? LOG_WARNING : LOG_OFF;
    if (o->log_verbose > 0)
        c->log.level = o->log_verbose > 1 ? LOG_DEBUG : LOG_INFO;
    else
        c->log.level = level ? log_level_parse(level, LOG_WARNING) : dflt;
}

/* Hooks get the texts as they are, so secrets must be gone. */
static bool copy_metadata(struct config *c, const tinker_service_options *o)
{
    c->metadata = arena_array(&c->arena, o->n_user_metadata + 1, sizeof(*c->metadata));
    for (size_t i = 0; c->metadata && i < o->n_user_metadata; i++) {
        const tinker_named_string *m = &o->user_metadata[i];
        size_t n = strlen(m->value) + 64; /* a redacted text may be longer */
        char *value = arena_alloc(&c->arena, n), *name = arena_strdup(&c->arena, m->name);
        if (!value || !name)
            return false;
        snprintf(value, n, "%s", m->value);
        log_redact(value, n);
        c->metadata[c->n_metadata++] = (tinker_named_string){ name, value };
    }
    return c->metadata != NULL;
}

static tinker_status set_metadata(struct config *c, const tinker_service_options *o,
                                  tinker_error *err)
{
    struct buf b;
    buf_init(&b, 16 << 20);
    tinker_status s = wire_metadata_encode(o->user_metadata, o->n_user_metadata, &b, err);
    if (s == TINKER_OK) {
        c->user_metadata = arena_strndup(&c->arena, b.data, b.len);
        if (!c->user_metadata || !copy_metadata(c, o))
            s = err_nomem(err, "configuration");
    }
    buf_clear(&b);
    return s;
}

static tinker_status set_breaker(struct config *c, const tinker_service_options *o,
                                 tinker_error *err)
{
    if (!o->breaker)
        return TINKER_OK;
    tinker_status s = breaker_options(&c->breaker, o->breaker, err);
    if (s == TINKER_OK && c->breaker.judge)
        s = err_set(err, TINKER_EINVAL,
                    "breaker: a service takes no judge, it would run on the "
                    "library's I/O thread");
    if (s != TINKER_OK)
        return s;
    char *scope = sample_limits_scope(c->base_url);
    c->breaker_scope = scope ? arena_strdup(&c->arena, scope) : NULL;
    free(scope);
    return c->breaker_scope ? TINKER_OK : err_nomem(err, "configuration");
}

static tinker_status set_transport_of(struct config *c, const tinker_service_options *o,
                                      tinker_error *err)
{
    c->transport = (tinker_transport)TINKER_TRANSPORT_INIT;
    c->has_transport = o->transport != NULL;
    tinker_status s =
        opts_copy(&c->transport, sizeof(c->transport), o->transport, "tinker_transport", err);
    if (s == TINKER_OK && o->transport && !c->transport.send)
        s = err_set(err, TINKER_EINVAL, "a transport needs a function to send with");
    return s;
}

static tinker_status set_queue(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    if (o->max_queued_bytes < 0)
        return err_set(err, TINKER_EINVAL, "max_queued_bytes must not be negative");
    c->max_queued_bytes = o->max_queued_bytes;
    return TINKER_OK;
}

static tinker_status set_metrics(struct config *c, const tinker_service_options *o,
                                 tinker_error *err)
{
    const char *prefix = o->metrics_prefix ? o->metrics_prefix : "tinkex";
    if (strlen(prefix) > 100)
        return err_set(err, TINKER_EINVAL, "metrics_prefix has more than 100 bytes");
    if (o->metrics >= 0)
        own_metrics_init(&c->metrics, prefix);
    return TINKER_OK;
}

static tinker_status check_counted(const char *what, const tinker_named_string *v, size_t n,
                                   tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!v || !v[i].name || !v[i].value)
            return err_set(err, TINKER_EINVAL, "%s: entry %zu has no name or no value", what, i);
    return TINKER_OK;
}

static tinker_status check_lists(const tinker_service_options *o, tinker_error *err)
{
    for (size_t i = 0; i < o->n_tags; i++)
        if (!o->tags || !o->tags[i])
            return err_set(err, TINKER_EINVAL, "tags: entry %zu is NULL", i);
    tinker_status s = check_counted("headers", o->headers, o->n_headers, err);
    if (s == TINKER_OK)
        s = check_counted("query", o->query, o->n_query, err);
    if (s == TINKER_OK)
        s = check_counted("proxy_headers", o->proxy_headers, o->n_proxy_headers, err);
    return s;
}

static tinker_status resolve(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    tinker_status s = check_lists(o, err);
    if (s == TINKER_OK)
        s = set_url(c, o, err);
    if (s == TINKER_OK)
        s = set_credentials(c, o, err);
    if (s == TINKER_OK)
        s = set_proxy(c, o, err);
    if (s == TINKER_OK)
        s = set_metadata(c, o, err);
    if (s == TINKER_OK)
        s = set_breaker(c, o, err);
    if (s == TINKER_OK)
        s = set_metrics(c, o, err);
    if (s == TINKER_OK)
        s = set_transport_of(c, o, err);
    if (s == TINKER_OK)
        s = set_queue(c, o, err);
    if (s != TINKER_OK)
        return s;
    c->project_id = text_of(c, o->project_id, "TINKER_PROJECT_ID");
    c->display_name =
        o->display_name && *o->display_name ? arena_strdup(&c->arena, o->display_name) : NULL;
    c->sdk_version = TINKER_SDK_VERSION;
    set_transport(c, o);
    set_poll_backoff(c, o);
    set_sockets(c, o);
    set_flags(c, o);
    set_log(c, o);
    bool ok = c->base_url && set_tags(c, o) && set_gates(c) && set_headers(c, o) && set_query(c, o);
    if (ok && c->otel && o->traceparent)
        ok = put_header(c, "traceparent", o->traceparent, false);
    if (ok && c->otel && o->tracestate)
        ok = put_header(c, "tracestate", o->tracestate, false);
    if (!ok)
        return err_nomem(err, "configuration");
    s = check_headers(c->default_headers, c->n_default_headers, err);
    return s == TINKER_OK ? check_headers(c->proxy_headers, c->n_proxy_headers, err) : s;
}

tinker_status config_init(struct config *c, const tinker_service_options *opts, tinker_error *err)
{
    tinker_service_options o = TINKER_SERVICE_OPTIONS_INIT;
    memset(c, 0, sizeof(*c));
    c->muted_by = &c->muted;
    arena_init(&c->arena, SIZE_MAX);
    tinker_status s = opts_copy(&o, sizeof(o), opts, "tinker_service_options", err);
    if (s == TINKER_OK)
        s = resolve(c, &o, err);
    if (c->arena.failed) /* a text that got lost is not one that was not given */
        s = err_nomem(err, "configuration");
    if (s != TINKER_OK)
        config_clear(c);
    return s;
}

void config_clear(struct config *c)
{
    arena_clear(&c->arena);
}

void config_mask_key(const char *key, char *out, size_t size)
{
    size_t n = strlen(key);
    if (n <= 4)
        snprintf(out, size, "%.*s", (int)n, "****");
    else if (n < 16) /* both ends would show too much of it */
        snprintf(out, size, "%.2s...", key);
    else
        snprintf(out, size, "%.6s...%s", key, key + n - 4);
}
