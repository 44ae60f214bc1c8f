/* callback_guard.h - whether a callback of the user's may still be called.
 *
 * A future whose operation calls back has one.  Every call on the callback thread is made between
 * enter and leave; freeing the future closes the guard, which waits for a call under way and
 * forbids later ones.  So when tinker_future_free() has returned, the user may free what the
 * callback uses.  Thread safety: any thread, any time. */
#ifndef CLIENT_CALLBACK_GUARD_H
#define CLIENT_CALLBACK_GUARD_H

#include <stdbool.h>

struct callback_guard;

struct callback_guard *callback_guard_new(void); /* NULL: no memory */
void callback_guard_ref(struct callback_guard *g);
void callback_guard_unref(struct callback_guard *g); /* g may be NULL */

/* Around a call of the user's; false: it must not be called any more. */
bool callback_guard_enter(struct callback_guard *g);
void callback_guard_leave(struct callback_guard *g);

/* Count a message on its way to the callback; false: the guard is closed, or max are on their way.
 * The message ends with callback_guard_arrived(). */
bool callback_guard_admit(struct callback_guard *g, int max);
void callback_guard_arrived(struct callback_guard *g);

/* Closing g closes other (may be NULL), too; before anybody can close g. */
void callback_guard_chain(struct callback_guard *g, struct callback_guard *other);
/* The callback is not running and will not be called any more, unless this is called by it.
 * g may be NULL. */
void callback_guard_close(struct callback_guard *g);

#endif
