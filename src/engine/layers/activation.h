/* activation.h - f(gate, up) of the MLP, forward and backward.
 *
 *   silu      gate sigma(gate) up
 *   gelu      gate sigma(2 u) up,  u = sqrt(2/pi) (gate + 0.044715 gate^3): the tanh form of GELU,
 *             because (1 + tanh u) / 2 = sigma(2 u)
 *   clamped   g sigma(alpha g) (u + 1),  g = min(gate, limit),  u = up clamped to +-limit
 *
 * Each is silu(h) w of numbers that follow from gate and up: one fast kernel serves all. */
#ifndef ENGINE_ACTIVATION_H
#define ENGINE_ACTIVATION_H

#include "engine/model/model.h"

void activation_forward(const struct model_config *c, float *y, const float *gate, const float *up,
                        size_t n);
/* dup holds the gradient of y; dgate and dup receive those of gate and up. */
void activation_backward(const struct model_config *c, float *dgate, float *dup, const float *gate,
                         const float *up, size_t n);

#endif
