/* recover.h - after a restart: sessions, models and unfinished requests come back. */
#ifndef SERVER_RECOVER_H
#define SERVER_RECOVER_H

#include "server/work/live_state.h"

/* Before the threads start. */
tinker_status recover_state(struct server *s, tinker_error *err);

#endif
