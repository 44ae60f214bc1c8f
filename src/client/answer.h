/* answer.h - what is known of the answers to a call, for the program that wants to see them.
 *
 * A note of the last answer costs nothing and is always kept; its address, headers and body
 * only for a failure, or when the options of the call ask.  Loop thread, unless said. */
#ifndef CLIENT_ANSWER_H
#define CLIENT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/call.h>

struct call;
struct op;
struct prefs;
struct tinker_future;

struct answer_note {
    const char *operation; /* static text, as method; NULL: nothing was answered yet */
    const char *method;
    int status, retries;
    int64_t elapsed_ns;
};

struct answer; /* a tinker_response and what it points to; shared */
struct tap;    /* the way from a call to its on_response */

/* An exchange of a call of an operation is over. */
void answer_note(struct call *c);
/* Keep the answer that c ended with, whatever the options say; false: no memory for it. */
bool answer_keep(struct op *op, const struct call *c);
void answer_unref(struct answer *a); /* any thread */

struct tap *tap_new(const struct prefs *p); /* any thread; NULL: no memory */
/* Any thread: the callback is not running and will not be called any more, unless this is
 * called by it. */
void tap_close(struct tap *t);
void tap_unref(struct tap *t); /* any thread */

#endif
