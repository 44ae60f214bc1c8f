/* future_types.c - polling for results, and telemetry, as tables. */
#include "wire/json/describe.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

/* POST /api/v1/retrieve_future: a long poll for the result of a request. */
#define T struct wire_future_retrieve_request
static const struct wire_field future_retrieve[] = {
    { WIRE_FIELD(T, request_id, WIRE_STRING, REQ) },
    /* true in the first polls: of a large result the answer is then only its size, so that a client
     * can wait until it has room. A service must send the result itself when it is false. */
    { WIRE_FIELD(T, allow_metadata_only, WIRE_BOOL, 0) },
};
const struct wire_type wire_future_retrieve_request = { .name = "FutureRetrieveRequest",
                                                        WIRE_TABLE(T, future_retrieve) };
#undef T

/* POST /api/v1/retrieve_futures: a long poll for whatever finishes next. The only kind of target is
 * a sampling session. */
static const char *const word_sampling_session[] = { "sampling_session", NULL };
#define T struct wire_sampling_target
static const struct wire_field sampling_target[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_sampling_session },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, REQ) },
    /* The client_counter of a copy that has joined the session; 0 is the first client. */
    { WIRE_FIELD(T, cloned_sampler_id, WIRE_INT, 0) },
};
static const struct wire_type wire_sampling_target = { .name = "SamplingSessionTarget",
                                                       WIRE_TABLE(T, sampling_target) };
#undef T
#define T struct wire_futures_retrieve_request
static const struct wire_field futures_retrieve[] = {
    { WIRE_FIELD(T, target, WIRE_STRUCT, REQ), .type = &wire_sampling_target },
    /* Where the previous answer ended: only what finished since then is told. */
    { WIRE_FIELD(T, prev_cursor, WIRE_INT, 0) },
    /* Seconds for which the poll may be held; 0: answer at once. */
    { WIRE_FIELD(T, timeout, WIRE_OPT_DOUBLE, NUL) },
    /* What the client has fetched already; a server may use it to forget. */
    { WIRE_FIELD(T, retrieved_request_ids, WIRE_STRINGS, NUL) },
};
const struct wire_type wire_futures_retrieve_request = { .name = "FuturesRetrieveRequest",
                                                         .ignores_unknown = true,
                                                         WIRE_TABLE(T, futures_retrieve) };
#undef T

/* The literal that tells this answer from a result. */
static const char *const word_try_again[] = { "try_again", NULL };
/* In the order of enum wire_queue_state, without its first; a newer word reads as absent
 * (WIRE_OPEN). */
static const char *const queue_states[] = { "active", "paused_capacity", "paused_rate_limit",
                                            NULL };

/* Its response while there is no result, with status 408. */
#define T struct wire_try_again_response
static const struct wire_field try_again[] = {
    { .name = "type", .kind = WIRE_LITERAL, .words = word_try_again },
    { WIRE_FIELD(T, request_id, WIRE_STRING, REQ) },
    /* For the user to see: why nothing happens. The client polls again at once in any case. */
    { WIRE_FIELD(T, queue_state, WIRE_WORD, NUL | WIRE_OPEN), .words = queue_states },
    { WIRE_FIELD(T, queue_state_reason, WIRE_STRING, NUL) },
};
const struct wire_type wire_try_again_response = { .name = "TryAgainResponse",
                                                   WIRE_TABLE(T, try_again) };
#undef T

/* Words of newer servers read as absent. */
static const char *const categories[] = { "unknown", "server", "user", NULL };

/* Its response when the request was accepted and then failed, with status 200. */
#define T struct wire_request_failed_response
static const struct wire_field request_failed[] = {
    /* The key that makes it a failure: no result may have it, see future.c. */
    { WIRE_FIELD(T, error, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, category, WIRE_WORD, NUL | WIRE_OPEN), .words = categories },
};
const struct wire_type wire_request_failed_response = { .name = "RequestFailedResponse",
                                                        WIRE_TABLE(T, request_failed) };
#undef T

static const char *const word_complete[] = { "complete_metadata", NULL };

/* Its response to allow_metadata_only: the result is there, and how large it is. */
#define T struct wire_complete_metadata_response
static const struct wire_field complete_metadata[] = {
    { .name = "status", .kind = WIRE_LITERAL, .flags = REQ, .words = word_complete },
    /* Bytes, perhaps estimated; absent counts as 0. */
    { WIRE_FIELD(T, response_payload_size, WIRE_OPT_INT, NUL) },
};
const struct wire_type wire_complete_metadata_response = { .name = "CompleteMetadataResponse",
                                                           WIRE_TABLE(T, complete_metadata) };
#undef T

/* ---- telemetry ------------------------------------------------------------------- */

static const char *const event_kinds[] = { "SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION",
                                           "GENERIC_EVENT", NULL };
static const char *const severities[] = { "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", NULL };
/* Bits for .variants: which fields belong to which kind of event. */
enum {
    IN_END = 1 << WIRE_EVENT_SESSION_END,
    IN_EXCEPTION = 1 << WIRE_EVENT_UNHANDLED_EXCEPTION,
    IN_GENERIC = 1 << WIRE_EVENT_GENERIC
};

/* Nothing of a single kind of event is required: some clients lose those fields, because
 * their validator takes the first event class that fits. */
#define T struct wire_telemetry_event
static const T event_defaults = { .event_data = { "{}", 2 } };
static const struct wire_field telemetry_event[] = {
    { WIRE_FIELD(T, error_message, WIRE_STRING, 0), .variants = IN_EXCEPTION },
    { WIRE_FIELD(T, error_type, WIRE_STRING, 0), .variants = IN_EXCEPTION },
    /* As Python prints a timedelta, "0:00:03.654322", and not ISO 8601. */
    { WIRE_FIELD(T, duration, WIRE_STRING, 0), .variants = IN_END },
    { .name = "event",
      .kind = WIRE_ENUM,
      .flags = REQ,
      .offset = offsetof(T, kind),
      .words = event_kinds },
    /* A UUID; the index counts all events of a client from 0, so that gaps show. */
    { WIRE_FIELD(T, event_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, event_name, WIRE_STRING, 0), .variants = IN_GENERIC },
    { WIRE_FIELD(T, event_session_index, WIRE_INT, REQ) },
    { WIRE_FIELD(T, severity, WIRE_WORD, REQ), .words = severities },
    { WIRE_FIELD(T, timestamp, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, traceback, WIRE_STRING, NUL), .variants = IN_EXCEPTION },
    { WIRE_FIELD(T, event_data, WIRE_OBJECT_TEXT, 0), .variants = IN_GENERIC },
};
const struct wire_type wire_telemetry_event = { .name = "TelemetryEvent",
                                                WIRE_TABLE(T, telemetry_event),
                                                .defaults = &event_defaults,
                                                .tag = "event",
                                                .ignores_unknown = true };
#undef T

/* POST /api/v1/telemetry */
#define T struct wire_telemetry_send_request
static const struct wire_field telemetry_send[] = {
    { WIRE_FIELD(T, events, WIRE_LIST, REQ), .aux = offsetof(T, n_events),
      .type = &wire_telemetry_event },
    /* The name of the operating system, such as "Linux". */
    { WIRE_FIELD(T, platform, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, sdk_version, WIRE_STRING, REQ) },
    /* A client without a session makes one up: "sessionless-" and a UUID. */
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, process_uuid, WIRE_STRING, 0) }, /* since 0.24 */
};
const struct wire_type wire_telemetry_send_request = { .name = "TelemetrySendRequest",
                                                       WIRE_TABLE(T, telemetry_send) };
#undef T

static const char *const word_accepted[] = { "accepted", NULL };

/* The response to it: 2xx with another body does not count as accepted. */
#define T struct wire_telemetry_response
static const struct wire_field telemetry_response[] = {
    { .name = "status", .kind = WIRE_LITERAL, .flags = REQ, .words = word_accepted },
};
const struct wire_type wire_telemetry_response = { .name = "TelemetryResponse",
                                                   WIRE_TABLE(T, telemetry_response) };
#undef T
