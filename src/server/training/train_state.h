/* train_state.h - the training state of a model: in memory, on disk, and from one to the other.
 *
 * Thread: the engine thread alone. */
#ifndef SERVER_TRAIN_STATE_H
#define SERVER_TRAIN_STATE_H

#include "server/store/checkpoint.h"
#include "server/work/live_state.h"

/* Make sure that the adapter is in memory, as it was before request seq. */
tinker_status train_state_load(struct server *s, struct model *m, int64_t seq, tinker_error *err);

/* Write the state to a new directory when it is time to; dir is empty when it is not.
 * always: whenever autosave is on at all. */
tinker_status train_state_save(struct server *s, struct model *m, bool always,
                               char dir[CHECKPOINT_DIR], tinker_error *err);
/* The transaction that names dir as the state after request seq is committed: remove the old
 * directory.  Does nothing when dir is empty. */
void train_state_adopt(struct server *s, struct model *m, const char *dir, int64_t seq);

/* Free the adapter until it is needed again.  What the disk lacks of the state after request
 * seq, gradients included, is written first. */
tinker_status train_state_unload(struct server *s, struct model *m, int64_t seq, tinker_error *err);

/* The last change could not be recorded, so it must not have happened: drop the adapter.  The
 * next train_state_load() rebuilds what the store knows. */
void train_state_rewind(struct model *m);

/* Take the optimizer's step that a request asks for. */
tinker_status train_state_step(tinker_adapter *a, struct job *w, tinker_step_metrics *metrics,
                               tinker_error *err);

#endif
