/* timers.h - the timer thread: everything that ends because time has passed. */
#ifndef SERVER_TIMERS_H
#define SERVER_TIMERS_H

#include "server/work/live_state.h"

tinker_status timers_start(struct server *s, tinker_error *err);
void timers_stop(struct server *s);
/* One round; the thread calls it twice a second. */
void timers_run_once(struct server *s, bool slow);
/* End a session: its models are unloaded (reason is a literal), its waiting work fails. */
void timers_expire_session(struct server *s, struct session *session, const char *reason);

#endif
