/* room.c - see room.h. */
#include "server/room.h"

#include "server/state.h"

/* The idle model whose adapter was used longest ago, and the last request it has finished;
 * *n counts all adapters of models. */
static struct model *oldest_idle(struct server *s, const struct model *except, size_t *n,
                                 int64_t *seq)
{
    struct model *oldest = NULL;
    size_t it = 0, n_key;
    const char *key;
    void *value;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->models, &it, &key, &n_key, &value)) {
        struct model *m = value;
        if (!m->adapter)
            continue;
        ++*n;
        /* A replay has yet to bring back what the disk lacks. */
        bool idle = m != except && !m->busy && !m->pending && m->state == MODEL_ACTIVE;
        if (idle && (!oldest || m->used < oldest->used))
            oldest = m;
    }
    if (oldest)
        *seq = oldest->next_seq - 1;
    pthread_mutex_unlock(&s->lock);
    return oldest;
}

void room_make(struct server *s, struct weights_cache *weights, const struct model *for_model)
{
    size_t max = (size_t)s->opts.max_adapters, n;
    int64_t seq = 0;
    tinker_error err = { 0 };
    if (!max)
        return;
    for (;;) {
        struct model *m = oldest_idle(s, for_model, &n, &seq);
        if (n + weights->n < max)
            return;
        if (weights_drop_idle(weights, 0))
            continue;
        if (!m)
            return;
        if (state_unload(s, m, seq, &err) != TINKER_OK) {
            log_line(s->log, LOG_ERROR, "%s stays in memory: %s", m->id, err.message);
            return;
        }
    }
}
