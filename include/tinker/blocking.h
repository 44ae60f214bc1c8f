/* blocking.h - every call in a form that waits.
 *
 * One rule for all names.  NAME() submits and returns a future at once; NAME_wait() does the same
 * and waits:
 *
 *     tinker_future *f = tinker_training_optim_step_wait(t, NULL, 60000, &err);
 *     if (!f)
 *         return fail(&err);
 *     use(tinker_future_metrics(f, &n));
 *     tinker_future_free(f);
 *
 * What makes a client or a tokenizer is called create_ (and waits) and request_ (and does not);
 * tinker_training_tokenizer() and tinker_sampler_tokenizer() are of these, too.
 *
 * A NAME_wait() takes the arguments of NAME() and timeout_ms (-1: for ever).  It returns the
 * future, complete and successful, free with tinker_future_free(); or NULL with *err set: what
 * NAME() says, or what the future says, or TINKER_ETIMEDOUT, and then the request is cancelled,
 * which does not undo what the service has begun.  Of one training client or sampler other threads
 * may submit meanwhile.  In a callback of the library, which must not wait, it is TINKER_ESTATE
 * and nothing is sent.
 *
 * Thread safety: any thread, any time. */
#ifndef TINKER_BLOCKING_H
#define TINKER_BLOCKING_H

#include <tinker/call.h>
#include <tinker/loss.h>
#include <tinker/receive.h>
#include <tinker/rest.h>
#include <tinker/sampling.h>
#include <tinker/training.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the service ------------------------------------------------------------------- */

TINKER_API tinker_future *tinker_service_resume_wait(tinker_service *s, const char *request_id,
                                                     const char *request_type, int64_t timeout_ms,
                                                     tinker_error *err);
TINKER_API tinker_future *tinker_service_call_wait(tinker_service *s, const char *method,
                                                   const char *path, const void *body, size_t n,
                                                   const char *content_type, int64_t timeout_ms,
                                                   tinker_error *err);
TINKER_API tinker_future *tinker_service_receive_wait(tinker_service *s, const char *method,
                                                      const char *path, const void *body, size_t n,
                                                      const tinker_receive_options *opts,
                                                      tinker_receive_callback *on_piece,
                                                      void *state, int64_t timeout_ms,
                                                      tinker_error *err);

/* ---- training ---------------------------------------------------------------------- */

TINKER_API tinker_future *tinker_training_forward_backward_wait(tinker_training *t,
                                                                const tinker_datum *data, size_t n,
                                                                const tinker_loss *loss,
                                                                int64_t timeout_ms,
                                                                tinker_error *err);
TINKER_API tinker_future *tinker_training_forward_wait(tinker_training *t, const tinker_datum *data,
                                                       size_t n, const tinker_loss *loss,
                                                       int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_training_optim_step_wait(tinker_training *t,
                                                          const tinker_adam *adam,
                                                          int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_training_save_state_wait(tinker_training *t, const char *name,
                                                          const tinker_save_options *opts,
                                                          int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_training_save_for_sampler_wait(tinker_training *t,
                                                                const char *name,
                                                                const tinker_save_options *opts,
                                                                int64_t timeout_ms,
                                                                tinker_error *err);
TINKER_API tinker_future *tinker_training_load_state_wait(tinker_training *t, const char *path,
                                                          int optimizer, const char *access_token,
                                                          int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_training_info_wait(tinker_training *t, int64_t timeout_ms,
                                                    tinker_error *err);
TINKER_API tinker_future *tinker_training_unload_wait(tinker_training *t, int64_t timeout_ms,
                                                      tinker_error *err);
TINKER_API tinker_future *tinker_training_forward_backward_custom_wait(
    struct tinker_training *t, const tinker_datum *data, size_t n, tinker_loss_fn *fn, void *state,
    const tinker_custom_options *opts, int64_t timeout_ms, tinker_error *err);

/* ---- sampling ---------------------------------------------------------------------- */

TINKER_API tinker_future *tinker_sampler_base_model_wait(tinker_sampler *s, int64_t timeout_ms,
                                                         tinker_error *err);
TINKER_API tinker_future *tinker_sampler_sample_wait(tinker_sampler *s,
                                                     const tinker_model_input *prompt,
                                                     const tinker_sampling_params *params,
                                                     const tinker_sample_options *opts,
                                                     int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_sampler_logprobs_wait(tinker_sampler *s,
                                                       const tinker_model_input *prompt,
                                                       int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_sampler_sample_stream_wait(
    tinker_sampler *s, const tinker_model_input *prompt, const tinker_sampling_params *params,
    const tinker_sample_options *opts, tinker_stream_callback *on_event, void *state,
    int64_t timeout_ms, tinker_error *err);

/* ---- rest -------------------------------------------------------------------------- */

TINKER_API tinker_future *tinker_rest_list_checkpoints_wait(tinker_rest *r, const char *run_id,
                                                            int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_list_user_checkpoints_wait(tinker_rest *r,
                                                                 const tinker_page *page,
                                                                 int64_t timeout_ms,
                                                                 tinker_error *err);
TINKER_API tinker_future *tinker_rest_delete_checkpoint_wait(tinker_rest *r, const char *path,
                                                             int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_publish_checkpoint_wait(tinker_rest *r, const char *path,
                                                              int64_t timeout_ms,
                                                              tinker_error *err);
TINKER_API tinker_future *tinker_rest_unpublish_checkpoint_wait(tinker_rest *r, const char *path,
                                                                int64_t timeout_ms,
                                                                tinker_error *err);
TINKER_API tinker_future *tinker_rest_set_checkpoint_ttl_wait(tinker_rest *r, const char *path,
                                                              int64_t ttl_seconds,
                                                              int64_t timeout_ms,
                                                              tinker_error *err);
TINKER_API tinker_future *tinker_rest_checkpoint_archive_wait(tinker_rest *r, const char *path,
                                                              int64_t timeout_ms,
                                                              tinker_error *err);
TINKER_API tinker_future *tinker_rest_download_checkpoint_wait(tinker_rest *r, const char *path,
                                                               const char *file,
                                                               const tinker_download_options *opts,
                                                               int64_t timeout_ms,
                                                               tinker_error *err);
TINKER_API tinker_future *tinker_rest_list_training_runs_wait(tinker_rest *r,
                                                              const tinker_page *page,
                                                              int64_t timeout_ms,
                                                              tinker_error *err);
TINKER_API tinker_future *tinker_rest_training_run_wait(tinker_rest *r, const char *id_or_path,
                                                        tinker_scope scope, int64_t timeout_ms,
                                                        tinker_error *err);
TINKER_API tinker_future *tinker_rest_weights_info_wait(tinker_rest *r, const char *path,
                                                        int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_list_sessions_wait(tinker_rest *r, const tinker_page *page,
                                                         int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_session_wait(tinker_rest *r, const char *session_id,
                                                   tinker_scope scope, int64_t timeout_ms,
                                                   tinker_error *err);
TINKER_API tinker_future *tinker_rest_assign_project_wait(tinker_rest *r, const char *session_id,
                                                          const char *project_id,
                                                          int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_export_trace_wait(tinker_rest *r, const char *session_id,
                                                        int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_sampler_wait(tinker_rest *r, const char *sampler_id,
                                                   int64_t timeout_ms, tinker_error *err);
TINKER_API tinker_future *tinker_rest_whoami_wait(tinker_rest *r, int64_t timeout_ms,
                                                  tinker_error *err);
TINKER_API tinker_future *tinker_rest_billing_usage_wait(tinker_rest *r, const char *start,
                                                         const char *end, int64_t timeout_ms,
                                                         tinker_error *err);
TINKER_API tinker_future *tinker_rest_audit_log_wait(tinker_rest *r, const char *day,
                                                     int checkpoints_only, int64_t timeout_ms,
                                                     tinker_error *err);
TINKER_API tinker_future *tinker_service_capabilities_wait(tinker_service *s, int64_t timeout_ms,
                                                           tinker_error *err);
TINKER_API tinker_future *tinker_service_health_wait(tinker_service *s, int64_t timeout_ms,
                                                     tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
