/* transport.h - let a program carry the requests itself: another HTTP stack, a recorder, a test.
 *
 * With a transport in its options a service opens no connections for API requests: every one,
 * with its retries, polls and heartbeats, is handed to `send`, and the program says what came of
 * it.  Proxies, certificates, connection limits and compression are then the transport's business;
 * credentials, retries, rate limits and deadlines stay the library's.  Downloads from signed
 * addresses are not API requests and do not pass here. */
#ifndef TINKER_TRANSPORT_H
#define TINKER_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

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

/* Both functions are called on a library thread that does nothing else, one call at a time; they
 * may submit but not wait.  For every send there must be exactly one tinker_exchange_done() or
 * tinker_exchange_fail(), from any thread, now or later: also after a cancel, and after the
 * service was freed. */
typedef struct tinker_transport {
    size_t size; /* set by TINKER_TRANSPORT_INIT */
    void (*send)(void *state, tinker_exchange *x, const tinker_http_request *request);
    void (*cancel)(void *state, tinker_exchange *x); /* nobody waits any more; may be NULL */
    void *state;
} tinker_transport;
#define TINKER_TRANSPORT_INIT                      \
    {                                              \
        sizeof(tinker_transport), NULL, NULL, NULL \
    }

/* The answer: everything is copied, and x may not be used any more.  A header that HTTP does not
 * allow is left out. */
TINKER_API void tinker_exchange_done(tinker_exchange *x, int status,
                                     const tinker_named_string *headers, size_t n_headers,
                                     const void *body, size_t n_body);
/* There is none: TINKER_ECONNECT and TINKER_ETIMEDOUT are tried again as the library's own,
 * anything else is final.  reason is one line for the message (may be NULL). */
TINKER_API void tinker_exchange_fail(tinker_exchange *x, tinker_status why, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
