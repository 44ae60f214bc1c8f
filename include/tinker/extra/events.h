/* events.h - hooks: callbacks for what happens inside a service.
 *
 * A hook sees events by name, each with measurements (numbers) and metadata (texts):
 *
 *   http.request.start, .stop, .exception            every API call and poll
 *   retry.attempt.start, .stop, .retry, .failed      layers 2 and 3 of the retries
 *   queue.state_change                               a request waits, or no longer
 *   future.timeout, .api_error, .connection_error, .request_failed, .validation_error
 *   custom_loss.start, .stop, .exception             and the same of regularizer.compute
 *   recovery.detected, .poll_error, .started, .checkpoint_selected, .client_created,
 *       .completed, .failed, .exhausted              see recovery.h
 *
 * The user_metadata of the service is part of the metadata of every event.  Secrets are
 * redacted.  Events never leave the machine; they do not depend on telemetry.  Without a hook an
 * event costs one branch. */
#ifndef TINKER_EXTRA_EVENTS_H
#define TINKER_EXTRA_EVENTS_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Valid during the call of the hook.  Thread safety: plain data. */
typedef struct tinker_event {
    const char *name;
    const tinker_named_number *measurements; /* see tinker_metric() */
    size_t n_measurements;
    const tinker_named_string *metadata;
    size_t n_metadata;
} tinker_event;

/* Called on the callback thread (see future.h), in the order of the events.  A slow hook does not
 * delay the operation; when 10,000 events wait for slow hooks, further ones are dropped.  Non-zero means that the hook failed: a warning is logged
 * and it is detached. */
typedef int tinker_hook_fn(const tinker_event *event, void *state);

/* Call `hook` for every event of the service whose name begins with `prefix` (NULL or "":
 * all).  TINKER_EINVAL when a hook with this id is attached, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_service_attach(tinker_service *s, const char *id,
                                               const char *prefix, tinker_hook_fn *hook,
                                               void *state, tinker_error *err);
/* 1: it was attached.  When this returns the hook is not running and will not be called
 * again, except when called from a hook: then from its return on. */
TINKER_API int tinker_service_detach(tinker_service *s, const char *id);

/* Text of one name in the metadata, NULL when there is none.  Borrowed from the event. */
TINKER_API const char *tinker_event_text(const tinker_event *event, const char *name);
/* One line for a log, without newline: the name, then "name=value" for all the rest.  A hook that
 * prints:
 *
 *     static int print_event(const tinker_event *event, void *state)
 *     {
 *         char line[2048];
 *         tinker_event_line(event, line, sizeof(line));
 *         return fprintf(state, "%s\n", line) < 0;
 *     }
 */
TINKER_API void tinker_event_line(const tinker_event *event, char *out, size_t n);

#ifdef __cplusplus
}
#endif
#endif
