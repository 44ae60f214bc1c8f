/* response.h - what is known of the responses to a call, for the program that wants to see them.
 *
 * A note of the last response costs nothing and is always kept; its address, headers and body
 * only for a failure, or when the options of the call ask.  Loop thread, unless said. */
#ifndef CLIENT_RESPONSE_H
#define CLIENT_RESPONSE_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/http.h>
#include "client/io/callback_guard.h"

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

struct response; /* a tinker_response and what it points to; shared */

/* An exchange of a call of an operation is over. */
void response_record(struct call *c);
/* Keep the answer that c ended with, whatever the options say; false: no memory for it. */
bool response_keep(struct operation *op, const struct call *c);
/* What has come of an answer whose body is still under way; a reference, NULL: no memory. */
struct response *response_begin(const struct call *c);
const tinker_response *response_public(const struct response *a);
void response_unref(struct response *a); /* any thread */

#endif
