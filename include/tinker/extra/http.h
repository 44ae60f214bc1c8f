/* http.h - options of single calls, the responses behind results, requests of any kind,
 * a transport of your own, multipart bodies.
 *
 * Options belong to a handle: tinker_rest_with() and its siblings make a cheap second handle to the
 * same client, and whatever is submitted through it has the options:
 *
 *     tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
 *     o.timeout_ms = 5000;
 *     tinker_rest *hasty = tinker_rest_with(rest, &o, &err);
 *     tinker_future *f = tinker_rest_list_sessions(hasty, NULL, &err);
 *     tinker_rest_free(hasty);
 */
#ifndef TINKER_EXTRA_HTTP_H
#define TINKER_EXTRA_HTTP_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One HTTP response.  Thread safety: plain data. */
typedef struct tinker_response {
    const char *operation, *method; /* "optim_step", "POST"; a poll is a "retrieve_future" */
    int status;                     /* 0: no response arrived */
    int retries;                    /* attempts of the same request before this one */
    int64_t elapsed_ms;             /* from sending it to the end of the response */
    /* NULL and 0 unless they were kept: see tinker_future_response(). */
    const char *url;
    const tinker_named_string *headers; /* as they came, names in lower case */
    size_t n_headers;
    const void *body; /* decompressed; a NUL follows */
    size_t n_body;
} tinker_response;

/* Called for every response to the call, those that are tried again and polls included, on the
 * callback thread (see future.h).  Not after tinker_future_free() of the call's future has returned.  When 1024 responses wait for a slow
 * callback, further ones are dropped. */
typedef void tinker_response_fn(const tinker_response *response, void *state);

/* Zero means: as without options.  Thread safety: plain data. */
typedef struct tinker_call_options {
    size_t size;         /* set by TINKER_CALL_OPTIONS_INIT */
    int64_t timeout_ms;  /* of inactivity, of every exchange but polls */
    int64_t deadline_ms; /* of the call as a whole: see tinker_future_set_deadline() */
    int max_retries;     /* attempts after the first, all layers together; -1: none */
    /* Added to every request of the call; they win over those of the service.  A name or value
     * that HTTP does not allow, and a header that the library sets (Host, Content-…,
     * X-API-Key, X-Idempotency-Key, …), is refused. */
    const tinker_named_string *headers;
    size_t n_headers;
    const tinker_named_string *query; /* added to every request of the call */
    size_t n_query;
    /* Instead of a random one, the same for all attempts.  When a call makes several requests,
     * or several calls are submitted through the same handle, all but the first get a suffix:
     * "-<call>.<request>", both counted from 0. */
    const char *idempotency_key;
    const char *extra_body; /* members of a JSON object, added to JSON requests (not polls) */
    /* Added to the metadata of the events of the call (see events.h). */
    const tinker_named_string *metadata;
    size_t n_metadata;
    int keep_response; /* headers and body of the last response: see tinker_future_response() */
    tinker_response_fn *on_response;
    void *on_response_state;
} tinker_call_options;
#define TINKER_CALL_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(tinker_call_options), 0, 0, 0, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, 0, NULL, NULL \
    }

/* Another handle to the same service or client, whose calls have these options, in place of those
 * of the handle it is made from.  Clients made from such a service, and samplers made by such a
 * training client, have the options, too.  Everything else is shared: order of requests, session,
 * limits, retry settings.
 *
 * opts is copied.  The new handle is yours: free it with the usual function, which leaves the
 * original alone; futures that were submitted through it live on.  A derived service must be freed
 * before the original.  Sends nothing, does not block.
 * NULL with *err set: TINKER_EINVAL names the option that makes no sense, TINKER_ENOMEM.
 * Thread safety: any thread, any time. */
TINKER_API tinker_service *tinker_service_with(tinker_service *s, const tinker_call_options *opts,
                                               tinker_error *err);
TINKER_API struct tinker_training *
tinker_training_with(struct tinker_training *t, const tinker_call_options *opts, tinker_error *err);
TINKER_API struct tinker_sampler *
tinker_sampler_with(struct tinker_sampler *s, const tinker_call_options *opts, tinker_error *err);
TINKER_API struct tinker_rest *tinker_rest_with(struct tinker_rest *r,
                                                const tinker_call_options *opts, tinker_error *err);

/* The last response to the call, whether it succeeded or failed.  NULL while pending, and when
 * nothing was sent.  URL, headers and body are there after a failure by status, with
 * keep_response, and after tinker_service_call().  If a batch takes several requests, it is the
 * last response to one of them; on_response sees all.  Borrowed until tinker_future_free(). */
TINKER_API const tinker_response *tinker_future_response(const tinker_future *f);
/* Value of a header, by its name in any case; NULL: absent. */
TINKER_API const char *tinker_response_header(const tinker_response *r, const char *name);

/* Any request to the service, for what this library has no function for: method GET, POST, PUT,
 * PATCH or DELETE, path as in "/api/v1/healthz" with its query, and a body of n bytes, which is
 * copied (NULL: none; JSON, unless content_type says otherwise).  Credentials, retries and limits
 * as for all requests.  Opens no session.  Success is a 2xx; result: tinker_future_response().
 * NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_service_call(tinker_service *s, const char *method,
                                              const char *path, const void *body, size_t n,
                                              const char *content_type, tinker_error *err);

/* ---- responses piece by piece ------------------------------------------------------------------ */

/*     static tinker_receive_next on_piece(const tinker_piece *piece, void *state)
 *     {
 *         fwrite(piece->data, 1, piece->n, state);
 *         return TINKER_RECEIVE_MORE;
 *     }
 *     tinker_future *f = tinker_service_receive(s, "GET", "/api/v1/log", NULL, 0, NULL, on_piece,
 *                                               stdout, &err);
 *
 * For a response as a whole see tinker_service_call() above. */
typedef enum tinker_receive_next {
    TINKER_RECEIVE_MORE = 0,
    TINKER_RECEIVE_PAUSE, /* this piece was taken; none comes until tinker_receive_resume() */
    TINKER_RECEIVE_STOP   /* end the transfer; the future says TINKER_ECANCELED */
} tinker_receive_next;

/* Borrowed until the callback returns.  Thread safety: plain data. */
typedef struct tinker_piece {
    const tinker_response *head; /* status, address and headers; no body */
    const void *data;            /* a NUL follows */
    size_t n;                    /* at least 1, except for an event without text */
    const char *event, *id;      /* with `events`: its name ("message") and id (""); else NULL */
} tinker_piece;

/* Called for every piece of a 2xx response, on the callback thread (see future.h).  When it is slow
 * or pauses, reading stops and the sender waits: at most about 512 KB are buffered.  Not after tinker_future_free() has returned. */
typedef tinker_receive_next tinker_receive_fn(const tinker_piece *piece, void *state);

typedef struct tinker_receive_options {
    size_t size;              /* set by TINKER_RECEIVE_OPTIONS_INIT */
    const char *content_type; /* of the body that is sent, NULL: JSON */
    const char *accept;       /* NULL: anything; with events text/event-stream */
    int events;               /* the response is server-sent events: one call for each */
} tinker_receive_options;
#define TINKER_RECEIVE_OPTIONS_INIT                   \
    {                                                 \
        sizeof(tinker_receive_options), NULL, NULL, 0 \
    }

/* Any request to the service, as tinker_service_call() makes it.  It is tried again like all
 * requests until the first piece has come; from then on a failure is final.  The future completes
 * when the last piece was taken; until then it can be canceled and have a deadline.  Its result
 * is nothing but success, or a failure that names the request, after the pieces that came before.
 * NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_service_receive(tinker_service *s, const char *method,
                                                 const char *path, const void *body, size_t n,
                                                 const tinker_receive_options *opts,
                                                 tinker_receive_fn *on_piece, void *state,
                                                 tinker_error *err);
/* Let pieces come again after TINKER_RECEIVE_PAUSE; harmless without, and for futures of other
 * calls.  TINKER_ENOMEM.  Thread safety: any thread, any time. */
TINKER_API tinker_status tinker_receive_resume(tinker_future *f, tinker_error *err);

/* ---- a transport of your own ------------------------------------------------------------------- */

/* With a transport in its options a service opens no connections for API requests: every one,
 * with its retries, polls and heartbeats, is handed to `send`, and the program reports the outcome.
 * Proxies, certificates, connection limits and compression are then up to the transport;
 * credentials, retries, rate limits and deadlines stay the library's.  Downloads from signed
 * URLs are not API requests and do not use it. */
/* One request under way.  Thread safety: any thread, any time. */
typedef struct tinker_exchange tinker_exchange;

/* Valid until the exchange is done.  Headers hold the credential: treat them as secrets. */
typedef struct tinker_http_request {
    const char *method, *url;
    const tinker_named_string *headers;
    size_t n_headers;
    const void *body;
    size_t n_body;
    int64_t timeout_ms; /* the library gives up after that */
    int follow;         /* redirects are to be followed, without credentials to another origin */
} tinker_http_request;

/* Both functions are called on the callback thread (see future.h).  Every send must be followed by
 * exactly one tinker_exchange_done() or tinker_exchange_fail(), from any thread, now or later: also after a cancel, and after the
 * service was freed. */
typedef struct tinker_transport {
    size_t size; /* set by TINKER_TRANSPORT_INIT */
    void (*send)(tinker_exchange *x, const tinker_http_request *request, void *state);
    void (*cancel)(tinker_exchange *x, void *state); /* no longer wanted; may be NULL */
    void *state;
} tinker_transport;
#define TINKER_TRANSPORT_INIT                      \
    {                                              \
        sizeof(tinker_transport), NULL, NULL, NULL \
    }

/* The response: everything is copied, and x may not be used any more.  A header that HTTP does not
 * allow is left out. */
TINKER_API void tinker_exchange_done(tinker_exchange *x, int status,
                                     const tinker_named_string *headers, size_t n_headers,
                                     const void *body, size_t n_body);
/* No response: TINKER_ECONNECT and TINKER_ETIMEDOUT are retried as for the library's own transport,
 * anything else is final.  reason is one line for the message (may be NULL). */
TINKER_API void tinker_exchange_fail(tinker_exchange *x, tinker_status why, const char *reason);

/* ---- multipart bodies -------------------------------------------------------------------------- */

/* No function of this library sends one, because no endpoint of the service takes it today; with
 * tinker_service_call() a program can.
 *
 * Thread safety: one thread at a time. */
typedef struct tinker_multipart tinker_multipart;

/* NULL with *err set: TINKER_ENOMEM, TINKER_ESTATE when the system gives no random numbers. */
TINKER_API tinker_multipart *tinker_multipart_new(tinker_error *err);
TINKER_API void tinker_multipart_free(tinker_multipart *m);

/* A header of the next part, for example "Content-ID"; call it again for more.  TINKER_EINVAL: HTTP
 * does not allow it, or it is one that the part has anyway (Content-Disposition, Content-Type);
 * TINKER_ENOMEM. */
TINKER_API tinker_status tinker_multipart_header(tinker_multipart *m, const char *name,
                                                 const char *value, tinker_error *err);
/* Add a field; names may be "a[b]" for what is nested.  TINKER_EINVAL: no name, or the body was
 * asked for already; TINKER_ENOMEM. */
TINKER_API tinker_status tinker_multipart_field(tinker_multipart *m, const char *name,
                                                const char *value, tinker_error *err);
/* Add a file by its content; content_type NULL: application/octet-stream. */
TINKER_API tinker_status tinker_multipart_bytes(tinker_multipart *m, const char *name,
                                                const char *filename, const char *content_type,
                                                const void *data, size_t n, tinker_error *err);
/* Add a file by its path, read now; filename NULL: the last part of the path.  TINKER_ESTATE when
 * it cannot be read. */
TINKER_API tinker_status tinker_multipart_file(tinker_multipart *m, const char *name,
                                               const char *path, const char *filename,
                                               const char *content_type, tinker_error *err);

/* The whole body, *n bytes; nothing can be added any more.  NULL: no memory.  Borrowed until
 * free, as is the content type, "multipart/form-data; boundary=…". */
TINKER_API const void *tinker_multipart_body(tinker_multipart *m, size_t *n);
TINKER_API const char *tinker_multipart_content_type(const tinker_multipart *m);

#ifdef __cplusplus
}
#endif
#endif
