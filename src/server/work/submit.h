/* submit.h - accepting requests: numbers, idempotency, journal, queue.
 *
 * Thread safety: any thread, any time; recovery before the threads start. */
#ifndef SERVER_SUBMIT_H
#define SERVER_SUBMIT_H

#include "server/work/live_state.h"

enum submit_status {
    SUBMIT_OK,       /* accepted, or accepted earlier: id is the future's */
    SUBMIT_REUSED,   /* the number was used for another request: 400 */
    SUBMIT_LATE,     /* later numbers have run and this one is unknown: 400 */
    SUBMIT_BAD_SEQ,  /* the number is too large: 400 */
    SUBMIT_NO_MODEL, /* 404 */
    SUBMIT_NO_BASE,  /* the model exists, but its base model is not served now: 404 */
    SUBMIT_BUSY,     /* 429 */
    SUBMIT_FAILED    /* err says why: 500 */
};

/* A training request.  The job is taken over in every case.  body is what the journal
 * keeps.  *id is in arena. */
enum submit_status submit_train(struct server *s, const char *user, const char *model_id,
                                struct wire_opt_int seq, struct job *job, bool proto,
                                const char *body, size_t n_body, struct arena *arena,
                                const char **id, tinker_error *err);

/* Number 0 of a new model: create_model, or load_weights that creates. */
enum submit_status submit_create(struct server *s, const struct store_model *record,
                                 struct session *session, struct base *base, struct job *job,
                                 const char *body, size_t n_body, struct arena *arena,
                                 const char **id, tinker_error *err);

/* A sample.  id names it; an equal earlier one is found again. */
enum submit_status submit_sample(struct server *s, const char *user, struct session *session,
                                 struct base *base, struct job *job, const char *id);

/* Unload a model for another reason than an unload_model request; a second call does nothing. */
void submit_end_model(struct server *s, const char *model_id, const char *reason);

/* Put a request of the journal back into its model's queue, before the threads start: one that
 * is still to run, or that is done and whose effect on the weights is needed. */
tinker_status submit_again(struct server *s, struct model *m, const struct store_request *r,
                           tinker_error *err);

#endif
