/* rope.h - rotary position embedding, half-split form, forward and backward. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include "engine/model/model.h"

/* rope_type in config.json. */
const char *rope_type_name(enum rope_type type);

/* inv_freq (head_dim / 2) of a config; returns the factor of cos and sin. */
float rope_init(const struct rope_config *r, size_t head_dim, float *inv_freq);

/* cs (n, head_dim): cosines then sines of position pos + i in row i. */
void rope_table(const struct model *m, size_t pos, size_t n, float *cs);

/* Rotate pairs (j, j + hd/2) of one head by the row cs; forward in place of x, and
 * the transposed rotation for gradients. */
void rope_rotate(float *x, const float *cs, size_t head_dim);
void rope_rotate_back(float *dx, const float *cs, size_t head_dim);

#endif
