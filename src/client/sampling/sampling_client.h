/* sampling_client.h - the inside of tinker_sampler. */
#ifndef CLIENT_SAMPLING_CLIENT_H
#define CLIENT_SAMPLING_CLIENT_H

#include <stdatomic.h>
#include <tinker/sampling.h>
#include "client/session/session.h"
#include "client/observe/queue_state.h"

struct tinker_sampler {
    atomic_int refs;      /* the user's, and one per live operation */
    tinker_sampler *base; /* itself, or the client that this one gives options: a reference */
    struct call_options *options; /* of all its calls, a reference; NULL: none */
    struct session *session;
    char *id; /* of the sampling session */
    /* What follows is the base's alone. */
    pthread_mutex_t lock;
    tinker_retry_options retry;   /* lock; copied into each sample */
    int64_t next_seq;             /* loop thread */
    atomic_int records_stability; /* ask the service to record what stable_reinforce needs */
    struct queue_state watch;     /* loop thread */
    struct helper_target *far;    /* loop thread; NULL: no sample was made by the helper yet */
};

tinker_sampler *sampling_client_new(struct session *h, const char *id, struct call_options *options,
                                    tinker_error *err);
void sampling_client_ref(tinker_sampler *s);
void sampling_client_unref(tinker_sampler *s);

/* sample_options.c: a request of the user's, checked against the defaults of this version. */
struct sample_request {
    const tinker_model_input *prompt;
    tinker_sampling_params params;
    tinker_sample_options opts;
};
tinker_status sample_check(struct sample_request *r, const tinker_model_input *prompt,
                           const tinker_sampling_params *params, const tinker_sample_options *opts,
                           tinker_error *err);
/* The first of its options that is about the prompt, which no stream carries; NULL: none. */
const char *sample_prompt_option(const struct sample_request *r);
/* Its JSON, with a seq_id of 0 or without one; appended to an initialized buffer. */
tinker_status sample_encode(const tinker_sampler *s, const struct sample_request *r, bool numbered,
                            struct buf *out, tinker_error *err);
/* sample_op.c: an encoded request, with a seq_id of 0, ready to be sent by whoever has the sampler. */
struct sample_order {
    int64_t bytes;     /* of the prompt, for the budgets */
    size_t max_result; /* bytes that the result can take */
    tinker_retry_options retry;
    int use_retry; /* is it tried again, under the permits of the sampler? */
};
/* body is taken over.  Any thread. */
tinker_future *sample_submit(tinker_sampler *s, const struct sample_order *order, struct buf *body,
                             tinker_error *err);

#endif
