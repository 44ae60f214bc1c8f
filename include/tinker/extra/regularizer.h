/* regularizer.h - the regularizers that come with the library.
 *
 * Each is a tinker_loss_fn.  Use it as fn of a tinker_regularizer (custom_loss.h), with its
 * options as state (NULL: the defaults), or call it inside a loss of your own:
 *
 *     tinker_reg_norm_options small = TINKER_REG_NORM_OPTIONS_INIT;
 *     small.reduction = TINKER_REG_MEAN;
 *     tinker_regularizer term = { "small", 0.01, tinker_reg_l2, &small, 0, 0, 0 };
 *
 * Element-wise ones (l1, l2, elastic net, magnitude, consistency by mse and l1) work on all elements
 * of all datums.  Row-wise ones (entropy, kl, jensen_shannon, consistency by kl) take every row of a
 * matrix, or a whole vector, as one sample.  The others give one value per datum and average over datums.
 *
 * They return NULL after an error, which the tape keeps: TINKER_EINVAL for options or shapes that
 * do not fit, TINKER_ENOMEM.  Options are copied during the call; what they point to is borrowed.
 *
 * Thread safety: plain data for the options; the functions may run in any thread, each on a tape of
 * its own. */
#ifndef TINKER_EXTRA_REGULARIZER_H
#define TINKER_EXTRA_REGULARIZER_H

#include <tinker/custom_loss.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How one number is made of many. */
typedef enum tinker_reg_reduction {
    TINKER_REG_DEFAULT = 0, /* sum for l1, l2 and elastic net, else mean */
    TINKER_REG_SUM,
    TINKER_REG_MEAN,
    TINKER_REG_NONE /* every element or row for itself */
} tinker_reg_reduction;

/* What l1, l2 and elastic net measure. */
typedef enum tinker_reg_target {
    TINKER_TARGET_LOGPROBS = 0,
    TINKER_TARGET_PROBS, /* exp of them */
    TINKER_TARGET_FIELD  /* a named input of each datum; no gradient */
} tinker_reg_target;

/* What l2 subtracts first: nothing, the mean of all elements, or center_number. */
typedef enum tinker_reg_center {
    TINKER_CENTER_NONE = 0,
    TINKER_CENTER_MEAN,
    TINKER_CENTER_NUMBER
} tinker_reg_center;

/* Of l1, l2 and elastic net, which are, with t the elements of the target,
 *     lambda * sum |t|
 *     lambda * sum clip(t - center)^2
 *     lambda * sum (l1_ratio * |t| + (1 - l1_ratio) * t^2)
 * They report "l1_raw" and "l1_mean", "l2_raw", "l2_mean" and "center", "elastic_net" and "l1_ratio". */
typedef struct tinker_reg_norm_options {
    size_t size; /* set by TINKER_REG_NORM_OPTIONS_INIT */
    tinker_reg_target target;
    const char *field; /* TARGET_FIELD */
    tinker_reg_reduction reduction;
    double lambda;
    double l1_ratio;          /* elastic net */
    tinker_reg_center center; /* l2 */
    double center_number;
    double clip;      /* l2: to [-clip, clip]; 0: none */
    int mask_weights; /* leave out elements whose "weights" are 0 */
} tinker_reg_norm_options;
#define TINKER_REG_NORM_OPTIONS_INIT                                                            \
    {                                                                                           \
        sizeof(tinker_reg_norm_options), TINKER_TARGET_LOGPROBS, NULL, TINKER_REG_DEFAULT, 1.0, \
            0.5, TINKER_CENTER_NONE, 0, 0, 0                                                    \
    }
TINKER_API tinker_loss_fn tinker_reg_l1;
TINKER_API tinker_loss_fn tinker_reg_l2;
TINKER_API tinker_loss_fn tinker_reg_elastic_net;

/* The entropy -sum p log p of rows of log-probabilities.  Meaningful for [N, K] rows; on a plain
 * sequence of sampled tokens the number is not an entropy.  Log-probabilities of -50 and less do
 * not count.  Reports "entropy", "mode" and "temperature". */
typedef struct tinker_reg_entropy_options {
    size_t size;  /* set by TINKER_REG_ENTROPY_OPTIONS_INIT */
    int maximize; /* the term is -entropy */
    tinker_reg_reduction reduction;
    int normalize;      /* divide by log(row length), from 2 on */
    double temperature; /* 1: rows are not renormalized */
    int mask_weights;
} tinker_reg_entropy_options;
#define TINKER_REG_ENTROPY_OPTIONS_INIT                                      \
    {                                                                        \
        sizeof(tinker_reg_entropy_options), 0, TINKER_REG_DEFAULT, 0, 1.0, 0 \
    }
TINKER_API tinker_loss_fn tinker_reg_entropy;

/* How consistency measures the distance. */
typedef enum tinker_reg_distance {
    TINKER_DISTANCE_MSE = 0,
    TINKER_DISTANCE_L1,
    TINKER_DISTANCE_COSINE, /* 1 - cosine of the flattened tensors, averaged over datums */
    TINKER_DISTANCE_KL      /* symmetric, without clamping */
} tinker_reg_distance;

/* Compute the reference of datum i, of the shape of its logprobs.  NULL: there is none, an error. */
typedef tinker_var *tinker_reg_reference_fn(tinker_tape *tape, const tinker_datum *data, size_t i,
                                            void *state);

/* Of the distances from reference log-probabilities: one tensor per datum, else the input `field` of
 * each datum, else what `compute` returns, else the default field.  No gradient passes by a
 * reference.
 * kl is sum exp(x) * (x - y) of each row, where exp(x) > 1e-10 and the difference is clamped to
 * [-100, 100]; reverse exchanges x and y, symmetric averages both.  jensen_shannon is the mean of
 * kl(x, m) and kl(y, m), with m the log of the mean of both probabilities.  kl reports
 * "kl_divergence", "kl_direction", "kl_symmetric", "kl_max" and "kl_min"; the others
 * "jensen_shannon", "consistency" and "consistency_metric". */
typedef struct tinker_reg_reference_options {
    size_t size; /* set by TINKER_REG_REFERENCE_OPTIONS_INIT */
    const tinker_tensor *tensors;
    size_t n_tensors;
    const char *field; /* default: "reference_logprobs", for consistency "original_logprobs" */
    tinker_reg_reference_fn *compute;
    void *compute_state;
    tinker_reg_reduction reduction;
    int reverse, symmetric;       /* KL */
    tinker_reg_distance distance; /* consistency */
    int mask_weights;
} tinker_reg_reference_options;
#define TINKER_REG_REFERENCE_OPTIONS_INIT                                                          \
    {                                                                                              \
        sizeof(tinker_reg_reference_options), NULL, 0, NULL, NULL, NULL, TINKER_REG_DEFAULT, 0, 0, \
            TINKER_DISTANCE_MSE, 0                                                                 \
    }
TINKER_API tinker_loss_fn tinker_reg_kl;
TINKER_API tinker_loss_fn tinker_reg_jensen_shannon;
TINKER_API tinker_loss_fn tinker_reg_consistency;

/* The penalty on M M^T, which is the identity when the rows are orthonormal. */
typedef enum tinker_reg_gram {
    TINKER_GRAM_SOFT = 0, /* off-diagonal squares of M M^T */
    TINKER_GRAM_HARD,     /* squares of M M^T - I */
    TINKER_GRAM_SPECTRAL  /* (trace - n)^2 and the off-diagonal squares */
} tinker_reg_gram;

/* Which axis of the logprobs gives the rows of M; the others are its columns. */
typedef enum tinker_reg_axis {
    TINKER_AXIS_ROWS = 0,  /* all but the last, flattened */
    TINKER_AXIS_SEQUENCE,  /* the second of three dimensions; of fewer, as ROWS */
    TINKER_AXIS_VOCABULARY /* the last */
} tinker_reg_axis;

/* Reports "orthogonality". */
typedef struct tinker_reg_orthogonality_options {
    size_t size; /* set by TINKER_REG_ORTHOGONALITY_OPTIONS_INIT */
    tinker_reg_gram gram;
    int raw; /* rows as they are, else of length 1 */
    tinker_reg_axis axis;
    int sum;         /* over datums, else their mean */
    size_t max_rows; /* more are TINKER_EINVAL: the cost is rows^2 * columns */
} tinker_reg_orthogonality_options;
#define TINKER_REG_ORTHOGONALITY_OPTIONS_INIT                                                    \
    {                                                                                            \
        sizeof(tinker_reg_orthogonality_options), TINKER_GRAM_SOFT, 0, TINKER_AXIS_ROWS, 0, 4096 \
    }
TINKER_API tinker_loss_fn tinker_reg_orthogonality;

/* A differentiable function of x: returns one element, or NULL after tinker_tape_fail(). */
typedef tinker_var *tinker_reg_scalar_fn(tinker_tape *tape, tinker_var *x, void *state);

/* (|gradient of f| - target_norm)^2, at the logprobs or, if interpolated, at a random point
 * between them and a reference: e * logprobs + (1 - e) * reference, with one e in [0, 1) for all
 * datums of a call, drawn from seed. */
typedef struct tinker_reg_gradient_options {
    size_t size;             /* set by TINKER_REG_GRADIENT_OPTIONS_INIT */
    tinker_reg_scalar_fn *f; /* must not be NULL */
    void *f_state;
    double target_norm;
    int interpolated;
    const tinker_reg_reference_options *reference; /* interpolated; NULL: the defaults */
    uint64_t seed;
} tinker_reg_gradient_options;
#define TINKER_REG_GRADIENT_OPTIONS_INIT                                 \
    {                                                                    \
        sizeof(tinker_reg_gradient_options), NULL, NULL, 1.0, 0, NULL, 0 \
    }
TINKER_API tinker_loss_fn tinker_reg_gradient_penalty;

/* The cheap relative: (s - target)^2 with s the root of the sum, or mean, of squares. */
typedef struct tinker_reg_magnitude_options {
    size_t size; /* set by TINKER_REG_MAGNITUDE_OPTIONS_INIT */
    double target;
    tinker_reg_reduction reduction;
} tinker_reg_magnitude_options;
#define TINKER_REG_MAGNITUDE_OPTIONS_INIT                             \
    {                                                                 \
        sizeof(tinker_reg_magnitude_options), 1.0, TINKER_REG_DEFAULT \
    }
TINKER_API tinker_loss_fn tinker_reg_magnitude;

#ifdef __cplusplus
}
#endif
#endif
