/* stream_list.c - see stream_list.h. */
#include "client/sampling/stream_list.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/os.h"
#include "client/future/future.h"

enum {
    UNREAD_MAX = 1 << 20,
    TOPK_BYTES_MAX = 64 << 20
}; /* events, and bytes of their topk_bytes */

struct stream_list {
    atomic_int refs;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* the lock: */
    /* From `taken` on they are unread, and each owns its likeliest tokens, one block. */
    tinker_stream_event *events;
    size_t n, taken, cap;
    size_t topk_bytes; /* bytes of these blocks */
    const void *lent;  /* the block of the event that was taken last */
    bool ended;
    tinker_error err; /* why it ended; TINKER_OK: as it should */
    int fd;           /* -1: nobody asked for it */
    pid_t owner;      /* process whose descriptor it is */
    /* loop thread: */
    void (*wake)(void *arg); /* NULL: nobody listens */
    void *wake_arg;
};

struct stream_list *stream_list_new(void)
{
    struct stream_list *l = calloc(1, sizeof(*l));
    if (!l || future_cond_init(&l->cond) != 0) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    atomic_init(&l->refs, 1);
    l->fd = -1;
    return l;
}

void stream_list_ref(struct stream_list *l)
{
    atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
}

void stream_list_unref(struct stream_list *l)
{
    if (!l || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (l->fd >= 0)
        close(l->fd);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->lock);
    for (size_t i = l->taken; i < l->n; i++)
        free((void *)l->events[i].topk_tokens);
    free((void *)l->lent);
    free(l->events);
    free(l);
}

/* Both arrays of an event are one block, tokens first. */
static size_t topk_size(const tinker_stream_event *e)
{
    return e->topk * (sizeof(*e->topk_tokens) + sizeof(*e->topk_logprobs));
}

/* Give the event a block of its own; false: no memory. */
static bool own_topk(tinker_stream_event *e)
{
    int32_t *block = e->topk ? malloc(topk_size(e)) : NULL;
    if (!block) {
        e->topk_tokens = NULL;
        e->topk_logprobs = NULL;
        return e->topk == 0;
    }
    float *logprobs = (float *)(void *)(block + e->topk);
    memcpy(block, e->topk_tokens, e->topk * sizeof(*block));
    memcpy(logprobs, e->topk_logprobs, e->topk * sizeof(*logprobs));
    e->topk_tokens = block;
    e->topk_logprobs = logprobs;
    return true;
}

/* Room for one more: where read events are, if they are half of all, else more memory. */
static bool grow_locked(struct stream_list *l, size_t topk_bytes)
{
    size_t unread = l->n - l->taken;
    if (unread >= UNREAD_MAX || topk_bytes > TOPK_BYTES_MAX - l->topk_bytes)
        return false;
    if (l->n < l->cap)
        return true;
    if (l->taken > 0 && l->taken >= unread) {
        memmove(l->events, l->events + l->taken, unread * sizeof(*l->events));
        l->n = unread;
        l->taken = 0;
        return true;
    }
    size_t cap = l->cap ? 2 * l->cap : 64;
    tinker_stream_event *v = realloc(l->events, cap * sizeof(*v));
    if (!v)
        return false;
    l->events = v;
    l->cap = cap;
    return true;
}

static bool is_ready_locked(const struct stream_list *l)
{
    return l->taken < l->n || l->ended;
}

/* In a child the descriptor is replaced before its state changes: the parent listens to it. */
static bool own_fd_locked(struct stream_list *l)
{
    if (l->fd < 0 || (l->owner != getpid() && os_event_renew(l->fd) != 0))
        return false;
    l->owner = getpid();
    return true;
}

/* A reader in tinker_stream_next() and a poll loop on the descriptor are both possible. */
static void wake_locked(struct stream_list *l)
{
    pthread_cond_signal(&l->cond);
    if (l->fd >= 0)
        os_event_signal(l->fd);
}

/* Allocation and copying are done before the lock is taken. The reader is woken even without
 * memory: the end follows. */
bool stream_list_push(struct stream_list *l, const tinker_stream_event *e)
{
    tinker_stream_event own = *e;
    bool ok = own_topk(&own);
    pthread_mutex_lock(&l->lock);
    ok = ok && grow_locked(l, topk_size(&own));
    if (ok) {
        l->topk_bytes += topk_size(&own);
        l->events[l->n++] = own;
    }
    wake_locked(l);
    pthread_mutex_unlock(&l->lock);
    if (!ok)
        free((void *)own.topk_tokens);
    if (l->wake)
        l->wake(l->wake_arg);
    return ok;
}

void stream_list_listen(struct stream_list *l, void (*wake)(void *arg), void *arg)
{
    l->wake = wake;
    l->wake_arg = arg;
}

void stream_list_end(struct stream_list *l, const tinker_error *err)
{
    pthread_mutex_lock(&l->lock);
    if (!l->ended && err)
        l->err = *err;
    l->ended = true;
    wake_locked(l);
    pthread_mutex_unlock(&l->lock);
    if (l->wake)
        l->wake(l->wake_arg);
}

/* The next event. Its block is lent until the next call, then freed: a reader never copies. */
static tinker_status take_locked(struct stream_list *l, tinker_stream_event *out, tinker_error *err)
{
    *out = (tinker_stream_event){ .kind = TINKER_STREAM_END };
    free((void *)l->lent);
    l->lent = NULL;
    if (l->taken < l->n) {
        *out = l->events[l->taken++];
        l->topk_bytes -= topk_size(out);
        l->lent = out->topk_tokens;
        if (!is_ready_locked(l) && own_fd_locked(l))
            os_event_drain(l->fd);
        return TINKER_OK;
    }
    if (!l->ended)
        return TINKER_ETIMEDOUT;
    if (l->err.status != TINKER_OK && err)
        *err = l->err;
    return l->err.status;
}

tinker_status stream_list_next(struct stream_list *l, int64_t deadline_ms, tinker_stream_event *out,
                               tinker_error *err)
{
    pthread_mutex_lock(&l->lock);
    bool in_time = deadline_ms != 0;
    while (!is_ready_locked(l) && in_time)
        in_time = future_cond_wait_on(&l->cond, &l->lock, deadline_ms);
    bool ready = is_ready_locked(l);
    tinker_status s = take_locked(l, out, err);
    pthread_mutex_unlock(&l->lock);
    if (!ready)
        return err_set(err, TINKER_ETIMEDOUT, "no token in time; the stream goes on");
    return s;
}

/* Made when first asked for: most programs never do, and descriptors are few. */
int stream_list_fd(struct stream_list *l)
{
    pthread_mutex_lock(&l->lock);
    if (l->fd < 0) {
        l->fd = os_event_open();
        l->owner = getpid();
    }
    if (is_ready_locked(l) && own_fd_locked(l))
        os_event_signal(l->fd);
    int fd = l->fd;
    pthread_mutex_unlock(&l->lock);
    return fd;
}
