/* service.h - a connection to a Tinker service: hosted, or `tinker serve`.
 *
 * Creating a service sends nothing; the session is opened by the first call that
 * needs one and kept alive until tinker_service_free().  fork() after creating a
 * service is unsupported. */
#ifndef TINKER_SERVICE_H
#define TINKER_SERVICE_H

#include <tinker/future.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tinker_breaker_options;
struct tinker_transport;

/* Thread safety: any thread, any time. */
typedef struct tinker_service tinker_service;
typedef struct tinker_training tinker_training;
typedef struct tinker_sampler tinker_sampler;

typedef enum tinker_log_level {
    TINKER_LOG_DEBUG = 0,
    TINKER_LOG_INFO,
    TINKER_LOG_WARNING,
    TINKER_LOG_ERROR
} tinker_log_level;
/* Called from library threads; one line without newline, secrets redacted. */
typedef void tinker_log_fn(tinker_log_level level, const char *line, void *state);

/* The options of a service come in groups.  In all of them zero or NULL means: the environment
 * variable named with the field, else the default.  Groups do not grow, so that a program that was
 * compiled earlier keeps its layout; later settings are appended to tinker_service_options. */

/* On whose behalf requests are sent, besides api_key. */
typedef struct tinker_service_credentials {
    const char *command;    /* shell command that prints a credential; TINKER_CREDENTIAL_CMD */
    const char *project_id; /* that owns the session; TINKER_PROJECT_ID */
} tinker_service_credentials;

/* How requests travel. */
typedef struct tinker_service_network {
    const char *proxy; /* TINKER_PROXY, else http(s)_proxy */
    /* For the proxy, with the request for a tunnel; TINKER_PROXY_HEADERS.  Secrets, all of them. */
    const tinker_named_string *proxy_headers;
    size_t n_proxy_headers;
    const char *ca_file; /* certificates to trust instead of the system's; SSL_CERT_FILE */
    const tinker_named_string *headers; /* added to every request; these win */
    size_t n_headers;                   /* 0: TINKER_DEFAULT_HEADERS, a JSON object */
    const tinker_named_string *query;   /* added to every request */
    size_t n_query;                     /* 0: TINKER_DEFAULT_QUERY, a JSON object */
    /* Carries the requests instead of the library, see <tinker/extra/http.h>; NULL: none. */
    const struct tinker_transport *transport;
    int64_t timeout_ms;              /* of inactivity; TINKER_TIMEOUT, else 60000 */
    int max_retries;                 /* of one HTTP call; -1: none; TINKER_MAX_RETRIES, else 10 */
    const char *parity;              /* "python" or "conservative" defaults; TINKER_PARITY */
    int64_t poll_backoff_initial_ms; /* between polls after 408 and 5xx; TINKER_POLL_BACKOFF */
    int64_t poll_backoff_max_ms;
    int session_sockets, training_sockets; /* bounds of open connections; 0: none */
    int sampling_sockets, polling_sockets, telemetry_sockets;
} tinker_service_network;

/* When the library stops, waits or refuses by itself. */
typedef struct tinker_service_limits {
    /* Bytes of encoded batches (forward, forward_backward) that the service has not accepted yet;
     * a submit that would exceed them fails with TINKER_ENOMEM, so a program that is faster than
     * the network waits for a future instead of filling the memory.  One batch always fits. */
    int64_t max_queued_bytes; /* 0: no limit */
    /* A circuit breaker per endpoint, "<scheme and host> <operation>", for training, sampling
     * and REST requests; never for heartbeats, polls and telemetry.  NULL: none.  Client errors
     * (4xx) do not count; judge must be NULL. */
    const struct tinker_breaker_options *breaker; /* <tinker/extra/breaker.h> */
    int isolate;                /* 1: do not share rate limits with services of the same key */
    int heartbeat_max_failures; /* give up the session after these in a row; 0: never */
    int64_t heartbeat_max_ms;   /* or after this long without success; 0: never */
    int64_t close_ms;           /* longest wait of tinker_service_free(), else 5000 */
} tinker_service_limits;

/* What the library reports to the service. */
typedef struct tinker_service_telemetry {
    int enabled;     /* 1: on, -1: off; TINKER_TELEMETRY, else on */
    int max_retries; /* of one batch of events, then it is dropped; 0: no limit */
    int otel;        /* 1: send traceparent and tracestate; TINKER_OTEL_PROPAGATE */
    const char *traceparent, *tracestate;
} tinker_service_telemetry;

/* What the library reports to the program. */
typedef struct tinker_service_observation {
    tinker_log_fn *log; /* NULL: to stderr if TINKER_LOG or log_verbose is set, else silent */
    void *log_state;
    int log_verbose;  /* 1: info, 2: debug lines too; TINKER_LOG, else warnings and errors */
    int dump_headers; /* 1: log every HTTP attempt, redacted; TINKER_DUMP_HEADERS */
    int metrics;      /* -1: do not count requests; see <tinker/extra/metrics.h> */
    const char *metrics_prefix; /* of the names of those counts; NULL: "tinker" */
} tinker_service_observation;

typedef struct tinker_service_options {
    size_t size;              /* set by TINKER_SERVICE_OPTIONS_INIT */
    const char *base_url;     /* NULL: TINKER_BASE_URL, else the hosted service */
    const char *api_key;      /* NULL: TINKER_API_KEY, else ~/.tinker/credentials.json */
    const char *display_name; /* of the session, for people; need not be unique */
    const tinker_named_string *user_metadata; /* kept with the session */
    size_t n_user_metadata;
    const char *const *tags; /* of the session; TINKER_TAGS */
    size_t n_tags;
    tinker_service_credentials credentials;
    tinker_service_network network;
    tinker_service_limits limits;
    tinker_service_telemetry telemetry;
    tinker_service_observation observation;
    /* Samples in a process of their own: 1: on, -1: off; TINKER_SUBPROCESS_SAMPLING, else off.  See
     * tinker_sampling_helper(). */
    int subprocess_sampling;
    const char *sampling_helper; /* program for it; TINKER_SAMPLING_HELPER, else "tinker" */
} tinker_service_options;
/* For an initialization: tinker_service_options opts = TINKER_SERVICE_OPTIONS_INIT;
 *                        opts.network.timeout_ms = 120000; */
#define TINKER_SERVICE_OPTIONS_INIT                                                             \
    {                                                                                           \
        sizeof(tinker_service_options), NULL, NULL, NULL, NULL, 0, NULL, 0, { NULL, NULL },     \
            { NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0 },   \
            { 0, NULL, 0, 0, 0, 0 }, { 0, 0, 0, NULL, NULL }, { NULL, NULL, 0, 0, 0, NULL }, 0, \
            NULL                                                                                \
    }

/* opts NULL: everything from the environment, which is read here and nowhere else.
 * Returns NULL with *err set: TINKER_EINVAL for a missing or malformed key. */
TINKER_API tinker_service *tinker_service_new(const tinker_service_options *opts,
                                              tinker_error *err);

/* The future of a request that was submitted elsewhere, by its id and type (see
 * tinker_future_request_type()).  Results of "CreateModel" and of unnamed sampler saves
 * cannot be resumed: TINKER_EINVAL. */
TINKER_API tinker_future *tinker_service_resume(tinker_service *s, const char *request_id,
                                                const char *request_type, tinker_error *err);

/* Id of the session, "" as long as none is open.  Borrowed until free. */
TINKER_API const char *tinker_service_session_id(tinker_service *s);

/* What a page of the web console is about. */
typedef enum tinker_console_page {
    TINKER_CONSOLE_SESSION = 0, /* id of a session; NULL: that of the service */
    TINKER_CONSOLE_RUN,         /* id of a training run */
    TINKER_CONSOLE_CHECKPOINT,  /* "tinker://…" */
    TINKER_CONSOLE_PLAYGROUND   /* "tinker://…" of weights to sample from */
} tinker_console_page;
/* Append the address where people look at it in a browser to *out: of the console of the hosted
 * service, or of the page of `tinker serve` once a session is open.  Sends nothing.  TINKER_ESTATE:
 * no session is open, or the service is another one; TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_service_console_url(tinker_service *s, tinker_console_page page,
                                                    const char *id, tinker_text *out,
                                                    tinker_error *err);

/* How the work of a session ended. */
typedef enum tinker_finish {
    TINKER_FINISH_SUCCESS = 0,
    TINKER_FINISH_ERRORED,
    TINKER_FINISH_INTERRUPTED
} tinker_finish;
/* Tell the service that the session is over, and how; detail (may be NULL) is for people.  The
 * service then refuses further requests in it, unloads its models, and heartbeats end; so wait for
 * the futures that matter first.  From this call on no clients can be made: TINKER_ESTATE.  REST
 * calls work as before.  Only the first call counts; without a session the future
 * succeeds at once.  No result but success.  The service must still be freed.  NULL with *err
 * set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_service_finish(tinker_service *s, tinker_finish how,
                                                const char *detail, tinker_error *err);

/* ---- queue states ----------------------------------------------------------------- */

typedef enum tinker_queue_state {
    TINKER_QUEUE_UNKNOWN = 0,
    TINKER_QUEUE_ACTIVE,
    TINKER_QUEUE_PAUSED_CAPACITY,
    TINKER_QUEUE_PAUSED_RATE_LIMIT
} tinker_queue_state;

/* Reports what the service says while a request waits: the id of the model, sampler or base model
 * that waits, the state, and the reason ("" when the service gave none).  Called on the callback
 * thread (see future.h); it may submit but not wait. */
typedef void tinker_queue_state_fn(const char *id, tinker_queue_state queue_state,
                                   const char *reason, void *state);

/* Watch all requests of the service; transitions_only: only when state or reason differ
 * from the last ones of the same request.  NULL stops: when this returns the old observer is
 * not running and will not be called again, except when called from it.  TINKER_ESTATE in a
 * fork of the process that made the service, where there is nothing to watch; else TINKER_OK. */
TINKER_API tinker_status tinker_service_observe(tinker_service *s, tinker_queue_state_fn *observer,
                                                int transitions_only, void *state);

/* ---- telemetry -------------------------------------------------------------------- */

typedef enum tinker_severity {
    TINKER_SEVERITY_DEBUG = 0,
    TINKER_SEVERITY_INFO,
    TINKER_SEVERITY_WARNING,
    TINKER_SEVERITY_ERROR,
    TINKER_SEVERITY_CRITICAL
} tinker_severity;

/* Send an event to the service with the session's telemetry, secrets redacted.  json is an object
 * or NULL.
 * 1: queued; 0: dropped, because telemetry is off, its queue is full, or json is not an object. */
TINKER_API int tinker_service_log_event(tinker_service *s, const char *name, const char *json,
                                        tinker_severity severity);
/* Report an error of the program; fatal adds the end of the session. */
TINKER_API int tinker_service_log_error(tinker_service *s, const tinker_error *error, int fatal);
/* Send what is queued; wait until it is delivered, at most timeout_ms (0: do not wait).
 * 1: nothing is left. */
TINKER_API int tinker_service_flush_telemetry(tinker_service *s, int64_t timeout_ms);

/* Pending futures complete with TINKER_ECANCELED.  Free the clients made from the
 * service first.  Blocks at most 5 s, and until a custom loss under way has returned.
 * In a callback of the library (log, observer, hook, custom loss) it returns at once and the
 * service ends in the background, without further callbacks.  No other call on the object may
 * be in progress. */
TINKER_API void tinker_service_free(tinker_service *s);

#ifdef __cplusplus
}
#endif
#endif
