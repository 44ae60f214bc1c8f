/* store.h - everything the server must remember after kill -9, in one SQLite file.
 *
 * Each function is one transaction.  A write that returned TINKER_OK survives the
 * death of the process; one that names weights survives a power failure too, any other
 * from the next store_sync() or store_tidy() on.  Strings of records that are read live in the
 * given arena; records that are written are borrowed for the call.  Times are microseconds since
 * 1970 UTC; 0 means never.  Errors are TINKER_ESTATE with SQLite's reason.
 *
 * store*.c are the only files that know sqlite3.  Thread-safe. */
#ifndef SERVER_STORE_H
#define SERVER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include "base/arena.h"
#include "base/buf.h"

struct store;

struct store *store_open(const char *path, tinker_error *err);
void store_close(struct store *s);
/* Copy the write-ahead log into the database.  Called by the timer thread now and then. */
void store_tidy(struct store *s);
/* Everything committed before the call survives a power failure after it. */
tinker_status store_sync(struct store *s, tinker_error *err);
/* A small value of the server itself, for example its signing key. */
tinker_status store_get_setting(struct store *s, const char *name, struct buf *out,
                                tinker_error *err); /* out empty when absent */
tinker_status store_put_setting(struct store *s, const char *name, const void *p, size_t n,
                                tinker_error *err);

/* ---- sessions ------------------------------------------------------------------- */

struct store_session {
    const char *id, *owner;
    const char *tags, *user_metadata; /* JSON */
    const char *sdk_version, *project_id, *display_name;
    const char *finish_reason, *finish_detail; /* given by the client; NULL: not finished */
    int64_t created_us, seen_us;
    bool expired;
};
tinker_status store_add_session(struct store *s, const struct store_session *v, tinker_error *err);
tinker_status store_set_session_expired(struct store *s, const char *id, tinker_error *err);
/* The first reason stays. */
tinker_status store_set_session_finished(struct store *s, const char *id, const char *reason,
                                         const char *detail, tinker_error *err);
tinker_status store_set_session_project(struct store *s, const char *id, const char *project_id,
                                        tinker_error *err);
/* Newest first.  owner NULL: everybody's.  live_only leaves out expired ones. */
tinker_status store_list_sessions(struct store *s, const char *owner, bool live_only, int64_t limit,
                                  int64_t offset, struct arena *arena, struct store_session **out,
                                  size_t *n, tinker_error *err);
/* The owner's sessions after (created_us, id) in the order newest first; created_us 0: from
 * the newest. */
tinker_status store_sessions_after(struct store *s, const char *owner, int64_t created_us,
                                   const char *id, int64_t limit, struct arena *arena,
                                   struct store_session **out, size_t *n, tinker_error *err);
/* Listed checkpoints of the runs of a session. */
tinker_status store_count_session(struct store *s, const char *id, int64_t *checkpoints,
                                  int64_t *bytes, tinker_error *err);
/* *out is NULL when there is none. */
tinker_status store_get_session(struct store *s, const char *id, struct arena *arena,
                                struct store_session **out, tinker_error *err);

/* ---- models being trained --------------------------------------------------------- */

enum store_model_status { STORE_MODEL_ACTIVE = 0, STORE_MODEL_UNLOADED = 1, STORE_MODEL_LOST = 2 };

struct store_model {
    const char *id, *session_id, *owner, *base_model;
    tinker_lora lora;          /* the seed is always set */
    const char *user_metadata; /* JSON object or NULL */
    int status;                /* enum store_model_status */
    int64_t created_us, last_request_us;
    int64_t saved_seq;     /* training state on disk is the one after this request */
    const char *saved_dir; /* directory name below checkpoints/, NULL: as created */
    int64_t train_tokens;
};
tinker_status store_get_model(struct store *s, const char *id, struct arena *arena,
                              struct store_model **out, tinker_error *err);
/* Most recent request first.  owner, session NULL: any; status -1: any. */
tinker_status store_list_models(struct store *s, const char *owner, const char *session, int status,
                                int64_t limit, int64_t offset, struct arena *arena,
                                struct store_model **out, size_t *n, int64_t *total,
                                tinker_error *err);
/* Unless the new status is active, its requests will not run again: their bodies are deleted. */
tinker_status store_set_model_status(struct store *s, const char *id, int status,
                                     tinker_error *err);
/* Training state after request seq is in dir. */
tinker_status store_set_model_saved(struct store *s, const char *id, int64_t seq, const char *dir,
                                    tinker_error *err);

/* ---- training requests: idempotency, journal, results ----------------------------- */

enum store_request_status { STORE_PENDING = 0, STORE_DONE = 1, STORE_FAILED = 2 };

struct store_request {
    const char *model_id;
    int64_t seq;
    int kind;      /* enum job_kind */
    uint64_t hash; /* of the canonical payload */
    bool proto;    /* the body is protobuf */
    const void *body;
    size_t n_body;
    int status; /* enum store_request_status */
    /* DONE: the result, protobuf or JSON.  FAILED: the message. */
    const void *result;
    size_t n_result;
    int category; /* FAILED */
    int64_t created_us;
};
tinker_status store_add_request(struct store *s, const struct store_request *v, tinker_error *err);
/* A new model together with its first request. */
tinker_status store_add_model(struct store *s, const struct store_model *v,
                              const struct store_request *first, tinker_error *err);
/* Without body unless with_body. */
tinker_status store_get_request(struct store *s, const char *model_id, int64_t seq, bool with_body,
                                struct arena *arena, struct store_request **out, tinker_error *err);
/* Requests with seq > after in order, with bodies: what has to run again. */
tinker_status store_list_requests(struct store *s, const char *model_id, int64_t after,
                                  struct arena *arena, struct store_request **out, size_t *n,
                                  tinker_error *err);
tinker_status store_max_seq(struct store *s, const char *model_id, int64_t *out, tinker_error *err);
/* The highest number that was skipped because it never came; -1: none.  Every number up to it has
 * finished or is refused for good. */
tinker_status store_set_skipped_seq(struct store *s, const char *model_id, int64_t seq,
                                    tinker_error *err);
tinker_status store_get_skipped_seq(struct store *s, const char *model_id, int64_t *out,
                                    tinker_error *err);

/* When the requests of a session's models came and ended, for traces: the newest. */
struct store_span {
    const char *model_id;
    int64_t seq, created_us, done_us; /* done_us 0: not yet */
    int kind, status;
};
tinker_status store_list_spans(struct store *s, const char *session, int64_t limit,
                               struct arena *arena, struct store_span **out, size_t *n,
                               tinker_error *err);

/* The outcome of a request together with what it changed, in one transaction. */
struct store_outcome {
    const char *model_id;
    int64_t seq;
    int status;
    const void *result;
    size_t n_result;
    int category;
    bool drop_body;        /* the request need not run again after a restart */
    const char *saved_dir; /* not NULL: training state after this request is there */
    const struct store_checkpoint *checkpoint; /* not NULL: add or replace it */
    const struct store_sampler *sampler;       /* not NULL: add it */
    int64_t tokens;                            /* trained tokens to count */
    int64_t now_us;
};
/* TINKER_OK with err set: it is recorded, but a power failure could still undo it. */
tinker_status store_finish_request(struct store *s, const struct store_outcome *v,
                                   tinker_error *err);
/* Delete results that are older, and requests whose effect is saved. */
tinker_status store_prune_requests(struct store *s, int64_t done_before_us, tinker_error *err);

/* ---- checkpoints ------------------------------------------------------------------- */

/* Values are stored: never renumber. */
enum store_kind { STORE_TRAINING = 0, STORE_SAMPLER = 1, STORE_EXTERNAL = 2 };
const char *store_kind_name(int kind); /* "sampler_weights": as in paths */

struct store_checkpoint {
    const char *run, *name, *owner, *base_model;
    int kind; /* enum store_kind */
    tinker_lora lora;
    const char *dir; /* directory name below checkpoints/ */
    int64_t size_bytes, created_us, expires_us;
    bool is_public;
    bool hidden;               /* ephemeral sampler weights: never listed */
    const char *user_metadata; /* JSON object of texts, or NULL */
};
tinker_status store_get_checkpoint(struct store *s, const char *run, int kind, const char *name,
                                   struct arena *arena, struct store_checkpoint **out,
                                   tinker_error *err);
/* Of the owner, newest first.  run NULL: of all runs. */
tinker_status store_list_checkpoints(struct store *s, const char *owner, const char *run,
                                     int64_t limit, int64_t offset, struct arena *arena,
                                     struct store_checkpoint **out, size_t *n, int64_t *total,
                                     tinker_error *err);
/* The newest of one kind of a run; *out NULL when there is none. */
tinker_status store_last_checkpoint(struct store *s, const char *run, int kind, struct arena *arena,
                                    struct store_checkpoint **out, tinker_error *err);
/* Those whose time is up, at most limit. */
tinker_status store_expired_checkpoints(struct store *s, int64_t now_us, int64_t limit,
                                        struct arena *arena, struct store_checkpoint **out,
                                        size_t *n, tinker_error *err);
/* Hidden ones of a run, newest first: by the number in the name, since clocks are set back. */
tinker_status store_hidden_checkpoints(struct store *s, const char *run, struct arena *arena,
                                       struct store_checkpoint **out, size_t *n, tinker_error *err);
/* All hidden ones whose session ended and whose model is no longer active. */
tinker_status store_delete_hidden(struct store *s, tinker_error *err);
tinker_status store_delete_checkpoint(struct store *s, const char *run, int kind, const char *name,
                                      tinker_error *err);
/* The same, unless it was extended or replaced meanwhile. */
tinker_status store_delete_expired(struct store *s, const struct store_checkpoint *c,
                                   int64_t now_us, bool *deleted, tinker_error *err);
tinker_status store_set_checkpoint_public(struct store *s, const char *run, int kind,
                                          const char *name, bool is_public, tinker_error *err);
tinker_status store_set_checkpoint_expiry(struct store *s, const char *run, int kind,
                                          const char *name, int64_t expires_us, tinker_error *err);
/* Listed checkpoints of an owner by the project of their session; rows with no project have
 * project_id NULL. */
struct store_usage {
    const char *project_id;
    int64_t checkpoints, bytes;
};
tinker_status store_checkpoint_usage(struct store *s, const char *owner, struct arena *arena,
                                     struct store_usage **out, size_t *n, tinker_error *err);
/* A record of the same weights under another run, which is added too, and its session unless
 * that is NULL, all or nothing.  *found is false when the source is gone. */
struct store_copy {
    const struct store_session *session;
    const struct store_model *model;
    const char *run, *name; /* the source */
    int kind;
    int64_t created_us, expires_us;
};
tinker_status store_copy_checkpoint(struct store *s, const struct store_copy *v, bool *found,
                                    tinker_error *err);
/* Is a directory name in use by a checkpoint, by a model that can still be trained or by a sampling
 * session that has not ended? */
tinker_status store_dir_in_use(struct store *s, const char *dir, bool *out, tinker_error *err);

/* ---- sampling sessions --------------------------------------------------------------- */

struct store_sampler {
    const char *id, *session_id, *owner, *base_model;
    const char *model_path; /* NULL: the base model, or hidden weights */
    const char *run, *name; /* of the checkpoint; NULL: the base model */
    bool sampler;           /* its kind */
    int64_t created_us;
    const char *dir; /* its weights; NULL: the base model; empty: the checkpoint is gone */
};
/* Nothing happens when there is one with the id: read it back and compare. */
tinker_status store_add_sampler(struct store *s, const struct store_sampler *v, tinker_error *err);
/* The checkpoint can no longer be used, but by its owner if `except` names one: the sampling
 * sessions on it lose their weights.  *out are their ids. */
tinker_status store_end_samplers(struct store *s, const struct store_checkpoint *c,
                                 const char *except, struct arena *arena, const char ***out,
                                 size_t *n, tinker_error *err);
tinker_status store_get_sampler(struct store *s, const char *id, struct arena *arena,
                                struct store_sampler **out, tinker_error *err);
/* One more client of a sampling session: its number, 1 for the first that joins. */
tinker_status store_join_sampler(struct store *s, const char *id, int64_t *number,
                                 tinker_error *err);
/* A custom loss of a session: the request that made it.  Nothing happens when there is one with the
 * number: read it back and compare. */
struct store_loss {
    const char *session_id;
    int64_t seq;
    uint64_t hash;
    const void *body;
    size_t n_body;
};
tinker_status store_add_loss(struct store *s, const struct store_loss *v, tinker_error *err);
tinker_status store_get_loss(struct store *s, const char *session_id, int64_t seq,
                             struct arena *arena, struct store_loss **out, tinker_error *err);
tinker_status store_list_samplers(struct store *s, const char *session, struct arena *arena,
                                  struct store_sampler **out, size_t *n, tinker_error *err);

#endif
