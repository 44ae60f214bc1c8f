/* train.h - running training requests.  Thread: the engine thread alone. */
#ifndef SERVER_TRAIN_H
#define SERVER_TRAIN_H

#include "server/work/live_state.h"
#include "server/work/weights.h"
#include "wire/wire.h"

struct custom_loss;

/* A forward or forward_backward request in progress. */
struct train_task {
    struct future *f;
    tinker_pass *pass;          /* NULL: waits for memory */
    struct custom_loss *custom; /* NULL: a loss of the engine's */
};

/* Run f to its end, or make it a task: true when *t needs calls of train_step(). */
bool train_start(struct server *s, struct weights_cache *weights, struct future *f,
                 struct train_task *t);
/* One slice.  alone: no other pass and no sample holds memory.  false: the task is over. */
bool train_step(struct server *s, struct train_task *t, bool alone);
/* End a task without a result, at shutdown; it stays in the journal. */
void train_abandon(struct train_task *t);
/* Free the adapter of a model that ended, and its state on disk once that is recorded. */
tinker_status train_release(struct server *s, struct model *m, tinker_error *err);

/* ---- for the files of training requests ------------------------------------------------ */
/* A request that saves weights, to its end (train_save.c). */
void train_save(struct server *s, struct weights_cache *weights, struct future *f);
/* Fail f with the error and its category. */
void train_fail(struct server *s, struct future *f, const tinker_error *err);
/* Record the outcome, then publish it.  outcome has what else changed.  false: it could
 * not be recorded, and the request failed instead. */
bool train_finish(struct server *s, struct future *f, struct buf *result, bool proto,
                  struct store_outcome *outcome);
bool train_finish_json(struct server *s, struct future *f, const struct wire_type *type,
                       const void *value, struct store_outcome *outcome);

#endif
