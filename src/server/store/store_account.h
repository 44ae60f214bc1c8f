/* store_account.h - what users used, by the hour, and what happened to their things: store.h.
 *
 * Both are kept for STORE_ACCOUNT_DAYS.  Thread-safe. */
#ifndef SERVER_STORE_ACCOUNT_H
#define SERVER_STORE_ACCOUNT_H

#include "server/store/store.h"

enum { STORE_ACCOUNT_DAYS = 90 };

enum usage_kind { /* in the database: only ever appended */
                  USAGE_TRAINING,
                  USAGE_PREFILL,
                  USAGE_PREFILL_CACHED,
                  USAGE_SAMPLING,
                  USAGE_CHECKPOINT,
                  USAGE_STORAGE,
                  USAGE_KINDS
};

/* An amount in one hour: tokens, checkpoints, or seconds times bytes of storage. */
struct store_usage_row {
    int64_t hour; /* since 1970 */
    int kind;     /* enum usage_kind */
    const char *owner;
    const char *session_id; /* "": none */
    const char *base_model; /* "": none */
    int64_t amount;
};
/* Add the amounts to what is there, in one transaction. */
tinker_status store_add_usage(struct store *s, const struct store_usage_row *rows, size_t n,
                              tinker_error *err);
/* Of the hours from `from` on and before `to`, in order of hours. */
tinker_status store_list_hours(struct store *s, const char *owner, int64_t from, int64_t to,
                               struct arena *arena, struct store_usage_row **out, size_t *n,
                               tinker_error *err);

struct store_event {
    int64_t time_us;
    const char *owner;
    const char *event;                                  /* "checkpoint_delete" */
    const char *model_id, *path, *purpose, *session_id; /* NULL: none */
};
tinker_status store_add_event(struct store *s, const struct store_event *v, tinker_error *err);
/* Of the times from from_us on and before to_us, oldest first. */
tinker_status store_list_events(struct store *s, const char *owner, int64_t from_us, int64_t to_us,
                                struct arena *arena, struct store_event **out, size_t *n,
                                tinker_error *err);

/* Forget what is older than STORE_ACCOUNT_DAYS. */
void store_prune_account(struct store *s, int64_t now_us);

#endif
