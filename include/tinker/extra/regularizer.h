/* regularizer.h - the regularizers that come with the library. */
#ifndef TINKER_EXTRA_REGULARIZER_H
#define TINKER_EXTRA_REGULARIZER_H

#include <tinker/custom_loss.h>

#ifdef __cplusplus
extern "C" {
#endif

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
