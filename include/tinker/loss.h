/* loss.h - losses of your own: automatic differentiation, regularizers, the training call.
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
 *     f = tinker_training_forward_backward_custom(t, data, n, nll, NULL, NULL, -1, NULL, &err);
 *
 * Values are double, up to four dimensions, row-major, with the broadcasting rules of
 * numpy.  Errors stick to the tape: the first one is kept, every later operation returns
 * a harmless value, and whoever called the loss function reports it.  So a loss need not
 * check anything. */
#ifndef TINKER_LOSS_H
#define TINKER_LOSS_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>
#include <tinker/future.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tinker_training;

/* ---- the tape ---------------------------------------------------------------------------- */

/* Remembers operations so that they can be differentiated; owns every tinker_var made on
 * it.  Thread safety: one thread at a time. */
typedef struct tinker_tape tinker_tape;
/* A value on a tape; lives as long as the tape.  Thread safety: one thread at a time. */
typedef struct tinker_var tinker_var;

/* A loss or a regularizer: returns its value, one element, or NULL after tinker_tape_fail().
 * data are the caller's own datums, logprobs[i] has the shape the service returned. */
typedef tinker_var *tinker_loss_fn(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state);

TINKER_API tinker_tape *tinker_tape_new(tinker_error *err);
/* No other call on the object may be in progress. */
TINKER_API void tinker_tape_free(tinker_tape *tape);
/* TINKER_OK, or the first error of any operation on it. */
TINKER_API tinker_status tinker_tape_status(const tinker_tape *tape, tinker_error *err);
/* Record an error of your own, unless there is one; returns NULL for a loss to return. */
TINKER_API tinker_var *tinker_tape_fail(tinker_tape *tape, const char *message);
/* 1 once the caller no longer wants the result: the term is over its time. */
TINKER_API int tinker_tape_cancelled(const tinker_tape *tape);

/* A variable to differentiate by, and constants.  The numbers are copied.  shape NULL: one
 * dimension of n. */
TINKER_API tinker_var *tinker_tape_leaf(tinker_tape *tape, const double *v, size_t n,
                                        const int64_t *shape, size_t ndim);
TINKER_API tinker_var *tinker_tape_const(tinker_tape *tape, const double *v, size_t n,
                                         const int64_t *shape, size_t ndim);
TINKER_API tinker_var *tinker_tape_scalar(tinker_tape *tape, double v);
TINKER_API tinker_var *tinker_tape_full(tinker_tape *tape, double v, const int64_t *shape,
                                        size_t ndim);
/* From a tensor, dense or sparse, of any element type. */
TINKER_API tinker_var *tinker_tape_tensor(tinker_tape *tape, const tinker_tensor *tensor);
/* The named tensor of a datum, for example "weights"; its absence is an error. */
TINKER_API tinker_var *tinker_tape_input(tinker_tape *tape, const tinker_datum *datum,
                                         const char *name);

/* Report a number or a text next to the loss; an equal name is replaced. */
TINKER_API void tinker_tape_metric(tinker_tape *tape, const char *name, double value);
TINKER_API void tinker_tape_note(tinker_tape *tape, const char *name, const char *text);

/* Differentiate y, one element, by everything it was made of; tinker_var_grad() of a leaf
 * tells.  May be called again, for another y too. */
TINKER_API tinker_status tinker_tape_backward(tinker_tape *tape, tinker_var *y, tinker_error *err);
/* After backward: one number per element, NULL when y does not depend on v. */
TINKER_API const double *tinker_var_grad(const tinker_var *v);
/* dy/dx as a value that can be differentiated again; zeros when y does not depend on x. */
TINKER_API tinker_var *tinker_var_gradient(tinker_var *y, tinker_var *x);

/* ---- looking at a value ------------------------------------------------------------------ */

TINKER_API size_t tinker_var_size(const tinker_var *v); /* elements */
TINKER_API size_t tinker_var_ndim(const tinker_var *v);
TINKER_API size_t tinker_var_dim(const tinker_var *v, int axis); /* -1: the last */
TINKER_API const double *tinker_var_data(const tinker_var *v);   /* borrowed from the tape */
TINKER_API double tinker_var_item(const tinker_var *v);          /* of one element, else NaN */
TINKER_API size_t tinker_var_argmax(const tinker_var *v);        /* first of the largest */
TINKER_API size_t tinker_var_argmin(const tinker_var *v);

/* ---- element by element ------------------------------------------------------------------ */

TINKER_API tinker_var *tinker_var_add(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_sub(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_mul(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_div(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_pow(tinker_var *a, tinker_var *b); /* a > 0 */
/* Equal elements share the gradient. */
TINKER_API tinker_var *tinker_var_minimum(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_maximum(tinker_var *a, tinker_var *b);
/* With a plain number on the right. */
TINKER_API tinker_var *tinker_var_shift(tinker_var *a, double s); /* a + s */
TINKER_API tinker_var *tinker_var_scale(tinker_var *a, double s); /* a * s */
TINKER_API tinker_var *tinker_var_power(tinker_var *a, double p); /* a ^ p */

TINKER_API tinker_var *tinker_var_neg(tinker_var *a);
TINKER_API tinker_var *tinker_var_abs(tinker_var *a); /* gradient 0 at 0 */
TINKER_API tinker_var *tinker_var_square(tinker_var *a);
TINKER_API tinker_var *tinker_var_sqrt(tinker_var *a); /* gradient 0 at 0 */
TINKER_API tinker_var *tinker_var_rsqrt(tinker_var *a);
TINKER_API tinker_var *tinker_var_exp(tinker_var *a);
TINKER_API tinker_var *tinker_var_expm1(tinker_var *a);
TINKER_API tinker_var *tinker_var_log(tinker_var *a);
TINKER_API tinker_var *tinker_var_log1p(tinker_var *a);
TINKER_API tinker_var *tinker_var_sigmoid(tinker_var *a);
TINKER_API tinker_var *tinker_var_logsigmoid(tinker_var *a);
TINKER_API tinker_var *tinker_var_softplus(tinker_var *a);
TINKER_API tinker_var *tinker_var_tanh(tinker_var *a);
TINKER_API tinker_var *tinker_var_relu(tinker_var *a);
/* Gradient passes where lo <= a <= hi. */
TINKER_API tinker_var *tinker_var_clamp(tinker_var *a, double lo, double hi);
TINKER_API tinker_var *tinker_var_nan_to_num(tinker_var *a, double nan, double neg_inf,
                                             double pos_inf);

/* Constants: no gradient passes. */
TINKER_API tinker_var *tinker_var_detach(tinker_var *a);
TINKER_API tinker_var *tinker_var_sign(tinker_var *a);
TINKER_API tinker_var *tinker_var_floor(tinker_var *a);
TINKER_API tinker_var *tinker_var_round(tinker_var *a); /* ties to even */
TINKER_API tinker_var *tinker_var_isfinite(tinker_var *a);
TINKER_API tinker_var *tinker_var_not(tinker_var *a);
TINKER_API tinker_var *tinker_var_gt(tinker_var *a, tinker_var *b); /* 0 or 1 */
TINKER_API tinker_var *tinker_var_ge(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_lt(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_le(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_eq(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_ne(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_and(tinker_var *a, tinker_var *b);
TINKER_API tinker_var *tinker_var_or(tinker_var *a, tinker_var *b);

/* a where mask is not 0, else b; an element that is not taken gets gradient 0 even when it
 * is NaN.  (Mask before log or division, not after: 0 * inf is NaN.)  No gradient by mask. */
TINKER_API tinker_var *tinker_var_where(tinker_var *mask, tinker_var *a, tinker_var *b);
/* v where mask is not 0, else a. */
TINKER_API tinker_var *tinker_var_masked_fill(tinker_var *a, tinker_var *mask, double v);

/* ---- along an axis ----------------------------------------------------------------------- */

/* axis counts from 0, or from the end with -1, -2, …; TINKER_ALL: all elements, giving a
 * scalar.  The axis disappears unless keep. */
enum { TINKER_ALL = 1000 };
TINKER_API tinker_var *tinker_var_sum(tinker_var *a, int axis, int keep);
TINKER_API tinker_var *tinker_var_mean(tinker_var *a, int axis, int keep);
/* The gradient goes to the first of equal elements. */
TINKER_API tinker_var *tinker_var_max(tinker_var *a, int axis, int keep);
TINKER_API tinker_var *tinker_var_min(tinker_var *a, int axis, int keep);
/* Divided by (count - correction). */
TINKER_API tinker_var *tinker_var_variance(tinker_var *a, int axis, int keep, int correction);
TINKER_API tinker_var *tinker_var_std(tinker_var *a, int axis, int keep, int correction);
TINKER_API tinker_var *tinker_var_norm(tinker_var *a, int axis, int keep); /* Euclidean */
TINKER_API tinker_var *tinker_var_logsumexp(tinker_var *a, int axis, int keep);
TINKER_API tinker_var *tinker_var_softmax(tinker_var *a, int axis);
/* Where a row is all -inf: -inf, with gradient 0. */
TINKER_API tinker_var *tinker_var_log_softmax(tinker_var *a, int axis);
TINKER_API tinker_var *tinker_var_cumsum(tinker_var *a, int axis);
TINKER_API tinker_var *tinker_var_dot(tinker_var *a, tinker_var *b); /* of equal shapes */
TINKER_API tinker_var *tinker_var_matmul(tinker_var *a, tinker_var *b);

/* ---- shapes ------------------------------------------------------------------------------ */

TINKER_API tinker_var *tinker_var_reshape(tinker_var *a, const int64_t *shape, size_t ndim);
TINKER_API tinker_var *tinker_var_flatten(tinker_var *a);
TINKER_API tinker_var *tinker_var_squeeze(tinker_var *a, int axis);
TINKER_API tinker_var *tinker_var_unsqueeze(tinker_var *a, int axis);
TINKER_API tinker_var *tinker_var_expand(tinker_var *a, const int64_t *shape, size_t ndim);
TINKER_API tinker_var *tinker_var_permute(tinker_var *a, const int *axes, size_t n);
TINKER_API tinker_var *tinker_var_transpose(tinker_var *a); /* of a matrix */
/* Elements start, start + step, …, len of them, along axis. */
TINKER_API tinker_var *tinker_var_slice(tinker_var *a, int axis, size_t start, size_t len,
                                        size_t step);
TINKER_API tinker_var *tinker_var_select(tinker_var *a, int axis, size_t i); /* axis disappears */
TINKER_API tinker_var *tinker_var_concat(tinker_var *const *v, size_t n, int axis);
TINKER_API tinker_var *tinker_var_stack(tinker_var *const *v, size_t n, int axis);
TINKER_API tinker_var *tinker_var_index_select(tinker_var *a, int axis, const int64_t *index,
                                               size_t n);
/* out[…, j] = a[…, index[…, j]]: index has k entries for every row of the last axis. */
TINKER_API tinker_var *tinker_var_gather(tinker_var *a, const int64_t *index, size_t k);
TINKER_API tinker_var *tinker_var_pad(tinker_var *a, int axis, size_t before, size_t after);
TINKER_API tinker_var *tinker_var_flip(tinker_var *a, int axis);
TINKER_API tinker_var *tinker_var_roll(tinker_var *a, int axis, int64_t by);

/* ---- often needed ------------------------------------------------------------------------ */

TINKER_API tinker_var *tinker_var_masked_sum(tinker_var *a, tinker_var *mask);
TINKER_API tinker_var *tinker_var_masked_mean(tinker_var *a, tinker_var *mask);      /* empty: 0 */
TINKER_API tinker_var *tinker_var_mse(tinker_var *a, tinker_var *b);                 /* mean */
TINKER_API tinker_var *tinker_var_huber(tinker_var *a, tinker_var *b, double delta); /* mean */
TINKER_API tinker_var *tinker_var_nll(tinker_var *logprobs, tinker_var *weights);    /* sum */
TINKER_API tinker_var *tinker_var_cosine(tinker_var *a, tinker_var *b);  /* norms from 1e-8 */
TINKER_API tinker_var *tinker_var_kl_rows(tinker_var *a, tinker_var *b); /* log-probabilities */
TINKER_API tinker_var *tinker_var_entropy_rows(tinker_var *a);
TINKER_API tinker_var *tinker_var_ratio(tinker_var *a, tinker_var *b); /* exp(a - b) */
TINKER_API tinker_var *tinker_var_whiten(tinker_var *a); /* mean 0, standard deviation 1 */

/* ---- checking a gradient ----------------------------------------------------------------- */

typedef struct tinker_gradcheck {
    double worst;        /* largest |numeric - automatic| / max(1, |numeric|) */
    size_t datum, index; /* where */
    double numeric, automatic;
} tinker_gradcheck;

/* Compare the gradient of fn at logprobs with central differences of step eps.  Returns
 * TINKER_EINVAL, with the place in *err, when they differ by more than tolerance.
 * report may be NULL. */
TINKER_API tinker_status tinker_loss_gradcheck(tinker_loss_fn *fn, void *state,
                                               const tinker_datum *data,
                                               const tinker_tensor *logprobs, size_t n, double eps,
                                               double tolerance, tinker_gradcheck *report,
                                               tinker_error *err);

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

/* What came of a loss.  Everything is owned by the report. */
typedef struct tinker_loss_report {
    double loss_total, regularizer_total;
    tinker_loss_term base;
    const tinker_loss_term *regularizers; /* in the order given, disabled ones left out */
    size_t n_regularizers;
    int has_total_grad_norm;
    double total_grad_norm;
    const tinker_tensor *gradients; /* one per datum: float64, in the shape of its logprobs */
    size_t n_gradients;
    const tinker_named_number *metrics; /* what a training call lays over its result */
    size_t n_metrics;
} tinker_loss_report;

TINKER_API void tinker_loss_report_free(tinker_loss_report *report);
/* The report without its gradients as JSON, NUL-terminated; free() it.  A number that is
 * not finite is written as null.  NULL: out of memory. */
TINKER_API char *tinker_loss_report_json(const tinker_loss_report *report);

/* Something happened: "custom_loss.start", ".stop", ".exception", or the same three of
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
typedef void tinker_loss_observer(const tinker_loss_event *event, void *state);
/* One line for a log, without newline. */
TINKER_API void tinker_loss_event_text(const tinker_loss_event *event, char *out, size_t n);

typedef struct tinker_custom_options {
    size_t size;            /* set by TINKER_CUSTOM_OPTIONS_INIT */
    const char *input_type; /* "logprobs", the only one there is */
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
    tinker_loss_observer *observer;
    void *observer_state;
} tinker_custom_options;
#define TINKER_CUSTOM_OPTIONS_INIT                                                                 \
    {                                                                                              \
        sizeof(tinker_custom_options), "logprobs", NULL, 0, 0, 0, 0, 30000, 0, 0, 0, 0, NULL, NULL \
    }

/* Evaluate and differentiate a loss with its regularizers on logprobs you have; needs no
 * service.  Several regularizers run in threads of their own unless opts->sequential; one
 * that overruns its time is told so (tinker_tape_cancelled(), and its operations fail) and
 * waited for.  opts NULL: defaults.  Returns a new report, or NULL with *err set; it names
 * the term that failed.  Blocks while it computes.
 * What happens is told to opts->observer alone: hooks (see events.h) belong to a service, and
 * there is none here.  The training calls below tell both. */
TINKER_API tinker_loss_report *tinker_loss_evaluate(tinker_loss_fn *fn, void *state,
                                                    const tinker_datum *data,
                                                    const tinker_tensor *logprobs, size_t n,
                                                    const tinker_custom_options *opts,
                                                    tinker_error *err);

/* ---- training with it -------------------------------------------------------------------- */

/* Accumulate the gradient of a loss of your own for data[0..n), whose inputs are
 * "target_tokens" and, if you like, "weights" (see strip_local_inputs).  Runs a forward
 * pass, waits for it at most timeout_ms (-1: for ever), calls fn in this thread, exactly
 * once, and submits a backward pass; an optim_step submitted afterwards applies it.
 * Requests of other threads, or of fn, may come between the passes; an optim_step there
 * would make the gradient stale.  Returns the future of the backward pass, a
 * tinker_future_forward_backward() result whose metrics are the service's (of the
 * surrogate sum of logprob * gradient) overlaid by those of the loss; or NULL with *err
 * set, and nothing accumulated.  *report (report may be NULL) receives values and
 * gradients; free it.  Blocks. */
TINKER_API tinker_future *
tinker_training_forward_backward_custom(struct tinker_training *t, const tinker_datum *data,
                                        size_t n, tinker_loss_fn *fn, void *state,
                                        const tinker_custom_options *opts, int64_t timeout_ms,
                                        tinker_loss_report **report, tinker_error *err);

/* The same as a future: returns at once, and fn runs on a thread of the library's, once, between
 * the passes (it may submit but not wait).  data is copied; state, and what the options point to,
 * must live until the future is complete and, after a cancellation, until fn has returned, which
 * tinker_service_free() waits for.  Ids of both passes are reserved now: what is submitted after
 * this call, an optim_step for example, comes after the backward pass.  When the loss fails the
 * future does, and nothing is accumulated; the next request of t first sends forward passes of
 * one token in place of the backward pass, so that the service does not wait for its numbers.  The result is as
 * above, with the report in tinker_future_loss_report().  NULL with *err set as above. */
TINKER_API tinker_future *tinker_training_request_forward_backward_custom(
    struct tinker_training *t, const tinker_datum *data, size_t n, tinker_loss_fn *fn, void *state,
    const tinker_custom_options *opts, tinker_error *err);
/* Values and gradients of such a future; borrowed until free.  NULL as the other results are. */
TINKER_API const tinker_loss_report *tinker_future_loss_report(const tinker_future *f);

/* ---- regularizers that are there --------------------------------------------------------- */

/* Use one as fn of a tinker_regularizer, with its options as state (NULL: defaults), or
 * call it inside a loss.  Element-wise ones work on all elements of all datums; row-wise
 * ones take every row of a matrix, or a whole vector, as one sample; the others average
 * over datums. */
typedef enum tinker_reg_reduction {
    TINKER_REG_DEFAULT = 0, /* sum for l1, l2 and elastic net, else mean */
    TINKER_REG_SUM,
    TINKER_REG_MEAN,
    TINKER_REG_NONE /* every element or row for itself */
} tinker_reg_reduction;

typedef enum tinker_reg_target {
    TINKER_TARGET_LOGPROBS = 0,
    TINKER_TARGET_PROBS, /* exp of them */
    TINKER_TARGET_FIELD  /* a named input of each datum; no gradient */
} tinker_reg_target;

typedef enum tinker_reg_center {
    TINKER_CENTER_NONE = 0,
    TINKER_CENTER_MEAN,
    TINKER_CENTER_NUMBER
} tinker_reg_center;

/* lambda * sum |t|; lambda * sum clip(t - center)^2; lambda * (l1_ratio * sum |t| +
 * (1 - l1_ratio) * sum t^2). */
typedef struct tinker_reg_size {
    size_t size; /* set by TINKER_REG_SIZE_INIT */
    tinker_reg_target target;
    const char *field; /* TARGET_FIELD */
    tinker_reg_reduction reduction;
    double lambda;
    double l1_ratio;          /* elastic net */
    tinker_reg_center center; /* l2 */
    double center_number;
    double clip;      /* l2; 0: none */
    int mask_weights; /* leave out elements whose "weights" are 0 */
} tinker_reg_size;
#define TINKER_REG_SIZE_INIT                                                                 \
    {                                                                                        \
        sizeof(tinker_reg_size), TINKER_TARGET_LOGPROBS, NULL, TINKER_REG_DEFAULT, 1.0, 0.5, \
            TINKER_CENTER_NONE, 0, 0, 0                                                      \
    }
TINKER_API tinker_loss_fn tinker_reg_l1;
TINKER_API tinker_loss_fn tinker_reg_l2;
TINKER_API tinker_loss_fn tinker_reg_elastic_net;

/* The entropy of rows of log-probabilities.  Meaningful for [N, K] rows; on a plain
 * sequence of sampled tokens the number is not an entropy. */
typedef struct tinker_reg_entropy_options {
    size_t size;  /* set by TINKER_REG_ENTROPY_INIT */
    int maximize; /* the term is -entropy */
    tinker_reg_reduction reduction;
    int normalize;      /* divide by log(row length), from 2 on */
    double temperature; /* 1: rows are not renormalised */
    int mask_weights;
} tinker_reg_entropy_options;
#define TINKER_REG_ENTROPY_INIT                                              \
    {                                                                        \
        sizeof(tinker_reg_entropy_options), 0, TINKER_REG_DEFAULT, 0, 1.0, 0 \
    }
TINKER_API tinker_loss_fn tinker_reg_entropy;

typedef enum tinker_reg_distance {
    TINKER_DISTANCE_MSE = 0,
    TINKER_DISTANCE_L1,
    TINKER_DISTANCE_COSINE, /* 1 - cosine of the flattened tensors, averaged over datums */
    TINKER_DISTANCE_KL      /* symmetric, without clamping */
} tinker_reg_distance;

/* Distance from reference log-probabilities: one tensor per datum, else a named input of
 * each datum, else computed. */
typedef struct tinker_reg_reference {
    size_t size; /* set by TINKER_REG_REFERENCE_INIT */
    const tinker_tensor *tensors;
    size_t n_tensors;
    const char *field; /* NULL: "reference_logprobs" for KL and JS, "original_logprobs" */
    tinker_var *(*compute)(tinker_tape *tape, const tinker_datum *data, size_t i, void *state);
    void *compute_state;
    tinker_reg_reduction reduction;
    int reverse, symmetric;       /* KL */
    tinker_reg_distance distance; /* consistency */
    int mask_weights;
} tinker_reg_reference;
#define TINKER_REG_REFERENCE_INIT                                                          \
    {                                                                                      \
        sizeof(tinker_reg_reference), NULL, 0, NULL, NULL, NULL, TINKER_REG_DEFAULT, 0, 0, \
            TINKER_DISTANCE_MSE, 0                                                         \
    }
TINKER_API tinker_loss_fn tinker_reg_kl;
TINKER_API tinker_loss_fn tinker_reg_jensen_shannon;
TINKER_API tinker_loss_fn tinker_reg_consistency;

typedef enum tinker_reg_gram {
    TINKER_GRAM_SOFT = 0, /* off-diagonal squares of M M^T */
    TINKER_GRAM_HARD,     /* squares of M M^T - I */
    TINKER_GRAM_SPECTRAL  /* (trace - n)^2 and the off-diagonal squares */
} tinker_reg_gram;

typedef enum tinker_reg_axis {
    TINKER_AXIS_ROWS = 0,
    TINKER_AXIS_SEQUENCE,
    TINKER_AXIS_VOCABULARY
} tinker_reg_axis;

typedef struct tinker_reg_orthogonality_options {
    size_t size; /* set by TINKER_REG_ORTHOGONALITY_INIT */
    tinker_reg_gram gram;
    int raw; /* rows as they are, else of length 1 */
    tinker_reg_axis axis;
    int sum;         /* over datums, else their mean */
    size_t max_rows; /* more are TINKER_EINVAL: the cost is rows^2 * columns */
} tinker_reg_orthogonality_options;
#define TINKER_REG_ORTHOGONALITY_INIT                                                            \
    {                                                                                            \
        sizeof(tinker_reg_orthogonality_options), TINKER_GRAM_SOFT, 0, TINKER_AXIS_ROWS, 0, 4096 \
    }
TINKER_API tinker_loss_fn tinker_reg_orthogonality;

/* (|gradient of f| - target)^2, at the logprobs or, with a reference, at a random point
 * between the two (the same for value and gradient; drawn from seed). */
typedef struct tinker_reg_gradient_options {
    size_t size; /* set by TINKER_REG_GRADIENT_INIT */
    tinker_var *(*f)(tinker_tape *tape, tinker_var *x, void *state); /* scalar, mandatory */
    void *f_state;
    double target_norm;
    int interpolated;
    const tinker_reg_reference *reference;
    uint64_t seed;
} tinker_reg_gradient_options;
#define TINKER_REG_GRADIENT_INIT                                         \
    {                                                                    \
        sizeof(tinker_reg_gradient_options), NULL, NULL, 1.0, 0, NULL, 0 \
    }
TINKER_API tinker_loss_fn tinker_reg_gradient_penalty;

/* The cheap relative: (s - target)^2 with s the root of the sum, or mean, of squares. */
typedef struct tinker_reg_magnitude_options {
    size_t size; /* set by TINKER_REG_MAGNITUDE_INIT */
    double target;
    tinker_reg_reduction reduction;
} tinker_reg_magnitude_options;
#define TINKER_REG_MAGNITUDE_INIT                                     \
    {                                                                 \
        sizeof(tinker_reg_magnitude_options), 1.0, TINKER_REG_DEFAULT \
    }
TINKER_API tinker_loss_fn tinker_reg_magnitude;

#ifdef __cplusplus
}
#endif
#endif
