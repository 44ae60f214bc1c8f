/* service.h - the inside of tinker_service, and small things its clients share. */
#ifndef CLIENT_SERVICE_H
#define CLIENT_SERVICE_H

#include <pthread.h>
#include <tinker/service.h>
#include "client/call/call.h"
#include "client/session/config.h"
#include "client/session/session.h"
#include "client/observe/hooks.h"
#include "client/observe/queue_state.h"

struct tinker_service {
    tinker_service *base;         /* itself, or the service that this one gives options */
    struct call_options *options; /* of calls and clients made from it, a reference; NULL: none */
    /* What follows is the base's alone. */
    struct runtime *rt;
    struct config cfg;
    pthread_mutex_t lock;
    struct session *session, *rest;             /* lock; made on first use */
    bool finished;                              /* lock; nothing new in the session */
    struct imported_session *imported_sessions; /* lock; sessions of other processes */
    pthread_mutex_t importing; /* one import at a time; the I/O thread never takes it */
    struct queue_observer observer;
    struct hooks hooks;
};

struct session *service_session(tinker_service *s, tinker_error *err);
struct session *service_rest(tinker_service *s, tinker_error *err);
/* No session from now on: the session of the one there is, else that of REST calls. */
struct session *service_finish(tinker_service *s, tinker_error *err);

/* Wait for a future of a client, take the client, free the future.  A wait that times
 * out cancels: nobody could take the client any more. */
tinker_training *service_await_training(tinker_future *f, int64_t timeout_ms, tinker_error *err);
tinker_sampler *service_await_sampler(tinker_future *f, int64_t timeout_ms, tinker_error *err);

/* The request id in the answer of an accepted submission; else c->err is set. */
tinker_status submission_id(struct call *c, char *out, size_t size);

/* sampler_export.c: what another process needs to use the sampler, appended; loop thread. */
tinker_status sampler_export_write(const tinker_sampler *s, struct buf *out, tinker_error *err);
/* The imported_sessions of a service that is being freed. */
int sampler_export_count(const tinker_service *s);
void sampler_export_close_all(tinker_service *s, void (*closed)(void *arg),
                              void *arg); /* loop thread */
void sampler_export_free_all(tinker_service *s);

#endif
