/* routes.h - from a request to the function that responds to it.
 *
 * Handlers do no I/O of their own: they read the request, look at the live state and the store,
 * submit jobs, and fill the response or name a waitlist, after which they are called again.
 *
 * Threads: the HTTP thread and its workers, one request on one thread at a time. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "server/work/live_state.h"
#include "server/http/http_message.h"
#include "wire/wire.h"

typedef void route_handler(struct server *s, struct request *req, struct response *res);

/* An endpoint.  To add one, see README.md. */
struct route {
    const char *method;
    const char *path; /* "{}" stands for one segment: request.param[] gets it, decoded */
    route_handler *handle;
    bool open;    /* no API key needed */
    bool changes; /* refused by a server that is read-only */
    bool large; /* takes data: its body may be as large as the server allows, else ROUTE_BODY_MAX */
};

enum { ROUTE_BODY_MAX = 1 << 20 };

/* The entry point: checks the key, decodes the body, finds the route. */
void routes_handle(void *server, struct request *req, struct response *res);
/* May this request be made at all?  Called before its body is read; false: res says why not. */
bool routes_check(void *server, struct request *req, struct response *res);
/* Is it a health check? */
bool routes_is_check(void *server, const struct request *req);
/* Where to handle it: polls and heartbeats never wait for the large bodies of others. */
enum listener_place routes_place(void *server, const struct request *req);

/* ---- for handlers -------------------------------------------------------------------- */

/* Decode the JSON body; false: the response says why (422). */
bool route_body(struct request *req, struct response *res, const struct wire_type *type, void *out);
/* Answer 200 with a value; an encoding error becomes 500. */
void route_reply(struct response *res, const struct wire_type *type, const void *value);
void route_invalid(struct response *res, const char *message);      /* 422 */
void route_bad_body(struct response *res, const tinker_error *err); /* 422; no memory: 503 */
void route_store_error(struct server *s, struct response *res, const tinker_error *err); /* 500 */
/* A query parameter as a number within limits, or dflt; false: the response says why. */
bool route_query_int(struct request *req, struct response *res, const char *name, int64_t dflt,
                     int64_t max, int64_t *out);
/* Respond to a submission: the future's id, or the error. */
struct arena;
void route_submitted(struct server *s, struct response *res, int submit_status, const char *id,
                     const char *model_id, const tinker_error *err);
/* How a base model is named to this client: see route_train.c. */
const char *route_sdk_base_model(const struct server *s, const struct request *req,
                                 const char *base_model);
/* Does the client know checkpoints of this kind (enum store_kind)?  Older SDKs fail on a list that
 * has another. */
bool route_knows_kind(const struct request *req, int kind);
const char *route_user_urn(struct request *req); /* how identities name the caller */
/* Is the session alive and the user's?  Without lock. */
struct session *route_session(struct server *s, struct request *req, const char *id);
/* The run that the first part of the path names, if it is the user's; NULL and 404 otherwise. */
struct store_model *route_own_run(struct server *s, struct request *req, struct response *res);
/* A checkpoint that the user may see; NULL and 404 (or 500) otherwise. */
struct store_checkpoint *route_checkpoint(struct server *s, struct request *req,
                                          struct response *res, const char *run, int kind,
                                          const char *name, bool public_too);
/* The same from a tinker:// path; 400 when it does not parse. */
struct store_checkpoint *route_checkpoint_path(struct server *s, struct request *req,
                                               struct response *res, const char *path);

/* ---- the handlers ----------------------------------------------------------------------- */
route_handler route_healthz, route_capabilities, route_client_config, route_dynamic_config,
    route_auth_token, route_own_key, route_create_session, route_heartbeat, route_list_sessions,
    route_get_session, route_set_project, route_finish_session, route_search_sessions,
    route_search_checkpoints, route_checkpoint_usage, route_trace_export, route_trace,
    route_telemetry, route_billing, route_audit;
route_handler route_submit; /* a training request: the last part of its path says which */
route_handler route_create_model, route_get_info, route_load_weights, route_weights_info;
route_handler route_create_custom_loss;
route_handler route_create_sampling_session, route_join_sampling_session, route_asample;
route_handler route_get_sampler;
route_handler route_stream_sample;

/* A request to sample, decoded and checked. */
struct sample_submission {
    struct job *job;
    struct session *session;
    struct base *base;
    const char *id; /* of the future, in the request's arena */
};
/* false: the response says why. */
bool route_read_sample(struct server *s, struct request *req, struct response *res,
                       struct sample_submission *out);
route_handler route_retrieve_future, route_retrieve_futures, route_cancel_future;
/* Cancel a sample; false: the user has no such future. */
bool route_cancel_sample(struct server *s, const char *user, const char *id);
route_handler route_list_runs, route_get_run, route_run_checkpoints, route_list_checkpoints,
    route_delete_checkpoint, route_archive, route_publish, route_unpublish, route_set_ttl,
    route_bare_checkpoint, route_bare_archive, route_download, route_copy_weights,
    route_external_urls, route_file;
route_handler route_openai_models, route_openai_completions, route_openai_chat;
route_handler route_messages, route_count_tokens;
route_handler route_tokenizer_info, route_tokenize, route_detokenize;
route_handler route_read_metrics, route_log_metrics, route_read_texts, route_read_note,
    route_put_note, route_run_summaries;
route_handler route_page, route_page_file, route_system;
route_handler route_metrics, route_status;

/* A record as clients see it; texts are in the arena. */
void route_convert_checkpoint(const struct server *s, struct arena *arena,
                              const struct store_checkpoint *c, tinker_checkpoint *out);
/* user_metadata as it was stored, as texts in the arena; *out NULL: none was given.  Some JSON cannot
 * be told as texts: it counts as none, so that it does not hide its owner from lists. */
void route_metadata(const char *json, struct arena *arena, const tinker_named_string **out,
                    size_t *n);

#endif
