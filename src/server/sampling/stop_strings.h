/* stop_strings.h - stop strings: does the text sampled so far contain one of them?
 *
 * A match may start anywhere in the generated text, never in the prompt, and may
 * span tokens.  Thread: the engine thread alone. */
#ifndef SERVER_STOP_STRINGS_H
#define SERVER_STOP_STRINGS_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/tokenizer.h>

struct stop_strings;

/* Of one request.  Matching does not depend on them, but making the matcher does. */
enum { STOPS_MAX = 1024, STOP_BYTES_MAX = 65536 };

/* What is wrong with the stops of a request, as far as their size goes; NULL: nothing. */
const char *stop_strings_problem(const tinker_sampling_params *p);

/* For n_sequences sequences.  The strings are copied.  TINKER_EINVAL for an empty string
 * and for a model without tokenizer. */
struct stop_strings *stop_strings_new(tinker_tokenizer *t, const char *const *strings, size_t n,
                                      size_t n_sequences, tinker_error *err);
void stop_strings_free(struct stop_strings *s);
/* Take the next token of a sequence; non-zero when a stop string is now complete. */
int stop_strings_add_token(struct stop_strings *s, size_t sequence, int32_t token);

#endif
