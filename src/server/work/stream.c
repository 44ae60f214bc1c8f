/* stream.c - see stream.h.
 *
 * Lock order: the stream's lock is a leaf; the listener's is taken after it is released. */
#include "server/work/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "server/http/listener.h"

enum { STREAM_MAX = 16 << 20 }; /* a reader that is further behind loses its stream */

struct stream {
    struct listener *listener;
    pthread_mutex_t lock;
    /* guarded by lock */
    struct buf pending;
    size_t taken; /* bytes of pending already read */
    int refs;
    bool ended, abandoned;
    /* guarded by the listener */
    struct waitlist wait;
};

/* Reference counted, as the engine thread (producer) and the HTTP thread (reader) let go of it in
 * either order. */
struct stream *stream_new(struct listener *l)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->listener = l;
    s->refs = 2; /* producer and reader */
    pthread_mutex_init(&s->lock, NULL);
    buf_init(&s->pending, STREAM_MAX);
    return s;
}

void stream_unref(struct stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    int refs = --s->refs;
    pthread_mutex_unlock(&s->lock);
    if (refs)
        return;
    buf_clear(&s->pending);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* false: nobody reads any more, so the producer may stop working for it. */
bool stream_write(struct stream *s, const void *p, size_t n)
{
    pthread_mutex_lock(&s->lock);
    /* Reclaim what was read, also when the reader never catches up; half full, so that the bytes
     * are moved a constant number of times on average. */
    if (s->taken > s->pending.len / 2) {
        s->pending.len -= s->taken;
        memmove(s->pending.data, s->pending.data + s->taken, s->pending.len);
        s->taken = 0;
    }
    /* Beyond STREAM_MAX the buffer fails, and stays so: the reader is cut off. */
    if (!s->abandoned)
        buf_append(&s->pending, p, n);
    bool ok = !s->abandoned && buf_ok(&s->pending);
    pthread_mutex_unlock(&s->lock);
    listener_wake(s->listener, &s->wait);
    return ok;
}

void stream_end(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_mutex_unlock(&s->lock);
    listener_wake(s->listener, &s->wait);
}

/* The reader has gone; what is pending is freed with the last reference. */
void stream_abandon(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->abandoned = true;
    pthread_mutex_unlock(&s->lock);
}

bool stream_is_abandoned(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool abandoned = s->abandoned;
    pthread_mutex_unlock(&s->lock);
    return abandoned;
}

/* As a stream is read: bytes, 0 for "nothing yet", -1 at the end, -2 for a connection that must
 * be cut. */
ssize_t stream_read(struct stream *s, char *out, size_t max)
{
    /* Rearm before looking: a write after the look fires the waitlist again. */
    listener_rearm(s->listener, &s->wait);
    pthread_mutex_lock(&s->lock);
    size_t n = s->pending.len - s->taken;
    /* With bytes left they come first, then the end. */
    ssize_t result = !buf_ok(&s->pending) ? -2 : s->ended ? -1 : 0;
    if (n > 0) {
        n = n < max ? n : max;
        memcpy(out, s->pending.data + s->taken, n);
        s->taken += n;
        if (s->taken == s->pending.len) {
            /* The buffer keeps its memory for the next token. */
            s->pending.len = 0;
            s->taken = 0;
        }
        result = (ssize_t)n;
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

struct waitlist *stream_waitlist(struct stream *s)
{
    return &s->wait;
}
