/* reg.h - what the built-in regularizers share: elements, rows, references, reductions. */
#ifndef REGULARIZER_REG_H
#define REGULARIZER_REG_H

#include <tinker/extra/regularizer.h>
#include "autodiff/tape.h"

/* The arguments of a tinker_loss_fn. */
struct reg_call {
    tinker_tape *tape;
    const tinker_datum *data;
    tinker_var *const *logprobs; /* one value per datum */
    size_t n;
};

/* Copy the options behind state (NULL: leave the defaults); false: an error on the tape. */
bool reg_copy_options(tinker_tape *t, void *ours, size_t size, const void *state, const char *type);

/* v as one dimension, without the elements whose "weights" are 0 when masked. */
tinker_var *reg_flatten(const struct reg_call *c, size_t i, tinker_var *v, bool masked);
/* The values of all datums, one after the other. */
tinker_var *reg_join_data(const struct reg_call *c, tinker_var **v);

/* A datum as rows of a matrix.  keep (may be NULL): 0 at elements to be left out. */
struct reg_rows {
    tinker_var *x, *y; /* y: the reference, or NULL */
    tinker_var *keep;
};
bool reg_take_rows(const struct reg_call *c, size_t i, tinker_var *y, bool masked,
                   struct reg_rows *out);

/* The reference of datum i, of the shape of its logprobs; an error when there is none. */
tinker_var *reg_find_reference(const struct reg_call *c, const tinker_reg_reference_options *o,
                               size_t i, const char *default_field);

tinker_var *reg_reduce(tinker_var *v, tinker_reg_reduction r, tinker_reg_reduction otherwise);
/* The mean over datums, or the sum, of one value for each. */
tinker_var *reg_combine_data(const struct reg_call *c, tinker_var **v, bool sum);
tinker_var **reg_new_array(const struct reg_call *c); /* of c->n; NULL: an error on the tape */

#endif
