/* receive_buffer.h - pieces of an answer on their way from the loop thread to the user's callback.
 *
 * The loop fills one buffer while the callback thread hands out another.  The owner is told when the
 * callback thread is through with it: there is room again, or the user wants no more.  Loop thread,
 * unless said. */
#ifndef CLIENT_RECEIVE_BUFFER_H
#define CLIENT_RECEIVE_BUFFER_H

#include <stdbool.h>
#include <tinker/extra/http.h>
#include "client/call/response.h"
#include "client/session/session.h"

struct receive_buffer;

struct receive_buffer_owner {
    void (*moved)(struct receive_buffer_owner *o); /* something was taken: look again */
};

enum receive_buffer_state {
    RECEIVE_EMPTY,  /* everything was taken */
    RECEIVE_ROOM,   /* something waits, but there is room for more */
    RECEIVE_FULL,   /* the sender must wait */
    RECEIVE_BROKEN, /* no memory, or the user's stop: see receive_buffer_error() */
};

/* Any thread.  events: hand out server-sent events.  NULL: no memory. */
struct receive_buffer *receive_buffer_new(struct session *h, bool events, tinker_receive_fn *call,
                                          void *state);
/* Before the first piece: the owner to notify, and the guard of the user's callback. */
void receive_buffer_bind(struct receive_buffer *i, struct receive_buffer_owner *owner,
                         struct callback_guard *guard);
bool receive_buffer_has_head(const struct receive_buffer *i);
void receive_buffer_set_head(struct receive_buffer *i,
                             struct response *head); /* takes the reference over */
void receive_buffer_put(struct receive_buffer *i, const void *p, size_t n);
void receive_buffer_resume(struct receive_buffer *i); /* after TINKER_RECEIVE_PAUSE */
enum receive_buffer_state receive_buffer_state(struct receive_buffer *i);
void receive_buffer_error(struct receive_buffer *i, tinker_error *err); /* of RECEIVE_BROKEN */
void receive_buffer_free(
    struct receive_buffer *i); /* the owner hears nothing more, and the user soon nothing */

#endif
