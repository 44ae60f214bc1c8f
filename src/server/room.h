/* room.h - how many adapters may be in memory: --max-adapters.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_ROOM_H
#define SERVER_ROOM_H

#include "server/core.h"
#include "server/weights.h"

/* Before one more adapter is made: while the limit is reached, what is used by nobody and
 * was used longest ago leaves memory, weights for sampling first, then the training state
 * of models, which goes to disk.  Adapters that are all in use may exceed the limit.
 * for_model (may be NULL) stays. */
void room_make(struct server *s, struct weights_cache *weights, const struct model *for_model);

#endif
