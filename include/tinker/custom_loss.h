/* custom_loss.h - losses of your own, with regularizers, and the training call.
 *
 * The service differentiates its built-in losses only.  A loss of yours is a function of
 * the log-probabilities of the target tokens, written with the tinker_var_…() operations;
 * the library differentiates it and has the service backpropagate the result:
 *
 *     static tinker_var *nll(tinker_tape *tape, const tinker_datum *data,
 *                            tinker_var *const *logprobs, size_t n, void *state)
 *     {
 *         tinker_var *sum = tinker_tape_scalar(tape, 0);
 *         for (size_t i = 0; i < n; i++) {
 *             tinker_var *w = tinker_tape_input(tape, &data[i], "weights");
 *             sum = tinker_var_sub(sum, tinker_var_dot(logprobs[i], w));
 *         }
 *         tinker_tape_metric(tape, "nll", tinker_var_item(sum));
 *         return sum;
 *     }
 *     f = tinker_training_forward_backward_custom(t, data, n, nll, NULL, NULL, &err);
 *
 * Values are double, up to four dimensions, row-major, with the broadcasting rules of
 * numpy.  Errors stick to the tape: the first one is kept, every later operation returns
 * a harmless value, and the call that ran the loss reports it.  So a loss need not check
 * anything. */
#ifndef TINKER_CUSTOM_LOSS_H
#define TINKER_CUSTOM_LOSS_H

#include <tinker/extra/autodiff.h>
#include <tinker/future.h>
#include <tinker/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tinker_training;
struct tinker_service;

/* ---- regularizers ------------------------------------------------------------------------ */

/* A term beside the loss: total = loss + sum of weight * term. */
typedef struct tinker_regularizer {
    const char *name; /* not empty, unique in its list */
    double weight;    /* >= 0; with 0 the term is only reported */
    tinker_loss_fn *fn;
    void *state;
    int async;       /* waits for something else: gets a thread beyond max_concurrency */
    int no_gradient; /* its value counts, its gradient is taken as 0 */
    int disabled;    /* left out */
} tinker_regularizer;

/* A number or, when text is not NULL, a text that a term reported. */
typedef struct tinker_loss_metric {
    const char *name;
    double value;
    const char *text;
} tinker_loss_metric;

typedef struct tinker_loss_term {
    const char *name; /* NULL for the loss itself */
    double value, weight, contribution;
    int has_grad_norm;                    /* when norms are tracked and there is a gradient */
    double grad_norm, grad_norm_weighted; /* by the logprobs, not by the weights of the model */
    const tinker_loss_metric *custom;
    size_t n_custom;
} tinker_loss_term;

/* The result of a loss.  The report owns everything it refers to. */
typedef struct tinker_loss_report {
    double loss_total, regularizer_total;
    tinker_loss_term base;
    const tinker_loss_term *regularizers; /* in the order given, disabled ones left out */
    size_t n_regularizers;
    int has_total_grad_norm;
    double total_grad_norm;
    const tinker_tensor *gradients; /* one per datum: float64, in the shape of its logprobs */
    size_t n_gradients;
    const tinker_named_number *metrics; /* added to the result of a training call */
    size_t n_metrics;
} tinker_loss_report;

TINKER_API void tinker_loss_report_free(tinker_loss_report *report);
/* Append the report without its gradients to *out, as JSON.  A number that is not finite is
 * written as null.  TINKER_ENOMEM; *out is then as it was. */
TINKER_API tinker_status tinker_loss_report_json(const tinker_loss_report *report, tinker_text *out,
                                                 tinker_error *err);

/* An event: "custom_loss.start", ".stop", ".exception", or the same three of
 * "regularizer.compute".  Members that do not apply are 0 or NULL. */
typedef struct tinker_loss_event {
    const char *name;
    int64_t system_time_ns, duration_ns;
    size_t n_regularizers;
    int track_grad_norms;
    const char *regularizer;
    int async;
    double weight, value, contribution; /* of the regularizer */
    int has_grad_norm;
    double grad_norm;
    double loss_total, regularizer_total;
    const char *reason; /* of an exception */
} tinker_loss_event;
/* Called in the thread that called the library; in parallel mode when a term is collected. */
typedef void tinker_loss_event_fn(const tinker_loss_event *event, void *state);
/* One line for a log, without newline. */
TINKER_API void tinker_loss_event_text(const tinker_loss_event *event, char *out, size_t n);

typedef struct tinker_custom_options {
    size_t size;            /* set by TINKER_CUSTOM_OPTIONS_INIT */
    const char *input_type; /* "logprobs" is the only one */
    const tinker_regularizer *regularizers;
    size_t n_regularizers;
    int track_grad_norms;
    int sequential;      /* regularizers one by one in the caller's thread, not in parallel */
    int max_concurrency; /* threads for regularizers; 0: one per processor */
    int64_t regularizer_timeout_ms;
    int allow_unused;       /* logprobs the loss does not depend on: gradient 0, else an error */
    int allow_nonfinite;    /* let NaN and infinity through to the service */
    int sum_nonscalar;      /* a loss of several elements is summed, else an error */
    int strip_local_inputs; /* data may have inputs only the loss reads; they are not sent */
    tinker_loss_event_fn *observer;
    void *observer_state;
} tinker_custom_options;
#define TINKER_CUSTOM_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(tinker_custom_options), "logprobs", NULL, 0, 0, 0, 0, 30000, 0, 0, 0, 0, NULL, NULL \
    }

/* Evaluate and differentiate a loss with its regularizers on logprobs you have; needs no
 * service.  Several regularizers run in parallel threads unless opts->sequential.  One that
 * exceeds its timeout is canceled (tinker_tape_canceled() is 1 and its operations fail), and the
 * call waits until it returns.  opts NULL: defaults.  Returns a new report, or NULL with *err set; it names
 * the term that failed.  Blocks while it computes.
 * Events go to opts->observer only: hooks (see events.h) belong to a service.  The training calls
 * below report to both. */
TINKER_API tinker_loss_report *tinker_loss_evaluate(tinker_loss_fn *fn, void *state,
                                                    const tinker_datum *data,
                                                    const tinker_tensor *logprobs, size_t n,
                                                    const tinker_custom_options *opts,
                                                    tinker_error *err);

/* ---- training with it -------------------------------------------------------------------- */

/* Accumulate the gradient of a loss of your own for data[0..n), whose inputs are
 * "target_tokens" and, if you like, "weights" (see strip_local_inputs).  Returns at once: the
 * library runs a forward pass, calls fn exactly once on a thread of its own (fn may submit but not
 * wait), and sends a backward pass with the gradient.
 *
 * data is copied; state, and what the options point to, must live until the future is complete
 * and, after a cancellation, until fn has returned, which tinker_service_free() waits for.  Ids of
 * both passes are reserved now: what is submitted after this call, an optim_step for example,
 * comes after the backward pass.
 *
 * Returns a new future with a tinker_future_forward_backward() result, whose metrics are the
 * service's (of the surrogate sum of logprob * gradient) overlaid by those of the loss, and with
 * tinker_future_loss_report().  NULL with *err set: TINKER_EINVAL for data or options that cannot
 * be used, TINKER_ENOMEM, TINKER_ESTATE.  When the loss fails the future does, and nothing is
 * accumulated; the next request of t first sends forward passes of one token in place of the
 * backward pass, so that the service does not wait for its numbers. */
TINKER_API tinker_future *
tinker_training_forward_backward_custom(struct tinker_training *t, const tinker_datum *data,
                                        size_t n, tinker_loss_fn *fn, void *state,
                                        const tinker_custom_options *opts, tinker_error *err);
/* Values and gradients of such a future; borrowed until free.  NULL as the other results are. */
TINKER_API const tinker_loss_report *tinker_future_loss_report(const tinker_future *f);

/* ---- a loss that the service computes ---------------------------------------------------- */

/* A named tensor of each datum that the loss reads, beside its logprobs: one number (rank 0), as long
 * as the logprobs (1), or of the shape of logprobs of rank 2. */
typedef struct tinker_graph_input {
    const char *name; /* lower-case letters, digits and _ */
    int rank;
} tinker_graph_input;

/* The loss of one datum; that of a batch is the sum.  Metrics are reported with
 * tinker_tape_metric_value() under names such as "custom/margin:mean" or "custom/hits:sum". */
typedef tinker_var *tinker_graph_loss_fn(tinker_tape *tape, tinker_var *logprobs,
                                         tinker_var *const *inputs, void *state);

typedef struct tinker_graph_loss {
    size_t size; /* set by TINKER_GRAPH_LOSS_INIT */
    const char *name;
    tinker_graph_loss_fn *fn;
    void *state;
    int logprobs_rank; /* 2: several targets per position */
    const tinker_graph_input *inputs;
    size_t n_inputs; /* at most 15 */
} tinker_graph_loss;
#define TINKER_GRAPH_LOSS_INIT                                  \
    {                                                           \
        sizeof(tinker_graph_loss), NULL, NULL, NULL, 1, NULL, 0 \
    }

/* Append the graph of a loss to *out, in the form of torch.fx that create_custom_loss takes.  fn runs
 * twice, with numbers of no meaning.  TINKER_EINVAL: it does something else for other lengths or
 * numbers, or an operation that has no form there (gathering, padding, constants of several
 * numbers). */
TINKER_API tinker_status tinker_graph_loss_json(const tinker_graph_loss *loss, tinker_text *out,
                                                tinker_error *err);
/* Give a loss to the service for this session: tinker_future_loss_id() of the future is its name
 * there.  Services without such losses, or without an operation of this one, fail the future. */
TINKER_API tinker_future *tinker_service_create_custom_loss(struct tinker_service *s,
                                                            const tinker_graph_loss *loss,
                                                            tinker_error *err);
TINKER_API const char *tinker_future_loss_id(const tinker_future *f);

/* Accumulate its gradient for data[0..n).  With the id, the service computes the loss, in one pass;
 * NULL: it is computed here, between two passes, which gives the same numbers (see
 * tinker_training_forward_backward_custom(): *loss must live until the future is complete).  So the
 * id of a future that failed is what a program falls back with. */
TINKER_API tinker_future *tinker_training_forward_backward_graph(struct tinker_training *t,
                                                                 const tinker_datum *data, size_t n,
                                                                 const tinker_graph_loss *loss,
                                                                 const char *loss_id,
                                                                 tinker_error *err);

#ifdef __cplusplus
}
#endif
#endif
