/* peer.c - see peer.h. */
#include "server/peer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

struct peer {
    struct peer *next, *prev;
    int fd;
    enum peer_phase phase;
    int64_t since_ns; /* when the phase began */
    size_t received;  /* SENDING: bytes of the body so far */
};

void peers_init(struct peers *v, struct clock *clock, int64_t idle_ms, int64_t body_ms)
{
    *v = (struct peers){ .clock = clock, .idle_ms = idle_ms, .body_ms = body_ms };
    pthread_mutex_init(&v->lock, NULL);
}

void peers_clear(struct peers *v)
{
    pthread_mutex_destroy(&v->lock);
}

struct peer *peers_add(struct peers *v, int fd)
{
    struct peer *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->fd = fd;
    p->since_ns = clock_now_ns(v->clock);
    pthread_mutex_lock(&v->lock);
    p->next = v->first;
    if (p->next)
        p->next->prev = p;
    v->first = p;
    pthread_mutex_unlock(&v->lock);
    return p;
}

void peers_remove(struct peers *v, struct peer *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&v->lock);
    *(p->prev ? &p->prev->next : &v->first) = p->next;
    if (p->next)
        p->next->prev = p->prev;
    pthread_mutex_unlock(&v->lock);
    free(p);
}

void peers_phase(struct peers *v, struct peer *p, enum peer_phase phase)
{
    int64_t now_ns = clock_now_ns(v->clock);
    if (!p)
        return;
    pthread_mutex_lock(&v->lock);
    p->phase = phase;
    p->since_ns = now_ns;
    p->received = 0;
    pthread_mutex_unlock(&v->lock);
}

void peers_received(struct peers *v, struct peer *p, size_t n)
{
    if (!p)
        return;
    pthread_mutex_lock(&v->lock);
    p->received += n;
    pthread_mutex_unlock(&v->lock);
}

static bool is_late(const struct peers *v, const struct peer *p, int64_t now_ns)
{
    int64_t ms = (now_ns - p->since_ns) / 1000000;
    if (p->phase == PEER_IDLE)
        return ms > v->idle_ms;
    return p->phase == PEER_SENDING && ms > v->body_ms + (int64_t)(p->received / PEER_RATE) * 1000;
}

void peers_hang_up(struct peers *v)
{
    int64_t now_ns = clock_now_ns(v->clock);
    pthread_mutex_lock(&v->lock);
    for (struct peer *p = v->first; p; p = p->next)
        if (is_late(v, p, now_ns))
            shutdown(p->fd, SHUT_RDWR);
    pthread_mutex_unlock(&v->lock);
}
