/* adapter_limit.c - see room.h. */
#include "server/work/adapter_limit.h"

#include "base/err.h"
#include "server/work/train_state.h"

/* What is in memory, and which model could leave it. */
struct view {
    size_t n;             /* adapters of models */
    struct model *oldest; /* that nobody works on and was used longest ago; NULL: none */
    int64_t seq;          /* the last request it has finished */
};

/* Models that have nothing to do leave before those that wait for their turn. */
static bool leaves_before(const struct model *a, const struct model *b)
{
    if (!b || !a->pending != !b->pending)
        return !b || !a->pending;
    return a->used < b->used;
}

static struct view look(struct server *s, const struct model *except)
{
    struct view v = { 0 };
    size_t it = 0, n_key;
    const char *key;
    void *value;
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->models, &it, &key, &n_key, &value)) {
        struct model *m = value;
        if (!m->adapter)
            continue;
        v.n++;
        /* A replay has yet to bring back what the disk lacks. */
        bool replays = m->pending && m->pending->replay;
        bool idle = m != except && !m->busy && !replays && m->state == MODEL_ACTIVE;
        if (idle && leaves_before(m, v.oldest))
            v.oldest = m;
    }
    if (v.oldest)
        v.seq = v.oldest->next_seq - 1;
    pthread_mutex_unlock(&s->lock);
    return v;
}

bool room_is_there(struct server *s, const struct weights_cache *weights)
{
    size_t max = (size_t)s->opts.max_adapters;
    if (!max)
        return true;
    struct view v = look(s, NULL);
    return v.n + weights->n < max || v.oldest || weights_idle(weights);
}

tinker_status room_make(struct server *s, struct weights_cache *weights,
                        const struct model *for_model, tinker_error *err)
{
    size_t max = (size_t)s->opts.max_adapters;
    while (max) {
        struct view v = look(s, for_model);
        if (v.n + weights->n < max)
            break;
        if (weights_drop_idle(weights, 0))
            continue;
        if (!v.oldest) {
            err_set(err, TINKER_ENOMEM, "all %zu adapters that may be in memory are in use", max);
            err->retryable = 1;
            return TINKER_ENOMEM;
        }
        tinker_status status = state_unload(s, v.oldest, v.seq, err);
        if (status != TINKER_OK) {
            err_prefix(err, "another model could not make room in memory");
            log_line(s->log, LOG_ERROR, "%s stays in memory: %s", v.oldest->id, err->message);
            return status;
        }
    }
    return TINKER_OK;
}
