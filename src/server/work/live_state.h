/* live_state.h - the objects in memory: users' sessions, models, samplers, futures.  Prefix live_.
 *
 * Everything that must survive the process is in the store; these structs are what
 * the threads share while it runs.
 *
 * Threads: the HTTP threads add requests, the engine thread runs them, the timer thread
 * ends what is too old.
 *
 * Locks, in the order in which they are taken:
 *
 *     evict_lock   read: handlers and timers that keep pointers to sessions and models;
 *                  write: evict.c while it frees them
 *     submit_lock  lookup, journal and queue of a training request as one step
 *     lock         all maps and every field below that is not marked otherwise
 *
 * `lock` is a leaf: no I/O, no engine call, no listener call, no other lock under it.
 * Fields marked [engine] belong to the engine thread alone, [const] never change after
 * the object was made. */
#ifndef SERVER_LIVE_STATE_H
#define SERVER_LIVE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <tinker/engine.h>
#include <tinker/tokenizer.h>
#include "base/map.h"
#include "server/http/listener.h"
#include "server/server.h"
#include "server/store/history.h"
#include "server/store/store.h"
#include "server/work/job.h"

/* A base model that is served.  [const] but for the generator. */
struct vocabulary;
struct base {
    const char *name;
    char *dir; /* absolute: clients on this machine may have another working directory */
    tinker_engine *engine;
    tinker_generator *generator;   /* [engine] */
    tinker_tokenizer *tokenizer;   /* NULL: the directory has none that we can read */
    struct vocabulary *vocabulary; /* [engine] its tokens for grammars; NULL: none needed one yet */
    bool has_tokenizer;            /* it has files of one, for other loaders perhaps */
    size_t active;                 /* [engine] requests in the generator */
    int64_t load_ns;               /* [const] that loading took */
    atomic_uint_fast64_t kv_bytes; /* of the generator, as of its last slice */
};

struct server_counters { /* monotonic, for /metrics */
    atomic_uint_fast64_t train_tokens, prompt_tokens, sample_tokens, cached_tokens;
    atomic_uint_fast64_t passes, steps, samples, failures, train_ns, sample_ns;
    atomic_uint_fast64_t rounds, round_rows; /* of the generators, and sequences in them; of all */
};

/* A user, identified by the API key. */
struct tenant {
    char *name;      /* [const] */
    uint64_t number; /* [const] from 1: prompts of different users share no cache */
    size_t queued_bytes, queued_samples;
    size_t result_bytes; /* of outcomes in memory */
    struct server_counters counters;
};

struct session {
    char *id, *owner;      /* [const] */
    struct tenant *tenant; /* [const] */
    int64_t seen_ns;       /* last heartbeat */
    int64_t returned_ns;   /* time of the heartbeat that ended a long silence; 0: none */
    uint64_t used_ns;      /* engine time used so far: the session with least goes first */
    size_t passes;         /* of its models, in progress */
    size_t active_samples; /* in a generator */
    struct future *first_sample, *last_sample;   /* waiting samples in order of arrival */
    struct session *next_waiting, *prev_waiting; /* sessions with waiting samples */
    struct model *models;                        /* all of them in memory */
    size_t n_models;
    bool waiting; /* in the list of sessions with waiting samples */
    bool expired;
    bool direct; /* for requests that name no session; clients cannot name it either */
    bool in_use; /* mark of one round of evict.c */
};

enum { QUEUE_LANES = 8 };            /* of a model's queue, beside the list itself */
enum { SESSION_PASSES = 4 };         /* in progress at once */
enum { SESSION_SILENCE_MS = 30000 }; /* without a heartbeat: assume the client is cut off */
enum model_state { MODEL_ACTIVE, MODEL_UNLOADED };
#define MODEL_LOST_REASON   "was lost in a restart; load a checkpoint"
#define MODEL_NEVER_CREATED "was never created"

struct model {
    char *id, *owner;        /* [const] */
    struct session *session; /* [const] */
    struct model *next_of_session, *prev_of_session;
    struct base *base; /* [const] */
    tinker_lora lora;  /* [const] seed included */
    enum model_state state;
    const char *end_reason;  /* UNLOADED: why, for the error */
    tinker_adapter *adapter; /* [engine] NULL: not loaded yet */
    char saved_dir[40];      /* [engine] training state on disk, empty: as created */
    int64_t saved_seq;       /* [engine] the request after which it was saved */
    bool rewound;            /* [engine] the adapter was dropped: replay requests since saved_seq */
    int64_t unsaved_steps;   /* [engine] optimizer steps since the state was saved */
    uint64_t used;           /* [engine] tick of the last use */
    int64_t next_seq;        /* every number below has finished or was skipped */
    int64_t max_seq;         /* highest number accepted */
    struct future *pending;  /* waiting requests by ascending seq */
    struct future *last;     /* end of that list */
    struct future *lanes[QUEUE_LANES]; /* the first of each: see queue.c */
    int64_t gap_since_ns;              /* since when next_seq is missing; 0: it is not */
    int64_t gap_end_ns;                /* when the gap is over, set by queue_due_gaps_locked() */
    struct model *next_gap;            /* list that queue_due_gaps_locked() returns */
    bool busy;                         /* the engine thread runs one of its requests */
    bool ready;                        /* in the ready list */
    size_t pins;                       /* the engine thread still has a pointer to it */
    struct model *next_ready;
    uint64_t adapter_bytes; /* memory of the adapter after the last step; 0: not known yet */
    size_t n_futures;
};

/* A sampling session: which weights it samples from. */
struct sampler {
    char *id, *owner, *session_id; /* [const] */
    struct base *base;             /* [const] */
    char *model_path;              /* [const] may be NULL */
    char *dir;                     /* [const] directory name, NULL: the base model */
};

enum future_state { FUTURE_WAITING, FUTURE_RUNNING, FUTURE_DONE, FUTURE_FAILED };

struct future {
    char *id, *owner;        /* [const] */
    enum job_kind kind;      /* [const] */
    uint64_t hash;           /* [const] of the payload */
    struct model *model;     /* [const] NULL for samples */
    struct session *session; /* [const] */
    int64_t seq;             /* [const] */
    struct base *base;       /* [const] samples */
    enum future_state state;
    bool canceled;        /* RUNNING samples: the engine drops it at the next token */
    struct job *job;      /* owned; the engine thread's while RUNNING */
    bool replay;          /* [engine] finished before a restart: only repeat its effect */
    struct waitlist wait; /* the listener's */
    char *result;         /* DONE: payload; FAILED: message */
    size_t n_result;
    bool proto;   /* the result is protobuf */
    int category; /* FAILED */
    int64_t created_ns, started_ns, done_ns;
    struct sample_log *log; /* samples with a number: see sample_log.h */
    int64_t completion;     /* of samples that are over: grows in the order of their ends */
    struct future *log_next, *log_prev;
    bool delivered;                    /* a client has fetched the outcome */
    int64_t fetched_ns;                /* when first; 0: not yet */
    bool starved;                      /* it was its turn, but there was no memory */
    bool unrecorded;                   /* over, and the store could not record it yet */
    struct future *next;               /* in the model's or the session's queue */
    struct future *prev;               /* samples: in the session's */
    struct future *lanes[QUEUE_LANES]; /* training: further ahead in the model's */
};

struct server {
    struct server_options opts; /* [const] */
    struct clock *clock;        /* [const] */
    const struct log *log;      /* [const] */
    struct store *store;
    struct history *history;
    struct usage *usage;
    struct listener *listener;
    struct base *bases;         /* [const] */
    uint64_t max_adapter_bytes; /* [const] above, idle adapters leave memory */
    size_t n_bases;
    char *checkpoints; /* [const] directory of all weights */
    uint8_t key[32];   /* [const] signs download URLs */
    int lock_fd;
    int64_t started_ns;
    struct server_counters counters;
    int64_t completions; /* the last number given to a sample that ended */

    pthread_t engine_thread, timer_thread;
    bool engine_started, timers_started;

    /* Held while a training request is looked up, journaled and queued, so that two copies
     * of it cannot both be new.  Taken before `lock` and before the store's. */
    pthread_mutex_t submit_lock;

    /* Held for reading by handlers while they have pointers to sessions and models, for
     * writing by the timer thread while it frees those that ended.  Taken before the others. */
    pthread_rwlock_t evict_lock;

    pthread_mutex_t lock;
    pthread_cond_t work_ready;                      /* for the engine thread */
    pthread_cond_t timers_wake;                     /* for the timer thread, to stop */
    struct map sessions, models, samplers, futures; /* by id */
    struct map sample_logs;                         /* see sample_log.h */
    uint64_t samplers_ended; /* count of sampler_table_end(), for who has read a record before it */
    struct map tenants;      /* by name */
    uint64_t floor_ns;       /* used_ns of the session that ran last: newcomers start there */
    struct model *first_ready, *last_ready;
    struct session *waiting; /* list of sessions with waiting samples */
    size_t queued_samples, active_samples;
    size_t queued_bytes;
    size_t result_bytes; /* of outcomes in memory */
    uint64_t drops;      /* count of ended sessions and canceled samples; a change makes the
                          * engine thread look for them */
    bool stopping;
};

/* ---- lookup; the pointer is valid while the lock is held, or as marked -------------- */
struct base *live_find_base(struct server *s, const char *name); /* no lock needed */
struct session *live_find_session_locked(struct server *s, const char *id);
struct model *live_find_model_locked(struct server *s, const char *id);
struct future *live_find_future_locked(struct server *s, const char *id);
struct sampler *live_find_sampler_locked(struct server *s, const char *id);

/* ---- creating, in the maps; NULL: no memory ----------------------------------------- */
struct session *live_add_session_locked(struct server *s, const char *id, const char *owner);
struct model *live_add_model_locked(struct server *s, const char *id, const char *owner,
                                    struct session *session, struct base *base,
                                    const tinker_lora *lora);
struct sampler *live_add_sampler_locked(struct server *s, const struct store_sampler *v,
                                        struct base *base, const char *dir);
/* Takes over the job on success. */
struct future *live_add_future_locked(struct server *s, const char *id, const char *owner,
                                      enum job_kind kind, struct job *job);
void live_remove_future_locked(struct server *s, struct future *f);
void live_remove_model_locked(struct server *s, struct model *m);
void live_remove_sampler_locked(struct server *s, struct sampler *v);
void live_remove_session_locked(struct server *s, struct session *v);
void live_clear(struct server *s); /* everything, at the end; no lock, no other thread */

int64_t live_wall_us(struct server *s); /* wall clock */
/* What a user has done since the start; zeros when that is nothing.  Stays valid. */
struct server_counters *live_user_counters(struct server *s, const char *user);

/* Count n for the server and for a user: both counters are the same field of theirs. */
static inline void live_count(atomic_uint_fast64_t *of_all, atomic_uint_fast64_t *of_user,
                              uint64_t n)
{
    atomic_fetch_add(of_all, n);
    atomic_fetch_add(of_user, n);
}

/* ---- queueing (queue.c) --------------------------------------------------------------- */
/* Put a training future into its model's queue. */
void queue_train_locked(struct server *s, struct future *f);
/* Put a sample into its session's queue. */
void queue_sample_locked(struct server *s, struct future *f);
/* Next training future to run, marked RUNNING and its model busy; NULL: none.  loaded: only
 * those that need no more adapters in memory. */
struct future *queue_next_train_locked(struct server *s, bool loaded);
/* Next sample to run, NULL: none.  idle: only of sessions for which none is being made. */
struct future *queue_next_sample_locked(struct server *s, bool idle);
/* Is there space in the queue for one more request of this size?  When it is full, each
 * user still has a share that the others cannot take. */
bool queue_has_space_locked(const struct server *s, const struct tenant *t, size_t bytes,
                            bool sample);
/* Put back a sample that did not fit, at the head of its queue. */
void queue_return_sample_locked(struct server *s, struct future *f);
/* The model finished f (or dropped it): let the next one run. */
void queue_done_locked(struct server *s, struct future *f);
/* The models whose missing number nobody will send any more, unless it is arriving right now;
 * linked by next_gap.  Valid while evict_lock is held. */
struct model *queue_due_gaps_locked(struct server *s, int64_t now_ns);
/* Skip the missing numbers and go on with request `seq`; false: the gap has changed meanwhile. */
bool queue_skip_gap_locked(struct server *s, struct model *m, int64_t seq);
/* Take a waiting sample out of its queue; false: it is not there any more. */
bool queue_remove_sample_locked(struct server *s, struct future *f);
/* Take all waiting futures of a session or model out of the queues, as a list. */
struct future *queue_drop_session_locked(struct server *s, struct session *session);
struct future *queue_drop_model_locked(struct server *s, struct model *m);

/* ---- finishing (future.c) ----------------------------------------------------------------- */
/* Count the size of an outcome that is kept, or is no longer. */
void future_count_locked(struct server *s, struct future *f, size_t n_result);
/* Set the outcome and wake the polls that wait for it.  result is taken over. */
void future_finish(struct server *s, struct future *f, bool failed, char *result, size_t n,
                   bool proto, int category);
/* The same with a message; category from the error. */
void future_fail(struct server *s, struct future *f, int category, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int future_category(const tinker_error *err);
/* Fail each future of a list made by queue_drop_*(); records training ones. */
void future_fail_list(struct server *s, struct future *list, const char *reason);
/* Record the outcomes that the store could not take before. */
void future_record_outcomes(struct server *s);

#endif
