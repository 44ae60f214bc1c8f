/* service.h - a connection to a Tinker service: hosted, or `tinker serve`.
 *
 * Creating a service sends nothing; the session is opened by the first call that
 * needs one and kept alive until tinker_service_free().  fork() after creating a
 * service is unsupported. */
#ifndef TINKER_SERVICE_H
#define TINKER_SERVICE_H

#include <tinker/future.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread safety: any thread, any time. */
typedef struct tinker_service tinker_service;
typedef struct tinker_training tinker_training;
typedef struct tinker_sampler tinker_sampler;

typedef enum tinker_log_level {
    TINKER_LOG_DEBUG = 0,
    TINKER_LOG_INFO,
    TINKER_LOG_WARNING,
    TINKER_LOG_ERROR
} tinker_log_level;
/* Called from library threads; one line without newline, secrets redacted. */
typedef void tinker_log_callback(void *state, tinker_log_level level, const char *line);

typedef struct tinker_service_options {
    size_t size;            /* set by TINKER_SERVICE_OPTIONS_INIT */
    const char *base_url;   /* NULL: TINKER_BASE_URL, else the hosted service */
    const char *api_key;    /* NULL: TINKER_API_KEY */
    const char *project_id; /* NULL: TINKER_PROJECT_ID */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
    tinker_log_callback *log; /* NULL: silent */
    void *log_state;
} tinker_service_options;
#define TINKER_SERVICE_OPTIONS_INIT { sizeof(tinker_service_options), NULL, NULL, NULL, NULL, 0, NULL, NULL }

/* opts NULL: everything from the environment, which is read here and nowhere else.
 * Returns NULL with *err set: TINKER_EINVAL for a missing or malformed key. */
TINKER_API tinker_service *tinker_service_new(const tinker_service_options *opts, tinker_error *err);

/* Pending futures complete with TINKER_ECANCELED.  Free the clients made from the
 * service first.  Blocks at most 5 s.  No other call on the object may be in progress. */
TINKER_API void tinker_service_free(tinker_service *s);

#ifdef __cplusplus
}
#endif
#endif
