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

/* A redirection is an answer, and so is the 408 of a poll: not yet. */
static bool is_response(const struct call *c)
{
    int status = c->http.resp.status;
    if (c->outcome != CALL_STATUS)
        return c->outcome == CALL_OK;
    return status < 400 ||
           (c->spec->pool == POOL_RETRIEVE && retry_poll_action(status) == RETRY_POLL_PENDING);
}

/* Does it keep others waiting too?  What is wrong with one request does not. */
static bool affects_session(const struct call *c)
{
    int status = c->http.resp.status;
    return c->outcome != CALL_STATUS || retry_status_is(status, RETRY_SESSION);
}

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
    const char *message = is_response(c) ? NULL : c->err.message;
    if (c->op && c->op->future)
        keep_message(&c->op->future->last_error, message);
    /* A failure of one request stays with its future; what every request would meet is the
     * session's. */
    if (c->spec->pool != POOL_TELEMETRY && (!message || affects_session(c)))
        keep_message(&c->session->last_error, message);
}

/* false: nothing is known. */
static bool describe_last_error(const struct tinker_future *f, char *out, size_t size)
{
    pthread_mutex_lock(&future_lock);
    const char *all =
        f->done ? NULL : f->session->last_error; /* complete: the session may be gone */
    const char *own = f->done ? NULL : f->last_error;
    snprintf(out, size, "the last %s failed: %s", own ? "attempt" : "exchange with the service",
             own   ? own
             : all ? all
                   : "");
    pthread_mutex_unlock(&future_lock);
    return own || all;
}

void last_error_append(tinker_error *err, const struct tinker_future *f)
{
    char why[sizeof(err->message)];
    if (err && describe_last_error(f, why, sizeof(why)))
        err_set(err, err->status, "%s; %s", err->message, why);
}
