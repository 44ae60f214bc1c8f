/* enum_names.c - names of the public enumerations, one table for each.
 *
 * The first entry of a value is its name; further ones are only read (aliases).  A value
 * without an entry has no name: NULL, because "unknown" is a state that the service reports. */
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/rest.h>
#include <tinker/service.h>
#include <tinker/extra/breaker.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <tinker/extra/account.h>
#include <tinker/extra/names.h>
#include "base/err.h"

struct name {
    const char *text;
    int value;
};

/* The wire knows float32 and int64, and bfloat16 in results; the others are converted. */
static const struct name dtypes[] = {
    { "float32", TINKER_FLOAT32 },   { "int64", TINKER_INT64 },
    { "int32", TINKER_INT32 },       { "uint32", TINKER_UINT32 },
    { "uint64", TINKER_UINT64 },     { "float64", TINKER_FLOAT64 },
    { "bfloat16", TINKER_BFLOAT16 }, { NULL, 0 }
};
static const struct name stop_reasons[] = { { "stop", TINKER_STOP_STOP },
                                            { "length", TINKER_STOP_LENGTH },
                                            { NULL, 0 } };
/* Here "unknown" is a state that the service may report, not an invalid value. */
static const struct name queue_states[] = { { "unknown", TINKER_QUEUE_UNKNOWN },
                                            { "active", TINKER_QUEUE_ACTIVE },
                                            { "paused_capacity", TINKER_QUEUE_PAUSED_CAPACITY },
                                            { "paused_rate_limit", TINKER_QUEUE_PAUSED_RATE_LIMIT },
                                            { NULL, 0 } };
static const struct name categories[] = { { "unknown", TINKER_CATEGORY_UNKNOWN },
                                          { "server", TINKER_CATEGORY_SERVER },
                                          { "user", TINKER_CATEGORY_USER },
                                          { NULL, 0 } };
static const struct name severities[] = {
    { "debug", TINKER_SEVERITY_DEBUG },       { "info", TINKER_SEVERITY_INFO },
    { "warning", TINKER_SEVERITY_WARNING },   { "error", TINKER_SEVERITY_ERROR },
    { "critical", TINKER_SEVERITY_CRITICAL }, { NULL, 0 }
};
/* "warn" is read, too: many programs spell it so. */
static const struct name log_levels[] = {
    { "debug", TINKER_LOG_DEBUG },     { "info", TINKER_LOG_INFO },
    { "warning", TINKER_LOG_WARNING }, { "warn", TINKER_LOG_WARNING },
    { "error", TINKER_LOG_ERROR },     { NULL, 0 }
};
static const struct name scopes[] = { { "owned", TINKER_SCOPE_OWNED },
                                      { "accessible", TINKER_SCOPE_ACCESSIBLE },
                                      { NULL, 0 } };
static const struct name checkpoint_kinds[] = { { "training", TINKER_CHECKPOINT_TRAINING },
                                                { "sampler", TINKER_CHECKPOINT_SAMPLER },
                                                { "external", TINKER_CHECKPOINT_EXTERNAL },
                                                { NULL, 0 } };
static const struct name billing_kinds[] = {
    { "training", TINKER_BILLING_TRAINING },        { "sampling_prefill", TINKER_BILLING_PREFILL },
    { "sampling_sample", TINKER_BILLING_SAMPLING }, { "checkpoint", TINKER_BILLING_CHECKPOINT },
    { "storage", TINKER_BILLING_STORAGE },          { NULL, 0 }
};
static const struct name breaker_states[] = { { "closed", TINKER_BREAKER_CLOSED },
                                              { "open", TINKER_BREAKER_OPEN },
                                              { "half_open", TINKER_BREAKER_HALF_OPEN },
                                              { NULL, 0 } };

/* The first entry wins, which makes it the name and those after it aliases. */
static const char *find_name(const struct name *v, int value)
{
    for (; v->text; v++)
        if (v->value == value)
            return v->text;
    return NULL;
}

_Static_assert(sizeof(tinker_dtype) == sizeof(int) && sizeof(tinker_scope) == sizeof(int),
               "parse_name() writes enumerations as int");

/* out: an enumeration whose values v has.  The error lists the names there are: the caller
 * mostly passes on what a person typed. */
static tinker_status parse_name(const char *what, const struct name *v, const char *text, void *out,
                                tinker_error *err)
{
    char known[200] = "";
    size_t n = 0;
    for (const struct name *at = v; text && at->text; at++)
        if (strcasecmp(at->text, text) == 0) {
            memcpy(out, &at->value, sizeof(at->value));
            return TINKER_OK;
        }
    /* snprintf() returns what it would have written, so n may pass the end: the loop stops there,
     * and the list is cut. */
    for (; v->text && n < sizeof(known); v++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", v->text);
    return err_set(err, TINKER_EINVAL, "\"%.64s\" is not a known %s; known are %s",
                   text ? text : "", what, known);
}

const char *tinker_dtype_name(tinker_dtype value)
{
    return find_name(dtypes, (int)value);
}

tinker_status tinker_dtype_parse(const char *text, tinker_dtype *out, tinker_error *err)
{
    return parse_name("element type", dtypes, text, out, err);
}

const char *tinker_stop_reason_name(tinker_stop_reason value)
{
    return find_name(stop_reasons, (int)value);
}

tinker_status tinker_stop_reason_parse(const char *text, tinker_stop_reason *out, tinker_error *err)
{
    return parse_name("stop reason", stop_reasons, text, out, err);
}

const char *tinker_queue_state_name(tinker_queue_state value)
{
    return find_name(queue_states, (int)value);
}

tinker_status tinker_queue_state_parse(const char *text, tinker_queue_state *out, tinker_error *err)
{
    return parse_name("queue state", queue_states, text, out, err);
}

const char *tinker_category_name(int value)
{
    return find_name(categories, value);
}

tinker_status tinker_category_parse(const char *text, int *out, tinker_error *err)
{
    return parse_name("error category", categories, text, out, err);
}

const char *tinker_severity_name(tinker_severity value)
{
    return find_name(severities, (int)value);
}

tinker_status tinker_severity_parse(const char *text, tinker_severity *out, tinker_error *err)
{
    return parse_name("severity", severities, text, out, err);
}

const char *tinker_log_level_name(tinker_log_level value)
{
    return find_name(log_levels, (int)value);
}

tinker_status tinker_log_level_parse(const char *text, tinker_log_level *out, tinker_error *err)
{
    return parse_name("log level", log_levels, text, out, err);
}

const char *tinker_scope_name(tinker_scope value)
{
    return find_name(scopes, (int)value);
}

tinker_status tinker_scope_parse(const char *text, tinker_scope *out, tinker_error *err)
{
    return parse_name("scope", scopes, text, out, err);
}

const char *tinker_checkpoint_kind_name(tinker_checkpoint_kind value)
{
    return find_name(checkpoint_kinds, (int)value);
}

tinker_status tinker_checkpoint_kind_parse(const char *text, tinker_checkpoint_kind *out,
                                           tinker_error *err)
{
    return parse_name("checkpoint kind", checkpoint_kinds, text, out, err);
}

const char *tinker_billing_kind_name(tinker_billing_kind value)
{
    return find_name(billing_kinds, (int)value);
}

tinker_status tinker_billing_kind_parse(const char *text, tinker_billing_kind *out,
                                        tinker_error *err)
{
    return parse_name("billing kind", billing_kinds, text, out, err);
}

const char *tinker_breaker_state_name(tinker_breaker_state value)
{
    return find_name(breaker_states, (int)value);
}

tinker_status tinker_breaker_state_parse(const char *text, tinker_breaker_state *out,
                                         tinker_error *err)
{
    return parse_name("breaker state", breaker_states, text, out, err);
}
