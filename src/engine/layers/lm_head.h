/* lm_head.h - logits, losses and their gradient in chunks of rows.
 *
 * The logits of a whole batch never exist.  One visit of a chunk computes its logits,
 * the logprobs of the targets, the losses and, since every loss is a function of one
 * position, at once the gradient of the logits and what follows from it.
 *
 * Losses of a whole datum need all its logprobs first: lm_head_score() gives them,
 * lm_head_gradient() goes on from there once the caller knows the derivatives. */
#ifndef ENGINE_LM_HEAD_H
#define ENGINE_LM_HEAD_H

#include "engine/layers/block.h"
#include "engine/train/loss.h"

/* One row of the batch and where its results go. */
struct lm_head_row {
    const struct loss_datum *datum;
    size_t position;
    float *logprobs, *losses, *grads; /* of the datum, (n, k) */
};

struct lm_head {
    const struct model *model;
    struct threads *threads;
    const struct lora *lora; /* NULL: none */
    const struct loss *loss;
    const struct grads *grads; /* NULL: forward only */
    /* scratch for head_chunk() rows */
    float *logits;             /* (chunk, vocab) */
    float *xa, *dxa;           /* (chunk, rank) */
    float *hc, *dhc;           /* (chunk, hidden): the rows that have a gradient */
    float *xac;                /* (chunk, rank) */
    unsigned char *live;       /* (chunk): the row has a gradient */
    struct logits_norm *norms; /* (chunk): of lm_head_score() */
};

/* Rows of a chunk for this model; the same everywhere, because it decides the order
 * of sums. */
size_t lm_head_chunk(const struct model_config *c);
size_t lm_head_floats(const struct model_config *c, size_t rank);
/* Lay the scratch out in mem of head_floats() floats. */
void lm_head_init(struct lm_head *h, const struct model_config *c, size_t rank, float *mem);

/* Rows [0, n), n <= head_chunk(): h (n, hidden) is their final-normed state; dh (n,
 * hidden) receives its gradient (NULL: forward only). */
void lm_head_rows(struct lm_head *head, const float *h, const struct lm_head_row *rows, size_t n,
                  float *dh);
/* The same in two halves, for losses of a whole datum.  Logits and logprobs of the rows: */
void lm_head_score(struct lm_head *head, const float *h, const struct lm_head_row *rows, size_t n);
/* and, of the rows that were scored last, the gradient from their grads. */
void lm_head_gradient(struct lm_head *head, const float *h, const struct lm_head_row *rows,
                      size_t n, float *dh);

#endif
