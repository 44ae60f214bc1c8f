/* recovery.h - continue from the last checkpoint when the service lost a training run.
 *
 * A tinker_recovery watches training runs of its service: it asks for each of them every
 * poll_interval_ms, and when the service says that one is corrupted it makes a training
 * client from a checkpoint and hands it over.  An attempt that fails is made again after
 * backoff_ms, doubling up to max_backoff_ms, max_attempts times in all.
 *
 * Nothing of this happens unless the options say enabled.  Events: see events.h. */
#ifndef TINKER_EXTRA_RECOVERY_H
#define TINKER_EXTRA_RECOVERY_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread safety: any thread, any time.  Free it before the service. */
typedef struct tinker_recovery tinker_recovery;

typedef enum tinker_recovery_strategy {
    TINKER_RECOVERY_LATEST = 0, /* the last checkpoint of the run */
    TINKER_RECOVERY_SPECIFIC,   /* the one of the policy */
    TINKER_RECOVERY_BEST        /* reserved: TINKER_EINVAL */
} tinker_recovery_strategy;

/* Both are called on the callback thread (see future.h), one call at a time; they may
 * submit and call tinker_recovery_free(), but not wait.  `recovered` is yours: free it;
 * `old` is what was given with the run; the texts are borrowed for the call. */
typedef void tinker_recovered_fn(const char *run_id, tinker_training *old,
                                 tinker_training *recovered, const char *checkpoint, void *state);
typedef void tinker_unrecovered_fn(const char *run_id, const tinker_error *reason, void *state);

/* An invalid value (0 or less, an unknown strategy) means the default. */
typedef struct tinker_recovery_options {
    size_t size; /* set by TINKER_RECOVERY_OPTIONS_INIT */
    int enabled;
    int max_attempts;
    int64_t backoff_ms, max_backoff_ms, poll_interval_ms;
    tinker_recovery_strategy strategy;
    const char *checkpoint; /* "tinker://…", with TINKER_RECOVERY_SPECIFIC; NULL: the latest */
    int restore_optimizer;  /* 0: weights only */
    int max_concurrent;     /* recoveries at the same time */
    int64_t attempt_timeout_ms;
    tinker_recovered_fn *on_recovery; /* NULL: the new client is freed again */
    tinker_unrecovered_fn *on_failure;
    void *state;
} tinker_recovery_options;
#define TINKER_RECOVERY_OPTIONS_INIT                                                             \
    {                                                                                            \
        sizeof(tinker_recovery_options), 0, 3, 5000, 60000, 30000, TINKER_RECOVERY_LATEST, NULL, \
            1, 1, 600000, NULL, NULL, NULL                                                       \
    }

/* opts NULL: disabled.  Sends nothing.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_recovery *
tinker_recovery_new(tinker_service *s, const tinker_recovery_options *opts, tinker_error *err);
/* Stop watching and abandon running recoveries; clients that were not handed over yet are
 * freed.  When this returns no callback is running or will run, unless it is called
 * from one.  No other call on the object may be in progress. */
TINKER_API void tinker_recovery_free(tinker_recovery *r);

/* Watch a run; the first look is one interval from now.  old (may be NULL) is handed to
 * on_recovery; it must live until then, or until the run is not watched any more.  A run
 * found corrupted is recovered once and not watched any more; a look that fails is
 * reported as an event and watching goes on.  TINKER_ESTATE: the policy is disabled, or the
 * run is being recovered. */
TINKER_API tinker_status tinker_recovery_watch(tinker_recovery *r, const char *run_id,
                                               tinker_training *old, tinker_error *err);
/* 1: it was watched.  A recovery that has begun goes on. */
TINKER_API int tinker_recovery_unwatch(tinker_recovery *r, const char *run_id);

/* Recover a run now, whatever the service says about it, from `checkpoint` (NULL: as the
 * strategy says).  Does not wait.  TINKER_ESTATE as above: one recovery per run. */
TINKER_API tinker_status tinker_recovery_start(tinker_recovery *r, const char *run_id,
                                               const char *checkpoint, tinker_training *old,
                                               tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
