/* sample_options.h - what a sampling request may ask for beside its tokens, in one table.
 *
 * Client and server share it: a new option is a field of struct wire_sample_request, a line in the
 * table of its JSON form and a line in the table of options, both in sample_types.c.  Range checks
 * of both sides, what goes from tinker_sample_options into a request, and what a stream cannot
 * carry follow from that. */
#ifndef WIRE_SAMPLE_OPTIONS_H
#define WIRE_SAMPLE_OPTIONS_H

#include <stdbool.h>
#include <tinker/sampling.h>
#include "json/json.h"
#include "wire/types.h"

/* Read {"token id": bias, ...}.  false: the reader says why, or there was no memory. */
bool wire_read_logit_bias(struct json_reader *r, struct arena *arena, const tinker_logit_bias **out,
                          size_t *n);

/* Copy the options of the public API into a request.  Options that older services do not know
 * are left out unless they say something.  TINKER_EINVAL: a number does not fit. */
tinker_status wire_sample_set_options(struct wire_sample_request *req,
                                      const tinker_sample_options *opts, tinker_error *err);
/* Are the numbers of a request in their ranges?  TINKER_EINVAL names the one that is not. */
tinker_status wire_sample_check_options(const struct wire_sample_request *req, tinker_error *err);
/* The first option that is about the prompt, whose answer no stream of tokens carries; NULL: none
 * was asked for. */
const char *wire_sample_prompt_option(const struct wire_sample_request *req);

#endif
