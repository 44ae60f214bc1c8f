/* train.c - training requests on the engine: see train.h.
 *
 * Each request ends with one transaction that holds its outcome and whatever else it
 * changed.  After a step of the optimiser (or a load) the training state goes to disk
 * before that transaction, so an acknowledged step survives the process.  Passes
 * since the last saved state are in the journal and run again after a crash; the
 * engine is deterministic, so their second run gives the same bits. */
#include "server/work/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "json/json.h"
#include "server/store/checkpoint.h"
#include "server/work/adapter_limit.h"
#include "server/work/train_state.h"
#include "wire/check.h"
#include "wire/path.h"
#include "wire/proto.h"
#include "wire/wire.h"

enum { RESULT_MAX = 1 << 30 };

void train_fail(struct server *s, struct future *f, const tinker_error *err)
{
    /* It was done before the restart: the next request brings back what it did, or fails too. */
    if (f->replay)
        state_rewind(f->model);
    future_fail(s, f, future_category(err), "%s", err->message);
}

bool train_finish(struct server *s, struct future *f, struct buf *result, bool proto,
                  struct store_outcome *outcome)
{
    tinker_error err = { 0 };
    if (!buf_ok(result)) {
        buf_clear(result);
        future_fail(s, f, TINKER_CATEGORY_SERVER, "out of memory for the result");
        return false;
    }
    outcome->model_id = f->model->id;
    outcome->seq = f->seq;
    outcome->status = STORE_DONE;
    outcome->result = result->data ? result->data : "";
    outcome->n_result = result->len;
    outcome->now_us = core_now_us(s);
    bool begins = f->kind == WORK_CREATE || f->kind == WORK_CREATE_BY_LOAD || f->kind == WORK_LOAD;
    outcome->drop_body = !work_kind_changes(f->kind) || (!s->opts.autosave && !begins);
    if (!f->replay && store_finish_request(s->store, outcome, &err) != TINKER_OK) {
        buf_clear(result);
        train_fail(s, f, &err);
        return false;
    }
    size_t n;
    char *data = buf_detach(result, &n);
    future_finish(s, f, false, data, n, proto, 0);
    return true;
}

bool train_finish_json(struct server *s, struct future *f, const struct wire_type *type,
                       const void *value, struct store_outcome *outcome)
{
    struct buf b;
    tinker_error err = { 0 };
    buf_init(&b, RESULT_MAX);
    if (wire_encode_json(type, value, &b, &err) == TINKER_OK)
        return train_finish(s, f, &b, false, outcome);
    buf_clear(&b);
    train_fail(s, f, &err);
    return false;
}

/* ---- training state ------------------------------------------------------------------ */

static bool ensure_adapter(struct server *s, struct weights_cache *weights, struct future *f)
{
    tinker_error err = { 0 };
    if (f->model->adapter)
        return true;
    if (room_make(s, weights, f->model, &err) == TINKER_OK &&
        state_load(s, f->model, f->seq, &err) == TINKER_OK)
        return true;
    train_fail(s, f, &err);
    return false;
}

/* Finish f with the training state saved.  When it cannot be saved or recorded the request
 * fails, and with it the change it made: false. */
static bool finish_saved(struct server *s, struct future *f, const struct wire_type *type,
                         const void *value)
{
    struct model *m = f->model;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    if (state_save(s, m, f->kind != WORK_OPTIM_STEP, dir, &err) != TINKER_OK) {
        err_prefix(&err, "the training state could not be saved");
        state_rewind(m);
        train_fail(s, f, &err);
        return false;
    }
    /* A replayed step did not record its state before the crash. */
    f->replay = false;
    struct store_outcome outcome = { .saved_dir = dir[0] ? dir : NULL };
    int64_t seq = f->seq;
    if (train_finish_json(s, f, type, value, &outcome)) {
        state_adopt(s, m, dir, seq);
        return true;
    }
    state_rewind(m);
    if (dir[0])
        checkpoint_discard(s, dir);
    return false;
}

/* ---- forward and backward ---------------------------------------------------------------- */

static tinker_pass *new_pass(struct future *f, tinker_error *err)
{
    const struct wire_forward_backward_request *r = &f->work->pass;
    return tinker_pass_new(f->model->base->engine, f->model->adapter, r->data, r->n_data, &r->loss,
                           r->forward_only, err);
}

/* Whoever polls for f is told what it waits for. */
static void set_starved(struct server *s, struct future *f, bool starved)
{
    pthread_mutex_lock(&s->lock);
    f->starved = starved;
    pthread_mutex_unlock(&s->lock);
}

static bool start_pass(struct server *s, struct future *f, struct train_task *t)
{
    tinker_error err = { 0 };
    t->f = f;
    t->pass = new_pass(f, &err);
    if (t->pass)
        return true;
    if (err.status == TINKER_ENOMEM) {
        set_starved(s, f, true);
        return true;
    }
    train_fail(s, f, &err);
    return false;
}

static void note_loss(struct server *s, struct model *m, const tinker_forward_backward *r,
                      int64_t tokens)
{
    double sum = tinker_metric(r->metrics, r->n_metrics, "loss:sum");
    pthread_mutex_lock(&s->lock);
    m->losses[m->n_losses++ % MODEL_LOSSES] = tokens ? (float)(sum / (double)tokens) : 0;
    pthread_mutex_unlock(&s->lock);
}

/* The result without elementwise_loss; the rest of it is borrowed.  false: no memory. */
static bool without_elementwise(struct arena *arena, const tinker_forward_backward *r,
                                tinker_forward_backward *out)
{
    tinker_loss_output *outputs = arena_array(arena, r->n_outputs, sizeof(*outputs));
    *out = *r;
    out->outputs = outputs;
    for (size_t i = 0; outputs && i < r->n_outputs; i++) {
        const tinker_loss_output *from = &r->outputs[i];
        tinker_named_tensor *kept = arena_array(arena, from->n_tensors, sizeof(*kept));
        if (!kept)
            return false;
        outputs[i].tensors = kept;
        for (size_t k = 0; k < from->n_tensors; k++)
            if (strcmp(from->tensors[k].name, "elementwise_loss") != 0)
                kept[outputs[i].n_tensors++] = from->tensors[k];
    }
    return outputs != NULL;
}

static void finish_pass(struct server *s, struct train_task *t)
{
    struct future *f = t->f;
    const tinker_forward_backward *r = tinker_pass_result(t->pass);
    tinker_forward_backward less;
    if (s->opts.no_elementwise_loss && without_elementwise(&f->work->arena, r, &less))
        r = &less;
    struct buf b;
    tinker_error err = { 0 };
    struct store_outcome outcome = { .tokens = work_tokens(f->work) };
    bool changes = f->kind == WORK_FORWARD_BACKWARD;
    atomic_fetch_add(&s->counters.train_tokens, (uint64_t)outcome.tokens);
    atomic_fetch_add(&s->counters.passes, 1);
    if (changes)
        note_loss(s, f->model, r, outcome.tokens);
    buf_init(&b, RESULT_MAX);
    struct model *m = f->model;
    bool done = false;
    tinker_status status = wire_encode_forward_backward_output(r, &b, &err);
    tinker_pass_free(t->pass);
    if (status == TINKER_OK)
        done = train_finish(s, f, &b, true, &outcome);
    else
        train_fail(s, f, &err);
    buf_clear(&b);
    if (!done && changes)
        state_rewind(m);
}

bool train_step(struct server *s, struct train_task *t, bool alone)
{
    tinker_error err = { 0 };
    if (!t->pass) {
        t->pass = new_pass(t->f, &err);
        if (!t->pass && err.status == TINKER_ENOMEM && !alone)
            return true;
        if (!t->pass) {
            train_fail(s, t->f, &err);
            return false;
        }
        set_starved(s, t->f, false);
    }
    int more = tinker_pass_step(t->pass, &err);
    if (more > 0)
        return true;
    if (more == 0) {
        finish_pass(s, t);
        return false;
    }
    tinker_pass_free(t->pass);
    train_fail(s, t->f, &err);
    return false;
}

void train_abandon(struct train_task *t)
{
    tinker_pass_free(t->pass);
}

/* ---- optimiser ------------------------------------------------------------------------------ */

/* A step over a gradient that is not finite fails and yet changes something: the gradient is
 * gone.  Unless that is recorded with the failure, passes that run again bring it back. */
static void fail_dropped(struct server *s, struct future *f, const tinker_error *err)
{
    struct model *m = f->model;
    char dir[CHECKPOINT_DIR];
    tinker_error why = { 0 };
    struct store_outcome outcome = { .model_id = m->id,
                                     .seq = f->seq,
                                     .status = STORE_FAILED,
                                     .result = err->message,
                                     .n_result = strlen(err->message),
                                     .category = future_category(err),
                                     .drop_body = true,
                                     .saved_dir = dir,
                                     .now_us = core_now_us(s) };
    tinker_status status = state_save(s, m, true, dir, &why);
    if (status == TINKER_OK && dir[0]) {
        status = store_finish_request(s->store, &outcome, &why);
        if (status == TINKER_OK)
            state_adopt(s, m, dir, f->seq);
        else
            checkpoint_discard(s, dir);
    }
    if (status != TINKER_OK) {
        log_line(s->log, LOG_ERROR, "%s: %s", f->id, why.message);
        state_rewind(m);
    }
    train_fail(s, f, err);
}

static void run_optim_step(struct server *s, struct future *f)
{
    tinker_step_metrics m = { 0 };
    tinker_error err = { 0 };
    tinker_status status = wire_check_adam(&f->work->optim.adam_params, &err);
    if (status == TINKER_OK)
        status = tinker_adapter_step(f->model->adapter, &f->work->optim.adam_params, &m, &err);
    if (status == TINKER_EREQUEST) {
        fail_dropped(s, f, &err);
        return;
    }
    if (status != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    if (!isfinite(m.update_norm)) {
        err_set(&err, TINKER_EINVAL,
                "the step makes weights that are not finite and was not taken; its settings or the "
                "gradient are too large");
        state_rewind(f->model);
        train_fail(s, f, &err);
        return;
    }
    atomic_fetch_add(&s->counters.steps, 1);
    const tinker_named_number metrics[] = {
        { "grad_norm:mean", m.grad_norm },     { "learning_rate:mean", m.learning_rate },
        { "step:max", (double)m.step },        { "clip_coef:mean", m.clip_coef },
        { "update_norm:mean", m.update_norm },
    };
    struct wire_optim_step_response r = { { 1, metrics, ARRAY_LEN(metrics) } };
    finish_saved(s, f, &wire_optim_step_response, &r);
}

/* ---- loading -------------------------------------------------------------------------------------- */

/* The directory of the weights to load: of a checkpoint, or any on this machine when the
 * server was told to allow that. */
static tinker_status find_source(struct server *s, struct future *f, char *out, tinker_error *err)
{
    const struct wire_load_weights_request *r = &f->work->load;
    struct store_checkpoint *from = NULL;
    struct wire_path path;
    if (s->opts.allow_local_paths && strncmp(r->path, "file:///", 8) == 0) {
        snprintf(out, CHECKPOINT_PATH, "%s", r->path + 7);
        return TINKER_OK;
    }
    tinker_status status = wire_path_parse(r->path, &path, err);
    if (status != TINKER_OK)
        return status;
    if (path.sampler && r->optimizer)
        return err_set(err, TINKER_EINVAL,
                       "%s has no optimizer state; load it with optimizer=false", r->path);
    const char *run = arena_strndup(&f->work->arena, path.run, path.n_run);
    if (!run)
        return err_nomem(err, "path");
    status = store_get_checkpoint(s->store, run, path.sampler ? STORE_SAMPLER : STORE_TRAINING,
                                  path.name, &f->work->arena, &from, err);
    if (status != TINKER_OK)
        return status;
    if (!from || !(from->is_public || strcmp(from->owner, f->model->owner) == 0))
        return err_set(err, TINKER_EINVAL, "no checkpoint %s", r->path);
    checkpoint_path(s, from->dir, out);
    return TINKER_OK;
}

static tinker_status check_same_shape(const struct future *f, const tinker_lora *from,
                                      tinker_error *err)
{
    const tinker_lora *to = &f->model->lora;
    if (from->rank == to->rank && from->train_attn == to->train_attn &&
        from->train_mlp == to->train_mlp && from->train_unembed == to->train_unembed)
        return TINKER_OK;
    return err_set(
        err, TINKER_EINVAL,
        "the checkpoint has rank %lld (attn %d, mlp %d, unembed %d), the model rank %lld "
        "(attn %d, mlp %d, unembed %d)",
        (long long)from->rank, from->train_attn, from->train_mlp, from->train_unembed,
        (long long)to->rank, to->train_attn, to->train_mlp, to->train_unembed);
}

static bool run_load(struct server *s, struct weights_cache *weights, struct future *f)
{
    const struct wire_load_weights_request *r = &f->work->load;
    char path[CHECKPOINT_PATH];
    tinker_error err = { 0 };
    tinker_adapter *loaded = NULL;
    if (s->opts.max_adapters && f->model->adapter)
        state_rewind(f->model); /* the new one takes its place; nothing has happened to it yet */
    if (find_source(s, f, path, &err) == TINKER_OK &&
        room_make(s, weights, f->model, &err) == TINKER_OK)
        loaded = tinker_adapter_load(f->model->base->engine, path,
                                     r->optimizer ? TINKER_ADAPTER_OPTIMIZER : 0, &err);
    if (!loaded || check_same_shape(f, tinker_adapter_describe(loaded), &err) != TINKER_OK) {
        tinker_adapter_free(loaded);
        train_fail(s, f, &err);
        return false;
    }
    tinker_adapter_free(f->model->adapter);
    f->model->adapter = loaded;
    f->model->rewound = false;
    struct wire_load_weights_response res = { .path = r->path, .model_id = f->model->id };
    return finish_saved(s, f, &wire_load_weights_response, &res);
}

/* ---- life of a model ---------------------------------------------------------------------------------- */

static tinker_status end_model(struct server *s, struct model *m, const char *reason,
                               tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    m->state = MODEL_UNLOADED;
    if (!m->end_reason)
        m->end_reason = reason;
    pthread_mutex_unlock(&s->lock);
    return train_release(s, m, err);
}

static bool run_create(struct server *s, struct weights_cache *weights, struct future *f)
{
    struct model *m = f->model;
    tinker_error err = { 0 };
    if (room_make(s, weights, m, &err) == TINKER_OK)
        m->adapter = tinker_adapter_new(m->base->engine, &m->lora, &err);
    if (!m->adapter) {
        train_fail(s, f, &err);
        return false;
    }
    struct wire_create_model_response res = { m->id };
    struct store_outcome outcome = { 0 };
    return train_finish_json(s, f, &wire_create_model_response, &res, &outcome);
}

/* The first request of a model.  Without it there is none, whatever comes after.  One that was
 * done before the restart has made it: those after it try again. */
static void begin_model(struct server *s, struct weights_cache *weights, struct future *f)
{
    struct model *m = f->model;
    bool made = false, again = f->replay;
    tinker_error err = { 0 };
    if (f->work->refused[0])
        future_fail(s, f, TINKER_CATEGORY_USER, "%s", f->work->refused);
    else
        made = f->kind == WORK_CREATE ? run_create(s, weights, f) : run_load(s, weights, f);
    if (!made && !again)
        end_model(s, m, MODEL_NEVER_CREATED, &err);
}

tinker_status train_release(struct server *s, struct model *m, tinker_error *err)
{
    tinker_adapter_free(m->adapter);
    m->adapter = NULL;
    /* Unless that is recorded, a restart needs what is on disk. */
    tinker_status status = store_set_model_status(s->store, m->id, STORE_MODEL_UNLOADED, err);
    if (status != TINKER_OK) {
        log_line(s->log, LOG_ERROR, "%s: %s", m->id, err->message);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    bool ended = m->session->expired;
    pthread_mutex_unlock(&s->lock);
    if (ended)
        checkpoint_drop_hidden(s, m->id, 0);
    checkpoint_remove(s, m->saved_dir);
    free(m->saved_dir);
    m->saved_dir = NULL;
    return TINKER_OK;
}

static void run_unload(struct server *s, struct future *f)
{
    struct wire_unload_model_response res = { f->model->id };
    struct store_outcome outcome = { 0 };
    tinker_error err = { 0 };
    if (end_model(s, f->model, "has been unloaded", &err) != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    train_finish_json(s, f, &wire_unload_model_response, &res, &outcome);
}

/* ---- dispatch --------------------------------------------------------------------------------------------- */

static bool model_ended(struct server *s, struct future *f)
{
    pthread_mutex_lock(&s->lock);
    const char *reason = f->model->state == MODEL_UNLOADED ? f->model->end_reason : NULL;
    pthread_mutex_unlock(&s->lock);
    if (!reason || f->kind == WORK_UNLOAD)
        return false;
    future_fail(s, f, TINKER_CATEGORY_USER, "model %s %s", f->model->id, reason);
    return true;
}

bool train_start(struct server *s, struct weights_cache *weights, struct future *f,
                 struct train_task *t)
{
    if (model_ended(s, f))
        return false;
    f->model->used = ++weights->tick;
    if (f->kind == WORK_CREATE || f->kind == WORK_CREATE_BY_LOAD) {
        begin_model(s, weights, f);
        return false;
    }
    if (f->work->refused[0]) {
        future_fail(s, f, TINKER_CATEGORY_USER, "%s", f->work->refused);
        return false;
    }
    bool makes_own = f->kind == WORK_LOAD || f->kind == WORK_UNLOAD;
    if (!makes_own && !ensure_adapter(s, weights, f))
        return false;
    switch (f->kind) {
    case WORK_LOAD:
        run_load(s, weights, f);
        break;
    case WORK_FORWARD:
    case WORK_FORWARD_BACKWARD:
        return start_pass(s, f, t);
    case WORK_OPTIM_STEP:
        run_optim_step(s, f);
        break;
    case WORK_SAVE:
    case WORK_SAVE_SAMPLER:
    case WORK_SAVE_EXTERNAL:
        train_save(s, weights, f);
        break;
    case WORK_UNLOAD:
        run_unload(s, f);
        break;
    default:
        break;
    }
    return false;
}
