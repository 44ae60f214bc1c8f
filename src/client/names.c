/* names.c - see <tinker/names.h>.  One table per enumeration. */
#include <tinker/names.h>

#include <stddef.h>
#include <strings.h>

struct name {
    const char *text;
    int value;
};

#define COUNT(table) (sizeof(table) / sizeof(*(table)))

/* The first of a value is its name; others are read, too. */
static const struct name dtypes[] = {
    { "float32", TINKER_FLOAT32 },   { "int64", TINKER_INT64 },   { "int32", TINKER_INT32 },
    { "uint32", TINKER_UINT32 },     { "uint64", TINKER_UINT64 }, { "float64", TINKER_FLOAT64 },
    { "bfloat16", TINKER_BFLOAT16 },
};
static const struct name stop_reasons[] = { { "stop", TINKER_STOP_STOP },
                                            { "length", TINKER_STOP_LENGTH } };
static const struct name queue_states[] = {
    { "unknown", TINKER_QUEUE_UNKNOWN },
    { "active", TINKER_QUEUE_ACTIVE },
    { "paused_capacity", TINKER_QUEUE_PAUSED_CAPACITY },
    { "paused_rate_limit", TINKER_QUEUE_PAUSED_RATE_LIMIT },
};
static const struct name categories[] = { { "unknown", TINKER_CATEGORY_UNKNOWN },
                                          { "server", TINKER_CATEGORY_SERVER },
                                          { "user", TINKER_CATEGORY_USER } };
static const struct name severities[] = { { "debug", TINKER_SEVERITY_DEBUG },
                                          { "info", TINKER_SEVERITY_INFO },
                                          { "warning", TINKER_SEVERITY_WARNING },
                                          { "error", TINKER_SEVERITY_ERROR },
                                          { "critical", TINKER_SEVERITY_CRITICAL } };
static const struct name log_levels[] = { { "debug", TINKER_LOG_DEBUG },
                                          { "info", TINKER_LOG_INFO },
                                          { "warning", TINKER_LOG_WARNING },
                                          { "warn", TINKER_LOG_WARNING },
                                          { "error", TINKER_LOG_ERROR } };
static const struct name scopes[] = { { "owned", TINKER_SCOPE_OWNED },
                                      { "accessible", TINKER_SCOPE_ACCESSIBLE } };
static const struct name billing_kinds[] = {
    { "training", TINKER_BILLING_TRAINING },        { "sampling_prefill", TINKER_BILLING_PREFILL },
    { "sampling_sample", TINKER_BILLING_SAMPLING }, { "checkpoint", TINKER_BILLING_CHECKPOINT },
    { "storage", TINKER_BILLING_STORAGE },
};
static const struct name breaker_states[] = { { "closed", TINKER_BREAKER_CLOSED },
                                              { "open", TINKER_BREAKER_OPEN },
                                              { "half_open", TINKER_BREAKER_HALF_OPEN } };

static const char *name_of(const struct name *v, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].value == value)
            return v[i].text;
    return "unknown";
}

/* -1: none; no value is. */
static int value_of(const struct name *v, size_t n, const char *text)
{
    for (size_t i = 0; text && i < n; i++)
        if (strcasecmp(v[i].text, text) == 0)
            return v[i].value;
    return -1;
}

const char *tinker_dtype_name(tinker_dtype value)
{
    return name_of(dtypes, COUNT(dtypes), (int)value);
}

int tinker_dtype_parse(const char *text, tinker_dtype *out)
{
    int value = value_of(dtypes, COUNT(dtypes), text);
    if (value >= 0)
        *out = (tinker_dtype)value;
    return value >= 0;
}

const char *tinker_stop_reason_name(tinker_stop_reason value)
{
    return name_of(stop_reasons, COUNT(stop_reasons), (int)value);
}

int tinker_stop_reason_parse(const char *text, tinker_stop_reason *out)
{
    int value = value_of(stop_reasons, COUNT(stop_reasons), text);
    if (value >= 0)
        *out = (tinker_stop_reason)value;
    return value >= 0;
}

const char *tinker_queue_state_name(tinker_queue_state value)
{
    return name_of(queue_states, COUNT(queue_states), (int)value);
}

int tinker_queue_state_parse(const char *text, tinker_queue_state *out)
{
    int value = value_of(queue_states, COUNT(queue_states), text);
    if (value >= 0)
        *out = (tinker_queue_state)value;
    return value >= 0;
}

const char *tinker_category_name(int value)
{
    return name_of(categories, COUNT(categories), value);
}

int tinker_category_parse(const char *text, int *out)
{
    int value = value_of(categories, COUNT(categories), text);
    if (value >= 0)
        *out = value;
    return value >= 0;
}

const char *tinker_severity_name(tinker_severity value)
{
    return name_of(severities, COUNT(severities), (int)value);
}

int tinker_severity_parse(const char *text, tinker_severity *out)
{
    int value = value_of(severities, COUNT(severities), text);
    if (value >= 0)
        *out = (tinker_severity)value;
    return value >= 0;
}

const char *tinker_log_level_name(tinker_log_level value)
{
    return name_of(log_levels, COUNT(log_levels), (int)value);
}

int tinker_log_level_parse(const char *text, tinker_log_level *out)
{
    int value = value_of(log_levels, COUNT(log_levels), text);
    if (value >= 0)
        *out = (tinker_log_level)value;
    return value >= 0;
}

const char *tinker_scope_name(tinker_scope value)
{
    return name_of(scopes, COUNT(scopes), (int)value);
}

int tinker_scope_parse(const char *text, tinker_scope *out)
{
    int value = value_of(scopes, COUNT(scopes), text);
    if (value >= 0)
        *out = (tinker_scope)value;
    return value >= 0;
}

const char *tinker_billing_kind_name(tinker_billing_kind value)
{
    return name_of(billing_kinds, COUNT(billing_kinds), (int)value);
}

int tinker_billing_kind_parse(const char *text, tinker_billing_kind *out)
{
    int value = value_of(billing_kinds, COUNT(billing_kinds), text);
    if (value >= 0)
        *out = (tinker_billing_kind)value;
    return value >= 0;
}

const char *tinker_breaker_state_name(tinker_breaker_state value)
{
    return name_of(breaker_states, COUNT(breaker_states), (int)value);
}

int tinker_breaker_state_parse(const char *text, tinker_breaker_state *out)
{
    int value = value_of(breaker_states, COUNT(breaker_states), text);
    if (value >= 0)
        *out = (tinker_breaker_state)value;
    return value >= 0;
}
