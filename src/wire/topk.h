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

/* rows is set even if the matrix has no value at all and tokens stays NULL. JSON null gives 0
 * rows. */
bool topk_read(struct wire_reader *r, const char *name, struct topk_matrix *out);
/* One row; null gives n 0. The lists are the arena's. */
bool topk_read_row(struct wire_reader *r, const int32_t **tokens, const float **logprobs,
                   size_t *n);
bool topk_write(struct wire_writer *w, const char *name, const struct topk_matrix *m);

#endif
