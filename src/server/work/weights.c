/* weights.c - see weights.h.
 *
 * A list is enough: there are at most WEIGHTS_IDLE unused entries plus one per running sample.
 * `tick` counts uses and orders them; it needs no clock.  Models take theirs from it, too.
 *
 * The cache owns its entries and their adapters; `refs` counts the sample tasks that use one. */
#include "server/work/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/os.h"
#include "server/store/checkpoint.h"
#include "server/work/adapter_limit.h"

static void weights_free(struct weights *w)
{
    tinker_adapter_free(w->adapter);
    free(w->dir);
    free(w);
}

/* Least recently used first. */
bool weights_drop_idle(struct weights_cache *c, size_t keep)
{
    struct weights **oldest = NULL; /* the link that points to the entry */
    size_t idle = 0;
    /* A pointer to the link, so that the first entry needs no case of its own. */
    for (struct weights **p = &c->first; *p; p = &(*p)->next) {
        /* Weights in use stay whatever the limit says: a sample holds them. */
        if ((*p)->refs)
            continue;
        idle++;
        if (!oldest || (*p)->used < (*oldest)->used)
            oldest = p;
    }
    if (idle <= keep)
        return false;
    struct weights *w = *oldest;
    *oldest = w->next;
    c->n--;
    weights_free(w);
    return true;
}

/* What counts against the adapters' part of --memory; the base model is not in it. */
uint64_t weights_bytes(const struct weights_cache *c)
{
    uint64_t sum = 0;
    for (const struct weights *w = c->first; w; w = w->next)
        sum += tinker_adapter_bytes(w->adapter);
    return sum;
}

/* Would weights_drop_idle(c, 0) find one? */
bool weights_idle(const struct weights_cache *c)
{
    for (const struct weights *w = c->first; w; w = w->next)
        if (!w->refs)
            return true;
    return false;
}

/* Keep at most WEIGHTS_IDLE unused entries. */
static void evict_idle(struct weights_cache *c)
{
    while (weights_drop_idle(c, WEIGHTS_IDLE))
        continue;
}

/* Add an entry, which takes over the adapter.  NULL: no memory, the adapter stays the caller's. */
static struct weights *insert_weights(struct weights_cache *c, struct base *base, const char *dir,
                                      tinker_adapter *adapter)
{
    struct weights *w = calloc(1, sizeof(*w));
    char *name = strdup(dir);
    /* free(NULL) is allowed, so one exit serves both. */
    if (!w || !name) {
        free(w);
        free(name);
        return NULL;
    }
    w->dir = name;
    w->base = base;
    w->adapter = adapter;
    w->used = ++c->tick;
    w->next = c->first;
    c->first = w;
    c->n++;
    return w;
}

/* By directory, not by name: a checkpoint that is overwritten has a new directory, so samplers of
 * the old one keep their weights. */
struct weights *weights_get(struct server *s, struct weights_cache *c, struct base *base,
                            const char *dir, tinker_error *err)
{
    struct weights *w = c->first;
    while (w && !(w->base == base && strcmp(w->dir, dir) == 0))
        w = w->next;
    if (!w) {
        char path[CHECKPOINT_PATH];
        tinker_adapter *a = NULL;
        checkpoint_path(s, dir, path);
        /* The checkpoint may have been deleted after the sampling session was created.  Making
         * space may drop idle entries of this list, so no pointer to one is kept across it. */
        if (!os_is_dir(path))
            err_set(err, TINKER_EINVAL, "the weights of this sampling session no longer exist");
        else if (adapter_limit_make_space(s, c, NULL, err) == TINKER_OK)
            a = tinker_adapter_load(base->engine, path, 0, err);
        if (!a)
            return NULL;
        w = insert_weights(c, base, dir, a);
        if (!w) {
            tinker_adapter_free(a);
            err_nomem(err, "weights");
            return NULL;
        }
    }
    w->refs++; /* while a sample uses it, it cannot be dropped */
    w->used = ++c->tick;
    return w;
}

/* A sample is done with the weights; they stay for the next one while there is space.  w may be
 * freed by this call. */
void weights_put(struct weights_cache *c, struct weights *w)
{
    if (!w)
        return;
    w->refs--;
    evict_idle(c);
}

/* save_weights_for_sampler has just made the adapter: the first sample need not load it.  The entry
 * starts without references, so it is idle until then and may be dropped before. */
void weights_add(struct weights_cache *c, struct base *base, const char *dir,
                 tinker_adapter *adapter)
{
    if (!insert_weights(c, base, dir, adapter))
        tinker_adapter_free(adapter);
    evict_idle(c);
}

/* At shutdown, when no sample runs: references do not count. */
void weights_clear(struct weights_cache *c)
{
    while (c->first) {
        struct weights *w = c->first;
        c->first = w->next;
        weights_free(w);
    }
    c->n = 0;
}
