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

/* An empty option counts as not given, as a blank variable does. */
static const char *option_or_env(struct config *c, const char *option, const char *name)
{
    return option && *option ? arena_strdup(&c->arena, option) : env_text(&c->arena, name);
}

/* Schemes are case-insensitive (RFC 3986, 3.1). */
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

/* localhost, 127.x.x.x or [::1], with or without a port. */
static bool is_loopback(const char *host)
{
    size_t n = strcspn(host, host[0] == '[' ? "]" : ":/");
    return (n == 9 && strncasecmp(host, "localhost", n) == 0) || strncmp(host, "[::1]", 5) == 0 ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == n);
}

/* User and password of the address become a header, so that no message shows them. */
static tinker_status set_url(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    const char *url = option_or_env(c, o->base_url, "TINKER_BASE_URL");
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
    /* The host begins behind the last @ of the authority: a password may have one, too. */
    const char *user = strstr(url, "://") + 3, *host = user;
    for (const char *p = user, *end = user + strcspn(user, "/?#"); p < end; p++)
        if (*p == '@')
            host = p + 1;
    if (host > user)
        c->url_auth = basic_value(c, user, (size_t)(host - user) - 1, true);
    if (host > user && !c->url_auth)
        return err_set(err, TINKER_EINVAL, "user and password of the base URL are too long");
    size_t n = strlen(url);
    c->loopback = is_loopback(host);
    c->base_url = arena_printf(&c->arena, "%.*s%s%s", (int)(user - url), url, host,
                               url[n - 1] == '/' ? "" : "/");
    return TINKER_OK;
}

/* A key or a command must be there, and look right, before anything is sent: a service answers a
 * malformed key with an error that says less.  The file of stored keys is the last resort.  A
 * server on this machine gets any key, and a made-up one when there is none: its own keys may look
 * otherwise, and `tinker serve` usually has none. */
static tinker_status set_credentials(struct config *c, const tinker_service_options *o,
                                     tinker_error *err)
{
    c->api_key = option_or_env(c, o->api_key, "TINKER_API_KEY");
    c->credential_cmd = option_or_env(c, o->credentials.command, "TINKER_CREDENTIAL_CMD");
    if (!c->api_key && !c->credential_cmd) {
        tinker_status s = credentials_file_key(&c->arena, &c->api_key, err);
        if (s != TINKER_OK)
            return s;
        if (!c->api_key && c->loopback)
            c->api_key = arena_strdup(&c->arena, "tml-local");
    }
    log_secret(c->api_key);
    const tinker_named_string header = { "X-API-Key", c->api_key };
    if (c->api_key && call_options_check_header(&header, NULL) != TINKER_OK)
        return err_set(err, TINKER_EINVAL,
                       "the API key has a line break or another control character in it");
    if (auth_key_valid(c, c->api_key) || c->credential_cmd)
        return TINKER_OK;
    if (!c->api_key)
        return err_set(err, TINKER_EINVAL,
                       "no API key: set TINKER_API_KEY or the option api_key (a key starts with "
                       "tml-)");
    return err_set(err, TINKER_EINVAL, "the API key does not start with tml-");
}

/* Add a header, or replace the value of one with the same name: what comes later wins. */
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

/* Guessed from its name, because a program may have headers of its own. */
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

/* Checked after all sources are merged: a line break in a value would become another header. */
static tinker_status check_headers(const struct http_header *v, size_t n, tinker_error *err)
{
    tinker_status s = TINKER_OK;
    for (size_t i = 0; s == TINKER_OK && i < n; i++)
        s = call_options_check_header(&(tinker_named_string){ v[i].name, v[i].value }, err);
    return s;
}

/* In rising order of precedence: Cloudflare Access, the address, the environment, the options. */
static bool set_headers(struct config *c, const tinker_service_options *o)
{
    const char *id = env_text(&c->arena, "CLOUDFLARE_ACCESS_CLIENT_ID");
    const char *secret = env_text(&c->arena, "CLOUDFLARE_ACCESS_CLIENT_SECRET");
    const char *json = env_text(&c->arena, "TINKER_DEFAULT_HEADERS");
    bool ok = (!id || put_header(c, "CF-Access-Client-Id", id, true)) &&
              (!secret || put_header(c, "CF-Access-Client-Secret", secret, true));
    log_secret(secret);
    ok = ok && (!c->url_auth || put_header(c, "Authorization", c->url_auth, true));
    struct http_header *v;
    size_t n = 0;
    ok = ok && (!json || env_json_object(&c->arena, json, &v, &n));
    for (size_t i = 0; ok && i < n; i++)
        ok = put_header(c, v[i].name, v[i].value, is_secret_name(v[i].name));
    for (size_t i = 0; ok && i < o->network.n_headers; i++)
        ok = put_header(c, o->network.headers[i].name, o->network.headers[i].value,
                        is_secret_name(o->network.headers[i].name));
    return ok;
}

/* Joined once, escaped: requests only append it. */
static bool set_query(struct config *c, const tinker_service_options *o)
{
    struct buf q;
    buf_init(&q, 1 << 20);
    const char *json = o->network.n_query ? NULL : env_text(&c->arena, "TINKER_DEFAULT_QUERY");
    struct http_header *v = NULL;
    size_t n = 0;
    bool ok = !json || env_json_object(&c->arena, json, &v, &n);
    for (size_t i = 0; i < n + o->network.n_query; i++) {
        const char *name = o->network.n_query ? o->network.query[i].name : v[i].name;
        const char *value = o->network.n_query ? o->network.query[i].value : v[i].value;
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

/* The value of the first variable that is set and not blank. */
static const char *first_env(struct config *c, const char *const *names)
{
    const char *value = NULL;
    for (; *names && !value; names++)
        value = env_text(&c->arena, *names);
    return value;
}

/* Proxy headers are always secret: they exist to authenticate. */
static bool put_proxy_header(struct config *c, const char *name, const char *value)
{
    size_t n = c->n_proxy_headers;
    struct http_header *v = arena_array(&c->arena, n + 1, sizeof(*v));
    if (!v || !name || !value)
        return false;
    for (size_t i = 0; i < n; i++) {
        v[i] = c->proxy_headers[i];
        if (strcasecmp(v[i].name, name) == 0)
            return true; /* the first one counts */
    }
    v[n] = (struct http_header){ name, value, true };
    c->proxy_headers = v;
    c->n_proxy_headers = n + 1;
    return true;
}

/* The proxy: the option, TINKER_PROXY, or what other programs use, in curl's order of names. */
static tinker_status set_proxy(struct config *c, const tinker_service_options *o, tinker_error *err)
{
    static const char *const plain[] = { "http_proxy", "all_proxy", "ALL_PROXY", NULL };
    static const char *const tls[] = { "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                                       NULL };
    static const char *const none[] = { "no_proxy", "NO_PROXY", NULL };
    const char *json = env_text(&c->arena, "TINKER_PROXY_HEADERS");
    bool ok = true;
    if (!o->network.n_proxy_headers && json)
        ok = env_json_pairs(&c->arena, json, &c->proxy_headers, &c->n_proxy_headers);
    for (size_t i = 0; ok && i < o->network.n_proxy_headers; i++)
        ok = put_proxy_header(c, arena_strdup(&c->arena, o->network.proxy_headers[i].name),
                              arena_strdup(&c->arena, o->network.proxy_headers[i].value));
    for (size_t i = 0; ok && i < c->n_proxy_headers; i++)
        log_secret(c->proxy_headers[i].value);
    const char *url = option_or_env(c, o->network.proxy, "TINKER_PROXY");
    if (ok && url && !is_web(url))
        return err_set(err, TINKER_EINVAL, "the proxy address must start with http:// or https://");
    if (ok && url) {
        /* TINKER_PROXY wins over the variables of other programs, and is then not subject to
         * no_proxy.  User and password become a header, so that messages and dumps never show
         * them. */
        const char *user = strstr(url, "://") + 3, *at = strrchr(user, '@');
        c->proxy = at ? arena_printf(&c->arena, "%.*s%s", (int)(user - url), url, at + 1) : url;
        ok =
            c->proxy && (!at || put_proxy_header(c, "Proxy-Authorization",
                                                 basic_value(c, user, (size_t)(at - user), false)));
    } else if (ok) {
        bool https = strncasecmp(c->base_url, "https://", 8) == 0;
        c->proxy = first_env(c, https ? tls : plain);
        c->no_proxy = first_env(c, none);
    }
    return ok ? TINKER_OK : err_nomem(err, "configuration");
}

static int64_t clamp_sockets(int64_t sockets)
{
    return sockets < SOCKETS_MAX ? sockets : SOCKETS_MAX;
}

/* Times, retries and connections. */
static void set_timeouts(struct config *c, const tinker_service_options *o)
{
    /* Two sets of defaults, by name; anything unknown is the first. */
    const char *parity = option_or_env(c, o->network.parity, "TINKER_PARITY");
    bool conservative =
        parity && (strcasecmp(parity, "conservative") == 0 || strcasecmp(parity, "beam") == 0 ||
                   strcasecmp(parity, "elixir") == 0);
    int64_t given = o->network.timeout_ms > 0 ? o->network.timeout_ms
                                              : env_positive(&c->arena, "TINKER_TIMEOUT", 0);
    c->timeout_ms = given ? given : conservative ? 120000 : 60000;
    c->connect_ms = given ? given : 5000; /* a number given by the user means all phases */
    number_text((double)c->timeout_ms / 1000, 15, c->timeout_text);
    int64_t retries = env_whole(&c->arena, "TINKER_MAX_RETRIES", conservative ? 2 : 10);
    c->max_retries = o->network.max_retries
                         ? (o->network.max_retries < 0 ? 0 : o->network.max_retries)
                         : (int)(retries < 1000 ? retries : 1000);
    c->ca_file = option_or_env(c, o->network.ca_file, "SSL_CERT_FILE");

    /* Off by default: the reference SDK polls again at once. */
    const char *backoff = env_text(&c->arena, "TINKER_POLL_BACKOFF");
    bool on = env_truthy(backoff) || (backoff && strcasecmp(backoff, "exponential") == 0);
    int64_t initial = o->network.poll_backoff_initial_ms, max = o->network.poll_backoff_max_ms;
    c->poll_backoff = on || initial > 0;
    c->poll_backoff_initial_ms = initial > 0 ? initial : 1000;
    c->poll_backoff_max_ms = max > 0 ? max : 30000;

    /* The Elixir client has pools of connections, size times count; here they share one bound.
     * Each factor is clamped, so that the product cannot overflow. */
    int64_t size = env_positive(&c->arena, "TINKER_POOL_SIZE", 0);
    int64_t count = env_positive(&c->arena, "TINKER_POOL_COUNT", 0);
    int64_t product = 0;
    if (size || count)
        product = clamp_sockets(size ? size : 50) * clamp_sockets(count ? count : 20);
    c->pool_max[POOL_SESSION] = o->network.session_sockets;
    c->pool_max[POOL_TRAIN] = o->network.training_sockets;
    c->pool_max[POOL_SAMPLE] =
        o->network.sampling_sockets ? o->network.sampling_sockets : (int)clamp_sockets(product);
    c->pool_max[POOL_RETRIEVE] = o->network.polling_sockets;
    c->pool_max[POOL_TELEMETRY] = o->network.telemetry_sockets;
}

/* Switches, and limits that have no error.  TINKER_TELEMETRY is special: set but blank means off,
 * so it is asked for directly.  TINKER_SUBPROCESS_SAMPLING does not know "on", as in the
 * reference. */
static void set_flags(struct config *c, const tinker_service_options *o)
{
    const char *raw = getenv("TINKER_TELEMETRY");
    const char *telemetry = raw ? env_text(&c->arena, "TINKER_TELEMETRY") : "1";
    c->telemetry = o->telemetry.enabled ? o->telemetry.enabled > 0 : env_truthy(telemetry);
    const char *sub = env_text(&c->arena, "TINKER_SUBPROCESS_SAMPLING");
    c->subprocess_sampling = o->subprocess_sampling ? o->subprocess_sampling > 0
                                                    : env_truthy(sub) && strcasecmp(sub, "on") != 0;
    const char *helper = option_or_env(c, o->sampling_helper, "TINKER_SAMPLING_HELPER");
    c->sampling_helper = helper ? helper : "tinker";
    c->dump_headers =
        o->observation.dump_headers || env_flag(&c->arena, "TINKER_DUMP_HEADERS", false);
    c->otel = o->telemetry.otel || env_flag(&c->arena, "TINKER_OTEL_PROPAGATE", false);
    c->isolate_limits = o->limits.isolate;
    c->close_ms =
        o->limits.close_ms > 0 ? (o->limits.close_ms < 30000 ? o->limits.close_ms : 30000) : 5000;
    c->telemetry_max_retries = o->telemetry.max_retries > 0 ? o->telemetry.max_retries : -1;
    c->heartbeat_max_failures = o->limits.heartbeat_max_failures;
    c->heartbeat_max_ms = o->limits.heartbeat_max_ms;

    /* With a callback, warnings are logged; without one nothing is, unless a level is set. */
    const char *level = env_text(&c->arena, "TINKER_LOG");
    c->log_callback = o->observation.log;
    c->log_state = o->observation.log_state;
    enum log_level dflt = o->observation.log ? LOG_WARNING : LOG_OFF;
    if (o->observation.log_verbose > 0)
        c->log.level = o->observation.log_verbose > 1 ? LOG_DEBUG : LOG_INFO;
    else
        c->log.level = level ? log_level_parse(level, LOG_WARNING) : dflt;
}

/* What the session is called and tagged with. */
static tinker_status set_session(struct config *c, const tinker_service_options *o,
                                 tinker_error *err)
{
    struct buf b;
    buf_init(&b, 16 << 20);
    tinker_status s = wire_metadata_encode(o->user_metadata, o->n_user_metadata, &b, err);
    if (s == TINKER_OK)
        c->user_metadata = arena_strndup(&c->arena, b.data, b.len);
    buf_clear(&b);
    if (s != TINKER_OK)
        return s;
    /* Hooks get the texts as they are, so secrets must be gone from this copy. */
    c->metadata = arena_array(&c->arena, o->n_user_metadata + 1, sizeof(*c->metadata));
    bool ok = c->user_metadata && c->metadata;
    for (size_t i = 0; ok && i < o->n_user_metadata; i++) {
        const tinker_named_string *m = &o->user_metadata[i];
        size_t n = strlen(m->value) + 64; /* a redacted text may be longer */
        char *value = arena_alloc(&c->arena, n), *name = arena_strdup(&c->arena, m->name);
        ok = value && name;
        if (ok) {
            snprintf(value, n, "%s", m->value);
            log_redact(value, n);
            c->metadata[c->n_metadata++] = (tinker_named_string){ name, value };
        }
    }
    const char *tags = o->n_tags ? NULL : env_text(&c->arena, "TINKER_TAGS");
    if (ok && tags)
        ok = env_words(&c->arena, tags, &c->tags, &c->n_tags);
    else if (ok && o->n_tags) {
        c->tags = arena_array(&c->arena, o->n_tags, sizeof(char *));
        for (size_t i = 0; c->tags && i < o->n_tags; i++)
            c->tags[c->n_tags++] = arena_strdup(&c->arena, o->tags[i]);
    }
    const char *gates = env_text(&c->arena, "TINKER_FEATURE_GATES");
    ok = ok && env_words(&c->arena, gates ? gates : "async_sampling", &c->feature_gates,
                         &c->n_feature_gates);
    c->project_id = option_or_env(c, o->credentials.project_id, "TINKER_PROJECT_ID");
    c->display_name =
        o->display_name && *o->display_name ? arena_strdup(&c->arena, o->display_name) : NULL;
    return ok ? TINKER_OK : err_nomem(err, "configuration"); /* config_init() asks the arena, too */
}

/* The parts of the options that are option structs themselves, and numbers with a bound. */
static tinker_status set_extras(struct config *c, const tinker_service_options *o,
                                tinker_error *err)
{
    c->transport = (tinker_transport)TINKER_TRANSPORT_INIT;
    c->has_transport = o->network.transport != NULL;
    tinker_status s = opts_copy(&c->transport, sizeof(c->transport), o->network.transport,
                                "tinker_transport", err);
    if (s != TINKER_OK)
        return s;
    if (o->network.transport && !c->transport.send)
        return err_set(err, TINKER_EINVAL, "a transport needs a function to send with");
    if (o->limits.max_queued_bytes < 0)
        return err_set(err, TINKER_EINVAL, "max_queued_bytes must not be negative");
    c->max_queued_bytes = o->limits.max_queued_bytes;
    const char *prefix = o->observation.metrics_prefix ? o->observation.metrics_prefix : "tinker";
    if (strlen(prefix) > 100)
        return err_set(err, TINKER_EINVAL, "metrics_prefix has more than 100 bytes");
    if (o->observation.metrics >= 0)
        own_metrics_init(&c->metrics, prefix);
    if (!o->limits.breaker)
        return TINKER_OK;
    s = breaker_options(&c->breaker, o->limits.breaker, err);
    if (s != TINKER_OK)
        return s;
    if (c->breaker.judge)
        return err_set(err, TINKER_EINVAL,
                       "breaker: a service takes no judge, it would run on the "
                       "library's I/O thread");
    char *scope = sample_limits_scope(c->base_url);
    c->breaker_scope = scope ? arena_strdup(&c->arena, scope) : NULL;
    free(scope);
    return c->breaker_scope ? TINKER_OK : err_nomem(err, "configuration");
}

/* Lists come as pointer and count from the caller: refuse what would crash later. */
static tinker_status check_counted(const char *what, const tinker_named_string *v, size_t n,
                                   tinker_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!v || !v[i].name || !v[i].value)
            return err_set(err, TINKER_EINVAL, "%s: entry %zu has no name or no value", what, i);
    return TINKER_OK;
}

/* A count without entries, or an entry without content, is an error and no crash. */
static tinker_status check_lists(const tinker_service_options *o, tinker_error *err)
{
    for (size_t i = 0; i < o->n_tags; i++)
        if (!o->tags || !o->tags[i])
            return err_set(err, TINKER_EINVAL, "tags: entry %zu is NULL", i);
    const tinker_service_network *net = &o->network;
    tinker_status s = check_counted("user_metadata", o->user_metadata, o->n_user_metadata, err);
    if (s == TINKER_OK)
        s = check_counted("headers", net->headers, net->n_headers, err);
    if (s == TINKER_OK)
        s = check_counted("query", net->query, net->n_query, err);
    if (s == TINKER_OK)
        s = check_counted("proxy_headers", net->proxy_headers, net->n_proxy_headers, err);
    return s;
}

/* In this order: the proxy and the breaker depend on the address, headers on the flags. */
static tinker_status resolve_options(struct config *c, const tinker_service_options *o,
                                     tinker_error *err)
{
    tinker_status s = check_lists(o, err);
    if (s == TINKER_OK)
        s = set_url(c, o, err);
    if (s == TINKER_OK && !c->base_url)
        s = err_nomem(err, "configuration");
    if (s == TINKER_OK)
        s = set_credentials(c, o, err);
    if (s == TINKER_OK)
        s = set_proxy(c, o, err);
    if (s == TINKER_OK)
        s = set_session(c, o, err);
    if (s == TINKER_OK)
        s = set_extras(c, o, err);
    if (s != TINKER_OK)
        return s;
    /* The rest cannot fail but for memory, which the flag of the arena remembers. */
    c->sdk_version = TINKER_SDK_VERSION;
    set_timeouts(c, o);
    set_flags(c, o);
    bool ok = set_headers(c, o) && set_query(c, o);
    if (ok && c->otel && o->telemetry.traceparent)
        ok = put_header(c, "traceparent", o->telemetry.traceparent, false);
    if (ok && c->otel && o->telemetry.tracestate)
        ok = put_header(c, "tracestate", o->telemetry.tracestate, false);
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
        s = resolve_options(c, &o, err);
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
