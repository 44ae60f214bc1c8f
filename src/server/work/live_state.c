/* live_state.c - creating, finding and freeing sessions, models, samplers and futures: see
 * live_state.h.
 *
 * Every object is in exactly one map by its id, and the map owns it.  Objects point to each other
 * upward only (future -> model -> session -> tenant), so they are freed in that order, and evict.c
 * frees one only when nothing points to it. */
#include "server/work/live_state.h"

#include <stdlib.h>
#include <string.h>

#include "server/work/sample_log.h"

/* Base models are fixed from the start, so no lock is needed; there are only a few. */
struct base *live_find_base(struct server *s, const char *name)
{
    for (size_t i = 0; name && i < s->n_bases; i++)
        if (strcmp(s->bases[i].name, name) == 0)
            return &s->bases[i];
    /* By its directory as well, see route_sdk_base_model(); but another base may be called so. */
    for (size_t i = 0; name && i < s->n_bases; i++)
        if (strcmp(s->bases[i].dir, name) == 0)
            return &s->bases[i];
    return NULL;
}

/* Ids come from clients and may be missing. */
static void *find_by_id(const struct map *m, const char *id)
{
    return id ? map_get(m, id, strlen(id)) : NULL;
}

/* Sessions and models stay valid without the lock for a caller that holds evict_lock for reading,
 * and futures until they are over.  What is needed of a sampler is copied under the lock. */
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

/* For records and clients.  Durations use the monotonic clock, which is never set back. */
int64_t live_wall_us(struct server *s)
{
    return clock_wall_ns(s->clock) / 1000;
}

/* NULL stays NULL; callers check fields that must not be. */
static char *copy_string(const char *s)
{
    return s ? strdup(s) : NULL;
}

/* These free what is owned and follow no pointer to another object. */
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

/* Find a user, or create the entry; tenants stay until the end, one per API key. */
static struct tenant *find_tenant_locked(struct server *s, const char *name)
{
    struct tenant *t = find_by_id(&s->tenants, name);
    if (t)
        return t;
    t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->name = copy_string(name);
    t->number = s->tenants.len + 1; /* none is ever removed */
    if (t->name && map_put(&s->tenants, name, strlen(name), t, NULL))
        return t;
    tenant_free(t);
    return NULL;
}

/* Tenants are never removed, so the pointer stays good without the lock; counters are atomic. */
struct server_counters *live_user_counters(struct server *s, const char *user)
{
    static struct server_counters none; /* callers only read */
    pthread_mutex_lock(&s->lock);
    struct tenant *t = find_by_id(&s->tenants, user);
    pthread_mutex_unlock(&s->lock);
    return t ? &t->counters : &none;
}

/* The session's clock starts now: it expires unless heartbeats follow. */
struct session *live_add_session_locked(struct server *s, const char *id, const char *owner)
{
    struct session *v = calloc(1, sizeof(*v));
    if (!v)
        return NULL;
    v->id = copy_string(id);
    v->owner = copy_string(owner);
    /* Sessions count against their user; the entry is made with the first of them. */
    v->tenant = find_tenant_locked(s, owner);
    v->seen_ns = clock_now_ns(s->clock); /* as if a heartbeat had come */
    if (v->id && v->owner && v->tenant && map_put(&s->sessions, id, strlen(id), v, NULL))
        return v;
    session_free(v);
    return NULL;
}

/* The adapter is the engine thread's: it has ended, or has dropped the adapter before. */
static void model_free(struct model *m)
{
    if (!m)
        return;
    tinker_adapter_free(m->adapter);
    free(m->id);
    free(m->owner);
    free(m);
}

/* In memory only; the caller has recorded it, or is restoring it from its record. */
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
    m->saved_seq = -1; /* nothing saved: as created */
    /* At the head of the session's list, doubly linked so that it can leave from anywhere. */
    if (m->id && m->owner && map_put(&s->models, id, strlen(id), m, NULL)) {
        m->next_of_session = session->models;
        if (session->models)
            session->models->prev_of_session = m;
        session->models = m;
        session->n_models++;
        return m;
    }
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

/* dir NULL: the base model itself. */
struct sampler *live_add_sampler_locked(struct server *s, const struct store_sampler *r,
                                        struct base *base, const char *dir)
{
    struct sampler *v = calloc(1, sizeof(*v));
    void *old = NULL;
    if (!v)
        return NULL;
    v->id = copy_string(r->id);
    v->owner = copy_string(r->owner);
    v->session_id = copy_string(r->session_id); /* by name: the session may be evicted first */
    v->base = base;
    v->model_path = copy_string(r->model_path);
    v->dir = copy_string(dir);
    /* Each copy that should be there is: one check for five allocations. */
    bool ok =
        v->id && v->owner && v->session_id && (v->model_path || !r->model_path) && (v->dir || !dir);
    /* A retry of the request that creates a sampling session replaces the first one. */
    if (ok && map_put(&s->samplers, r->id, strlen(r->id), v, &old)) {
        sampler_free(old);
        return v;
    }
    sampler_free(v);
    return NULL;
}

/* Ends the observer too, and with it a stream that nobody will finish. */
static void future_free(struct future *f)
{
    job_free(f->job);
    free(f->result);
    free(f->id);
    free(f->owner);
    free(f);
}

/* On failure the job stays the caller's.  The id must be new, since map_put() would replace another
 * future and leak it: callers make sure under `lock` or submit_lock. */
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
        f->job = job; /* last: future_free() below must not free it */
        return f;
    }
    future_free(f);
    return NULL;
}

/* Only finished futures are removed, so no queue and no poll refers to it.  Its session is still
 * there, because evict.c keeps the sessions that futures refer to. */
void live_remove_future_locked(struct server *s, struct future *f)
{
    map_remove(&s->futures, f->id, strlen(f->id));
    sample_log_leave_locked(f);
    if (f->model)
        f->model->n_futures--;
    future_count_locked(s, f, 0); /* its result no longer counts */
    future_free(f);
}

/* Nothing refers to m: evict.c has looked for futures and pins, or m was made under this lock.
 * prev_of_session is NULL for the first, whose predecessor is the list's head. */
void live_remove_model_locked(struct server *s, struct model *m)
{
    map_remove(&s->models, m->id, strlen(m->id));
    *(m->prev_of_session ? &m->prev_of_session->next_of_session : &m->session->models) =
        m->next_of_session;
    if (m->next_of_session)
        m->next_of_session->prev_of_session = m->prev_of_session;
    m->session->n_models--;
    model_free(m);
}

void live_remove_sampler_locked(struct server *s, struct sampler *v)
{
    map_remove(&s->samplers, v->id, strlen(v->id));
    sampler_free(v);
}

/* evict.c has made sure that no future, model or queue refers to it. */
void live_remove_session_locked(struct server *s, struct session *v)
{
    map_remove(&s->sessions, v->id, strlen(v->id));
    session_free(v);
}

/* Free all values of a map, then the map. */
static void clear_map(struct map *m, void (*release)(void *value))
{
    size_t it = 0, n;
    const char *key;
    void *value;
    while (map_next(m, &it, &key, &n, &value))
        release(value);
    map_clear(m);
}

/* The maps hold void pointers; these give them their type back. */
static void release_future(void *v)
{
    future_free(v);
}
static void release_log(void *v)
{
    sample_log_free(v);
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
    /* From the bottom up, for a future refers to its model and session.  Freeing its job ends its
     * stream, which still wakes the listener. */
    clear_map(&s->futures, release_future);
    clear_map(&s->sample_logs, release_log);
    clear_map(&s->models, release_model);
    clear_map(&s->samplers, release_sampler);
    clear_map(&s->sessions, release_session);
    clear_map(&s->tenants, release_tenant);
}
