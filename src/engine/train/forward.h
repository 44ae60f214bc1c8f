/* forward.h - token rows through the network; training and sampling share it.
 *
 * A batch is a list of rows cut into segments.  A segment is a run of consecutive
 * positions of one sequence, computed with one adapter, and reads and writes the
 * keys and values of that sequence in pages of KV_BLOCK positions.  What a row
 * computes depends only on its own sequence: not on the other rows, not on how the
 * sequence was cut into batches, not on threads.  That makes sampled logprobs
 * equal to those of the training forward, bit for bit with equal weights.
 *
 * Thread safety: one thread at a time per space. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "engine/layers/lora.h"
#include "engine/model/model.h"

enum { KV_BLOCK = 32 };

/* Floats of the keys (kv_heads, head_dim, KV_BLOCK) or of the values (kv_heads, KV_BLOCK,
 * head_dim) of one layer in one page; half as many where these are bfloat16, see
 * attention_store().  A page of all layers has 2 * kv_half() floats for each with attention: its
 * keys, then its values. */
size_t kv_half(const struct model_config *c);
size_t kv_page_floats(const struct model_config *c);
/* Where the keys of a layer begin in a page of all layers; its values follow.  Delta layers have
 * none. */
size_t kv_offset(const struct model_config *c, size_t layer);

struct segment {
    size_t row, n;           /* rows [row, row + n) of the batch, n >= 1 */
    size_t pos;              /* position of the first row in its sequence */
    const struct lora *lora; /* NULL: the base model */
    float *const *pages;     /* page b: positions [b * KV_BLOCK, (b + 1) * KV_BLOCK) */
    bool is_long;            /* frequencies of long texts, see model_is_long() */
    float *state;            /* of the delta layers, delta_state_floats(); NULL: the segment is the
                              * whole sequence and nothing follows */
};

struct batch {
    size_t n;              /* rows; the segments cover them in order */
    const int32_t *tokens; /* (n) */
    const struct segment *segments;
    size_t n_segments;
};

/* Fill segment_of (n) and cs (ropes, n, rotary), the rope tables of every row. */
void batch_prepare(const struct model *m, const struct batch *b, uint32_t *segment_of, float *cs);

/* x (n, hidden) = the network's input. */
void forward_embed(const struct model *m, const int32_t *tokens, size_t n, float *x);
/* Logits z (n, vocab) of the head as the model has them: divided, and capped. */
void forward_finish_logits(const struct model *m, struct threads *t, float *z, size_t n);

/* Scratch memory for batches of up to `rows` rows and adapters up to `rank`. */
struct forward_space;
struct forward_space *forward_space_new(const struct model_config *c, size_t rows, size_t rank,
                                        tinker_error *err);
void forward_space_free(struct forward_space *s);

/* h (n, hidden) = the batch after the last layer and the final norm.  Writes the
 * keys and values of its positions into the pages. */
void forward_rows(const struct model *m, struct threads *t, struct forward_space *s,
                  const struct batch *b, float *h);

/* logits (n, vocab) = head of h (n, hidden), row i with lora[i] (lora NULL, or an
 * entry NULL: the base model); n is at most the space's rows. */
void forward_logits(const struct model *m, struct threads *t, struct forward_space *s,
                    const float *h, size_t n, const struct lora *const *lora, float *logits);

/* The softmax of logits z (vocab) at 1 / inv_temperature: the one definition for
 * training and sampling.  Maximum and logarithm of the sum are kept apart, so that a
 * logprob near zero keeps its digits. */
struct logits_norm {
    float max;     /* largest z */
    float log_sum; /* log(sum(exp((z - max) * inv_temperature))) */
    float inv_temperature;
};
struct logits_norm logits_normalize(const float *z, size_t vocab, float inv_temperature);
/* log softmax of one logit. */
static inline float logits_logprob(const struct logits_norm *n, float z)
{
    return (z - n->max) * n->inv_temperature - n->log_sum;
}

#endif
