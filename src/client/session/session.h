/* session.h - one session with a service: its pools, credentials, budgets and timers.
 *
 * A service has two: one with a session, for training and sampling, and one without,
 * for REST calls.  A session starts on first use, in the reference's order: client
 * configuration, token, dynamic configuration, session; then heartbeats begin.
 * A failed start fails those who waited for it, and the next use tries again.
 *
 * Everything is on the loop thread, except the members marked `any`. */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/log.h"
#include "client/session/auth.h"
#include "client/session/config.h"
#include "client/future/operation.h"
#include "client/io/runtime.h"
#include "client/io/budget.h"
#include "http/http.h"
#include "wire/types.h"

enum pool_kind {
    POOL_SESSION,
    POOL_TRAIN,
    POOL_SAMPLE,
    POOL_RETRIEVE,
    POOL_TELEMETRY,
    POOL_REDIRECT,
    POOL_AUTH,   /* private: exchanging credentials */
    POOL_CONFIG, /* one-off: the configuration request */
    POOL_COUNT
};

enum session_state { SESSION_NEW, SESSION_STARTING, SESSION_READY };

struct session_waits {
    struct session_wait *first, *last;
};

struct session_wait {
    struct session_wait *next, *prev;
    struct session_waits *list;                                     /* not NULL while waiting */
    void (*ready)(struct session_wait *w, const tinker_error *err); /* err NULL: started */
};

struct call;
struct startup;
struct telemetry;
struct sample_limits;
struct sample_retry;
struct queue_observer;
struct hooks;

struct session {
    struct runtime *rt;       /* any */
    const struct config *cfg; /* any */
    struct log log;           /* any */
    bool with_session;        /* any */
    enum session_state state;
    bool closed, is_shadow;
    bool reached;     /* the service has answered a request */
    char *last_error; /* the lock of future.h: why the last exchange failed, NULL: it did not */
    struct session_waits waiting, told; /* told: one after the other, what came of the start */
    struct http_pool *pools[POOL_COUNT];
    struct http_common *common; /* headers of every request; made by the first */
    struct operation *ops;
    struct operation *ending; /* canceled, because the session closes, and not gone yet */
    struct auth *auth;
    struct startup *startup; /* while starting, and for the refreshes and heartbeats later */
    struct telemetry *_Atomic telemetry; /* any */
    struct sample_limits *limits;        /* of sampling; shared by sessions of one account */
    struct sample_retry *sample_retries;
    struct queue_observer *observer;           /* the service's, NULL: none */
    struct hooks *hooks;                       /* any; the service's, NULL: none */
    struct arena arena;                        /* of server and session_id */
    struct wire_client_config_response server; /* any, once ready: constant */
    char *_Atomic session_id;                  /* any; NULL: none yet */
    int64_t refresh_interval_sec;
    bool cancels;                              /* the service takes canceled samples back */
    int64_t model_seq, sampling_seq, loss_seq; /* counters of the session */
    _Atomic int64_t queued_bytes;              /* any; of batches that are not accepted yet */
    atomic_bool rounding_told;                 /* any; that float64 values are rounded: said once */
    struct budget response_bytes, train_bytes;
    int64_t billing_first_ns, billing_logged_ns; /* 0: no incident */
    int64_t heartbeat_ok_ns;
    int heartbeat_failures;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
    struct loop_task free_task;
};

struct session *session_new(struct runtime *rt, const struct config *cfg, bool with_session,
                            tinker_error *err);                     /* any thread */
void session_when_ready(struct session *h, struct session_wait *w); /* starts it if need be */
void session_forget(struct session_wait *w);
/* Refuse new operations, cancel live ones, say good-bye to telemetry, free; then
 * closed(arg) is called on the loop thread. */
void session_close(struct session *h, void (*closed)(void *arg), void *arg);

struct http_pool *session_pool(struct session *h, enum pool_kind kind, tinker_error *err);

/* A 402 arrived: wait for the account to be topped up (true), or give up? */
bool session_billing_pause(struct session *h, const char *text);

#endif
