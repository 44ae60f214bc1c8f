/* sample.h - choose a token from one row of logits: pure functions.
 *
 * Order: penalties and biases change the logits (logit_rule.h), then temperature, top_k,
 * top_p, min_p; the draw inverts the cumulative distribution over the kept tokens in
 * ascending id order, in double.  A logit of -infinity is a token of probability 0: it is
 * never drawn. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

/* One token that is still in the race. */
struct candidate {
    float z;
    int32_t id;
};

struct sample_rule {
    float inv_temperature; /* 0: take the largest logit, lowest id first */
    size_t top_k;          /* 0: off */
    double top_p;          /* >= 1: off */
    double min_p;          /* 0: off */
};

/* Token for u in [0, 1).  scratch has room for n candidates; it is needed only with
 * top_k, top_p or min_p.  The logits must be finite or -infinity, with a finite maximum. */
int32_t sample_token(const float *z, size_t n, const struct sample_rule *rule, double u,
                     struct candidate *scratch);

/* The k largest logits, descending, ties by lower id, in scratch[0..); returns how
 * many there are (k, or n when there are fewer). */
size_t sample_top(const float *z, size_t n, size_t k, struct candidate *scratch);

/* The largest logit's id, lowest first. */
int32_t sample_argmax(const float *z, size_t n);

#endif
