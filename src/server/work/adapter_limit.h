/* adapter_limit.h - how many adapters may be in memory: --max-adapters.
 *
 * There are never more.  Whoever needs one while all are in use waits: training requests
 * are not started (engine_thread.c), samples not admitted (sample.c), each side in turn.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_ADAPTER_LIMIT_H
#define SERVER_ADAPTER_LIMIT_H

#include "server/work/live_state.h"
#include "server/work/weights.h"

/* Before one more adapter is made: while the limit is reached, what is used by nobody and
 * was used longest ago leaves memory, weights for sampling first, then the training state
 * of models, which goes to disk.  for_model (may be NULL) stays.  TINKER_ENOMEM, retriable:
 * all are in use; otherwise a state could not be written. */
tinker_status adapter_limit_make_space(struct server *s, struct weights_cache *weights,
                                       const struct model *for_model, tinker_error *err);
/* Could one more be made now? */
bool adapter_limit_has_space(struct server *s, const struct weights_cache *weights);

#endif
