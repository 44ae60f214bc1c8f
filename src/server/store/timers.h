/* timers.h - the timer thread: everything that ends because time has passed. */
#ifndef SERVER_SWEEP_H
#define SERVER_SWEEP_H

#include "server/work/live_state.h"

tinker_status sweep_start(struct server *s, tinker_error *err);
void sweep_stop(struct server *s);
/* One round; the thread calls it twice a second. */
void sweep_once(struct server *s, bool slow);
/* End a session: its models are unloaded (reason is a literal), its waiting work fails. */
void sweep_expire_session(struct server *s, struct session *session, const char *reason);

#endif
