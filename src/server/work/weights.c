/* weights.c - see weights.h. */
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

static struct weights *find_weights(struct weights_cache *c, const struct base *base,
                                    const char *dir)
{
    for (struct weights *w = c->first; w; w = w->next)
        if (w->base == base && strcmp(w->dir, dir) == 0)
            return w;
    return NULL;
}

bool weights_drop_idle(struct weights_cache *c, size_t keep)
{
    struct weights **oldest = NULL;
    size_t idle = 0;
    for (struct weights **p = &c->first; *p; p = &(*p)->next) {
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

bool weights_idle(const struct weights_cache *c)
{
    for (const struct weights *w = c->first; w; w = w->next)
        if (!w->refs)
            return true;
    return false;
}

static void evict_idle(struct weights_cache *c)
{
    while (weights_drop_idle(c, WEIGHTS_IDLE))
        continue;
}

static struct weights *insert_weights(struct weights_cache *c, struct base *base, const char *dir,
                                      tinker_adapter *adapter)
{
    struct weights *w = calloc(1, sizeof(*w));
    char *name = strdup(dir);
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

static tinker_adapter *load_weights(struct server *s, struct base *base, const char *dir,
                                    tinker_error *err)
{
    char path[CHECKPOINT_PATH];
    checkpoint_path(s, dir, path);
    if (!os_is_dir(path)) {
        err_set(err, TINKER_EINVAL, "the weights of this sampling session no longer exist");
        return NULL;
    }
    return tinker_adapter_load(base->engine, path, 0, err);
}

struct weights *weights_get(struct server *s, struct weights_cache *c, struct base *base,
                            const char *dir, tinker_error *err)
{
    struct weights *w = find_weights(c, base, dir);
    if (!w) {
        tinker_adapter *a = NULL;
        if (adapter_limit_make_space(s, c, NULL, err) == TINKER_OK)
            a = load_weights(s, base, dir, err);
        if (!a)
            return NULL;
        w = insert_weights(c, base, dir, a);
        if (!w) {
            tinker_adapter_free(a);
            err_nomem(err, "weights");
            return NULL;
        }
    }
    w->refs++;
    w->used = ++c->tick;
    return w;
}

void weights_put(struct weights_cache *c, struct weights *w)
{
    if (!w)
        return;
    w->refs--;
    evict_idle(c);
}

void weights_add(struct weights_cache *c, struct base *base, const char *dir,
                 tinker_adapter *adapter)
{
    if (!insert_weights(c, base, dir, adapter))
        tinker_adapter_free(adapter);
    evict_idle(c);
}

void weights_clear(struct weights_cache *c)
{
    while (c->first) {
        struct weights *w = c->first;
        c->first = w->next;
        weights_free(w);
    }
    c->n = 0;
}
