/* custom.h - a custom loss: its data, its metrics on their way into the result of the backward
 * pass, and the job between the two passes. */
#ifndef CLIENT_CUSTOM_H
#define CLIENT_CUSTOM_H

#include <tinker/custom_loss.h>
#include "base/arena.h"

struct custom_metrics {
    struct arena arena;
    tinker_named_number *v;
    size_t n;
};

struct custom_metrics *custom_metrics_new(const tinker_named_number *v, size_t n);
void custom_metrics_free(struct custom_metrics *m);
/* Replace metrics of equal names in *out and append the others; memory from a. */
tinker_status custom_metrics_lay(const struct custom_metrics *m, struct arena *a,
                                 tinker_forward_backward *out, tinker_error *err);

/* custom.c: refuse what cannot be sent; what is sent first (zeros for absent weights) and second
 * (weights of minus the gradient); where the logprobs are.  Memory from a; NULL: none. */
extern const tinker_loss custom_cross_entropy;
tinker_status custom_check(const tinker_datum *data, size_t n, const tinker_custom_options *opts,
                           tinker_error *err);
tinker_datum *custom_forward_data(struct arena *a, const tinker_datum *data, size_t n);
tinker_datum *custom_backward_data(struct arena *a, const tinker_datum *data,
                                   const tinker_loss_report *r);
tinker_status custom_logprobs(const tinker_forward_backward *res, size_t n, tinker_tensor *out,
                              tinker_error *err);
/* tinker_loss_evaluate() that also tells the hooks of a service. */
struct hooks;
tinker_loss_report *custom_evaluate(struct hooks *hooks, tinker_loss_fn *fn, void *state,
                                    const tinker_datum *data, const tinker_tensor *logprobs,
                                    size_t n, const tinker_custom_options *opts, tinker_error *err);

/* custom_future.c: the loss between the two passes, on a thread of its own. */
struct custom_job;
struct training_op;
/* The bodies of the backward pass, as the forward pass was cut: ends[i] is where part i ends. */
void custom_job_plan(struct custom_job *job, int64_t first_id, const size_t *ends, size_t n_parts);
void custom_job_bind(struct custom_job *job, struct training_op *backward);
void custom_job_leave(struct custom_job *job); /* loop thread: the operation is going */
/* Wait until no loss of this session runs.  Not on a library thread. */
void custom_jobs_wait(const void *session);

/* training.c: both passes with their ids reserved together; the second waits for the job.
 * *forward is a future of the caller's. */
tinker_future *training_submit_custom(struct tinker_training *t, const tinker_datum *data, size_t n,
                                      struct custom_job *job, tinker_future **forward,
                                      tinker_error *err);

#endif
