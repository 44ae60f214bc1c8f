/* response.h - what is known of the answers to a call, for the program that wants to see them.
 *
 * A note of the last answer costs nothing and is always kept; its address, headers and body
 * only for a failure, or when the options of the call ask.  Loop thread, unless said. */
#ifndef CLIENT_ANSWER_H
#define CLIENT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/extra/http.h>

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
struct tap;    /* the way from a call to a callback of its user's, such as on_response */

/* An exchange of a call of an operation is over. */
void answer_note(struct call *c);
/* Keep the answer that c ended with, whatever the options say; false: no memory for it. */
bool answer_keep(struct op *op, const struct call *c);
/* What has come of an answer whose body is still under way; a reference, NULL: no memory. */
struct answer *answer_begun(const struct call *c);
const tinker_response *answer_response(const struct answer *a);
void answer_unref(struct answer *a); /* any thread */

/* Any thread; p NULL: for callbacks of another kind; NULL: no memory. */
struct tap *tap_new(const struct prefs *p);
/* On the courier, around a call of the user's; false: it must not be called any more. */
bool tap_enter(struct tap *t);
void tap_leave(struct tap *t);
void tap_ref(struct tap *t); /* any thread */
/* Closing t closes other (may be NULL), too; before anybody can close t. */
void tap_chain(struct tap *t, struct tap *other);
/* Any thread: the callback is not running and will not be called any more, unless this is
 * called by it. */
void tap_close(struct tap *t);
void tap_unref(struct tap *t); /* any thread */

#endif
