/* stream_callback.h - events of a sample on their way to the user's callback, and what they add up to.
 *
 * Events come from a stream, or from a sample that is complete.  The callback thread tells them, at most
 * one round at a time; a round ends on the loop, which begins the next.  Loop thread, unless
 * said. */
#ifndef CLIENT_TELLER_H
#define CLIENT_TELLER_H

#include <stdbool.h>
#include <tinker/sampling.h>
#include "base/arena.h"
#include "client/call/response.h"
#include "client/session/session.h"
#include "client/sampling/stream_list.h"

struct teller;

struct teller_owner {
    void (*told)(struct teller_owner *o); /* a round is over: look again */
};

/* Any thread.  n_sequences: of a stream; topk: likeliest tokens that were asked for in the place of
 * each of its tokens.  NULL: no memory. */
struct teller *teller_new(struct session *h, size_t n_sequences, size_t topk,
                          tinker_stream_callback *call, void *state);
/* Who hears of rounds, and whether the user may be called. */
void teller_bind(struct teller *t, struct teller_owner *owner, struct callback_guard *guard);
/* Where events come from, one of the two; both live until teller_free(), and longer while a round
 * is under way: the list by its references, the sample by its future's. */
void teller_read_list(struct teller *t, struct stream_list *list);
void teller_read_sample(struct teller *t, struct tinker_future *sample);
void teller_kick(struct teller *t);          /* there may be something to tell */
bool teller_is_idle(const struct teller *t); /* nothing is being told */
/* Was it ended by the callback, or is there no memory?  Says so in *err.  While idle. */
bool teller_gave_up(const struct teller *t, tinker_error *err);
/* All tokens that were told, in the arena; NULL: no memory.  While idle. */
tinker_sample *teller_result(const struct teller *t, struct arena *arena);
void teller_free(struct teller *t); /* the owner hears nothing more, and the user soon nothing */

#endif
