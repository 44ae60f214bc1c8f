/* retry_policy.h - which failures deserve another request, and how long to wait before it.
 *
 * All status classes, delays and budgets of the client in one place.  There are three layers of
 * retries, each around the one before:
 *
 *   1 attempt  one HTTP exchange, again with the same idempotency key     call.c
 *   2 try      a whole call, with a new key unless it must keep it        call.c
 *   3 sample   a logical sample: submission and polls                     sample_op.c, stream_op.c
 *
 * and beside them the polls for a promised result, which go on until it is there (poll.c).
 * Pure functions; any thread. */
#ifndef CLIENT_RETRY_POLICY_H
#define CLIENT_RETRY_POLICY_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/sampling.h>
#include "http/http.h"

/* What an HTTP status says about a request; a set of bits. */
enum retry_status_bits {
    RETRY_ON_ATTEMPT = 1 << 0, /* layer 1 sends it again */
    RETRY_ON_TRY = 1 << 1,     /* layers 2 and 3 send it again; tinker_error.retryable */
    RETRY_RATE_LIMIT = 1 << 2, /* samples of the account pause, then go on */
    RETRY_BILLING = 1 << 3,    /* pause until the account is in order */
    RETRY_SESSION = 1 << 4,    /* other requests of the session meet the same */
    RETRY_LOST = 1 << 5,       /* the service may have executed the request all the same */
    RETRY_REFUSED = 1 << 6,    /* the service itself read the request and refused it */
    RETRY_USER = 1 << 7,       /* the request is wrong: tinker_error_is_user() */
    RETRY_USER_EVENT = 1 << 8  /* telemetry calls it a user error, by the reference's rule */
};

/* Does the status have one of these bits? */
bool retry_status_is(int status, unsigned bits);

/* What a poll does about a status other than 2xx. */
enum retry_poll_action {
    RETRY_POLL_FATAL,   /* fails */
    RETRY_POLL_PENDING, /* not ready yet: polls again */
    RETRY_POLL_BACKOFF, /* polls again after a growing delay */
    RETRY_POLL_BILLING, /* waits for the account, else fails */
    RETRY_POLL_AGAIN,   /* the server is in trouble: polls again */
    RETRY_POLL_GONE,    /* the promise is lost: fails, and the request may be sent anew */
    RETRY_POLL_BUDGET   /* polls again, RETRY_BAD_POLLS times in all */
};
enum retry_poll_action retry_poll_action(int status);

enum {
    RETRY_TRY_BUDGET_MS = 300000, /* layer 2 begins no try later than this after the first */
    RETRY_BILLING_MS = 5000,      /* between two requests while the account is not in order */
    RETRY_TELEMETRY_MS = 1000,    /* before a batch of telemetry is sent again */
    RETRY_BAD_POLLS = 3,          /* polls answered with 400 before the result is given up */
    /* The service holds polls; one that was answered faster than this was not held, and the next
     * waits a little so that the two do not become a busy loop. */
    RETRY_POLL_HELD_NS = 5000000,
    RETRY_POLL_FLOOR_MS = 50
};

/* Delays that double from one retry to the next, up to a maximum. */
enum retry_delay { RETRY_DELAY_ATTEMPT, RETRY_DELAY_TRY, RETRY_DELAY_POLL };

/* Before the k-th retry (k from 1); u in [0, 1) is the random number of the jitter. */
int64_t retry_delay_ms(enum retry_delay kind, int k, double u);
/* The same for samples, by their options. */
int64_t retry_sample_delay_ms(const tinker_retry_options *o, int k, double u);
/* The same for polls that met a server error, by the configured first and longest delay. */
int64_t retry_poll_error_delay_ms(int64_t initial_ms, int64_t max_ms, int64_t k);

/* The wait that a response asks for by Retry-After or Retry-After-Ms, if it is at most 60 s;
 * else 0. */
int64_t retry_after_ms(const struct http_response *resp, int64_t wall_ns);

#endif
