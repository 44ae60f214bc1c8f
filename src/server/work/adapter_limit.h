/* adapter_limit.h - how many adapters may be in memory: --max-adapters.
 *
 * There are never more.  Whoever needs one while all are in use waits: training requests
 * are not started (sched.c), samples not admitted (sample.c), each side in turn.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_ROOM_H
#define SERVER_ROOM_H

#include "server/work/live_state.h"
#include "server/work/weights.h"

/* Before one more adapter is made: while the limit is reached, what is used by nobody and
 * was used longest ago leaves memory, weights for sampling first, then the training state
 * of models, which goes to disk.  for_model (may be NULL) stays.  TINKER_ENOMEM, retryable:
 * all are in use; otherwise a state could not be written. */
tinker_status room_make(struct server *s, struct weights_cache *weights,
                        const struct model *for_model, tinker_error *err);
/* Could one more be made now? */
bool room_is_there(struct server *s, const struct weights_cache *weights);

#endif
