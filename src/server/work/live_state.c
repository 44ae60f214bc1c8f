/* live_state.c - making, finding and freeing what is alive: see live_state.h. */
#include "server/work/live_state.h"

#include <stdlib.h>
#include <string.h>

struct base *live_find_base(struct server *s, const char *name)
{
    for (size_t i = 0; name && i < s->n_bases; i++)
        if (strcmp(s->bases[i].name, name) == 0)
            return &s->bases[i];
    return NULL;
}

static void *find_by_id(const struct map *m, const char *id)
{
    return id ? map_get(m, id, strlen(id)) : NULL;
}

struct session *live_find_session_locked(struct server *s, const char *id)
{
    return find_by_id(&s->sessions, id);
}

struct model *live_find_model_locked(struct server *s, const char *id)
{
    return find_by_id(&s->models, id);
}

struct future *live_find_future_locked(struct server *s, const char *id)
{
    return find_by_id(&s->futures, id);
}

struct sampler *live_find_sampler_locked(struct server *s, const char *id)
{
    return find_by_id(&s->samplers, id);
}

int64_t live_wall_us(struct server *s)
{
    return clock_wall_ns(s->clock) / 1000;
}

static char *copy_string(const char *s)
{
    return s ? strdup(s) : NULL;
}

static void session_free(struct session *v)
{
    if (!v)
        return;
    free(v->id);
    free(v->owner);
    free(v);
}

static void tenant_free(struct tenant *t)
{
    if (!t)
        return;
    free(t->name);
    free(t);
}

static struct tenant *find_tenant_locked(struct server *s, const char *name)
{
    struct tenant *t = find_by_id(&s->tenants, name);
    if (t)
        return t;
    t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->name = copy_string(name);
    if (t->name && map_put(&s->tenants, name, strlen(name), t, NULL))
        return t;
    tenant_free(t);
    return NULL;
}

struct session *live_add_session_locked(struct server *s, const char *id, const char *owner)
{
    struct session *v = calloc(1, sizeof(*v));
    if (!v)
        return NULL;
    v->id = copy_string(id);
    v->owner = copy_string(owner);
    v->tenant = find_tenant_locked(s, owner);
    v->seen_ns = clock_now_ns(s->clock);
    if (v->id && v->owner && v->tenant && map_put(&s->sessions, id, strlen(id), v, NULL))
        return v;
    session_free(v);
    return NULL;
}

static void model_free(struct model *m)
{
    if (!m)
        return;
    tinker_adapter_free(m->adapter);
    free(m->saved_dir);
    free(m->id);
    free(m->owner);
    free(m);
}

struct model *live_add_model_locked(struct server *s, const char *id, const char *owner,
                                    struct session *session, struct base *base,
                                    const tinker_lora *lora)
{
    struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    m->id = copy_string(id);
    m->owner = copy_string(owner);
    m->session = session;
    m->base = base;
    m->lora = *lora;
    m->saved_seq = -1;
    if (m->id && m->owner && map_put(&s->models, id, strlen(id), m, NULL))
        return m;
    model_free(m);
    return NULL;
}

static void sampler_free(struct sampler *v)
{
    if (!v)
        return;
    free(v->id);
    free(v->owner);
    free(v->session_id);
    free(v->model_path);
    free(v->dir);
    free(v);
}

struct sampler *live_add_sampler_locked(struct server *s, const struct store_sampler *r,
                                        struct base *base, const char *dir)
{
    struct sampler *v = calloc(1, sizeof(*v));
    void *old = NULL;
    if (!v)
        return NULL;
    v->id = copy_string(r->id);
    v->owner = copy_string(r->owner);
    v->session_id = copy_string(r->session_id);
    v->base = base;
    v->model_path = copy_string(r->model_path);
    v->dir = copy_string(dir);
    bool ok =
        v->id && v->owner && v->session_id && (v->model_path || !r->model_path) && (v->dir || !dir);
    if (ok && map_put(&s->samplers, r->id, strlen(r->id), v, &old)) {
        sampler_free(old);
        return v;
    }
    sampler_free(v);
    return NULL;
}

static void future_free(struct future *f)
{
    job_free(f->job);
    free(f->result);
    free(f->id);
    free(f->owner);
    free(f);
}

struct future *live_add_future_locked(struct server *s, const char *id, const char *owner,
                                      enum job_kind kind, struct job *job)
{
    struct future *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->id = copy_string(id);
    f->owner = copy_string(owner);
    f->kind = kind;
    f->created_ns = clock_now_ns(s->clock);
    if (f->id && f->owner && map_put(&s->futures, id, strlen(id), f, NULL)) {
        f->job = job;
        return f;
    }
    future_free(f);
    return NULL;
}

void live_remove_future_locked(struct server *s, struct future *f)
{
    map_remove(&s->futures, f->id, strlen(f->id));
    if (f->model)
        f->model->n_futures--;
    future_count_locked(s, f, 0);
    future_free(f);
}

void live_remove_model_locked(struct server *s, struct model *m)
{
    map_remove(&s->models, m->id, strlen(m->id));
    model_free(m);
}

void live_remove_sampler_locked(struct server *s, struct sampler *v)
{
    map_remove(&s->samplers, v->id, strlen(v->id));
    sampler_free(v);
}

void live_remove_session_locked(struct server *s, struct session *v)
{
    map_remove(&s->sessions, v->id, strlen(v->id));
    session_free(v);
}

/* Free every value of a map, then the map. */
static void clear_map(struct map *m, void (*release)(void *value))
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(m, &it, &key, &n, &value))
        release(value);
    map_clear(m);
}

static void release_future(void *v)
{
    future_free(v);
}
static void release_model(void *v)
{
    model_free(v);
}
static void release_sampler(void *v)
{
    sampler_free(v);
}
static void release_session(void *v)
{
    session_free(v);
}
static void release_tenant(void *v)
{
    tenant_free(v);
}

void live_clear(struct server *s)
{
    clear_map(&s->futures, release_future);
    clear_map(&s->models, release_model);
    clear_map(&s->samplers, release_sampler);
    clear_map(&s->sessions, release_session);
    clear_map(&s->tenants, release_tenant);
}
