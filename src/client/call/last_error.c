/* last_error.c - see trouble.h. */
#include "client/call/last_error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "client/call/call.h"
#include "client/future/future.h"
#include "client/session/session.h"

/* A redirection is an answer, and so is the 408 of a poll: not yet. */
static bool is_answered(const struct call *c)
{
    int status = c->http.resp.status;
    if (c->outcome != CALL_STATUS)
        return c->outcome == CALL_OK;
    return status < 400 || (status == 408 && c->spec->pool == POOL_RETRIEVE);
}

/* Does it keep others waiting too?  What is wrong with one request does not. */
static bool concerns_all(const struct call *c)
{
    int status = c->http.resp.status;
    return c->outcome != CALL_STATUS || status == 402 || status == 429 || status >= 500;
}

/* Replace *text by a copy of message, NULL: none. */
static void keep(char **text, const char *message)
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

void trouble_note(const struct call *c)
{
    const char *message = is_answered(c) ? NULL : c->err.message;
    if (c->op && c->op->future)
        keep(&c->op->future->trouble, message);
    if (c->spec->pool != POOL_TELEMETRY && (!message || concerns_all(c)))
        keep(&c->session->trouble, message);
}

/* false: nothing is known. */
static bool describe(const struct tinker_future *f, char *out, size_t size)
{
    pthread_mutex_lock(&future_lock);
    const char *all = f->done ? NULL : f->session->trouble; /* complete: the session may be gone */
    const char *own = f->done ? NULL : f->trouble;
    snprintf(out, size, "the last %s failed: %s", own ? "attempt" : "exchange with the service",
             own   ? own
             : all ? all
                   : "");
    pthread_mutex_unlock(&future_lock);
    return own || all;
}

void trouble_append(tinker_error *err, const struct tinker_future *f)
{
    char why[sizeof(err->message)];
    if (err && describe(f, why, sizeof(why)))
        err_set(err, err->status, "%s; %s", err->message, why);
}
