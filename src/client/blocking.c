/* blocking.c - see <tinker/blocking.h>: the calls that return futures, waited for. */
#include <tinker/blocking.h>

#include "client/service.h"

/* Asked before anything is sent. */
static bool may_wait(tinker_error *err)
{
    return runtime_may_block("a call that waits", err) == TINKER_OK;
}

/* ---- the service ------------------------------------------------------------------- */

tinker_future *tinker_service_resume_wait(tinker_service *s, const char *request_id,
                                          const char *request_type, int64_t timeout_ms,
                                          tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_service_resume(s, request_id, request_type, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_service_call_wait(tinker_service *s, const char *method, const char *path,
                                        const void *body, size_t n, const char *content_type,
                                        int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_service_call(s, method, path, body, n, content_type, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_service_receive_wait(tinker_service *s, const char *method, const char *path,
                                           const void *body, size_t n,
                                           const tinker_receive_options *opts,
                                           tinker_receive_callback *on_piece, void *state,
                                           int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_service_receive(s, method, path, body, n, opts, on_piece, state, err)
                      : NULL;
    return service_await(f, timeout_ms, err);
}

/* ---- training ---------------------------------------------------------------------- */

tinker_future *tinker_training_forward_backward_wait(tinker_training *t, const tinker_datum *data,
                                                     size_t n, const tinker_loss *loss,
                                                     int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_training_forward_backward(t, data, n, loss, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_forward_wait(tinker_training *t, const tinker_datum *data, size_t n,
                                            const tinker_loss *loss, int64_t timeout_ms,
                                            tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_forward(t, data, n, loss, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_optim_step_wait(tinker_training *t, const tinker_adam *adam,
                                               int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_optim_step(t, adam, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_save_state_wait(tinker_training *t, const char *name,
                                               const tinker_save_options *opts, int64_t timeout_ms,
                                               tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_save_state(t, name, opts, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_save_for_sampler_wait(tinker_training *t, const char *name,
                                                     const tinker_save_options *opts,
                                                     int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_save_for_sampler(t, name, opts, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_load_state_wait(tinker_training *t, const char *path, int optimizer,
                                               const char *access_token, int64_t timeout_ms,
                                               tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_training_load_state(t, path, optimizer, access_token, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_info_wait(tinker_training *t, int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_info(t, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_unload_wait(tinker_training *t, int64_t timeout_ms,
                                           tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_training_unload(t, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_training_forward_backward_custom_wait(struct tinker_training *t,
                                                            const tinker_datum *data, size_t n,
                                                            tinker_loss_fn *fn, void *state,
                                                            const tinker_custom_options *opts,
                                                            int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err)
            ? tinker_training_request_forward_backward_custom(t, data, n, fn, state, opts, err)
            : NULL;
    return service_await(f, timeout_ms, err);
}

/* ---- sampling ---------------------------------------------------------------------- */

tinker_future *tinker_sampler_base_model_wait(tinker_sampler *s, int64_t timeout_ms,
                                              tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_sampler_base_model(s, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_sampler_sample_wait(tinker_sampler *s, const tinker_model_input *prompt,
                                          const tinker_sampling_params *params,
                                          const tinker_sample_options *opts, int64_t timeout_ms,
                                          tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_sampler_sample(s, prompt, params, opts, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_sampler_logprobs_wait(tinker_sampler *s, const tinker_model_input *prompt,
                                            int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_sampler_logprobs(s, prompt, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_sampler_sample_stream_wait(tinker_sampler *s,
                                                 const tinker_model_input *prompt,
                                                 const tinker_sampling_params *params,
                                                 const tinker_sample_options *opts,
                                                 tinker_stream_callback *on_event, void *state,
                                                 int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_sampler_sample_stream(s, prompt, params, opts, on_event, state, err)
                      : NULL;
    return service_await(f, timeout_ms, err);
}

/* ---- rest -------------------------------------------------------------------------- */

tinker_future *tinker_rest_list_checkpoints_wait(tinker_rest *r, const char *run_id,
                                                 int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_list_checkpoints(r, run_id, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_list_user_checkpoints_wait(tinker_rest *r, const tinker_page *page,
                                                      int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_list_user_checkpoints(r, page, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_delete_checkpoint_wait(tinker_rest *r, const char *path,
                                                  int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_delete_checkpoint(r, path, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_publish_checkpoint_wait(tinker_rest *r, const char *path,
                                                   int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_publish_checkpoint(r, path, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_unpublish_checkpoint_wait(tinker_rest *r, const char *path,
                                                     int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_unpublish_checkpoint(r, path, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_set_checkpoint_ttl_wait(tinker_rest *r, const char *path,
                                                   int64_t ttl_seconds, int64_t timeout_ms,
                                                   tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_rest_set_checkpoint_ttl(r, path, ttl_seconds, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_checkpoint_archive_wait(tinker_rest *r, const char *path,
                                                   int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_checkpoint_archive(r, path, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_download_checkpoint_wait(tinker_rest *r, const char *path,
                                                    const char *file,
                                                    const tinker_download_options *opts,
                                                    int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_rest_download_checkpoint(r, path, file, opts, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_list_training_runs_wait(tinker_rest *r, const tinker_page *page,
                                                   int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_list_training_runs(r, page, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_training_run_wait(tinker_rest *r, const char *id_or_path,
                                             tinker_scope scope, int64_t timeout_ms,
                                             tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_training_run(r, id_or_path, scope, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_weights_info_wait(tinker_rest *r, const char *path, int64_t timeout_ms,
                                             tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_weights_info(r, path, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_list_sessions_wait(tinker_rest *r, const tinker_page *page,
                                              int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_list_sessions(r, page, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_session_wait(tinker_rest *r, const char *session_id, tinker_scope scope,
                                        int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_session(r, session_id, scope, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_assign_project_wait(tinker_rest *r, const char *session_id,
                                               const char *project_id, int64_t timeout_ms,
                                               tinker_error *err)
{
    tinker_future *f =
        may_wait(err) ? tinker_rest_assign_project(r, session_id, project_id, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_export_trace_wait(tinker_rest *r, const char *session_id,
                                             int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_export_trace(r, session_id, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_sampler_wait(tinker_rest *r, const char *sampler_id, int64_t timeout_ms,
                                        tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_sampler(r, sampler_id, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_whoami_wait(tinker_rest *r, int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_whoami(r, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_billing_usage_wait(tinker_rest *r, const char *start, const char *end,
                                              int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_billing_usage(r, start, end, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_rest_audit_log_wait(tinker_rest *r, const char *day, int checkpoints_only,
                                          int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_rest_audit_log(r, day, checkpoints_only, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_service_capabilities_wait(tinker_service *s, int64_t timeout_ms,
                                                tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_service_capabilities(s, err) : NULL;
    return service_await(f, timeout_ms, err);
}

tinker_future *tinker_service_health_wait(tinker_service *s, int64_t timeout_ms, tinker_error *err)
{
    tinker_future *f = may_wait(err) ? tinker_service_health(s, err) : NULL;
    return service_await(f, timeout_ms, err);
}
