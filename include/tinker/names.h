/* names.h - the values of enumerations as texts, and back.
 *
 * A name is borrowed, static, in lower case as the service spells it, and never NULL: "unknown"
 * for a value that is none.  Parsing takes any case and the names only; it returns 1, or 0 and
 * leaves *out alone.
 *
 * Thread safety: any thread, any time. */
#ifndef TINKER_NAMES_H
#define TINKER_NAMES_H

#include <tinker/breaker.h>
#include <tinker/data.h>
#include <tinker/rest.h>
#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "float32", "int64", …; the wire knows these two, and "bfloat16" in results. */
TINKER_API const char *tinker_dtype_name(tinker_dtype value);
TINKER_API int tinker_dtype_parse(const char *text, tinker_dtype *out);
/* "stop", "length". */
TINKER_API const char *tinker_stop_reason_name(tinker_stop_reason value);
TINKER_API int tinker_stop_reason_parse(const char *text, tinker_stop_reason *out);
/* "active", "paused_capacity", "paused_rate_limit", "unknown". */
TINKER_API const char *tinker_queue_state_name(tinker_queue_state value);
TINKER_API int tinker_queue_state_parse(const char *text, tinker_queue_state *out);
/* TINKER_CATEGORY_…: "unknown", "server", "user". */
TINKER_API const char *tinker_category_name(int value);
TINKER_API int tinker_category_parse(const char *text, int *out);
/* "debug", "info", "warning", "error", "critical". */
TINKER_API const char *tinker_severity_name(tinker_severity value);
TINKER_API int tinker_severity_parse(const char *text, tinker_severity *out);
/* "debug", "info", "warning", "error"; reads "warn" too. */
TINKER_API const char *tinker_log_level_name(tinker_log_level value);
TINKER_API int tinker_log_level_parse(const char *text, tinker_log_level *out);
/* "owned", "accessible". */
TINKER_API const char *tinker_scope_name(tinker_scope value);
TINKER_API int tinker_scope_parse(const char *text, tinker_scope *out);
/* "training", "sampler", "external". */
TINKER_API const char *tinker_checkpoint_kind_name(tinker_checkpoint_kind value);
TINKER_API int tinker_checkpoint_kind_parse(const char *text, tinker_checkpoint_kind *out);
/* "training", "sampling_prefill", "sampling_sample", "checkpoint", "storage". */
TINKER_API const char *tinker_billing_kind_name(tinker_billing_kind value);
TINKER_API int tinker_billing_kind_parse(const char *text, tinker_billing_kind *out);
/* "closed", "open", "half_open". */
TINKER_API const char *tinker_breaker_state_name(tinker_breaker_state value);
TINKER_API int tinker_breaker_state_parse(const char *text, tinker_breaker_state *out);

#ifdef __cplusplus
}
#endif
#endif
