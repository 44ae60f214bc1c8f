/* stop_strings.h - stop strings: does the text sampled so far contain one of them?
 *
 * A match may start anywhere in the generated text, never in the prompt, and may
 * span tokens.  Thread: the engine thread alone. */
#ifndef SERVER_STOPS_H
#define SERVER_STOPS_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/tokenizer.h>

struct stops;

/* For n_samples sequences.  The strings are copied.  TINKER_EINVAL for an empty string
 * and for a model without tokenizer. */
struct stops *stops_new(tinker_tokenizer *t, const char *const *strings, size_t n, size_t n_samples,
                        tinker_error *err);
void stops_free(struct stops *s);
/* Take the next token of a sequence; non-zero when a stop string is now complete. */
int stops_token(struct stops *s, size_t sample, int32_t token);

#endif
