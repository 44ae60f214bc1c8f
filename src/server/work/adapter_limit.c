/* adapter_limit.c - see adapter_limit.h.
 *
 * Adapters in memory are those of models (training state) plus those of the weights cache
 * (sampling).  Idle ones leave in this order: sampling weights, which the disk has anyway; models
 * with nothing to do; models that wait for their turn; each kind by last use. */
#include "server/work/adapter_limit.h"

#include "base/err.h"
#include "server/training/train_state.h"

/* The adapters of models in memory, and the one that could leave it. */
struct survey {
    size_t n;             /* adapters of models */
    uint64_t bytes;       /* of those */
    struct model *oldest; /* the idle model to unload first; NULL: all are in use */
    int64_t seq;          /* the last request it has finished */
};

/* Count, and choose a model other than `except`.  Its state may change once the lock is gone, but
 * not its adapter: only this thread touches those. */
static struct survey survey_adapters(struct server *s, const struct model *except)
{
    struct survey v = { 0 };
    size_t it = 0, n_key;
    const char *key;
    void *value;
    pthread_mutex_lock(&s->lock);
    while (map_next(&s->models, &it, &key, &n_key, &value)) {
        struct model *m = value;
        if (!m->adapter)
            continue;
        v.n++;
        v.bytes += tinker_adapter_bytes(m->adapter);
        /* After a restart next_seq is already past the requests that are to be replayed, and the
         * adapter does not have their effect yet: saved now, it would be recorded as if it had. */
        bool replays = m->pending && m->pending->replay;
        bool idle = m != except && !m->busy && !replays && m->state == MODEL_ACTIVE;
        /* Models with nothing to do come before those that wait for their turn. */
        bool before = !v.oldest ||
                      (!m->pending != !v.oldest->pending ? !m->pending : m->used < v.oldest->used);
        if (idle && before)
            v.oldest = m;
    }
    if (v.oldest)
        v.seq = v.oldest->next_seq - 1;
    pthread_mutex_unlock(&s->lock);
    return v;
}

/* Also true when something idle could make room: adapter_limit_make_space() then evicts it. */
bool adapter_limit_has_space(struct server *s, const struct weights_cache *weights)
{
    size_t max = (size_t)s->opts.max_adapters;
    if (!max)
        return true;
    struct survey v = survey_adapters(s, NULL);
    return v.n + weights->n < max || v.oldest || weights_idle(weights);
}

tinker_status adapter_limit_make_space(struct server *s, struct weights_cache *weights,
                                       const struct model *for_model, tinker_error *err)
{
    size_t max = (size_t)s->opts.max_adapters;
    for (;;) { /* unload until there is space; max 0: no limit of their number */
        struct survey v = survey_adapters(s, for_model);
        bool too_many = max && v.n + weights->n >= max;
        if (!too_many && v.bytes + weights_bytes(weights) < s->max_adapter_bytes)
            break;
        if (weights_drop_idle(weights, 0))
            continue;
        /* Their part of --memory is for idle ones: those in use are there already. */
        if (!too_many && !v.oldest)
            break;
        if (!v.oldest) {
            err_set(err, TINKER_ENOMEM, "all %zu adapters that may be in memory are in use", max);
            err->retryable = 1;
            return TINKER_ENOMEM;
        }
        tinker_status status = train_state_unload(s, v.oldest, v.seq, err);
        if (status != TINKER_OK) {
            err_prefix(err, "cannot unload another model to make space");
            log_line(s->log, LOG_ERROR, "%s stays in memory: %s", v.oldest->id, err->message);
            return status;
        }
    }
    return TINKER_OK;
}
