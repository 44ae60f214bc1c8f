/* response.h - what is known of the answers to a call, for the program that wants to see them.
 *
 * A note of the last answer costs nothing and is always kept; its address, headers and body
 * only for a failure, or when the options of the call ask.  Loop thread, unless said. */
#ifndef CLIENT_RESPONSE_H
#define CLIENT_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/http.h>

struct call;
struct operation;
struct call_options;
struct tinker_future;

struct response_note {
    const char *operation; /* static text, as method; NULL: nothing was answered yet */
    const char *method;
    int status, retries;
    int64_t elapsed_ns;
};

struct response;       /* a tinker_response and what it points to; shared */
struct callback_guard; /* the way from a call to a callback of its user's, such as on_response */

/* An exchange of a call of an operation is over. */
void response_record(struct call *c);
/* Keep the answer that c ended with, whatever the options say; false: no memory for it. */
bool response_keep(struct operation *op, const struct call *c);
/* What has come of an answer whose body is still under way; a reference, NULL: no memory. */
struct response *response_begin(const struct call *c);
const tinker_response *response_public(const struct response *a);
void response_unref(struct response *a); /* any thread */

/* Any thread; p NULL: for callbacks of another kind; NULL: no memory. */
struct callback_guard *callback_guard_new(const struct call_options *p);
/* On the callback thread, around a call of the user's; false: it must not be called any more. */
bool callback_guard_enter(struct callback_guard *t);
void callback_guard_leave(struct callback_guard *t);
void callback_guard_ref(struct callback_guard *t); /* any thread */
/* Closing t closes other (may be NULL), too; before anybody can close t. */
void callback_guard_chain(struct callback_guard *t, struct callback_guard *other);
/* Any thread: the callback is not running and will not be called any more, unless this is
 * called by it. */
void callback_guard_close(struct callback_guard *t);
void callback_guard_unref(struct callback_guard *t); /* any thread */

#endif
