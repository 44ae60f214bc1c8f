/* training.c - the requests of a training client: checking and encoding, in the caller's
 * thread, then one training_op.  The lock is held from reserving ids to submitting, so that
 * ids and submissions have the same order. */
#include <stdlib.h>
#include <string.h>
#include <tinker/data.h>
#include <tinker/extra/tensor.h>
#include "base/err.h"
#include "client/training/merge.h"
#include "client/sampling/sampling_client.h"
#include "client/session/service.h"
#include "client/training/training_op.h"
#include "wire/check.h"
#include "wire/optimizer.h"
#include "wire/proto.h"
#include "wire/wire.h"

/* ---- the kinds ---------------------------------------------------------------------- */

/* A kind of request: what it is called in messages and on the wire, and how its answer is read.
 * `retries` are those of one HTTP call; saves have none there, as in the reference, and are tried
 * again only by the layer above. */
#define TRAINING_KIND(name, path, retries, reader, result)                                        \
    {                                                                                             \
        { name, training_op_start, training_op_abandon, training_op_destroy },                    \
            { name, "POST", POOL_TRAIN, 0, NULL, retries, true, false }, "api/v1/" path, &reader, \
            result                                                                                \
    }

static const struct training_kind forward_backward_kind = TRAINING_KIND(
    "forward_backward", "forward_backward", CALL_DEFAULT, result_forward_backward, TRAINING_PASS);
static const struct training_kind forward_kind =
    TRAINING_KIND("forward", "forward_backward", CALL_DEFAULT, result_forward, TRAINING_PASS);
static const struct training_kind optim_step_kind =
    TRAINING_KIND("optim_step", "optim_step", CALL_DEFAULT, result_optim_step, TRAINING_SINGLE);
static const struct training_kind save_state_kind =
    TRAINING_KIND("save_state", "save_weights", 0, result_save, TRAINING_SINGLE);
static const struct training_kind save_sampler_kind =
    TRAINING_KIND("save_weights_for_sampler", "save_weights_for_sampler", 0,
                  result_save_for_sampler, TRAINING_SINGLE);
static const struct training_kind save_external_kind = TRAINING_KIND(
    "save_weights_external", "save_weights_external", 0, result_save_external, TRAINING_SINGLE);
static const struct training_kind unnamed_save_kind =
    TRAINING_KIND("save_weights_for_sampler", "save_weights_for_sampler", 0,
                  result_save_for_sampler, TRAINING_SAMPLER);
static const struct training_kind load_kind =
    TRAINING_KIND("load_state", "load_weights", CALL_DEFAULT, result_load, TRAINING_SINGLE);
static const struct training_kind unload_kind = {
    { "unload_model", training_op_start, training_op_abandon, training_op_destroy },
    { "unload_model", "POST", POOL_TRAIN, 0, NULL, CALL_DEFAULT, false, false },
    "api/v1/unload_model",
    &result_unload,
    TRAINING_UNLOAD,
};

/* ---- forward and forward_backward ----------------------------------------------------- */

/* Into how many requests the service wants this batch cut: by number of data and by bytes. */
static size_t count_chunks(const tinker_training *t, const tinker_datum *data, size_t n)
{
    const struct wire_client_config_response *cfg = &t->session->server;
    size_t chunks = 0;
    for (size_t i = 0; i < n; chunks++)
        i = wire_chunk_end(data, n, i, (size_t)cfg->fwdbwd_max_chunk_len,
                           (size_t)cfg->fwdbwd_max_chunk_bytes_count, NULL);
    return chunks;
}

/* The bodies of all parts. Part i has the number first_id + i + 1: the service counts from 1. */
static tinker_status encode_pass(struct training_op *op, const tinker_datum *data, size_t n,
                                 const tinker_loss *loss, bool forward_only, tinker_error *err)
{
    const struct wire_client_config_response *cfg = &op->training->session->server;
    size_t first = 0;
    for (size_t i = 0; i < op->n_parts; i++) {
        size_t bytes;
        size_t end = wire_chunk_end(data, n, first, (size_t)cfg->fwdbwd_max_chunk_len,
                                    (size_t)cfg->fwdbwd_max_chunk_bytes_count, &bytes);
        struct wire_forward_backward_request req = {
            .model_id = op->training->model_id,
            .seq_id = { 1, op->first_id + (int64_t)i + 1 },
            .data = data + first,
            .n_data = end - first,
            .loss = *loss,
            .forward_only = forward_only,
            .shaped = true,
        };
        op->parts[i].bytes_estimate = (int64_t)bytes;
        op->parts[i].data_end = end;
        tinker_status s = wire_encode_forward_backward_request(&req, &op->parts[i].body, err);
        if (s != TINKER_OK)
            return s;
        first = end;
    }
    return TINKER_OK;
}

/* The wire has float32. Said once per service: a program that knows it need not hear it with
 * every batch. The exchange decides which of several threads says it. */
static void warn_of_rounding(tinker_training *t, const tinker_datum *data, size_t n)
{
    struct session *h = t->session;
    if (atomic_load_explicit(&h->rounding_told, memory_order_relaxed))
        return;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < data[i].n_inputs; j++) {
            const tinker_named_tensor *in = &data[i].inputs[j];
            if (in->tensor.dtype != TINKER_FLOAT64 || tinker_tensor_is_exact(&in->tensor))
                continue;
            if (!atomic_exchange(&h->rounding_told, true))
                log_line(&h->log, LOG_WARNING,
                         "data[%zu].loss_fn_inputs.%s: float64 values are rounded to float32; "
                         "tinker_tensor_is_exact() tells of which; this is not said again",
                         i, in->name);
            return;
        }
}

/* Check, encode and submit one pass. Encoding happens under the lock, because the numbers are in
 * the bodies; when it fails, the numbers are given back, which is possible only as long as nobody
 * else could take later ones. */
static tinker_future *submit_pass(tinker_training *t, const struct training_kind *kind,
                                  const tinker_datum *data, size_t n, const tinker_loss *loss,
                                  bool forward_only, tinker_error *err)
{
    if (!data || n == 0) {
        err_set(err, TINKER_EINVAL, "%s: No data provided", kind->class.name);
        return NULL;
    }
    if (!loss || wire_check_loss(loss, err) != TINKER_OK) {
        if (!loss)
            err_set(err, TINKER_EINVAL, "%s needs a loss", kind->class.name);
        return NULL;
    }
    if (wire_check_data(data, n, err) != TINKER_OK)
        return NULL;
    warn_of_rounding(t, data, n);
    struct training_op *op = training_op_new(t, count_chunks(t, data, n), kind, err);
    if (!op)
        return NULL;
    op->proto_body = true;
    op->parallel = op->n_parts > 1 && t->session->server.parallel_fwdbwd_chunks;
    tinker_future *f = NULL;
    pthread_mutex_lock(&t->base->lock);
    if (training_client_reserve_locked(t, op->n_parts, &op->first_id, err) == TINKER_OK) {
        if (encode_pass(op, data, n, loss, forward_only, err) == TINKER_OK &&
            training_op_queue(op, err) == TINKER_OK)
            f = training_op_submit(op, err);
        if (!f) /* nobody saw the ids */
            t->base->next_id = op->first_id;
    }
    pthread_mutex_unlock(&t->base->lock);
    if (!f)
        training_op_free(op);
    return f;
}

tinker_future *tinker_training_forward_backward(tinker_training *t, const tinker_datum *data,
                                                size_t n, const tinker_loss *loss,
                                                tinker_error *err)
{
    return submit_pass(t, &forward_backward_kind, data, n, loss, false, err);
}

/* The two passes of a custom loss, with consecutive ids: what is submitted later comes after
 * both. The second is submitted without bodies and waits in its turn for the job to make them.
 * The lock is held. */
static tinker_future *submit_both_locked(tinker_training *t, struct training_op *first,
                                         struct training_op *second, const tinker_datum *data,
                                         size_t n, tinker_future **forward, tinker_error *err)
{
    size_t k = first->n_parts;
    struct custom_job *job = second->job;
    size_t *ends = calloc(k, sizeof(*ends));
    if (!ends) {
        err_nomem(err, "custom loss");
        return NULL;
    }
    tinker_future *f = NULL;
    if (training_client_reserve_locked(t, 2 * k, &first->first_id, err) == TINKER_OK) {
        second->first_id = first->first_id + (int64_t)k;
        if (encode_pass(first, data, n, &custom_cross_entropy, true, err) == TINKER_OK) {
            for (size_t i = 0; i < k; i++) {
                ends[i] = first->parts[i].data_end;
                second->parts[i].bytes_estimate = first->parts[i].bytes_estimate;
            }
            custom_job_plan(job, second->first_id, ends, k);
            if (training_op_queue(first, err) == TINKER_OK)
                *forward = training_op_submit(first, err);
        }
        if (*forward)
            f = training_op_submit(second, err);
        if (!f) /* of the ids, only those of a forward pass were seen */
            t->base->next_id = *forward ? second->first_id : first->first_id;
    }
    free(ends);
    return f;
}

/* Both operations take their turns together, so that no other request of this client can stand
 * between their numbers; the second waits for the function's result. */
tinker_future *training_submit_custom(tinker_training *t, const tinker_datum *data, size_t n,
                                      struct custom_job *job, tinker_future **forward,
                                      tinker_error *err)
{
    size_t k = count_chunks(t, data, n);
    struct training_op *first = training_op_new(t, k, &forward_kind, err);
    struct training_op *second = first ? training_op_new(t, k, &forward_backward_kind, err) : NULL;
    tinker_future *f = NULL;
    *forward = NULL;
    if (second) {
        first->proto_body = second->proto_body = true;
        first->parallel = second->parallel = k > 1 && t->session->server.parallel_fwdbwd_chunks;
        second->job = job;
        custom_job_bind(job, second);
        pthread_mutex_lock(&t->base->lock);
        f = submit_both_locked(t, first, second, data, n, forward, err);
        pthread_mutex_unlock(&t->base->lock);
    }
    if (first && !*forward)
        training_op_free(first);
    if (second && !f) {
        custom_job_bind(job, NULL);
        second->job = NULL;
        training_op_free(second);
    }
    return f;
}

tinker_future *tinker_training_forward(tinker_training *t, const tinker_datum *data, size_t n,
                                       const tinker_loss *loss, tinker_error *err)
{
    return submit_pass(t, &forward_kind, data, n, loss, true, err);
}

/* ---- requests of one part ------------------------------------------------------------- */

/* A body that can be written once its seq_id is known. */
typedef tinker_status encode_fn(struct training_op *op, int64_t seq_id, const void *arg,
                                struct buf *out, tinker_error *err);

/* Requests of one part: reserve a number, write the body with it, submit. As above the number is
 * given back when that fails. */
static tinker_future *submit_single(tinker_training *t, const struct training_kind *kind,
                                    encode_fn *encode, const void *arg, tinker_error *err)
{
    struct training_op *op = training_op_new(t, 1, kind, err);
    if (!op)
        return NULL;
    tinker_future *f = NULL;
    pthread_mutex_lock(&t->base->lock);
    if (training_client_reserve_locked(t, 1, &op->first_id, err) == TINKER_OK) {
        if (encode(op, op->first_id + 1, arg, &op->parts[0].body, err) == TINKER_OK)
            f = training_op_submit(op, err);
        if (!f) { /* nobody saw it */
            t->base->next_id = op->first_id;
            t->base->unloaded = false;
        }
    }
    pthread_mutex_unlock(&t->base->lock);
    if (!f)
        training_op_free(op);
    return f;
}

/* On the I/O thread, when its turn has given it a number. */
static tinker_status encode_step(struct training_op *op, int64_t seq_id, const void *arg,
                                 struct buf *out, tinker_error *err)
{
    struct wire_optim_step_request req = { .adam_params = arg,
                                           .model_id = op->training->model_id,
                                           .seq_id = { 1, seq_id } };
    return wire_encode_json(&wire_optim_step_request, &req, out, err);
}

/* NULL is Adam with the defaults of TINKER_ADAM_INIT. */
tinker_future *tinker_training_optim_step(tinker_training *t, const tinker_adam *adam,
                                          tinker_error *err)
{
    tinker_adam ours = TINKER_ADAM_INIT;
    if (opts_copy(&ours, sizeof(ours), adam, "tinker_adam", err) != TINKER_OK ||
        wire_check_adam(&ours, err) != TINKER_OK)
        return NULL;
    return submit_single(t, &optim_step_kind, encode_step, &ours, err);
}

/* The settings were encoded at once, while the caller's struct was there. */
static tinker_status encode_optimizer_step(struct training_op *op, int64_t seq_id, const void *arg,
                                           struct buf *out, tinker_error *err)
{
    const struct buf *params = arg;
    struct wire_optim_step_request req = { .optimizer_params = { params->data, params->len },
                                           .model_id = op->training->model_id,
                                           .seq_id = { 1, seq_id } };
    return wire_encode_json(&wire_optim_step_request, &req, out, err);
}

tinker_future *tinker_training_optimizer_step(tinker_training *t, const tinker_optimizer *optimizer,
                                              tinker_error *err)
{
    struct buf params;
    tinker_future *f = NULL;
    buf_init(&params, 1 << 20);
    if (wire_optimizer_encode(optimizer, &params, err) == TINKER_OK)
        f = submit_single(t, &optim_step_kind, encode_optimizer_step, &params, err);
    buf_clear(&params);
    return f;
}

struct save_args {
    const char *name;
    tinker_save_options opts;
};

/* Options that a kind of checkpoint does not have are refused, not left out. */
enum { SAVE_OVERWRITE = 1, SAVE_METADATA = 2, SAVE_AGE = 4, AGE_RECIPIENTS_MAX = 10 };

static tinker_status check_save_extras(const tinker_save_options *o, unsigned may,
                                       tinker_error *err)
{
    if (o->overwrite && !(may & SAVE_OVERWRITE))
        return err_set(err, TINKER_EINVAL, "overwrite is for training state only");
    if (o->n_user_metadata && !(may & SAVE_METADATA))
        return err_set(err, TINKER_EINVAL, "user_metadata is not for external weights");
    for (size_t i = 0; i < o->n_user_metadata; i++)
        if (!o->user_metadata || !o->user_metadata[i].name || !o->user_metadata[i].value)
            return err_set(err, TINKER_EINVAL, "user_metadata: entry %zu has no name or no value",
                           i);
    if (o->n_age_recipients && !(may & SAVE_AGE))
        return err_set(err, TINKER_EINVAL, "age_recipients are for external weights only");
    if (o->n_age_recipients > AGE_RECIPIENTS_MAX)
        return err_set(err, TINKER_EINVAL, "%zu age_recipients, expected at most %d",
                       o->n_age_recipients, AGE_RECIPIENTS_MAX);
    for (size_t i = 0; i < o->n_age_recipients; i++)
        if (!o->age_recipients || !o->age_recipients[i] || !*o->age_recipients[i])
            return err_set(err, TINKER_EINVAL, "age_recipients: entry %zu is empty", i);
    return TINKER_OK;
}

/* Before it takes a turn: a save that cannot work must not use up a number. */
static tinker_status check_save(struct save_args *a, const char *name,
                                const tinker_save_options *opts, unsigned may, tinker_error *err)
{
    a->name = name;
    a->opts = (tinker_save_options)TINKER_SAVE_OPTIONS_INIT;
    if (opts_copy(&a->opts, sizeof(a->opts), opts, "tinker_save_options", err) != TINKER_OK)
        return TINKER_EINVAL;
    if (a->opts.ttl_seconds < 0)
        return err_set(err, TINKER_EINVAL, "ttl_seconds is %lld, expected at least 0",
                       (long long)a->opts.ttl_seconds);
    tinker_status s = check_save_extras(&a->opts, may, err);
    return s == TINKER_OK ? wire_check_checkpoint_name(name, err) : s;
}

/* Without any the member is left out: older services do not know it. */
static struct wire_named_strings metadata_of(const tinker_save_options *o)
{
    return (struct wire_named_strings){ o->n_user_metadata > 0, o->user_metadata,
                                        o->n_user_metadata };
}

static tinker_status encode_save(struct training_op *op, int64_t seq_id, const void *arg,
                                 struct buf *out, tinker_error *err)
{
    const struct save_args *a = arg;
    struct wire_save_weights_request req = {
        .model_id = op->training->model_id,
        .path = a->name,
        .seq_id = { 1, seq_id },
        .ttl_seconds = { a->opts.ttl_seconds > 0, a->opts.ttl_seconds },
        .overwrite = a->opts.overwrite,
        .user_metadata = metadata_of(&a->opts),
    };
    op->conflict_final = true; /* the name exists: waiting does not help, overwrite does */
    return wire_encode_json(&wire_save_weights_request, &req, out, err);
}

/* With the state of the optimizer; may replace one of the same name. */
tinker_future *tinker_training_save_state(tinker_training *t, const char *name,
                                          const tinker_save_options *opts, tinker_error *err)
{
    struct save_args a;
    if (check_save(&a, name, opts, SAVE_OVERWRITE | SAVE_METADATA, err) != TINKER_OK)
        return NULL;
    return submit_single(t, &save_state_kind, encode_save, &a, err);
}

static tinker_status encode_sampler_save(struct training_op *op, int64_t seq_id, const void *arg,
                                         struct buf *out, tinker_error *err)
{
    const struct save_args *a = arg;
    struct wire_save_weights_for_sampler_request req = {
        .model_id = op->training->model_id,
        .path = a->name,
        .seq_id = { 1, seq_id },
        .ttl_seconds = { a->opts.ttl_seconds > 0, a->opts.ttl_seconds },
        .user_metadata = metadata_of(&a->opts),
    };
    op->conflict_final = true;
    return wire_encode_json(&wire_save_weights_for_sampler_request, &req, out, err);
}

/* Weights alone; a name is used once, as samplers may be using it. */
tinker_future *tinker_training_save_for_sampler(tinker_training *t, const char *name,
                                                const tinker_save_options *opts, tinker_error *err)
{
    struct save_args a;
    if (check_save(&a, name, opts, SAVE_METADATA, err) != TINKER_OK)
        return NULL;
    return submit_single(t, &save_sampler_kind, encode_sampler_save, &a, err);
}

static tinker_status encode_external_save(struct training_op *op, int64_t seq_id, const void *arg,
                                          struct buf *out, tinker_error *err)
{
    const struct save_args *a = arg;
    struct wire_save_weights_external_request req = {
        .model_id = op->training->model_id,
        .path = a->name,
        .seq_id = { 1, seq_id },
        .ttl_seconds = { a->opts.ttl_seconds > 0, a->opts.ttl_seconds },
        .age_encryption_recipients = { a->opts.age_recipients, a->opts.n_age_recipients },
    };
    op->conflict_final = true;
    return wire_encode_json(&wire_save_weights_external_request, &req, out, err);
}

/* In the format of PEFT, for use outside of the service. */
tinker_future *tinker_training_save_external(tinker_training *t, const char *name,
                                             const tinker_save_options *opts, tinker_error *err)
{
    struct save_args a;
    if (check_save(&a, name, opts, SAVE_AGE, err) != TINKER_OK)
        return NULL;
    return submit_single(t, &save_external_kind, encode_external_save, &a, err);
}

/* Every try draws a new number for the sampling session, as the reference does; the
 * seq_id stays. */
static void renew_unnamed_save(struct training_op *op, struct buf *body)
{
    struct wire_save_weights_for_sampler_request req = {
        .model_id = op->training->model_id,
        .sampling_session_seq_id = { 1, op->op.session->sampling_seq++ },
        .seq_id = { 1, op->first_id + 1 },
    };
    buf_reset(body);
    wire_encode_json(&wire_save_weights_for_sampler_request, &req, body, NULL);
}

/* The body is made by renew, for each try anew; here only its space. */
static tinker_status encode_unnamed_save(struct training_op *op, int64_t seq_id, const void *arg,
                                         struct buf *out, tinker_error *err)
{
    (void)seq_id, (void)arg, (void)err;
    op->renew = renew_unnamed_save;
    buf_reserve(out, 512);
    return TINKER_OK;
}

tinker_future *tinker_training_request_sampler(tinker_training *t, tinker_error *err)
{
    return submit_single(t, &unnamed_save_kind, encode_unnamed_save, NULL, err);
}

/* Blocking, so it is refused inside a callback of the library. */
tinker_sampler *tinker_training_create_sampler(tinker_training *t, int64_t timeout_ms,
                                               tinker_error *err)
{
    if (runtime_may_block("tinker_training_create_sampler", err) != TINKER_OK)
        return NULL;
    return service_await_sampler(tinker_training_request_sampler(t, err), timeout_ms, err);
}

/* ---- load and unload -------------------------------------------------------------------- */

struct load_args {
    const char *path, *token;
    bool optimizer;
};

static tinker_status encode_load(struct training_op *op, int64_t seq_id, const void *arg,
                                 struct buf *out, tinker_error *err)
{
    const struct load_args *a = arg;
    struct wire_load_weights_request req = {
        .model_id = op->training->model_id,
        .seq_id = { 1, seq_id },
        .path = a->path,
        .optimizer = a->optimizer,
        .weights_access_token = a->token,
    };
    return wire_encode_json(&wire_load_weights_request, &req, out, err);
}

/* The token of another account's weights is a secret from here on: redacted in logs. */
tinker_future *tinker_training_load_state(tinker_training *t, const char *path, int optimizer,
                                          const char *access_token, tinker_error *err)
{
    struct load_args a = { path, access_token, optimizer != 0 };
    if (training_client_check_path(path, err) != TINKER_OK)
        return NULL;
    log_secret(access_token);
    return submit_single(t, &load_kind, encode_load, &a, err);
}

static tinker_status encode_unload(struct training_op *op, int64_t seq_id, const void *arg,
                                   struct buf *out, tinker_error *err)
{
    (void)seq_id, (void)arg;
    struct wire_unload_model_request req = { op->training->model_id };
    op->training->base->unloaded = true; /* under the lock: nothing comes after this one */
    return wire_encode_json(&wire_unload_model_request, &req, out, err);
}

tinker_future *tinker_training_unload(tinker_training *t, tinker_error *err)
{
    return submit_single(t, &unload_kind, encode_unload, NULL, err);
}
