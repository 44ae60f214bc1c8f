/* train_state.c - see train_state.h. */
#include "server/work/train_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Run one recorded pass for its gradients; its result is known. */
static tinker_status replay_pass(struct model *m, tinker_adapter *a, const struct store_request *r,
                                 tinker_error *err)
{
    struct job *w = job_new((enum job_kind)r->kind);
    if (!w)
        return err_nomem(err, "request");
    tinker_pass *pass = NULL;
    tinker_status status = job_decode(w, r->proto, r->body, r->n_body, err);
    if (status == TINKER_OK) {
        pass = tinker_pass_new(m->base->engine, a, w->pass.data, w->pass.n_data, &w->pass.loss,
                               w->pass.forward_only, err);
        status = pass ? TINKER_OK : err->status;
    }
    int more = pass ? 1 : 0;
    while (more > 0)
        more = tinker_pass_step(pass, err);
    if (more < 0)
        status = err->status;
    tinker_pass_free(pass);
    job_free(w);
    return status;
}

/* Unless each one is saved there are steps that the saved state lacks. */
static tinker_status replay_step(tinker_adapter *a, const struct store_request *r,
                                 tinker_error *err)
{
    struct job *w = job_new(JOB_OPTIM_STEP);
    tinker_step_metrics metrics;
    if (!w)
        return err_nomem(err, "request");
    tinker_status status = job_decode(w, r->proto, r->body, r->n_body, err);
    if (status == TINKER_OK)
        status = tinker_adapter_step(a, &w->optim.adam_params, &metrics, err);
    job_free(w);
    return status;
}

/* What a recorded request did to the adapter, once more. */
static tinker_status replay_request(struct model *m, tinker_adapter *a,
                                    const struct store_request *r, tinker_error *err)
{
    if (r->status != STORE_DONE || !job_kind_changes((enum job_kind)r->kind))
        return TINKER_OK;
    if (r->kind != JOB_CREATE && !r->body)
        return err_set(err, TINKER_ESTATE,
                       "the training state of model %s is gone and was not saved (autosave is off)",
                       m->id);
    if (r->kind == JOB_FORWARD_BACKWARD)
        return replay_pass(m, a, r, err);
    if (r->kind == JOB_OPTIM_STEP)
        return replay_step(a, r, err);
    if (r->kind == JOB_LOAD || r->kind == JOB_CREATE_BY_LOAD)
        return err_set(err, TINKER_ESTATE, "the state of model %s was never saved", m->id);
    return TINKER_OK;
}

/* The gradients that had gathered since the state was saved; steps too if it never is.  After a
 * restart those from `before` on are still in the queue. */
static tinker_status replay_requests(struct server *s, struct model *m, tinker_adapter *a,
                                     int64_t before, tinker_error *err)
{
    struct arena arena;
    struct store_request *list;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    tinker_status status =
        store_list_requests(s->store, m->id, m->saved_seq, &arena, &list, &n, err);
    for (size_t i = 0; status == TINKER_OK && i < n && list[i].seq < before; i++)
        status = replay_request(m, a, &list[i], err);
    arena_clear(&arena);
    return status;
}

static tinker_adapter *open_saved_state(struct server *s, struct model *m, tinker_error *err)
{
    char path[CHECKPOINT_PATH];
    if (!m->saved_dir)
        return tinker_adapter_new(m->base->engine, &m->lora, err);
    checkpoint_path(s, m->saved_dir, path);
    return tinker_adapter_load(m->base->engine, path, TINKER_ADAPTER_OPTIMIZER, err);
}

tinker_status train_state_load(struct server *s, struct model *m, int64_t seq, tinker_error *err)
{
    if (m->adapter)
        return TINKER_OK;
    tinker_adapter *a = open_saved_state(s, m, err);
    if (!a)
        return err->status;
    if (m->rewound && replay_requests(s, m, a, seq, err) != TINKER_OK) {
        tinker_adapter_free(a);
        return err->status;
    }
    m->rewound = false;
    m->adapter = a;
    return TINKER_OK;
}

/* A load must be saved whenever anything is: the requests before it do not lead to it. */
static bool is_save_due(struct server *s, struct model *m, bool always)
{
    m->unsaved_steps++;
    return s->opts.autosave && (always || m->unsaved_steps >= s->opts.autosave);
}

tinker_status train_state_save(struct server *s, struct model *m, bool always,
                               char dir[CHECKPOINT_DIR], tinker_error *err)
{
    int64_t size;
    dir[0] = 0;
    if (!is_save_due(s, m, always))
        return TINKER_OK;
    return checkpoint_write(s, m->adapter, m->base->name, TINKER_ADAPTER_OPTIMIZER, dir, &size,
                            err);
}

void train_state_adopt(struct server *s, struct model *m, const char *dir, int64_t seq)
{
    if (!dir[0])
        return;
    char *old = m->saved_dir;
    m->saved_dir = strdup(dir);
    m->saved_seq = seq;
    m->unsaved_steps = 0;
    checkpoint_remove(s, old);
    free(old);
}

tinker_status train_state_unload(struct server *s, struct model *m, int64_t seq, tinker_error *err)
{
    char dir[CHECKPOINT_DIR];
    int64_t size;
    if (m->saved_seq != seq) {
        tinker_status status = checkpoint_write(s, m->adapter, m->base->name,
                                                TINKER_ADAPTER_OPTIMIZER, dir, &size, err);
        if (status != TINKER_OK)
            return status;
        status = store_set_model_saved(s->store, m->id, seq, dir, err);
        if (status != TINKER_OK) {
            checkpoint_discard(s, dir);
            return status;
        }
        train_state_adopt(s, m, dir, seq);
    }
    tinker_adapter_free(m->adapter);
    m->adapter = NULL;
    return TINKER_OK;
}

void train_state_rewind(struct model *m)
{
    tinker_adapter_free(m->adapter);
    m->adapter = NULL;
    m->rewound = true;
}
