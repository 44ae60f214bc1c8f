/* lora.h - the LoRA factors of one adapter, as views into its parameter buffer.
 *
 * y = W x + scale * B (A x) with A (rank, in) and B (out, rank).  A pair whose
 * pointers are NULL is not trained. */
#ifndef ENGINE_LORA_H
#define ENGINE_LORA_H

#include "engine/layers/linear.h"
#include "engine/model/model.h"

struct lora_pair {
    const float *a, *b;
    size_t a_step, b_step; /* floats from one expert's factor to the next; 0: all share it */
};

struct lora {
    size_t rank;
    float scale;             /* alpha / rank */
    enum factors gradients;  /* of the products of the backward; the forward is exact always */
    struct lora_pair *pairs; /* layers * LINEARS, then the head */
};

enum { LORA_ALPHA = 32 };

/* Pair of linear `id` in `layer`, and of the head of a model with so many layers. */
const struct lora_pair *lora_pair(const struct lora *l, size_t layer, enum linear_id id);
const struct lora_pair *lora_head(const struct lora *l, size_t layers);

/* The factors of one expert in a pair of stacks. */
struct lora_pair lora_expert(const struct lora_pair *p, size_t expert);

/* y (n, out) += scale * (x A^T) B^T on n rows; xa (n, rank) receives x A^T.
 * Nothing happens when the pair is not trained.  t NULL: on the calling thread. */
void lora_forward(struct threads *t, const struct lora *l, const struct lora_pair *p, float *y,
                  float *xa, const float *x, size_t n, size_t out, size_t in);

/* Several of them with the same x (n, in), at most LINEAR_SET. */
struct lora_part {
    const struct lora_pair *pair;
    float *y, *xa;
    size_t out;
};
void lora_forward_set(struct threads *t, const struct lora *l, const struct lora_part *parts,
                      size_t n_parts, const float *x, size_t n, size_t in);
/* The same as two parts: all x A^T, and what remains as products of low rank that a linear adds
 * while it has its outputs at hand. */
void lora_forward_down(struct threads *t, const struct lora *l, const struct lora_part *parts,
                       size_t n_parts, const float *x, size_t n, size_t in, struct low_rank *low);
/* The same for parts of different adapters, each with rows of its own, at most LORA_FEW_ROWS. */
enum { LORA_FEW_ROWS = 16 };
struct lora_group {
    const struct lora *lora;
    struct lora_part part;
    const float *x;
    size_t n, in;
};
void lora_forward_groups(struct threads *t, const struct lora_group *groups, size_t n);

/* The gradients: da, db and dx are added to (NULL: not wanted); dxa (n, rank) receives
 * the gradient of xa, which is what the forward left. */
void lora_backward(struct threads *t, const struct lora *l, const struct lora_pair *p, float *da,
                   float *db, float *dx, float *dxa, const float *dy, const float *x,
                   const float *xa, size_t n, size_t out, size_t in);
/* dxa, and what dx gets as a product of low rank. */
struct low_rank lora_backward_down(struct threads *t, const struct lora *l,
                                   const struct lora_pair *p, float *dxa, const float *dy, size_t n,
                                   size_t out);
/* Its two halves: dxa and dx of some rows, then the factors' gradients over all of them. */
void lora_backward_input(struct threads *t, const struct lora *l, const struct lora_pair *p,
                         float *dx, float *dxa, const float *dy, size_t n, size_t out, size_t in);
void lora_backward_factors(struct threads *t, const struct lora *l, const struct lora_pair *p,
                           float *da, float *db, const float *dxa, const float *dy, const float *x,
                           const float *xa, size_t n, size_t out, size_t in);

#endif
