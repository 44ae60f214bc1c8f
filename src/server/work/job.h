/* job.h - what a request asks the engine to do, decoded.
 *
 * The same decoder serves requests from the network and requests found in the
 * journal after a restart.  Everything lives in the work's own arena. */
#ifndef SERVER_WORK_H
#define SERVER_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "wire/types.h"

/* Values are stored: never renumber. */
enum work_kind {
    WORK_CREATE = 0,
    WORK_CREATE_BY_LOAD = 1,
    WORK_FORWARD = 2,
    WORK_FORWARD_BACKWARD = 3,
    WORK_OPTIM_STEP = 4,
    WORK_SAVE = 5,
    WORK_SAVE_SAMPLER = 6,
    WORK_LOAD = 7,
    WORK_UNLOAD = 8,
    WORK_SAMPLE = 9,
    WORK_SAVE_EXTERNAL = 10
};

struct work {
    struct arena arena;
    enum work_kind kind;
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
    /* SAMPLE: the tokens of the prompt in one array, once somebody needed them so. */
    const int32_t *flat;
    /* SAMPLE: told about each token and about the end; NULL: nobody (OpenAI streaming). */
    struct observer *observer;
    /* Not empty: the request was readable enough to take its turn, and then fails so. */
    char refused[384];
};

/* Somebody who follows a sample while it is made.  Called on the engine thread; a sample that
 * fails before it was begun is finished on another. */
struct observer {
    /* Non-zero stops the sequence. */
    int (*token)(struct observer *o, size_t sample, int32_t token, float logprob);
    /* The likeliest tokens where the next one stands, if the request asks for them. */
    void (*rivals)(struct observer *o, size_t sample, const int32_t *tokens, const float *logprobs,
                   size_t k);
    void (*finished)(struct observer *o, const tinker_sample *result, const char *error);
    void (*free)(struct observer *o);
};

struct work *work_new(enum work_kind kind); /* NULL: no memory */
void work_free(struct work *w);

/* Fill w from a body.  TINKER_EINVAL names the field. */
tinker_status work_decode(struct work *w, bool proto, const char *body, size_t n,
                          tinker_error *err);

/* model_id and seq of a body that does not decode; false: not even those. */
bool work_peek(bool proto, const char *body, size_t n, struct arena *arena, const char **model_id,
               struct wire_opt_int *seq);

/* Model and number of a training request. */
const char *work_model_id(const struct work *w);
struct wire_opt_int work_seq(const struct work *w);

/* Equal for equal requests, whatever their encoding; never WORK_HASH_UNKNOWN, which stands for
 * requests that a release with another hash has stored. */
uint64_t work_hash(const struct work *w);
#define WORK_HASH_UNKNOWN ((uint64_t)0)

int64_t work_tokens(const struct work *w); /* tokens of the data or of the prompt */

bool work_kind_changes(enum work_kind kind);     /* the weights or gradients of a model */
const char *work_kind_name(enum work_kind kind); /* "forward_backward" */

#endif
