/* names.h - the names of enum values, for logs and configuration files.
 *
 * Names are lower case, as the service spells them; they are borrowed and static, NULL for an
 * invalid value.  Parsing accepts any case; TINKER_EINVAL for an unknown name, which leaves *out
 * unchanged.  Thread safety: any thread, any time. */
#ifndef TINKER_EXTRA_NAMES_H
#define TINKER_EXTRA_NAMES_H

#include <tinker/data.h>
#include <tinker/extra/account.h>
#include <tinker/extra/breaker.h>
#include <tinker/rest.h>
#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "float32", "int64", …; the wire knows these two, and "bfloat16" in results. */
TINKER_API const char *tinker_dtype_name(tinker_dtype value);
TINKER_API tinker_status tinker_dtype_parse(const char *text, tinker_dtype *out, tinker_error *err);
/* "stop", "length". */
TINKER_API const char *tinker_stop_reason_name(tinker_stop_reason value);
TINKER_API tinker_status tinker_stop_reason_parse(const char *text, tinker_stop_reason *out,
                                                  tinker_error *err);
/* TINKER_CATEGORY_…: "unknown", "server", "user". */
TINKER_API const char *tinker_category_name(int value);
TINKER_API tinker_status tinker_category_parse(const char *text, int *out, tinker_error *err);
/* "active", "paused_capacity", "paused_rate_limit", "unknown". */
TINKER_API const char *tinker_queue_state_name(tinker_queue_state value);
TINKER_API tinker_status tinker_queue_state_parse(const char *text, tinker_queue_state *out,
                                                  tinker_error *err);
/* "debug", "info", "warning", "error", "critical". */
TINKER_API const char *tinker_severity_name(tinker_severity value);
TINKER_API tinker_status tinker_severity_parse(const char *text, tinker_severity *out,
                                               tinker_error *err);
/* "debug", "info", "warning", "error"; parsing accepts "warn", too. */
TINKER_API const char *tinker_log_level_name(tinker_log_level value);
TINKER_API tinker_status tinker_log_level_parse(const char *text, tinker_log_level *out,
                                                tinker_error *err);
/* "owned", "accessible". */
TINKER_API const char *tinker_scope_name(tinker_scope value);
TINKER_API tinker_status tinker_scope_parse(const char *text, tinker_scope *out, tinker_error *err);
/* "training", "sampling_prefill", "sampling_sample", "checkpoint", "storage". */
TINKER_API const char *tinker_billing_kind_name(tinker_billing_kind value);
TINKER_API tinker_status tinker_billing_kind_parse(const char *text, tinker_billing_kind *out,
                                                   tinker_error *err);
/* "closed", "open", "half_open". */
TINKER_API const char *tinker_breaker_state_name(tinker_breaker_state value);
TINKER_API tinker_status tinker_breaker_state_parse(const char *text, tinker_breaker_state *out,
                                                    tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
