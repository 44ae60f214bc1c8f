/* score.h - the named tensors of a datum as arrays, and the sums that losses are reported by. */
#ifndef RECIPE_SCORE_H
#define RECIPE_SCORE_H

#include <stdbool.h>
#include <tinker/recipe.h>

/* The input called `name`; NULL: none. */
const tinker_tensor *score_input(const tinker_datum *d, const char *name);
/* Its elements when it is dense and of that type; NULL otherwise. */
const float *score_floats(const tinker_datum *d, const char *name);
/* Elements of target_tokens along the sequence: the first dimension. */
size_t score_length(const tinker_datum *d);

/* Sums over targets, in double. */
struct score {
    double weighted; /* of weight * logprob */
    double weight;   /* of the weights */
    double counted;  /* of logprobs whose weight is above 0 and token not special */
    size_t bytes;    /* of the text of these */
    size_t trained;  /* weights other than 0 */
};
/* Add one datum.  tokenizer NULL: counted and bytes stay.  false: out of memory. */
bool score_add(struct score *s, const tinker_datum *d, const float *logprobs, size_t n,
               const tinker_tokenizer *tokenizer);
double score_nll(const struct score *s);
double score_bpb(const struct score *s);

#endif
