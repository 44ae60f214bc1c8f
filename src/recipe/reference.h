/* reference.h - requests about the tokens of datums, and their answers. */
#ifndef RECIPE_REFERENCE_H
#define RECIPE_REFERENCE_H

#include <stdbool.h>
#include <tinker/recipe.h>

/* One future for each datum: logprobs of its whole sequence, with topk > 0 the likeliest tokens
 * as well.  NULL with *err set. */
tinker_future **reference_request(tinker_sampler *s, const tinker_datum *data, size_t n,
                                  size_t topk, tinker_error *err);
void reference_free(tinker_future **f, size_t n);
/* The answer, checked to have at least `length` logprobs. */
tinker_status reference_await(tinker_future *f, size_t length, int64_t timeout_ms,
                              const tinker_sample **out, tinker_error *err);
/* As tinker_reference_logprobs() returns them. */
float **reference_collect(tinker_future **f, const tinker_datum *data, size_t n, int64_t timeout_ms,
                          tinker_error *err);

#endif
