/* sampler_table.c - see sampler_table.h.
 *
 * A sampling session is recorded in the store when it is created.  Memory is a cache of that
 * table: after a restart, or once evict.c has removed it, it is restored at the next request. */
#include "server/work/sampler_table.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"

/* The response is filled on failure.  A checkpoint says which base it belongs to; a base_model
 * beside it must agree, or the client would sample from another model than it thinks. */
bool sampler_table_find_source(struct server *s, struct request *req, struct response *res,
                               const char *base_model, const char *model_path,
                               struct sampler_source *out)
{
    memset(out, 0, sizeof(*out));
    if (!base_model && !model_path) {
        response_error(res, 400, "Exactly one of base_model or model_path must be provided");
        return false;
    }
    if (model_path) {
        out->checkpoint = route_checkpoint_path(s, req, res, model_path);
        if (!out->checkpoint)
            return false;
        if (base_model && strcmp(base_model, out->checkpoint->base_model) != 0) {
            response_error(res, 400, "%s was trained on %s, not on %s", model_path,
                           out->checkpoint->base_model, base_model);
            return false;
        }
        base_model = out->checkpoint->base_model; /* it decides when both are given */
    }
    out->base = live_find_base(s, base_model);
    if (!out->base)
        response_error(res, 404, "base model '%s' is not served here", base_model);
    return out->base != NULL;
}

/* NULL and "" are the same: the store has no NULL texts. */
bool sampler_table_is_same(const struct store_sampler *a, const struct store_sampler *b)
{
    const char *const pairs[][2] = { { a->base_model, b->base_model },
                                     { a->model_path, b->model_path },
                                     { a->run, b->run },
                                     { a->name, b->name } };
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (strcmp(pairs[i][0] ? pairs[i][0] : "", pairs[i][1] ? pairs[i][1] : "") != 0)
            return false;
    return true;
}

/* Records first, then memory: a request in between restores the ended record.  One that had read
 * the record before sees that samplers_ended has changed, and reads again. */
tinker_status sampler_table_end(struct server *s, const struct store_checkpoint *c,
                                const char *except, tinker_error *err)
{
    struct arena arena;
    const char **ids;
    size_t n;
    arena_init(&arena, SIZE_MAX);
    tinker_status status = store_end_samplers(s->store, c, except, &arena, &ids, &n, err);
    pthread_mutex_lock(&s->lock);
    s->samplers_ended++;
    for (size_t i = 0; status == TINKER_OK && i < n; i++) {
        struct sampler *v = live_find_sampler_locked(s, ids[i]);
        if (v) /* the next request finds the record, and no weights */
            live_remove_sampler_locked(s, v);
    }
    pthread_mutex_unlock(&s->lock);
    arena_clear(&arena);
    return status;
}

/* Load a sampling session from the store into memory and find its weights.  *again: its record
 * may have changed meanwhile, nothing was done. */
static bool restore_sampler(struct server *s, struct request *req, struct response *res,
                            const char *id, bool *again)
{
    struct store_sampler *v = NULL;
    struct store_checkpoint *c = NULL;
    tinker_error err = { 0 };
    *again = false;
    pthread_mutex_lock(&s->lock);
    uint64_t ended = s->samplers_ended;
    pthread_mutex_unlock(&s->lock);
    if (store_get_sampler(s->store, id, &req->arena, &v, &err) != TINKER_OK ||
        (v && v->run &&
         store_get_checkpoint(s->store, v->run, v->sampler, v->name, &req->arena, &c, &err) !=
             TINKER_OK)) {
        route_store_error(s, res, &err);
        return false;
    }
    /* A base model that is no longer served gives 404, as an unknown sampler does. */
    struct base *base = v ? live_find_base(s, v->base_model) : NULL;
    if (!v || !base || strcmp(v->owner, req->user) != 0) {
        response_error(res, 404, "Sampling session not found");
        return false;
    }
    /* Its checkpoint was deleted: a directory that never exists makes its samples fail with a
     * reason, instead of sampling from the base model.  Records of older versions have no
     * directory: theirs is the checkpoint's. */
    const char *dir = v->dir && *v->dir ? v->dir
                      : c && !v->dir    ? c->dir
                      : v->run          ? "deleted"
                                        : NULL;
    /* The record is in the request's arena; the map keeps a copy of its own. */
    pthread_mutex_lock(&s->lock);
    *again = ended != s->samplers_ended;
    bool ok = !*again && live_add_sampler_locked(s, v, base, dir) != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!ok && !*again)
        response_no_memory(res);
    return ok;
}

/* Find a sampler in memory.  Another user's is not found: ids are not secret. */
static bool find_sampler(struct server *s, struct request *req, const char *id,
                         struct sampler_view *out)
{
    pthread_mutex_lock(&s->lock);
    struct sampler *v = live_find_sampler_locked(s, id);
    if (v && strcmp(v->owner, req->user) != 0)
        v = NULL;
    if (v) {
        out->base = v->base;
        /* Copied under the lock: the sampler may be evicted as soon as it is released. */
        out->session_id = arena_strdup(&req->arena, v->session_id);
        out->dir = v->dir ? arena_strdup(&req->arena, v->dir) : NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return v != NULL;
}

bool sampler_table_find(struct server *s, struct request *req, struct response *res, const char *id,
                        struct sampler_view *out)
{
    /* From memory, or restored from the store and then from memory.  evict.c cannot come between
     * the two: handlers hold evict_lock.  sampler_table_end() can: then the record says so. */
    bool again;
    do
        if (find_sampler(s, req, id, out))
            return true;
    while (restore_sampler(s, req, res, id, &again) || again);
    return false;
}

/* Requests that name no session (the OpenAI routes) still need one: fairness, limits and usage go
 * by session.  There is one per user, and its colon keeps clients from naming it. */
struct session *sampler_table_direct_session(struct server *s, const char *user)
{
    char id[128];
    snprintf(id, sizeof(id), "direct:%s", user);
    pthread_mutex_lock(&s->lock);
    struct session *v = live_find_session_locked(s, id);
    if (!v)
        v = live_add_session_locked(s, id, user);
    if (v) {
        v->direct = true;       /* clients cannot name it */
        v->seen_ns = INT64_MAX; /* it has no heartbeats and never expires */
    }
    pthread_mutex_unlock(&s->lock);
    return v;
}
