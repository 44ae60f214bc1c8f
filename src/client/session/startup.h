/* startup.h - starting a session, and what keeps it alive afterwards: heartbeats and the
 * refresh of the dynamic configuration.  Runs on the loop thread. */
#ifndef CLIENT_STARTUP_H
#define CLIENT_STARTUP_H

#include <tinker/error.h>

struct session;
struct startup;

struct startup *startup_new(struct session *h, tinker_error *err);
/* Begin; session_started() is called when it is over. */
void startup_begin(struct startup *s);
/* The session exists already, made by another process: only keep it alive. */
tinker_status startup_adopt(struct startup *s, tinker_error *err);
void startup_stop_heartbeats(struct startup *s); /* no more heartbeats */
void startup_stop(struct startup *s);            /* cancel everything; no more timers */
void startup_free(struct startup *s);

/* session.c: the outcome of a start; err NULL: ready. */
void session_started(struct session *h, const tinker_error *err);

#endif
