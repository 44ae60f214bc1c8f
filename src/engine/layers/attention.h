/* attention.h - causal attention over pages of keys and values, forward and backward.
 *
 * Query head h shares the keys and values of kv head h / (heads / kv_heads).  Each
 * row walks its keys page by page in ascending order with a running maximum, so no
 * (rows, rows) matrix exists and a row's result does not depend on its neighbors.  Scores are
 * attention_scale q.k, capped where the model does so: c tanh(s / c). */
#ifndef ENGINE_ATTENTION_H
#define ENGINE_ATTENTION_H

#include "engine/train/forward.h"

struct attention {
    const struct model_config *config;
    const struct batch *batch;
    const uint32_t *segment_of; /* (rows) */
    size_t k_offset, v_offset;  /* of this layer inside a page, in floats */
    size_t window;              /* a row sees so many positions with its own; 0: all before it */
    const float *sinks;         /* (heads): a score that takes part in the softmax and has no
                                 * value; NULL: none */
};

/* One key and value of kv head `kv` into position `slot` of a page. */
void attention_store(const struct attention *a, float *page, size_t kv, size_t slot, const float *k,
                     const float *v);

/* Rotates the queries of rows [row, end) that share kv head `kv` and puts the head's keys and
 * values into the pages. */
typedef void attention_place(const void *arg, size_t kv, size_t row, size_t end);

/* out (rows, heads * hd) from q (rows, heads * hd), which `place` rotates; lse (rows, heads)
 * is the log of each softmax's denominator, for the backward. */
void attention_forward(struct threads *t, const struct attention *a, attention_place *place,
                       const void *arg, const float *q, float *out, float *lse);
/* Gradients of rotated q, rotated k and v from that of out.  dk and dv are (rows,
 * kv_heads * hd).  Every segment must start at position 0. */
void attention_backward(struct threads *t, const struct attention *a, const float *q,
                        const float *out, const float *lse, const float *dout, float *dq, float *dk,
                        float *dv);

#endif
