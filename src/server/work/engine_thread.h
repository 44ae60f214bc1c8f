/* engine_thread.h - the engine thread: shares the machine between training and sampling. */
#ifndef SERVER_ENGINE_THREAD_H
#define SERVER_ENGINE_THREAD_H

#include "server/work/live_state.h"

tinker_status engine_thread_start(struct server *s, tinker_error *err);
/* Finish the running slice and end the thread.  Unfinished training stays in the
 * journal. */
void engine_thread_stop(struct server *s);

#endif
