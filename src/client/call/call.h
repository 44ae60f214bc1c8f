/* call.h - one API call: HTTP attempts (layer 1) and, around them, whole tries (layer 2).
 *
 *   attempt --retryable--> wait 0.5 s .. 10 s --> attempt ... (max_retries)
 *   try     --retryable--> wait 1 s .. 30 s   --> try     ... (300 s), if `outer`
 *   402     ------------> wait 5 s, as long as the account may be topped up
 *
 * One idempotency key per try (per call with one_key), reused by its attempts; a credential is asked for before
 * every attempt.  Runs on the loop thread. */
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/http.h>
#include "client/session/auth.h"
#include "client/call/breaker.h"
#include "client/session/session.h"
#include "http/http.h"
#include "json/shortest.h"

enum { CALL_EXTRA_HEADERS = 6, CALL_DEFAULT = -1 };

struct call_spec {
    const char *name; /* for telemetry and messages */
    const char *method;
    enum pool_kind pool;
    int64_t timeout_ms;       /* all four phases; 0: the configured ones */
    const char *timeout_text; /* as the header has it */
    int max_retries;          /* of layer 1, CALL_DEFAULT: the configured number */
    bool outer;               /* layer 2 */
    bool no_redirect;
};

enum { CALL_RESPONSE_MOST = 1 << 30 }; /* bytes of any response, whatever was asked for */

enum call_outcome {
    CALL_OK,      /* 2xx */
    CALL_STATUS,  /* another status */
    CALL_CONNECT, /* no answer */
    CALL_TIMEOUT,
    CALL_BAD,   /* an unusable response, or an invalid URL */
    CALL_LOCAL, /* no credential, no memory */
    CALL_CAUGHT /* `catch` took it */
};

struct call {
    /* set by the owner, who keeps everything alive until done */
    struct session *session;
    struct operation *op; /* its options apply, and it gets the responses; may be NULL */
    int part;             /* among the requests of op, for its idempotency key */
    const struct call_spec *spec;
    const char *path; /* "api/v1/…", with query */
    const void *body;
    size_t body_len;
    const char *content_type; /* NULL: application/json */
    const char *accept;       /* NULL: application/json */
    const char *encoding;     /* of the body, or NULL */
    struct http_header extra[CALL_EXTRA_HEADERS];
    size_t n_extra;
    enum auth_use use;
    size_t max_response; /* decompressed; 0: 64 MB, or 1 MB of what keeps a session alive */
    bool conflict_final; /* a 409 is an answer, not a reason to try again */
    bool one_key;        /* done twice it would be two things, and nothing else tells them apart */
    bool empty_ok;       /* an empty answer without a type will do */
    bool last;           /* whatever comes of this attempt, there is no other; may be set later */
    void (*done)(struct call *c);
    /* Before every try but the first; may change the body.  May be NULL. */
    void (*renew)(struct call *c);
    /* Sees a status before layer 2 does; true: end with CALL_CAUGHT.  May be NULL. */
    bool (*catch)(struct call *c, int status);

    /* the outcome, in done: */
    enum call_outcome outcome;
    tinker_error err;         /* unless CALL_OK */
    struct http_request http; /* .resp: the last response */

    /* private */
    struct timer timer;
    struct auth_wait auth;
    struct http_header *headers;
    char *url, *token;
    char key[96], retry_count[SHORTEST_MAX];
    char *own_body;
    tinker_exchange *exchange; /* of the program's transport, while under way */
    int attempt, tries, sent;  /* sent: attempts of all tries */
    int64_t start_ns, sent_ns;
    int64_t try_ns;               /* when the try began */
    struct breaker_ticket ticket; /* of the try */
    bool active, trying;
    /* Part of the outcome, too: may an attempt before the last response have been executed, its own
     * response being lost?  Then a 404 after a DELETE does not say that there was nothing. */
    bool maybe_done;
};

void call_start(struct call *c);
void call_cancel(struct call *c); /* done is not called; harmless when not active */
/* All that matters of the response is there, and the call is a success whatever comes of the rest:
 * done is still called when the response ends. */
void call_settle(struct call *c);
void call_clear(struct call *c); /* free what is left of a finished call */
/* Where it goes, with all queries; the caller frees it.  NULL: no memory. */
char *call_url(const struct call *c);

#endif
