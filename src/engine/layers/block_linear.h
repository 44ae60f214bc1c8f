/* block_linear.h - the linears of a layer together with their LoRA parts. */
#ifndef ENGINE_BLOCK_LINEAR_H
#define ENGINE_BLOCK_LINEAR_H

#include "engine/layers/block.h"
#include "engine/layers/linear.h"

/* y_i (rows, out_i) of linears `ids` of a layer, all of which read x; n is at most LINEAR_SET. */
void block_linears(const struct block *b, size_t layer, size_t n, const enum linear_id *ids,
                   float *const *y, const struct acts *a, const float *x);

/* dx (rows, in) = the gradient of their common input x from those of their outputs; adds the
 * gradients of their parameters. */
void block_linears_backward(const struct block *b, size_t layer, size_t n,
                            const enum linear_id *ids, float *const *dy, const struct acts *a,
                            const float *x, float *dx, const struct grads *g, struct back *s);

#endif
