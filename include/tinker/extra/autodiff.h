/* autodiff.h - reverse-mode automatic differentiation, for losses of your own (custom_loss.h).
 *
 *     tinker_tape *tape = tinker_tape_new(&err);
 *     tinker_var *x = tinker_tape_leaf(tape, (double[]){ 1, 2, 3 }, 3, NULL, 0);
 *     tinker_var *y = tinker_var_sum(tinker_var_square(x), TINKER_ALL, 0);
 *     if (tinker_tape_backward(tape, y, &err) == TINKER_OK)
 *         use(tinker_var_grad(x));   (2, 4, 6)
 *     tinker_tape_free(tape);
 *
 * Values are double, up to four dimensions, row-major, with the broadcasting rules of
 * numpy.  Errors stick to the tape: the first one is kept, every later operation returns
 * a harmless value, and the call that ran the loss reports it.  So a loss need not
 * check anything.  No operation blocks; none returns NULL, except with an err parameter or where
 * it says so. */
#ifndef TINKER_EXTRA_AUTODIFF_H
#define TINKER_EXTRA_AUTODIFF_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the tape ---------------------------------------------------------------------------- */

/* Remembers operations so that they can be differentiated; owns every tinker_var made on
 * it.  Thread safety: one thread at a time. */
typedef struct tinker_tape tinker_tape;
/* A value on a tape; lives as long as the tape.  Thread safety: one thread at a time. */
typedef struct tinker_var tinker_var;

/* A loss or a regularizer: returns its value, one element, or NULL after tinker_tape_fail().
 * data are the caller's own datums, logprobs[i] has the shape the service returned.  The tape and
 * everything on it belong to the caller of the function. */
typedef tinker_var *tinker_loss_fn(tinker_tape *tape, const tinker_datum *data,
                                   tinker_var *const *logprobs, size_t n, void *state);

/* A new tape; free it with tinker_tape_free().  NULL with *err set: TINKER_ENOMEM. */
TINKER_API tinker_tape *tinker_tape_new(tinker_error *err);
/* Frees every value on it, too; NULL is allowed.  No other call on the object may be in progress. */
TINKER_API void tinker_tape_free(tinker_tape *tape);
/* TINKER_OK, or the first error of any operation on it. */
TINKER_API tinker_status tinker_tape_status(const tinker_tape *tape, tinker_error *err);
/* Record an error of your own, unless there is one; returns NULL for a loss to return. */
TINKER_API tinker_var *tinker_tape_fail(tinker_tape *tape, const char *message);
/* 1 once the caller no longer wants the result, because the term is over its time.  A term that
 * computes for long asks now and then, and returns NULL. */
TINKER_API int tinker_tape_canceled(const tinker_tape *tape);

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
/* The named tensor of a datum, for example "weights"; its absence is an error.  The datum stays as it
 * is while the tape lives. */
TINKER_API tinker_var *tinker_tape_input(tinker_tape *tape, const tinker_datum *datum,
                                         const char *name);

/* Report a number or a text next to the loss; an equal name is replaced.  Both are copied. */
TINKER_API void tinker_tape_metric(tinker_tape *tape, const char *name, double value);
/* The same for a value of one element, which a loss that the service computes can report, too. */
TINKER_API void tinker_tape_metric_value(tinker_tape *tape, const char *name, tinker_var *v);
TINKER_API void tinker_tape_note(tinker_tape *tape, const char *name, const char *text);

/* Differentiate y, one element, by everything it was made of; read the result with
 * tinker_var_grad() of a leaf.  May be called again, for another y, too.  Returns the first error of
 * the tape; TINKER_EINVAL for a y of several elements. */
TINKER_API tinker_status tinker_tape_backward(tinker_tape *tape, tinker_var *y, tinker_error *err);
/* After tinker_tape_backward(): one number per element, borrowed from the tape until the next
 * backward; NULL when y does not depend on v. */
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

/* The largest difference that tinker_loss_gradcheck() found.  Thread safety: plain data. */
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

#ifdef __cplusplus
}
#endif
#endif
