/* rest_types.c - runs, checkpoints, sessions, billing and audit, as tables. */
#include <math.h>
#include <tinker/rest.h>
#include <tinker/extra/account.h>
#include "wire/json/describe.h"

/* SHOW: what is not given is written as null. A reader takes an absent key as well. */
#define REQ  WIRE_REQUIRED
#define NUL  WIRE_NULLABLE
#define SHOW (WIRE_NULLABLE | WIRE_SHOW_NULL)

/* ---- sessions and samplers ------------------------------------------------------- */

/* The kinds below write lists of texts as struct wire_strings, enumerations as int: public structs
 * are read in place, without a copy from a struct of types.h. */
_Static_assert(sizeof(tinker_strings) == sizeof(struct wire_strings) &&
                   offsetof(tinker_strings, n) == offsetof(struct wire_strings, n),
               "tinker_strings is read as struct wire_strings");
_Static_assert(sizeof(tinker_checkpoint_kind) == sizeof(int) &&
                   sizeof(tinker_billing_kind) == sizeof(int),
               "enumerations are read as int");

/* GET /api/v1/sessions */
static const struct wire_field list_sessions[] = {
    /* No offset: the struct is the list. */
    { .name = "sessions", .kind = WIRE_STRINGS, .flags = REQ },
};
const struct wire_type wire_list_sessions_response = { .name = "ListSessionsResponse",
                                                       WIRE_TABLE(tinker_strings, list_sessions) };

/* GET /api/v1/sessions/{id} */
#define T tinker_session
static const struct wire_field get_session[] = {
    /* The ids of models and sampling sessions, "<session>:train:0", "<session>:sample:0". */
    { WIRE_FIELD(T, training_run_ids, WIRE_STRINGS, REQ) },
    { WIRE_FIELD(T, sampler_ids, WIRE_STRINGS, REQ) },
    /* Newer than the ids, and left out where a service does not know it. */
    { WIRE_FIELD(T, user_metadata, WIRE_STRING_PAIRS, NUL), .aux = offsetof(T, n_user_metadata) },
    { WIRE_FIELD(T, display_name, WIRE_STRING, NUL) },
};
const struct wire_type wire_get_session_response = { .name = "GetSessionResponse",
                                                     WIRE_TABLE(T, get_session) };
#undef T

/* GET /api/v1/samplers/{id} */
#define T tinker_sampler_info
static const struct wire_field get_sampler[] = {
    { WIRE_FIELD(T, sampler_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
    /* null: the base model itself is sampled from. */
    { WIRE_FIELD(T, model_path, WIRE_STRING, SHOW) },
};
const struct wire_type wire_get_sampler_response = { .name = "GetSamplerResponse",
                                                     WIRE_TABLE(T, get_sampler) };
#undef T

/* PUT /api/v1/sessions/{id}/project */
#define T struct wire_project_request
static const struct wire_field project_request[] = {
    { WIRE_FIELD(T, project_id, WIRE_STRING, REQ) },
};
const struct wire_type wire_project_request = { .name = "ProjectRequest",
                                                WIRE_TABLE(T, project_request) };
#undef T

/* url comes with "ready", error with "failed". */
static const char *const trace_states[] = { "pending", "ready", "failed", NULL };

/* GET /api/v1/sessions/{id}/trace_export */
#define T struct wire_trace_export_response
static const struct wire_field trace_export[] = {
    /* The first GET starts the export, the next ones tell how far it is. */
    { WIRE_FIELD(T, status, WIRE_WORD, REQ), .words = trace_states },
    { WIRE_FIELD(T, url, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, error, WIRE_STRING, NUL) },
};
const struct wire_type wire_trace_export_response = { .name = "TraceExportResponse",
                                                      WIRE_TABLE(T, trace_export) };
#undef T

/* ---- checkpoints and runs -------------------------------------------------------- */

/* Where a page stands in a listing. */
#define T tinker_cursor
static const struct wire_field cursor[] = {
    { WIRE_FIELD(T, offset, WIRE_INT, REQ) },
    { WIRE_FIELD(T, limit, WIRE_INT, REQ) },
    { WIRE_FIELD(T, total_count, WIRE_INT, REQ) },
};
const struct wire_type wire_cursor = { .name = "Cursor", WIRE_TABLE(T, cursor) };
#undef T

/* In the order of tinker_checkpoint_kind. */
static const char *const checkpoint_types[] = { "training", "sampler", "external", NULL };

/* Of the listings below; times are UTC. */
#define T tinker_checkpoint
static const struct wire_field checkpoint[] = {
    /* "weights/<name>": two segments of a URL, which a server has to route as such. */
    { WIRE_MEMBER(T, "checkpoint_id", id, WIRE_STRING, REQ) },
    { WIRE_MEMBER(T, "checkpoint_type", kind, WIRE_ENUM, REQ), .words = checkpoint_types },
    { WIRE_MEMBER(T, "time", time_us, WIRE_TIME_US, REQ) },
    { WIRE_MEMBER(T, "tinker_path", path, WIRE_STRING, REQ) },
    /* -1 in memory, null on the wire: not known. */
    { WIRE_FIELD(T, size_bytes, WIRE_INT_KNOWN, SHOW) },
    { WIRE_MEMBER(T, "public", is_public, WIRE_FLAG, 0) },
    { WIRE_FIELD(T, user_metadata, WIRE_STRING_PAIRS, NUL), .aux = offsetof(T, n_user_metadata) },
    /* null: never. */
    { WIRE_MEMBER(T, "expires_at", expires_us, WIRE_TIME_US, SHOW) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
};
static const T checkpoint_defaults = { .time_us = TINKER_NO_TIME,
                                       .size_bytes = -1,
                                       .expires_us = TINKER_NO_TIME };
const struct wire_type wire_checkpoint = { .name = "Checkpoint",
                                           WIRE_TABLE(T, checkpoint),
                                           .defaults = &checkpoint_defaults };
#undef T

/* GET /api/v1/checkpoints, and GET /api/v1/training_runs/{run}/checkpoints */
#define T tinker_checkpoints
static const struct wire_field checkpoints_list[] = {
    { WIRE_MEMBER(T, "checkpoints", items, WIRE_LIST, REQ), .aux = offsetof(T, n),
      .type = &wire_checkpoint },
    /* null in the list of one run, which has no pages. */
    { WIRE_FIELD(T, cursor, WIRE_POINTER, SHOW), .type = &wire_cursor },
};
const struct wire_type wire_checkpoints_list_response = { .name = "CheckpointsListResponse",
                                                          WIRE_TABLE(T, checkpoints_list) };
#undef T

/* GET /api/v1/training_runs/{run} */
#define T tinker_training_run
static const struct wire_field training_run[] = {
    { WIRE_MEMBER(T, "training_run_id", id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
    { WIRE_MEMBER(T, "model_owner", owner, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, is_lora, WIRE_FLAG, REQ) },
    { WIRE_FIELD(T, corrupted, WIRE_FLAG, 0) },
    { WIRE_FIELD(T, lora_rank, WIRE_INT_KNOWN, SHOW) },
    { WIRE_MEMBER(T, "last_request_time", last_request_us, WIRE_TIME_US, REQ) },
    { WIRE_FIELD(T, last_checkpoint, WIRE_POINTER, SHOW), .type = &wire_checkpoint },
    { WIRE_FIELD(T, last_sampler_checkpoint, WIRE_POINTER, SHOW), .type = &wire_checkpoint },
    { WIRE_FIELD(T, user_metadata, WIRE_STRING_PAIRS, SHOW), .aux = offsetof(T, n_user_metadata) },
};
static const T run_defaults = { .lora_rank = -1, .last_request_us = TINKER_NO_TIME };
const struct wire_type wire_training_run = { .name = "TrainingRun",
                                             WIRE_TABLE(T, training_run),
                                             .defaults = &run_defaults };
#undef T

/* GET /api/v1/training_runs */
#define T tinker_training_runs
static const struct wire_field training_runs[] = {
    { WIRE_MEMBER(T, "training_runs", items, WIRE_LIST, REQ), .aux = offsetof(T, n),
      .type = &wire_training_run },
    { WIRE_FIELD(T, cursor, WIRE_STRUCT, REQ), .type = &wire_cursor },
};
const struct wire_type wire_training_runs_response = { .name = "TrainingRunsResponse",
                                                       WIRE_TABLE(T, training_runs) };
#undef T

/* PUT /api/v1/training_runs/{run}/checkpoints/{id}/ttl; null: never expires, and must be said. */
#define T struct wire_ttl_request
static const struct wire_field ttl_request[] = {
    /* Seconds from now. */
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, SHOW) },
};
const struct wire_type wire_ttl_request = { .name = "TtlRequest", WIRE_TABLE(T, ttl_request) };
#undef T

/* GET /api/v1/training_runs/{run}/checkpoints/{id}/archive: a redirect, or this. */
#define T tinker_archive
static const struct wire_field archive_url[] = {
    /* Signed: whoever has it can download, until it expires. */
    { WIRE_FIELD(T, url, WIRE_STRING, REQ) },
    { WIRE_MEMBER(T, "expires", expires_us, WIRE_TIME_US, REQ) },
};
const struct wire_type wire_checkpoint_archive_url_response = { .name =
                                                                    "CheckpointArchiveUrlResponse",
                                                                WIRE_TABLE(T, archive_url) };
#undef T

/* The files of weights in external form, by name, and until when their addresses work. */
#define T tinker_files
static const struct wire_field external_urls[] = {
    { WIRE_MEMBER(T, "urls", files, WIRE_STRING_PAIRS, REQ), .aux = offsetof(T, n) },
    { WIRE_MEMBER(T, "expires", expires_us, WIRE_TIME_US, REQ) },
};
const struct wire_type wire_external_weights_urls_response = { .name =
                                                                   "ExternalWeightsUrlsResponse",
                                                               WIRE_TABLE(T, external_urls) };
#undef T

/* ---- audit and identity ---------------------------------------------------------- */

/* Inside the audit log; details are kept as JSON text, because each event has its own. */
#define T tinker_audit_entry
static const struct wire_field audit_log_entry[] = {
    { WIRE_MEMBER(T, "timestamp", time_us, WIRE_TIME_US, REQ) },
    { WIRE_FIELD(T, event, WIRE_STRING, REQ) },
    { WIRE_MEMBER(T, "event_details", details, WIRE_OBJECT_CSTR, NUL) },
    { WIRE_FIELD(T, model_id, WIRE_STRING, SHOW) },
    { WIRE_MEMBER(T, "tinker_path", path, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, purpose, WIRE_STRING, SHOW) },
};
static const struct wire_type wire_audit_log_entry = { .name = "AuditLogEntry",
                                                       WIRE_TABLE(T, audit_log_entry) };
#undef T

/* GET /api/v1/audit */
#define T tinker_audit
static const struct wire_field audit_log[] = {
    { WIRE_MEMBER(T, "entries", items, WIRE_LIST, REQ), .aux = offsetof(T, n),
      .type = &wire_audit_log_entry },
};
const struct wire_type wire_audit_log_response = { .name = "AuditLogResponse",
                                                   WIRE_TABLE(T, audit_log) };
#undef T

/* The claims of a JWT, which the client reads without asking anybody. */
#define T struct wire_whoami_response
static const struct wire_field whoami[] = {
    { WIRE_FIELD(T, user_urn, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, org_urn, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, email, WIRE_STRING, SHOW) },
};
const struct wire_type wire_whoami_response = { .name = "WhoamiResponse", WIRE_TABLE(T, whoami) };
#undef T

/* ---- billing --------------------------------------------------------------------- */

/* GET /api/v1/billing/usage/events: these become its query. */
#define T struct wire_get_billing_usage_request
static const struct wire_field billing_usage_request[] = {
    /* Whole hours of UTC, at most 14 days apart, says the reference; the service checks it. */
    { WIRE_FIELD(T, starting_on, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, ending_before, WIRE_TIME, REQ) },
};
const struct wire_type wire_get_billing_usage_request = { .name = "GetBillingUsageRequest",
                                                          WIRE_TABLE(T, billing_usage_request) };
#undef T

/* In the order of tinker_billing_kind. */
static const char *const billing_kinds[] = { "training",   "sampling_prefill", "sampling_sample",
                                             "checkpoint", "storage",          NULL };
/* The three kinds that count tokens have the member token_count. */
enum {
    IN_TOKENS =
        1 << TINKER_BILLING_TRAINING | 1 << TINKER_BILLING_PREFILL | 1 << TINKER_BILLING_SAMPLING
};
/* "event_info": the members of tinker_billing_event from `kind` to `gigabyte_hours`. */
struct event_info {
    tinker_billing_kind kind;
    int64_t count;
    int cached;
    double gigabyte_hours;
};
#define INFO_OFFSET(m) (offsetof(tinker_billing_event, m) - offsetof(tinker_billing_event, kind))
_Static_assert(INFO_OFFSET(count) == offsetof(struct event_info, count) &&
                   INFO_OFFSET(cached) == offsetof(struct event_info, cached) &&
                   INFO_OFFSET(gigabyte_hours) == offsetof(struct event_info, gigabyte_hours),
               "struct event_info is a part of tinker_billing_event");
#define T struct event_info
static const struct wire_field billing_event_info[] = {
    /* A newer kind of event reads as -1, without numbers, instead of failing the report. */
    { WIRE_MEMBER(T, "type", kind, WIRE_ENUM, REQ | WIRE_OPEN), .words = billing_kinds },
    { WIRE_FIELD(T, cached, WIRE_FLAG, REQ), .variants = 1 << TINKER_BILLING_PREFILL },
    /* Two keys for one member: each variant has only one of them. */
    { WIRE_MEMBER(T, "token_count", count, WIRE_INT, REQ), .variants = IN_TOKENS },
    { WIRE_FIELD(T, count, WIRE_INT, REQ), .variants = 1 << TINKER_BILLING_CHECKPOINT },
    { WIRE_FIELD(T, gigabyte_hours, WIRE_DOUBLE, REQ), .variants = 1 << TINKER_BILLING_STORAGE },
};
static const struct wire_type wire_billing_event_info = { .name = "BillingEventInfo",
                                                          WIRE_TABLE(T, billing_event_info),
                                                          .tag = "type" };
#undef T

/* One bucket of usage; amounts that are not known are NaN. */
#define T tinker_billing_event
static const struct wire_field billing_usage_event[] = {
    { WIRE_MEMBER(T, "bucket_start", start_us, WIRE_TIME_US, REQ) },
    { WIRE_MEMBER(T, "bucket_end", end_us, WIRE_TIME_US, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_name, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, project_id, WIRE_STRING, NUL) },
    /* Absent or null: NaN, so that an unknown amount is not summed up as 0. */
    { WIRE_MEMBER(T, "estimated_cost_usd", cost_usd, WIRE_DOUBLE_KNOWN, NUL) },
    { WIRE_MEMBER(T, "effective_rate_usd_per_million_tokens", million_tokens_usd, WIRE_DOUBLE_KNOWN,
                  NUL) },
    { WIRE_MEMBER(T, "effective_rate_usd_per_gigabyte_month", gigabyte_month_usd, WIRE_DOUBLE_KNOWN,
                  NUL) },
    { WIRE_MEMBER(T, "event_info", kind, WIRE_STRUCT, REQ), .type = &wire_billing_event_info },
};
static const T event_defaults = { .cost_usd = NAN,
                                  .million_tokens_usd = NAN,
                                  .gigabyte_month_usd = NAN };
static const struct wire_type wire_billing_usage_event = { .name = "BillingUsageEvent",
                                                           WIRE_TABLE(T, billing_usage_event),
                                                           .defaults = &event_defaults };
#undef T

/* By session id in the response below. */
#define T tinker_billing_session
static const struct wire_field billing_usage_session[] = {
    { WIRE_FIELD(T, user_metadata, WIRE_STRING_PAIRS, SHOW), .aux = offsetof(T, n_user_metadata) },
};
static const struct wire_type wire_billing_usage_session = { .name = "BillingUsageSession",
                                                             WIRE_TABLE(T, billing_usage_session) };
#undef T

/* The response to it: events, and by id the sessions that they name. */
#define T tinker_billing
static const struct wire_field billing_usage_response[] = {
    { WIRE_MEMBER(T, "data", events, WIRE_LIST, REQ), .aux = offsetof(T, n_events),
      .type = &wire_billing_usage_event },
    /* An object by session id in JSON, an array in C whose structs begin with the id. */
    { WIRE_FIELD(T, sessions, WIRE_MAP, 0), .aux = offsetof(T, n_sessions),
      .type = &wire_billing_usage_session },
    /* Later costs are estimates from the price list. */
    { WIRE_MEMBER(T, "cost_data_through", invoiced_until_us, WIRE_TIME_US, NUL) },
};
static const T billing_defaults = { .invoiced_until_us = TINKER_NO_TIME };
const struct wire_type wire_billing_usage_response = { .name = "BillingUsageResponse",
                                                       WIRE_TABLE(T, billing_usage_response),
                                                       .defaults = &billing_defaults };
#undef T
