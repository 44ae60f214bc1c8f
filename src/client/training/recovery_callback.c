/* recovery_callback.c - see recovery_callback.h. */
#include "client/training/recovery_callback.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/training.h>
#include <tinker/extra/recovery.h>
#include "client/io/runtime.h"

struct recovery_callback {
    atomic_int refs; /* the recovery's, and one per message */
    struct runtime *rt;
    atomic_bool closed;
    tinker_recovered_fn *on_recovery;
    tinker_unrecovered_fn *on_failure;
    void *state;
};

/* One call of the user on its way to the callback thread; owns everything in it. */
struct message {
    struct recovery_callback *callback;
    char *run_id, *checkpoint;
    tinker_training *old, *recovered; /* recovered NULL: it failed */
    tinker_error err;
};

struct recovery_callback *recovery_callback_new(struct runtime *rt,
                                                const tinker_recovery_options *policy)
{
    struct recovery_callback *a = calloc(1, sizeof(*a));
    if (!a)
        return NULL;
    atomic_init(&a->refs, 1);
    a->rt = rt;
    a->on_recovery = policy->on_recovery;
    a->on_failure = policy->on_failure;
    a->state = policy->state;
    return a;
}

void recovery_callback_unref(struct recovery_callback *a)
{
    if (a && atomic_fetch_sub(&a->refs, 1) == 1)
        free(a);
}

/* Messages that were posted before are delivered or dropped when this returns. On the callback
 * thread itself it does not wait, which would be for ever. */
void recovery_callback_close(struct recovery_callback *a)
{
    atomic_store(&a->closed, true);
    runtime_drain_callbacks(a->rt); /* does not wait when it is called there */
}

static void message_free(struct message *m)
{
    tinker_training_free(m->recovered);
    recovery_callback_unref(m->callback);
    free(m->run_id);
    free(m->checkpoint);
    free(m);
}

/* On the callback thread. What nobody wants to have is freed with the message. */
static void call_user(void *arg)
{
    struct message *m = arg;
    const struct recovery_callback *a = m->callback;
    bool closed = atomic_load(&a->closed);
    if (!closed && m->recovered && a->on_recovery) {
        tinker_training *theirs = m->recovered;
        m->recovered = NULL;
        a->on_recovery(m->run_id, m->old, theirs, m->checkpoint, a->state);
    } else if (!closed && !m->recovered && a->on_failure)
        a->on_failure(m->run_id, &m->err, a->state);
    message_free(m);
}

/* Without memory the user is not told; a client that was recovered for him is freed then. */
static void post_message(struct recovery_callback *a, struct message m, const char *run_id,
                         const char *checkpoint)
{
    struct message *copy = malloc(sizeof(*copy));
    if (!copy) {
        tinker_training_free(m.recovered);
        return;
    }
    *copy = m;
    copy->callback = a;
    atomic_fetch_add(&a->refs, 1);
    copy->run_id = strdup(run_id);
    copy->checkpoint = strdup(checkpoint);
    if (!copy->run_id || !copy->checkpoint || !runtime_post_callback(a->rt, call_user, copy))
        message_free(copy);
}

void recovery_callback_recovered(struct recovery_callback *a, const char *run_id,
                                 tinker_training *old, tinker_training *recovered,
                                 const char *checkpoint)
{
    post_message(a, (struct message){ .old = old, .recovered = recovered }, run_id, checkpoint);
}

void recovery_callback_failed(struct recovery_callback *a, const char *run_id,
                              const tinker_error *err)
{
    post_message(a, (struct message){ .err = *err }, run_id, "");
}
