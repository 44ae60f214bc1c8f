/* rest_types.c - see rest_types.h.  A decoded wire struct lives in the future's arena, so
 * the public one may point into it. */
#include "client/rest/rest_types.h"

#include <math.h>
#include <string.h>
#include <tinker/rest.h>
#include <tinker/training.h>
#include <tinker/account.h>
#include "base/array.h"
#include "base/err.h"
#include "wire/wire.h"

const char type_checkpoints[] = "checkpoints", type_training_run[] = "training_run",
           type_training_runs[] = "training_runs", type_weights_info[] = "weights_info",
           type_strings[] = "strings", type_session[] = "session",
           type_sampler_info[] = "sampler_info", type_identity[] = "identity",
           type_billing[] = "billing", type_audit[] = "audit", type_capabilities[] = "capabilities",
           type_model_info[] = "model_info", type_archive[] = "archive", type_files[] = "files",
           type_sessions[] = "sessions", type_storage[] = "storage";

/* Decode into *wire, and make room for the public struct, which becomes the value. */
static tinker_status decode(struct rest_op *r, const struct wire_type *type, const char *body,
                            size_t n, void *wire, size_t size, void **out, tinker_error *err)
{
    struct tinker_future *f = r->op.future;
    tinker_status s = wire_decode_json(type, body, n, WIRE_LENIENT, &f->arena, wire, err);
    if (s != TINKER_OK)
        return s;
    *out = arena_alloc(&f->arena, size);
    f->value = *out;
    return *out ? TINKER_OK : err_nomem(err, "result");
}

static int64_t time_of(struct wire_time t)
{
    return t.has ? t.us : TINKER_NO_TIME;
}

static double double_of(struct wire_opt_double v)
{
    return v.has ? v.value : NAN;
}

static int flag_of(struct wire_opt_bool v)
{
    return v.has ? v.value : -1;
}

static int64_t int_of(struct wire_opt_int v)
{
    return v.has ? v.value : -1;
}

/* ---- checkpoints and runs ----------------------------------------------------------------- */

static tinker_checkpoint checkpoint_of(const struct wire_checkpoint *w)
{
    tinker_checkpoint_kind kind = TINKER_CHECKPOINT_TRAINING;
    tinker_checkpoint_kind_parse(w->checkpoint_type, &kind, NULL);
    return (tinker_checkpoint){
        .id = w->checkpoint_id,
        .sampler = kind == TINKER_CHECKPOINT_SAMPLER,
        .time_us = time_of(w->time),
        .path = w->tinker_path,
        .size_bytes = int_of(w->size_bytes),
        .is_public = w->is_public,
        .expires_us = time_of(w->expires_at),
        .kind = kind,
        .user_metadata = w->user_metadata.v,
        .n_user_metadata = w->user_metadata.has ? w->user_metadata.n : 0,
    };
}

static tinker_cursor cursor_of(const struct wire_cursor *w)
{
    return (tinker_cursor){ w->offset, w->limit, w->total_count };
}

tinker_status read_checkpoints(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_checkpoints_list_response w;
    tinker_checkpoints *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s =
        decode(r, &wire_checkpoints_list_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_checkpoint *v = arena_array(a, w.n_checkpoints + 1, sizeof(*v));
    tinker_cursor *cursor = arena_alloc(a, sizeof(*cursor));
    if (!v || !cursor)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_checkpoints; i++)
        v[i] = checkpoint_of(&w.checkpoints[i]);
    if (w.cursor)
        *cursor = cursor_of(w.cursor);
    *out = (tinker_checkpoints){ v, w.n_checkpoints, w.cursor ? cursor : NULL };
    return TINKER_OK;
}

tinker_status read_copied(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_copy_weights_response w;
    struct tinker_future *f = r->op.future;
    tinker_status s =
        wire_decode_json(&wire_copy_weights_response, b, n, WIRE_LENIENT, &f->arena, &w, err);
    if (s == TINKER_OK)
        f->value = w.tinker_path;
    return s;
}

tinker_status read_files(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_external_weights_urls_response w;
    tinker_files *out;
    tinker_status s =
        decode(r, &wire_external_weights_urls_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_files){ w.urls.v, w.urls.n, time_of(w.expires) };
    return s;
}

static bool copy_checkpoint(struct arena *a, const struct wire_checkpoint *w,
                            const tinker_checkpoint **out)
{
    if (!w)
        return true;
    tinker_checkpoint *c = arena_alloc(a, sizeof(*c));
    if (c)
        *c = checkpoint_of(w);
    *out = c;
    return c != NULL;
}

static bool run_of(struct arena *a, const struct wire_training_run *w, tinker_training_run *out)
{
    *out = (tinker_training_run){
        .id = w->training_run_id,
        .base_model = w->base_model,
        .owner = w->model_owner,
        .is_lora = w->is_lora,
        .corrupted = w->corrupted,
        .lora_rank = int_of(w->lora_rank),
        .last_request_us = time_of(w->last_request_time),
        .user_metadata = w->user_metadata.v,
        .n_user_metadata = w->user_metadata.has ? w->user_metadata.n : 0,
    };
    return copy_checkpoint(a, w->last_checkpoint, &out->last_checkpoint) &&
           copy_checkpoint(a, w->last_sampler_checkpoint, &out->last_sampler_checkpoint);
}

tinker_status read_training_run(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_training_run w;
    tinker_training_run *out;
    tinker_status s = decode(r, &wire_training_run, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK && !run_of(&r->op.future->arena, &w, out))
        return err_nomem(err, "result");
    return s;
}

tinker_status read_training_runs(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_training_runs_response w;
    tinker_training_runs *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s =
        decode(r, &wire_training_runs_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_training_run *v = arena_array(a, w.n_training_runs + 1, sizeof(*v));
    bool ok = v != NULL;
    for (size_t i = 0; ok && i < w.n_training_runs; i++)
        ok = run_of(a, &w.training_runs[i], &v[i]);
    *out = (tinker_training_runs){ v, w.n_training_runs, cursor_of(&w.cursor) };
    return ok ? TINKER_OK : err_nomem(err, "result");
}

tinker_status read_weights_info(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_weights_info_response w;
    tinker_weights_info *out;
    tinker_status s =
        decode(r, &wire_weights_info_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_weights_info){
            .base_model = w.base_model,
            .is_lora = w.is_lora,
            .lora_rank = int_of(w.lora_rank),
            .train_unembed = !w.train_unembed.has || w.train_unembed.value,
            .train_mlp = !w.train_mlp.has || w.train_mlp.value,
            .train_attn = !w.train_attn.has || w.train_attn.value,
        };
    return s;
}

/* ---- sessions and samplers ------------------------------------------------------------------ */

tinker_status read_sessions(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_list_sessions_response w;
    tinker_strings *out;
    tinker_status s =
        decode(r, &wire_list_sessions_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_strings){ w.sessions.v, w.sessions.n };
    return s;
}

tinker_status read_session(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_session_response w;
    tinker_session *out;
    tinker_status s =
        decode(r, &wire_get_session_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_session){ .training_run_ids = { w.training_run_ids.v, w.training_run_ids.n },
                                 .sampler_ids = { w.sampler_ids.v, w.sampler_ids.n },
                                 .display_name = w.display_name,
                                 .user_metadata = w.user_metadata.v,
                                 .n_user_metadata = w.user_metadata.has ? w.user_metadata.n : 0 };
    return s;
}

static int state_of(const struct wire_session_status *w)
{
    static const struct {
        const char *type, *reason;
        int state;
    } all[] = {
        { "active", NULL, TINKER_SESSION_ACTIVE },
        { "failed", NULL, TINKER_SESSION_FAILED },
        { "cancelled", NULL, TINKER_SESSION_CANCELLED },
        { "client_finished", "success", TINKER_SESSION_SUCCEEDED },
        { "client_finished", "errored", TINKER_SESSION_ERRORED },
        { "client_finished", "interrupted", TINKER_SESSION_INTERRUPTED },
    };
    const char *reason = w->reason ? w->reason->type : "";
    for (size_t i = 0; w->type && i < ARRAY_LEN(all); i++)
        if (strcmp(all[i].type, w->type) == 0 &&
            (!all[i].reason || strcmp(all[i].reason, reason) == 0))
            return all[i].state;
    return 0;
}

static const char *failed_id_of(const struct wire_status_reason *w)
{
    return w->request_id        ? w->request_id
           : w->training_run_id ? w->training_run_id
                                : w->sampling_session_id;
}

static tinker_session_summary summary_of(const struct wire_session_summary *w)
{
    const struct wire_session_status *status = w->status;
    return (tinker_session_summary){
        .id = w->session_id,
        .owner = w->owner,
        .project_id = w->project_id,
        .created_us = time_of(w->created_at),
        .state = status ? state_of(status) : 0,
        .detail = !status          ? NULL
                  : status->detail ? status->detail
                                   : status->message,
        .failed_id = status && status->reason ? failed_id_of(status->reason) : NULL,
        .display_name = w->display_name,
        .user_metadata = w->user_metadata.v,
        .n_user_metadata = w->user_metadata.has ? w->user_metadata.n : 0,
        .n_checkpoints = w->checkpoints_count,
        .checkpoint_bytes = int_of(w->checkpoint_storage_bytes),
    };
}

tinker_status read_search(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_session_search_response w;
    tinker_session_summaries *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s =
        decode(r, &wire_session_search_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_session_summary *v = arena_array(a, w.n_sessions + 1, sizeof(*v));
    tinker_session_cursor *next = arena_alloc(a, sizeof(*next));
    if (!v || !next)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_sessions; i++)
        v[i] = summary_of(&w.sessions[i]);
    if (w.next_cursor)
        *next = (tinker_session_cursor){ time_of(w.next_cursor->last_created_at),
                                         w.next_cursor->last_session_id };
    *out = (tinker_session_summaries){ v, w.n_sessions, w.next_cursor ? next : NULL };
    return TINKER_OK;
}

tinker_status read_sampler_info(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_sampler_response w;
    tinker_sampler_info *out;
    tinker_status s =
        decode(r, &wire_get_sampler_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s == TINKER_OK)
        *out = (tinker_sampler_info){ w.sampler_id, w.base_model, w.model_path };
    return s;
}

tinker_status read_base_model(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_sampler_response w;
    struct tinker_future *f = r->op.future;
    tinker_status s =
        wire_decode_json(&wire_get_sampler_response, b, n, WIRE_LENIENT, &f->arena, &w, err);
    if (s == TINKER_OK)
        f->value = w.base_model;
    return s;
}

/* ---- account ---------------------------------------------------------------------------------- */

static tinker_billing_event billing_event_of(const struct wire_billing_usage_event *w)
{
    const struct wire_billing_event_info *info = &w->event_info;
    return (tinker_billing_event){
        .start_us = time_of(w->bucket_start),
        .end_us = time_of(w->bucket_end),
        .base_model = w->base_model,
        .user_id = w->user_id,
        .user_name = w->user_name,
        .session_id = w->session_id,
        .project_id = w->project_id,
        .kind = (tinker_billing_kind)info->kind, /* same order */
        .count = info->kind == WIRE_BILLING_CHECKPOINT ? info->count : info->token_count,
        .cached = info->cached,
        .gigabyte_hours = info->gigabyte_hours,
        .cost_usd = double_of(w->estimated_cost_usd),
        .million_tokens_usd = double_of(w->effective_rate_usd_per_million_tokens),
        .gigabyte_month_usd = double_of(w->effective_rate_usd_per_gigabyte_month),
    };
}

tinker_status read_billing(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_billing_usage_response w;
    tinker_billing *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s =
        decode(r, &wire_billing_usage_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_billing_event *events = arena_array(a, w.n_data + 1, sizeof(*events));
    tinker_billing_session *sessions = arena_array(a, w.n_sessions + 1, sizeof(*sessions));
    if (!events || !sessions)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_data; i++)
        events[i] = billing_event_of(&w.data[i]);
    for (size_t i = 0; i < w.n_sessions; i++)
        sessions[i] = (tinker_billing_session){ w.sessions[i].name, w.sessions[i].user_metadata.v,
                                                w.sessions[i].user_metadata.n };
    *out =
        (tinker_billing){ events, w.n_data, sessions, w.n_sessions, time_of(w.cost_data_through) };
    return TINKER_OK;
}

tinker_status read_storage(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_checkpoint_usage_response w;
    tinker_storage *out;
    tinker_status s =
        decode(r, &wire_checkpoint_usage_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_storage_share *v = arena_array(&r->op.future->arena, w.n_data + 1, sizeof(*v));
    if (!v)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_data; i++) {
        const struct wire_checkpoint_usage *u = &w.data[i];
        v[i] = (tinker_storage_share){ u->project_id,
                                       u->org_user_urn,
                                       u->user_email,
                                       u->user_name,
                                       u->checkpoint_count,
                                       u->size_bytes,
                                       double_of(u->estimated_monthly_cost_usd) };
    }
    *out = (tinker_storage){ v, w.n_data, double_of(w.effective_rate_usd_per_gigabyte_month) };
    return TINKER_OK;
}

tinker_status read_audit(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_audit_log_response w;
    tinker_audit *out;
    tinker_status s =
        decode(r, &wire_audit_log_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    tinker_audit_entry *v = arena_array(&r->op.future->arena, w.n_entries + 1, sizeof(*v));
    if (!v)
        return err_nomem(err, "result");
    for (size_t i = 0; i < w.n_entries; i++)
        v[i] = (tinker_audit_entry){
            time_of(w.entries[i].timestamp), w.entries[i].event,   w.entries[i].model_id,
            w.entries[i].tinker_path,        w.entries[i].purpose, w.entries[i].event_details.s
        };
    *out = (tinker_audit){ v, w.n_entries };
    return TINKER_OK;
}

/* ---- the service and its models ---------------------------------------------------------------- */

tinker_status read_capabilities(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_server_capabilities_response w;
    tinker_capabilities *out;
    tinker_status s = decode(r, &wire_get_server_capabilities_response, b, n, &w, sizeof(*out),
                             (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    size_t count = w.n_supported_models;
    tinker_supported_model *v = arena_array(&r->op.future->arena, count + 1, sizeof(*v));
    if (!v)
        return err_nomem(err, "result");
    for (size_t i = 0; i < count; i++)
        v[i] = (tinker_supported_model){ w.supported_models[i].model_name,
                                         int_of(w.supported_models[i].max_context_length),
                                         flag_of(w.supported_models[i].trainable),
                                         flag_of(w.supported_models[i].sampleable) };
    *out = (tinker_capabilities){ v, count, w.stream_sample.has && w.stream_sample.value };
    return TINKER_OK;
}

tinker_status read_health(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_health_response w;
    return wire_decode_json(&wire_health_response, b, n, WIRE_LENIENT, &r->op.future->arena, &w,
                            err);
}

tinker_status read_model_info(struct rest_op *r, const char *b, size_t n, tinker_error *err)
{
    struct wire_get_info_response w;
    tinker_model_info *out;
    struct arena *a = &r->op.future->arena;
    tinker_status s =
        decode(r, &wire_get_info_response, b, n, &w, sizeof(*out), (void **)&out, err);
    if (s != TINKER_OK)
        return s;
    const char *tokenizer = w.model_data.tokenizer_id;
    if (tokenizer) { /* without its revision */
        tokenizer = arena_strndup(a, tokenizer, strcspn(tokenizer, ":"));
        if (!tokenizer)
            return err_nomem(err, "result");
    }
    *out = (tinker_model_info){
        .model_id = w.model_id,
        .model_name = w.model_data.model_name ? w.model_data.model_name : w.model_name,
        .base_model = w.model_data.base_model,
        .arch = w.model_data.arch,
        .tokenizer_id = tokenizer,
        .is_lora = w.is_lora.has ? w.is_lora.value : -1,
        .lora_rank = int_of(w.lora_rank),
    };
    return TINKER_OK;
}

/* ---- public accessors ---------------------------------------------------------------------------- */

const tinker_checkpoints *tinker_future_checkpoints(const tinker_future *f)
{
    return future_value(f, type_checkpoints);
}

const tinker_training_runs *tinker_future_training_runs(const tinker_future *f)
{
    return future_value(f, type_training_runs);
}

const tinker_training_run *tinker_future_training_run(const tinker_future *f)
{
    return future_value(f, type_training_run);
}

const tinker_weights_info *tinker_future_weights_info(const tinker_future *f)
{
    return future_value(f, type_weights_info);
}

const tinker_strings *tinker_future_strings(const tinker_future *f)
{
    return future_value(f, type_strings);
}

const tinker_session *tinker_future_session(const tinker_future *f)
{
    return future_value(f, type_session);
}

const tinker_session_summaries *tinker_future_session_summaries(const tinker_future *f)
{
    return future_value(f, type_sessions);
}

const tinker_storage *tinker_future_storage(const tinker_future *f)
{
    return future_value(f, type_storage);
}

const tinker_sampler_info *tinker_future_sampler_info(const tinker_future *f)
{
    return future_value(f, type_sampler_info);
}

const tinker_identity *tinker_future_identity(const tinker_future *f)
{
    return future_value(f, type_identity);
}

const tinker_billing *tinker_future_billing(const tinker_future *f)
{
    return future_value(f, type_billing);
}

const tinker_audit *tinker_future_audit(const tinker_future *f)
{
    return future_value(f, type_audit);
}

const tinker_capabilities *tinker_future_capabilities(const tinker_future *f)
{
    return future_value(f, type_capabilities);
}

const tinker_model_info *tinker_future_model_info(const tinker_future *f)
{
    return future_value(f, type_model_info);
}

const tinker_files *tinker_future_files(const tinker_future *f)
{
    return future_value(f, type_files);
}

const tinker_archive *tinker_future_archive(const tinker_future *f)
{
    return future_value(f, type_archive);
}
