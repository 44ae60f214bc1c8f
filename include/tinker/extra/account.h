/* account.h - the identity behind a credential, usage and its cost, the audit log.
 *
 * Calls of a tinker_rest handle; see rest.h for how their results are borrowed. */
#ifndef TINKER_EXTRA_ACCOUNT_H
#define TINKER_EXTRA_ACCOUNT_H

#include <tinker/rest.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinker_identity {
    const char *user_urn;
    const char *email;   /* NULL: none */
    const char *org_urn; /* of the organization, NULL: the token does not say */
} tinker_identity;
/* The identity that the credential carries.  Sends nothing beyond what it takes to get a token.
 * The future fails with TINKER_ESTATE for a plain API key.  Result: tinker_future_identity(). */
TINKER_API tinker_future *tinker_rest_whoami(tinker_rest *r, tinker_error *err);
TINKER_API const tinker_identity *tinker_future_identity(const tinker_future *f);

typedef enum tinker_billing_kind {
    TINKER_BILLING_TRAINING = 0,
    TINKER_BILLING_PREFILL,
    TINKER_BILLING_SAMPLING,
    TINKER_BILLING_CHECKPOINT,
    TINKER_BILLING_STORAGE,
    TINKER_BILLING_OTHER = -1 /* newer than this library */
} tinker_billing_kind;

typedef struct tinker_billing_event {
    int64_t start_us, end_us;
    const char *base_model, *user_id, *user_name, *session_id, *project_id; /* NULL: unknown */
    tinker_billing_kind kind;
    int64_t count;         /* tokens, or checkpoints */
    int cached;            /* prefill: from the prompt cache */
    double gigabyte_hours; /* storage */
    /* Estimates in US dollars, before credits: of the event, of a million tokens, and of a
     * gigabyte for 720 hours.  NaN: unknown. */
    double cost_usd, million_tokens_usd, gigabyte_month_usd;
} tinker_billing_event;

typedef struct tinker_billing_session {
    const char *id;
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
} tinker_billing_session;

typedef struct tinker_billing {
    size_t n_events;
    const void *events; /* see tinker_billing_event_at() */
    size_t n_sessions;
    const void *sessions;      /* see tinker_billing_session_at() */
    int64_t invoiced_until_us; /* later costs are estimates from the price list */
} tinker_billing;
/* Item i, borrowed as the result is; NULL past the end. */
TINKER_API const tinker_billing_event *tinker_billing_event_at(const tinker_billing *list,
                                                               size_t i);
TINKER_API const tinker_billing_session *tinker_billing_session_at(const tinker_billing *list,
                                                                   size_t i);
/* Usage from start to end (exclusive): RFC 3339 texts or dates, whole UTC hours, at most
 * 14 days.  Result: tinker_future_billing(). */
TINKER_API tinker_future *tinker_rest_get_billing_usage(tinker_rest *r, const char *start,
                                                        const char *end, tinker_error *err);
TINKER_API const tinker_billing *tinker_future_billing(const tinker_future *f);

typedef struct tinker_storage_share {
    const char *project_id, *user_urn, *user_email, *user_name; /* NULL: unknown */
    int64_t n_checkpoints, bytes;
    double monthly_cost_usd; /* of 720 hours at today's price; NaN: unknown */
} tinker_storage_share;

typedef struct tinker_storage {
    size_t n;
    const void *items;         /* one per project and user, see tinker_storage_share_at() */
    double gigabyte_month_usd; /* today's price, NaN: unknown */
} tinker_storage;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_storage_share *tinker_storage_share_at(const tinker_storage *list,
                                                               size_t i);
/* Storage that checkpoints use now, in one project or (NULL) in all; the figures may be hours old.
 * Result: tinker_future_storage(). */
TINKER_API tinker_future *tinker_rest_get_storage_usage(tinker_rest *r, const char *project_id,
                                                        tinker_error *err);
TINKER_API const tinker_storage *tinker_future_storage(const tinker_future *f);

typedef struct tinker_audit_entry {
    int64_t time_us;
    const char *event;
    const char *model_id, *path, *purpose; /* NULL: none */
    const char *details;                   /* a JSON object: actor, target; NULL: none */
} tinker_audit_entry;

typedef struct tinker_audit {
    size_t n;
    const void *items; /* see tinker_audit_entry_at() */
} tinker_audit;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_audit_entry *tinker_audit_entry_at(const tinker_audit *list, size_t i);
/* Which events to list. */
typedef enum tinker_audit_type {
    TINKER_AUDIT_ALL = 0,
    TINKER_AUDIT_CHECKPOINTS,
    TINKER_AUDIT_PROJECTS,
    TINKER_AUDIT_TEAMS,
    TINKER_AUDIT_ORGANIZATIONS
} tinker_audit_type;
/* The events of one day, "YYYY-MM-DD" (NULL: today), in UTC.  Result: tinker_future_audit().  NULL
 * with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_rest_get_audit_log(tinker_rest *r, const char *day,
                                                    tinker_audit_type type, tinker_error *err);
TINKER_API const tinker_audit *tinker_future_audit(const tinker_future *f);

#ifdef __cplusplus
}
#endif
#endif
