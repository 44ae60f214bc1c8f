/* result.h - reading the result of a finished request into its future, by request type.
 * Loop thread, before the future completes. */
#ifndef CLIENT_RESULT_H
#define CLIENT_RESULT_H

#include <stdbool.h>
#include "client/future/future.h"
#include "client/call/poll.h"

struct result_reader {
    struct poll_kind poll;
    enum result_kind kind;
    tinker_status (*read)(struct tinker_future *f, const char *body, size_t n, bool proto,
                          tinker_error *err);
};

extern const struct result_reader result_forward, result_forward_backward, result_optim_step,
    result_save, result_save_for_sampler, result_save_external, result_load, result_sample,
    result_unload;

/* By the name on the wire ("OptimStep"), NULL: unknown or not resumable. */
const struct result_reader *result_find(const char *request_type);

/* Large results on a worker, see poll.h: a tinker_forward_backward, a tinker_sample. */
poll_reader result_pass_aside, result_sample_aside;

/* A pass without the reduction of its metrics, for a part of a batch. */
tinker_status result_read_pass(struct arena *a, const char *body, size_t n, bool proto,
                               tinker_forward_backward *out, tinker_error *err);

#endif
