/* train_save.c - training requests that save weights: see train.h.
 *
 * The weights are in their directory, synced, before the one transaction that names them
 * and ends the request.  If the transaction fails the directory is removed; if the process
 * dies between the two, checkpoint_clean() removes it at the next start.  So a checkpoint
 * is listed only when it is complete.
 *
 * Thread: the engine thread alone. */
#include "server/training/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/store/checkpoint.h"
#include "server/work/adapter_limit.h"
#include "server/work/usage.h"
#include "wire/check.h"
#include "wire/wire.h"

/* Fill the record of a new checkpoint with what is known before it is written. */
static void describe_checkpoint(struct future *f, struct store_checkpoint *c, int kind,
                                const char *name)
{
    const struct model *m = f->model;
    /* The shape as the engine has it: what a model must look like to load the checkpoint. */
    *c = (struct store_checkpoint){ .run = m->id,
                                    .name = name,
                                    .owner = m->owner,
                                    .base_model = m->base->name,
                                    .kind = kind,
                                    .lora = *tinker_adapter_describe(m->adapter) };
}

/* Encode the metadata of a checkpoint as the store keeps it; NULL: none, or no memory.  The bound
 * is that of the request's body, ROUTE_BODY_MAX. */
static const char *encode_metadata(struct arena *arena, const struct wire_named_strings *v)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    bool ok = v->has && wire_metadata_encode(v->v, v->n, &b, NULL) == TINKER_OK && buf_ok(&b);
    const char *out = ok ? arena_strndup(arena, b.data, b.len) : NULL;
    buf_clear(&b);
    return out;
}

/* Find the checkpoint that has the name; *out NULL: the name is free. */
static tinker_status find_existing(struct server *s, struct future *f, int kind, const char *name,
                                   struct store_checkpoint **out, tinker_error *err)
{
    return store_get_checkpoint(s->store, f->model->id, kind, name, &f->job->arena, out, err);
}

/* May the name be used?  *old is the checkpoint that it replaces, if any. */
static tinker_status check_new_name(struct server *s, struct future *f, int kind, const char *name,
                                    bool overwrite, struct store_checkpoint **old,
                                    tinker_error *err)
{
    tinker_status status = wire_check_checkpoint_name(name, err);
    /* Where the name becomes a file name, the file would be hidden. */
    if (status == TINKER_OK && name[0] == '.')
        status = err_set(err, TINKER_EINVAL, "checkpoint name '%s' starts with a dot", name);
    if (status == TINKER_OK)
        status = find_existing(s, f, kind, name, old, err);
    /* Only the store knows: names are unique per run and kind. */
    if (status == TINKER_OK && *old && !overwrite)
        status = err_set(err, TINKER_EINVAL, "Checkpoint '%s' already exists; %s", name,
                         kind == STORE_TRAINING ? "pass overwrite=true" : "choose another name");
    return status;
}

/* Write the weights to a new directory; fill dir, size and times of the record. */
static tinker_status write_checkpoint(struct server *s, struct future *f,
                                      struct store_checkpoint *c, int flags,
                                      struct wire_opt_int ttl, char *dir, tinker_error *err)
{
    c->created_us = live_wall_us(s);
    c->dir = dir;
    /* The bound leaves headroom: created_us plus the TTL in microseconds must not overflow. */
    if (ttl.has && (ttl.value <= 0 || ttl.value > INT64_MAX / 2000000))
        return err_set(err, TINKER_EINVAL, "ttl_seconds must be a positive number of seconds");
    if (ttl.has)
        c->expires_us = c->created_us + ttl.value * 1000000;
    return checkpoint_write(s, f->model->adapter, f->model->base->name, flags, dir, &c->size_bytes,
                            err);
}

/* Finish a save that has a name, and count and note it.  false: its files are not wanted. */
static bool finish_named(struct server *s, struct future *f, const struct wire_type *type,
                         const void *res, struct store_checkpoint *c)
{
    struct model *m = f->model; /* f and its texts may be gone after train_finish() */
    struct store_outcome outcome = { .checkpoint = c };
    bool replay = f->replay;
    char path[1024];
    /* For the audit log, which is written after the request and its texts may be gone. */
    snprintf(path, sizeof(path), "tinker://%s/%s/%s", m->id, store_kind_name(c->kind), c->name);
    if (!train_finish_json(s, f, type, res, &outcome))
        return false;
    if (!replay) {
        usage_add(s, USAGE_CHECKPOINT, m->owner, m->session->id, m->base->name, 1);
        usage_note(s, m->owner, "checkpoint_create", m->id, path, "save", m->session->id);
    }
    return true;
}

/* save_weights: weights and optimizer state, to go on with training later. */
static void run_save(struct server *s, struct future *f)
{
    const struct wire_save_weights_request *r = &f->job->save;
    char name[64], dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
    /* A save without a name is called after the number of steps taken; a second one at the same
     * step adds its request number. */
    if (!r->path) {
        long long steps = tinker_adapter_steps(f->model->adapter);
        snprintf(name, sizeof(name), "%06lld", steps);
        if (find_existing(s, f, STORE_TRAINING, name, &old, NULL) == TINKER_OK && old)
            snprintf(name, sizeof(name), "%06lld-%lld", steps, (long long)f->seq);
        old = NULL;
    }
    describe_checkpoint(f, &c, STORE_TRAINING, r->path ? r->path : name);
    c.user_metadata = encode_metadata(&f->job->arena, &r->user_metadata);
    if (check_new_name(s, f, STORE_TRAINING, c.name, r->overwrite, &old, &err) != TINKER_OK ||
        write_checkpoint(s, f, &c, TINKER_ADAPTER_OPTIMIZER, r->ttl_seconds, dir, &err) !=
            TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    /* `old` is in the job's arena, which goes with the request; its files go after the commit. */
    char old_dir[CHECKPOINT_DIR] = "";
    if (old)
        snprintf(old_dir, sizeof(old_dir), "%s", old->dir);
    struct wire_save_weights_response res = { arena_printf(&f->job->arena, "tinker://%s/weights/%s",
                                                           f->model->id, c.name) };
    /* The record of the old checkpoint is replaced in the same transaction. */
    bool saved = finish_named(s, f, &wire_save_weights_response, &res, &c);
    if (!saved)
        checkpoint_discard(s, dir);
    else if (old_dir[0])
        checkpoint_release(s, old_dir); /* copies of it may share the files */
}

/* save_weights_for_sampler with a name: weights only, listed and kept. */
static void run_save_named_sampler(struct server *s, struct future *f)
{
    const struct wire_save_weights_for_sampler_request *r = &f->job->save_sampler;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
    /* Names of sampler weights cannot be overwritten: a sampling session may use them. */
    describe_checkpoint(f, &c, STORE_SAMPLER, r->path);
    c.user_metadata = encode_metadata(&f->job->arena, &r->user_metadata);
    if (check_new_name(s, f, STORE_SAMPLER, c.name, false, &old, &err) != TINKER_OK ||
        write_checkpoint(s, f, &c, s->opts.sampler_bf16 ? TINKER_ADAPTER_BF16 : 0, r->ttl_seconds,
                         dir, &err) != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    struct wire_save_weights_for_sampler_response res = {
        .path = arena_printf(&f->job->arena, "tinker://%s/sampler_weights/%s", f->model->id, c.name)
    };
    if (!finish_named(s, f, &wire_save_weights_for_sampler_response, &res, &c))
        checkpoint_discard(s, dir);
}

/* save_weights_external: the adapter with PEFT's tensor names, for use elsewhere. */
static void run_save_external(struct server *s, struct future *f)
{
    const struct wire_save_weights_external_request *r = &f->job->save_external;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
    describe_checkpoint(f, &c, STORE_EXTERNAL, r->path);
    tinker_status status = TINKER_OK;
    /* Better no file than one that is not encrypted as asked. */
    if (r->age_encryption_recipients.n)
        status = err_set(&err, TINKER_EINVAL, "this server does not encrypt external weights");
    if (status == TINKER_OK)
        status = check_new_name(s, f, STORE_EXTERNAL, c.name, false, &old, &err);
    if (status == TINKER_OK)
        status = write_checkpoint(s, f, &c, TINKER_ADAPTER_PEFT, r->ttl_seconds, dir, &err);
    if (status != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    struct wire_save_weights_external_response res = {
        arena_printf(&f->job->arena, "tinker://%s/external_weights/%s", f->model->id, c.name),
        { 1, c.size_bytes }
    };
    if (!finish_named(s, f, &wire_save_weights_external_response, &res, &c))
        checkpoint_discard(s, dir);
}

/* save_weights_for_sampler without a name: hidden from listings, bound to a new sampling session,
 * and only the newest few of a model are kept. */
static void run_save_ephemeral(struct server *s, struct weights_cache *weights, struct future *f)
{
    struct arena *arena = &f->job->arena;
    struct model *m = f->model;
    long long n = f->job->save_sampler.sampling_session_seq_id.value;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct wire_opt_int no_ttl = { 0 }; /* it lives as long as its session */
    struct store_checkpoint c;
    /* Users cannot put a colon into a name, so the two kinds of names never collide. */
    const char *name = arena_printf(arena, ":%lld", n);
    const char *id = arena_printf(arena, "%s:sample:%lld", m->session->id, n);
    describe_checkpoint(f, &c, STORE_SAMPLER, name);
    c.hidden = true; /* never listed; removed with its session */
    /* create_sampling_session counts with the same numbers, so the id may be taken. */
    struct store_sampler *taken = NULL;
    if (id && store_get_sampler(s->store, id, arena, &taken, &err) == TINKER_OK && taken) {
        err_set(&err, TINKER_EINVAL, "sampling_session_seq_id %lld was used before", n);
        train_fail(s, f, &err);
        return;
    }
    /* Without --sampler-bf16: these are sampled from at once, and must give the bits of
     * training. */
    if (!name || !id || write_checkpoint(s, f, &c, 0, no_ttl, dir, &err) != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    /* A copy in memory saves the first sample from loading the files.  Without space for it the
     * sample loads them. */
    tinker_adapter *copy = adapter_limit_make_space(s, weights, m, &err) == TINKER_OK
                               ? tinker_adapter_snapshot(m->adapter, &err)
                               : NULL;
    if (copy) /* the cache takes it over */
        weights_add(weights, m->base, dir, copy);
    struct store_sampler sampler = { .id = id,
                                     .session_id = m->session->id,
                                     .owner = m->owner,
                                     .base_model = m->base->name,
                                     .run = m->id,
                                     .name = name,
                                     .sampler = true,
                                     .created_us = c.created_us,
                                     .dir = dir };
    /* Checkpoint, sampling session and outcome in one transaction: a client that has the id can
     * sample from it, and a crash leaves all three or none. */
    struct wire_save_weights_for_sampler_response res = { .sampling_session_id = id };
    struct store_outcome outcome = { .checkpoint = &c, .sampler = &sampler };
    if (train_finish_json(s, f, &wire_save_weights_for_sampler_response, &res, &outcome))
        /* Training loops save after each step and sample from the newest only. */
        checkpoint_drop_hidden(s, m->id, (size_t)s->opts.ephemeral_keep);
    else
        checkpoint_discard(s, dir);
}

/* Called by train_start() with the adapter in memory. */
void train_save(struct server *s, struct weights_cache *weights, struct future *f)
{
    const struct wire_save_weights_for_sampler_request *r = &f->job->save_sampler;
    if (f->kind == JOB_SAVE)
        run_save(s, f);
    else if (f->kind == JOB_SAVE_EXTERNAL)
        run_save_external(s, f);
    else if (r->path)
        run_save_named_sampler(s, f);
    else if (r->sampling_session_seq_id.has)
        run_save_ephemeral(s, weights, f);
    else
        future_fail(s, f, TINKER_CATEGORY_USER,
                    "Either 'path' or 'sampling_session_seq_id' must be provided");
}
