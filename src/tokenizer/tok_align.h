/* tok_align.h - where the characters of a normal form came from. */
#ifndef TOKENIZER_TOK_ALIGN_H
#define TOKENIZER_TOK_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For each character of result[0..m), the normal form of source[0..n): the index of the source
 * character that it comes from, into origin.  false: out of memory. */
bool tok_align(const char *source, size_t n, const char *result, size_t m, bool compat,
               uint32_t *origin);

#endif
