/* job.h - what a request asks the engine to do, decoded.
 *
 * The same decoder serves requests from the network and requests found in the
 * journal after a restart.  Everything lives in the job's own arena. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "wire/types.h"

struct grammar;

/* Values are stored: never renumber. */
enum job_kind {
    JOB_CREATE = 0,
    JOB_CREATE_BY_LOAD = 1,
    JOB_FORWARD = 2,
    JOB_FORWARD_BACKWARD = 3,
    JOB_OPTIM_STEP = 4,
    JOB_SAVE = 5,
    JOB_SAVE_SAMPLER = 6,
    JOB_LOAD = 7,
    JOB_UNLOAD = 8,
    JOB_SAMPLE = 9,
    JOB_SAVE_EXTERNAL = 10,
    JOB_CUSTOM_LOSS = 11
};

struct job {
    struct arena arena;
    enum job_kind kind;
    union {
        struct wire_create_model_request create;
        struct wire_load_weights_request load; /* LOAD, CREATE_BY_LOAD */
        struct wire_forward_backward_request pass;
        struct wire_optim_step_request optim;
        struct wire_save_weights_request save;
        struct wire_save_weights_for_sampler_request save_sampler;
        struct wire_save_weights_external_request save_external;
        struct wire_unload_model_request unload;
        struct wire_sample_request sample;
    };
    /* SAMPLE: where the weights are; NULL: the base model. */
    const char *dir;
    /* SAMPLE: the tokens of the prompt in one array, once they were needed; else NULL. */
    const int32_t *flat;
    /* SAMPLE: follows it token by token, for streams; NULL: nobody does. */
    struct observer *observer;
    /* SAMPLE: what the text must be; NULL: anything.  Once queued, the engine thread's alone. */
    struct grammar *grammar;
    /* Not empty: the route refused the request, but its number must be used up: it fails with
     * this message when its turn comes. */
    char refused[384];
};

/* Follows a sample while it is generated.  Called on the engine thread; for a sample that fails
 * before it started, finished() is called on another thread. */
struct observer {
    /* Non-zero stops the sequence. */
    int (*token)(struct observer *o, size_t sample, int32_t token, float logprob);
    /* The most likely tokens at the position of the next one, if the request asks for them. */
    void (*alternatives)(struct observer *o, size_t sample, const int32_t *tokens,
                         const float *logprobs, size_t k);
    void (*finished)(struct observer *o, const tinker_sample *result, const char *error);
    bool (*left)(const struct observer *o); /* nobody listens any more: do not start */
    void (*free)(struct observer *o);
};

struct job *job_new(enum job_kind kind); /* NULL: no memory */
void job_free(struct job *w);

/* Fill w from a body.  TINKER_EINVAL names the field. */
tinker_status job_decode(struct job *w, bool proto, const char *body, size_t n, tinker_error *err);

/* model_id and seq of a body that does not decode; false: not even those. */
bool job_peek(bool proto, const char *body, size_t n, struct arena *arena, const char **model_id,
              struct wire_opt_int *seq);

/* Model and number of a training request. */
const char *job_model_id(const struct job *w);
struct wire_opt_int job_seq(const struct job *w);

/* Equal for equal requests, whatever their encoding; never JOB_HASH_UNKNOWN, which stands for
 * requests that a release with another hash has stored. */
uint64_t job_hash(const struct job *w);
#define JOB_HASH_UNKNOWN ((uint64_t)0)

int64_t job_tokens(const struct job *w); /* tokens of the data or of the prompt */

bool job_kind_changes(enum job_kind kind);     /* the weights or gradients of a model */
const char *job_kind_name(enum job_kind kind); /* "forward_backward" */

#endif
