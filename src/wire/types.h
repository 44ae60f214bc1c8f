/* types.h - the requests and answers of the Tinker API as plain structs.
 *
 * One struct per JSON type of the protocol, with the protocol's field names.  Where a public
 * struct of <tinker/data.h>, <tinker/rest.h> or <tinker/extra/account.h> holds the same values it
 * is the wire struct: its table in *_types.c says which member a key belongs to.  A NULL string,
 * `has` 0, a NULL sub-struct pointer or a json_str with s NULL means null or absent.
 * `type` literals have no member: the codec writes and checks them.
 *
 * The structs only refer to memory.  After decoding, everything lives in the arena
 * given to the decoder; nothing points into the decoded input. */
#ifndef WIRE_TYPES_H
#define WIRE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/rest.h>
#include <tinker/extra/account.h>
#include "json/json.h"

/* ---- parts ----------------------------------------------------------------------- */

struct wire_opt_int {
    int has;
    int64_t value;
};
struct wire_opt_double {
    int has;
    double value;
};
struct wire_opt_bool {
    int has;
    bool value;
};
/* Microseconds since 1970 UTC; a text without offset is `naive` and read as UTC. */
struct wire_time {
    int has;
    bool naive;
    int64_t us;
};
struct wire_strings {
    const char *const *v;
    size_t n;
};
/* Object of texts, for example user_metadata in answers. */
struct wire_named_strings {
    int has;
    const tinker_named_string *v;
    size_t n;
};
/* Object of numbers, for example metrics. */
struct wire_numbers {
    int has;
    const tinker_named_number *v;
    size_t n;
};

/* ---- session and configuration --------------------------------------------------- */

struct wire_empty { /* auth/token request, and the answer {} */
    char unused;
};

struct wire_client_config_request { /* also of client/dynamic_config */
    const char *sdk_version;
};

struct wire_client_config_response { /* defaults: wire_client_config_defaults */
    bool pjwt_auth_enabled;
    const char *credential_default_source;
    int64_t sample_dispatch_bytes_semaphore_size;
    int64_t inflight_response_bytes_semaphore_size;
    bool parallel_fwdbwd_chunks;
    bool proto_compress_fwdbwd;
    int64_t fwdbwd_max_chunk_len;
    int64_t fwdbwd_max_chunk_bytes_count;
    int64_t fwdbwd_dispatch_bytes_semaphore_size;
    int64_t billing_exception_max_pause_duration_sec;
    bool sample_no_retries;
    bool sample_enable_stuck_detection;
    int64_t sample_max_concurrent_requests;
    bool use_pyqwest_transport;
    bool create_model_via_load_weights;
    struct wire_opt_bool stream_sample; /* not of the reference: POST stream_sample is there */
    struct wire_opt_bool sample_join_sampling_session; /* since 0.36 */
    struct wire_opt_bool sample_use_retrieve_futures;  /* since 0.26 */
    struct wire_opt_bool custom_loss_server_side;      /* since 0.36 */
};
extern const struct wire_client_config_response wire_client_config_defaults;

struct wire_client_dynamic_config_response {
    int64_t refresh_interval_sec;               /* default 300 */
    struct wire_opt_bool sample_cancel_enabled; /* since 0.36: POST cancel_future is there */
};

struct wire_create_session_request {
    struct wire_strings tags;
    struct json_str user_metadata; /* any JSON object */
    const char *sdk_version;
    const char *project_id;
    const char *display_name;
};
struct wire_create_session_response {
    const char *info_message, *warning_message, *error_message;
    const char *session_id;
};

struct wire_session_heartbeat_request {
    const char *session_id;
};
struct wire_session_heartbeat_response {
    char unused;
};

struct wire_create_sampling_session_request {
    const char *session_id;
    int64_t sampling_session_seq_id;
    const char *base_model;
    const char *model_path;
};
struct wire_create_sampling_session_response {
    const char *sampling_session_id;
};
struct wire_join_sampling_session_request {
    const char *sampling_session_id;
};
struct wire_join_sampling_session_response {
    int64_t client_counter; /* the session's first client is 0 */
};
struct wire_loss_input { /* a parameter of a custom loss */
    const char *name;
    int64_t rank;
};
struct wire_create_custom_loss_request {
    const char *session_id;
    int64_t custom_loss_seq_id; /* of the session: a retry has the same */
    const char *name;
    const struct wire_loss_input *inputs;
    size_t n_inputs;
    struct json_str graph; /* read by graph/graph.h */
};
struct wire_create_custom_loss_response {
    const char *loss_id;
};

/* ---- service --------------------------------------------------------------------- */

struct wire_health_response {
    char unused; /* {"status":"ok"} */
};
struct wire_auth_token_response {
    const char *jwt;
};
struct wire_untyped_api_future {
    const char *request_id;
    const char *model_id;
};
struct wire_error_response { /* body of an error status, as our server sends it */
    const char *detail;
};

/* ---- models ---------------------------------------------------------------------- */

struct wire_create_model_request {
    const char *session_id;
    int64_t model_seq_id;
    const char *base_model;
    struct json_str user_metadata;
    const tinker_lora *lora_config;
    const struct wire_optimizer_config {
        const char *type; /* "adamw", "dimuon" */
        struct wire_opt_int version;
    } * optimizer_config; /* NULL: adamw */
};
struct wire_create_model_response {
    const char *model_id;
};
struct wire_get_info_request {
    const char *model_id;
};
struct wire_model_data {
    const char *arch, *model_name, *tokenizer_id;
    const char *base_model; /* read, never written */
};
struct wire_get_info_response {
    struct wire_model_data model_data;
    const char *model_id;
    struct wire_opt_bool is_lora;
    struct wire_opt_int lora_rank;
    const char *model_name;
    const struct wire_optimizer_config *optimizer_config; /* NULL: adamw */
};
struct wire_unload_model_request {
    const char *model_id;
};
struct wire_unload_model_response {
    const char *model_id;
};

/* ---- training -------------------------------------------------------------------- */

/* Of forward_backward and, with forward_only, of forward. */
struct wire_forward_backward_request {
    const char *model_id;
    struct wire_opt_int seq_id;
    const tinker_datum *data;
    size_t n_data;
    tinker_loss loss;
    bool forward_only;
    bool shaped; /* not on the wire: protobuf of a tensor without shape says [n] */
};
struct wire_optim_step_request {
    const tinker_adam *adam_params;   /* one of the two */
    struct json_str optimizer_params; /* see optimizer.h */
    const char *model_id;
    struct wire_opt_int seq_id;
};
struct wire_optim_step_response {
    struct wire_numbers metrics;
};

/* ---- weights --------------------------------------------------------------------- */

struct wire_load_weights_request {
    const char *model_id; /* either this and seq_id … */
    struct wire_opt_int seq_id;
    const char *session_id; /* … or this and model_seq_id */
    struct wire_opt_int model_seq_id;
    const char *base_model;
    struct json_str user_metadata;
    const char *path;
    bool optimizer;
    const struct wire_optimizer_config *optimizer_config; /* of a new model; NULL: adamw */
    const char *weights_access_token;
};
struct wire_load_weights_response {
    const char *path, *model_id;
};
struct wire_save_weights_request {
    const char *model_id;
    const char *path;
    struct wire_opt_int seq_id;
    struct wire_opt_int ttl_seconds;
    bool overwrite;
    struct wire_named_strings user_metadata;
};
struct wire_save_weights_response {
    const char *path;
};
struct wire_save_weights_for_sampler_request {
    const char *model_id;
    const char *path;
    struct wire_opt_int sampling_session_seq_id;
    struct wire_opt_int seq_id;
    struct wire_opt_int ttl_seconds;
    struct wire_named_strings user_metadata;
};
struct wire_save_weights_for_sampler_response {
    const char *path, *sampling_session_id;
};
struct wire_save_weights_external_request {
    const char *model_id;
    const char *path;
    struct wire_opt_int seq_id;
    struct wire_opt_int ttl_seconds;
    struct wire_strings age_encryption_recipients;
};
struct wire_save_weights_external_response {
    const char *path;
    struct wire_opt_int size_bytes;
};
struct wire_copy_weights_request { /* a project, or a session and its model number */
    const char *session_id;
    struct wire_opt_int model_seq_id;
    const char *destination_project_id;
    const char *source_path;
    struct wire_opt_int ttl_seconds;
    const char *weights_access_token;
};
struct wire_copy_weights_response {
    const char *tinker_path;
};
struct wire_weights_info_request {
    const char *tinker_path;
};
struct wire_weights_info_response {
    const char *base_model;
    bool is_lora;
    struct wire_opt_int lora_rank;
    struct wire_opt_bool train_unembed, train_mlp, train_attn;
    const struct wire_optimizer_config *optimizer_config; /* NULL: adamw */
};

/* ---- sampling -------------------------------------------------------------------- */

struct wire_sample_request {
    int64_t num_samples; /* default 1 */
    tinker_model_input prompt;
    tinker_sampling_params sampling_params;
    const char *base_model;
    const char *model_path;
    const char *sampling_session_id;
    struct wire_opt_int seq_id;
    struct wire_opt_bool prompt_logprobs;
    int64_t topk_prompt_logprobs;
    struct wire_opt_int topk_sample_logprobs, prompt_alt_tokens_k, prompt_logprobs_last_n;
    const tinker_tensor *target_prompt_logprobs; /* NULL: not asked for */
    struct wire_opt_bool record_stability_info;
};

/* ---- futures --------------------------------------------------------------------- */

struct wire_future_retrieve_request {
    const char *request_id;
    bool allow_metadata_only;
};
/* retrieve_futures: one poll for all samples of a sampler. */
struct wire_sampling_target {
    const char *sampling_session_id;
    int64_t cloned_sampler_id; /* 0: the original client */
};
struct wire_futures_retrieve_request {
    struct wire_sampling_target target;
    int64_t prev_cursor;
    struct wire_opt_double timeout; /* seconds that a poll may be held */
    struct wire_strings retrieved_request_ids;
};
struct wire_try_again_response {
    const char *request_id;
    const char *queue_state; /* "active", "paused_capacity", "paused_rate_limit" */
    const char *queue_state_reason;
};
struct wire_request_failed_response {
    const char *error;
    const char *category; /* "unknown", "server", "user" */
};
struct wire_complete_metadata_response {
    struct wire_opt_int response_payload_size;
};

/* ---- sessions, runs, checkpoints ------------------------------------------------- */

struct wire_finish_session_request {
    struct wire_finish_reason {
        const char *type; /* "success", "errored", "interrupted" */
    } reason;
    const char *detail;
};
struct wire_session_search_cursor {
    struct wire_time last_created_at;
    const char *last_session_id;
};
struct wire_session_search_request {
    const char *session_id;
    struct wire_strings project_ids; /* none: any */
    struct wire_named_strings user_metadata;
    const char *display_name;
    struct wire_search_owner {
        const char *type; /* "own", "accessible", "user" */
        struct wire_strings owner_urns;
    } owner;
    const struct wire_session_status_query {
        const char *type;            /* "active", "cancelled", "failed", "client_finished" */
        struct wire_strings reasons; /* none: any */
    } * statuses;
    size_t n_statuses; /* 0: any */
    int64_t limit;     /* default 50 */
    const struct wire_session_search_cursor *cursor;
};
struct wire_session_status {
    const char *type; /* "active", "cancelled", "failed", "client_finished"; NULL: newer */
    const struct wire_status_reason {
        const char *type; /* as of a finish, or "request", "training_run", "sampling_session" */
        const char *request_id, *request_type, *training_run_id, *sampling_session_id;
    } * reason;
    const char *detail;
    const char *category, *message; /* of a failure: "user" or "internal", and why */
};
struct wire_session_summary {
    const char *session_id;
    struct wire_time created_at;
    const char *owner, *project_id;
    const struct wire_session_status *status;
    int64_t checkpoints_count;
    const char *display_name;
    struct wire_named_strings user_metadata;
    struct wire_opt_int checkpoint_storage_bytes;
};
struct wire_session_search_response {
    const struct wire_session_summary *sessions;
    size_t n_sessions;
    const struct wire_session_search_cursor *next_cursor;
};
struct wire_checkpoint_search_cursor {
    struct wire_time last_created_at;
    const char *last_checkpoint_uuid; /* what the service says it is */
};
struct wire_checkpoint_search_request {
    struct wire_strings project_ids, base_models; /* none: any */
    struct wire_named_strings user_metadata;
    const char *checkpoint_type; /* NULL: any */
    struct wire_search_owner owner;
    int64_t limit; /* default 50 */
    const struct wire_checkpoint_search_cursor *cursor;
};
struct wire_checkpoint_search_response {
    const tinker_checkpoint *checkpoints;
    size_t n_checkpoints;
    const struct wire_checkpoint_search_cursor *next_cursor;
};
struct wire_checkpoint_usage {
    const char *project_id, *org_user_urn, *user_email, *user_name;
    int64_t checkpoint_count, size_bytes;
    double size_gigabytes;
    struct wire_opt_double estimated_monthly_cost_usd;
};
struct wire_checkpoint_usage_response {
    struct wire_opt_double effective_rate_usd_per_gigabyte_month;
    const struct wire_checkpoint_usage *data;
    size_t n_data;
};
struct wire_ttl_request {
    struct wire_opt_int ttl_seconds; /* null is sent, and removes the limit */
};
struct wire_project_request {
    const char *project_id;
};
struct wire_trace_export_response {
    const char *status; /* "pending", "ready", "failed" */
    const char *url, *error;
};
struct wire_whoami_response { /* built from JWT claims; never on the wire */
    const char *user_urn, *email;
    const char *org_urn;
};

/* ---- billing --------------------------------------------------------------------- */

struct wire_get_billing_usage_request { /* sent as a query string */
    struct wire_time starting_on, ending_before;
};

/* ---- telemetry ------------------------------------------------------------------- */

enum wire_event_kind {
    WIRE_EVENT_SESSION_START,
    WIRE_EVENT_SESSION_END,
    WIRE_EVENT_UNHANDLED_EXCEPTION,
    WIRE_EVENT_GENERIC
};
struct wire_telemetry_event {
    int kind;                  /* enum wire_event_kind */
    const char *error_message; /* UNHANDLED_EXCEPTION */
    const char *error_type;    /* UNHANDLED_EXCEPTION */
    const char *duration;      /* SESSION_END: "0:00:03.654322" */
    const char *event_id;
    const char *event_name; /* GENERIC */
    int64_t event_session_index;
    const char *severity; /* "DEBUG" "INFO" "WARNING" "ERROR" "CRITICAL" */
    struct wire_time timestamp;
    const char *traceback;      /* UNHANDLED_EXCEPTION, may be NULL */
    struct json_str event_data; /* GENERIC: any JSON object */
};
struct wire_telemetry_send_request {
    const struct wire_telemetry_event *events;
    size_t n_events;
    const char *platform, *sdk_version, *session_id, *process_uuid;
};
struct wire_telemetry_response {
    char unused; /* {"status":"accepted"} */
};

#endif
