/* usage.h - counting what users use: tokens, saved checkpoints, storage.
 *
 * Amounts are collected in memory and written once per tick of the timer thread, because a
 * sample takes less time than a commit.  What was counted since the last tick is lost when the
 * process is killed.
 *
 * Thread safety: any thread.  Its lock is a leaf but for the store's. */
#ifndef SERVER_USAGE_H
#define SERVER_USAGE_H

#include "server/store/store_account.h"

struct server;
struct usage;

struct usage *usage_new(void); /* NULL: no memory */
void usage_free(struct usage *u);
/* Count an amount in the present hour.  session_id and base_model may be NULL. */
void usage_add(struct server *s, enum usage_kind kind, const char *owner, const char *session_id,
               const char *base_model, int64_t amount);
/* Count the storage since the last call for every user who was here; called about once a minute. */
void usage_add_storage(struct server *s);
/* Write what was collected; failures are logged and tried again with the next. */
void usage_flush(struct server *s);
/* Note what happened to something of a user, for the audit log; NULL where there is nothing to
 * say.  A failure is logged. */
void usage_note(struct server *s, const char *owner, const char *event, const char *model_id,
                const char *path, const char *purpose, const char *session_id);

#endif
