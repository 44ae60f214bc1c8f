/* error.h - how every call reports failure.
 *
 * Functions that can fail take a tinker_error * as their last argument; it may
 * be NULL.  It is written only on failure.  Branch on `status`, show `message`,
 * never parse it.
 *
 * Thread safety: plain data. */
#ifndef TINKER_ERROR_H
#define TINKER_ERROR_H

#include <tinker/version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tinker_status {
    TINKER_OK = 0,
    TINKER_EINVAL,    /* an argument, option or input file is wrong */
    TINKER_ENOMEM,    /* out of memory, or over a stated limit */
    TINKER_ESTATE,    /* the object cannot do this now, or the system refused a resource */
    TINKER_ECONNECT,  /* no response arrived: DNS, TCP, TLS, reset */
    TINKER_ETIMEDOUT, /* a deadline passed */
    TINKER_EPROTOCOL, /* an invalid response arrived */
    TINKER_EHTTP,     /* an error status arrived, see http_status */
    TINKER_EREQUEST,  /* accepted, then failed: see category */
    TINKER_ECANCELED, /* tinker_future_cancel(), or the service was freed */
    TINKER_ECIRCUIT   /* a circuit breaker is open: not sent, see breaker.h */
} tinker_status;      /* values are only ever appended */

enum { TINKER_CATEGORY_UNKNOWN = 0, TINKER_CATEGORY_SERVER = 1, TINKER_CATEGORY_USER = 2 };

typedef struct tinker_error { /* caller-owned, no free, always 512 bytes */
    tinker_status status;
    int http_status;      /* 0 when no response arrived */
    int category;         /* TINKER_CATEGORY_* */
    int retryable;        /* the same call may succeed later, see below */
    char request_id[112]; /* "" when unknown */
    char message[384];    /* one line, no newline, no full stop */
} tinker_error;

/* Two questions about a failure, with different answers.
 *
 * err.retryable: may the very same call succeed later?  1 after connection errors, HTTP timeouts,
 * 408, 409, 410, 429 and 5xx, for an accepted request that failed with a category other than
 * user, and for an open circuit breaker; else 0, also for TINKER_OK, TINKER_ECANCELED and
 * TINKER_ESTATE.  The library has already retried what it may by the time you see it.
 *
 * tinker_error_is_user(): is the request itself wrong, so that it must be changed?  1 for
 * TINKER_EINVAL, category user, and a 4xx other than 408, 410 and 429; else 0.  Both are 1 after a
 * 409: the name is taken now, and may be free later.
 *
 *     if (err.retryable)
 *         queue_for_later(job);
 *     else if (tinker_error_is_user(&err))
 *         reject(job, err.message);
 *
 * Does not block.  Thread safety: any thread, any time. */
TINKER_API int tinker_error_is_user(const tinker_error *err);

/* Name of a status, for example "TINKER_EINVAL".  Borrowed, static, never NULL. */
TINKER_API const char *tinker_status_name(tinker_status status);

#ifdef __cplusplus
}
#endif
#endif
