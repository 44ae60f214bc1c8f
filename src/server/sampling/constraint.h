/* constraint.h - which tokens a sample may take, by the grammar of its request.
 *
 * Every sequence has a state of the grammar.  End tokens may come only where the text is complete,
 * and where nothing can follow the sequence ends by itself.  Thread: the engine thread alone. */
#ifndef SERVER_CONSTRAINT_H
#define SERVER_CONSTRAINT_H

#include "server/work/live_state.h"

struct constraint;

/* For n_sequences sequences of a request to `base`; grammar is borrowed, ends is copied.
 * TINKER_EINVAL for a model without tokenizer. */
struct constraint *constraint_new(struct base *base, struct grammar *grammar, const int32_t *ends,
                                  size_t n_ends, size_t n_sequences, tinker_error *err);
void constraint_free(struct constraint *c);
/* The tokens that may come next, as tinker_mask_fn wants them. */
const uint64_t *constraint_mask(struct constraint *c, size_t sequence);
/* Take the token that was drawn; non-zero when the sequence is complete. */
int constraint_add_token(struct constraint *c, size_t sequence, int32_t token);

#endif
