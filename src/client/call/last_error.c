/* last_error.c - see last_error.h. */
#include "client/call/last_error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/call/call.h"
#include "client/call/retry_policy.h"
#include "client/future/future.h"
#include "client/session/session.h"

/* Replace *text by a copy of message, NULL: none.
 * Swap under the lock, free outside. */
static void keep_message(char **text, const char *message)
{
    if (!*text && !message)
        return;
    char *copy = message ? strdup(message) : NULL;
    pthread_mutex_lock(&future_lock);
    char *old = *text;
    *text = copy;
    pthread_mutex_unlock(&future_lock);
    free(old);
}

void last_error_record(const struct call *c)
{
    int status = c->http.resp.status;
    /* A redirect is a response, and so is the 408 of a poll, which means "not yet". */
    bool answered = c->outcome == CALL_OK;
    if (c->outcome == CALL_STATUS)
        answered = status < 400 || (c->spec->pool == POOL_RETRIEVE &&
                                    retry_poll_action(status) == RETRY_POLL_PENDING);
    const char *message = answered ? NULL : c->err.message;
    if (c->op && c->op->future)
        keep_message(&c->op->future->last_error, message);
    /* A failure of one request stays with its future; what every request would meet is the
     * session's. */
    bool shared = c->outcome != CALL_STATUS || retry_status_is(status, RETRY_SESSION);
    if (c->spec->pool != POOL_TELEMETRY && (!message || shared))
        keep_message(&c->session->last_error, message);
}

void last_error_append(tinker_error *err, const struct tinker_future *f)
{
    char why[sizeof(err->message)];
    pthread_mutex_lock(&future_lock);
    /* The session of a complete future may be gone. */
    const char *all = f->done ? NULL : f->session->last_error;
    const char *own = f->done ? NULL : f->last_error;
    bool known = own || all;
    if (known)
        snprintf(why, sizeof(why), "the last %s failed: %s",
                 own ? "attempt" : "exchange with the service", own ? own : all);
    pthread_mutex_unlock(&future_lock);
    if (err && known)
        err_set(err, err->status, "%s; %s", err->message, why);
}
