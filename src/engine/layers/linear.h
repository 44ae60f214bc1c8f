/* linear.h - matrix products of the network on all threads, with their gradients. */
#ifndef ENGINE_LINEAR_H
#define ENGINE_LINEAR_H

#include "engine/model/model.h"

enum { LINEAR_SET = 3 };

/* How exact the products of gradients are: both factors may be rounded to bfloat16 beside weights
 * whose own products round their other factor. */
enum factors { FACTORS_EXACT, FACTORS_ROUNDED };

/* A product of low rank that is added to the result of another one, alpha x w^T in the forward and
 * alpha x w in the backward.  x NULL: none. */
struct low_rank {
    const float *x; /* (rows, rank) */
    const float *w; /* (out, rank), or in the backward (rank, in) */
    size_t rank;
    float alpha;
    enum factors factors; /* of the backward */
};

/* Products that read the same input: q, k and v, or gate and up.  One parallel run. */
struct linear_set {
    size_t n;
    const struct linear *linear[LINEAR_SET];
    float *y[LINEAR_SET]; /* (rows, out): results, or gradients of them */
    struct low_rank low[LINEAR_SET];
};

/* y_i (rows, out_i) = x W_i^T + bias_i + low_i */
void linear_forward(struct threads *t, const struct linear_set *set, const float *x, size_t rows);
/* dx (rows, in) = sum over i of dy_i W_i, then + low_i for each i */
void linear_backward(struct threads *t, const struct linear_set *set, float *dx, size_t rows);
enum factors linear_factors(const struct linear *l);

/* dw (out, in) += dy^T x and db (out) += column sums of dy; either may be NULL.  Here and
 * below, t NULL: on the calling thread, inside a slice of another run. */
void linear_gradient(struct threads *t, enum factors factors, float *dw, float *db, const float *dy,
                     const float *x, size_t rows, size_t out, size_t in);

/* The dense kernels on all threads.  Several y (N,O) (+)= alpha x (N,C) w (O,C)^T with the same N
 * and C in one run; y (N,O) (+)= alpha x (N,C) w (C,O); y (O,C) (+)= alpha a (N,O)^T x (N,C). */
struct dense_product {
    float *y;
    const float *x, *w;
    size_t O;
};
void linear_nt_set(struct threads *t, const struct dense_product *products, size_t n, size_t N,
                   size_t C, float alpha, int accumulate);
/* The same bits for products of few rows each that have nothing in common, in one run: the adapters
 * of a decoding batch. */
enum { LINEAR_GROUPS = 128 };
struct dense_group {
    struct dense_product product;
    size_t N, C;
    float alpha;
};
void linear_nt_groups(struct threads *t, const struct dense_group *groups, size_t n,
                      int accumulate);
void linear_nn(struct threads *t, enum factors factors, float *y, const float *x, const float *w,
               size_t N, size_t O, size_t C, float alpha, int accumulate);
void linear_tn(struct threads *t, enum factors factors, float *y, const float *a, const float *x,
               size_t N, size_t O, size_t C, float alpha, int accumulate);

#endif
