/* sample_log.h - which samples of a sampler are over, in the order of their ends.
 *
 * One log per target of retrieve_futures: a sampling session, or one of its copies.  A poll reads
 * what is new in its own log and is woken by its own samples, so that its costs do not grow with
 * those of others. */
#ifndef SERVER_SAMPLE_LOG_H
#define SERVER_SAMPLE_LOG_H

#include "server/work/live_state.h"

/* All of it is guarded by server.lock, `wait` by the listener's. */
struct sample_log {
    char *key;
    struct future *first, *last; /* over: the oldest and the newest */
    size_t n_futures;            /* of this log, over or not */
    struct waitlist wait;        /* fires with every sample that ends */
    int64_t looked_ns;           /* when a poll looked last */
};

/* Copies of a sampler number their samples from multiples of this on. */
enum { SAMPLE_CLONE_STRIDE = 1000000000 };

/* That of a sampling session's clone; made when there is none.  NULL: no memory. */
struct sample_log *sample_log_find_locked(struct server *s, const char *sampling_session_id,
                                          int64_t clone);
/* A new sample goes into the log that its id "<sampling session>:<number>" names, if it names one;
 * false: no memory. */
bool sample_log_join_locked(struct server *s, struct future *f);
/* It is over: it gets a number larger than all before it, also than those before a restart. */
void sample_log_append_locked(struct server *s, struct future *f);
/* It is about to be freed. */
void sample_log_leave_locked(struct future *f);
/* Free logs without samples at which no poll has looked for a while. */
void sample_log_evict_locked(struct server *s);
void sample_log_free(struct sample_log *log);

#endif
