/* topk.h - matrices of likeliest tokens as JSON: a list of rows of [token, logprob] pairs.
 *
 * A row without values is null.  In memory an unused cell is token 0 with logprob -99999. */
#ifndef WIRE_TOPK_H
#define WIRE_TOPK_H

#include "wire/json/describe.h"

#define TOPK_UNUSED (-99999.0F)

struct topk_matrix {
    const int32_t *tokens; /* (rows, k); NULL: none */
    const float *logprobs;
    size_t rows, k;
};

/* rows is also told of a matrix without a single value, which is NULL.  null is no matrix. */
bool topk_read(struct wire_reader *r, const char *name, struct topk_matrix *out);
/* One row, which may be null: no pairs. */
bool topk_read_row(struct wire_reader *r, const int32_t **tokens, const float **logprobs,
                   size_t *n);
bool topk_write(struct wire_writer *w, const char *name, const struct topk_matrix *m);

#endif
