/* training_client.h - the inside of tinker_training. */
#ifndef CLIENT_TRAINING_CLIENT_H
#define CLIENT_TRAINING_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <tinker/training.h>
#include "client/session/session.h"
#include "client/observe/queue_state.h"
#include "client/io/send_order.h"
#include "client/training/seq_gap.h"

struct tinker_training {
    atomic_int refs;       /* the user's, and one per live operation */
    tinker_training *base; /* itself, or the client that this one gives options: a reference */
    struct call_options *options; /* of all its calls, a reference; NULL: none */
    struct session *session;
    char *model_id;
    /* What follows is the base's alone. */
    pthread_mutex_t lock;
    int64_t next_id;              /* lock: of the next request */
    bool unloaded;                /* lock: no more requests */
    struct send_order send_order; /* loop thread */
    struct seq_gaps gaps;         /* loop thread: numbers behind the turn that nobody used */
    struct queue_state watch;     /* loop thread */
};

tinker_training *training_client_new(struct session *h, const char *model_id,
                                     struct call_options *options, tinker_error *err);
void training_client_ref(tinker_training *t);
void training_client_unref(tinker_training *t);
/* Reserve n consecutive request ids and submit op while nobody else can: ids and
 * submissions have the same order. */
tinker_status training_client_reserve_locked(tinker_training *t, size_t n, int64_t *first,
                                             tinker_error *err);

/* rest.c: get_info without the second layer of retries, as the reference asks for a tokenizer. */
tinker_future *training_client_ask_name(tinker_training *t, tinker_error *err);

/* Is this a path that can be loaded for training?  TINKER_EINVAL says the fix. */
/* The optimizer_config of a model that is made; type NULL: none. */
struct wire_optimizer_config training_client_optimizer(const char *name);
tinker_status training_client_check_path(const char *path, tinker_error *err);

#endif
