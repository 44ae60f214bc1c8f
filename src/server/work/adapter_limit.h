/* adapter_limit.h - how many adapters may be in memory: --max-adapters, and a part of --memory.
 *
 * When adapters take more than their part of --memory, idle ones leave; those in use stay.
 * --max-adapters is never exceeded.  A request that needs an adapter while all are in use waits:
 * training requests are not started (engine_thread.c), samples not admitted (sample.c), and the
 * two sides take turns.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_ADAPTER_LIMIT_H
#define SERVER_ADAPTER_LIMIT_H

#include "server/work/live_state.h"
#include "server/work/weights.h"

/* Call before making one more adapter: unload idle ones until there is space, weights for
 * sampling first, then the training state of models, which is written to disk.  for_model (may
 * be NULL) stays.  TINKER_ENOMEM, retryable: all are in use; otherwise a state could not be
 * written. */
tinker_status adapter_limit_make_space(struct server *s, struct weights_cache *weights,
                                       const struct model *for_model, tinker_error *err);
/* Could one more be made now? */
bool adapter_limit_has_space(struct server *s, const struct weights_cache *weights);

#endif
