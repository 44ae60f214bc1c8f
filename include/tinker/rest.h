/* rest.h - what the service keeps: sessions, training runs, checkpoints, usage.
 *
 * Every call returns a future at once; the accessor of its result is named with it.
 * These calls open no session, so a program that only lists things never starts one.
 * Results are borrowed until tinker_future_free(); accessors give NULL while pending,
 * after a failure, and for a future of another kind.
 *
 * Lists have a number, `n`, and an accessor tinker_<item>_at(list, i), which gives NULL for
 * i >= n.  Their items have no public array, so that a later release can add fields to an
 * item without breaking programs that were compiled before:
 *
 *     const tinker_checkpoints *all = tinker_future_checkpoints(f);
 *     for (size_t i = 0; i < all->n; i++)
 *         puts(tinker_checkpoint_at(all, i)->path);
 *
 * Times are microseconds since 1970 UTC; TINKER_NO_TIME means none. */
#ifndef TINKER_REST_H
#define TINKER_REST_H

#include <tinker/service.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TINKER_NO_TIME INT64_MIN

/* Thread safety: any thread, any time. */
typedef struct tinker_rest tinker_rest;

/* A cheap handle; sends nothing.  Free it before the service. */
TINKER_API tinker_rest *tinker_service_create_rest(tinker_service *s, tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_rest_free(tinker_rest *r);

/* Whose items: the user's own, or all that the user may read. */
typedef enum tinker_scope { TINKER_SCOPE_OWNED = 0, TINKER_SCOPE_ACCESSIBLE = 1 } tinker_scope;

typedef struct tinker_page {
    size_t size;   /* set by TINKER_PAGE_INIT */
    int64_t limit; /* 0: the default of the call */
    int64_t offset;
    tinker_scope scope;
    const char *project_id; /* training runs of one project, or NULL */
} tinker_page;
#define TINKER_PAGE_INIT                                    \
    {                                                       \
        sizeof(tinker_page), 0, 0, TINKER_SCOPE_OWNED, NULL \
    }

typedef struct tinker_cursor {
    int64_t offset, limit, total_count;
} tinker_cursor;

/* ---- checkpoints ----------------------------------------------------------------- */

typedef enum tinker_checkpoint_kind {
    TINKER_CHECKPOINT_TRAINING = 0, /* training state */
    TINKER_CHECKPOINT_SAMPLER = 1,  /* weights to sample from */
    TINKER_CHECKPOINT_EXTERNAL = 2, /* weights in another format, for download */
    TINKER_CHECKPOINT_UNKNOWN = -1  /* the path, or the service, does not say */
} tinker_checkpoint_kind;

typedef struct tinker_checkpoint {
    const char *id; /* "weights/step-100" */
    tinker_checkpoint_kind kind;
    int64_t time_us;
    const char *path;   /* "tinker://…" */
    int64_t size_bytes; /* -1: unknown */
    int is_public;
    int64_t expires_us;
    const tinker_named_string *user_metadata; /* see tinker_save_options */
    size_t n_user_metadata;
    const char *base_model; /* NULL: the service does not say */
} tinker_checkpoint;

typedef struct tinker_checkpoints {
    size_t n;
    const void *items;           /* see tinker_checkpoint_at() */
    const tinker_cursor *cursor; /* NULL: the list is complete */
} tinker_checkpoints;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_checkpoint *tinker_checkpoint_at(const tinker_checkpoints *list, size_t i);

/* Of one training run; result: tinker_future_checkpoints(). */
TINKER_API tinker_future *tinker_rest_list_checkpoints(tinker_rest *r, const char *run_id,
                                                       tinker_error *err);
/* Of the user, newest first, 100 by default; result: tinker_future_checkpoints(). */
TINKER_API tinker_future *tinker_rest_list_user_checkpoints(tinker_rest *r, const tinker_page *page,
                                                            tinker_error *err);
TINKER_API const tinker_checkpoints *tinker_future_checkpoints(const tinker_future *f);

/* Where the next page of a search begins. */
typedef struct tinker_checkpoint_cursor {
    int64_t created_us;
    const char *uuid; /* opaque: what the service said */
} tinker_checkpoint_cursor;

/* Which checkpoints to find; empty: all of the user's own.  All conditions must hold. */
typedef struct tinker_checkpoint_query {
    size_t size; /* set by TINKER_CHECKPOINT_QUERY_INIT */
    const char *const *project_ids;
    size_t n_project_ids;
    const char *const *base_models; /* any of these */
    size_t n_base_models;
    const tinker_named_string *user_metadata; /* all of these pairs */
    size_t n_user_metadata;
    tinker_checkpoint_kind kind;   /* UNKNOWN: any */
    tinker_scope scope;            /* the user's own, or all that may be read */
    const char *const *owner_urns; /* instead: those of these users, at most 10 */
    size_t n_owner_urns;
    int64_t limit;                          /* of a page: 1 to 200, 0: 50 */
    const tinker_checkpoint_cursor *cursor; /* `next` of the page before, NULL: the first page */
} tinker_checkpoint_query;
#define TINKER_CHECKPOINT_QUERY_INIT                                                           \
    {                                                                                          \
        sizeof(tinker_checkpoint_query), NULL, 0, NULL, 0, NULL, 0, TINKER_CHECKPOINT_UNKNOWN, \
            TINKER_SCOPE_OWNED, NULL, 0, 0, NULL                                               \
    }

typedef struct tinker_checkpoint_matches {
    tinker_checkpoints list;              /* newest first, see tinker_checkpoint_at() */
    const tinker_checkpoint_cursor *next; /* NULL: there are no more */
} tinker_checkpoint_matches;
/* Search checkpoints; query NULL: the user's own.  The query is copied.  A service without this
 * search answers with status 404 or 405.  Only the types of this request are published, not its
 * address: it is that of `tinker serve`, by analogy with the search for sessions.  Result:
 * tinker_future_checkpoint_matches().  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_rest_search_checkpoints(tinker_rest *r,
                                                         const tinker_checkpoint_query *query,
                                                         tinker_error *err);
TINKER_API const tinker_checkpoint_matches *
tinker_future_checkpoint_matches(const tinker_future *f);

/* The following take a path "tinker://<run>/<weights|sampler_weights|external_weights>/<name>", or
 * "tinker://<run>/<name>" of a service that names no kind, and have no result but success.
 * Publishing what is public, or hiding what is private, fails at once with http_status 409, and
 * deleting what is not there with 404; unless the response to an earlier attempt of the same call
 * was lost, which may have done it: that is a success. */
TINKER_API tinker_future *tinker_rest_delete_checkpoint(tinker_rest *r, const char *path,
                                                        tinker_error *err);
TINKER_API tinker_future *tinker_rest_publish_checkpoint(tinker_rest *r, const char *path,
                                                         tinker_error *err);
TINKER_API tinker_future *tinker_rest_unpublish_checkpoint(tinker_rest *r, const char *path,
                                                           tinker_error *err);
/* Let it expire after this time; 0 removes the limit. */
TINKER_API tinker_future *tinker_rest_set_checkpoint_ttl(tinker_rest *r, const char *path,
                                                         int64_t ttl_seconds, tinker_error *err);

typedef struct tinker_copy_options {
    size_t size;              /* set by TINKER_COPY_OPTIONS_INIT */
    const char *project_id;   /* that will own the copy; NULL: that of the service */
    int64_t ttl_seconds;      /* 0: keep forever; the limit of the source is not copied */
    const char *access_token; /* credential of the account that owns the source, or NULL */
} tinker_copy_options;
#define TINKER_COPY_OPTIONS_INIT                   \
    {                                              \
        sizeof(tinker_copy_options), NULL, 0, NULL \
    }

/* Copy training state or weights to sample from, of any account that can be read, into a project.
 * The copy belongs to a new training run, which cannot be trained.  Retries do not make a second
 * copy.  opts NULL: the project of the service.  Result:
 * tinker_future_saved_path() of the copy.  NULL with *err set: TINKER_EINVAL, also when there is no
 * project; TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_rest_copy_checkpoint(tinker_rest *r, const char *path,
                                                      const tinker_copy_options *opts,
                                                      tinker_error *err);

typedef struct tinker_files {
    const tinker_named_string *files; /* name in the checkpoint; signed URL: a secret */
    size_t n;
    int64_t expires_us; /* when the URLs expire */
} tinker_files;
/* A URL for each file of external weights ("tinker://<run>/external_weights/<name>", see
 * tinker_training_save_external()).  Result: tinker_future_files().  NULL with *err set:
 * TINKER_EINVAL, also for other checkpoints; TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_rest_get_checkpoint_files(tinker_rest *r, const char *path,
                                                           tinker_error *err);
TINKER_API const tinker_files *tinker_future_files(const tinker_future *f);

typedef struct tinker_archive {
    const char *url; /* signed: a secret */
    int64_t expires_us;
} tinker_archive;
/* URL of a tar file of the checkpoint.  The service may need minutes to make it; the future
 * waits.  Result: tinker_future_archive(). */
TINKER_API tinker_future *tinker_rest_get_checkpoint_archive(tinker_rest *r, const char *path,
                                                             tinker_error *err);
TINKER_API const tinker_archive *tinker_future_archive(const tinker_future *f);

/* Called on the callback thread (see future.h), once the total is known.  A value other than 0 ends
 * the download.  Not called after tinker_future_free() has returned.  done starts again from 0 when
 * a lost connection makes the download begin again. */
typedef int tinker_progress_fn(int64_t done, int64_t total, void *state);

typedef struct tinker_download_options {
    size_t size; /* set by TINKER_DOWNLOAD_OPTIONS_INIT */
    int force;   /* replace an existing target */
    tinker_progress_fn *progress;
    void *progress_state;
} tinker_download_options;
#define TINKER_DOWNLOAD_OPTIONS_INIT                   \
    {                                                  \
        sizeof(tinker_download_options), 0, NULL, NULL \
    }

/* Stream the archive of a checkpoint into `file`, in constant memory.  It appears under
 * its name when it is complete; a failure leaves nothing behind.  Result:
 * tinker_future_file(). */
TINKER_API tinker_future *tinker_rest_download_checkpoint(tinker_rest *r, const char *path,
                                                          const char *file,
                                                          const tinker_download_options *opts,
                                                          tinker_error *err);

/* Fetch the files of external weights into a new directory `dir`, four at once.  Lost connections go
 * on where they were, addresses that have ended are asked for again, and lengths and the SHA-256 that
 * the server names are checked.  The directory appears under its name when all is complete, with the
 * hashes in SHA256SUMS; a failure leaves nothing behind.  Result: tinker_future_file(), the directory.
 * NULL with *err set: TINKER_EINVAL, also when dir exists without `force`; TINKER_ENOMEM. */
TINKER_API tinker_future *tinker_rest_download_files(tinker_rest *r, const char *path,
                                                     const char *dir,
                                                     const tinker_download_options *opts,
                                                     tinker_error *err);

/* Unpack such an archive, a plain tar or one in gzip, into a new directory `dir`, which appears
 * when it is complete.  Files and directories only: an archive with links or devices, or with
 * names that lead out of dir, is refused as a whole; so is a gzip archive that unpacks to more than
 * 64 MB plus 100 times its size.  The files are those of the service, in which the unembedding and
 * experts have names that PEFT drops without a word: tinker_adapter_to_peft() of engine.h, or the
 * command `tinker checkpoint download`, makes files for PEFT of them.  TINKER_EINVAL names the place; TINKER_ESTATE for the file
 * system.  Works in the caller's thread, for as long as the disk takes; nothing is sent. */
TINKER_API tinker_status tinker_archive_extract(const char *file, const char *dir,
                                                tinker_error *err);

/* tinker://<training run>/<checkpoint id>, taken apart.  The Tinker service names the kind in the
 * path; other services may have two parts only, "tinker://<run>/<name>". */
typedef struct tinker_checkpoint_path {
    char training_run[256];
    char checkpoint_id[256]; /* "weights/<name>", "sampler_weights/<name>", …, or "<name>" */
    char name[256];
    tinker_checkpoint_kind kind; /* UNKNOWN: the path names none */
} tinker_checkpoint_path;
/* Fill *out from a path.  TINKER_EINVAL says what a path looks like, or that a part of it has more
 * than 255 bytes; *out is unchanged then.  Sends nothing. */
TINKER_API tinker_status tinker_checkpoint_path_parse(const char *path, tinker_checkpoint_path *out,
                                                      tinker_error *err);

/* ---- training runs ---------------------------------------------------------------- */

typedef struct tinker_training_run {
    const char *id, *base_model, *owner;
    int is_lora, corrupted;
    int64_t lora_rank; /* -1: unknown */
    int64_t last_request_us;
    const tinker_checkpoint *last_checkpoint, *last_sampler_checkpoint; /* NULL: none */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
} tinker_training_run;

typedef struct tinker_training_runs {
    size_t n;
    const void *items; /* see tinker_training_run_at() */
    tinker_cursor cursor;
} tinker_training_runs;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_training_run *tinker_training_run_at(const tinker_training_runs *list,
                                                             size_t i);

/* Newest first, 20 by default; result: tinker_future_training_runs(). */
TINKER_API tinker_future *tinker_rest_list_training_runs(tinker_rest *r, const tinker_page *page,
                                                         tinker_error *err);
TINKER_API const tinker_training_runs *tinker_future_training_runs(const tinker_future *f);
/* One run, by its id or by the path of one of its checkpoints. */
TINKER_API tinker_future *tinker_rest_get_training_run(tinker_rest *r, const char *id_or_path,
                                                       tinker_scope scope, tinker_error *err);
TINKER_API const tinker_training_run *tinker_future_training_run(const tinker_future *f);

typedef struct tinker_weights_info {
    const char *base_model;
    int is_lora;
    int64_t lora_rank; /* -1: unknown */
    int train_unembed, train_mlp, train_attn;
} tinker_weights_info;
TINKER_API tinker_future *tinker_rest_get_weights_info(tinker_rest *r, const char *path,
                                                       tinker_error *err);
TINKER_API const tinker_weights_info *tinker_future_weights_info(const tinker_future *f);

/* ---- sessions and samplers --------------------------------------------------------- */

typedef struct tinker_strings {
    const char *const *v;
    size_t n;
} tinker_strings;

/* Ids of sessions, newest first, 20 by default; result: tinker_future_strings(). */
TINKER_API tinker_future *tinker_rest_list_sessions(tinker_rest *r, const tinker_page *page,
                                                    tinker_error *err);
TINKER_API const tinker_strings *tinker_future_strings(const tinker_future *f);

typedef struct tinker_session {
    tinker_strings training_run_ids, sampler_ids;
    const char *display_name; /* NULL: none */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
} tinker_session;
TINKER_API tinker_future *tinker_rest_get_session(tinker_rest *r, const char *session_id,
                                                  tinker_scope scope, tinker_error *err);
TINKER_API const tinker_session *tinker_future_session(const tinker_future *f);

/* States of a session, one bit each. */
enum {
    TINKER_SESSION_ACTIVE = 1,
    TINKER_SESSION_SUCCEEDED = 2, /* these three as tinker_service_finish() said */
    TINKER_SESSION_ERRORED = 4,
    TINKER_SESSION_INTERRUPTED = 8,
    TINKER_SESSION_FAILED = 16,  /* by one of its requests, models or samplers */
    TINKER_SESSION_CANCELED = 32 /* in the console */
};

typedef struct tinker_session_summary {
    const char *id, *owner, *project_id;
    int64_t created_us;
    int state;                /* TINKER_SESSION_…; 0: ended for an unknown reason */
    const char *detail;       /* of the end, NULL: none */
    const char *failed_id;    /* FAILED: the request, model or sampler, NULL: unknown */
    const char *display_name; /* NULL: none */
    const tinker_named_string *user_metadata;
    size_t n_user_metadata;
    int64_t n_checkpoints, checkpoint_bytes; /* -1: unknown */
} tinker_session_summary;

/* Where the next page of a search begins. */
typedef struct tinker_session_cursor {
    int64_t created_us;
    const char *session_id;
} tinker_session_cursor;

typedef struct tinker_session_summaries {
    size_t n;
    const void *items;                 /* newest first, see tinker_session_summary_at() */
    const tinker_session_cursor *next; /* NULL: there are no more */
} tinker_session_summaries;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_session_summary *
tinker_session_summary_at(const tinker_session_summaries *list, size_t i);

/* Which sessions to find; empty: all of the user's own.  A session must match the id or the display
 * name, if given, and all other conditions. */
typedef struct tinker_session_query {
    size_t size;              /* set by TINKER_SESSION_QUERY_INIT */
    const char *session_id;   /* exactly this one */
    const char *display_name; /* its words are part of the name, in any case */
    const char *const *project_ids;
    size_t n_project_ids;
    const tinker_named_string *user_metadata; /* all of these pairs */
    size_t n_user_metadata;
    tinker_scope scope;            /* the user's own, or all that may be read */
    const char *const *owner_urns; /* instead: those of these users, at most 10 */
    size_t n_owner_urns;
    int states;                          /* TINKER_SESSION_… added up, 0: any */
    int64_t limit;                       /* of a page: 1 to 200, 0: 50 */
    const tinker_session_cursor *cursor; /* `next` of the page before, NULL: the first page */
} tinker_session_query;
#define TINKER_SESSION_QUERY_INIT                                                                \
    {                                                                                            \
        sizeof(tinker_session_query), NULL, NULL, NULL, 0, NULL, 0, TINKER_SCOPE_OWNED, NULL, 0, \
            0, 0, NULL                                                                           \
    }

/* Search sessions; query NULL: the user's own.  The query is copied.  Result:
 * tinker_future_session_summaries().  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_future *
tinker_rest_search_sessions(tinker_rest *r, const tinker_session_query *query, tinker_error *err);
TINKER_API const tinker_session_summaries *tinker_future_session_summaries(const tinker_future *f);

TINKER_API tinker_future *tinker_rest_assign_project(tinker_rest *r, const char *session_id,
                                                     const char *project_id, tinker_error *err);
/* URL of the trace of a session; the future waits until it is ready.  Result:
 * tinker_future_file(). */
TINKER_API tinker_future *tinker_rest_export_trace(tinker_rest *r, const char *session_id,
                                                   tinker_error *err);

typedef struct tinker_sampler_info {
    const char *sampler_id, *base_model;
    const char *model_path; /* NULL: the base model itself */
} tinker_sampler_info;
TINKER_API tinker_future *tinker_rest_get_sampler(tinker_rest *r, const char *sampler_id,
                                                  tinker_error *err);
TINKER_API const tinker_sampler_info *tinker_future_sampler_info(const tinker_future *f);

/* ---- all of a list ------------------------------------------------------------------- */

/* Goes through a list of any length, one page at a time.  Every item that is there from the
 * beginning to the end comes exactly once, whatever is created or deleted meanwhile, the item
 * just read included; what is created meanwhile may come or not.  Memory: one page, and 32 bytes per
 * item that was seen; a list of more than 4 million items ends with TINKER_ENOMEM.
 * Thread safety: one thread at a time. */
typedef struct tinker_pager tinker_pager;

/* page (may be NULL): where to begin, how many per request (100 by default), and whose.  Nothing
 * is sent before the first next.  NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM.  Free them before r. */
TINKER_API tinker_pager *tinker_rest_all_training_runs(tinker_rest *r, const tinker_page *page,
                                                       tinker_error *err);
TINKER_API tinker_pager *tinker_rest_all_sessions(tinker_rest *r, const tinker_page *page,
                                                  tinker_error *err);
/* run_id NULL: of the user. */
TINKER_API tinker_pager *tinker_rest_all_checkpoints(tinker_rest *r, const char *run_id,
                                                     const tinker_page *page, tinker_error *err);

/* Go to the next item.  TINKER_OK: it is there, or, when the accessor gives NULL, the list is
 * through.  TINKER_ETIMEDOUT: no response within timeout_ms (-1: forever); call it again.  Other
 * errors are final: they come again.  Blocks, once per page. */
TINKER_API tinker_status tinker_pager_next(tinker_pager *p, int64_t timeout_ms, tinker_error *err);
/* The page that is under way, for programs that do not wait: when tinker_pager_next() with a
 * timeout_ms of 0 says TINKER_ETIMEDOUT, put this future into a queue, give it a deadline or cancel
 * it, and call tinker_pager_next() again once it is complete.  It is yours: free it with
 * tinker_future_free(), before or after the pager.  A page that is canceled ends the list with
 * TINKER_ECANCELED.  NULL: no page is under way. */
TINKER_API tinker_future *tinker_pager_future(tinker_pager *p);
/* The item, by the kind of the list; NULL before the first, after the last, after an error, and
 * for another kind.  Borrowed until the next call of tinker_pager_next(). */
TINKER_API const tinker_training_run *tinker_pager_training_run(const tinker_pager *p);
TINKER_API const char *tinker_pager_session(const tinker_pager *p);
TINKER_API const tinker_checkpoint *tinker_pager_checkpoint(const tinker_pager *p);
/* No other call on the object may be in progress. */
TINKER_API void tinker_pager_free(tinker_pager *p);

/* ---- the service itself ---------------------------------------------------------------- */

typedef struct tinker_supported_model {
    const char *name;           /* NULL: unnamed */
    int64_t max_context_length; /* -1: unknown */
    int trainable, sampleable;  /* -1: the service does not say */
} tinker_supported_model;

typedef struct tinker_capabilities {
    size_t n;
    const void *items; /* models, see tinker_supported_model_at() */
    int stream_sample; /* tinker_sampler_stream() works */
} tinker_capabilities;
/* Item i, borrowed as the list is; NULL past the end. */
TINKER_API const tinker_supported_model *tinker_supported_model_at(const tinker_capabilities *list,
                                                                   size_t i);
/* What the service can do.  Result: tinker_future_capabilities(). */
TINKER_API tinker_future *tinker_service_get_capabilities(tinker_service *s, tinker_error *err);
TINKER_API const tinker_capabilities *tinker_future_capabilities(const tinker_future *f);
/* Is it there and healthy?  No result but success. */
TINKER_API tinker_future *tinker_service_check_health(tinker_service *s, tinker_error *err);

/* "training", "sampler", "external": borrowed, static, NULL for an invalid value.  Parsing accepts
 * any case; TINKER_EINVAL for an unknown name, which leaves *out unchanged. */
TINKER_API const char *tinker_checkpoint_kind_name(tinker_checkpoint_kind value);
TINKER_API tinker_status tinker_checkpoint_kind_parse(const char *text, tinker_checkpoint_kind *out,
                                                      tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
