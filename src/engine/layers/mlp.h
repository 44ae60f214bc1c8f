/* mlp.h - the dense MLP of a layer, and the expert that every token of a sparse layer uses:
 *
 *   down(activation(gate x, up x)),  and sigma(r . x) times that, or that alone */
#ifndef ENGINE_MLP_H
#define ENGINE_MLP_H

#include "engine/layers/block.h"

/* y (rows, hidden) from x (rows, hidden). */
void mlp_forward(const struct block *b, size_t layer, const float *x, struct acts *a, float *y);
/* dx (rows, hidden) from dy (rows, hidden); adds the gradients of parameters. */
void mlp_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                  float *dy, float *dx, const struct grads *g, struct back *s);

/* y += the shared expert's part; dx += its part. */
void mlp_shared_forward(const struct block *b, size_t layer, const float *x, struct acts *a,
                        float *y);
void mlp_shared_backward(const struct block *b, size_t layer, const float *x, const struct acts *a,
                         const float *dy, float *dx, const struct grads *g, struct back *s);

#endif
