/* stream_callback.h - events of a sample on their way to the user's callback, and what they add up to.
 *
 * Events come from a stream, or from a sample that is complete.  The callback thread delivers them, at most
 * one round at a time; a round ends on the loop, which begins the next.  Loop thread, unless
 * said. */
#ifndef CLIENT_STREAM_CALLBACK_H
#define CLIENT_STREAM_CALLBACK_H

#include <stdbool.h>
#include <tinker/sampling.h>
#include "base/arena.h"
#include "client/call/response.h"
#include "client/session/session.h"
#include "client/sampling/stream_list.h"

struct stream_callback;

struct stream_callback_owner {
    void (*told)(struct stream_callback_owner *o); /* a round is over: look again */
};

/* Any thread.  n_sequences: of a stream; topk: likeliest tokens that were asked for in the place of
 * each of its tokens.  NULL: no memory. */
struct stream_callback *stream_callback_new(struct session *h, size_t n_sequences, size_t topk,
                                            tinker_stream_event_fn *call, void *state);
/* The owner to notify after rounds, and the guard of the user's callback. */
void stream_callback_bind(struct stream_callback *t, struct stream_callback_owner *owner,
                          struct callback_guard *guard);
/* Where events come from, one of the two; both live until stream_callback_free(), and longer while a round
 * is under way: the list by its references, the sample by its future's. */
void stream_callback_read_list(struct stream_callback *t, struct stream_list *list);
void stream_callback_read_sample(struct stream_callback *t, struct tinker_future *sample);
void stream_callback_kick(struct stream_callback *t);          /* there may be something to tell */
bool stream_callback_is_idle(const struct stream_callback *t); /* nothing is being told */
/* Was it ended by the callback, or is there no memory?  Says so in *err.  While idle. */
bool stream_callback_gave_up(const struct stream_callback *t, tinker_error *err);
/* All tokens that were told, in the arena; NULL: no memory.  While idle. */
tinker_sample *stream_callback_result(const struct stream_callback *t, struct arena *arena);
void stream_callback_free(
    struct stream_callback *t); /* the owner hears nothing more, and the user soon nothing */

#endif
