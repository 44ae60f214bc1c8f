/* rest_types.c - runs, checkpoints, sessions, billing and audit, as tables. */
#include "wire/json/describe.h"

#define REQ  WIRE_REQUIRED
#define NUL  WIRE_NULLABLE
#define SHOW (WIRE_NULLABLE | WIRE_SHOW_NULL)

/* ---- sessions and samplers ------------------------------------------------------- */

/* GET /api/v1/sessions */
#define T struct wire_list_sessions_response
static const struct wire_field list_sessions[] = {
    { WIRE_FIELD(T, sessions, WIRE_STRINGS, REQ) },
};
const struct wire_type wire_list_sessions_response = { .name = "ListSessionsResponse",
                                                       WIRE_TABLE(T, list_sessions) };
#undef T

/* GET /api/v1/sessions/{id} */
#define T struct wire_get_session_response
static const struct wire_field get_session[] = {
    { WIRE_FIELD(T, training_run_ids, WIRE_STRINGS, REQ) },
    { WIRE_FIELD(T, sampler_ids, WIRE_STRINGS, REQ) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { WIRE_FIELD(T, display_name, WIRE_STRING, NUL) },
};
const struct wire_type wire_get_session_response = { .name = "GetSessionResponse",
                                                     WIRE_TABLE(T, get_session) };
#undef T

/* GET /api/v1/samplers/{id} */
#define T struct wire_get_sampler_response
static const struct wire_field get_sampler[] = {
    { WIRE_FIELD(T, sampler_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
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

static const char *const trace_states[] = { "pending", "ready", "failed", NULL };

/* GET /api/v1/sessions/{id}/trace_export */
#define T struct wire_trace_export_response
static const struct wire_field trace_export[] = {
    { WIRE_FIELD(T, status, WIRE_WORD, REQ), .words = trace_states },
    { WIRE_FIELD(T, url, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, error, WIRE_STRING, NUL) },
};
const struct wire_type wire_trace_export_response = { .name = "TraceExportResponse",
                                                      WIRE_TABLE(T, trace_export) };
#undef T

/* ---- checkpoints and runs -------------------------------------------------------- */

/* Where a page stands in a listing. */
#define T struct wire_cursor
static const struct wire_field cursor[] = {
    { WIRE_FIELD(T, offset, WIRE_INT, REQ) },
    { WIRE_FIELD(T, limit, WIRE_INT, REQ) },
    { WIRE_FIELD(T, total_count, WIRE_INT, REQ) },
};
const struct wire_type wire_cursor = { .name = "Cursor", WIRE_TABLE(T, cursor) };
#undef T

static const char *const checkpoint_types[] = { "training", "sampler", "external", NULL };

/* Of the listings below; times are UTC. */
#define T struct wire_checkpoint
static const struct wire_field checkpoint[] = {
    { WIRE_FIELD(T, checkpoint_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, checkpoint_type, WIRE_WORD, REQ), .words = checkpoint_types },
    { WIRE_FIELD(T, time, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, tinker_path, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, size_bytes, WIRE_OPT_INT, SHOW) },
    { .name = "public", .kind = WIRE_BOOL, .offset = offsetof(T, is_public) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { WIRE_FIELD(T, expires_at, WIRE_TIME, SHOW) },
};
const struct wire_type wire_checkpoint = { .name = "Checkpoint", WIRE_TABLE(T, checkpoint) };
#undef T

/* GET /api/v1/checkpoints, and GET /api/v1/training_runs/{run}/checkpoints */
#define T struct wire_checkpoints_list_response
static const struct wire_field checkpoints_list[] = {
    { WIRE_FIELD(T, checkpoints, WIRE_LIST, REQ), .aux = offsetof(T, n_checkpoints),
      .type = &wire_checkpoint },
    { WIRE_FIELD(T, cursor, WIRE_POINTER, SHOW), .type = &wire_cursor },
};
const struct wire_type wire_checkpoints_list_response = { .name = "CheckpointsListResponse",
                                                          WIRE_TABLE(T, checkpoints_list) };
#undef T

/* GET /api/v1/training_runs/{run} */
#define T struct wire_training_run
static const struct wire_field training_run[] = {
    { WIRE_FIELD(T, training_run_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, model_owner, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, is_lora, WIRE_BOOL, REQ) },
    { WIRE_FIELD(T, corrupted, WIRE_BOOL, 0) },
    { WIRE_FIELD(T, lora_rank, WIRE_OPT_INT, SHOW) },
    { WIRE_FIELD(T, last_request_time, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, last_checkpoint, WIRE_POINTER, SHOW), .type = &wire_checkpoint },
    { WIRE_FIELD(T, last_sampler_checkpoint, WIRE_POINTER, SHOW), .type = &wire_checkpoint },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, SHOW) },
};
const struct wire_type wire_training_run = { .name = "TrainingRun", WIRE_TABLE(T, training_run) };
#undef T

/* GET /api/v1/training_runs */
#define T struct wire_training_runs_response
static const struct wire_field training_runs[] = {
    { WIRE_FIELD(T, training_runs, WIRE_LIST, REQ), .aux = offsetof(T, n_training_runs),
      .type = &wire_training_run },
    { WIRE_FIELD(T, cursor, WIRE_STRUCT, REQ), .type = &wire_cursor },
};
const struct wire_type wire_training_runs_response = { .name = "TrainingRunsResponse",
                                                       WIRE_TABLE(T, training_runs) };
#undef T

/* PUT /api/v1/training_runs/{run}/checkpoints/{id}/ttl; null: never expires, and must be said. */
#define T struct wire_ttl_request
static const struct wire_field ttl_request[] = {
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, SHOW) },
};
const struct wire_type wire_ttl_request = { .name = "TtlRequest", WIRE_TABLE(T, ttl_request) };
#undef T

/* GET /api/v1/training_runs/{run}/checkpoints/{id}/archive: a redirect, or this. */
#define T struct wire_checkpoint_archive_url_response
static const struct wire_field archive_url[] = {
    { WIRE_FIELD(T, url, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, expires, WIRE_TIME, REQ) },
};
const struct wire_type wire_checkpoint_archive_url_response = { .name =
                                                                    "CheckpointArchiveUrlResponse",
                                                                WIRE_TABLE(T, archive_url) };
#undef T

/* ---- audit and identity ---------------------------------------------------------- */

#define T struct wire_audit_log_entry
static const struct wire_field audit_log_entry[] = {
    { WIRE_FIELD(T, timestamp, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, event, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, event_details, WIRE_OBJECT_TEXT, NUL) },
    { WIRE_FIELD(T, model_id, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, tinker_path, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, purpose, WIRE_STRING, SHOW) },
};
static const struct wire_type wire_audit_log_entry = { .name = "AuditLogEntry",
                                                       WIRE_TABLE(T, audit_log_entry) };
#undef T

/* GET /api/v1/audit */
#define T struct wire_audit_log_response
static const struct wire_field audit_log[] = {
    { WIRE_FIELD(T, entries, WIRE_LIST, REQ), .aux = offsetof(T, n_entries),
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
    { WIRE_FIELD(T, starting_on, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, ending_before, WIRE_TIME, REQ) },
};
const struct wire_type wire_get_billing_usage_request = { .name = "GetBillingUsageRequest",
                                                          WIRE_TABLE(T, billing_usage_request) };
#undef T

static const char *const billing_kinds[] = { "training",   "sampling_prefill", "sampling_sample",
                                             "checkpoint", "storage",          NULL };
enum {
    IN_TOKENS = 1 << WIRE_BILLING_TRAINING | 1 << WIRE_BILLING_SAMPLING_PREFILL |
                1 << WIRE_BILLING_SAMPLING_SAMPLE
};
/* What was paid for; `type` says which figures there are. */
#define T struct wire_billing_event_info
static const struct wire_field billing_event_info[] = {
    { .name = "type",
      .kind = WIRE_ENUM,
      .flags = REQ | WIRE_OPEN,
      .offset = offsetof(T, kind),
      .words = billing_kinds },
    { WIRE_FIELD(T, cached, WIRE_BOOL, REQ), .variants = 1 << WIRE_BILLING_SAMPLING_PREFILL },
    { WIRE_FIELD(T, token_count, WIRE_INT, REQ), .variants = IN_TOKENS },
    { WIRE_FIELD(T, count, WIRE_INT, REQ), .variants = 1 << WIRE_BILLING_CHECKPOINT },
    { WIRE_FIELD(T, gigabyte_hours, WIRE_DOUBLE, REQ), .variants = 1 << WIRE_BILLING_STORAGE },
};
static const struct wire_type wire_billing_event_info = { .name = "BillingEventInfo",
                                                          WIRE_TABLE(T, billing_event_info),
                                                          .tag = "type" };
#undef T

#define T struct wire_billing_usage_event
static const struct wire_field billing_usage_event[] = {
    { WIRE_FIELD(T, bucket_start, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, bucket_end, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_name, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, project_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, estimated_cost_usd, WIRE_OPT_DOUBLE, NUL) },
    { WIRE_FIELD(T, effective_rate_usd_per_million_tokens, WIRE_OPT_DOUBLE, NUL) },
    { WIRE_FIELD(T, effective_rate_usd_per_gigabyte_month, WIRE_OPT_DOUBLE, NUL) },
    { WIRE_FIELD(T, event_info, WIRE_STRUCT, REQ), .type = &wire_billing_event_info },
};
static const struct wire_type wire_billing_usage_event = { .name = "BillingUsageEvent",
                                                           WIRE_TABLE(T, billing_usage_event) };
#undef T

#define T struct wire_billing_usage_session
static const struct wire_field billing_usage_session[] = {
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, SHOW) },
};
static const struct wire_type wire_billing_usage_session = { .name = "BillingUsageSession",
                                                             WIRE_TABLE(T, billing_usage_session) };
#undef T

#define T struct wire_billing_usage_response
static const struct wire_field billing_usage_response[] = {
    { WIRE_FIELD(T, data, WIRE_LIST, REQ), .aux = offsetof(T, n_data),
      .type = &wire_billing_usage_event },
    { WIRE_FIELD(T, sessions, WIRE_MAP, 0), .aux = offsetof(T, n_sessions),
      .type = &wire_billing_usage_session },
    { WIRE_FIELD(T, cost_data_through, WIRE_TIME, NUL) },
};
const struct wire_type wire_billing_usage_response = { .name = "BillingUsageResponse",
                                                       WIRE_TABLE(T, billing_usage_response) };
#undef T
