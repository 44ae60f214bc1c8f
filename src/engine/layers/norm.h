/* norm.h - RMSNorm: y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps). */
#ifndef ENGINE_NORM_H
#define ENGINE_NORM_H

#include "engine/threads.h"

/* One vector of n; returns rstd.  y may be x. */
float norm_row(float *y, const float *x, const float *w, size_t n, float eps);
/* dx (n) = gradient through one vector (stored, or added with add); dx may be dy. */
void norm_row_backward(float *dx, const float *dy, const float *x, const float *w, float rstd,
                       size_t n, int add);

/* y (rows, n), rstd (rows) */
void norm_forward(struct threads *t, float *y, float *rstd, const float *x, const float *w,
                  size_t rows, size_t n, float eps);
/* dx (rows, n) += gradient through the norm. */
void norm_backward(struct threads *t, float *dx, const float *dy, const float *x, const float *w,
                   const float *rstd, size_t rows, size_t n);
/* d (rows, n), the gradient of the norm's output, becomes that of its input. */
void norm_backward_in_place(struct threads *t, float *d, const float *x, const float *w,
                            const float *rstd, size_t rows, size_t n);
/* dw (n) += sum over rows of dy * x * rstd.  Heads count as rows; those of x begin every ldx
 * floats. */
void norm_gradient(struct threads *t, float *dw, const float *dy, const float *x, size_t ldx,
                   const float *rstd, size_t rows, size_t n);

#endif
