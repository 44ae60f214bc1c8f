/* startup.h - starting a holder, and what keeps it alive afterwards: heartbeats and the
 * refresh of the dynamic configuration.  Runs on the loop thread. */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include <tinker/error.h>

struct holder;
struct startup;

struct startup *session_new(struct holder *h, tinker_error *err);
/* Begin; holder_started() is called when it is over. */
void session_start(struct startup *s);
/* The session exists already, made by another process: only keep it alive. */
tinker_status session_adopt(struct startup *s, tinker_error *err);
void session_silence(struct startup *s); /* no more heartbeats */
void session_stop(struct startup *s);    /* cancel everything; no more timers */
void session_free(struct startup *s);

/* holder.c: the outcome of a start; err NULL: ready. */
void holder_started(struct holder *h, const tinker_error *err);

#endif
