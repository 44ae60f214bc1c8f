/* split.h - cutting text into the pieces that are tokenized on their own.
 *
 * The patterns of the model families in use have hand-written matchers, chosen by the exact text
 * of the pattern; any other pattern goes to split_regex.h.  A matcher sees valid UTF-8 from the
 * end of the last piece to the end of the segment and returns the end of the next piece.
 * Every scalar belongs to a piece.  No state; thread-safe. */
#ifndef TOKENIZER_SPLIT_H
#define TOKENIZER_SPLIT_H

#include <stddef.h>

/* p < end; returns the end of the piece that starts at p, in (p, end]. */
typedef const unsigned char *split_fn(const unsigned char *p, const unsigned char *end);

/* The matcher of a pattern, or NULL when it has none. */
split_fn *split_known(const char *pattern, size_t n);
/* The matcher of a chain of patterns applied one after the other, each to the pieces of the one
 * before; NULL when there is none. */
split_fn *split_known_chain(const char *const *patterns, const size_t *lengths, size_t n);

extern const char split_gpt2_pattern[]; /* what ByteLevel with use_regex means */
extern const char split_cl100k_pattern[], split_o200k_pattern[], split_kimi_pattern[];

#endif
