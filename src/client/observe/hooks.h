/* hooks.h - the hooks of a service, and events on their way to them.
 *
 * An event is written where it happens, in any thread, and delivered on the callback thread's.
 *
 *     struct event *e = event_new(h->hooks, "queue.state_change");
 *     event_text(e, "reason", reason);
 *     event_send(e);
 *
 * event_new() gives NULL when no hook listens, and the others ignore NULL. */
#ifndef CLIENT_HOOKS_H
#define CLIENT_HOOKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <tinker/extra/events.h>

struct runtime;
struct config;
struct event;

struct hook;
struct hooks {
    struct runtime *rt;
    const struct config *cfg;
    atomic_int waiting; /* events on the callback thread */
    atomic_int n;       /* of hooks; read without the lock */
    pthread_mutex_t lock;
    struct hook *first;   /* lock */
    uint64_t next_serial; /* lock */
};

void hooks_init(struct hooks *h, struct runtime *rt, const struct config *cfg);
void hooks_clear(struct hooks *h);

/* name and the keys are static texts; values are copied and redacted, NULL is left out.
 * hooks may be NULL. */
struct event *event_new(struct hooks *h, const char *name);
void event_number(struct event *e, const char *key, double value);
void event_text(struct event *e, const char *key, const char *value);
/* Texts of the user's own, redacted already; where the event has the name, the event's stands. */
void event_own(struct event *e, const tinker_named_string *v, size_t n);
void event_send(struct event *e); /* takes it over */

#endif
