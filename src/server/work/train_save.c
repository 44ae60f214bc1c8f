/* train_save.c - training requests that save weights: see train.h.
 *
 * The weights are in their directory, synced, before the one transaction that names them
 * and ends the request; a directory that no record names is removed at start.
 *
 * Thread: the engine thread alone. */
#include "server/work/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "server/store/checkpoint.h"
#include "server/work/adapter_limit.h"
#include "wire/check.h"
#include "wire/wire.h"

static void describe_checkpoint(struct future *f, struct store_checkpoint *c, int kind,
                                const char *name)
{
    const struct model *m = f->model;
    *c = (struct store_checkpoint){ .run = m->id,
                                    .name = name,
                                    .owner = m->owner,
                                    .base_model = m->base->name,
                                    .kind = kind,
                                    .lora = *tinker_adapter_describe(m->adapter) };
}

/* Metadata of a checkpoint as the store keeps it; NULL: none. */
static const char *encode_metadata(struct arena *arena, const struct wire_named_strings *v)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    bool ok = v->has && wire_metadata_encode(v->v, v->n, &b, NULL) == TINKER_OK && buf_ok(&b);
    const char *out = ok ? arena_strndup(arena, b.data, b.len) : NULL;
    buf_clear(&b);
    return out;
}

/* The record of a name that is taken; NULL: free. */
static tinker_status find_existing(struct server *s, struct future *f, int kind, const char *name,
                                   struct store_checkpoint **out, tinker_error *err)
{
    return store_get_checkpoint(s->store, f->model->id, kind, name, &f->job->arena, out, err);
}

static tinker_status check_new_name(struct server *s, struct future *f, int kind, const char *name,
                                    bool overwrite, struct store_checkpoint **old,
                                    tinker_error *err)
{
    tinker_status status = wire_check_checkpoint_name(name, err);
    if (status == TINKER_OK && name[0] == '.')
        status = err_set(err, TINKER_EINVAL, "checkpoint name '%s' starts with a dot", name);
    if (status == TINKER_OK)
        status = find_existing(s, f, kind, name, old, err);
    if (status == TINKER_OK && *old && !overwrite)
        status = err_set(err, TINKER_EINVAL, "Checkpoint '%s' already exists; pass overwrite=true",
                         name);
    return status;
}

static tinker_status set_expiry(struct store_checkpoint *c, struct wire_opt_int ttl,
                                tinker_error *err)
{
    if (!ttl.has)
        return TINKER_OK;
    if (ttl.value <= 0 || ttl.value > INT64_MAX / 2000000)
        return err_set(err, TINKER_EINVAL, "ttl_seconds must be a positive number of seconds");
    c->expires_us = c->created_us + ttl.value * 1000000;
    return TINKER_OK;
}

/* Write the weights, fill dir, size and times of the record. */
static tinker_status write_checkpoint(struct server *s, struct future *f,
                                      struct store_checkpoint *c, int flags,
                                      struct wire_opt_int ttl, char *dir, tinker_error *err)
{
    c->created_us = live_wall_us(s);
    tinker_status status = set_expiry(c, ttl, err);
    if (status == TINKER_OK)
        status = checkpoint_write(s, f->model->adapter, f->model->base->name, flags, dir,
                                  &c->size_bytes, err);
    c->dir = dir;
    return status;
}

/* The name a save without one gets: the number of steps taken. */
static const char *make_default_name(struct server *s, struct future *f, char *out, size_t size)
{
    struct store_checkpoint *old = NULL;
    long long steps = tinker_adapter_steps(f->model->adapter);
    snprintf(out, size, "%06lld", steps);
    if (find_existing(s, f, STORE_TRAINING, out, &old, NULL) == TINKER_OK && old)
        snprintf(out, size, "%06lld-%lld", steps, (long long)f->seq);
    return out;
}

static void run_save(struct server *s, struct future *f)
{
    const struct wire_save_weights_request *r = &f->job->save;
    char name[64], dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
    describe_checkpoint(f, &c, STORE_TRAINING,
                        r->path ? r->path : make_default_name(s, f, name, sizeof(name)));
    c.user_metadata = encode_metadata(&f->job->arena, &r->user_metadata);
    if (check_new_name(s, f, STORE_TRAINING, c.name, r->overwrite, &old, &err) != TINKER_OK ||
        write_checkpoint(s, f, &c, TINKER_ADAPTER_OPTIMIZER, r->ttl_seconds, dir, &err) !=
            TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    char *old_dir = old ? strdup(old->dir) : NULL;
    struct wire_save_weights_response res = { arena_printf(&f->job->arena, "tinker://%s/weights/%s",
                                                           f->model->id, c.name) };
    struct store_outcome outcome = { .checkpoint = &c };
    bool saved = train_finish_json(s, f, &wire_save_weights_response, &res, &outcome);
    if (saved)
        checkpoint_release(s, old_dir);
    else
        checkpoint_discard(s, dir);
    free(old_dir);
}

static void run_save_named_sampler(struct server *s, struct future *f)
{
    const struct wire_save_weights_for_sampler_request *r = &f->job->save_sampler;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
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
    struct store_outcome outcome = { .checkpoint = &c };
    if (!train_finish_json(s, f, &wire_save_weights_for_sampler_response, &res, &outcome))
        checkpoint_discard(s, dir);
}

/* The adapter as PEFT names it, for use elsewhere. */
static void run_save_external(struct server *s, struct future *f)
{
    const struct wire_save_weights_external_request *r = &f->job->save_external;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct store_checkpoint c, *old = NULL;
    describe_checkpoint(f, &c, STORE_EXTERNAL, r->path);
    tinker_status status = TINKER_OK;
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
    struct store_outcome outcome = { .checkpoint = &c };
    if (!train_finish_json(s, f, &wire_save_weights_external_response, &res, &outcome))
        checkpoint_discard(s, dir);
}

static bool remember_sampler(struct server *s, struct future *f, const struct store_sampler *v,
                             const char *dir)
{
    pthread_mutex_lock(&s->lock);
    bool ok = live_add_sampler_locked(s, v, f->model->base, dir) != NULL;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* Unnamed sampler weights: hidden from listings, bound to a new sampling session. */
static void run_save_ephemeral(struct server *s, struct weights_cache *weights, struct future *f)
{
    struct arena *arena = &f->job->arena;
    struct model *m = f->model;
    long long n = f->job->save_sampler.sampling_session_seq_id.value;
    char dir[CHECKPOINT_DIR];
    tinker_error err = { 0 };
    struct wire_opt_int no_ttl = { 0 };
    struct store_checkpoint c;
    /* A colon cannot stand in a user's name, so the two cannot meet. */
    const char *name = arena_printf(arena, ":%lld", n);
    const char *id = arena_printf(arena, "%s:sample:%lld", m->session->id, n);
    describe_checkpoint(f, &c, STORE_SAMPLER, name);
    c.hidden = true;
    if (!name || !id || write_checkpoint(s, f, &c, 0, no_ttl, dir, &err) != TINKER_OK) {
        train_fail(s, f, &err);
        return;
    }
    /* A copy at hand spares the first sample the way over the disk; it needs none. */
    tinker_adapter *copy = adapter_limit_make_space(s, weights, m, &err) == TINKER_OK
                               ? tinker_adapter_snapshot(m->adapter, &err)
                               : NULL;
    if (copy)
        weights_add(weights, m->base, dir, copy);
    struct store_sampler sampler = { .id = id,
                                     .session_id = m->session->id,
                                     .owner = m->owner,
                                     .base_model = m->base->name,
                                     .run = m->id,
                                     .name = name,
                                     .sampler = true,
                                     .created_us = c.created_us };
    remember_sampler(s, f, &sampler, dir);
    struct wire_save_weights_for_sampler_response res = { .sampling_session_id = id };
    struct store_outcome outcome = { .checkpoint = &c, .sampler = &sampler };
    if (train_finish_json(s, f, &wire_save_weights_for_sampler_response, &res, &outcome))
        checkpoint_drop_hidden(s, m->id, (size_t)s->opts.ephemeral_keep);
    else
        checkpoint_discard(s, dir);
}

static void run_save_sampler(struct server *s, struct weights_cache *weights, struct future *f)
{
    const struct wire_save_weights_for_sampler_request *r = &f->job->save_sampler;
    if (r->path)
        run_save_named_sampler(s, f);
    else if (r->sampling_session_seq_id.has)
        run_save_ephemeral(s, weights, f);
    else
        future_fail(s, f, TINKER_CATEGORY_USER,
                    "Either 'path' or 'sampling_session_seq_id' must be provided");
}

void train_save(struct server *s, struct weights_cache *weights, struct future *f)
{
    if (f->kind == JOB_SAVE)
        run_save(s, f);
    else if (f->kind == JOB_SAVE_SAMPLER)
        run_save_sampler(s, weights, f);
    else
        run_save_external(s, f);
}
