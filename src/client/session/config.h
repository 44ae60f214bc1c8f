/* config.h - every setting of a service, resolved once: option, environment, default.
 *
 * The environment is read here and nowhere else, when a service is made.  A blank
 * variable counts as unset, except TINKER_TELEMETRY, where it switches off.
 * Thread safety: plain data. */
#ifndef CLIENT_CONFIG_H
#define CLIENT_CONFIG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <tinker/service.h>
#include <tinker/extra/breaker.h>
#include <tinker/extra/http.h>
#include "base/arena.h"
#include "base/log.h"
#include "base/number.h"
#include "client/observe/metrics.h"
#include "http/http.h"

struct config {
    struct arena arena;   /* all strings below */
    const char *base_url; /* ends with a slash; no user, no password */
    bool loopback;        /* its host is this machine */
    const char *url_auth; /* these, as the value of a header; NULL: none */
    const char *api_key;  /* NULL: none given */
    const char *credential_cmd;
    const char *project_id, *display_name;
    const char **tags;
    size_t n_tags;
    const char **feature_gates;
    size_t n_feature_gates;
    const char *user_metadata;     /* a JSON object */
    tinker_named_string *metadata; /* the same, redacted, for events */
    size_t n_metadata;
    const char *sdk_version;
    struct http_header *default_headers; /* the user's, and Cloudflare's */
    size_t n_default_headers;
    const char *default_query; /* "a=b&c=d", "" for none */
    const char *proxy, *no_proxy;
    struct http_header *proxy_headers;
    size_t n_proxy_headers;
    const char *ca_file;
    int64_t timeout_ms; /* read, write, acquire */
    int64_t connect_ms;
    char timeout_text[NUMBER_SIZE]; /* for x-stainless-read-timeout: "60" */
    int max_retries;                /* layer 1 */
    atomic_bool muted;              /* the service is being freed by a callback: no more of them */
    const atomic_bool *muted_by;    /* that of the service, also in copies for other accounts */
    bool telemetry, subprocess_sampling, dump_headers, otel, poll_backoff;
    bool isolate_limits;
    const char *sampling_helper; /* program for subprocess_sampling */
    int64_t poll_backoff_initial_ms, poll_backoff_max_ms;
    int pool_max[6];               /* sockets per pool, 0: no bound; by enum pool_kind */
    int64_t close_ms;              /* how long closing may wait for telemetry */
    int64_t telemetry_max_retries; /* -1: no limit */
    int64_t heartbeat_max_failures, heartbeat_max_ms; /* 0: never give up */
    struct log log;
    struct own_metrics metrics; /* all NULL: not wanted */
    int64_t max_queued_bytes;   /* 0: no limit */
    bool has_transport;
    tinker_transport transport; /* the program's */
    const char *breaker_scope;  /* NULL: no circuit breakers */
    tinker_breaker_options breaker;
    tinker_log_fn *log_callback;
    void *log_state;
};

tinker_status config_init(struct config *c, const tinker_service_options *opts, tinker_error *err);
void config_clear(struct config *c);
/* The printable form of a key: at most the first 6 and the last 4 characters. */
void config_mask_key(const char *key, char *out, size_t size);

#endif
