/* self_attention.h - the attention branch of a layer: from its input to the output of o.
 *
 *   q, k, v = linears of x;  q and k through their norms;  rotated;  attention;
 *   gated by sigma(the other half of q_proj) where the model does so;  o */
#ifndef ENGINE_SELF_ATTENTION_H
#define ENGINE_SELF_ATTENTION_H

#include "engine/layers/block.h"

/* y (rows, hidden) from x (rows, hidden).  kv_offset: of the layer's keys inside a page. */
void self_attention_forward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                            struct acts *a, float *y);
/* dx (rows, hidden) = the gradient of x from that of y; adds those of parameters. */
void self_attention_backward(const struct block *b, size_t layer, size_t kv_offset, const float *x,
                             const struct acts *a, float *dy, float *dx, const struct grads *g,
                             struct back *s);

#endif
