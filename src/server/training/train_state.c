/* train_state.c - see train_state.h.
 *
 * The state after request n is the saved directory (state after saved_seq) plus the recorded
 * requests saved_seq+1 .. n that changed weights or gradients.  The engine is deterministic, so
 * replaying them gives the same bits.  A state in memory that has a change which the store could
 * not record is dropped (rewound) and rebuilt in this way. */
#include "server/training/train_state.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "wire/check.h"
#include "wire/optimizer.h"

tinker_status train_state_step(tinker_adapter *a, struct job *w, tinker_step_metrics *metrics,
                               tinker_error *err)
{
    tinker_optimizer o;
    tinker_status status;
    if (w->optim.adam_params) {
        status = wire_check_adam(w->optim.adam_params, err);
        return status == TINKER_OK ? tinker_adapter_step(a, w->optim.adam_params, metrics, err)
                                   : status;
    }
    status = wire_optimizer_decode(w->optim.optimizer_params, &w->arena, &o, err);
    return status == TINKER_OK ? tinker_adapter_optimize(a, &o, metrics, err) : status;
}

/* Repeat what a recorded pass or optimizer step did to the adapter; its result is known. */
static tinker_status replay_job(struct model *m, tinker_adapter *a, const struct store_request *r,
                                tinker_error *err)
{
    struct job *w = job_new((enum job_kind)r->kind);
    if (!w)
        return err_nomem(err, "request");
    tinker_pass *pass = NULL;
    tinker_step_metrics metrics;
    /* It ran once with this body, so an error here means memory, or a field that this version reads
     * another way: the model stays rewound, and the request that needs it fails. */
    tinker_status status = job_decode(w, r->proto, r->body, r->n_body, err);
    if (status == TINKER_OK && r->kind == JOB_OPTIM_STEP) {
        status = train_state_step(a, w, &metrics, err);
    } else if (status == TINKER_OK) {
        pass = tinker_pass_new(m->base->engine, a, w->pass.data, w->pass.n_data, &w->pass.loss,
                               w->pass.forward_only, err);
        status = pass ? TINKER_OK : err->status;
    }
    int more = pass ? 1 : 0; /* slices left, or negative: it failed */
    while (more > 0)         /* to the end in one go: the request that needs it waits */
        more = tinker_pass_step(pass, err);
    if (more < 0)
        status = err->status;
    tinker_pass_free(pass);
    job_free(w);
    return status;
}

/* Apply the recorded requests after the saved state to the adapter: passes for their gradients,
 * steps where autosave does not save each.  Those from `before` on are still in the queue after
 * a restart and run there. */
static tinker_status replay_since_saved(struct server *s, struct model *m, tinker_adapter *a,
                                        int64_t before, tinker_error *err)
{
    struct arena arena;
    struct store_request *list;
    size_t n;
    arena_init(&arena, SIZE_MAX); /* bodies of all requests since the last save */
    tinker_status status =
        store_list_requests(s->store, m->id, m->saved_seq, &arena, &list, &n, err);
    for (size_t i = 0; status == TINKER_OK && i < n && list[i].seq < before; i++) {
        const struct store_request *r = &list[i];
        /* Failed requests and saves changed nothing. */
        if (r->status != STORE_DONE || !job_kind_changes((enum job_kind)r->kind))
            continue;
        if (r->kind != JOB_CREATE && !r->body)
            status = err_set(
                err, TINKER_ESTATE,
                "the training state of model %s is lost: it was not saved (autosave is off)",
                m->id);
        else if (r->kind == JOB_LOAD || r->kind == JOB_CREATE_BY_LOAD)
            /* The checkpoint may be gone or overwritten: a load counts only once it is saved. */
            status = err_set(err, TINKER_ESTATE, "the state of model %s was never saved", m->id);
        else if (r->kind != JOB_CREATE) /* a new adapter is what we started from */
            status = replay_job(m, a, r, err);
    }
    arena_clear(&arena);
    return status;
}

tinker_status train_state_load(struct server *s, struct model *m, int64_t seq, tinker_error *err)
{
    char path[CHECKPOINT_PATH];
    tinker_adapter *a;
    if (m->adapter)
        return TINKER_OK;
    if (m->saved_dir[0]) {
        checkpoint_path(s, m->saved_dir, path);
        a = tinker_adapter_load(m->base->engine, path, TINKER_ADAPTER_OPTIMIZER, err);
    } else {
        /* Never saved: the seed makes the same initial weights again. */
        a = tinker_adapter_new(m->base->engine, &m->lora, err);
    }
    if (!a)
        return err->status;
    /* Right after a restart nothing is rewound: the requests after the saved state are in the
     * queue and run there, in order. */
    if (m->rewound && replay_since_saved(s, m, a, seq, err) != TINKER_OK) {
        tinker_adapter_free(a);
        return err->status;
    }
    m->rewound = false;
    m->adapter = a; /* exactly as it was before request seq */
    return TINKER_OK;
}

tinker_status train_state_save(struct server *s, struct model *m, bool always,
                               char dir[CHECKPOINT_DIR], tinker_error *err)
{
    int64_t size;
    dir[0] = 0;
    /* Set to 0 by train_state_adopt() only: when this save or its commit fails, the next step is
     * due again. */
    m->unsaved_steps++;
    /* A load must be saved whenever anything is: the requests before it do not lead to it. */
    bool due = s->opts.autosave && (always || m->unsaved_steps >= s->opts.autosave);
    if (!due)
        return TINKER_OK;
    return checkpoint_write(s, m->adapter, m->base->name, TINKER_ADAPTER_OPTIMIZER, dir, &size,
                            err);
}

void train_state_adopt(struct server *s, struct model *m, const char *dir, int64_t seq)
{
    if (!dir[0])
        return;
    /* The transaction that names the new directory is durable, so the old one can go; in the
     * other order a power failure would lose both. */
    char old[sizeof(m->saved_dir)];
    memcpy(old, m->saved_dir, sizeof(old));
    snprintf(m->saved_dir, sizeof(m->saved_dir), "%s", dir);
    m->saved_seq = seq;
    m->unsaved_steps = 0; /* autosave counts from here */
    if (old[0])
        checkpoint_remove(s, old);
}

tinker_status train_state_unload(struct server *s, struct model *m, int64_t seq, tinker_error *err)
{
    char dir[CHECKPOINT_DIR];
    int64_t size;
    if (m->saved_seq != seq) { /* else the disk has it already */
        tinker_status status = checkpoint_write(s, m->adapter, m->base->name,
                                                TINKER_ADAPTER_OPTIMIZER, dir, &size, err);
        if (status != TINKER_OK)
            return status;
        /* The files are synced; now the record may name them. */
        status = store_set_model_saved(s->store, m->id, seq, dir, err);
        if (status != TINKER_OK) {
            checkpoint_discard(s, dir);
            return status;
        }
        train_state_adopt(s, m, dir, seq);
    }
    /* The disk has all of it, so the model is not rewound: the next load has nothing to replay. */
    tinker_adapter_free(m->adapter);
    m->adapter = NULL;
    return TINKER_OK;
}

void train_state_rewind(struct model *m)
{
    tinker_adapter_free(m->adapter);
    m->adapter = NULL; /* with it go gradients that no record knows */
    m->rewound = true;
}
