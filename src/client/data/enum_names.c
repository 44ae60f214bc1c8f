/* enum_names.c - see <tinker/names.h>.  One table per enumeration. */
#include <tinker/account.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/rest.h>
#include <tinker/service.h>
#include <tinker/extra/breaker.h>

#include <string.h>
#include <strings.h>

struct name {
    const char *text;
    int value;
};

/* The first of a value is its name; others are read, too.  The end has no text. */
static const struct name dtypes[] = {
    { "float32", TINKER_FLOAT32 },   { "int64", TINKER_INT64 },
    { "int32", TINKER_INT32 },       { "uint32", TINKER_UINT32 },
    { "uint64", TINKER_UINT64 },     { "float64", TINKER_FLOAT64 },
    { "bfloat16", TINKER_BFLOAT16 }, { NULL, 0 }
};
static const struct name stop_reasons[] = { { "stop", TINKER_STOP_STOP },
                                            { "length", TINKER_STOP_LENGTH },
                                            { NULL, 0 } };
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

static const char *name_of(const struct name *v, int value)
{
    for (; v->text; v++)
        if (v->value == value)
            return v->text;
    return "unknown";
}

_Static_assert(sizeof(tinker_dtype) == sizeof(int) && sizeof(tinker_scope) == sizeof(int),
               "value_of() writes enumerations as int");

/* out: an enumeration whose values v has. */
static int value_of(const struct name *v, const char *text, void *out)
{
    for (; text && v->text; v++)
        if (strcasecmp(v->text, text) == 0) {
            memcpy(out, &v->value, sizeof(v->value));
            return 1;
        }
    return 0;
}

const char *tinker_dtype_name(tinker_dtype value)
{
    return name_of(dtypes, (int)value);
}

int tinker_dtype_parse(const char *text, tinker_dtype *out)
{
    return value_of(dtypes, text, out);
}

const char *tinker_stop_reason_name(tinker_stop_reason value)
{
    return name_of(stop_reasons, (int)value);
}

int tinker_stop_reason_parse(const char *text, tinker_stop_reason *out)
{
    return value_of(stop_reasons, text, out);
}

const char *tinker_queue_state_name(tinker_queue_state value)
{
    return name_of(queue_states, (int)value);
}

int tinker_queue_state_parse(const char *text, tinker_queue_state *out)
{
    return value_of(queue_states, text, out);
}

const char *tinker_category_name(int value)
{
    return name_of(categories, value);
}

int tinker_category_parse(const char *text, int *out)
{
    return value_of(categories, text, out);
}

const char *tinker_severity_name(tinker_severity value)
{
    return name_of(severities, (int)value);
}

int tinker_severity_parse(const char *text, tinker_severity *out)
{
    return value_of(severities, text, out);
}

const char *tinker_log_level_name(tinker_log_level value)
{
    return name_of(log_levels, (int)value);
}

int tinker_log_level_parse(const char *text, tinker_log_level *out)
{
    return value_of(log_levels, text, out);
}

const char *tinker_scope_name(tinker_scope value)
{
    return name_of(scopes, (int)value);
}

int tinker_scope_parse(const char *text, tinker_scope *out)
{
    return value_of(scopes, text, out);
}

const char *tinker_checkpoint_kind_name(tinker_checkpoint_kind value)
{
    return name_of(checkpoint_kinds, (int)value);
}

int tinker_checkpoint_kind_parse(const char *text, tinker_checkpoint_kind *out)
{
    return value_of(checkpoint_kinds, text, out);
}

const char *tinker_billing_kind_name(tinker_billing_kind value)
{
    return name_of(billing_kinds, (int)value);
}

int tinker_billing_kind_parse(const char *text, tinker_billing_kind *out)
{
    return value_of(billing_kinds, text, out);
}

const char *tinker_breaker_state_name(tinker_breaker_state value)
{
    return name_of(breaker_states, (int)value);
}

int tinker_breaker_state_parse(const char *text, tinker_breaker_state *out)
{
    return value_of(breaker_states, text, out);
}
