/* train.c - training requests on the engine: see train.h.
 *
 * Each request ends with one transaction that holds its outcome and whatever else it
 * changed.  After an optimizer step (or a load) the training state goes to disk before
 * that transaction, so an acknowledged step survives the process.  Passes since the last
 * saved state are in the journal and run again after a crash; the engine is deterministic,
 * so their second run gives the same bits.
 *
 * The order is always: change the adapter, write files, commit, acknowledge.  If files or commit
 * fail, the request fails and the adapter is rewound: what is not recorded did not happen.
 *
 * After future_finish() or future_fail() the future may be freed by the timer thread: the code
 * below copies what it still needs (model, number) before. */
#include "server/training/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/err.h"
#include "json/json.h"
#include "server/store/checkpoint.h"
#include "server/work/adapter_limit.h"
#include "server/training/custom_loss.h"
#include "server/training/train_history.h"
#include "server/training/train_state.h"
#include "server/work/usage.h"
#include "wire/check.h"
#include "wire/path.h"
#include "wire/proto.h"
#include "wire/wire.h"

/* A gigabyte of log-probabilities is 268 million tokens: no batch that fits the limits of a
 * body. */
enum { RESULT_MAX = 1 << 30 };

void train_fail(struct server *s, struct future *f, const tinker_error *err)
{
    /* The request had succeeded before the restart, so its effect must not get lost: rewind, and
     * the next request rebuilds the state from the journal, or fails as well. */
    if (f->replay)
        train_state_rewind(f->model);
    future_fail(s, f, future_category(err), "%s", err->message);
}

/* The one place where a training request succeeds.  The order matters: commit, then publish; a
 * client that has seen a result must find it again after a crash. */
bool train_finish(struct server *s, struct future *f, struct buf *result, bool proto,
                  struct store_outcome *outcome)
{
    tinker_error err = { 0 };
    /* A result that could not be encoded for lack of memory is a failure, not an empty success. */
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
    outcome->now_us = live_wall_us(s);
    /* Keep the bodies that a rebuild needs: requests that change the model, while the state is
     * saved at all; those that begin one always, they tell that there was a model. */
    bool begins = f->kind == JOB_CREATE || f->kind == JOB_CREATE_BY_LOAD || f->kind == JOB_LOAD;
    outcome->drop_body = !job_kind_changes(f->kind) || (!s->opts.autosave && !begins);
    /* A replayed request has its outcome in the store. */
    if (!f->replay && store_finish_request(s->store, outcome, &err) != TINKER_OK) {
        /* Without autosave a change cannot be undone by a replay, and memory is all that a client
         * was promised: the change counts, and its record is written when the store works again. */
        bool in_memory = !s->opts.autosave && job_kind_changes(f->kind) && !begins;
        if (!in_memory) {
            buf_clear(result);
            train_fail(s, f, &err);
            return false;
        }
        log_line(s->log, LOG_ERROR, "%s: outcome not recorded yet: %s", f->id, err.message);
        pthread_mutex_lock(&s->lock);
        f->unrecorded = true;
        pthread_mutex_unlock(&s->lock);
    } else if (err.status != TINKER_OK)
        log_line(s->log, LOG_ERROR, "%s: recorded, but not safe from a power failure yet: %s",
                 f->id, err.message);
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
    /* train_finish() takes over the buffer, also when it fails. */
    if (wire_encode_json(type, value, &b, &err) == TINKER_OK)
        return train_finish(s, f, &b, false, outcome);
    buf_clear(&b);
    train_fail(s, f, &err);
    return false;
}

/* ---- training state ------------------------------------------------------------------ */

/* Finish f with the training state saved.  When it cannot be saved or recorded the request
 * fails, and with it the change it made: false. */
static bool finish_saved(struct server *s, struct future *f, const struct wire_type *type,
                         const void *value)
{
    struct model *m = f->model;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    if (train_state_save(s, m, f->kind != JOB_OPTIM_STEP, dir, &err) != TINKER_OK) {
        err_prefix(&err, "the training state could not be saved");
        train_state_rewind(m);
        train_fail(s, f, &err);
        return false;
    }
    /* A replayed step did not record its state before the crash: record it now. */
    f->replay = false;
    struct store_outcome outcome = { .saved_dir = dir[0] ? dir : NULL };
    int64_t seq = f->seq; /* f may be gone once it has finished */
    /* Committed together: the outcome, and that dir is the state after seq.  Only then the old
     * directory goes; if the commit fails the new one does. */
    if (train_finish_json(s, f, type, value, &outcome)) {
        train_state_adopt(s, m, dir, seq);
        return true;
    }
    train_state_rewind(m);
    if (dir[0])
        checkpoint_discard(s, dir);
    return false;
}

/* ---- forward and backward ---------------------------------------------------------------- */

/* false with TINKER_ENOMEM: there may be memory once other passes and samples have ended. */
static bool new_pass(struct server *s, struct train_task *t, tinker_error *err)
{
    struct future *f = t->f;
    const struct wire_forward_backward_request *r = &f->job->pass;
    tinker_engine *e = f->model->base->engine;
    bool custom = r->loss.name && strcmp(r->loss.name, "custom") == 0;
    if (custom && !t->custom)
        t->custom = custom_loss_new(s, f->model->session->id, r, err);
    if (custom && !t->custom)
        return false;
    /* The engine copies the data, but a custom loss borrows them from the job for its other inputs;
     * the job lives until the request ends. */
    t->pass = custom ? tinker_pass_new_custom(e, f->model->adapter, r->data, r->n_data,
                                              custom_loss_datum, t->custom, r->forward_only, err)
                     : tinker_pass_new(e, f->model->adapter, r->data, r->n_data, &r->loss,
                                       r->forward_only, err);
    return t->pass != NULL;
}

/* Free what a task holds. */
static void clear_task(struct train_task *t)
{
    tinker_pass_free(t->pass);
    custom_loss_free(t->custom);
}

/* Polls for f are told that it waits for memory. */
static void set_starved(struct server *s, struct future *f, bool starved)
{
    pthread_mutex_lock(&s->lock);
    f->starved = starved;
    pthread_mutex_unlock(&s->lock);
}

/* All slices of a pass are done: encode, record and publish its result. */
static void finish_pass(struct server *s, struct train_task *t)
{
    struct future *f = t->f;
    const tinker_forward_backward *r = tinker_pass_result(t->pass);
    tinker_forward_backward reduced;
    if (s->opts.no_elementwise_loss) {
        /* Copy the lists of tensors without elementwise_loss; the tensors are borrowed.  Without
         * memory for it the complete result is just as right. */
        struct arena *arena = &f->job->arena;
        tinker_loss_output *outputs = arena_array(arena, r->n_outputs, sizeof(*outputs));
        bool ok = outputs != NULL;
        for (size_t i = 0; ok && i < r->n_outputs; i++) {
            const tinker_loss_output *from = &r->outputs[i];
            tinker_named_tensor *kept = arena_array(arena, from->n_tensors, sizeof(*kept));
            ok = kept != NULL;
            outputs[i].tensors = kept;
            for (size_t k = 0; ok && k < from->n_tensors; k++)
                if (strcmp(from->tensors[k].name, "elementwise_loss") != 0)
                    kept[outputs[i].n_tensors++] = from->tensors[k];
        }
        /* Shallow: all but the list of outputs stays the engine's. */
        reduced = *r;
        reduced.outputs = outputs;
        if (ok)
            r = &reduced;
    }
    if (t->custom)
        r = custom_loss_result(t->custom, r);
    struct buf b;
    tinker_error err = { 0 };
    struct store_outcome outcome = { .tokens = job_tokens(f->job) }; /* counted with the outcome */
    bool changes = f->kind == JOB_FORWARD_BACKWARD;
    struct model *m = f->model; /* f may be gone after train_finish() */
    struct server_counters *own = &f->session->tenant->counters;
    live_count(&s->counters.train_tokens, &own->train_tokens, (uint64_t)outcome.tokens);
    live_count(&s->counters.passes, &own->passes, 1);
    /* What the history needs of f, which may be gone then. */
    bool replay = f->replay;
    double weight = train_history_weight(f->job->pass.data, f->job->pass.n_data);
    double seconds = (double)(clock_now_ns(s->clock) - f->started_ns) / 1e9;
    buf_init(&b, RESULT_MAX);
    bool done = false;
    if (!replay) /* it was counted before the restart */
        usage_add(s, USAGE_TRAINING, m->owner, m->session->id, m->base->name, outcome.tokens);
    /* Stored as protobuf; route_future.c turns it into JSON for clients that ask for that. */
    tinker_status status = wire_encode_forward_backward_output(r, &b, &err);
    if (status == TINKER_OK)
        done = train_finish(s, f, &b, true, &outcome);
    else
        train_fail(s, f, &err);
    buf_clear(&b);
    /* A pass with backward is part of the step that comes. */
    if (done && !replay)
        train_history_pass(s, m->id, tinker_adapter_steps(m->adapter) + changes, !changes,
                           r->metrics, r->n_metrics, weight, seconds);
    clear_task(t); /* the result points into it */
    /* The gradients are in the adapter, but the store does not know of them. */
    if (!done && changes)
        train_state_rewind(m);
}

bool train_step(struct server *s, struct train_task *t, bool alone)
{
    tinker_error err = { 0 };
    if (!t->pass) { /* it waits for memory */
        new_pass(s, t, &err);
        /* Another pass or samples hold memory: wait for their end.  Without any it never fits. */
        if (!t->pass && err.status == TINKER_ENOMEM && !alone)
            return true;
        if (!t->pass) {
            clear_task(t);
            train_fail(s, t->f, &err);
            return false;
        }
        set_starved(s, t->f, false);
    }
    /* One micro-batch; the engine decides how much that is. */
    int more = tinker_pass_step(t->pass, &err);
    if (more > 0)
        return true;
    if (more == 0) {
        finish_pass(s, t);
        return false;
    }
    /* The engine adds gradients to the adapter only at the end of a pass, so a pass that failed
     * has changed nothing. */
    clear_task(t);
    train_fail(s, t->f, &err);
    return false;
}

/* At shutdown and for expired sessions.  The adapter has not been touched yet: see above. */
void train_abandon(struct train_task *t)
{
    clear_task(t);
}

/* ---- optimizer ------------------------------------------------------------------------------ */

/* A step over a gradient that is not finite fails and still changes something: the engine drops
 * the gradient.  Record that with the failure, in one transaction: otherwise a rebuild would
 * replay the passes and bring the gradient back. */
static void fail_with_lost_gradient(struct server *s, struct future *f, const tinker_error *err)
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
                                     .now_us = live_wall_us(s) };
    /* An empty dir: autosave is off, and nothing would be rebuilt from the store anyway. */
    tinker_status status = train_state_save(s, m, true, dir, &why);
    if (status == TINKER_OK && dir[0]) {
        status = store_finish_request(s->store, &outcome, &why);
        if (status == TINKER_OK)
            train_state_adopt(s, m, dir, f->seq);
        else
            checkpoint_discard(s, dir);
    }
    if (status != TINKER_OK) {
        log_line(s->log, LOG_ERROR, "%s: %s", f->id, why.message);
        train_state_rewind(m);
    }
    train_fail(s, f, err);
}

/* optim_step: apply the gathered gradients, save the state, commit. */
static void run_optim_step(struct server *s, struct future *f)
{
    tinker_step_metrics m = { 0 };
    tinker_error err = { 0 };
    tinker_status status = train_state_step(f->model->adapter, f->job, &m, &err);
    if (status == TINKER_EREQUEST) { /* the gradient was not finite, and is gone */
        fail_with_lost_gradient(s, f, &err);
        return;
    }
    if (status != TINKER_OK) { /* nothing has changed */
        train_fail(s, f, &err);
        return;
    }
    /* The step is in memory; finish_saved() makes it durable, or undoes it. */
    live_count(&s->counters.steps, &f->session->tenant->counters.steps, 1);
    const tinker_named_number metrics[] = {
        { "grad_norm:mean", m.grad_norm },     { "learning_rate:mean", m.learning_rate },
        { "step:max", (double)m.step },        { "clip_coef:mean", m.clip_coef },
        { "update_norm:mean", m.update_norm },
    };
    struct wire_optim_step_response r = { .metrics = {
                                              .has = 1, .v = metrics, .n = ARRAY_LEN(metrics) } };
    const char *run = f->model->id;
    bool replay = f->replay;
    pthread_mutex_lock(&s->lock);
    /* Moments of the optimizer appear with the first step, so the size grows here. */
    f->model->adapter_bytes = tinker_adapter_bytes(f->model->adapter);
    pthread_mutex_unlock(&s->lock);
    double seconds = (double)(clock_now_ns(s->clock) - f->started_ns) / 1e9;
    if (finish_saved(s, f, &wire_optim_step_response, &r) && !replay)
        train_history_step(s, run, &m, seconds);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Find the directory of the weights to load: a checkpoint's, or with --allow-local-paths any on
 * this machine.  out has CHECKPOINT_PATH bytes. */
static tinker_status find_load_dir(struct server *s, struct future *f, char *out, tinker_error *err)
{
    const struct wire_load_weights_request *r = &f->job->load;
    struct store_checkpoint *from = NULL;
    struct wire_path path;
    if (s->opts.allow_local_paths && strncmp(r->path, "file:///", 8) == 0) {
        snprintf(out, CHECKPOINT_PATH, "%s",
                 r->path + 7); /* "file://" goes, its third slash stays */
        return checkpoint_check_local(out, err);
    }
    tinker_status status = wire_path_parse(r->path, &path, err);
    if (status != TINKER_OK)
        return status;
    if (path.sampler && r->optimizer)
        return err_set(err, TINKER_EINVAL,
                       "%s has no optimizer state: load its weights alone, without the optimizer",
                       r->path);
    /* The path is not NUL-terminated behind the run. */
    const char *run = arena_strndup(&f->job->arena, path.run, path.n_run);
    if (!run)
        return err_nomem(err, "path");
    /* By record, not by directory: it may have been deleted or replaced since the request came. */
    status = store_get_checkpoint(s->store, run, path.sampler ? STORE_SAMPLER : STORE_TRAINING,
                                  path.name, &f->job->arena, &from, err);
    if (status != TINKER_OK)
        return status;
    /* The same message for a missing and a foreign one: names of others are not revealed. */
    if (!from || !(from->is_public || strcmp(from->owner, f->model->owner) == 0))
        return err_set(err, TINKER_EINVAL, "no checkpoint %s", r->path);
    checkpoint_path(s, from->dir, out);
    return TINKER_OK;
}

/* LOAD and CREATE_BY_LOAD: replace the adapter by a checkpoint's.  false: f has failed. */
static bool run_load(struct server *s, struct weights_cache *weights, struct future *f)
{
    const struct wire_load_weights_request *r = &f->job->load;
    const tinker_lora *to = &f->model->lora;
    char path[CHECKPOINT_PATH];
    tinker_error err = { 0 };
    tinker_adapter *loaded = NULL;
    tinker_status status = find_load_dir(s, f, path, &err);
    /* With a limit of adapters there may be no space for both: the old one goes to disk, also where
     * autosave is off, and should the load fail the next request finds it there. */
    if (status == TINKER_OK && s->opts.max_adapters && f->model->adapter)
        status = train_state_unload(s, f->model, f->seq - 1, &err);
    if (status == TINKER_OK && adapter_limit_make_space(s, weights, f->model, &err) == TINKER_OK)
        loaded = tinker_adapter_load(f->model->base->engine, path,
                                     r->optimizer ? TINKER_ADAPTER_OPTIMIZER : 0, &err);
    const tinker_lora *from = loaded ? tinker_adapter_describe(loaded) : NULL;
    /* The shape must be the model's own: its id says what it is, and clients have been told. */
    bool fits = from && from->rank == to->rank && from->train_attn == to->train_attn &&
                from->train_mlp == to->train_mlp && from->train_unembed == to->train_unembed;
    if (from && !fits)
        err_set(&err, TINKER_EINVAL,
                "the checkpoint has rank %lld (attn %d, mlp %d, unembed %d), the model rank %lld "
                "(attn %d, mlp %d, unembed %d)",
                (long long)from->rank, from->train_attn, from->train_mlp, from->train_unembed,
                (long long)to->rank, to->train_attn, to->train_mlp, to->train_unembed);
    /* Moments are those of one optimizer; weights alone are trained on with the model's own. */
    if (fits && r->optimizer && from->optimizer != to->optimizer &&
        (!from->optimizer || !to->optimizer || strcmp(from->optimizer, to->optimizer) != 0)) {
        err_set(
            &err, TINKER_EINVAL,
            "the checkpoint has the state of %s, the model is trained with %s: load the weights "
            "alone, without the optimizer",
            from->optimizer ? from->optimizer : "adamw", to->optimizer ? to->optimizer : "adamw");
        fits = false;
    } else if (fits && !r->optimizer) {
        fits = tinker_adapter_set_optimizer(loaded, to->optimizer, &err) == TINKER_OK;
    }
    if (!fits) {
        tinker_adapter_free(loaded);
        train_fail(s, f, &err);
        return false;
    }
    /* Nothing before the load matters any more: the state is what was loaded. */
    tinker_adapter_free(f->model->adapter);
    f->model->adapter = loaded;
    f->model->rewound = false; /* nothing is left to replay */
    struct wire_load_weights_response res = { .path = r->path, .model_id = f->model->id };
    return finish_saved(s, f, &wire_load_weights_response, &res);
}

/* ---- life of a model ------------------------------------------------------------------------- */

/* ACTIVE -> UNLOADED: from now on every request of the model fails with the reason.  The first
 * reason stays. */
static tinker_status end_model(struct server *s, struct model *m, const char *reason,
                               tinker_error *err)
{
    pthread_mutex_lock(&s->lock);
    m->state = MODEL_UNLOADED;
    if (!m->end_reason) /* submit_end_model() may have set a better one */
        m->end_reason = reason;
    pthread_mutex_unlock(&s->lock);
    return train_release(s, m, err);
}

tinker_status train_release(struct server *s, struct model *m, tinker_error *err)
{
    tinker_adapter_free(m->adapter);
    m->adapter = NULL;
    /* Record the end before files go: until then a restart would need them. */
    tinker_status status = store_set_model_status(s->store, m->id, STORE_MODEL_UNLOADED, err);
    if (status != TINKER_OK) {
        log_line(s->log, LOG_ERROR, "%s: %s", m->id, err->message);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    bool ended = m->session->expired;
    pthread_mutex_unlock(&s->lock);
    /* Unnamed sampler weights live as long as their session. */
    if (ended)
        checkpoint_drop_hidden(s, m->id, 0);
    if (m->saved_dir[0])
        checkpoint_remove(s, m->saved_dir);
    m->saved_dir[0] = '\0';
    return TINKER_OK;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* CREATE and CREATE_BY_LOAD, request 0 of a model: if it fails there is no model, and later
 * requests fail too.  If it is replayed, the model was created before the restart, and later
 * requests may try again. */
static void create_model(struct server *s, struct weights_cache *weights, struct future *f)
{
    struct model *m = f->model;
    bool created = false, replay = f->replay;
    tinker_error err = { 0 };
    if (f->kind == JOB_CREATE_BY_LOAD) {
        created = run_load(s, weights, f);
    } else {
        if (adapter_limit_make_space(s, weights, m, &err) == TINKER_OK)
            m->adapter = tinker_adapter_new(m->base->engine, &m->lora, &err);
        struct wire_create_model_response res = { m->id };
        struct store_outcome outcome = { 0 };
        if (m->adapter)
            created = train_finish_json(s, f, &wire_create_model_response, &res, &outcome);
        else
            train_fail(s, f, &err);
    }
    if (!created && !replay)
        end_model(s, m, MODEL_NEVER_CREATED, &err);
}

bool train_start(struct server *s, struct weights_cache *weights, struct future *f,
                 struct train_task *t)
{
    struct model *m = f->model;
    tinker_error err = { 0 };
    /* Request 0: the only kinds that find no adapter and make one. */
    bool creates = f->kind == JOB_CREATE || f->kind == JOB_CREATE_BY_LOAD;
    pthread_mutex_lock(&s->lock);
    const char *reason = m->state == MODEL_UNLOADED ? m->end_reason : NULL;
    pthread_mutex_unlock(&s->lock);
    if (reason && f->kind != JOB_UNLOAD) {
        future_fail(s, f, TINKER_CATEGORY_USER, "model %s %s", m->id, reason);
        return false;
    }
    m->used = ++weights->tick; /* for adapter_limit.c: the least recently used leaves first */
    /* The route refused it, but its number has to be used up: now is its turn to fail. */
    if (f->job->refused[0]) {
        bool replay = f->replay;
        future_fail(s, f, TINKER_CATEGORY_USER, "%s", f->job->refused);
        if (creates && !replay)
            end_model(s, m, MODEL_NEVER_CREATED, &err);
        return false;
    }
    /* All but these work on the adapter as the previous request left it. */
    if (!creates && f->kind != JOB_LOAD && f->kind != JOB_UNLOAD && !m->adapter &&
        (adapter_limit_make_space(s, weights, m, &err) != TINKER_OK ||
         train_state_load(s, m, f->seq, &err) != TINKER_OK)) {
        train_fail(s, f, &err);
        return false;
    }
    switch (f->kind) {
    case JOB_CREATE:
    case JOB_CREATE_BY_LOAD:
        create_model(s, weights, f);
        break;
    case JOB_LOAD:
        run_load(s, weights, f);
        break;
    case JOB_FORWARD:
    case JOB_FORWARD_BACKWARD:
        *t = (struct train_task){ .f = f };
        if (!new_pass(s, t, &err) && err.status != TINKER_ENOMEM) {
            clear_task(t);
            train_fail(s, f, &err);
            return false;
        }
        if (!t->pass)
            set_starved(s, f, true); /* a task all the same: it waits for memory */
        return true;
    case JOB_OPTIM_STEP:
        run_optim_step(s, f);
        break;
    case JOB_SAVE:
    case JOB_SAVE_SAMPLER:
    case JOB_SAVE_EXTERNAL:
        train_save(s, weights, f);
        break;
    case JOB_UNLOAD:
        if (end_model(s, m, "has been unloaded", &err) == TINKER_OK) {
            struct wire_unload_model_response res = { m->id };
            struct store_outcome outcome = { 0 };
            train_finish_json(s, f, &wire_unload_model_response, &res, &outcome);
        } else {
            train_fail(s, f, &err);
        }
        break;
    case JOB_SAMPLE: /* never in a model's queue */
    case JOB_CUSTOM_LOSS:
        break;
    }
    return false;
}
