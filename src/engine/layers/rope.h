/* rope.h - rotary position embedding, half-split form, forward and backward.
 *
 * A model has one rope for all layers, or one for layers that see everything and one for those
 * that slide; the table of a batch has the rows of both, one after the other. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include "engine/model/model.h"

/* rope_type in config.json. */
const char *rope_type_name(enum rope_type type);

/* inv_freq (rotary / 2) of a config; `divisors` (rotary / 2) of longrope, else NULL.  Returns the
 * factor of cos and sin. */
float rope_init(const struct rope_config *r, size_t rotary, const float *divisors, float *inv_freq);

/* How many ropes a model has, and which one a layer uses. */
size_t rope_count(const struct model_config *c);
size_t rope_of_layer(const struct model_config *c, size_t layer);

/* cs (n, rotary): cosines then sines of position pos + i in row i, of rope `which`.  is_long: the
 * sequence is longer than the original context, see model_is_long(). */
void rope_table(const struct model *m, size_t which, size_t pos, size_t n, bool is_long, float *cs);

/* Rotate pairs (j, j + rotary/2) of one head by the row cs; forward in place of x, and
 * the transposed rotation for gradients.  What lies behind them stays as it is. */
void rope_rotate(float *x, const float *cs, size_t rotary);
void rope_rotate_back(float *dx, const float *cs, size_t rotary);

/* The factor of a query at position pos, 1 but for models with a temperature. */
float rope_temperature(const struct model_config *c, size_t pos);

#endif
