/* split_block.h - cutting ASCII 64 bytes at a time.
 *
 * The patterns of split.c that descend from cl100k and o200k cut ASCII by few rules, which bits
 * can tell for a whole block at once, without a branch per piece.  What bits cannot tell (other
 * scalars, contractions, the end of the text) is left to the matcher of the pattern.  No state;
 * thread-safe. */
#ifndef TOKENIZER_SPLIT_BLOCK_H
#define TOKENIZER_SPLIT_BLOCK_H

#include <stdbool.h>
#include "tokenizer/split/split.h"

/* How patterns differ on ASCII. */
struct split_rules {
    bool cased; /* a capital after a small letter starts a word */
    bool slash; /* a slash may follow the newlines that end punctuation */
    bool three; /* three digits to a piece, else one */
    enum { CONTRACT_NEVER, CONTRACT_ALONE, CONTRACT_IN_WORD } contract; /* 's and the like */
};

/* The rules of a matcher of split_known(); NULL: it has none. */
const struct split_rules *split_rules_of(split_fn *next);

/* Cut p[0..end), p < end, into at most max > 0 pieces: the i-th is starts[i] up to starts[i + 1].
 * rules: those of next, or NULL.  Returns their number; starts has room for max + 1. */
size_t split_many(split_fn *next, const struct split_rules *rules, const unsigned char *p,
                  const unsigned char *end, const unsigned char **starts, size_t max);

#endif
