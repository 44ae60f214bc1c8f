/* last_error.h - why the last exchange failed, for a caller that stops waiting.
 *
 * A request that is tried again and again has no error yet.  A caller that gives up gets the
 * last failure: that of its own last attempt or, when it has made none, of the session's. */
#ifndef CLIENT_LAST_ERROR_H
#define CLIENT_LAST_ERROR_H

#include <tinker/error.h>

struct call;
struct tinker_future;

/* An exchange of c is over and judged; of a failure, c->err tells.  Loop thread. */
void last_error_record(const struct call *c);
/* Append to the message of *err, which may be NULL, what is known of f; nothing when f is
 * complete.  Any thread, without future_lock. */
void last_error_append(tinker_error *err, const struct tinker_future *f);

#endif
