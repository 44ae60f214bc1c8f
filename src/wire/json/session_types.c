/* session_types.c - the end of a session, and the searches for sessions and checkpoints, as
 * tables. */
#include "wire/json/describe.h"

/* SHOW: what is not given is written as null. A reader takes an absent key as well. */
#define REQ  WIRE_REQUIRED
#define NUL  WIRE_NULLABLE
#define SHOW (WIRE_NULLABLE | WIRE_SHOW_NULL)

/* ---- the end --------------------------------------------------------------------- */

static const char *const finish_reasons[] = { "success", "errored", "interrupted", NULL };

/* Inside FinishSessionRequest: an object that holds one of the words above. */
#define T struct wire_finish_reason
static const struct wire_field finish_reason[] = {
    { WIRE_FIELD(T, type, WIRE_WORD, REQ), .words = finish_reasons },
};
static const struct wire_type wire_finish_reason = { .name = "ClientSessionFinishReason",
                                                     WIRE_TABLE(T, finish_reason) };
#undef T

/* POST /api/v1/sessions/{id}/finish */
#define T struct wire_finish_session_request
static const struct wire_field finish_session[] = {
    { WIRE_FIELD(T, reason, WIRE_STRUCT, REQ), .type = &wire_finish_reason },
    /* In the words of the program, such as the message of an exception. */
    { WIRE_FIELD(T, detail, WIRE_STRING, SHOW) },
};
const struct wire_type wire_finish_session_request = { .name = "FinishSessionRequest",
                                                       WIRE_TABLE(T, finish_session) };
#undef T

/* ---- search ---------------------------------------------------------------------- */

static const char *const owners[] = { "own", "accessible", "user", NULL };
static const char *const statuses[] = { "active", "cancelled", "failed", "client_finished", NULL };

/* Inside SessionSearchRequest: whose sessions; owner_urns go with "user". */
#define T struct wire_search_owner
static const T owner_defaults = { .type = "own" };
static const struct wire_field search_owner[] = {
    /* "own" is the caller, "accessible" whatever the caller may see. */
    { WIRE_FIELD(T, type, WIRE_WORD, 0), .words = owners },
    { WIRE_FIELD(T, owner_urns, WIRE_STRINGS, NUL) },
};
static const struct wire_type wire_search_owner = { .name = "SearchOwner",
                                                    WIRE_TABLE(T, search_owner),
                                                    .defaults = &owner_defaults };
#undef T

/* Inside SessionSearchRequest: one status, perhaps with the reasons that count. */
#define T struct wire_session_status_query
static const struct wire_field status_query[] = {
    { WIRE_FIELD(T, type, WIRE_WORD, REQ), .words = statuses },
    /* None: for any reason. */
    { WIRE_FIELD(T, reasons, WIRE_STRINGS, NUL) },
};
static const struct wire_type wire_session_status_query = { .name = "SessionStatusQuery",
                                                            WIRE_TABLE(T, status_query) };
#undef T

/* The last session of a page; the next page begins behind it. */
#define T struct wire_session_search_cursor
static const struct wire_field search_cursor[] = {
    /* Time and id together, since several sessions may have been made at one time. A page that
     * begins behind a session, and not at a number, is right even if sessions come and go. */
    { WIRE_FIELD(T, last_created_at, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, last_session_id, WIRE_STRING, REQ) },
};
static const struct wire_type wire_session_search_cursor = { .name = "SessionSearchCursor",
                                                             WIRE_TABLE(T, search_cursor) };
#undef T

/* POST /api/v1/sessions/search */
#define T struct wire_session_search_request
/* 50 per page, and only the caller's own, unless the request says otherwise. */
static const T search_defaults = { .owner = { .type = "own" }, .limit = 50 };
static const struct wire_field search_request[] = {
    /* All that are given must hold; in a list any one of its members. */
    { WIRE_FIELD(T, session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, project_ids, WIRE_STRINGS, NUL) },
    /* Sessions that have these entries, perhaps among others. */
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { WIRE_FIELD(T, display_name, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, owner, WIRE_STRUCT, 0), .type = &wire_search_owner },
    { WIRE_FIELD(T, statuses, WIRE_LIST, NUL), .aux = offsetof(T, n_statuses),
      .type = &wire_session_status_query },
    { WIRE_FIELD(T, limit, WIRE_INT, 0) },
    { WIRE_FIELD(T, cursor, WIRE_POINTER, NUL), .type = &wire_session_search_cursor },
};
const struct wire_type wire_session_search_request = { .name = "SessionSearchRequest",
                                                       WIRE_TABLE(T, search_request),
                                                       .defaults = &search_defaults };
#undef T

/* POST /api/v1/checkpoints/search: the address is a guess by analogy with sessions/search, because
 * only the types are published. */
static const char *const checkpoint_types[] = { "training", "sampler", "external", NULL };

/* The last checkpoint of a page. */
#define T struct wire_checkpoint_search_cursor
static const struct wire_field checkpoint_cursor[] = {
    { WIRE_FIELD(T, last_created_at, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, last_checkpoint_uuid, WIRE_STRING, REQ) },
};
static const struct wire_type wire_checkpoint_search_cursor = { .name = "CheckpointSearchCursor",
                                                                WIRE_TABLE(T, checkpoint_cursor) };
#undef T

#define T struct wire_checkpoint_search_request
static const T checkpoint_search_defaults = { .owner = { .type = "own" }, .limit = 50 };
static const struct wire_field checkpoint_search[] = {
    { WIRE_FIELD(T, project_ids, WIRE_STRINGS, NUL) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { WIRE_FIELD(T, checkpoint_type, WIRE_WORD, NUL), .words = checkpoint_types },
    { WIRE_FIELD(T, owner, WIRE_STRUCT, 0), .type = &wire_search_owner },
    { WIRE_FIELD(T, base_models, WIRE_STRINGS, NUL) },
    { WIRE_FIELD(T, limit, WIRE_INT, 0) },
    { WIRE_FIELD(T, cursor, WIRE_POINTER, NUL), .type = &wire_checkpoint_search_cursor },
};
const struct wire_type wire_checkpoint_search_request = { .name = "CheckpointSearchRequest",
                                                          WIRE_TABLE(T, checkpoint_search),
                                                          .defaults = &checkpoint_search_defaults };
#undef T

/* The response to it, newest first. */
#define T struct wire_checkpoint_search_response
static const struct wire_field checkpoint_found[] = {
    { WIRE_FIELD(T, checkpoints, WIRE_LIST, REQ), .aux = offsetof(T, n_checkpoints),
      .type = &wire_checkpoint },
    { WIRE_FIELD(T, next_cursor, WIRE_POINTER, SHOW), .type = &wire_checkpoint_search_cursor },
};
const struct wire_type wire_checkpoint_search_response = { .name = "CheckpointSearchResponse",
                                                           WIRE_TABLE(T, checkpoint_found) };
#undef T

/* Inside SessionStatus: which request ended the session. */
#define T struct wire_status_reason
static const struct wire_field status_reason[] = {
    /* A word of a finish, or the kind of what ended the session, whose ids follow. */
    { WIRE_FIELD(T, type, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, request_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, request_type, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, training_run_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, NUL) },
};
static const struct wire_type wire_status_reason = { .name = "SessionStatusReason",
                                                     WIRE_TABLE(T, status_reason) };
#undef T

/* Inside SessionSummary; a status of a newer service reads as absent (WIRE_OPEN). */
#define T struct wire_session_status
static const struct wire_field session_status[] = {
    { WIRE_FIELD(T, type, WIRE_WORD, REQ | WIRE_OPEN), .words = statuses },
    /* Of a failure: "user" or "internal", and in message why. */
    { WIRE_FIELD(T, category, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, reason, WIRE_POINTER, NUL), .type = &wire_status_reason },
    { WIRE_FIELD(T, message, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, detail, WIRE_STRING, NUL) },
};
static const struct wire_type wire_session_status = { .name = "SessionStatus",
                                                      WIRE_TABLE(T, session_status) };
#undef T

/* One session that was found; what is not known is written as null (SHOW). */
#define T struct wire_session_summary
static const struct wire_field session_summary[] = {
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, created_at, WIRE_TIME, REQ) },
    { WIRE_FIELD(T, owner, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, project_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, status, WIRE_POINTER, SHOW), .type = &wire_session_status },
    { WIRE_FIELD(T, checkpoints_count, WIRE_INT, REQ) },
    { WIRE_FIELD(T, display_name, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, SHOW) },
    { WIRE_FIELD(T, checkpoint_storage_bytes, WIRE_OPT_INT, SHOW) },
};
static const struct wire_type wire_session_summary = { .name = "SessionSummary",
                                                       WIRE_TABLE(T, session_summary) };
#undef T

/* The response to it; next_cursor null: this was the last page. */
#define T struct wire_session_search_response
static const struct wire_field search_response[] = {
    { WIRE_FIELD(T, sessions, WIRE_LIST, REQ), .aux = offsetof(T, n_sessions),
      .type = &wire_session_summary },
    { WIRE_FIELD(T, next_cursor, WIRE_POINTER, SHOW), .type = &wire_session_search_cursor },
};
const struct wire_type wire_session_search_response = { .name = "SessionSearchResponse",
                                                        WIRE_TABLE(T, search_response) };
#undef T

/* ---- storage --------------------------------------------------------------------- */

/* One row of the response below: what a user stores in a project. */
#define T struct wire_checkpoint_usage
static const struct wire_field checkpoint_usage[] = {
    { WIRE_FIELD(T, project_id, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, org_user_urn, WIRE_STRING, SHOW) },
    { WIRE_FIELD(T, user_email, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_name, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, checkpoint_count, WIRE_INT, REQ) },
    { WIRE_FIELD(T, size_bytes, WIRE_INT, REQ) },
    { WIRE_FIELD(T, size_gigabytes, WIRE_DOUBLE, REQ) },
    { WIRE_FIELD(T, estimated_monthly_cost_usd, WIRE_OPT_DOUBLE, NUL) },
};
static const struct wire_type wire_checkpoint_usage = { .name = "CheckpointStorageUsageItem",
                                                        WIRE_TABLE(T, checkpoint_usage) };
#undef T

/* GET /api/v1/billing/usage/checkpoints/current */
#define T struct wire_checkpoint_usage_response
static const struct wire_field checkpoint_usage_response[] = {
    { WIRE_FIELD(T, effective_rate_usd_per_gigabyte_month, WIRE_OPT_DOUBLE, NUL) },
    { WIRE_FIELD(T, data, WIRE_LIST, REQ), .aux = offsetof(T, n_data),
      .type = &wire_checkpoint_usage },
};
const struct wire_type wire_checkpoint_usage_response = {
    .name = "CheckpointStorageUsageResponse", WIRE_TABLE(T, checkpoint_usage_response)
};
#undef T
