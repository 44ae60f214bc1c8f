/* queue_state.h - queue states, told to the log at most once a minute and to the user's
 * observer each time.  Runs on the loop thread. */
#ifndef CLIENT_QUEUE_STATE_H
#define CLIENT_QUEUE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <tinker/service.h>
#include "wire/future.h"

struct session;

/* The user's observer; one per service. */
struct queue_observer {
    pthread_mutex_t lock;
    tinker_queue_state_fn *call; /* lock; NULL: none */
    bool transitions_only;       /* lock */
    void *state;                 /* lock */
    atomic_int waiting;          /* states on their way to it */
};

struct queue_state {
    int64_t logged_ns; /* 0: never */
};

enum queue_state_kind { QUEUE_STATE_TRAINING, QUEUE_STATE_CREATION, QUEUE_STATE_SAMPLING };

void queue_state_report(struct queue_state *o, struct session *h, enum queue_state_kind kind,
                        const char *id, enum wire_queue_state state, const char *reason,
                        bool changed);
/* The reason to show: the server's, or one by state. */
const char *queue_state_reason(enum queue_state_kind kind, enum wire_queue_state state,
                               const char *reason);

#endif
