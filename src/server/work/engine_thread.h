/* engine_thread.h - the engine thread: shares the machine between training and sampling. */
#ifndef SERVER_SCHED_H
#define SERVER_SCHED_H

#include "server/work/live_state.h"

tinker_status sched_start(struct server *s, tinker_error *err);
/* Finish the running slice and end the thread.  Unfinished training stays in the
 * journal. */
void sched_stop(struct server *s);

#endif
