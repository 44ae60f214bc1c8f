/* breaker.h - stop calling what keeps failing, and try again later.
 *
 * A circuit breaker has a name.  Closed, it lets calls through and counts failures in a
 * row; after failure_threshold of them it opens and refuses calls without making them.
 * After open_ms it is half open: half_open_calls calls may try; the first success closes
 * it, a failure opens it again.  Calls admitted before a change of state do not count
 * when they end.
 *
 * Breakers are shared by the whole process and off by default: use them around calls of
 * your own with tinker_breaker_call(), or around the requests of a service with the
 * option `breaker` (see service.h).
 *
 * Thread safety: any thread, any time. */
#ifndef TINKER_EXTRA_BREAKER_H
#define TINKER_EXTRA_BREAKER_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Was it a success?  outcome->status is TINKER_OK when the call said so. */
typedef int tinker_breaker_judge_fn(const tinker_error *outcome, void *state);

typedef struct tinker_breaker_options {
    size_t size;           /* set by TINKER_BREAKER_OPTIONS_INIT */
    int failure_threshold; /* failures in a row that open it; 1 to 4000 */
    int64_t open_ms;
    int half_open_calls;            /* 1 to 4000 */
    tinker_breaker_judge_fn *judge; /* NULL: TINKER_OK is success, all else is failure */
    void *judge_state;
} tinker_breaker_options;
#define TINKER_BREAKER_OPTIONS_INIT                             \
    {                                                           \
        sizeof(tinker_breaker_options), 5, 30000, 1, NULL, NULL \
    }

typedef tinker_status tinker_breaker_fn(tinker_error *err, void *state);

/* Run fn(err, state) through the breaker `name`, in the calling thread, and return what it
 * returned.  TINKER_ECIRCUIT: the breaker is open and fn was not run; TINKER_EINVAL;
 * TINKER_ENOMEM, also for more than 4096 names.  A breaker is made by its first call, with
 * opts (NULL: defaults); later calls bring only their judge. */
TINKER_API tinker_status tinker_breaker_call(const char *name, const tinker_breaker_options *opts,
                                             tinker_breaker_fn *fn, void *state, tinker_error *err);
/* A judge: client errors (tinker_error_is_user()) count as success, because they show that the
 * service works. */
TINKER_API int tinker_breaker_spare_users(const tinker_error *outcome, void *state);

typedef enum tinker_breaker_state {
    TINKER_BREAKER_CLOSED = 0,
    TINKER_BREAKER_OPEN,
    TINKER_BREAKER_HALF_OPEN
} tinker_breaker_state;

/* A name that was never used is closed. */
TINKER_API tinker_breaker_state tinker_breaker_state_of(const char *name);
TINKER_API void tinker_breaker_reset(const char *name); /* to closed, nothing counted */
/* Forget it; the next call makes it anew, with the options of that call. */
TINKER_API void tinker_breaker_delete(const char *name);

typedef struct tinker_breaker_info {
    const char *name;
    tinker_breaker_state state;
    int failures; /* in a row, while closed */
} tinker_breaker_info;

typedef struct tinker_breakers {
    const tinker_breaker_info *breakers; /* in the order of names */
    size_t n;
} tinker_breakers;

/* All breakers as they are now; NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_breakers *tinker_breaker_list(tinker_error *err);
TINKER_API void tinker_breakers_free(tinker_breakers *b);

#ifdef __cplusplus
}
#endif
#endif
