/* call.h - options of single calls, and the answers behind their results.
 *
 * Options are given to whatever a thread submits between a push and its pop, so they work
 * for every call of the library alike:
 *
 *     tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
 *     o.timeout_ms = 5000;
 *     tinker_call_options_push(&o, &err);
 *     tinker_future *f = tinker_rest_list_sessions(rest, NULL, &err);
 *     tinker_call_options_pop();
 *
 * They cost nothing as long as nobody uses them. */
#ifndef TINKER_CALL_H
#define TINKER_CALL_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One HTTP answer.  Thread safety: plain data. */
typedef struct tinker_response {
    const char *operation, *method; /* "optim_step", "POST"; a poll is a "retrieve_future" */
    int status;                     /* 0: no answer arrived */
    int retries;                    /* attempts of the same request before this one */
    int64_t elapsed_ms;             /* from sending it to the end of the answer */
    /* NULL and 0 unless they were kept: see tinker_future_response(). */
    const char *url;
    const tinker_named_string *headers; /* as they came, names in lower case */
    size_t n_headers;
    const void *body; /* decompressed; a NUL follows */
    size_t n_body;
} tinker_response;

/* Called for every answer to the call, those that are tried again and polls included, on a
 * library thread that does nothing else, one call at a time and in order; it may submit but not
 * wait.  Not after tinker_future_free() of the call's future has returned.  When 1024 answers
 * wait for a slow callback, further ones are dropped. */
typedef void tinker_response_callback(void *state, const tinker_response *response);

/* Zero means: as without options.  Thread safety: plain data. */
typedef struct tinker_call_options {
    size_t size;         /* set by TINKER_CALL_OPTIONS_INIT */
    int64_t timeout_ms;  /* of inactivity, of every exchange but polls */
    int64_t deadline_ms; /* of the call as a whole: see tinker_future_set_deadline() */
    int max_retries;     /* attempts after the first, all layers together; -1: none */
    /* Added to every request of the call; they win over those of the service.  A name or value
     * that HTTP does not allow, and a header that the library answers for (Host, Content-…,
     * X-API-Key, X-Idempotency-Key, …), is refused. */
    const tinker_named_string *headers;
    size_t n_headers;
    const tinker_named_string *query; /* added to every request of the call */
    size_t n_query;
    /* Instead of a random one, the same for all attempts.  When a call makes several requests,
     * or several calls are submitted under these options, all but the first get a suffix:
     * "-<call>.<request>", both counted from 0. */
    const char *idempotency_key;
    const char *extra_body; /* members of a JSON object, added to JSON requests (not polls) */
    /* Added to the metadata of the events of the call (see events.h). */
    const tinker_named_string *metadata;
    size_t n_metadata;
    int keep_response; /* headers and body of the last answer: see tinker_future_response() */
    tinker_response_callback *on_response;
    void *on_response_state;
} tinker_call_options;
#define TINKER_CALL_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(tinker_call_options), 0, 0, 0, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, 0, NULL, NULL \
    }

/* Let everything that this thread submits from now on have these options, which are copied, in
 * place of those that were pushed before.  Blocking calls have them too.  Pushes nest, at most
 * 64 deep.  TINKER_EINVAL names the option that makes no sense, TINKER_ENOMEM; nothing is pushed
 * then.
 * Thread safety: any thread, any time; a thread sees its own. */
TINKER_API tinker_status tinker_call_options_push(const tinker_call_options *opts,
                                                  tinker_error *err);
/* Back to what was before the last push; 0: there was none. */
TINKER_API int tinker_call_options_pop(void);

/* The last answer to the call, with its result or its failure behind it.  NULL while pending, and
 * when nothing was sent.  Address, headers and body are there after a failure by status, with
 * keep_response, and after tinker_service_call().  Of a batch in several requests it is the last
 * answer of one of them; on_response sees all.  Borrowed until tinker_future_free(). */
TINKER_API const tinker_response *tinker_future_response(const tinker_future *f);
/* Value of a header, whatever the case of its name; NULL: it is not there. */
TINKER_API const char *tinker_response_header(const tinker_response *r, const char *name);

/* Any request to the service, for what this library has no function for: method GET, POST, PUT,
 * PATCH or DELETE, path as in "/api/v1/healthz" with its query, and a body of n bytes, which is
 * copied (NULL: none; JSON, unless content_type says otherwise).  Credentials, retries and limits
 * as for all requests.  Opens no session.  Success is a 2xx; result: tinker_future_response().
 * NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_service_call(tinker_service *s, const char *method,
                                              const char *path, const void *body, size_t n,
                                              const char *content_type, tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
