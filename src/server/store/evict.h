/* evict.h - sessions, models and samplers that ended leave memory, and are found again.
 *
 * What they were stays in the store, so lists, results and error messages are the same
 * before and after. */
#ifndef SERVER_EVICT_H
#define SERVER_EVICT_H

#include "server/work/live_state.h"

/* Free what ended and is not used any more.  Timer thread only. */
void evict_ended(struct server *s);

/* Bring a model of this user that ended and left memory back, so that its requests fail with the
 * reason.  false: there is none.  A run that only holds copied checkpoints was never a model;
 * with `any` it counts as one too. */
bool evict_restore_model(struct server *s, const char *model_id, const char *user, bool any);

#endif
