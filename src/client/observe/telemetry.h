/* telemetry.h - events to the service, in batches.
 *
 * Events are queued from any thread and leave in order, at most 100 per request, every
 * 10 s or when asked.  A batch that fails is sent again after a second, for ever unless
 * the options say otherwise; nothing else ever waits for it, except closing, briefly.
 *
 * Thread safety: the enqueue functions, telemetry_flush() and telemetry_wait() from any
 * thread; the rest on the loop thread. */
#ifndef CLIENT_TELEMETRY_H
#define CLIENT_TELEMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include <tinker/service.h>

struct session;
struct telemetry;

/* NULL: switched off, or no memory (logged; nothing else depends on it). */
struct telemetry *telemetry_new(struct session *h);
void telemetry_free(struct telemetry *t);
/* Say the session ends, send what is queued for at most bound_ms, then closed(arg). */
void telemetry_close(struct telemetry *t, int64_t bound_ms, void (*closed)(void *arg), void *arg);

/* All of these accept t NULL; false: dropped. */
bool telemetry_generic(struct telemetry *t, const char *name, tinker_severity severity,
                       const char *json, size_t n);
bool telemetry_error(struct telemetry *t, const tinker_error *err, const char *body, bool fatal);
void telemetry_flush(struct telemetry *t);
bool telemetry_wait(struct telemetry *t, int64_t timeout_ms); /* true: nothing is left */

/* The reference's rule: a failed request of category user, or a 4xx other than 408. */
bool telemetry_is_user_error(const tinker_error *err);
const char *telemetry_error_type(const tinker_error *err); /* "BadRequestError", … */

#endif
