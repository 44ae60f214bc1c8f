/* receive_buffer.h - pieces of an answer on their way from the loop thread to the user's callback.
 *
 * The loop fills one buffer while the courier hands out another.  The owner is told when the
 * courier is through with it: there is room again, or the user wants no more.  Loop thread,
 * unless said. */
#ifndef CLIENT_INTAKE_H
#define CLIENT_INTAKE_H

#include <stdbool.h>
#include <tinker/extra/http.h>
#include "client/call/response.h"
#include "client/session/session.h"

struct intake;

struct intake_owner {
    void (*moved)(struct intake_owner *o); /* something was taken: look again */
};

enum intake_state {
    INTAKE_EMPTY,  /* everything was taken */
    INTAKE_ROOM,   /* something waits, but there is room for more */
    INTAKE_FULL,   /* the sender must wait */
    INTAKE_BROKEN, /* no memory, or the user's stop: see intake_error() */
};

/* Any thread.  events: hand out server-sent events.  NULL: no memory. */
struct intake *intake_new(struct session *h, bool events, tinker_receive_callback *call,
                          void *state);
/* Before the first piece: who may be told, and whether the user may. */
void intake_bind(struct intake *i, struct intake_owner *owner, struct tap *tap);
bool intake_has_head(const struct intake *i);
void intake_set_head(struct intake *i, struct answer *head); /* takes the reference over */
void intake_put(struct intake *i, const void *p, size_t n);
void intake_resume(struct intake *i); /* after TINKER_RECEIVE_PAUSE */
enum intake_state intake_state(struct intake *i);
void intake_error(struct intake *i, tinker_error *err); /* of INTAKE_BROKEN */
void intake_free(struct intake *i); /* the owner hears nothing more, and the user soon nothing */

#endif
