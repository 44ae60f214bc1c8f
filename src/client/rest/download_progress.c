/* download_progress.c - see download_progress.h. */
#include "client/rest/download_progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "client/future/future.h"
#include "client/io/callback_guard.h"
#include "client/session/session.h"

/* How far a download is, shared with the callback thread; whoever drops it last frees it.  lock:
 * everything from `refs` on.  At most one message is on its way: it tells the newest numbers when it
 * arrives, so a slow callback skips some instead of piling them up. */
struct download_progress {
    tinker_progress_fn *call;
    void *state;
    const atomic_bool *muted;     /* the service's */
    struct callback_guard *guard; /* a reference, NULL: not started */
    pthread_mutex_t lock;
    int refs;
    bool pending, stop_download;
    int64_t done, total;
};

void download_progress_unref(struct download_progress *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    bool last = --p->refs == 0;
    pthread_mutex_unlock(&p->lock);
    if (last) {
        callback_guard_unref(p->guard);
        pthread_mutex_destroy(&p->lock);
        free(p);
    }
}

/* On the callback thread.  The guard (guard) keeps the future alive during the call, and keeps the
 * call away once tinker_future_free() has returned. */
static void deliver_progress(void *arg)
{
    struct download_progress *p = arg;
    pthread_mutex_lock(&p->lock);
    p->pending = false;
    int64_t done = p->done, total = p->total;
    bool wanted = !p->stop_download;
    pthread_mutex_unlock(&p->lock);
    if (wanted && !atomic_load(p->muted) && callback_guard_enter(p->guard)) {
        bool enough = p->call(done, total, p->state) != 0;
        callback_guard_leave(p->guard);
        pthread_mutex_lock(&p->lock);
        p->stop_download = p->stop_download || enough;
        pthread_mutex_unlock(&p->lock);
    }
    download_progress_unref(p);
}

/* On the loop thread.  false: the callback has asked to stop, and the transfer ends with the next
 * piece. */
bool download_progress_tell(struct download_progress *p, struct runtime *rt, int64_t done,
                            int64_t total)
{
    if (!p || total < 0)
        return true;
    pthread_mutex_lock(&p->lock);
    p->done = done;
    p->total = total;
    bool go_on = !p->stop_download, post = go_on && !p->pending;
    if (post) {
        p->pending = true;
        p->refs++;
    }
    pthread_mutex_unlock(&p->lock);
    /* The runtime is shutting down; the message's reference is dropped at once. */
    if (post && !runtime_post_callback(rt, deliver_progress, p))
        download_progress_unref(p);
    return go_on;
}

bool download_progress_new(struct download_progress **out, const tinker_download_options *opts,
                           struct operation *op)
{
    *out = NULL;
    if (!opts->progress)
        return true;
    struct download_progress *p = calloc(1, sizeof(*p));
    if (!p)
        return false;
    p->call = opts->progress;
    p->state = opts->progress_state;
    p->refs = 1;
    pthread_mutex_init(&p->lock, NULL);
    /* tinker_future_free() then waits for a callback that is running. */
    op->calls_back = true;
    *out = p;
    return true;
}

void download_progress_begin(struct download_progress *p, struct operation *op)
{
    if (!p)
        return;
    p->muted = op->session->cfg->muted_by;
    p->guard = op->future->guard;
    callback_guard_ref(op->future->guard);
}
