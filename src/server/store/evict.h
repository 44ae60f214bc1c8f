/* evict.h - sessions, models and samplers that ended leave memory, and are found again.
 *
 * What they were stays in the store, so lists, results and error messages are the same
 * before and after. */
#ifndef SERVER_EVICT_H
#define SERVER_EVICT_H

#include "server/work/live_state.h"

/* Free what ended and is used by nobody.  Sweeper only. */
void evict_ended(struct server *s);

/* A model of this user that ended and is no longer in memory: bring it back, to fail its
 * requests with the reason.  false: there is none.  The record of a run that only holds
 * copies of checkpoints was never a model; `any` takes it for one too. */
bool evict_restore_model(struct server *s, const char *model_id, const char *user, bool any);

#endif
