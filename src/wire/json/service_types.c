/* service_types.c - sessions, configuration, models and weights, as tables. */
#include "wire/json/describe.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

/* ---- configuration --------------------------------------------------------------- */

/* For endpoints without a body. */
const struct wire_type wire_empty = { .name = "Empty", .size = sizeof(struct wire_empty) };

/* POST /api/v1/client/config, and POST /api/v1/client/dynamic_config */
#define T struct wire_client_config_request
static const struct wire_field client_config_request[] = {
    { WIRE_FIELD(T, sdk_version, WIRE_STRING, REQ) },
};
const struct wire_type wire_client_config_request = { .name = "ClientConfigRequest",
                                                      WIRE_TABLE(T, client_config_request) };
#undef T

/* What holds when the service does not say: sizes in bytes, lengths in datums, times in
 * seconds. */
const struct wire_client_config_response wire_client_config_defaults = {
    /* The figures of the reference, so that both cut batches alike. */
    .credential_default_source = "api_key",
    .sample_dispatch_bytes_semaphore_size = 10485760,
    .inflight_response_bytes_semaphore_size = 52428800,
    .parallel_fwdbwd_chunks = true,
    .fwdbwd_max_chunk_len = 1024,
    .fwdbwd_max_chunk_bytes_count = 5000000,
    .fwdbwd_dispatch_bytes_semaphore_size = 50000000,
    .billing_exception_max_pause_duration_sec = 3600,
    .sample_enable_stuck_detection = true,
    .sample_max_concurrent_requests = 2000,
    .use_pyqwest_transport = true,
};
/* Names are the service's; those about semaphores are budgets, see client/io/budget.h. */
#define T struct wire_client_config_response
static const struct wire_field client_config_response[] = {
    /* true: exchange the API key for a JWT (auth/token) and send that from then on. */
    { WIRE_FIELD(T, pjwt_auth_enabled, WIRE_BOOL, 0) },
    /* "credential_cmd" makes a command mandatory whose output is the credential. */
    { WIRE_FIELD(T, credential_default_source, WIRE_STRING, 0) },
    /* Bytes of sample requests that are being sent, and of large results being fetched. */
    { WIRE_FIELD(T, sample_dispatch_bytes_semaphore_size, WIRE_INT, 0) },
    { WIRE_FIELD(T, inflight_response_bytes_semaphore_size, WIRE_INT, 0) },
    /* Requests of one batch go out side by side; the service orders them by seq_id. */
    { WIRE_FIELD(T, parallel_fwdbwd_chunks, WIRE_BOOL, 0) },
    /* Bodies of forward_backward as zstd. */
    { WIRE_FIELD(T, proto_compress_fwdbwd, WIRE_BOOL, 0) },
    /* Where a batch is cut: datums, and bytes as estimated in size.c, before compression. */
    { WIRE_FIELD(T, fwdbwd_max_chunk_len, WIRE_INT, 0) },
    { WIRE_FIELD(T, fwdbwd_max_chunk_bytes_count, WIRE_INT, 0) },
    { WIRE_FIELD(T, fwdbwd_dispatch_bytes_semaphore_size, WIRE_INT, 0) },
    /* How long a 402 is waited out before it becomes an error. */
    { WIRE_FIELD(T, billing_exception_max_pause_duration_sec, WIRE_INT, 0) },
    /* Of samplers: whether failed samples are tried again, whether one that nothing comes back from
     * for too long is an error, and how many requests run at once. */
    { WIRE_FIELD(T, sample_no_retries, WIRE_BOOL, 0) },
    { WIRE_FIELD(T, sample_enable_stuck_detection, WIRE_BOOL, 0) },
    { WIRE_FIELD(T, sample_max_concurrent_requests, WIRE_INT, 0) },
    /* About the HTTP library of the Python SDK; nothing here follows it. */
    { WIRE_FIELD(T, use_pyqwest_transport, WIRE_BOOL, 0) },
    /* One load_weights instead of create_model and load_weights. */
    { WIRE_FIELD(T, create_model_via_load_weights, WIRE_BOOL, 0) },
    /* What only newer services have. Absent means that the service is older and does not. */
    { WIRE_FIELD(T, stream_sample, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, sample_join_sampling_session, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, sample_use_retrieve_futures, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, custom_loss_server_side, WIRE_OPT_BOOL, NUL) },
};
const struct wire_type wire_client_config_response = { .name = "ClientConfigResponse",
                                                       WIRE_TABLE(T, client_config_response),
                                                       .defaults = &wire_client_config_defaults };
#undef T

/* The part of the configuration that may change while a client runs; it is asked for again
 * after refresh_interval_sec seconds. */
#define T struct wire_client_dynamic_config_response
static const T dynamic_defaults = { .refresh_interval_sec = 300 };
static const struct wire_field dynamic_config[] = {
    { WIRE_FIELD(T, refresh_interval_sec, WIRE_INT, 0) },
    { WIRE_FIELD(T, sample_cancel_enabled, WIRE_OPT_BOOL, NUL) },
};
const struct wire_type wire_client_dynamic_config_response = { .name =
                                                                   "ClientDynamicConfigResponse",
                                                               WIRE_TABLE(T, dynamic_config),
                                                               .defaults = &dynamic_defaults };
#undef T

/* ---- sessions -------------------------------------------------------------------- */

static const char *const word_create_session[] = { "create_session", NULL };
static const char *const word_heartbeat[] = { "session_heartbeat", NULL };
static const char *const word_create_sampling[] = { "create_sampling_session", NULL };
static const char *const word_join_sampling[] = { "join_sampling_session", NULL };
static const char *const word_custom_loss[] = { "create_custom_loss", NULL };

/* POST /api/v1/create_session */
#define T struct wire_create_session_request
static const struct wire_field create_session_request[] = {
    /* Required: [] when there are none. */
    { WIRE_FIELD(T, tags, WIRE_STRINGS, REQ) },
    { WIRE_FIELD(T, user_metadata, WIRE_OBJECT_TEXT, NUL) },
    { WIRE_FIELD(T, sdk_version, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, project_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, display_name, WIRE_STRING, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_session },
};
const struct wire_type wire_create_session_request = { .name = "CreateSessionRequest",
                                                       WIRE_TABLE(T, create_session_request) };
#undef T

/* Messages are for the user to see; only session_id is needed. */
#define T struct wire_create_session_response
static const struct wire_field create_session_response[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_session },
    /* Logged by the client at the level that the name says; none of them is a failure. */
    { WIRE_FIELD(T, info_message, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, warning_message, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, error_message, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
};
const struct wire_type wire_create_session_response = { .name = "CreateSessionResponse",
                                                        WIRE_TABLE(T, create_session_response) };
#undef T

/* POST /api/v1/session_heartbeat: without it the session ends. */
#define T struct wire_session_heartbeat_request
static const struct wire_field heartbeat_request[] = {
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_heartbeat },
};
const struct wire_type wire_session_heartbeat_request = { .name = "SessionHeartbeatRequest",
                                                          WIRE_TABLE(T, heartbeat_request) };
#undef T

/* Nothing but the constant: that it came is the news. */
#define T struct wire_session_heartbeat_response
static const struct wire_field heartbeat_response[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_heartbeat },
};
const struct wire_type wire_session_heartbeat_response = { .name = "SessionHeartbeatResponse",
                                                           WIRE_TABLE(T, heartbeat_response) };
#undef T

/* POST /api/v1/create_sampling_session: of a base model or of a checkpoint. */
#define T struct wire_create_sampling_session_request
static const struct wire_field create_sampling_request[] = {
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    /* From 0 in each session; saves for a sampler without a name count on in it. */
    { WIRE_FIELD(T, sampling_session_seq_id, WIRE_INT, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_path, WIRE_STRING, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_sampling },
};
const struct wire_type wire_create_sampling_session_request = {
    .name = "CreateSamplingSessionRequest", WIRE_TABLE(T, create_sampling_request)
};
#undef T

/* The id goes into every sample request. */
#define T struct wire_create_sampling_session_response
static const struct wire_field create_sampling_response[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_sampling },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, REQ) },
};
const struct wire_type wire_create_sampling_session_response = {
    .name = "CreateSamplingSessionResponse", WIRE_TABLE(T, create_sampling_response)
};
#undef T

/* POST /api/v1/join_sampling_session: copies of a client count their requests apart. */
#define T struct wire_join_sampling_session_request
static const struct wire_field join_sampling_request[] = {
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_join_sampling },
};
const struct wire_type wire_join_sampling_session_request = {
    .name = "JoinSamplingSessionRequest", WIRE_TABLE(T, join_sampling_request)
};
#undef T

/* client_counter keeps the numbers of copies apart. */
#define T struct wire_join_sampling_session_response
static const struct wire_field join_sampling_response[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_join_sampling },
    { WIRE_FIELD(T, client_counter, WIRE_INT, REQ) },
};
const struct wire_type wire_join_sampling_session_response = {
    .name = "JoinSamplingSessionResponse", WIRE_TABLE(T, join_sampling_response)
};
#undef T

/* Inside CreateCustomLossRequest: in the order of the graph's placeholders. */
#define T struct wire_loss_input
static const struct wire_field loss_input[] = {
    { WIRE_FIELD(T, name, WIRE_STRING, REQ) },
    /* How many dimensions its tensor has. */
    { WIRE_FIELD(T, rank, WIRE_INT, REQ) },
};
static const struct wire_type wire_loss_input = { .name = "CustomLossInput",
                                                  WIRE_TABLE(T, loss_input) };
#undef T

/* POST /api/v1/create_custom_loss: a loss as a graph of operations; the result is its id. */
#define T struct wire_create_custom_loss_request
static const struct wire_field create_custom_loss[] = {
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, custom_loss_seq_id, WIRE_INT, REQ) },
    { WIRE_FIELD(T, name, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, inputs, WIRE_LIST, REQ), .aux = offsetof(T, n_inputs),
      .type = &wire_loss_input },
    /* Kept as text here; graph/graph.h reads it. */
    { WIRE_FIELD(T, graph, WIRE_OBJECT_TEXT, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_custom_loss },
};
const struct wire_type wire_create_custom_loss_request = { .name = "CreateCustomLossRequest",
                                                           WIRE_TABLE(T, create_custom_loss) };
#undef T

#define T struct wire_create_custom_loss_response
static const struct wire_field custom_loss_created[] = {
    { WIRE_FIELD(T, loss_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_custom_loss },
};
const struct wire_type wire_create_custom_loss_response = { .name = "CreateCustomLossResponse",
                                                            WIRE_TABLE(T, custom_loss_created) };
#undef T

/* ---- service --------------------------------------------------------------------- */

static const char *const word_ok[] = { "ok", NULL };

/* GET /api/v1/healthz */
#define T struct wire_health_response
static const struct wire_field health_response[] = {
    { .name = "status", .kind = WIRE_LITERAL, .flags = REQ, .words = word_ok },
};
const struct wire_type wire_health_response = { .name = "HealthResponse",
                                                WIRE_TABLE(T, health_response) };
#undef T

/* POST /api/v1/auth/token: an API key for a JWT. */
#define T struct wire_auth_token_response
static const struct wire_field auth_token_response[] = {
    { WIRE_FIELD(T, jwt, WIRE_STRING, REQ) },
};
const struct wire_type wire_auth_token_response = { .name = "AuthTokenResponse",
                                                    WIRE_TABLE(T, auth_token_response) };
#undef T

/* Inside the capabilities; -1 stands for "not told". */
#define T tinker_supported_model
static const struct wire_field supported_model[] = {
    { WIRE_MEMBER(T, "model_name", name, WIRE_STRING, NUL) },
    /* In tokens, prompt and sample together. */
    { WIRE_FIELD(T, max_context_length, WIRE_INT_KNOWN, NUL) },
    { WIRE_FIELD(T, trainable, WIRE_FLAG_KNOWN, NUL) },
    { WIRE_FIELD(T, sampleable, WIRE_FLAG_KNOWN, NUL) },
};
static const T model_defaults = { .max_context_length = -1, .trainable = -1, .sampleable = -1 };
static const struct wire_type wire_supported_model = { .name = "SupportedModel",
                                                       WIRE_TABLE(T, supported_model),
                                                       .defaults = &model_defaults };
#undef T

/* GET /api/v1/get_server_capabilities */
#define T tinker_capabilities
static const struct wire_field capabilities[] = {
    { WIRE_MEMBER(T, "supported_models", items, WIRE_LIST, REQ), .aux = offsetof(T, n),
      .type = &wire_supported_model },
    { WIRE_FIELD(T, stream_sample, WIRE_FLAG, NUL) },
};
const struct wire_type wire_get_server_capabilities_response = {
    .name = "GetServerCapabilitiesResponse", WIRE_TABLE(T, capabilities)
};
#undef T

/* What every submit returns: the id to poll with. */
#define T struct wire_untyped_api_future
static const struct wire_field untyped_api_future[] = {
    /* A text, even where it looks like a number: the reference takes no number. */
    { WIRE_FIELD(T, request_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, model_id, WIRE_STRING, NUL) },
};
const struct wire_type wire_untyped_api_future = { .name = "UntypedAPIFuture",
                                                   WIRE_TABLE(T, untyped_api_future) };
#undef T

/* The body of an error status; peers are read by wire_error_text(). */
#define T struct wire_error_response
static const struct wire_field error_response[] = {
    { WIRE_FIELD(T, detail, WIRE_STRING, REQ) },
};
const struct wire_type wire_error_response = { .name = "ErrorResponse",
                                               WIRE_TABLE(T, error_response) };
#undef T
